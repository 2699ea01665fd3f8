"""`flush.messages` of a follower: its next fetch acknowledges only what is durable, as with Kafka, which flushes in the
append. There is no connection: the test supplies the leader's answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from fenceline.errors import ErrorCode, PeerError
from fenceline.log.core.config import LogConfig
from fenceline.node.replication import leader_duties
from fenceline.replica.follower import FollowerPhase
from fenceline.wire.fetch import FetchResponse
from tests.log.helpers import batch
from tests.node.test_follower_failures import EPOCH, LEADER, Host, Stage, fetched


class _FlushingHost(Host):
    """Flushes end when the test completes them."""

    def __init__(self) -> None:
        super().__init__()
        self.flushes: list[tuple[int, int, asyncio.Future[PeerError | None]]] = []
        """(partition, end offset, outcome)."""

    def flushed(self, replica: Any, end_offset: int) -> asyncio.Future[PeerError | None]:
        outcome: asyncio.Future[PeerError | None] = asyncio.get_running_loop().create_future()
        self.flushes.append((replica.topic_partition.partition, end_offset, outcome))
        return outcome


async def _turns(number: int = 5) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


def run(story: Callable[[Stage, _FlushingHost], Awaitable[None]]) -> None:
    """Partition 0 has `flush.messages=2`, partition 1 has Kafka's default. Both logs are fully flushed."""

    async def whole() -> None:
        with ThreadPoolExecutor(1) as threads:
            host = _FlushingHost()
            stage = Stage(threads, host)
            for replica in stage.replicas:
                work = replica.log.flush_work()
                assert work is not None
                work.run()
            stage.replicas[0].config = LogConfig(flush_messages=2)
            try:
                await story(stage, host)
            finally:
                await stage.fetchers.close()

    asyncio.run(asyncio.wait_for(whole(), 60))


def _take(stage: Stage, offset: int, *partitions: int) -> None:
    answer = [fetched(each, records=bytes(batch(base_offset=offset, leader_epoch=EPOCH))) for each in partitions]
    for duty in stage.link.fetcher.on_answer(FetchResponse(answer, session_id=9), stage.clock.ms):
        stage.link.duties.execute(duty, [])


def test_next_fetch_waits_for_the_flush_after_flush_messages() -> None:
    async def story(stage: Stage, host: _FlushingHost) -> None:
        _take(stage, 5, 0, 1)
        assert host.flushes == []
        assert stage.ask() == [(0, 6), (1, 6)]
        _take(stage, 6, 0, 1)
        await _turns()
        (flush,) = host.flushes
        assert flush[:2] == (0, 7)
        assert stage.state(0).phase is FollowerPhase.FLUSHING
        assert stage.ask() == [(1, 7)], "partition 0 has left the session: it acknowledges nothing"
        flush[2].set_result(None)
        await _turns()
        stage.link.fetcher.on_connection_lost()
        assert sorted(stage.ask()) == [(0, 7), (1, 7)]

    run(story)


def test_failed_flush_acknowledges_nothing_and_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader_duties, "ROOM_PAUSE_S", 0)

    async def story(stage: Stage, host: _FlushingHost) -> None:
        stage.replicas[0].config = LogConfig(flush_messages=1)
        _take(stage, 5, 0)
        await _turns()
        host.flushes[0][2].set_result(PeerError(ErrorCode.KAFKA_STORAGE_ERROR, "full"))
        await _turns()
        assert stage.state(0).phase is FollowerPhase.FLUSHING
        assert [(partition, end) for partition, end, _ in host.flushes] == [(0, 6), (0, 6)]
        host.flushes[1][2].set_result(None)
        await _turns()
        assert stage.state(0).phase is FollowerPhase.FETCHING

    run(story)


def test_log_is_flushed_before_the_first_fetch_from_a_new_leader() -> None:
    async def story(stage: Stage, host: _FlushingHost) -> None:
        stage.replicas[0].config = LogConfig(flush_messages=1)
        _take(stage, 5, 0)
        await _turns()
        stage.fetchers.follow(stage.replicas[0], LEADER, EPOCH + 1)
        await _turns()
        assert [(partition, end) for partition, end, _ in host.flushes] == [(0, 6), (0, 6)]
        assert stage.state(0).phase is FollowerPhase.FLUSHING
        for _, _, outcome in host.flushes:
            outcome.set_result(None)
        await _turns()
        assert stage.state(0).phase is FollowerPhase.FETCHING

    run(story)


def test_flush_ending_during_close_opens_no_connection() -> None:
    """The replica is far behind: it was moved to a connection of its own, which was never closed. Records appended
    after the logs were closed counted as flushed (operations, seed 21001776)."""

    async def story(stage: Stage, host: _FlushingHost) -> None:
        stage.replicas[0].config = LogConfig(flush_messages=1)
        _take(stage, 5, 0)
        await _turns()
        stage.state(0).leader_high_watermark = 50
        closing = asyncio.ensure_future(stage.fetchers.close())
        await _turns()
        host.flushes[0][2].set_result(None)
        await closing
        assert stage.link._far == []

    run(story)
