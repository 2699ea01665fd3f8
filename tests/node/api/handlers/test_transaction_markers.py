"""WriteTxnMarkers: markers of a coordinator in the partitions led here.

Rules: transactions.md X32, X39, X40; KAFKA-17507, 17877, 19999.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
from typing import Any

import pytest

from fenceline.errors import ErrorCode
from fenceline.ids import CONSUMER_OFFSETS_TOPIC
from fenceline.node.api.handlers.transaction_markers import _APPENDED_AT_ONCE, MarkerToWrite
from fenceline.records.batch import iter_headers
from fenceline.records.build import build_batch
from fenceline.records.markers import EndMarker, read_end_marker
from fenceline.wire.apis import ApiKey
from tests.node.api.handlers.fakes import partition, topic_image
from tests.node.desk import RECOVERING, TOPIC, Desk, run_story, turns

NONE = ErrorCode.NONE
PRODUCER = 5


def open_transaction(desk: Desk, index: int = 0, *, epoch: int = 0) -> None:
    replica = desk.replica(index)
    made = build_batch(
        [(0, b"k", b"v", ())], producer_id=PRODUCER, producer_epoch=epoch, base_sequence=0, transactional=True
    )
    replica.log.append_as_leader(memoryview(made), leader_epoch=replica.leader_epoch, now_ms=0)
    replica.appended()


def marker(
    topic: str = TOPIC,
    *indexes: int,
    producer_id: int = PRODUCER,
    epoch: int = 0,
    coordinator_epoch: int = 3,
    commit: bool = True,
    version: int = 0,
) -> dict[str, Any]:
    return {
        "producer_id": producer_id,
        "producer_epoch": epoch,
        "transaction_result": commit,
        "coordinator_epoch": coordinator_epoch,
        "transaction_version": version,
        "topics": [{"name": topic, "partition_indexes": list(indexes or (0,))}],
    }


async def write(desk: Desk, *markers: dict[str, Any], version: int = 2) -> list[tuple[int, str, int, ErrorCode]]:
    if version < 2:
        for each in markers:
            each.pop("transaction_version")
    answer = await desk.ask(ApiKey.WRITE_TXN_MARKERS, version, markers=list(markers))
    return [
        (result.producer_id, topic.name, each.partition_index, each.error_code)
        for result in answer.markers
        for topic in result.topics
        for each in topic.partitions
    ]


async def code(desk: Desk, *markers: dict[str, Any], version: int = 2) -> ErrorCode:
    [(_, _, _, found)] = await write(desk, *(markers or (marker(),)), version=version)
    return found


def is_open(desk: Desk, index: int = 0) -> bool:
    return any(each.transaction_first_offset >= 0 for each in desk.replica(index).log.producers)


def markers_of(desk: Desk, index: int = 0) -> list[EndMarker | None]:
    log = desk.replica(index).log
    content = memoryview(bytes(log.read(0, 1 << 20, end_offset_exclusive=log.log_end_offset).load()))
    found = [header for header in iter_headers(content) if header.is_control]
    return [read_end_marker(each._replace(position=0), content[each.position : each.end_position]) for each in found]


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("version", [1, 2])
def test_marker_ends_the_transaction(commit: bool, version: int) -> None:
    async def story(desk: Desk) -> None:
        desk.lead(1)
        open_transaction(desk)
        desk.clock.ms = 77
        assert await code(desk, marker(commit=commit), version=version) is NONE
        assert not is_open(desk)
        assert markers_of(desk) == [EndMarker(commit, 3, 77)]
        log = desk.replica().log
        assert log.last_stable_offset == log.log_end_offset == 2
        assert len(log.aborted_transactions(0, 2)) == (not commit)
        content = bytes(log.read(1, 1 << 20, end_offset_exclusive=2).load())
        assert len(content) == 78

    run_story(story)


def test_each_marker_and_partition_is_answered_alone() -> None:
    async def story(desk: Desk) -> None:
        desk.lead(1)
        desk.follow(1, index=1)
        open_transaction(desk)
        answers = await write(desk, marker(TOPIC, 0, 1, 9), marker(producer_id=6), marker("unknown", producer_id=6))
        assert answers == [
            (PRODUCER, TOPIC, 0, NONE),
            (PRODUCER, TOPIC, 1, ErrorCode.NOT_LEADER_OR_FOLLOWER),
            (PRODUCER, TOPIC, 9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            (6, TOPIC, 0, NONE),
            (6, "unknown", 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ]

    run_story(story, partitions=2)


def test_partition_named_twice_is_answered_with_the_error() -> None:
    async def story(desk: Desk) -> None:
        desk.lead(1)
        open_transaction(desk, epoch=4)
        twice = [marker(epoch=3), marker(epoch=4)]
        assert await code(desk, *twice) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert len(markers_of(desk)) == 1
        assert await code(desk, *reversed(twice)) is ErrorCode.INVALID_PRODUCER_EPOCH

    run_story(story)


def test_markers_of_many_transactions_leave_time_for_other_requests() -> None:
    async def story(desk: Desk) -> None:
        desk.lead(1)
        count = 3 * _APPENDED_AT_ONCE + 1
        log = desk.replica().log
        writing = asyncio.ensure_future(write(desk, *(marker(producer_id=each) for each in range(count))))
        ends = [0]
        while not writing.done():
            await asyncio.sleep(0)
            ends.append(log.log_end_offset)
        assert max(after - before for before, after in itertools.pairwise(ends)) == _APPENDED_AT_ONCE
        assert [answer[0] for answer in await writing] == list(range(count))
        assert log.log_end_offset == count

    run_story(story)


def test_empty_request() -> None:
    async def story(desk: Desk) -> None:
        assert await write(desk) == []

    run_story(story)


def test_all_in_sync_replicas_must_have_it() -> None:
    async def story(desk: Desk) -> None:
        desk.lead(1, isr=(1, 2))
        open_transaction(desk)
        answer = asyncio.ensure_future(code(desk))
        await turns()
        assert not answer.done()
        assert desk.replica().log.last_stable_offset == 0
        desk.follower_fetched(2, 2)
        assert await answer is NONE
        assert desk.replica().log.last_stable_offset == 2

    run_story(story)


def test_leader_that_changes_meanwhile_has_not_ended_it() -> None:
    async def story(desk: Desk) -> None:
        desk.lead(1, isr=(1, 2))
        answer = asyncio.ensure_future(code(desk))
        await turns()
        desk.follow(2)
        assert await answer is ErrorCode.NOT_LEADER_OR_FOLLOWER

    run_story(story)


def test_replicas_that_do_not_fetch() -> None:
    async def story(desk: Desk) -> None:
        desk.lead(1, isr=(1, 2))
        assert await code(desk) is ErrorCode.REQUEST_TIMED_OUT
        assert not desk.replica()._commits, "nobody waits for it any more"
        desk.follower_fetched(2, 1)

    run_story(story, settings={"request.timeout.ms": "1"})


def test_too_few_replicas_in_sync() -> None:
    async def story(desk: Desk) -> None:
        desk.topic_settings = {"min.insync.replicas": "2"}
        desk.lead(1)
        assert await code(desk) is ErrorCode.NOT_ENOUGH_REPLICAS
        assert desk.replica().log.log_end_offset == 0

    run_story(story)


def test_epochs_are_checked() -> None:
    async def story(desk: Desk) -> None:
        desk.lead(1)
        open_transaction(desk, epoch=4)
        assert await code(desk, marker(epoch=3)) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert await code(desk, marker(epoch=4, version=2)) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert is_open(desk)
        assert await code(desk, marker(epoch=5, version=2)) is NONE
        assert await code(desk, marker(epoch=6, coordinator_epoch=2)) is ErrorCode.TRANSACTION_COORDINATOR_FENCED
        assert len(markers_of(desk)) == 1

    run_story(story)


def test_marker_can_be_written_again() -> None:
    """KAFKA-19999: the coordinator did not get the answer."""

    async def story(desk: Desk) -> None:
        desk.lead(1)
        open_transaction(desk)
        for _ in range(3):
            assert await code(desk, marker(epoch=1, version=2)) is NONE

    run_story(story)


def test_recovering_leader_writes_markers() -> None:
    """transactions.md X62: it waits for them before it serves, and has no in-sync follower yet."""

    async def story(desk: Desk) -> None:
        desk.topic_settings = {"min.insync.replicas": "2"}
        desk.lead(1)
        assert await code(desk) is ErrorCode.NOT_ENOUGH_REPLICAS
        desk.lead(2, isr=(1,), leader_recovery_state=RECOVERING)
        ends = desk.markers.end(TOPIC, 0, MarkerToWrite((7, 1), 0, False, 2))
        assert not isinstance(ends, ErrorCode), "it is committed once there are in-sync followers"
        assert desk.replica().log.log_end_offset == 1
        asyncio.ensure_future(ends).cancel()

    run_story(story)


def test_disk_that_fails_is_reported() -> None:
    async def story(desk: Desk) -> None:
        desk.lead(1)
        desk.append()
        desk.disk.fail("write", ".log", errno.ENOSPC)
        assert await code(desk) is ErrorCode.KAFKA_STORAGE_ERROR

    run_story(story)


def test_topic_with_flush_messages_is_flushed_first() -> None:
    async def story(desk: Desk) -> None:
        desk.topic_settings = {"flush.messages": "1"}
        desk.lead(1)
        assert await code(desk) is NONE
        assert desk.replica().log.recovery_point == 1

    run_story(story)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (NONE, NONE),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_EPOCH),
    ],
)
def test_offsets_are_ended_by_the_coordinator_of_groups(given: ErrorCode, expected: ErrorCode) -> None:
    async def story(desk: Desk) -> None:
        desk.group_code = given
        desk.add_topic(topic_image(CONSUMER_OFFSETS_TOPIC, partition((1,)), number=99))
        assert await code(desk, marker(CONSUMER_OFFSETS_TOPIC, epoch=7, version=2)) is expected
        assert desk.ended_in_groups == [(0, (PRODUCER, 7), 3, True, 2)]
        assert await code(desk, marker(CONSUMER_OFFSETS_TOPIC, 5)) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    run_story(story)
