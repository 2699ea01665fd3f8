"""Long polling: how many requests are sent, and which responses count as a change. `fetch_once` is replaced."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from fenceline.client.core.cluster import Purpose
from fenceline.client.core.config import ClientConfig
from fenceline.client.core.fetch_session import PartitionFetch
from fenceline.client.core.metadata import LeaderAndEpoch
from fenceline.client.reader import long_poll
from fenceline.client.reader.long_poll import LongPoller
from fenceline.errors import ErrorCode, PeerError
from fenceline.ids import TopicPartition

ONE, TWO = TopicPartition("t", 1), TopicPartition("t", 2)
NOTHING = {"error_code": 0, "records": b"", "diverging_epoch": None}
Asked = list[tuple[TopicPartition, int, int, int]]


@dataclass
class Brokers:
    """Partition N is led by node N; a broker delays its response until the test provides it."""

    config: ClientConfig = field(default_factory=lambda: ClientConfig.parse("reader", "h:1", {"fetch.min.bytes": 1000}))
    asked: dict[int, list[Asked]] = field(default_factory=lambda: defaultdict(list))
    answers: dict[int, asyncio.Queue[Any]] = field(default_factory=lambda: defaultdict(asyncio.Queue))
    refreshed: list[list[str]] = field(default_factory=list)
    settings: list[tuple[int, int]] = field(default_factory=list)

    async def by_leader(self, partitions: Sequence[TopicPartition], deadline: Any) -> dict[int, Any]:
        return {tp.partition: [(tp, LeaderAndEpoch(tp.partition, 7))] for tp in partitions}

    async def fetch_metadata(self, topics: list[str], deadline: Any) -> None:
        self.refreshed.append(topics)

    def link(self, node_id: int, purpose: Purpose) -> Any:
        async def connection() -> int:
            return node_id

        return SimpleNamespace(connection=connection)

    async def fetch_once(
        self, cluster: Any, node_id: int, wanted: list[PartitionFetch], config: ClientConfig, *, max_wait_ms: int
    ) -> dict[TopicPartition, Any]:
        self.settings.append((config["fetch.min.bytes"], max_wait_ms))
        self.asked[node_id].append([(one.tp, one.offset, one.last_epoch, one.leader_epoch) for one in wanted])
        answer = await self.answers[node_id].get()
        if isinstance(answer, Exception):
            raise answer
        return {one.tp: SimpleNamespace(**{**NOTHING, **answer}) for one in wanted}


def run(monkeypatch: pytest.MonkeyPatch, story: Callable[[Brokers, LongPoller], Awaitable[None]]) -> None:
    async def main() -> None:
        brokers = Brokers()
        monkeypatch.setattr(long_poll, "fetch_once", brokers.fetch_once)
        watch = LongPoller(brokers)  # type: ignore[arg-type]
        try:
            await story(brokers, watch)
        finally:
            await watch.close()

    asyncio.run(main())


def test_parked_fetch_is_sent_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(brokers: Brokers, watch: LongPoller) -> None:
        for _ in range(3):
            assert not await watch.wait_for_change({ONE: (5, 2)}, 1)
        assert brokers.asked == {1: [[(ONE, 5, 2, 7)]]}
        # One record is a change, whatever fetch.min.bytes is.
        assert brokers.settings == [(1, long_poll.HOLD_MS)]
        brokers.answers[1].put_nowait({"records": b"r"})
        assert await watch.wait_for_change({ONE: (5, 2)}, 60_000)
        brokers.answers[1].put_nowait({})
        assert not await watch.wait_for_change({ONE: (6, 2)}, 60_000)
        assert brokers.asked[1] == [[(ONE, 5, 2, 7)], [(ONE, 6, 2, 7)]]
        assert not brokers.refreshed

    run(monkeypatch, story)


def test_divergence_and_errors_count_as_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(brokers: Brokers, watch: LongPoller) -> None:
        brokers.answers[1].put_nowait({"diverging_epoch": (1, 3)})
        assert await watch.wait_for_change({ONE: (5, 2)}, 60_000)
        assert not brokers.refreshed
        for trouble in (
            {"error_code": int(ErrorCode.FENCED_LEADER_EPOCH)},
            PeerError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "it was"),
        ):
            brokers.answers[1].put_nowait(trouble)
            assert await watch.wait_for_change({ONE: (5, 2)}, 60_000)
        # The leader is looked up before the next request.
        assert brokers.refreshed == [["t"]]
        assert not await watch.wait_for_change({ONE: (5, 2)}, 1)
        assert brokers.refreshed == [["t"]] * 2

    run(monkeypatch, story)


def test_a_change_on_one_leader_does_not_wait_for_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(brokers: Brokers, watch: LongPoller) -> None:
        brokers.answers[1].put_nowait({})
        brokers.answers[2].put_nowait({"records": b"r"})
        assert await watch.wait_for_change({ONE: (5, 2), TWO: (9, 1)}, 60_000)
        # The first leader has nothing and the second delays its response, so the call waits.
        brokers.answers[1].put_nowait({})
        asyncio.get_running_loop().call_later(0.05, brokers.answers[2].put_nowait, {"records": b"r"})
        assert await watch.wait_for_change({ONE: (5, 2), TWO: (10, 1)}, 60_000)
        assert len(brokers.asked[1]) == 2

    run(monkeypatch, story)


def test_positions_missing_from_the_pending_fetch_count_as_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(brokers: Brokers, watch: LongPoller) -> None:
        assert not await watch.wait_for_change({ONE: (5, 2)}, 1)
        assert await watch.wait_for_change({ONE: (6, 2)}, 1)
        assert await watch.wait_for_change({ONE: (6, 2), TWO: (0, -1)}, 1)
        assert len(brokers.asked[1]) == 1
        brokers.answers[1].put_nowait({})
        assert await watch.wait_for_change({ONE: (6, 2)}, 60_000)
        assert not await watch.wait_for_change({ONE: (6, 2)}, 1)
        assert brokers.asked[1][1:] == [[(ONE, 6, 2, 7)]]

    run(monkeypatch, story)
