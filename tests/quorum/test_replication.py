"""Fetching, from both sides (raft.md Q24-Q36; snapshots.md N24-N39; since_4_0.md K12; gaps.md G11, G25, G28, G29)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fenceline.errors import ErrorCode, InternalError, PeerError
from fenceline.quorum.duties import (
    AdvanceHighWatermark,
    AppendFetched,
    BeginDownload,
    DropDownload,
    Lead,
    LoadSnapshot,
    LogLine,
    QuorumAnswer,
    ServePiece,
    ServeRecords,
    Truncate,
    VerifyAndFreeze,
    WritePiece,
)
from fenceline.quorum.election_state import ElectionState
from fenceline.quorum.fetches import Diverging, NeedsSnapshot, Valid, Verdict, validate_offset_and_epoch
from fenceline.quorum.log_view import QuorumEpochEnd, SnapshotId
from fenceline.quorum.messages import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    DescribeQuorumRequest,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    QuorumFetchRequest,
    QuorumFetchResponse,
)
from tests.quorum.machine import Machine
from tests.quorum.memory_log import MemoryLog, voter

# -- the leader --------------------------------------------------------------------------------------------------------


def _leader(**options: Any) -> Machine:
    machine = Machine(**options)
    machine.to_leader()
    return machine


def test_the_high_watermark_needs_a_majority_and_this_epoch() -> None:
    """Q32, Q33."""
    machine = _leader(history=(1, 1), election=ElectionState(1))
    start = 2
    machine.ask(machine.fetch(2, start, 1))
    assert machine.found(AdvanceHighWatermark) == [], "old records alone are not committed"
    machine.ask(machine.fetch(2))
    end = machine.log.end_offset
    assert machine.found(AdvanceHighWatermark) == [AdvanceHighWatermark(end)]
    assert machine.found(Lead) == [Lead(2, start)]
    machine.quorum.check_leads(2)
    for epoch in (1, 0):
        with pytest.raises(PeerError):
            machine.quorum.check_leads(epoch)


def test_the_leaders_own_tail_counts_once_flushed() -> None:
    """G35."""
    machine = _leader()
    machine.ask(machine.fetch(2))
    before = machine.quorum.high_watermark
    machine.log.append(1, ["x"])
    machine.do(machine.quorum.appended(machine.now_ms))
    machine.ask(machine.fetch(2))
    assert machine.quorum.high_watermark == before
    machine.flush()
    assert machine.quorum.high_watermark == machine.log.end_offset


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"cluster_id": "other"}, ErrorCode.INCONSISTENT_CLUSTER_ID),
        ({"current_leader_epoch": 0}, ErrorCode.FENCED_LEADER_EPOCH),
        ({"current_leader_epoch": 2}, ErrorCode.UNKNOWN_LEADER_EPOCH),
        ({"max_wait_ms": -1}, ErrorCode.INVALID_REQUEST),
        ({"fetch_offset": -1}, ErrorCode.INVALID_REQUEST),
        ({"last_fetched_epoch": -1}, ErrorCode.INVALID_REQUEST),
        ({"last_fetched_epoch": 2}, ErrorCode.INVALID_REQUEST),
        ({"replica_id": 1}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_rejected_fetches(changed: dict[str, Any], error: ErrorCode) -> None:
    """Q13, Q14, Q24; the response names the leader."""
    machine = _leader()
    answer = machine.ask(machine.fetch(2, **changed))
    assert error in (answer.error_code, answer.partition_error_code)
    if answer.partition_error_code is not ErrorCode.NONE:
        assert (answer.leader_id, answer.leader_epoch) == (1, 1)
        assert answer.node_endpoints[0].node_id == 1


def test_a_follower_names_the_leader() -> None:
    """Q14."""
    machine = Machine(election=ElectionState(3, leader_id=2))
    answer = machine.ask(machine.fetch(3))
    assert answer.partition_error_code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (answer.leader_id, answer.node_endpoints[0].port) == (2, 2)
    assert machine.ask(DescribeQuorumRequest()).partition_error_code is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_parked_fetch_ends_with_records_high_watermark_timeout_or_resignation() -> None:
    """Q26, K12, G40."""
    machine = _leader()
    assert machine.ask(machine.fetch(2, high_watermark=None)) is None
    machine.log.append(1, ["x"])
    machine.do(machine.quorum.appended(machine.now_ms))
    assert [duty.offset for duty in machine.found(ServeRecords)] == [machine.log.end_offset - 1]
    machine.flush()

    assert machine.ask(machine.fetch(3, high_watermark=99)) is None
    assert machine.ask(machine.fetch(4, high_watermark=0)).high_watermark == machine.log.end_offset
    machine.pass_time(500)
    assert [duty.message.partition_error_code for duty in machine.found(QuorumAnswer)] == [ErrorCode.NONE]  # type: ignore[union-attr]

    assert machine.ask(machine.fetch(3, high_watermark=99)) is None
    machine.do(machine.quorum.resign(machine.now_ms))
    ended = machine.found(QuorumAnswer)[0].message
    assert isinstance(ended, QuorumFetchResponse)
    assert ended.partition_error_code is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_new_records_are_read_once_and_sent_to_voters_first() -> None:
    """Q26: their flush commits. Who waits at another offset, or for fewer bytes, has a read of its own."""
    machine = _leader()
    machine.log.append(1, ["x"])
    machine.do(machine.quorum.appended(machine.now_ms))
    machine.flush()
    end = machine.log.end_offset
    for node_id, size in ((11, 100), (2, 100), (12, 50), (13, 100), (3, 100)):
        fetch = machine.fetch(node_id, end, high_watermark=None, max_bytes=size)
        machine.do(machine.quorum.request(machine.now_ms, node_id, fetch))
    machine.log.append(1, ["y"])
    machine.do(machine.quorum.appended(machine.now_ms))
    assert [(duty.tokens, duty.offset, duty.max_bytes) for duty in machine.found(ServeRecords)] == [
        ((2, 3, 11, 13), end, 100),
        ((12,), end, 50),
    ]


def test_parked_fetches_are_bounded() -> None:
    machine = _leader(max_parked_fetches=2)
    for node_id in (11, 12, 13):
        machine.do(machine.quorum.request(machine.now_ms, node_id, machine.fetch(node_id, high_watermark=None)))
    assert [duty.token for duty in machine.found(QuorumAnswer)] == [11]
    machine.do(machine.quorum.request(machine.now_ms, "again", machine.fetch(13, high_watermark=None)))
    assert [duty.token for duty in machine.found(QuorumAnswer)] == [13], "a replica has one parked fetch"


def test_a_voter_that_does_not_fetch_is_notified_again() -> None:
    """Q21, K11."""
    machine = _leader()
    first = machine.sent(BeginQuorumEpochRequest)
    assert first.keys() == {2, 3}
    assert first[3].voter_directory_id == voter(3).voter_directory_id
    ids = [machine.request_id(node_id, BeginQuorumEpochRequest) for node_id in (2, 3)]
    for request_id in ids:
        machine.reply(request_id, BeginQuorumEpochResponse(leader_epoch=1))
    machine.now_ms += 900
    machine.ask(machine.fetch(2, high_watermark=None))
    machine.pass_time(100)
    assert machine.sent(BeginQuorumEpochRequest).keys() == {3}
    machine.pass_time(900)
    assert machine.sent(BeginQuorumEpochRequest).keys() == {2}


def test_describe_quorum() -> None:
    """Q37."""
    machine = _leader()
    machine.ask(machine.fetch(2))
    machine.ask(machine.fetch(7))
    answer = machine.ask(DescribeQuorumRequest())
    end = machine.log.end_offset
    assert (answer.leader_id, answer.leader_epoch, answer.high_watermark) == (1, 1, end)
    voters = {each.replica_id: each for each in answer.current_voters}
    assert [voters[each].log_end_offset for each in (1, 2, 3)] == [end, end, -1]
    assert voters[1].last_fetch_timestamp == machine.now_ms, "its own: now, as in Kafka"
    assert voters[1].last_caught_up_timestamp == voters[2].last_caught_up_timestamp == machine.now_ms
    assert [each.replica_id for each in answer.observers] == [7]


def _judged() -> MemoryLog:
    """Epochs 1 at 0, 3 at 5, 4 at 8, end 12."""
    log = MemoryLog()
    for epoch, count in ((1, 5), (3, 3), (4, 4)):
        log.append(epoch, range(count))
    return log


@pytest.mark.parametrize(
    ("offset", "epoch", "verdict"),
    [
        (0, 0, Valid()),
        (5, 1, Valid()),
        (12, 4, Valid()),
        (6, 1, Diverging(QuorumEpochEnd(1, 5))),
        (6, 2, Diverging(QuorumEpochEnd(1, 5))),
        (13, 4, Diverging(QuorumEpochEnd(4, 12))),
        (9, 7, Diverging(QuorumEpochEnd(4, 12))),
    ],
)
def test_verdicts_on_a_whole_log(offset: int, epoch: int, verdict: Verdict) -> None:
    """N26, N27, E13."""
    assert validate_offset_and_epoch(_judged(), offset, epoch) == verdict


@pytest.mark.parametrize(
    ("offset", "epoch", "verdict"),
    [
        (0, 0, NeedsSnapshot(SnapshotId(7, 3))),
        (6, 3, NeedsSnapshot(SnapshotId(7, 3))),
        (7, 1, NeedsSnapshot(SnapshotId(7, 3))),
        (8, 2, NeedsSnapshot(SnapshotId(7, 3))),
        (7, 3, Valid()),
        (9, 3, Diverging(QuorumEpochEnd(3, 8))),
        (12, 4, Valid()),
    ],
)
def test_verdicts_on_a_log_that_starts_at_a_snapshot(offset: int, epoch: int, verdict: Verdict) -> None:
    """Q25, N24, N26."""
    log = _judged()
    snapshot_id = log.write_snapshot(7)
    assert snapshot_id == SnapshotId(7, 3)
    log.forget_before(snapshot_id)
    assert validate_offset_and_epoch(log, offset, epoch) == verdict


def test_a_new_replica_gets_a_snapshot_although_the_log_is_whole() -> None:
    """N24; it is not counted (N25)."""
    machine = _leader(history=(1, 1, 1), election=ElectionState(1))
    machine.log.write_snapshot(2)
    answer = machine.ask(machine.fetch(2, 0))
    assert answer.snapshot_id == SnapshotId(2, 1)
    described = machine.ask(DescribeQuorumRequest())
    assert [each.log_end_offset for each in described.current_voters if each.replica_id == 2] == [-1]


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"snapshot_id": SnapshotId(9, 9)}, ErrorCode.SNAPSHOT_NOT_FOUND),
        ({"snapshot_id": SnapshotId(0, 0)}, ErrorCode.SNAPSHOT_NOT_FOUND),
        ({"position": -1}, ErrorCode.POSITION_OUT_OF_RANGE),
        ({"position": 1 << 40}, ErrorCode.POSITION_OUT_OF_RANGE),
        ({"max_bytes": 0}, ErrorCode.INVALID_REQUEST),
        ({"current_leader_epoch": 1}, ErrorCode.FENCED_LEADER_EPOCH),
        ({"current_leader_epoch": 3}, ErrorCode.UNKNOWN_LEADER_EPOCH),
        ({}, ErrorCode.NONE),
    ],
)
def test_snapshot_chunks(changed: dict[str, Any], error: ErrorCode) -> None:
    """N28-N30, G26, G28."""
    machine = _leader(history=(1, 1, 1), election=ElectionState(1))
    snapshot_id = machine.log.write_snapshot(2)
    assert snapshot_id is not None
    ask = replace(FetchSnapshotRequest("c", 2, 2, snapshot_id, 3, 10), **changed)
    answer = machine.ask(ask)
    if error is ErrorCode.NONE:
        (piece,) = machine.found(ServePiece)
        assert (piece.position, piece.max_bytes) == (3, 10)
        assert piece.answer.size == machine.log.snapshot_size(snapshot_id)
    else:
        assert answer.partition_error_code is error
        assert answer.leader_id == 1


# -- the follower ------------------------------------------------------------------------------------------------------


def _follower(**options: Any) -> Machine:
    return Machine(election=ElectionState(3, leader_id=2), **options)


def test_a_follower_appends_flushes_and_fetches_again() -> None:
    """Q28: the high watermark is the leader's, as far as the records are here."""
    machine = _follower(history=(3,))
    assert machine.sent(QuorumFetchRequest)[2].fetch_offset == 1
    machine.fetched(records=machine.entries(3, 2), high_watermark=2)
    assert machine.log.end_offset == 3
    assert machine.found(AdvanceHighWatermark)[-1].offset == 2
    again = machine.sent(QuorumFetchRequest)[2]
    assert (again.fetch_offset, again.last_fetched_epoch, again.high_watermark) == (3, 3, 2)


