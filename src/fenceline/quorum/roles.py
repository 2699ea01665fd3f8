"""The roles of a node in the quorum, which role may follow which, and what a role does when its time is up.

Owns the two tables. A role is frozen: epoch and election do not change inside one (raft.md "States"). An observer is no
role of its own but a node outside the newest voter set: it is Unattached or Follower and never asks for votes (Q1).

Rules: raft.md Q1, Q5-Q9; since_4_0.md K7 (Prospective: a vote is asked for in the same epoch first).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Final, TypeAlias
from uuid import UUID

from fenceline.errors import InternalError
from fenceline.ids import ZERO_UUID
from fenceline.quorum.election_state import NOBODY, ElectionState


@dataclass(frozen=True, slots=True)
class Unattached:
    """Knows an epoch; perhaps who leads it (without endpoints), perhaps whom it voted for."""

    epoch: int
    leader_id: int = NOBODY
    voted_id: int = NOBODY
    voted_directory_id: UUID = ZERO_UUID


@dataclass(frozen=True, slots=True)
class Prospective:
    """Asks whether it would be elected; its epoch stays, nothing is persisted for it alone."""

    epoch: int
    leader_id: int = NOBODY
    voted_id: int = NOBODY
    voted_directory_id: UUID = ZERO_UUID


@dataclass(frozen=True, slots=True)
class Candidate:
    """Has voted for itself in a new epoch."""

    epoch: int
    node_id: int
    directory_id: UUID


@dataclass(frozen=True, slots=True)
class Leader:
    """Leads since `epoch_start_offset`; its high watermark is known only above it (Q32)."""

    epoch: int
    node_id: int
    epoch_start_offset: int


@dataclass(frozen=True, slots=True)
class Follower:
    """Follows the leader of this epoch."""

    epoch: int
    leader_id: int
    voted_id: int = NOBODY
    voted_directory_id: UUID = ZERO_UUID


@dataclass(frozen=True, slots=True)
class Resigned:
    """Led this epoch before a stop and never will again: its unflushed tail may be lost (Q9, Q10)."""

    epoch: int
    node_id: int


Role: TypeAlias = Unattached | Prospective | Candidate | Leader | Follower | Resigned

TRANSITIONS: Final[Mapping[type[Role], frozenset[type[Role]]]] = MappingProxyType(
    {
        Unattached: frozenset({Unattached, Prospective, Follower, Resigned}),
        Prospective: frozenset({Prospective, Candidate, Follower, Unattached, Resigned}),
        Candidate: frozenset({Prospective, Leader, Follower, Unattached, Resigned}),
        Leader: frozenset({Resigned, Follower, Unattached}),
        Follower: frozenset({Follower, Prospective, Unattached, Resigned}),
        Resigned: frozenset({Unattached, Prospective, Follower, Resigned}),
    }
)
"""Role to the roles that may follow. Leader to Follower or Unattached only in a higher epoch (Q7)."""


class OnTimeout(Enum):
    NOTHING = "has no time limit"
    ASK = "becomes Prospective in the same epoch"
    GO_BACK = "becomes Follower where the leader can be reached, else Unattached"
    NEW_EPOCH = "becomes Unattached in the next epoch"
    LOOK_AROUND = "asks the bootstrap servers who leads"
    RESIGN = "becomes Resigned: a majority has not fetched for too long"


TIMEOUTS: Final[Mapping[type[Role], tuple[OnTimeout, OnTimeout]]] = MappingProxyType(
    {
        Unattached: (OnTimeout.ASK, OnTimeout.NOTHING),
        Prospective: (OnTimeout.GO_BACK, OnTimeout.GO_BACK),
        Candidate: (OnTimeout.ASK, OnTimeout.GO_BACK),
        Leader: (OnTimeout.RESIGN, OnTimeout.RESIGN),
        Follower: (OnTimeout.ASK, OnTimeout.LOOK_AROUND),
        Resigned: (OnTimeout.NEW_EPOCH, OnTimeout.NEW_EPOCH),
    }
)
"""Role to what happens at its timeout: to a voter, and to a node that is not (or no longer) one (Q5, Q34, K7, K11)."""


def leader_of(role: Role) -> int:
    """Who leads the role's epoch as far as known, -1 = nobody known."""
    if isinstance(role, Follower | Unattached | Prospective):
        return role.leader_id
    return NOBODY if isinstance(role, Candidate) else role.node_id


def check_transition(old: Role, new: Role) -> None:
    """Raises InternalError for a step that the protocol does not have (Q7, Q50)."""
    if type(new) not in TRANSITIONS[type(old)]:
        raise InternalError(f"the quorum can not go from {old} to {new}")
    if new.epoch < old.epoch:
        raise InternalError(f"the quorum's epoch can not fall: {old} to {new}")
    if new.epoch == old.epoch and isinstance(old, Leader) and not isinstance(new, Resigned):
        raise InternalError(f"a leader stays leader within its epoch: {old} to {new}")
    if isinstance(new, Candidate) and new.epoch == old.epoch:
        raise InternalError(f"a candidacy needs a new epoch: {old} to {new}")
    if isinstance(new, Leader) and new.epoch != old.epoch:
        raise InternalError(f"a leader is elected in its candidacy's epoch: {old} to {new}")


def persisted_form(role: Role) -> ElectionState:
    """What must be on disk before the role takes effect (Q2)."""
    match role:
        case Unattached(epoch, leader, voted, directory) | Prospective(epoch, leader, voted, directory):
            return ElectionState(epoch, leader, voted, directory)
        case Candidate(epoch, node, directory):
            return ElectionState(epoch, NOBODY, node, directory)
        case Follower(epoch, leader, voted, directory):
            return ElectionState(epoch, leader, voted, directory)
        case Leader(epoch, node, _) | Resigned(epoch, node):
            return ElectionState(epoch, node)
