"""Epochs of leaders whose metadata does not tell any that may be trusted: they are asked themselves.

Owns what they said. Brokers before Metadata version 9 (Kafka 2.1 to 2.3) may name an old epoch for as long as replicas
are moved (`epochs.md E57`), and whoever sends that is fenced for as long. But from ListOffsets version 4 on, the end of
a log comes with the epoch that its leader is in. With it a position is validated, and every Fetch is fenced, as with
metadata's: a leader that has another epoch by then refuses both, and is asked again. So an answer is used only of a
leader that is known to be no older than the position (`gaps.md G7`), and nothing is told that is not so. Pure.

Kafka 2.1 leaves the epoch out of that answer, but holds the one in the question against its own. So metadata's is a
guess, the question carries it, and only the leader's yes counts: it answers in exactly that epoch, and no other.
"""

from __future__ import annotations

from typing import Final

from fenceline.client.metadata import LeaderAndEpoch
from fenceline.errors import ErrorCode
from fenceline.ids import NO_EPOCH, TopicPartition

GUESSES: Final = 8
"""Put to a leader in one go; who asks again goes on where that ended."""


class LeaderEpochs:
    """Of one consumer."""

    def __init__(self) -> None:
        self._said: dict[TopicPartition, LeaderAndEpoch] = {}

    def of(self, tp: TopicPartition, leader: LeaderAndEpoch) -> LeaderAndEpoch | None:
        """`leader` as metadata has it, with the epoch that is known otherwise (-1: it can not be asked); None where it
        is to be asked first."""
        if leader.leader < 0 or leader.epoch >= 0:
            return leader
        said = self._said.get(tp)
        return said if said is not None and said.leader == leader.leader else None

    def learn(self, tp: TopicPartition, node_id: int, epoch: int) -> None:
        """The leader said so."""
        self._said[tp] = LeaderAndEpoch(node_id, max(epoch, NO_EPOCH))

    def can_not_tell(self, tp: TopicPartition, node_id: int) -> None:
        """Until another one leads, nobody is asked."""
        self._said[tp] = LeaderAndEpoch(node_id, NO_EPOCH)

    def forget(self, tp: TopicPartition) -> None:
        """It may be another one by now; who can not tell is not asked again."""
        if tp in self._said and self._said[tp].epoch >= 0:
            del self._said[tp]


class EpochGuesses:
    """Of one cluster: the epochs that are put to leaders which answer without their own (Kafka 2.1)."""

    def __init__(self) -> None:
        self._at_least: dict[TopicPartition, int] = {}

    def of(self, tp: TopicPartition) -> int:
        """What a question about the partition is to carry; -1 while its leaders were not found to keep theirs back."""
        return self._at_least.get(tp, NO_EPOCH)

    def untold(self, tp: TopicPartition, named: int) -> None:
        """A leader answered without its epoch. `named`: metadata's, -1 where there is none to guess by."""
        if named >= 0:
            self._at_least[tp] = named

    def refused(self, tp: TopicPartition, guess: int, named: int, code: ErrorCode) -> bool:
        """A leader refused `guess`; True when there is another one to try.

        FENCED_LEADER_EPOCH: its epoch is a later one, as metadata may name by now. UNKNOWN_LEADER_EPOCH: it has not
        heard of that one, or the topic was made anew: metadata have to be asked.
        """
        if code is ErrorCode.FENCED_LEADER_EPOCH:
            self._at_least[tp] = max(guess + 1, named)
            return True
        if code is ErrorCode.UNKNOWN_LEADER_EPOCH:
            self._at_least.pop(tp, None)
        return False
