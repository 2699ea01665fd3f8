"""KIP-320, sentence by sentence, the broker side: epochs fence requests, and fetchers learn the divergence point.

`§` names the section of the KIP, a number such as E2 the rule of `docs/rules/epochs.md`. Each test calls a
broker's real handlers over real logs. Followers are tested in `tests/replica/test_follower.py` and
`test_fetcher.py`.

The consumer side is in `test_kip320_consumer.py`.
"""

from __future__ import annotations

from typing import Any

import pytest

from fenceline.errors import ErrorCode
from fenceline.records.batch import iter_headers
from fenceline.wire.fetch import FetchedPartition
from tests.node.desk import RECOVERING, Desk, run_story, turns

FENCED, UNKNOWN = ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH
OUT_OF_RANGE, NOT_LEADER = ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.NOT_LEADER_OR_FOLLOWER

FETCH_VERSIONS = [9, 11, 12, 13, 15, 16, 17, 18]
"""With a leader epoch."""


def _table(desk: Desk) -> None:
    """The log of PartitionTest.testLastFetchedOffsetValidation: 0@0, 3@2, 4@8, 7@13, 9@14, end 17, led in 10 (E12)."""
    for epoch, records in ((0, 2), (3, 6), (4, 5), (7, 1), (9, 3), (10, 0)):
        desk.lead(epoch, replicas=(1, 2), isr=(1,))
        desk.append(records)
    replica = desk.replica()
    assert replica.log.epochs.entries == ((0, 0), (3, 2), (4, 8), (7, 13), (9, 14), (10, 17))
    assert replica.high_watermark == replica.log.log_end_offset == 17


# -- § Leader epoch validation: fencing ----------------------------------------------------------------------------


@pytest.mark.parametrize("version", FETCH_VERSIONS)
@pytest.mark.parametrize(("epoch", "code"), [(-1, 0), (4, FENCED), (5, 0), (6, UNKNOWN)])
@pytest.mark.parametrize("role", ["leader", "follower"])
def test_fetch_with_another_epoch_is_rejected(version: int, epoch: int, code: int, role: str) -> None:
    """E1-E2; FetchRequestTest.testCurrentEpochValidation, PartitionTest.testLeaderEpochValidationOnLeader, OnFollower.

    A consumer that knows of followers (v11) is served by a follower; older ones must use the leader.
    """

    async def story(desk: Desk) -> None:
        (desk.lead if role == "leader" else desk.follow)(5)
        expected = code or (NOT_LEADER if role == "follower" and version < 11 else 0)
        assert desk.fetched(version=version, current_leader_epoch=epoch).error_code == expected

    run_story(story)


@pytest.mark.parametrize(("epoch", "code"), [(-1, 0), (4, FENCED), (5, 0), (6, UNKNOWN)])
@pytest.mark.parametrize("role", ["leader", "follower"])
@pytest.mark.parametrize("api", ["latest", "earliest", "time", "epoch end"])
def test_offset_and_epoch_lookups_with_another_epoch_are_rejected(epoch: int, code: int, role: str, api: str) -> None:
    """E2-E3, L5-L6; PartitionTest.testFetchOffsetForTimestampEpochValidation*, testOffsetForLeaderEpochValidation*."""

    async def story(desk: Desk) -> None:
        (desk.lead if role == "leader" else desk.follow)(5)
        if api == "epoch end":
            answer = await desk.epoch_end(0, current=epoch)
        else:
            answer = await desk.list_offset({"latest": -1, "earliest": -2, "time": 5}[api], epoch=epoch)
        assert answer.error_code == (code or (NOT_LEADER if role == "follower" else 0))

    run_story(story)


def test_old_versions_without_an_epoch_are_not_fenced() -> None:
    """§ Compatibility; E1: Fetch below 9, ListOffsets below 4."""

    async def story(desk: Desk) -> None:
        desk.lead(5)
        assert desk.fetched(version=8, current_leader_epoch=3).error_code == 0
        assert (await desk.list_offset(version=3)).error_code == 0

    run_story(story)


def test_first_epoch_is_checked_like_any_other() -> None:
    """E5."""

    async def story(desk: Desk) -> None:
        desk.lead(0)
        assert desk.fetched(current_leader_epoch=0).error_code == 0
        assert desk.fetched(current_leader_epoch=1).error_code == UNKNOWN
        desk.lead(1)
        assert desk.fetched(current_leader_epoch=0).error_code == FENCED

    run_story(story)


