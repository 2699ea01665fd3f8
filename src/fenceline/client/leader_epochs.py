"""Epochs of leaders whose metadata does not tell any that may be trusted: they are asked themselves.

Owns what they said. Brokers before Metadata version 9 (Kafka 2.1 to 2.3) may name an old epoch for as long as replicas
are moved (`epochs.md E57`), and whoever sends that is fenced for as long. But from ListOffsets version 4 on, the end of
a log comes with the epoch that its leader is in. With it a position is validated, and every Fetch is fenced, as with
metadata's: a leader that has another epoch by then refuses both, and is asked again. So an answer is used only of a
leader that is known to be no older than the position (`gaps.md G7`), and nothing is told that is not so. Pure.
"""

from __future__ import annotations

from fenceline.client.metadata import LeaderAndEpoch
from fenceline.ids import NO_EPOCH, TopicPartition


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