def test_a_follower_knows_until_when_it_has_all_that_was_committed() -> None:
    """security.md A50: the time when the Fetch was sent counts, not that of its response."""
    machine = _follower(history=(3,))
    assert machine.quorum.caught_up_ms(machine.now_ms) is None
    asked_ms = machine.now_ms
    machine.now_ms += 300
    machine.fetched(high_watermark=5)
    assert machine.quorum.caught_up_ms(machine.now_ms) is None, "there is more than this log has"
    machine.fetched(high_watermark=1)
    assert machine.quorum.caught_up_ms(machine.now_ms) == asked_ms + 300


def test_no_fetch_is_sent_before_the_flush() -> None:
    """Q28."""
    machine = _follower()
    ask = machine.request_id(2, QuorumFetchRequest)
    records = machine.entries(3, 1)
    answer = QuorumFetchResponse(leader_id=2, leader_epoch=3, records=records, high_watermark=1)
    duties = machine.quorum.response(0, ask, answer)
    assert [type(duty) for duty in duties] == [AppendFetched]
    machine.log.append_entry(records[0])
    assert machine.quorum.appended(0) == []
    machine.log.flushed_offset = 1
    machine.do(machine.quorum.flushed(0))
    assert machine.sent(QuorumFetchRequest)[2].fetch_offset == 1
    assert machine.quorum.high_watermark == 1


