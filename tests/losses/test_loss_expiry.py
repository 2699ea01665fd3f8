"""Losses of groups on partitions led by another broker: reported once, after failed and repeated queries."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from fenceline.groups.messages import CommittedPosition
from fenceline.groups.offsets.offsets import OffsetSlot, StoredOffset
from fenceline.ids import ZERO_UUID, TopicPartition
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
        self.in_service: Any = OpenReplicas()
        self.tell(leader=LEADER)

        def keep(receipts: Iterable[Receipt]) -> None:
            self.receipts.extend(receipts)

        self.keeper: Any = SimpleNamespace(expired=keep)
        self.positions = SimpleNamespace(
            committed=lambda topics: iter([[each for each in self.groups if each[0].topic in topics]]),
            committed_topics=lambda: {slot.topic for slot, _ in self.groups},
        )
        self.expiry = self.expiry_of(ME)

    def expiry_of(self, node_id: int) -> LossExpiry:
        peers = Peers(lambda: self.image, "PLAINTEXT", dial)
        peers.endpoint = self._endpoint  # type: ignore[method-assign]
        clock: Any = SimpleNamespace(now_ms=lambda: 7_000)
        threads: Any = None
        return LossExpiry(
            node_id, self.keeper, self.positions, self.in_service, lambda: self.image, peers, clock, threads
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

    async def deletes_topic(self) -> None:
        """The topic is deleted, and then the offsets that groups committed for it."""
        self.expiry.topics_deleted([self.image.topics_by_name[TOPIC]])
        groups, self.groups = self.groups, []
        await self.drops(*(_position(*each) for each in groups))

    async def drops(self, *positions: CommittedPosition) -> list[tuple[str, int, int]]:
        """The coordinator deletes these offsets. Returns the losses reported for them."""
        known = len(self.receipts)
        self.expiry.positions_dropped(positions)
        if self.expiry._writing is not None:
            await self.expiry._writing
        return [(each.group, each.start_offset, each.end_offset_exclusive) for each in self.receipts[known:]]

    async def check(self) -> list[tuple[str, int, int]]:
        """The losses reported now."""
        self.receipts.clear()
        await self.expiry.check()
        return sorted((each.group, each.start_offset, each.end_offset_exclusive) for each in self.receipts)


def _position(slot: OffsetSlot, value: StoredOffset) -> CommittedPosition:
    return CommittedPosition(*slot, value.offset, value.leader_epoch, value.topic_id)


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
        await here.deletes_topic()
        assert [(each.start_offset, each.end_offset_exclusive) for each in here.receipts] == [(3, 7), (7, 100)]
        here.tell(leader=LEADER, number=4712)
        here.starts[0] = 0
        here.commits("slow", 2)
        assert await here.check() == []
        here.starts[0] = 5
        assert await here.check() == [("slow", 2, 5)]
        await here.deletes_topic()
        here.tell(leader=LEADER, number=4713)
        here.starts[0] = 4
        here.commits("slow", 1)
        assert await here.check() == [("slow", 1, 4)], "not compared with the start of the log before"

    played(story)


def _dropped(group: str, offset: int, topic_id: UUID) -> CommittedPosition:
    return CommittedPosition(group, TOPIC, 0, offset, 5, topic_id)


def test_offsets_of_a_deleted_topic_are_compared_when_they_go() -> None:
    """That is long after its log has gone, and when there may be another topic of its name."""

    async def story(here: Coordinator) -> None:
        log = SimpleNamespace(log_start_offset=3)
        replica: Any = SimpleNamespace(is_being_cut=False, log=log, high_watermark=50)
        here.in_service.by_name[HERE] = replica
        first = here.image.topics_by_name[TOPIC]
        here.expiry.topics_deleted([first])
        del here.in_service.by_name[HERE]
        second = here.tell(leader=LEADER, number=4712)
        assert await here.drops(_dropped("slow", 40, first.id), _dropped("done", 50, first.id)) == [("slow", 40, 50)]
        assert here.receipts[-1].topic_id == first.id
        assert await here.drops(_dropped("early", 1, first.id)) == [("early", 3, 50)]
        assert await here.drops(_dropped("new", 1, second)) == [], "that topic was not deleted here"
        replica.high_watermark = 20
        here.in_service.by_name[HERE] = replica
        here.expiry.topics_deleted([here.image.topics_by_name[TOPIC]])
        assert await here.drops(_dropped("first", 49, first.id)) == [("first", 49, 50)]
        assert await here.drops(_dropped("second", 19, second)) == [("second", 19, 20)]
        assert await here.drops(_dropped("by name", 19, ZERO_UUID)) == [("by name", 19, 20)], "the newest of the name"

    played(story)


def test_deleted_topics_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(here: Coordinator) -> None:
        here.in_service.by_name[HERE] = replica = SimpleNamespace(is_being_cut=False, high_watermark=50)
        replica.log = SimpleNamespace(log_start_offset=0)
        here.expiry.topics_deleted([here.image.topics_by_name[TOPIC]])
        now_s = asyncio.get_running_loop().time()
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now_s + 1_100)
        await here.check()
        assert here.expiry._deleted
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now_s + 1_300)
        await here.check()
        assert not here.expiry._deleted

    played(story)


def test_receipts_are_written_by_one_thread_at_a_time() -> None:
    """Flushes and reads have the same threads."""

    async def story(here: Coordinator) -> None:
        running, most, batches = 0, 0, 0
        keep = here.keeper.expired

        def slowly(receipts: list[Receipt]) -> None:
            nonlocal running, most, batches
            running, batches = running + 1, batches + 1
            most = max(most, running)
            time.sleep(0.02)
            keep(receipts)
            running -= 1

        here.keeper.expired = slowly
        topic = here.image.topics_by_name[TOPIC]
        here.in_service.by_name[HERE] = replica = SimpleNamespace(is_being_cut=False, high_watermark=50)
        replica.log = SimpleNamespace(log_start_offset=0)
        here.expiry.topics_deleted([topic])
        for number in range(30):
            here.expiry.positions_dropped([_dropped(f"group {number}", 1, topic.id)])
            await asyncio.sleep(0.002)
        writing = here.expiry._writing
        assert writing is not None
        await writing
        assert (len(here.receipts), most) == (30, 1)
        assert batches < 30

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
