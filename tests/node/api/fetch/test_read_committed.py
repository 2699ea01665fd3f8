"""What a read_committed reader gets beside the records: the last stable offset and the aborted transactions.

Rules: transactions.md X41 to X43; list_offsets.md L8.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fenceline.log.core.producer_state import Origin
from fenceline.node.api.fetch.reads import FetchReads
from fenceline.records.build import build_batch
from fenceline.records.markers import end_marker
from fenceline.replica.fencing import IsolationLevel
from tests.node.desk import Desk, run_story

COMMITTED, UNCOMMITTED = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED


def write(desk: Desk, producer_id: int = 5, *, size: int = 1) -> None:
    log = desk.replica().log
    known = log.producers.get(producer_id)
    made = build_batch(
        [(0, b"k", b"v" * size, ())],
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0 if known is None else known.last_sequence + 1,
        transactional=True,
    )
    log.append_as_leader(memoryview(made), leader_epoch=desk.replica().leader_epoch, now_ms=0)
    desk.replica().appended()


def end(desk: Desk, producer_id: int = 5, *, commit: bool = False) -> None:
    desk.replica().log.append_as_leader(
        memoryview(end_marker(commit, producer_id, 0, 0, 0)),
        leader_epoch=desk.replica().leader_epoch,
        now_ms=0,
        origin=Origin.COORDINATOR,
    )
    desk.replica().appended()


def aborted(desk: Desk, offset: int, max_bytes: int) -> tuple[tuple[int, int], ...]:
    wanted = desk.wanted(offset)._replace(max_bytes=max_bytes)
    [found] = desk.fetch(wanted, isolation_level=COMMITTED).response.partitions
    assert found.records
    return tuple(found.aborted_transactions or ())


def test_reader_stops_before_an_open_transaction() -> None:
    async def story(desk: Desk) -> None:
        desk.lead(1)
        desk.append(2)
        write(desk)
        desk.append()
        found = desk.fetched(0, isolation_level=COMMITTED)
        assert (found.high_watermark, found.last_stable_offset) == (4, 2)
        assert desk.fetched(2, isolation_level=COMMITTED).records == b""
        assert len(desk.fetched(2, isolation_level=UNCOMMITTED).records or b"") > 0
        assert (await desk.list_offset(isolation_level=COMMITTED)).offset == 2
        assert (await desk.list_offset(isolation_level=UNCOMMITTED)).offset == 4
        end(desk, commit=True)
        assert (await desk.list_offset(isolation_level=COMMITTED)).offset == 5
        found = desk.fetched(0, isolation_level=COMMITTED)
        assert (found.last_stable_offset, list(found.aborted_transactions or [])) == (5, [])

    run_story(story)


@pytest.mark.parametrize("version", [4, 11, 12, 17])
def test_aborted_transactions_are_for_committed_readers_only(version: int) -> None:
    async def story(desk: Desk) -> None:
        desk.lead(1, isr=(1, 2))
        write(desk)
        end(desk)
        desk.follower_fetched(2, 2)
        found = desk.fetched(0, version=version, isolation_level=COMMITTED)
        assert found.aborted_transactions == ((5, 0),)
        assert desk.fetched(0, version=version, isolation_level=UNCOMMITTED).aborted_transactions is None
        if version >= 15:
            for offset in (0, 2):
                replica = desk.follower_fetched(2, offset, version=version, isolation_level=COMMITTED)
                assert replica.aborted_transactions is None, "replicas get everything"

    run_story(story)


def test_aborted_transactions_are_those_of_the_records_in_the_response() -> None:
    """A reader far behind would get all that came since, with each response."""

    async def story(desk: Desk) -> None:
        desk.topic_settings = {"index.interval.bytes": "0", "segment.bytes": str(1 << 20)}
        desk.lead(1)
        for producer_id in range(100):
            write(desk, producer_id, size=1_000)
            end(desk, producer_id)
        for offset in (0, 60, 150):
            found = aborted(desk, offset, 5_000)
            assert found[0] == (offset // 2, offset)
            assert 4 <= len(found) < 10

    run_story(story)


def test_transaction_that_begins_in_the_response_and_is_aborted_far_behind_it() -> None:
    async def story(desk: Desk) -> None:
        desk.topic_settings = {"index.interval.bytes": "0", "segment.bytes": "4000"}
        desk.lead(1)
        write(desk, 7)
        for producer_id in range(50, 60):
            write(desk, producer_id, size=1_000)
            end(desk, producer_id)
        end(desk, 7)
        assert len(desk.replica().log.segments) > 2
        assert (7, 0) in aborted(desk, 0, 1)

    run_story(story)


@pytest.mark.parametrize("has_session", [False, True])
def test_waiting_reader_is_woken_by_the_last_stable_offset_only(
    monkeypatch: pytest.MonkeyPatch, has_session: bool
) -> None:
    """Reading its partitions for each record of an open transaction would find nothing to send."""
    passes = 0
    read = FetchReads.read

    def counted(self: FetchReads, *given: Any, **named: Any) -> Any:
        nonlocal passes
        passes += 1
        return read(self, *given, **named)

    async def story(desk: Desk) -> None:
        desk.lead(1)
        fields = {"session_epoch": 0 if has_session else -1, "isolation_level": COMMITTED, "max_wait_ms": 60_000}
        if has_session:
            opened = desk.fetch(desk.wanted(0), **{**fields, "max_wait_ms": 0})
            fields |= {"session_id": opened.response.session_id, "session_epoch": 1}
        monkeypatch.setattr(FetchReads, "read", counted)
        waiting = desk.fetch(*([] if has_session else [desk.wanted(0)]), **fields)
        for _ in range(5):
            write(desk)
            await asyncio.sleep(0)
        assert waiting.is_pending
        assert passes <= 2, "the first change of a partition may wake without need"
        end(desk, commit=True)
        await asyncio.sleep(0)
        assert not waiting.is_pending
        [found] = waiting.response.partitions
        assert (found.high_watermark, found.last_stable_offset, len(found.records or b"") > 0) == (6, 6, True)

    run_story(story)


def test_session_tells_a_committed_reader_the_high_watermark_when_its_wait_is_over() -> None:
    async def story(desk: Desk) -> None:
        desk.lead(1)
        fields = {"isolation_level": COMMITTED}
        session_id = desk.fetch(desk.wanted(0), session_epoch=0, **fields).response.session_id
        assert not desk.fetch(session_id=session_id, session_epoch=1, **fields).response.partitions
        waiting = desk.fetch(session_id=session_id, session_epoch=2, max_wait_ms=20, **fields)
        write(desk)
        await waiting.later()
        [found] = waiting.response.partitions
        assert (found.high_watermark, found.last_stable_offset, found.records) == (1, 0, b"")
        assert not desk.fetch(session_id=session_id, session_epoch=3, **fields).response.partitions

    run_story(story)


def test_session_that_changes_its_isolation_level_reads_everything_again() -> None:
    async def story(desk: Desk) -> None:
        desk.lead(1)
        write(desk)
        opened = desk.fetch(desk.wanted(0), session_epoch=0, isolation_level=COMMITTED)
        session = {"session_id": opened.response.session_id}
        assert not desk.fetch(**session, session_epoch=1, isolation_level=COMMITTED).response.partitions
        [found] = desk.fetch(**session, session_epoch=2, isolation_level=UNCOMMITTED).response.partitions
        assert len(found.records or b"") > 0

    run_story(story)


def test_reader_is_woken_again_after_its_log_was_cut_to_the_same_offset() -> None:
    async def story(desk: Desk) -> None:
        desk.lead(1)
        fields = {"isolation_level": COMMITTED, "max_wait_ms": 60_000}
        first = desk.fetch(desk.wanted(0), **fields)
        desk.append()
        await asyncio.sleep(0)
        assert not first.is_pending, "woken at offset 1"
        desk.replica().log.truncate_to(0)
        desk.lead(2)
        second = desk.fetch(desk.wanted(0), **fields)
        desk.append()
        await asyncio.sleep(0)
        assert not second.is_pending, "woken at offset 1 again"

    run_story(story)