@pytest.mark.parametrize(
    ("diverging", "end"),
    [(QuorumEpochEnd(1, 1), 1), (QuorumEpochEnd(1, 9), 2), (QuorumEpochEnd(2, 3), 2), (QuorumEpochEnd(0, 0), 0)],
)
def test_a_diverging_log_is_truncated(diverging: QuorumEpochEnd, end: int) -> None:
    """Q29. The log is epochs 1 1 3 3 (ends of 1: 2, of 3: 4)."""
    machine = _follower(history=(1, 1, 3, 3))
    machine.fetched(diverging_epoch=diverging)
    assert machine.found(Truncate) == [Truncate(end)]
    assert machine.sent(QuorumFetchRequest)[2].fetch_offset == end


def test_an_invalid_response_is_reported_and_the_fetch_retried() -> None:
    """G36."""
    machine = _follower(history=(3, 3))
    machine.fetched(diverging_epoch=QuorumEpochEnd(-1, -1))
    assert machine.found(LogLine)
    assert machine.sent(QuorumFetchRequest) == {}
    machine.pass_time(100)
    assert machine.sent(QuorumFetchRequest).keys() == {2}


def test_records_that_cannot_be_appended_are_fetched_again() -> None:
    """K14, G11."""
    machine = _follower()
    machine.do(machine.quorum.append_failed(0, "CRC"))
    assert machine.found(LogLine)


