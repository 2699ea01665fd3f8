"""Stopping fetchers while a thread works on a log."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from fenceline.ids import TopicPartition
from fenceline.log.core.config import LogConfig
from fenceline.log.partition.partition_log import NO_LIMIT
from fenceline.losses.cutting import LogCut
from fenceline.node.clock import SystemClock
from fenceline.node.replication.replica_fetchers import ReplicaFetchers
from fenceline.replica.fetcher import FetchLimits
from fenceline.replica.follower import CutTo, FollowerPhase, FollowerState, TruncationCause
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
