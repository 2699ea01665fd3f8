"""The roles of a node in the quorum, the allowed transitions, and what happens at a role's timeout.

Owns both tables. A role is frozen: epoch and election do not change within one (raft.md "States"). An observer is not a
role but a node outside the newest voter set: it is Unattached or Follower and never asks for votes (Q1).

Rules: raft.md Q1, Q5-Q9; since_4_0.md K7 (Prospective: a pre-vote in the same epoch comes first).
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
from fenceline.quorum.election_state import NO_NODE, ElectionState


@dataclass(frozen=True, slots=True)
class Unattached:
    """Knows an epoch, and possibly its leader (without endpoints) and its own vote."""

    epoch: int
    leader_id: int = NO_NODE
    voted_id: int = NO_NODE
    voted_directory_id: UUID = ZERO_UUID


@dataclass(frozen=True, slots=True)
class Prospective:
    """Runs a pre-vote in the current epoch; nothing is persisted for it."""

    epoch: int
    leader_id: int = NO_NODE
    voted_id: int = NO_NODE
    voted_directory_id: UUID = ZERO_UUID


@dataclass(frozen=True, slots=True)
class Candidate:
    """Has voted for itself in a new epoch."""

    epoch: int
    node_id: int
    directory_id: UUID


@dataclass(frozen=True, slots=True)
class Leader:
    """Leads since `epoch_start_offset`; its high watermark is known only above that offset (Q32)."""

    epoch: int
    node_id: int
    epoch_start_offset: int


@dataclass(frozen=True, slots=True)
class Follower:
    """Follows the leader of this epoch."""

    epoch: int
    leader_id: int
    voted_id: int = NO_NODE
    voted_directory_id: UUID = ZERO_UUID


@dataclass(frozen=True, slots=True)
class Resigned:
    """Led this epoch before it resigned or stopped, and never will again: its unflushed records may be lost (Q9,
    Q10)."""

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
"""Allowed transitions. Leader to Follower or Unattached only in a higher epoch (Q7)."""


class OnTimeout(Enum):
    NOTHING = "has no time limit"
    PRE_VOTE = "becomes Prospective in the same epoch"
    GIVE_UP = "becomes Follower if the leader's address is known, else Unattached"
    NEW_EPOCH = "becomes Unattached in the next epoch"
    FIND_LEADER = "asks the bootstrap servers who leads"
    RESIGN = "becomes Resigned: a majority has not fetched for too long"


TIMEOUTS: Final[Mapping[type[Role], tuple[OnTimeout, OnTimeout]]] = MappingProxyType(
    {
        Unattached: (OnTimeout.PRE_VOTE, OnTimeout.NOTHING),
        Prospective: (OnTimeout.GIVE_UP, OnTimeout.GIVE_UP),
        Candidate: (OnTimeout.PRE_VOTE, OnTimeout.GIVE_UP),
        Leader: (OnTimeout.RESIGN, OnTimeout.RESIGN),
        Follower: (OnTimeout.PRE_VOTE, OnTimeout.FIND_LEADER),
        Resigned: (OnTimeout.NEW_EPOCH, OnTimeout.NEW_EPOCH),
    }
)
"""What happens at a role's timeout: on a voter, and on a node that is not (or no longer) one (Q5, Q34, K7, K11)."""


def leader_of(role: Role) -> int:
    """The leader of the role's epoch, -1 = unknown."""
    if isinstance(role, Follower | Unattached | Prospective):
        return role.leader_id
    return NO_NODE if isinstance(role, Candidate) else role.node_id


def check_transition(old: Role, new: Role) -> None:
    """Raises InternalError for a transition that the protocol does not allow (Q7, Q50)."""
    if type(new) not in TRANSITIONS[type(old)]:
        raise InternalError(f"invalid transition from {old} to {new}")
    if new.epoch < old.epoch:
        raise InternalError(f"the epoch cannot decrease: {old} to {new}")
    if new.epoch == old.epoch and isinstance(old, Leader) and not isinstance(new, Resigned):
        raise InternalError(f"a leader stays leader within its epoch: {old} to {new}")
    if isinstance(new, Candidate) and new.epoch == old.epoch:
        raise InternalError(f"a candidacy needs a new epoch: {old} to {new}")
    if isinstance(new, Leader) and new.epoch != old.epoch:
        raise InternalError(f"a leader is elected in its candidacy's epoch: {old} to {new}")


def persisted_form(role: Role) -> ElectionState:
    """The state that must be durable before the role takes effect (Q2)."""
    match role:
        case Unattached(epoch, leader, voted, directory) | Prospective(epoch, leader, voted, directory):
            return ElectionState(epoch, leader, voted, directory)
        case Candidate(epoch, node, directory):
            return ElectionState(epoch, NO_NODE, node, directory)
        case Follower(epoch, leader, voted, directory):
            return ElectionState(epoch, leader, voted, directory)
        case Leader(epoch, node, _) | Resigned(epoch, node):
            return ElectionState(epoch, node)