SNAPSHOT = SnapshotId(20, 2)


def _downloading(size: int = 100) -> Machine:
    machine = _follower()
    machine.fetched(snapshot_id=SNAPSHOT)
    assert machine.found(BeginDownload) == [BeginDownload(SNAPSHOT, 2)]
    assert machine.sent(QuorumFetchRequest) == {}
    machine.do(machine.quorum.download_begun(0, SNAPSHOT, 0))
    return machine


def _piece(machine: Machine, **changed: Any) -> None:
    fields: dict[str, Any] = {
        "leader_id": 2,
        "leader_epoch": 3,
        "snapshot_id": SNAPSHOT,
        "size": 100,
        "position": machine.sent(FetchSnapshotRequest)[2].position,
        "unaligned_records": b"p" * 60,
    }
    machine.reply(machine.request_id(2, FetchSnapshotRequest), FetchSnapshotResponse(**(fields | changed)))


def test_a_snapshot_is_fetched_in_chunks() -> None:
    """N33-N36."""
    machine = _downloading()
    _piece(machine)
    assert machine.found(WritePiece) == [WritePiece(SNAPSHOT, 0, b"p" * 60)]
    machine.do(machine.quorum.piece_written(0, SNAPSHOT, 60))
    assert machine.sent(FetchSnapshotRequest)[2].position == 60
    _piece(machine, unaligned_records=b"p" * 40)
    machine.do(machine.quorum.piece_written(0, SNAPSHOT, 100))
    assert machine.found(VerifyAndFreeze) == [VerifyAndFreeze(SNAPSHOT, 100)]
    machine.do(machine.quorum.snapshot_frozen(0, SNAPSHOT))
    assert machine.found(LoadSnapshot) == [LoadSnapshot(SNAPSHOT)]
    machine.log.snapshots[SNAPSHOT] = b'{"chain": "x", "voters": [0, 1, [1, 2, 3], [1001, 1002, 1003]]}'
    machine.log.load_snapshot(SNAPSHOT)
    machine.do(machine.quorum.snapshot_loaded(0))
    assert machine.quorum.high_watermark == 20
    fetch = machine.sent(QuorumFetchRequest)[2]
    assert (fetch.fetch_offset, fetch.last_fetched_epoch) == (20, 2)


