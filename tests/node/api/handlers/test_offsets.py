"""ListOffsets and DeleteRecords: order of checks, visible offsets, and replicas that a deletion waits for."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fenceline.errors import ErrorCode
from fenceline.records.batch import iter_headers
from fenceline.records.build import build_batch
from fenceline.wire.apis import ApiKey
from tests.node.desk import RECOVERING, TOPIC, Desk, run_story, turns

NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER


# --- ListOffsets --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("timestamp", "first_version"), [(-1, 1), (-2, 1), (-3, 7), (-4, 8), (-5, 9), (-6, 11), (-7, 99)]
)
@pytest.mark.parametrize("version", range(1, 12))
def test_special_timestamps_need_their_versions(timestamp: int, first_version: int, version: int) -> None:
    """`list_offsets.md L3`."""

    async def story(desk: Desk) -> None:
        desk.lead(1)
        code = (await desk.list_offset(timestamp, version=version)).error_code
        assert code == (0 if version >= first_version else ErrorCode.UNSUPPORTED_VERSION)

    run_story(story)


def test_duplicate_partition_is_rejected_first() -> None:
    """L2, L36: answered once, whatever else is invalid."""

    async def story(desk: Desk) -> None:
        desk.lead(1)
        rows = [{"partition_index": 0, "timestamp": -9}, {"partition_index": 0, "timestamp": -1}]
        answer = await desk.ask(ApiKey.LIST_OFFSETS, 10, replica_id=-1, topics=[{"name": TOPIC, "partitions": rows}])
        assert [each.error_code for each in answer.topics[0].partitions] == [ErrorCode.INVALID_REQUEST]

    run_story(story)


def test_version_is_checked_before_partition_and_epoch() -> None:
    """L3 before L4 and L5."""

    async def story(desk: Desk) -> None:
        desk.lead(1)
        for index in (0, 9):
            found = await desk.list_offset(-7, epoch=9, index=index)
            assert found.error_code == ErrorCode.UNSUPPORTED_VERSION

    run_story(story)


@pytest.mark.parametrize(
    ("replica_id", "leads", "code"),
    [(-1, True, 0), (2, True, 0), (-2, True, 0), (-1, False, NOT_LEADER), (2, False, NOT_LEADER), (-2, False, 0)],
)
@pytest.mark.parametrize("timestamp", [-1, -2, -3, 0])
def test_which_readers_a_leader_and_a_follower_serve(replica_id: int, leads: bool, code: int, timestamp: int) -> None:
    """L6; ListOffsetsRequestTest.testListOffsetsErrorCodes: only a debug reader is served by a follower."""

    async def story(desk: Desk) -> None:
        (desk.lead if leads else desk.follow)(3)
        assert (await desk.list_offset(timestamp, replica_id=replica_id)).error_code == code

    run_story(story)


@pytest.mark.parametrize(
    ("epoch", "code"), [(-1, 0), (3, 0), (2, ErrorCode.FENCED_LEADER_EPOCH), (4, ErrorCode.UNKNOWN_LEADER_EPOCH)]
)
def test_follower_checks_epoch_of_a_debug_reader(epoch: int, code: int) -> None:
    """L34: with the current epoch or none, the follower answers from its own log."""

    async def story(desk: Desk) -> None:
        desk.follow(3)
        desk.copied(4, epoch=3, high_watermark=2)
        found = await desk.list_offset(-1, replica_id=-2, epoch=epoch)
        assert (found.error_code, found.offset) == (code, -1 if code else 4)

    run_story(story)


def test_end_offset_depends_on_reader_and_isolation_level() -> None:
    """L8, L17; PartitionTest.testListOffsetIsolationLevels."""

    async def story(desk: Desk) -> None:
        desk.lead(3, isr=(1, 2))
        desk.append(2)
        replica = desk.replica()
        open_one = build_batch(
            [(0, b"k", b"v", ())], producer_id=5, producer_epoch=0, base_sequence=0, transactional=True
        )
        replica.log.append_as_leader(memoryview(open_one), leader_epoch=3, now_ms=0)
        replica.appended()
        desk.append(3)
        desk.follower_fetched(2, 5)
        ends = {
            "read uncommitted": await desk.list_offset(-1),
            "read committed": await desk.list_offset(-1, isolation_level=1),
            "replica": await desk.list_offset(-1, replica_id=2, isolation_level=1),
            "debug": await desk.list_offset(-1, replica_id=-2),
        }
        assert {who: each.offset for who, each in ends.items()} == {
            "read uncommitted": 5,
            "read committed": 2,
            "replica": 6,
            "debug": 6,
        }

    run_story(story)


def test_timestamp_match_above_high_watermark_is_hidden() -> None:
    """L22-L23, L28."""

    async def story(desk: Desk) -> None:
        desk.lead(3, isr=(1, 2))
        desk.append(timestamps=(10, 50, 20))
        desk.follower_fetched(2, 1)
        assert (await desk.list_offset(10)).offset == 0
        hidden = await desk.list_offset(15)
        assert (hidden.error_code, hidden.offset, hidden.timestamp) == (0, -1, -1)
        assert (await desk.list_offset(15, replica_id=2)).offset == 1
        assert (await desk.list_offset(-3)).offset == -1

    run_story(story)


def test_earliest_equals_latest_after_deleting_all_records() -> None:
    """L37, L18."""

    async def story(desk: Desk) -> None:
        desk.lead(2, replicas=(1,))
        desk.append(2)
        desk.lead(4)
        desk.append(3)
        assert (await desk.delete_records(-1)).low_watermark == 5
        start, end = await desk.list_offset(-2), await desk.list_offset(-1)
        assert (start.offset, start.leader_epoch) == (5, 4)
        assert (end.offset, end.leader_epoch) == (5, 4)

    run_story(story)


def test_an_empty_log_has_no_largest_timestamp() -> None:
    """L20."""

    async def story(desk: Desk) -> None:
        desk.lead(2)
        found = await desk.list_offset(-3)
        assert (found.error_code, found.offset, found.timestamp, found.leader_epoch) == (0, -1, -1, -1)

    run_story(story)


# --- DeleteRecords ------------------------------------------------------------------------------------------------


def _replicated(desk: Desk) -> None:
    """Five records on three replicas, all in sync; two fetch sessions."""
    desk.lead(5, isr=(1, 2, 3))
    desk.append(5)
    for follower in (2, 3):
        desk.follower_fetched(follower, 5)
    assert desk.replica().high_watermark == 5


async def _started_deletion(desk: Desk, offset: int, **more: Any) -> asyncio.Task[Any]:
    deleting = desk.loop.create_task(desk.delete_records(offset, **more))
    await turns(3)
    return deleting


def test_deletion_completes_when_all_live_replicas_follow() -> None:
    async def story(desk: Desk) -> None:
        _replicated(desk)
        deleting = await _started_deletion(desk, 3)
        assert desk.replica().log.log_start_offset == 3
        assert desk.follower_fetched(2, 5).log_start_offset == 3
        desk.follower_fetched(2, 5, log_start_offset=3)
        desk.follower_fetched(3, 5, log_start_offset=2)
        await turns()
        assert not deleting.done()
        desk.follower_fetched(3, 5, log_start_offset=4)
        answered = await deleting
        assert (answered.error_code, answered.low_watermark) == (0, 3)
        assert not desk.replica().waiters

    run_story(story)


def test_deletion_does_not_wait_for_fenced_replicas() -> None:
    async def story(desk: Desk) -> None:
        _replicated(desk)
        desk.tell_broker(3, fenced=True)
        deleting = await _started_deletion(desk, 3)
        desk.follower_fetched(2, 5, log_start_offset=3)
        assert (await deleting).low_watermark == 3
        deleting = await _started_deletion(desk, 4)
        assert not deleting.done()
        desk.tell_broker(2, fenced=True)
        assert (await deleting).low_watermark == 4

    run_story(story)


def test_deletion_times_out() -> None:
    """Error 7 with the low watermark unchanged; the records stay deleted."""

    async def story(desk: Desk) -> None:
        _replicated(desk)
        answered = await desk.delete_records(3, timeout_ms=0)
        assert (answered.error_code, answered.low_watermark) == (ErrorCode.REQUEST_TIMED_OUT, 0)
        assert desk.replica().log.log_start_offset == 3
        await turns()
        assert not desk.replica().waiters

    run_story(story)


@pytest.mark.parametrize("change", ["follower", "recovering", "deleted"])
def test_leader_change_fails_a_pending_deletion(change: str) -> None:
    async def story(desk: Desk) -> None:
        _replicated(desk)
        deleting = await _started_deletion(desk, 3)
        match change:
            case "follower":
                desk.follow(6)
            case "recovering":
                desk.lead(6, leader_recovery_state=RECOVERING)
            case _:
                desk.delete_topic()
        answered = await deleting
        assert (answered.error_code, answered.low_watermark) == (NOT_LEADER, -1)

    run_story(story)


def test_pending_deletion_survives_a_new_epoch_of_the_leader() -> None:
    async def story(desk: Desk) -> None:
        _replicated(desk)
        deleting = await _started_deletion(desk, 3)
        desk.lead(6, isr=(1, 2, 3))
        for follower in (2, 3):
            desk.follower_fetched(follower, 5, log_start_offset=3)
        assert (await deleting).error_code == 0

    run_story(story)


@pytest.mark.parametrize(("offset", "code"), [(6, ErrorCode.OFFSET_OUT_OF_RANGE), (-2, ErrorCode.OFFSET_OUT_OF_RANGE)])
def test_only_committed_records_can_be_deleted(offset: int, code: int) -> None:
    async def story(desk: Desk) -> None:
        _replicated(desk)
        assert (await desk.delete_records(offset)).error_code == code
        assert desk.replica().log.log_start_offset == 0

    run_story(story)


def test_follower_advances_log_start_up_to_its_high_watermark() -> None:
    """E29; waiting readers of the follower are woken."""

    async def story(desk: Desk) -> None:
        replica = desk.follow(3)
        desk.copied(5, epoch=3, high_watermark=2)
        replica.apply_leader_offsets(2, 4)
        assert replica.log.log_start_offset == 2
        woken: list[int] = []
        replica.waiters.add(lambda: woken.append(1))
        replica.apply_leader_offsets(5, 4)
        assert replica.log.log_start_offset == 4
        assert woken == [1]
        replica.waiters.clear()
        assert desk.fetched(3).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert [header.base_offset for header in iter_headers(desk.fetched(4).records or b"")] == [4]

    run_story(story)


def test_deletion_completes_a_parked_follower_fetch() -> None:
    """A client waits for the deletion, so the parked fetch is answered with the new log start offset."""

    async def story(desk: Desk) -> None:
        _replicated(desk)
        follower = {"replica_id": 2, "replica_epoch": 102}
        wanted = desk.wanted(5, current_leader_epoch=5, log_start_offset=0)
        session = desk.fetch(wanted, session_epoch=0, **follower).response.session_id
        parked = desk.fetch(session_id=session, session_epoch=1, max_wait_ms=60_000, **follower)
        deleting = await _started_deletion(desk, 3)
        assert [each.log_start_offset for each in (await parked.later()).partitions] == [3]
        desk.fetch(
            desk.wanted(5, current_leader_epoch=5, log_start_offset=3), session_id=session, session_epoch=2, **follower
        )
        desk.follower_fetched(3, 5, log_start_offset=3)
        assert (await deleting).low_watermark == 3

    run_story(story)