@pytest.mark.parametrize(("code", "number"), [(FENCED, 74), (UNKNOWN, 75)])
def test_error_codes_on_the_wire(code: ErrorCode, number: int) -> None:
    """§ Public Interfaces; gaps.md G1-G2: 75, not 76, and one name for 74."""
    assert code == number


def test_epoch_is_checked_before_leadership_and_offsets() -> None:
    """E2: out of range offsets, readers that are no replicas and a lost role are checked after it."""

    async def story(desk: Desk) -> None:
        desk.lead(5)
        assert desk.fetched(99, current_leader_epoch=4).error_code == FENCED
        assert desk.fetched(99, current_leader_epoch=6).error_code == UNKNOWN
        assert desk.fetched(0, replica_id=9, current_leader_epoch=4).error_code == FENCED
        desk.follow(6)
        assert desk.fetched(0, replica_id=2, current_leader_epoch=5).error_code == FENCED
        assert desk.fetched(0, replica_id=2, current_leader_epoch=6).error_code == NOT_LEADER

    run_story(story)


def test_partition_lookup_precedes_the_epoch_check() -> None:
    """E4: unknown, and known but not hosted here."""

    async def story(desk: Desk) -> None:
        desk.lead(5)
        assert desk.fetched(index=7, current_leader_epoch=9).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        desk.tell(replicas=(2, 3), isr=(2, 3), leader=2, leader_epoch=6)
        assert desk.fetched(current_leader_epoch=9).error_code == NOT_LEADER
        assert (await desk.epoch_end(0, current=9)).error_code == NOT_LEADER
        desk.delete_topic()
        assert desk.fetched(current_leader_epoch=9).error_code == ErrorCode.UNKNOWN_TOPIC_ID
        named = desk.fetched(version=12, current_leader_epoch=9)
        assert named.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    run_story(story)


