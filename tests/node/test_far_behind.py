"""Partitions far behind are fetched over a connection of their own, apart from those in sync."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple
from uuid import UUID

import pytest

from fenceline.ids import TopicPartition
from fenceline.log.core.compaction_bound import CompleteFrom
from fenceline.log.core.config import LogConfig
from fenceline.log.partition import write_behind
from fenceline.log.partition.partition_log import NO_LIMIT, AppendInfo
from fenceline.node.replication.replica_fetchers import ReplicaFetchers
from fenceline.wire.apis import ApiKey
from fenceline.wire.fetch import FetchedPartition, FetchRequest, FetchResponse, encode_response, parse_request
from fenceline.wire.frame import encode_response_frame
from tests.node.socket_leader import LEADER, WAIT_S, SocketLeader, following

TOPIC_ID, EPOCH = UUID(int=7), 3


class ReceivedFetch(NamedTuple):
    """One fetch as received by the leader; `link` is the number of its connection."""

    link: int
    request: FetchRequest
    reply: Callable[[FetchResponse], None]

    @property
    def offsets(self) -> dict[int, int]:
        return {each.index: each.fetch_offset for each in self.request.partitions}

    @property
    def forgotten(self) -> list[int]:
        return sorted(index for _, _, indexes in self.request.forgotten for index in indexes)

    def answer(self, **found: tuple[int, int]) -> None:
        """`p0=(records, high watermark)`: the number of records, of a byte each."""
        fetched = [
            FetchedPartition(None, TOPIC_ID.bytes, int(name[1:]), 0, watermark, watermark, 0, records=b"r" * count)
            for name, (count, watermark) in found.items()
        ]
        self.reply(FetchResponse(fetched, session_id=70 + self.link))


class ScriptedLeader(SocketLeader):
    """A leader whose fetches the test answers."""

    def heard(self, number: int, header: Any, frame: memoryview, writer: asyncio.StreamWriter) -> ReceivedFetch:
        version = header.api_version

        def reply(response: FetchResponse) -> None:
            body = encode_response(version, response)
            writer.writelines(encode_response_frame(ApiKey.FETCH, version, header.correlation_id, body))

        return ReceivedFetch(number, parse_request(version, frame[header.body_position :]), reply)

    async def asked(self) -> ReceivedFetch:
        asked: ReceivedFetch = await self.fetched()
        return asked

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not holds():  # noqa: ASYNC110
                await asyncio.sleep(0.001)


class Log:
    """Counts records of one byte."""

    log_start_offset, latest_epoch, latest_epoch_start, unflushed_messages = 0, -1, -1, 0
    complete_from = CompleteFrom()

    def __init__(self) -> None:
        self.log_end_offset = 0
        self.segment = SimpleNamespace(fd=9, size_bytes=0, disk=SimpleNamespace(duplicate=lambda fd: fd))
        self.segments = [self.segment]
        self.let_gone: list[tuple[int, int]] = []
        self.may_let_go = threading.Event()
        disk = self.segment.disk
        disk.start_writeback, disk.close = self._let_go, lambda fd: None

    def _let_go(self, fd: int, position: int, size_bytes: int) -> None:
        assert self.may_let_go.wait(WAIT_S)
        self.let_gone.append((position, position + size_bytes))

    def append_as_follower(
        self, records: memoryview, *, leader_epoch: int, now_ms: int, epoch_starts: Sequence[tuple[int, int]]
    ) -> AppendInfo:
        base, self.log_end_offset = self.log_end_offset, self.log_end_offset + len(records)
        self.segment.size_bytes = self.log_end_offset
        return AppendInfo(base, self.log_end_offset - 1, -1, 0, False, len(records))


def replica(index: int) -> Any:
    return SimpleNamespace(
        topic_id_bytes=TOPIC_ID.bytes,
        topic_partition=TopicPartition("rain", index),
        log=Log(),
        clean_since=NO_LIMIT,
        may_lead=True,
        config=LogConfig(),
        apply_leader_offsets=lambda high_watermark, log_start_offset: None,
    )


def story(tell: Callable[[ScriptedLeader, ReplicaFetchers, list[Any]], Awaitable[None]]) -> None:
    """`tell` gets the leader, the fetchers, and two replicas: the first answer brings the first one in sync, and shows
    that the second lacks 90 records.
    """

    async def run() -> None:
        leader = ScriptedLeader()
        async with following(leader) as fetchers:
            replicas = [replica(0), replica(1)]
            for each in replicas:
                fetchers.follow(each, LEADER, EPOCH)
            first = await leader.asked()
            assert (first.link, first.offsets) == (1, {0: 0, 1: 0})
            first.answer(p0=(4, 4), p1=(10, 100))
            await tell(leader, fetchers, replicas)

    asyncio.run(run())


async def both(leader: ScriptedLeader) -> tuple[ReceivedFetch, ReceivedFetch]:
    """The fetch of the partition in sync and that of the one far behind, in either order."""
    found = [await leader.asked(), await leader.asked()]
    near, far = sorted(found, key=lambda asked: 1 in asked.offsets)
    return near, far


def test_lagging_partition_uses_its_own_connection() -> None:
    async def tell(leader: ScriptedLeader, fetchers: ReplicaFetchers, replicas: list[Any]) -> None:
        near, far = await both(leader)
        assert (near.link, near.offsets, near.forgotten) == (1, {0: 4}, [1])
        assert (far.link, far.offsets) == (2, {1: 10})
        assert fetchers.far_behind == 1
        for offset in range(5, 10):  # while the other answer is pending
            near.answer(p0=(1, offset))
            near = await leader.asked()
            assert (near.link, near.offsets) == (1, {0: offset})
        assert replicas[0].log.log_end_offset == 9
        far.answer(p1=(50, 100))
        far = await leader.asked()
        assert (far.link, far.offsets) == (2, {1: 60})

    story(tell)


def test_partition_that_caught_up_rejoins_the_first_connection() -> None:
    async def tell(leader: ScriptedLeader, fetchers: ReplicaFetchers, replicas: list[Any]) -> None:
        _, far = await both(leader)
        far.answer(p1=(90, 100))
        # The fetch of the partition in sync is parked, so the other one rejoins without waiting for it.
        again = await leader.asked()
        assert (again.link, again.request.session_epoch, again.offsets) == (3, 0, {0: 4, 1: 100})
        await leader.until(lambda: leader.open == {3})
        assert fetchers.far_behind == 0

    story(tell)


def test_partition_rejoins_with_the_next_fetch() -> None:
    async def tell(leader: ScriptedLeader, fetchers: ReplicaFetchers, replicas: list[Any]) -> None:
        near, far = await both(leader)
        far.answer(p1=(95, 100))
        await leader.until(lambda: replicas[1].log.log_end_offset == 105)
        near.answer(p0=(1, 5))
        seen = await leader.asked()
        while 1 not in seen.offsets:  # in a slow test the fetcher may first handle the case that no fetch completes
            seen = await leader.asked()
        assert seen.offsets[1] == 105

    story(tell)


def test_partition_left_out_of_a_full_answer_counts_as_lagging() -> None:
    async def tell(leader: ScriptedLeader, fetchers: ReplicaFetchers, replicas: list[Any]) -> None:
        near, _ = await both(leader)
        near.answer(p0=(0, 50))
        other = await leader.asked()
        assert other.offsets == {0: 4}
        assert fetchers.far_behind == 2

    story(tell)


def test_two_connections_share_the_lagging_partitions() -> None:
    async def tell(leader: ScriptedLeader, fetchers: ReplicaFetchers, replicas: list[Any]) -> None:
        near, far = await both(leader)
        near.answer(p0=(0, 50))
        other = await leader.asked()
        assert (far.link, other.link, other.offsets) == (2, 3, {0: 4})
        fetchers.follow(replica(2), LEADER, EPOCH)
        near = await leader.asked()
        assert near.offsets == {2: 0}
        near.answer(p2=(1, 100))
        await leader.until(lambda: fetchers.far_behind == 3)
        far.answer(p1=(5, 100))
        far = await leader.asked()
        assert (far.link, far.offsets) == (2, {1: 15, 2: 1})
        assert leader.fetches.empty(), "no third link"
        other.answer(p0=(46, 50))
        again = await leader.asked()
        assert again.offsets == {0: 50}
        await leader.until(lambda: 3 not in leader.open)
        assert 2 in leader.open
        assert fetchers.far_behind == 2

    story(tell)


def test_new_leader_epoch_restarts_on_the_first_connection() -> None:
    async def tell(leader: ScriptedLeader, fetchers: ReplicaFetchers, replicas: list[Any]) -> None:
        await both(leader)
        fetchers.follow(replicas[1], LEADER, EPOCH + 1)
        again = await leader.asked()
        assert (again.link, again.offsets) == (3, {0: 4, 1: 10})
        assert {each.current_leader_epoch for each in again.request.partitions} == {EPOCH, EPOCH + 1}
        await leader.until(lambda: leader.open == {3})

    story(tell)


def test_partition_no_longer_followed_is_removed() -> None:
    async def tell(leader: ScriptedLeader, fetchers: ReplicaFetchers, replicas: list[Any]) -> None:
        await both(leader)
        fetchers.leave(replicas[0])
        assert fetchers.far_behind == 1
        fetchers.leave(replicas[1])
        assert fetchers.phases() == []
        await leader.until(lambda: not leader.open)

    story(tell)


def test_data_of_a_lagging_partition_leaves_the_cache_in_pieces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(write_behind, "PIECE_BYTES", 5)
    monkeypatch.setattr(write_behind, "KEPT_BYTES", 20)

    async def tell(leader: ScriptedLeader, fetchers: ReplicaFetchers, replicas: list[Any]) -> None:
        near, far = await both(leader)
        replicas[0].log.may_let_go.set()
        for offset in (84, 164):
            near.answer(p0=(80, offset))
            near = await leader.asked()
            assert near.offsets == {0: offset}
        for _ in range(3):  # the first answer shows the position, the second starts a write, the third waits for it
            far.answer(p1=(10, 100_000))
            far = await leader.asked()
        log = replicas[1].log
        log.may_let_go.set()
        await leader.until(lambda: log.let_gone == [(20, 30)])
        while len(log.let_gone) < 3:
            far.answer(p1=(5, 100_000))
            far = await leader.asked()
        start, end = log.let_gone[1]
        assert (start, end >= 45) == (30, True)
        assert log.let_gone[2] == (20, end - 20)
        assert replicas[0].log.let_gone == []

    story(tell)
