"""Requests to the controller about partitions, and their responses. Frozen data, no behaviour.

Rules: controller.md C29, C32-C34; recovery.md V16-V25; since_4_0.md K27 (AlterPartition 2-3 only: topics by id).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, TypeAlias
from uuid import UUID

from fenceline.controller.outcome import RequestOutcome
from fenceline.errors import ErrorCode

NO_BROKER_EPOCH = -1
"""Broker epoch of an ISR member for which the leader sent none (AlterPartition v2): not checked."""


class ElectionType(IntEnum):
    PREFERRED = 0
    UNCLEAN = 1


@dataclass(frozen=True, slots=True)
class ElectLeaders:
    """`election_type` is the raw number; `topic_partitions` None means all."""

    election_type: int
    topic_partitions: tuple[tuple[str, tuple[int, ...]], ...] | None = None


@dataclass(frozen=True, slots=True)
class ElectedPartition:
    """The result of one partition's election."""

    index: int
    outcome: RequestOutcome


@dataclass(frozen=True, slots=True)
class ElectLeadersAnswer:
    """The requested partitions by topic; if all were requested, those that needed an election."""

    topics: tuple[tuple[str, tuple[ElectedPartition, ...]], ...]


class IsrMember(NamedTuple):
    """A replica of the new ISR, and its broker epoch as known to the leader (KIP-903)."""

    broker_id: int
    broker_epoch: int = NO_BROKER_EPOCH


@dataclass(frozen=True, slots=True)
class IsrChange:
    """The change that a partition's leader requests. `leader_recovery_state` is the raw byte."""

    index: int
    leader_epoch: int
    partition_epoch: int
    new_isr: tuple[IsrMember, ...]
    leader_recovery_state: int = 0


@dataclass(frozen=True, slots=True)
class AlterPartition:
    """A broker requests changes of ISR or recovery state for partitions that it leads."""

    broker_id: int
    broker_epoch: int
    topics: tuple[tuple[UUID, tuple[IsrChange, ...]], ...]


@dataclass(frozen=True, slots=True)
class AlteredPartition:
    """The partition after the change; after a failure only `code` is set."""

    index: int
    code: ErrorCode = ErrorCode.NONE
    leader: int = 0
    leader_epoch: int = 0
    isr: tuple[int, ...] = ()
    leader_recovery_state: int = 0
    partition_epoch: int = 0


@dataclass(frozen=True, slots=True)
class AlterPartitionAnswer:
    """In the order of the request."""

    topics: tuple[tuple[UUID, tuple[AlteredPartition, ...]], ...]


@dataclass(frozen=True, slots=True)
class Reassignment:
    """`replicas` is the target list, the preferred leader first; None cancels the current reassignment."""

    index: int
    replicas: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class AlterPartitionReassignments:
    """Each partition succeeds or fails separately."""

    topics: tuple[tuple[str, tuple[Reassignment, ...]], ...]
    allow_replication_factor_change: bool = True


@dataclass(frozen=True, slots=True)
class ReassignedPartition:
    """The result of one partition's reassignment."""

    index: int
    outcome: RequestOutcome


@dataclass(frozen=True, slots=True)
class AlterPartitionReassignmentsAnswer:
    """In the order of the request."""

    topics: tuple[tuple[str, tuple[ReassignedPartition, ...]], ...]


@dataclass(frozen=True, slots=True)
class ListPartitionReassignments:
    """`topics` None means all."""

    topics: tuple[tuple[str, tuple[int, ...]], ...] | None = None


@dataclass(frozen=True, slots=True)
class OngoingReassignment:
    """A reassignment in progress: `replicas` contains the old and the new ones."""

    index: int
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ListPartitionReassignmentsAnswer:
    """The topics and partitions with a reassignment in progress."""

    topics: tuple[tuple[str, tuple[OngoingReassignment, ...]], ...]


@dataclass(frozen=True, slots=True)
class AssignReplicasToDirs:
    """A broker reports the log directories of its replicas: (directory, ((topic, partitions), ...))."""

    broker_id: int
    broker_epoch: int
    directories: tuple[tuple[UUID, tuple[tuple[UUID, tuple[int, ...]], ...]], ...]


@dataclass(frozen=True, slots=True)
class AssignedReplica:
    """The result of one replica's directory assignment."""

    index: int
    code: ErrorCode


@dataclass(frozen=True, slots=True)
class AssignReplicasToDirsAnswer:
    """In the order of the request."""

    directories: tuple[tuple[UUID, tuple[tuple[UUID, tuple[AssignedReplica, ...]], ...]], ...]


@dataclass(frozen=True, slots=True)
class BalanceLeaders:
    """Timer: move leadership back to preferred replicas (C30)."""


@dataclass(frozen=True, slots=True)
class ElectUncleanLeaders:
    """Timer: unclean elections for leaderless partitions that allow them (V12)."""


@dataclass(frozen=True, slots=True)
class ElectLeaderless:
    """A new active controller: elections that its predecessor may not have completed."""


@dataclass(frozen=True, slots=True)
class ElectionPassAnswer:
    """Result of a pass over partitions: `more` are left and need another pass at once."""

    more: bool


PartitionRequest: TypeAlias = (
    ElectLeaders
    | AlterPartition
    | AlterPartitionReassignments
    | ListPartitionReassignments
    | AssignReplicasToDirs
    | BalanceLeaders
    | ElectUncleanLeaders
    | ElectLeaderless
)