@pytest.mark.parametrize(
    "changed",
    [
        {"partition_error_code": ErrorCode.SNAPSHOT_NOT_FOUND, "snapshot_id": SnapshotId(0, 0)},
        {"partition_error_code": ErrorCode.POSITION_OUT_OF_RANGE, "snapshot_id": SnapshotId(0, 0)},
        {"partition_error_code": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION},
        {"snapshot_id": SnapshotId(21, 2)},
        {"position": 7},
        {"unaligned_records": b""},
        {"unaligned_records": b"p" * 101},
    ],
)
def test_an_unexpected_chunk_is_never_fatal(changed: dict[str, Any]) -> None:
    """N34, G25: dropped, and restarted by a Fetch."""
    machine = _downloading()
    _piece(machine, **changed)
    assert machine.found(DropDownload) == [DropDownload(SNAPSHOT)]
    assert machine.found(LogLine)
    machine.pass_time(100)
    assert machine.sent(QuorumFetchRequest).keys() == {2}


@pytest.mark.parametrize("error", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_LEADER_EPOCH])
def test_a_chunk_rejected_for_its_epoch_is_retried_later(error: ErrorCode) -> None:
    """Q15: the downloaded part is kept."""
    machine = _downloading()
    _piece(machine, partition_error_code=error)
    assert machine.duties == []
    machine.pass_time(100)
    assert machine.sent(FetchSnapshotRequest).keys() == {2}


def test_an_incomplete_snapshot_is_fetched_again() -> None:
    """G24."""
    machine = _downloading()
    machine.do(machine.quorum.download_failed(0, SNAPSHOT, "no footer"))
    assert machine.found(DropDownload)
    assert machine.found(LoadSnapshot) == []


@pytest.mark.parametrize(("source", "goes_on"), [(2, True), (3, False)])
def test_a_download_resumes_if_the_same_node_offers_it_again(source: int, goes_on: bool) -> None:
    """G29: after a change of epoch, too."""
    machine = _downloading()
    _piece(machine)
    machine.do(machine.quorum.piece_written(0, SNAPSHOT, 60))
    machine.ask(BeginQuorumEpochRequest("c", source, 4, 1))
    if goes_on:
        assert machine.sent(FetchSnapshotRequest)[source].position == 60
    else:
        machine.fetched(snapshot_id=SNAPSHOT)
        assert machine.found(DropDownload) == [DropDownload(SNAPSHOT)]
        assert machine.found(BeginDownload) == [BeginDownload(SNAPSHOT, 3)]


