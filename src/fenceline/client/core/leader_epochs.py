"""Leader epochs on brokers whose metadata has no reliable ones: learned from the leaders themselves.

Owns these epochs. Brokers before Metadata version 9 (Kafka 2.1 to 2.3) may return an old epoch while replicas are
reassigned (`epochs.md E57`), and a request with that epoch is fenced. But a response of ListOffsets version 4 or newer
has the leader's epoch with the log end. It is used for validation and in every Fetch, like an epoch of metadata: a
leader that has another epoch by then rejects both requests, and is asked again. So a response is only used if the
leader's epoch is not older than the position's (`gaps.md G7`). Pure.

Kafka 2.1 leaves the epoch out of that response, but compares the one in the request with its own. So the client sends
metadata's epoch as a guess, and uses it only if the leader accepts it: a leader only answers requests with its epoch.
"""

from __future__ import annotations

from typing import Final

from fenceline.client.core.metadata import LeaderAndEpoch
from fenceline.errors import ErrorCode
from fenceline.ids import NO_EPOCH, TopicPartition

GUESSES: Final = 8
"""The most guesses per call; the next call continues after the last one."""


class LeaderEpochs:
    """The learned leader epochs of one consumer."""

    def __init__(self) -> None:
        self._learned: dict[TopicPartition, LeaderAndEpoch] = {}

    def of(self, tp: TopicPartition, leader: LeaderAndEpoch) -> LeaderAndEpoch | None:
        """`leader` of metadata, with the learned epoch if metadata has none (-1: it cannot be learned); None if it must
        be learned first."""
        if leader.leader < 0 or leader.epoch >= 0:
            return leader
        learned = self._learned.get(tp)
        return learned if learned is not None and learned.leader == leader.leader else None

    def learn(self, tp: TopicPartition, node_id: int, epoch: int) -> None:
        """Store the epoch that the leader returned."""
        self._learned[tp] = LeaderAndEpoch(node_id, max(epoch, NO_EPOCH))

    def mark_unavailable(self, tp: TopicPartition, node_id: int) -> None:
        """The epoch cannot be learned from this leader."""
        self._learned[tp] = LeaderAndEpoch(node_id, NO_EPOCH)

    def forget(self, tp: TopicPartition) -> None:
        """The epoch may have changed. A leader from which it cannot be learned is not asked again."""
        if tp in self._learned and self._learned[tp].epoch >= 0:
            del self._learned[tp]


class EpochGuesses:
    """The epochs to send to leaders that do not return their own (Kafka 2.1), for one cluster."""

    def __init__(self) -> None:
        self._at_least: dict[TopicPartition, int] = {}

    def of(self, tp: TopicPartition) -> int:
        """The guess to send in a request about the partition; -1 unless its leader omits its epoch."""
        return self._at_least.get(tp, NO_EPOCH)

    def epoch_omitted(self, tp: TopicPartition, named: int) -> None:
        """A leader answered without its epoch. `named`: metadata's epoch, -1 if there is none."""
        if named >= 0:
            self._at_least[tp] = named

    def rejected(self, tp: TopicPartition, guess: int, named: int, code: ErrorCode) -> bool:
        """A leader rejected `guess`; True if there is another one to try.

        FENCED_LEADER_EPOCH: the leader's epoch is higher, and metadata may have it by now. UNKNOWN_LEADER_EPOCH: it is
        lower, or the topic was recreated: refresh metadata first.
        """
        if code is ErrorCode.FENCED_LEADER_EPOCH:
            self._at_least[tp] = max(guess + 1, named)
            return True
        if code is ErrorCode.UNKNOWN_LEADER_EPOCH:
            self._at_least.pop(tp, None)
        return False
