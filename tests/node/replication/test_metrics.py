"""Replication metrics of a broker for Prometheus."""

from __future__ import annotations

from typing import Any

import pytest

from fenceline.controller.partition_requests import AlteredPartition
from fenceline.errors import ErrorCode
from fenceline.log.core.producer_state import Origin
from fenceline.node.replication.metrics import ReplicaSums, ReplicationCollector
from fenceline.records.build import build_batch
from fenceline.records.markers import end_marker
from tests.node.desk import TOPIC, Desk, run_story, turns

MAX_TRANSACTION_MS = 900_000


def _collector(desk: Desk) -> ReplicationCollector:
    return ReplicationCollector(
        desk.plane.in_service,
        desk.replication,
        desk.clock,
        image=lambda: desk.image,
        min_in_sync=lambda _: int(desk.topic_settings.get("min.insync.replicas", "1")),
        max_transaction_ms=MAX_TRANSACTION_MS,
    )


def _figures(desk: Desk) -> dict[str, float]:
    found = {}
    for family in _collector(desk).collect():
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sample.labels.items())
            found[sample.name.removeprefix("fenceline_") + (f"{{{labels}}}" if labels else "")] = sample.value
    return found


def test_led_partitions_are_counted() -> None:
    async def story(desk: Desk) -> None:
        desk.topic_settings = {"min.insync.replicas": "2"}
        desk.lead(1, isr=(1, 2, 3), index=0)
        desk.lead(1, isr=(1, 2), index=1)
        desk.lead(1, isr=(1,), index=2)
        desk.follow(1, index=3)
        desk.tell(4, leader=1, leader_epoch=1, isr=(1, 3))
        assert (TOPIC, 4) not in desk.partitions.open_by_name, "nobody needs its object"
        figures = _figures(desk)
        assert {name: figures[f"{name}_partitions"] for name in ("led", "under_replicated", "at_min_isr")} == {
            "led": 4,
            "under_replicated": 3,
            "at_min_isr": 2,
        }
        assert figures["under_min_isr_partitions"] == 1

    run_story(story, partitions=5)


def test_lagging_followers_are_counted() -> None:
    async def story(desk: Desk) -> None:
        for index in (0, 1):
            desk.lead(1, isr=(1, 2, 3), index=index)
            desk.append(5, index=index)
        desk.follower_fetched(2, 5, index=0)
        desk.follower_fetched(2, 3, index=1)
        desk.clock.ms += 4_000
        figures = _figures(desk)
        assert (figures["follower_lag_records{broker=2}"], figures["follower_lag_records{broker=3}"]) == (2, 5)
        assert (figures["follower_lag_seconds{broker=2}"], figures["follower_lag_seconds{broker=3}"]) == (4, 4)
        for index in (0, 1):
            for follower in (2, 3):
                desk.follower_fetched(follower, 5, index=index)
        figures = _figures(desk)
        assert figures["follower_lag_records{broker=2}"] == figures["follower_lag_seconds{broker=2}"] == 0

    run_story(story, partitions=2)


def test_a_hidden_end_offset_is_counted() -> None:
    async def story(desk: Desk) -> None:
        desk.lead(1, isr=(1, 2))
        desk.append(3)
        desk.lead(2, isr=(1, 2))
        assert _figures(desk)["end_offset_hidden_partitions"] == 1
        desk.follower_fetched(2, 3)
        assert _figures(desk)["end_offset_hidden_partitions"] == 0

    run_story(story)


def test_changes_of_in_sync_sets_are_counted() -> None:
    async def story(desk: Desk) -> None:
        codes = [ErrorCode.NONE, ErrorCode.INELIGIBLE_REPLICA, ErrorCode.NONE]

        def answer(request: object) -> object:
            (topic_id, (change,)), *_ = request.topics  # type: ignore[attr-defined]
            isr = tuple(member.broker_id for member in change.new_isr)
            altered = AlteredPartition(
                change.index, codes.pop(0), 1, change.leader_epoch, isr, 0, change.partition_epoch + 1
            )
            return type("Answer", (), {"topics": ((topic_id, (altered,)),)})()

        desk.controller.answer = answer
        desk.lead(1)
        while codes:
            left = len(codes)
            if left == 3:
                desk.follower_fetched(2, 0)
            elif left == 2:
                desk.follower_fetched(3, 0)
            else:
                desk.append()
                desk.clock.ms += 60_000
                desk.replication.shrink_isrs()
            while len(codes) == left:
                await turns(1)
            await turns()
        figures = _figures(desk)
        counted = {name: figures[f"isr_{name}_total"] for name in ("expands", "shrinks", "update_failures")}
        assert counted == {"expands": 1, "shrinks": 1, "update_failures": 1}

    run_story(story)


def _transactional(desk: Desk, producer_id: int, *, index: int = 0, timestamp_ms: int = 0) -> None:
    made = build_batch(
        [(timestamp_ms, b"k", b"v", ())],
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )
    replica = desk.replica(index)
    replica.log.append_as_leader(memoryview(made), leader_epoch=replica.leader_epoch, now_ms=timestamp_ms)
    replica.appended()


def test_transactions_that_should_have_ended_are_counted() -> None:
    """transactions.md X46: only counted; by the last timestamp of the oldest one."""

    async def story(desk: Desk) -> None:
        for index in range(3):
            desk.lead(1, index=index)
        now_ms = 10_000_000
        desk.clock.ms = now_ms
        late_ms = now_ms - MAX_TRANSACTION_MS - 5 * 60_000
        _transactional(desk, 1, index=0, timestamp_ms=late_ms)
        _transactional(desk, 2, index=1, timestamp_ms=late_ms - 1)
        desk.append(3, index=1)
        _transactional(desk, 3, index=2, timestamp_ms=now_ms)
        _transactional(desk, 4, index=2, timestamp_ms=late_ms - 1)
        figures = _figures(desk)
        assert figures["late_transactions_partitions"] == 1
        assert figures["last_stable_offset_lag_records"] == 4
        assert figures["producer_ids"] == 4
        replica = desk.replica(1)
        marker = memoryview(end_marker(False, 2, 0, 0, now_ms))
        replica.log.append_as_leader(marker, leader_epoch=1, now_ms=0, origin=Origin.COORDINATOR)
        replica.appended()
        figures = _figures(desk)
        assert figures["late_transactions_partitions"] == 0
        assert figures["last_stable_offset_lag_records"] == 2
        desk.follow(2, index=2)
        figures = _figures(desk)
        assert figures["last_stable_offset_lag_records"] == 1, "as a leader only"
        assert figures["producer_ids"] == 4

    run_story(story, partitions=3)


@pytest.mark.parametrize("took_ms", [4, 5])
def test_long_sums_are_not_computed_for_each_scrape(took_ms: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """They hold up the event loop: of scrapes in a row, only some pay for them."""

    async def story(desk: Desk) -> None:
        add, computed = ReplicaSums.add, 0

        def slow(*arguments: Any) -> None:
            nonlocal computed
            computed += 1
            desk.clock.ms += took_ms
            add(*arguments)

        monkeypatch.setattr(ReplicaSums, "add", slow)
        desk.lead(1)
        collector = _collector(desk)
        for _ in range(3):
            list(collector.collect())
        assert computed == (1 if took_ms == 5 else 3)
        desk.clock.ms += 9 * took_ms
        list(collector.collect())
        assert computed == (2 if took_ms == 5 else 4)

    run_story(story)