def test_an_unattached_node_finds_the_leader() -> None:
    """Q30, K11, Q15: the response names it, and the next fetch goes there at once."""
    machine = Machine()
    (asked,) = machine.sent(QuorumFetchRequest)
    answer = QuorumFetchResponse(partition_error_code=ErrorCode.FENCED_LEADER_EPOCH, leader_id=3, leader_epoch=5)
    machine.reply(machine.request_id(asked, QuorumFetchRequest), answer)
    assert machine.sent(QuorumFetchRequest)[3].current_leader_epoch == 5


def test_a_voter_with_another_directory_id_does_not_count() -> None:
    """Q45: with a wiped disk it is not the same voter."""
    machine = _leader()
    machine.ask(machine.fetch(2, replica_directory_id=voter(9).voter_directory_id))
    assert machine.found(AdvanceHighWatermark) == []


def test_fetches_of_a_voter_keep_the_leader_from_resigning() -> None:
    """Q27, Q34: any valid Fetch or FetchSnapshot of a voter's key counts; those of an observer, of an unknown replica
    and rejected ones do not.
    """
    for request, keeps in (
        (lambda machine: machine.fetch(2), True),
        (lambda machine: FetchSnapshotRequest("c", 2, 2, SnapshotId(2, 1), 0, 9, voter(2).voter_directory_id), True),
        (lambda machine: machine.fetch(2, replica_id=-1), False),
        (lambda machine: machine.fetch(9), False),
        (lambda machine: machine.fetch(2, current_leader_epoch=1), False),
        (lambda machine: machine.fetch(2, replica_directory_id=voter(9).voter_directory_id), False),
    ):
        machine = _leader(history=(1, 1, 1), election=ElectionState(1))
        machine.log.write_snapshot(2)
        machine.log.append(2, ["more"])
        began_ms = machine.now_ms
        machine.pass_time(2000)
        machine.do(machine.quorum.request(machine.now_ms, "t", request(machine)))
        machine.now_ms = began_ms
        machine.pass_time(3500)
        assert machine.quorum.is_leader == keeps, request


def test_appends_of_another_epoch_are_rejected() -> None:
    """Q35."""
    machine = _leader()
    epoch = machine.quorum.epoch
    machine.quorum.check_leads(epoch)
    with pytest.raises(PeerError) as refused:
        machine.quorum.check_leads(epoch - 1)
    assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    with pytest.raises(InternalError):
        machine.quorum.check_leads(epoch + 1)
    machine.do(machine.quorum.resign(machine.now_ms))
    with pytest.raises(PeerError):
        machine.quorum.check_leads(epoch)


def test_the_lowest_offset_that_live_replicas_fetch() -> None:
    """G30: replicas that fetched lately, voters or not; one that fetches a snapshot has no offset yet."""
    machine = _leader(history=(1, 1, 1), election=ElectionState(1))
    machine.log.write_snapshot(2)
    assert machine.quorum.slowest_fetch_offset is None
    machine.ask(machine.fetch(2, 3, 1))
    machine.ask(machine.fetch(9, 2, 1))
    assert machine.quorum.slowest_fetch_offset == 2
    machine.ask(FetchSnapshotRequest("c", 3, 2, SnapshotId(2, 1), 0, 9, voter(3).voter_directory_id))
    assert machine.quorum.slowest_fetch_offset == 0
    machine.pass_time(2500)
    machine.ask(machine.fetch(2, 3, 1))
    machine.pass_time(1000)
    assert machine.quorum.slowest_fetch_offset == 3, "the others are silent"
    machine.do(machine.quorum.resign(machine.now_ms))
    assert machine.quorum.slowest_fetch_offset is None


def test_a_follower_knows_its_leaders_log_start() -> None:
    """KIP-630, G30: from the last response of this leader; not from an earlier leader."""
    machine = _follower(history=(1, 1, 1))
    assert machine.quorum.leader_log_start_offset is None
    machine.fetched(log_start_offset=2)
    assert machine.quorum.leader_log_start_offset == 2
    machine.fetched(log_start_offset=-1)
    assert machine.quorum.leader_log_start_offset == 2, "a response without the field"
    machine.do(machine.quorum.tick(machine.now_ms + 60_000))
    assert machine.quorum.leader_log_start_offset is None, "it looks for another leader"