def test_offline_partition_reports_its_error() -> None:
    """E4."""

    async def story(desk: Desk) -> None:
        replica = desk.lead(5)
        desk.partitions.set_offline(replica.topic_partition, "its disk is gone")
        assert desk.fetched(current_leader_epoch=9).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert (await desk.list_offset(epoch=9)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert (await desk.epoch_end(0, current=9)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert (await desk.delete_records(0)).error_code == ErrorCode.KAFKA_STORAGE_ERROR

    run_story(story)


@pytest.mark.parametrize("version", [9, 12, 16])
def test_session_is_fenced_by_the_epoch_that_opened_it(version: int) -> None:
    """E5; FetchRequestTest.testEpochValidationWithinFetchSession: until the partition is included again."""

    async def story(desk: Desk) -> None:
        desk.lead(5)
        asked = desk.wanted(version=version, current_leader_epoch=5)
        opened = desk.fetch(asked, version=version, session_epoch=0).response
        assert [each.error_code for each in opened.partitions] == [0]

        def go_on(epoch: int, *wanted: Any) -> list[int]:
            answer = desk.fetch(*wanted, version=version, session_id=opened.session_id, session_epoch=epoch)
            return [each.error_code for each in answer.response.partitions]

        assert go_on(1) == []
        desk.lead(6)
        assert go_on(2) == [FENCED]
        assert go_on(3) == [FENCED], "an error is returned on every fetch"
        assert go_on(4, desk.wanted(version=version, current_leader_epoch=7)) == [UNKNOWN]
        assert go_on(5, desk.wanted(version=version, current_leader_epoch=6)) == [0]
        assert go_on(6) == []

    run_story(story)


@pytest.mark.parametrize("reader", [{}, {"replica_id": 2, "replica_epoch": 102}])
@pytest.mark.parametrize("in_session", [False, True])
@pytest.mark.parametrize("change", ["epoch", "role", "recovering", "deleted"])
def test_parked_fetch_is_fenced_immediately(reader: dict[str, int], in_session: bool, change: str) -> None:
    """E7; DelayedFetchTest.testFetchWithFencedEpoch, testNotLeaderOrFollower."""

    async def story(desk: Desk) -> None:
        desk.lead(5, isr=(1, 2))
        wanted = desk.wanted(current_leader_epoch=5)
        waits: dict[str, Any] = {"max_wait_ms": 60_000, **reader}
        if in_session:
            opened = desk.fetch(wanted, session_epoch=0, **reader).response
            parked = desk.fetch(session_id=opened.session_id, session_epoch=1, **waits)
        else:
            parked = desk.fetch(wanted, **waits)
        assert parked.is_pending
        match change:
            case "epoch":
                desk.lead(6, isr=(1, 2))
            case "role":
                desk.follow(6)
            case "recovering":
                desk.lead(6, leader_recovery_state=RECOVERING)
            case _:
                desk.delete_topic()
        gone = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if in_session else ErrorCode.UNKNOWN_TOPIC_ID
        codes = [each.error_code for each in (await parked.later()).partitions]
        assert codes == [gone if change == "deleted" else FENCED]

    run_story(story)


def test_parked_fetch_without_an_epoch_is_answered_when_the_leader_moves() -> None:
    """E7, E3: for a replica; a consumer that may read from followers keeps waiting."""

    async def story(desk: Desk) -> None:
        desk.lead(5, isr=(1, 2))
        replica = desk.fetch(desk.wanted(), max_wait_ms=60_000, replica_id=2, replica_epoch=102)
        consumer = desk.fetch(desk.wanted(), max_wait_ms=60_000)
        desk.follow(6)
        assert [each.error_code for each in (await replica.later()).partitions] == [NOT_LEADER]
        await turns()
        assert consumer.is_pending
        consumer.abandon()

    run_story(story)


def test_timestamp_lookup_is_fenced_again_before_answering() -> None:
    """E7: a thread reads the log, and the leader may change meanwhile."""

    async def story(desk: Desk) -> None:
        desk.lead(5)
        desk.append(3)
        looking = desk.loop.create_task(desk.list_offset(1, epoch=5))
        await turns(3)
        desk.lead(6)
        assert (await looking).error_code == FENCED
        looking = desk.loop.create_task(desk.list_offset(1))
        await turns(3)
        desk.follow(7)
        assert (await looking).error_code == NOT_LEADER

    run_story(story)


# -- § Leader hints (KIP-951 extends KIP-320) ----------------------------------------------------------


@pytest.mark.parametrize("listener", ["PLAINTEXT", "OUTSIDE"])
def test_request_to_a_former_leader_returns_a_leader_hint(listener: str) -> None:
    """E6: on 6 and 74, from version 16 on, with the address on the reader's own listener."""

    async def story(desk: Desk) -> None:
        desk.follow(5, leader=3)
        host = {"PLAINTEXT": "host3", "OUTSIDE": "public3"}[listener]
        for version, epoch, hint in ((16, 4, (3, 5)), (17, 4, (3, 5)), (15, 4, None), (17, 6, None), (17, 5, None)):
            wanted = desk.wanted(version=version, current_leader_epoch=epoch)
            answer = desk.fetch(wanted, version=version, listener=listener).response
            assert answer.partitions[0].current_leader == hint
            assert [each.host for each in answer.node_endpoints] == ([host] if hint else [])

    run_story(story)


# -- § Truncation detection: fetches carry the last epoch ----------------------------------------------------------


def _outcome(fetched: FetchedPartition) -> Any:
    return fetched.error_code or fetched.diverging_epoch or "ok"


@pytest.mark.parametrize("reader", [{}, {"replica_id": 2, "replica_epoch": 102}])
@pytest.mark.parametrize(
    ("last_epoch", "offset", "outcome"),
    [
        (2, 5, (0, 2)),
        (0, 4, (0, 2)),
        (6, 6, (4, 13)),
        (5, 9, (4, 13)),
        (10, 18, (10, 17)),
        (0, 2, "ok"),
        (7, 14, "ok"),
        (9, 17, "ok"),
        (10, 17, "ok"),
        (11, 5, OUT_OF_RANGE),
        (-1, 5, "ok"),
        (-1, 18, OUT_OF_RANGE),
    ],
)
def test_divergence_point(reader: dict[str, int], last_epoch: int, offset: int, outcome: Any) -> None:
    """E8-E12; PartitionTest.testLastFetchedOffsetValidation, FetchRequestTest.testLastFetchedEpochValidation."""

    async def story(desk: Desk) -> None:
        _table(desk)
        assert _outcome(desk.fetched(offset, last_fetched_epoch=last_epoch, **reader)) == outcome

    run_story(story)


@pytest.mark.parametrize(
    ("last_epoch", "offset", "outcome"),
    [(2, 8, (2, 5)), (0, 5, "ok"), (3, 5, "ok"), (0, 0, OUT_OF_RANGE)],
)
def test_divergence_point_above_the_log_start(last_epoch: int, offset: int, outcome: Any) -> None:
    """E9, E12: after the log start moved to 5."""

    async def story(desk: Desk) -> None:
        _table(desk)
        await desk.delete_records(5, timeout_ms=0)
        assert _outcome(desk.fetched(offset, last_fetched_epoch=last_epoch)) == outcome

    run_story(story)


def test_below_the_log_start_is_out_of_range_even_after_divergence() -> None:
    """E9."""

    async def story(desk: Desk) -> None:
        _table(desk)
        await desk.delete_records(5, timeout_ms=0)
        assert desk.fetched(4, last_fetched_epoch=2).error_code == OUT_OF_RANGE

    run_story(story)


def test_diverging_response_has_no_records_but_all_other_fields() -> None:
    """E10."""

    async def story(desk: Desk) -> None:
        _table(desk)
        fetched = desk.fetched(5, last_fetched_epoch=2)
        assert (fetched.error_code, fetched.diverging_epoch, len(fetched.records or b"")) == (0, (0, 2), 0)
        assert (fetched.high_watermark, fetched.last_stable_offset, fetched.log_start_offset) == (17, 17, 0)
        assert desk.fetched(2, last_fetched_epoch=0).diverging_epoch is None

    run_story(story)


def test_divergence_is_answered_immediately_and_updates_no_follower_state() -> None:
    """E10, E31: no wait, and the follower does not count as caught up."""

    async def story(desk: Desk) -> None:
        desk.lead(3, isr=(1, 2))
        desk.append(4)
        desk.lead(5, isr=(1, 2))
        leader = desk.replica().leader
        assert leader is not None
        progress = leader.followers[2]
        before = (progress.log_end_offset, progress.last_fetch_ms)
        desk.clock.ms += 10
        wanted = desk.wanted(6, last_fetched_epoch=4, current_leader_epoch=5)
        answer = desk.fetch(wanted, replica_id=2, replica_epoch=102, max_wait_ms=60_000)
        assert answer.response.partitions[0].diverging_epoch == (3, 4)
        assert (progress.log_end_offset, progress.last_fetch_ms) == before

    run_story(story)


def test_session_reports_divergence_on_every_fetch() -> None:
    """E10 with KIP-227: returned until the reader fetches from another offset."""

    async def story(desk: Desk) -> None:
        _table(desk)
        asked = desk.wanted(5, last_fetched_epoch=2)
        opened = desk.fetch(asked, session_epoch=0).response
        for epoch in (1, 2):
            answer = desk.fetch(session_id=opened.session_id, session_epoch=epoch, max_wait_ms=60_000)
            assert [each.diverging_epoch for each in answer.response.partitions] == [(0, 2)]

    run_story(story)


def test_diverging_parked_fetch_is_answered_immediately() -> None:
    """E7; DelayedFetchTest.testDivergingEpoch: the leader's log changed while the fetch was parked."""

    async def story(desk: Desk) -> None:
        desk.follow(3, leader=2)
        desk.copied(4, epoch=3, high_watermark=4)
        parked = desk.fetch(desk.wanted(4, last_fetched_epoch=3), max_wait_ms=60_000)
        assert parked.is_pending
        replica = desk.replica()
        replica.is_being_cut = True
        replica.log.truncate_to(2)
        replica.is_being_cut = False
        desk.follow(4, leader=2)
        assert (await parked.later()).partitions[0].diverging_epoch == (3, 2)

    run_story(story)


@pytest.mark.parametrize(
    ("offset", "replica_id", "outcome"),
    [(0, -1, 2), (2, -1, 0), (3, -1, 0), (5, -1, 0), (6, -1, "out"), (2, 2, 3), (5, 2, 0), (6, 2, "out")],
)
def test_read_limit_of_each_reader(offset: int, replica_id: int, outcome: int | str) -> None:
    """E11, E43: between the limit and the log end the result is empty, above the log end out of range."""

    async def story(desk: Desk) -> None:
        desk.lead(3, isr=(1, 2, 3))
        desk.append(5)
        for follower in (2, 3):
            desk.follower_fetched(follower, 2)
        fetched = desk.fetched(offset, replica_id=replica_id, replica_epoch=102 if replica_id > 0 else -1)
        if outcome == "out":
            assert fetched.error_code == OUT_OF_RANGE
        else:
            assert (fetched.error_code, sum(1 for _ in iter_headers(fetched.records or b""))) == (0, outcome)

    run_story(story)


# -- § OffsetForLeaderEpoch ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [2, 3, 4])
@pytest.mark.parametrize(
    ("asked", "epoch", "end"),
    [
        (-1, -1, -1),
        (0, 0, 2),
        (1, 0, 2),
        (2, 0, 2),
        (3, 3, 8),
        (4, 4, 13),
        (5, 4, 13),
        (6, 4, 13),
        (7, 7, 14),
        (8, 7, 14),
        (9, 9, 17),
        (10, 10, 17),
        (11, -1, -1),
    ],
)
def test_epoch_end_offset(version: int, asked: int, epoch: int, end: int) -> None:
    """§ OffsetForLeaderEpoch; E13, E21, asked of the leader."""

    async def story(desk: Desk) -> None:
        _table(desk)
        answer = await desk.epoch_end(asked, current=10, version=version)
        assert (answer.error_code, answer.leader_epoch, answer.end_offset) == (0, epoch, end)

    run_story(story)


def test_epoch_end_offset_below_the_first_known_epoch() -> None:
    """E13d: the requested epoch is returned with the start of the first known one."""

    async def story(desk: Desk) -> None:
        desk.lead(0)
        desk.append(2)
        desk.lead(4)
        desk.append(3)
        await desk.delete_records(3, timeout_ms=0)
        answer = await desk.epoch_end(2)
        assert (answer.leader_epoch, answer.end_offset) == (2, 3)

    run_story(story)


def test_an_error_has_no_epoch_and_no_offset() -> None:
    """E21; OffsetsForLeaderEpochRequestTest.testOffsetsForLeaderEpochErrorCodes: 3 unknown, 6 not here."""

    async def story(desk: Desk) -> None:
        desk.lead(5)
        codes = {"index 9": await desk.epoch_end(0, index=9), "fenced": await desk.epoch_end(0, current=4)}
        desk.follow(6)
        codes["follower"] = await desk.epoch_end(0)
        assert {name: each.error_code for name, each in codes.items()} == {
            "index 9": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            "fenced": FENCED,
            "follower": NOT_LEADER,
        }
        assert all((each.leader_epoch, each.end_offset) == (-1, -1) for each in codes.values())

    run_story(story)


# -- § Leader epochs in responses ----------------------------------------------------------------------------------


def test_offsets_are_returned_with_their_epoch() -> None:
    """§ ListOffsets; L17-L18, L22; ListOffsetsRequestTest.testResponseIncludesLeaderEpoch."""

    async def story(desk: Desk) -> None:
        desk.lead(2)
        desk.append(timestamps=(10, 11))
        desk.lead(4)
        desk.append(timestamps=(12,))
        desk.lead(7)
        found = {at: await desk.list_offset(at) for at in (-1, -2, -3, 11, 12, 99)}
        assert {at: (each.offset, each.leader_epoch) for at, each in found.items()} == {
            -1: (3, 7),
            -2: (0, 2),
            -3: (2, 4),
            11: (1, 2),
            12: (2, 4),
            99: (-1, -1),
        }

    run_story(story)


@pytest.mark.parametrize("version", range(1, 12))
def test_epoch_is_returned_from_version_4(version: int) -> None:
    """L24; ListOffsetsRequestTest.testResponseDefaultOffsetAndLeaderEpochForAllVersions."""

    async def story(desk: Desk) -> None:
        desk.lead(2)
        desk.append(3)
        found = await desk.list_offset(-1, version=version)
        assert (found.error_code, found.offset, found.timestamp) == (0, 3, -1)
        assert getattr(found, "leader_epoch", None) == (2 if version >= 4 else None)
        missing = await desk.list_offset(-1, version=version, index=9)
        assert (missing.offset, missing.timestamp) == (-1, -1)
        assert getattr(missing, "leader_epoch", None) == (-1 if version >= 4 else None)

    run_story(story)


def test_records_carry_the_epoch_of_the_appending_leader() -> None:
    """§ Motivation; E17: the log stores the epoch of each record."""

    async def story(desk: Desk) -> None:
        desk.lead(2)
        desk.append(1)
        desk.lead(5)
        desk.append(1)
        fetched = desk.fetched(0)
        assert [header.leader_epoch for header in iter_headers(fetched.records or b"")] == [2, 5]

    run_story(story)


# -- § Followers: state updates by their fetches -------------------------------------------------------------------


def test_fetch_from_a_non_replica_is_rejected() -> None:
    """E30; PartitionTest.testFetchFromUnrecognizedFollower, FetchRequestTest.testFetchRequestToNonReplica."""

    async def story(desk: Desk) -> None:
        desk.lead(5)
        assert desk.fetched(replica_id=9, current_leader_epoch=5).error_code == UNKNOWN
        assert desk.fetched(replica_id=9).error_code == NOT_LEADER

    run_story(story)


def test_fetch_with_a_stale_broker_epoch_is_rejected() -> None:
    """E31; PartitionTest.testFenceFollowerFetchWithStaleBrokerEpoch, also within a session."""

    async def story(desk: Desk) -> None:
        desk.lead(5, isr=(1, 2))
        wanted = desk.wanted(current_leader_epoch=5)
        follower = {"replica_id": 2, "replica_epoch": 102}
        opened = desk.fetch(wanted, session_epoch=0, **follower).response
        for epoch in (1, 2):
            answer = desk.fetch(session_id=opened.session_id, session_epoch=epoch, **follower)
            assert answer.response.partitions == []
        desk.tell_broker(2, epoch=202)
        answer = desk.fetch(session_id=opened.session_id, session_epoch=3, max_wait_ms=60_000, **follower)
        assert [each.error_code for each in answer.response.partitions] == [NOT_LEADER]

    run_story(story)


def test_only_an_arriving_fetch_updates_follower_state() -> None:
    """E7, E31: a parked fetch is read again without a new request of the follower."""

    async def story(desk: Desk) -> None:
        desk.lead(5, isr=(1, 2))
        leader = desk.replica().leader
        assert leader is not None
        parked = desk.fetch(desk.wanted(), replica_id=2, replica_epoch=102, max_wait_ms=60_000)
        fetched_ms = leader.followers[2].last_fetch_ms
        desk.clock.ms += 50
        desk.append()
        assert len((await parked.later()).partitions[0].records or b"") > 0
        assert leader.followers[2].last_fetch_ms == fetched_ms
        assert desk.replica().high_watermark == 0
        desk.follower_fetched(2, 1)
        assert desk.replica().high_watermark == 1

    run_story(story)


@pytest.mark.parametrize(("in_epoch", "joins"), [(2, False), (3, True)])
def test_follower_joins_the_isr_after_reaching_the_leader_epoch(in_epoch: int, joins: bool) -> None:
    """E35, E64-iv; PartitionTest.testFollowerDoesNotJoinISRUntilCaughtUpToOffsetWithinCurrentLeaderEpoch."""

    async def story(desk: Desk) -> None:
        desk.lead(1)
        desk.append(3)
        desk.lead(2)
        desk.follower_fetched(2, in_epoch)
        await turns()
        assert bool(desk.controller.asked) is joins

    run_story(story)


# -- § Metadata ----------------------------------------------------------------------------------------------------


def test_leaderless_partition_still_fences_by_epoch() -> None:
    """E60 and E2: a replica of a leaderless partition fences by the epoch that it knows."""

    async def story(desk: Desk) -> None:
        desk.tell(leader=-1, leader_epoch=6, isr=(2,))
        assert desk.fetched(current_leader_epoch=5).error_code == FENCED
        assert desk.fetched(current_leader_epoch=7).error_code == UNKNOWN
        assert desk.fetched(version=9, current_leader_epoch=6).error_code == NOT_LEADER

    run_story(story)


def test_delete_records_requires_leadership() -> None:
    """§ Other requests: DeleteRecords and Produce carry no epoch (gaps.md G14d); the leadership alone decides."""

    async def story(desk: Desk) -> None:
        desk.follow(5)
        assert (await desk.delete_records(0)).error_code == NOT_LEADER
        answer = desk.produced()
        assert answer.responses[0].partition_responses[0].error_code == NOT_LEADER

    run_story(story)
