"""Recovery of partitions that this broker leads after an unclean election and that have no records (KIP-704).

Owns their way from RECOVERING to RECOVERED. There is no log to flush and no transaction in it to end, so nothing is
opened: ten thousand unused partitions cost a few requests to the controller, not ten thousand objects. A partition that
a client, a follower or a coordinator needs meanwhile is opened, and recovers as any other (`Replication`).

Transactions that have such a partition are aborted all the same: their records may be what was lost. A partition whose
end markers are still to come is opened to take them.

Rules: `recovery.md V37-V39`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

from fenceline.controller.partition_requests import AlterPartition, IsrChange, IsrMember
from fenceline.errors import ErrorCode, PeerError
from fenceline.ids import TRANSACTION_STATE_TOPIC, TopicPartition
from fenceline.metadata.image import LeaderRecoveryState
from fenceline.node.logs import Logger
from fenceline.node.replication.isr_changes import MAX_CHANGES

if TYPE_CHECKING:
    from fenceline.controller.requests import Request
    from fenceline.metadata.image import MetadataImage, PartitionImage, TopicImage

log = Logger("replication")

_PAUSE_S: Final = 0.2


class _Unused(NamedTuple):
    topic: str
    topic_id: UUID
    partition: int


class UnusedLeaders:
    """Of one broker. All methods run on the event loop."""

    def __init__(
        self,
        node_id: int,
        image: Callable[[], MetadataImage],
        broker_epoch: Callable[[], int],
        submit: Callable[[Request], Awaitable[Any]],
        fence_transactions: Callable[[TopicPartition], Awaitable[frozenset[int] | None]],
        is_open: Callable[[str, int], bool],
    ) -> None:
        """`is_open`: whether the partition has an object, which recovers by itself."""
        self._node_id = node_id
        self._image = image
        self._broker_epoch = broker_epoch
        self._submit = submit
        self._fence_transactions = fence_transactions
        self._is_open = is_open
        self._open: Callable[[str, int], object] = lambda topic, index: None
        self._left: dict[_Unused, None] = {}
        self._task: asyncio.Task[None] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether partitions wait for their recovery."""
        return self._task is not None

    def recover(self, topic: TopicImage, index: int, open_it: Callable[[str, int], object]) -> None:
        """The partition has no records, is led here and is RECOVERING. `open_it` opens it if it is needed after all."""
        self._open = open_it
        self._left[_Unused(topic.name, topic.id, index)] = None
        if self._task is None:
            self._task = asyncio.ensure_future(self._run())

    async def close(self) -> None:
        """Leave the rest to the next start."""
        task, self._task = self._task, None
        self._left.clear()
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        recovered = 0
        try:
            while self._left:
                await asyncio.sleep(0)  # others have their turn, and what has one cause is sent together
                # The only broker of a cluster serves no client while it waits for them.
                limit = MAX_CHANGES if len(self._image().brokers) > 1 else 10 * MAX_CHANGES
                some = list(islice(self._left, limit))
                for each in some:
                    del self._left[each]
                left = await self._recover(await self._without_markers(some))
                recovered += len(some) - len(left)
                if left:
                    self._left.update(dict.fromkeys(left))
                    await asyncio.sleep(_PAUSE_S)
        finally:
            self._task = None
            if recovered:
                log.warning("recovered unused partitions after an unclean election", partitions=recovered)

    def _to_recover(self, unused: _Unused) -> PartitionImage | None:
        """The partition, if it is still to be recovered here."""
        topic = self._image().topics_by_id.get(unused.topic_id)
        if topic is None or unused.partition >= len(topic.partitions) or self._is_open(unused.topic, unused.partition):
            return None
        partition = topic.partitions[unused.partition]
        is_recovering = partition.leader_recovery_state is LeaderRecoveryState.RECOVERING
        return partition if is_recovering and partition.leader == self._node_id else None

    async def _without_markers(self, some: Collection[_Unused]) -> Collection[_Unused]:
        """Those that no coordinator has to end a transaction in; the others are opened."""
        if TRANSACTION_STATE_TOPIC not in self._image().topics_by_name:
            return some
        fencing = [each for each in some if self._to_recover(each) is not None]
        held = await asyncio.gather(
            *(self._fence_transactions(TopicPartition(each.topic, each.partition)) for each in fencing)
        )
        free = []
        for each, producers in zip(fencing, held, strict=True):
            if producers:
                self._open(each.topic, each.partition)
            else:
                free.append(each)
        return free

    async def _recover(self, some: Collection[_Unused]) -> Collection[_Unused]:
        """Tell the controller (V38). Returns those to be tried again."""
        own = (IsrMember(self._node_id, self._broker_epoch()),)
        asked: list[tuple[_Unused, IsrChange]] = []
        for each in some:
            if (partition := self._to_recover(each)) is not None:
                epochs = partition.leader_epoch, partition.partition_epoch
                asked.append((each, IsrChange(each.partition, *epochs, own, LeaderRecoveryState.RECOVERED)))
        if not asked:
            return ()
        topics = tuple(
            (topic_id, tuple(change for _, change in changes))
            for topic_id, changes in groupby(asked, lambda pair: pair[0].topic_id)
        )
        try:
            answer = await self._submit(AlterPartition(self._node_id, self._broker_epoch(), topics))
        except PeerError as error:
            log.warning(
                "recovery of unused partitions postponed",
                partitions=len(asked),
                reason=error.message or error.code.name,
                advice="The request is retried. A majority of the controllers must be running and reachable.",
            )
            return [each for each, _ in asked]
        done = {
            (topic_id, altered.index)
            for topic_id, partitions in answer.topics
            for altered in partitions
            if altered.code is ErrorCode.NONE
        }
        return [each for each, _ in asked if (each.topic_id, each.partition) not in done]
