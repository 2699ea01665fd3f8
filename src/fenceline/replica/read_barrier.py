"""Reads of a partition that are answered only if no other leader had taken office when they arrived.

A leader that is cut off does not know that it was replaced. What it coordinates from memory, such as the committed
offsets of a group, is then older than what the next leader has acknowledged. So it asks the replicas that may have been
elected since: those in the ISR as it knows it, an ISR change in flight included, and those in the ELR.

The question is OffsetForLeaderEpoch with `current_leader_epoch` one above the leader's own. UNKNOWN_LEADER_EPOCH (75)
is the only answer that confirms: this replica has not acted in a later epoch (`epochs.md E2`, `E23`). With the leader's
own epoch, NOT_LEADER_OR_FOLLOWER (6) could mean "I follow in this epoch" or "I have no such replica", which a later
leader answers after a reassignment has taken its replica away.

Why these replicas suffice: the first later leader that acts is elected from the ISR or the ELR, because only this
leader adds to the ISR in its epoch. It acts once its own metadata says so, and a broker that was restarted answers only
once it knows all metadata that its previous process knew. Later leaders come after it: one that was elected and never
acted added no member. Not covered are unclean elections, which are reported as losses, and a topic that was deleted and
created again.

Owns which replicas are asked for which reads; a question counts for the reads that arrived before it was sent. Never
sends, and never answers: the driver does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

from fenceline.errors import ErrorCode

if TYPE_CHECKING:
    from fenceline.metadata.image import PartitionImage
    from fenceline.replica.leader import LeaderState

_T = TypeVar("_T")


class OfficeAnswer(Enum):
    """What a replica says of the leader that asks."""

    CONFIRMED = "it has not acted in a later epoch"
    REPLACED = "it knows a later epoch"
    UNDECIDED = "ask again"


_MEANINGS: Final[Mapping[int, OfficeAnswer]] = {
    ErrorCode.UNKNOWN_LEADER_EPOCH: OfficeAnswer.CONFIRMED,
    ErrorCode.FENCED_LEADER_EPOCH: OfficeAnswer.REPLACED,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: OfficeAnswer.REPLACED,  # it follows in the next epoch, or has no replica any more
    ErrorCode.NONE: OfficeAnswer.REPLACED,  # it leads in the next epoch
}


def office_answer(code: int) -> OfficeAnswer:
    """The meaning of an error code of OffsetForLeaderEpoch. A topic that the replica does not know yet, and a failed
    disk, say nothing of the epochs in which it has acted."""
    return _MEANINGS.get(code, OfficeAnswer.UNDECIDED)


def possible_successors(leader: LeaderState, partition: PartitionImage) -> frozenset[int] | None:
    """The other brokers from which a later leader may have been elected cleanly. None while the leader knows a newer
    state of the partition than this node's metadata: a replica that left the ISR meanwhile may be in the ELR."""
    if partition.partition_epoch < leader.partition_epoch:
        return None
    return (leader.maximal_isr | {*partition.isr, *partition.elr}) - {leader.node_id}


class _Read(NamedTuple, Generic[_T]):
    number: int
    deadline_s: float
    ticket: _T


class ReadBarrier(Generic[_T]):
    """The waiting reads of one partition, in one leader epoch. `_T`: what the driver needs to answer a read."""

    __slots__ = ("_asked", "_confirmed", "_last", "_waiting", "leader_epoch")

    def __init__(self, leader_epoch: int) -> None:
        self.leader_epoch = leader_epoch
        self._last = 0
        """The number of the newest read."""
        self._waiting: deque[_Read[_T]] = deque()
        self._asked: dict[int, int] = {}
        """By broker with a question in flight: the newest read when it was sent."""
        self._confirmed: dict[int, int] = {}
        """By broker: the newest read that it has confirmed."""

    @property
    def is_empty(self) -> bool:
        return not self._waiting

    @property
    def next_deadline_s(self) -> float | None:
        return self._waiting[0].deadline_s if self._waiting else None

    @property
    def unanswered(self) -> list[int]:
        """The brokers with a question that has no answer, or no usable one, in order."""
        return sorted(self._asked)

    def add(self, ticket: _T, deadline_s: float) -> None:
        """A read has arrived. Deadlines never decrease."""
        self._last += 1
        self._waiting.append(_Read(self._last, deadline_s, ticket))

    def to_ask(self, others: Collection[int]) -> list[int]:
        """The brokers that have to be asked now, in order."""
        if not self._waiting:
            return []
        newest = self._waiting[-1].number
        return sorted(each for each in others if each not in self._asked and self._confirmed.get(each, 0) < newest)

    def wanted(self, broker: int) -> None:
        """A question to this broker is about to be sent."""
        self._asked[broker] = 0

    def sent(self, broker: int) -> bool:
        """The question is sent now. False: no read waits any more, so it need not be."""
        self._asked[broker] = self._last
        return bool(self._waiting)

    def answered(self, broker: int, answer: OfficeAnswer) -> None:
        """CONFIRMED, or UNDECIDED, also for a question without an answer."""
        asked_at = self._asked.pop(broker, 0)
        if answer is OfficeAnswer.CONFIRMED:
            self._confirmed[broker] = max(asked_at, self._confirmed.get(broker, 0))

    def pop_confirmed(self, others: Collection[int]) -> list[_T]:
        """The reads that all these brokers have confirmed."""
        up_to = min((self._confirmed.get(each, 0) for each in others), default=self._last)
        confirmed = []
        while self._waiting and self._waiting[0].number <= up_to:
            confirmed.append(self._waiting.popleft().ticket)
        return confirmed

    def pop_expired(self, now_s: float) -> list[_T]:
        expired = []
        while self._waiting and self._waiting[0].deadline_s <= now_s:
            expired.append(self._waiting.popleft().ticket)
        return expired

    def pop_all(self) -> list[_T]:
        tickets = [each.ticket for each in self._waiting]
        self._waiting.clear()
        return tickets
