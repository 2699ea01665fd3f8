"""What the controller can be asked of single partitions, and what it answers. Frozen data, no behaviour.

Rules: controller.md C29, C32-C34; recovery.md V16-V25; since_4_0.md K27 (AlterPartition 2-3 only: topics by id).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, TypeAlias
from uuid import UUID

from fenceline.controller.outcome import Outcome
from fenceline.errors import ErrorCode

NO_BROKER_EPOCH = -1
"""Of an ISR member whose epoch the leader did not tell (AlterPartition v2): it is not checked."""


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
    """How the election of one partition went."""

    index: int
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class ElectLeadersAnswer:
    """Per topic, the partitions that were asked for; of all, those that were not where they should be."""

    topics: tuple[tuple[str, tuple[ElectedPartition, ...]], ...]


class IsrMember(NamedTuple):
    """A replica that the leader wants in sync, and its broker epoch as the leader knows it (KIP-903)."""

    broker_id: int
    broker_epoch: int = NO_BROKER_EPOCH


@dataclass(frozen=True, slots=True)
class IsrChange:
    """What the leader of one partition wants. `leader_recovery_state` is the raw byte."""

    index: int
    leader_epoch: int
    partition_epoch: int
    new_isr: tuple[IsrMember, ...]
    leader_recovery_state: int = 0


@dataclass(frozen=True, slots=True)
class AlterPartition:
    """A broker asks to change the ISR, or to end the recovery, of partitions that it leads."""

    broker_id: int
    broker_epoch: int
    topics: tuple[tuple[UUID, tuple[IsrChange, ...]], ...]


@dataclass(frozen=True, slots=True)
class AlteredPartition:
    """The partition after the change; only `code` counts when it failed."""

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
    """`replicas` is the wished list, the preferred leader first; None cancels what is under way."""

    index: int
    replicas: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class AlterPartitionReassignments:
    """Move each partition that can be moved; the others fail alone."""

    topics: tuple[tuple[str, tuple[Reassignment, ...]], ...]
    allow_replication_factor_change: bool = True


@dataclass(frozen=True, slots=True)
class ReassignedPartition:
    """How the reassignment of one partition went."""

    index: int
    outcome: Outcome


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
    """A partition on the move: `replicas` holds the old and the new ones."""

    index: int
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ListPartitionReassignmentsAnswer:
    """Topics that have a partition on the move, and those partitions."""

    topics: tuple[tuple[str, tuple[OngoingReassignment, ...]], ...]


@dataclass(frozen=True, slots=True)
class AssignReplicasToDirs:
    """A broker tells which of its log directories hold which replicas: (directory, ((topic, partitions), ...))."""

    broker_id: int
    broker_epoch: int
    directories: tuple[tuple[UUID, tuple[tuple[UUID, tuple[int, ...]], ...]], ...]


@dataclass(frozen=True, slots=True)
class AssignedReplica:
    """How the assignment of one replica went."""

    index: int
    code: ErrorCode


@dataclass(frozen=True, slots=True)
class AssignReplicasToDirsAnswer:
    """In the order of the request."""

    directories: tuple[tuple[UUID, tuple[tuple[UUID, tuple[AssignedReplica, ...]], ...]], ...]


@dataclass(frozen=True, slots=True)
class BalanceLeaders:
    """Time has passed: give leadership back to preferred replicas (C30)."""


@dataclass(frozen=True, slots=True)
class ElectUncleanLeaders:
    """Time has passed: lead again what may be led with a loss (V12)."""


@dataclass(frozen=True, slots=True)
class Swept:
    """How a pass over partitions ended: `more` wait, and want another pass at once."""

    more: bool


PartitionRequest: TypeAlias = (
    ElectLeaders
    | AlterPartition
    | AlterPartitionReassignments
    | ListPartitionReassignments
    | AssignReplicasToDirs
    | BalanceLeaders
    | ElectUncleanLeaders
)
