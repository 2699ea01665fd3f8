"""Partitions that this broker leads and that have no records: their followers fetch from them without a replica object.

Owns the answers to in-sync followers of such partitions, and the followers that wait for a first record. Everything that
is not plain is left to the replica object, which is opened for it: a follower that is not in sync or has records,
another leader epoch, an earlier process of a broker, a client, a first record. Never changes an in-sync set.

An empty log without files has nothing to fence, to compare or to commit, and an in-sync follower that fetches at offset
0 knows everything: its place in its session is all that the partition costs. It is read again whenever something about
the partition changes. When the object is opened, it gets the progress that it would have recorded.

Rules: `epochs.md E30-E34`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final
from uuid import UUID

from fenceline.metadata.image import LeaderRecoveryState
from fenceline.replica.fencing import NO_EPOCH
from fenceline.replica.fetch_session import SentState
from fenceline.wire.fetch import FetchedPartition

if TYPE_CHECKING:
    from fenceline.metadata.image import MetadataImage, PartitionImage, TopicImage
    from fenceline.node.replication.replica import Replica
    from fenceline.replica.fetch_session import PartitionKey, SessionPartition
    from fenceline.replica.leader import InSyncRules
    from fenceline.wire.fetch import FetchRequest

_NOTHING: Final = SentState(high_watermark=0, log_start_offset=0)


class _Followers(list["SessionPartition"]):
    """Of one partition: its places in their sessions, also those that do not wait any more."""

    __slots__ = ()

    def add(self, callback: Callable[[], None]) -> None:
        """Nothing to do: a session's partition knows whether it waits."""

    def discard(self, callback: Callable[[], None]) -> None:
        """As `add`."""


class RestingLeaders:
    """Of one broker. Event loop only."""

    def __init__(
        self,
        node_id: int,
        image: Callable[[], MetadataImage],
        rules: InSyncRules,
        is_unused: Callable[[TopicImage, int], bool],
    ) -> None:
        """`is_unused`: whether the partition has neither files nor a replica object."""
        self._node_id = node_id
        self._image = image
        self._rules = rules
        self._is_unused = is_unused
        self._followers: dict[PartitionKey, _Followers] = {}
        self._last_topic: tuple[bytes, UUID] | None = None

    def __len__(self) -> int:
        return len(self._followers)

    def read(self, request: FetchRequest, wanted: SessionPartition) -> FetchedPartition | None:
        """The answer to a follower; None: this fetch of the partition needs a replica object."""
        asked = wanted.asked
        if wanted.session is None or asked.topic_id is None or asked.fetch_offset or asked.last_fetched_epoch >= 0:
            return None
        topic = self._topic(asked.topic_id)
        if topic is None or not 0 <= asked.index < len(topic.partitions):
            return None
        partition = topic.partitions[asked.index]
        if (
            asked.current_leader_epoch != partition.leader_epoch
            or not self._may_fetch(request, partition)
            or not (wanted.key in self._followers or self._is_unused(topic, asked.index))
        ):
            return None
        if wanted.sent == _NOTHING or request.max_wait_ms <= 0:
            # A follower that does not know of the partition yet is told of it, before it waits for a change.
            self._wait(wanted)
        return FetchedPartition(asked.topic, asked.topic_id, asked.index, 0, 0, 0, 0, records=b"")

    def _topic(self, topic_id: bytes) -> TopicImage | None:
        """The partitions of one request mostly belong to few topics."""
        if self._last_topic is None or self._last_topic[0] != topic_id:
            self._last_topic = topic_id, UUID(bytes=topic_id)
        return self._image().topics_by_id.get(self._last_topic[1])

    def _may_fetch(self, request: FetchRequest, partition: PartitionImage) -> bool:
        """Whether this broker leads, and the follower is in sync by its current process (E30, E31)."""
        return (
            partition.leader == self._node_id
            and partition.leader_recovery_state is LeaderRecoveryState.RECOVERED
            and request.replica_id in partition.isr
            and NO_EPOCH != request.replica_epoch == self._rules.eligible(request.replica_id)
        )

    def _wait(self, wanted: SessionPartition) -> None:
        followers = self._followers.get(wanted.key)
        if followers is None:
            followers = self._followers[wanted.key] = _Followers()
        followers[:] = [each for each in followers if each.is_idle and each is not wanted]
        followers.append(wanted)
        wanted.mark_idle(followers)

    def end(self, key: PartitionKey, opened: Replica | None = None) -> None:
        """Something about the partition has changed: its followers are read again. `opened`: it has this object now."""
        followers = self._followers.pop(key, None)
        if followers is None:
            return
        for each in followers:
            if not each.is_idle or (session := each.session) is None:
                continue
            if opened is not None and opened.leader is not None:
                progress = opened.leader.followers.get(session.replica_id)
                if progress is not None and opened.leader_epoch == each.asked.current_leader_epoch:
                    progress.fetched(0, 0, session.replica_epoch, 0, session.last_used_ms)
            each.mark_changed()

    def end_all(self) -> None:
        for key in list(self._followers):
            self.end(key)
