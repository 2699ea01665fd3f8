"""Losses of groups on partitions led by another broker: reported once, after failed and repeated queries."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from fenceline.groups.offsets.offsets import OffsetSlot, StoredOffset
from fenceline.ids import TopicPartition
from fenceline.losses.receipt import Receipt
from fenceline.metadata.image import Endpoint
from fenceline.node.losses.expiry import LossExpiry
from fenceline.node.net.peer_connection import dial
from fenceline.node.replication.open_replicas import OpenReplicas
from fenceline.node.replication.peers import Peers
from tests.bad_input.leaders import Leader
from tests.node.api.handlers.fakes import image_of, partition, topic_image

TOPIC, ME, LEADER = "rain", 1, 2
HERE = TopicPartition(TOPIC, 0)


class Coordinator:
    """Broker 1: coordinates groups that read partitions of broker 2; it has no replica of them."""

    def __init__(self, leader: Leader) -> None:
        self.leader = leader
        self.starts = {0: 0}
        leader.offsets = self._offsets
        self.is_reached = True
        self.groups: list[tuple[OffsetSlot, StoredOffset]] = []
        self.receipts: list[Receipt] = []
        self.tell(leader=LEADER)

        def keep(receipts: Iterable[Receipt]) -> None:
            self.receipts.extend(receipts)

        self.keeper: Any = SimpleNamespace(expired=keep)
        self.positions = SimpleNamespace(
            committed=lambda topics: iter([[each for each in self.groups if each[0].topic in topics]]),
            committed_partitions=lambda: [(TOPIC, {slot.partition}) for slot, _ in self.groups],
        )
        self.expiry = self.expiry_of(ME)

    def expiry_of(self, node_id: int) -> LossExpiry:
        peers = Peers(lambda: self.image, "PLAINTEXT", dial)
        peers.endpoint = self._endpoint  # type: ignore[method-assign]
        clock: Any = SimpleNamespace(now_ms=lambda: 7_000)
        threads: Any = None
        return LossExpiry(
            node_id, self.keeper, self.positions, OpenReplicas(), lambda: self.image, peers, clock, threads
        )

    def tell(self, *, leader: int, number: int = 4711) -> UUID:
        """Set the metadata of the partition and its topic."""
        self.image = image_of([topic_image(TOPIC, partition((LEADER, 3), leader=leader), number=number)], [])
        return self.image.topics_by_name[TOPIC].id

    def _endpoint(self, node_id: int) -> Endpoint | None:
        return Endpoint("PLAINTEXT", "127.0.0.1", self.leader.port, 0) if self.is_reached else None

    def _offsets(self, topic: str, index: int, timestamp: int) -> list[dict[str, Any]]:
        offset = self.starts[index] if timestamp == -2 else 100
        return [{"partition_index": index, "error_code": 0, "timestamp": -1, "offset": offset, "leader_epoch": 5}]

    def commits(self, group: str, offset: int) -> None:
        topic_id = self.image.topics_by_name[TOPIC].id
        self.groups = [each for each in self.groups if each[0].group_id != group]
        self.groups.append((OffsetSlot(group, TOPIC, 0), StoredOffset(offset, 5, "", 0, topic_id=topic_id)))

    async def check(self) -> list[tuple[str, int, int]]:
        """The losses reported now."""
        self.receipts.clear()
        await self.expiry.check()
        return sorted((each.group, each.start_offset, each.end_offset_exclusive) for each in self.receipts)


def played(story: Callable[[Coordinator], Awaitable[None]]) -> None:
    async def whole() -> None:
        leader = Leader({0: 100})
        server = await leader.serve()
        await story(Coordinator(leader))
        server.close()

    asyncio.run(whole())


def test_loss_on_a_partition_led_by_another_broker() -> None:
    """The leader, of either implementation, is queried for its log start offset."""

    async def story(here: Coordinator) -> None:
        here.commits("slow", 3)
        here.commits("quick", 9)
        assert await here.check() == []
        here.starts[0] = 7
        assert await here.check() == [("slow", 3, 7)]
        (receipt,) = here.receipts
        assert (receipt.replica, receipt.leader, receipt.time_ms, receipt.records) == (ME, LEADER, 7_000, 4)
        here.starts[0] = 12
        assert await here.check() == [("quick", 9, 12), ("slow", 7, 12)]
        assert await here.check() == []

    played(story)


def test_loss_is_not_reported_again_after_a_failed_query() -> None:
    """The leader is unknown, unreachable, or does not return the partition: known losses are kept."""

    async def story(here: Coordinator) -> None:
        here.commits("slow", 3)
        here.starts[0] = 7
        assert await here.check() == [("slow", 3, 7)]
        here.tell(leader=-1)
        assert await here.check() == []
        here.tell(leader=LEADER)
        assert await here.check() == []
        here.is_reached = False
        assert await here.check() == []
        here.is_reached = True
        right, here.leader.offsets = here.leader.offsets, lambda topic, index, timestamp: []
        assert await here.check() == []
        here.leader.offsets = right
        here.starts[0] = 9
        assert await here.check() == [("slow", 7, 9)]

    played(story)


def test_recreated_topic_starts_without_losses() -> None:
    async def story(here: Coordinator) -> None:
        here.commits("slow", 3)
        here.starts[0] = 7
        assert await here.check() == [("slow", 3, 7)]
        here.expiry.topics_deleted([here.image.topics_by_name[TOPIC]])
        await asyncio.gather(*here.expiry._writing)
        assert [(each.start_offset, each.end_offset_exclusive) for each in here.receipts] == [(3, 7), (7, 100)]
        here.tell(leader=LEADER, number=4712)
        here.starts[0] = 0
        here.commits("slow", 2)
        assert await here.check() == []
        here.starts[0] = 5
        assert await here.check() == [("slow", 2, 5)]

    played(story)


def test_next_coordinator_reports_the_same_loss() -> None:
    """It does not know earlier reports: the same loss has the same receipt, which is counted once."""

    async def story(here: Coordinator) -> None:
        here.commits("slow", 3)
        here.starts[0] = 7
        await here.check()
        (before,) = here.receipts
        here.expiry = here.expiry_of(3)
        await here.check()
        (after,) = here.receipts
        assert (before.replica, after.replica, before.id) == (ME, 3, after.id)

    played(story)
