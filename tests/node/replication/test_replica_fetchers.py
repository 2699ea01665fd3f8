"""Fetchers whose logs are worked on by a thread: while they are stopped, and while they connect."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from fenceline.ids import TopicPartition
from fenceline.log.core.compaction_bound import CompleteFrom
from fenceline.log.core.config import LogConfig
from fenceline.log.partition.partition_log import NO_LIMIT
from fenceline.losses.cutting import LogCut
from fenceline.metadata.image import Endpoint
from fenceline.node.clock import SystemClock
from fenceline.node.replication import leader_link
from fenceline.node.replication.replica_fetchers import ReplicaFetchers
from fenceline.replica.fetcher import FetchLimits
from fenceline.replica.follower import AskEpochEnd, CutTo, FollowerPhase, FollowerState, TruncationCause
from tests.replica.histories import MemoryLog

LIMITS = FetchLimits(max_wait_ms=500, min_bytes=1, max_bytes=10_000, partition_max_bytes=1_000, backoff_ms=1_000)


class Host:
    """A broker whose leader is not registered, so that nothing is fetched. A truncation lasts as long as the test
    wants.
    """

    node_id, broker_epoch = 1, 100

    def __init__(self) -> None:
        self.ended = 0
        self.began, self.may_end = threading.Event(), threading.Event()

    def replication_endpoint(self, node_id: int) -> None:
        return None

    def storage_failed(self, replica: Any, error: Any) -> None:
        raise AssertionError("no disk failed")

    def cut_log(self, replica: Any, cut: LogCut) -> None:
        self.began.set()
        assert self.may_end.wait(60)

    def cut_ended(self, replica: Any) -> None:
        self.ended += 1


def a_replica() -> Any:
    return SimpleNamespace(
        topic_partition=TopicPartition("topic", 0),
        topic_id_bytes=UUID(int=7).bytes,
        log=MemoryLog(),
        cleaning=None,
        clean_since=NO_LIMIT,
        refused=(-1, frozenset()),
        may_lead=True,
        config=LogConfig(),
    )


def cutting(
    host: Host, replica: Any, threads: ThreadPoolExecutor
) -> tuple[ReplicaFetchers, FollowerState, set[asyncio.Task[None]]]:
    """Fetchers that have begun to truncate the replica's log, its state, and the work."""
    fetchers = ReplicaFetchers(host, SystemClock(), threads, LIMITS, answer_timeout_ms=1000)
    fetchers.follow(replica, 2, 5)
    link = fetchers._links[2]
    (state,) = link.fetcher.states.values()
    link.duties.execute(CutTo(state, 0, TruncationCause.DIVERGENCE), [])
    return fetchers, state, link.under_way


def test_a_log_being_truncated_stays_owned_until_the_thread_ends() -> None:
    """Code that closes logs after the fetchers would race with the thread."""

    async def scenario() -> None:
        host = Host()
        replica = a_replica()
        with ThreadPoolExecutor(1) as threads:
            fetchers, _, _ = cutting(host, replica, threads)
            await asyncio.to_thread(host.began.wait, 60)
            closing = asyncio.ensure_future(fetchers.close())
            for _ in range(20):
                await asyncio.sleep(0)
            try:
                assert replica.is_being_cut
                assert not closing.done()
                assert host.ended == 0
            finally:
                host.may_end.set()
            await closing
            assert not replica.is_being_cut
            assert host.ended == 1

    asyncio.run(scenario())


def test_a_truncation_that_fails_by_an_internal_error_is_retried(capsys: pytest.CaptureFixture[str]) -> None:
    """The partition stopped forever, and nothing reported it."""

    class FailingHost(Host):
        def cut_log(self, replica: Any, cut: LogCut) -> None:
            raise ValueError("of our own")

    async def scenario() -> None:
        host, replica = FailingHost(), a_replica()
        with ThreadPoolExecutor(1) as threads:
            fetchers, state, cuts = cutting(host, replica, threads)
            await asyncio.gather(*cuts)
            assert (state.phase, state.failures, replica.is_being_cut) == (FollowerPhase.WAITING, 1, False)
            await fetchers.close()

    asyncio.run(scenario())
    assert "replication of a partition failed" in capsys.readouterr().err


def test_a_log_that_is_flushed_while_its_link_connects_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """The link slept for ever: when it looked, the log was being flushed, so there was nothing to compare, and it took
    the end of the flush for something that its next request would name (operations, seeds 1724 and 1762)."""

    class FlushingHost(Host):
        def __init__(self) -> None:
            super().__init__()
            self.is_flushed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def replication_endpoint(self, node_id: int) -> Any:
            return Endpoint("PLAINTEXT", "leader", 9092, 0)

        def flushed(self, replica: Any, end_offset: int) -> asyncio.Future[None]:
            return self.is_flushed

    async def scenario() -> None:
        host, replica = FlushingHost(), a_replica()
        replica.log.append([3, 3])
        replica.log.complete_from, replica.log.unflushed_messages = CompleteFrom(10, 2), 2
        replica.config = LogConfig(flush_messages=1)
        asked: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()

        async def connect(*_: Any, **__: Any) -> Any:
            host.is_flushed.set_result(None)
            await asyncio.gather(*link.under_way)
            assert state.phase is FollowerPhase.FETCHING
            return SimpleNamespace(is_open=True, was_closed_by_peer=False, close=lambda: None)

        async def ask_all(_: Any, questions: list[Any]) -> None:
            asked.set_result(questions)

        monkeypatch.setattr(leader_link, "open_peer", connect)
        fetchers = ReplicaFetchers(host, SystemClock(), None, LIMITS, answer_timeout_ms=1000)
        fetchers.follow(replica, 2, 5)
        link = fetchers._links[2]
        monkeypatch.setattr(link.truncation, "ask_all", ask_all)
        (state,) = link.fetcher.states.values()
        assert (state.phase, state.comparison is not None) == (FollowerPhase.FLUSHING, True)
        try:
            (question,) = await asyncio.wait_for(asked, 60)
            assert question == AskEpochEnd(state, 3)
        finally:
            await fetchers.close()

    asyncio.run(scenario())
