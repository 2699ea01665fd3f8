"""KIP-630, sentence by sentence: the transfer of a snapshot from the leader to another node.

Requests and responses are tested with one quorum among scripted peers (`tests/quorum/machine.py`), the file on
simulated disks. Rules: snapshots.md N24-N39; gaps.md G24-G29.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fenceline.config.node import NodeConfig
from fenceline.errors import ErrorCode
from fenceline.ids import METADATA_TOPIC
from fenceline.node.controller.opening import quorum_settings
from fenceline.node.metadata import snapshot_files
from fenceline.node.metadata.metadata_log import MetadataLog
from fenceline.node.metadata.snapshot_files import SnapshotDamaged
from fenceline.quorum.codec import requests as quorum_requests
from fenceline.quorum.duties import (
    AdvanceHighWatermark,
    BeginDownload,
    DropDownload,
    LoadSnapshot,
    LogLine,
    ServePiece,
    ServeRecords,
    VerifyAndFreeze,
    WritePiece,
)
from fenceline.quorum.election_state import ElectionState
from fenceline.quorum.log_view import SnapshotId, VotersAt
from fenceline.quorum.messages import (
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    QuorumFetchRequest,
    QuorumFetchResponse,
    VoteRequest,
)
from fenceline.testing.node import EmbeddedNode
from fenceline.testing.sim_disk import SimDisk
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import read_request, write_request
from tests.kip.snapshot_directory import DATA, DIRECTORY, History, image_after, snapshot_of
from tests.quorum.machine import Machine
from tests.support.raw import RawConnection

THEIRS = SnapshotId(40, 3)
SIZE = 1000


TOPIC_RESOURCE = 2


def _leader(snapshot_end: int = 2, **settings: Any) -> tuple[Machine, SnapshotId]:
    machine = Machine(history=(1, 1, 1), election=ElectionState(1), **settings)
    machine.to_leader()
    snapshot = machine.log.write_snapshot(snapshot_end)
    assert snapshot is not None
    return machine, snapshot


def _follower(**options: Any) -> Machine:
    return Machine(election=ElectionState(3, leader_id=2), **options)


def _offered(**options: Any) -> Machine:
    machine = _follower(**options)
    machine.fetched(snapshot_id=THEIRS)
    return machine


def _downloading(**options: Any) -> Machine:
    machine = _offered(**options)
    machine.do(machine.quorum.download_begun(0, THEIRS, 0))
    return machine


def _answer(machine: Machine, **changed: Any) -> None:
    ask = machine.request_id(2, FetchSnapshotRequest)
    position = machine.sent(FetchSnapshotRequest)[2].position
    fields = FetchSnapshotResponse(
        leader_id=2, leader_epoch=3, snapshot_id=THEIRS, size=SIZE, position=position, unaligned_records=bytes(100)
    )
    machine.reply(ask, replace(fields, **changed))


# -- § Fetch ----------------------------------------------------------------------------------------------------------


def test_fetch_below_the_log_start_returns_the_newest_snapshot_id() -> None:
    """§ Fetch, handling 1; N25, N26: no records, no error, at once."""
    machine, older = _leader(2)
    newer = machine.log.write_snapshot(3)
    assert newer is not None
    machine.log.forget_before(older)
    answer = machine.ask(machine.fetch(2, 1, 1))
    assert isinstance(answer, QuorumFetchResponse)
    assert (answer.snapshot_id, answer.partition_error_code, answer.records) == (newer, ErrorCode.NONE, b"")
    assert machine.found(ServeRecords) == []


def test_first_fetch_of_an_empty_node_returns_the_newest_snapshot_id() -> None:
    """§ Fetch; N24: as released, even if the log still starts at 0."""
    machine, snapshot = _leader()
    assert machine.ask(machine.fetch(2, 0)).snapshot_id == snapshot


def test_fetch_inside_the_log_returns_records() -> None:
    """§ Fetch, handling 2; N26."""
    machine, snapshot = _leader()
    machine.ask(machine.fetch(2, snapshot.end_offset, snapshot.epoch))
    assert len(machine.found(ServeRecords)) == 1


def test_fetch_answered_with_a_snapshot_does_not_update_follower_state() -> None:
    """N25: neither its offset nor its last fetch time is updated."""
    machine, _ = _leader()
    machine.ask(machine.fetch(2, 0))
    assert machine.found(AdvanceHighWatermark) == []


def test_voters_stored_in_a_snapshot() -> None:
    """N7: those in force before its end; a later set is not included."""
    machine = Machine(history=(1, 1, 1))
    members = machine.quorum.voters
    machine.log.append(1, [VotersAt(machine.log.end_offset, 1, members[:2])])
    assert machine.quorum.voters == members[:2]
    assert machine.quorum.voters_before(3) == (1, members)
    assert machine.quorum.voters_before(4) == (1, members[:2])
    assert Machine(dynamic=False).quorum.voters_before(3) == (0, ())


# -- § FetchSnapshot, the leader --------------------------------------------------------------------------------------


def _ask(snapshot: SnapshotId, **changed: Any) -> FetchSnapshotRequest:
    return replace(FetchSnapshotRequest("c", 2, 2, snapshot, 0, 500), **changed)


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"cluster_id": "another"}, ErrorCode.INCONSISTENT_CLUSTER_ID),
        ({"current_leader_epoch": 1}, ErrorCode.FENCED_LEADER_EPOCH),
        ({"current_leader_epoch": 9}, ErrorCode.UNKNOWN_LEADER_EPOCH),
        ({"snapshot_id": SnapshotId(2, 9)}, ErrorCode.SNAPSHOT_NOT_FOUND),
        ({"snapshot_id": SnapshotId(0, 0)}, ErrorCode.SNAPSHOT_NOT_FOUND),
        ({"position": -1}, ErrorCode.POSITION_OUT_OF_RANGE),
        ({"position": 1 << 62}, ErrorCode.POSITION_OUT_OF_RANGE),
        ({"max_bytes": -1}, ErrorCode.INVALID_REQUEST),
        ({"cluster_id": None}, ErrorCode.NONE),
    ],
)
def test_leader_rejects_invalid_fetch_snapshot_requests(changed: dict[str, Any], code: ErrorCode) -> None:
    """§ FetchSnapshot, request handling 1-6; N28, N29, G28: each error names the leader."""
    machine, snapshot = _leader()
    answer = machine.ask(_ask(snapshot, **changed))
    if code is ErrorCode.NONE:
        assert machine.found(ServePiece)
    elif code is ErrorCode.INCONSISTENT_CLUSTER_ID:
        assert answer.error_code is code
    else:
        assert (answer.partition_error_code, answer.leader_id, answer.size) == (code, 1, 0)


def test_non_leader_rejects_fetch_snapshot() -> None:
    """§ FetchSnapshot, request handling; N32."""
    machine = _follower(history=(1, 1))
    snapshot = machine.log.write_snapshot(2)
    assert snapshot is not None
    answer = machine.ask(_ask(snapshot, current_leader_epoch=3, replica_id=3))
    assert (answer.partition_error_code, answer.leader_id) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, 2)


def test_response_has_size_position_and_id_and_limits_the_chunk() -> None:
    """§ FetchSnapshot, response; N30, N31, G28: at most the requested size and the server's limit."""
    machine, snapshot = _leader()
    size = machine.log.snapshot_size(snapshot)
    assert size is not None
    for asked in (1, 500, 1 << 31):
        machine.ask(_ask(snapshot, position=size - 1, max_bytes=asked))
        (piece,) = machine.found(ServePiece)
        assert (piece.snapshot_id, piece.position) == (snapshot, size - 1)
        assert 1 <= piece.max_bytes <= asked
        assert (piece.answer.size, piece.answer.position, piece.answer.snapshot_id) == (size, size - 1, snapshot)
    assert piece.max_bytes < 1 << 31


@pytest.mark.parametrize(("asked", "given"), [(99, 99), (100, 100), (1 << 31, 100)])
def test_response_bytes_are_limited_by_the_request_and_the_config(asked: int, given: int) -> None:
    """§ FetchSnapshot, request handling 3; G28: the smaller of MaxBytes and replica.fetch.response.max.bytes."""
    machine, snapshot = _leader(snapshot_response_max_bytes=100)
    machine.ask(_ask(snapshot, max_bytes=asked))
    (piece,) = machine.found(ServePiece)
    assert piece.max_bytes == given


@pytest.mark.parametrize(("configured", "bound"), [("5000", 5000), ("10485760", 10485760), ("0", 1024)])
def test_byte_limit_is_the_one_of_replica_fetches(configured: str, bound: int) -> None:
    """§ FetchSnapshot, request handling 3: a limit of 0 would never make progress."""
    config = NodeConfig.load(None, {"replica.fetch.response.max.bytes": configured}, {})
    assert quorum_settings(config, "c", ()).snapshot_response_max_bytes == bound


@pytest.mark.parametrize("names", [[], [METADATA_TOPIC, METADATA_TOPIC], [METADATA_TOPIC, "other"]])
def test_request_must_name_one_partition(names: list[str]) -> None:
    """§ FetchSnapshot, request handling 3, several partitions share the bytes: the quorum has one partition, so
    nothing is shared; any other request is rejected (G27)."""
    topics = [{"name": name, "partitions": [{"partition": 0}]} for name in names]
    entity = read_request(ApiKey.FETCH_SNAPSHOT, 1, write_request(ApiKey.FETCH_SNAPSHOT, 1, {"topics": topics}))
    with pytest.raises(quorum_requests.UnexpectedPartition) as refused:
        quorum_requests.read_request(ApiKey.FETCH_SNAPSHOT, 1, entity)
    assert refused.value.answer == {"error_code": ErrorCode.INVALID_REQUEST, "topics": ()}


# -- § FetchSnapshot, the follower ------------------------------------------------------------------------------------


def test_follower_stops_fetching_and_requests_the_snapshot_from_0() -> None:
    """§ Fetch, response handling 1; N33."""
    machine = _offered()
    assert machine.found(BeginDownload) == [BeginDownload(THEIRS, 2)]
    assert machine.sent(QuorumFetchRequest) == {}
    machine.do(machine.quorum.download_begun(0, THEIRS, 0))
    ask = machine.sent(FetchSnapshotRequest)[2]
    assert (ask.snapshot_id, ask.position, ask.current_leader_epoch) == (THEIRS, 0, 3)


def test_each_chunk_is_appended_and_the_next_request_starts_at_its_end() -> None:
    """§ FetchSnapshot, response handling 1-3; N33."""
    machine = _downloading()
    for position in range(0, 900, 100):
        assert machine.sent(FetchSnapshotRequest)[2].position == position
        _answer(machine)
        (piece,) = machine.found(WritePiece)
        assert (piece.position, piece.content) == (position, bytes(100))
        machine.do(machine.quorum.piece_written(0, THEIRS, position + 100))
        assert machine.found(VerifyAndFreeze) == []


def test_complete_file_is_verified_frozen_and_loaded() -> None:
    """§ FetchSnapshot, response handling 4-5; N35, N36, G24; then records from its end."""
    machine = _downloading(history=(1, 1))
    _answer(machine, size=100)
    machine.do(machine.quorum.piece_written(0, THEIRS, 100))
    assert machine.found(VerifyAndFreeze) == [VerifyAndFreeze(THEIRS, 100)]
    assert machine.found(LoadSnapshot) == []
    machine.do(machine.quorum.snapshot_frozen(0, THEIRS))
    assert machine.found(LoadSnapshot) == [LoadSnapshot(THEIRS)]
    assert machine.log.end_offset == 2, "the log is unchanged until then"
    machine.log.snapshots[THEIRS] = b'{"chain": "x", "voters": [0, 1, [1, 2, 3], [1001, 1002, 1003]]}'
    machine.log.load_snapshot(THEIRS)
    machine.do(machine.quorum.snapshot_loaded(0))
    assert machine.found(AdvanceHighWatermark)[-1].offset == THEIRS.end_offset
    again = machine.sent(QuorumFetchRequest)[2]
    assert (again.fetch_offset, again.last_fetched_epoch) == (THEIRS.end_offset, THEIRS.epoch)


@pytest.mark.parametrize(
    "changed",
    [
        {"partition_error_code": ErrorCode.SNAPSHOT_NOT_FOUND},
        {"partition_error_code": ErrorCode.POSITION_OUT_OF_RANGE, "snapshot_id": SnapshotId(0, 0)},
        {"partition_error_code": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION},
        {"snapshot_id": SnapshotId(41, 3)},
        {"snapshot_id": SnapshotId(-1, -1)},
        {"position": 7},
        {"unaligned_records": b""},
        {"unaligned_records": bytes(SIZE + 1)},
        {"size": -5},
    ],
)
def test_mismatched_response_returns_to_fetching(changed: dict[str, Any]) -> None:
    """§ FetchSnapshot, errors; N34, G25: dropped and logged, then a Fetch shortly after, never fatal."""
    machine = _downloading()
    _answer(machine, **changed)
    assert machine.found(DropDownload) == [DropDownload(THEIRS)]
    assert machine.found(LogLine)
    machine.pass_time(1000)
    assert machine.sent(QuorumFetchRequest).keys() == {2}


@pytest.mark.parametrize("offered", [SnapshotId(-1, 3), SnapshotId(5, -1), SnapshotId(0, 0)])
def test_invalid_snapshot_id_is_ignored(offered: SnapshotId) -> None:
    """N4, N33."""
    machine = _follower(history=(3,))
    machine.fetched(snapshot_id=offered)
    assert machine.found(BeginDownload) == []


def test_existing_snapshot_is_not_fetched_again() -> None:
    """N33."""
    machine = _follower(history=(1, 1, 3))
    snapshot = machine.log.write_snapshot(2)
    assert snapshot is not None
    machine.fetched(snapshot_id=snapshot)
    assert machine.found(BeginDownload) == []


def test_voter_without_responses_looks_for_another_leader() -> None:
    """§ Fetch timeout; N37, N38."""
    machine = _downloading()
    machine.now_ms = 1500
    _answer(machine)
    machine.do(machine.quorum.piece_written(machine.now_ms, THEIRS, 100))
    machine.pass_time(1500)
    assert machine.sent(VoteRequest) == {}, "each response restarts the timeout"
    machine.pass_time(2500)
    assert machine.sent(VoteRequest)


# -- the file ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def disk() -> SimDisk:
    disk = SimDisk()
    disk.mkdir(DATA)
    history = History(disk)
    history.begin()
    history.grow(1)
    return disk


def _content() -> bytes:
    return b"".join(snapshot_of(image_after(40, THEIRS.end_offset, THEIRS.epoch), 123))


def test_chunks_need_not_align_with_batches(disk: SimDisk) -> None:
    """§ FetchSnapshot, unaligned; N30."""
    content = _content()
    assert snapshot_files.begin_download(disk, DIRECTORY, THEIRS, 2) == 0
    for start in range(0, len(content), 61):
        snapshot_files.write_piece(disk, DIRECTORY, THEIRS, 2, content[start : start + 61])
    found = snapshot_files.finish_download(disk, DIRECTORY, THEIRS, 2, len(content))
    assert (found.size_bytes, found.last_contained_log_timestamp) == (len(content), 123)
    log = MetadataLog.open(disk, DATA, now_ms=0)
    assert log.replay().image == image_after(40, THEIRS.end_offset, THEIRS.epoch)


@pytest.mark.parametrize("position", [0, 100, 4000, -80, -1])
@pytest.mark.parametrize("damage", ["flip", "cut", "id"])
def test_corrupted_download_is_never_frozen(disk: SimDisk, damage: str, position: int) -> None:
    """§ FetchSnapshot, response handling 5.2; G24."""
    content = bytearray(_content())
    size = len(content)
    if damage == "flip":
        content[position] ^= 0x10
    elif damage == "cut":
        del content[position % size :]
    else:
        content = bytearray(b"".join(snapshot_of(image_after(40, THEIRS.end_offset, THEIRS.epoch + 1))))
        size = len(content)
    snapshot_files.begin_download(disk, DIRECTORY, THEIRS, 2)
    snapshot_files.write_piece(disk, DIRECTORY, THEIRS, 2, bytes(content))
    with pytest.raises(SnapshotDamaged):
        snapshot_files.finish_download(disk, DIRECTORY, THEIRS, 2, size)
    assert THEIRS.file_name not in disk.listdir(DIRECTORY)
    snapshot_files.drop_download(disk, DIRECTORY, THEIRS, 2)
    assert not [name for name in disk.listdir(DIRECTORY) if name.endswith(".part")]


def test_download_resumes_after_restart_from_the_last_complete_batch(disk: SimDisk) -> None:
    """G29; bytes torn by a power loss are truncated."""
    content = _content()
    snapshot_files.begin_download(disk, DIRECTORY, THEIRS, 2)
    whole = len(content) - 80  # the footer's batch is incomplete
    snapshot_files.write_piece(disk, DIRECTORY, THEIRS, 2, content[:whole] + bytes(40))
    MetadataLog.open(disk, DATA, now_ms=0)
    position = snapshot_files.begin_download(disk, DIRECTORY, THEIRS, 2)
    assert 0 < position <= whole
    path = f"{DIRECTORY}/{snapshot_files.download_name(THEIRS, 2)}"
    assert disk.peek(path) == content[:position]
    snapshot_files.write_piece(disk, DIRECTORY, THEIRS, 2, content[position:])
    snapshot_files.finish_download(disk, DIRECTORY, THEIRS, 2, len(content))


def test_download_resumes_only_from_the_same_node(disk: SimDisk) -> None:
    """G29: another node's file with the same id may have other bytes."""
    snapshot_files.begin_download(disk, DIRECTORY, THEIRS, 2)
    snapshot_files.write_piece(disk, DIRECTORY, THEIRS, 2, _content())
    assert snapshot_files.begin_download(disk, DIRECTORY, THEIRS, 3) == 0
    assert [name for name in disk.listdir(DIRECTORY) if name.endswith(".part")] == [
        snapshot_files.download_name(THEIRS, 3)
    ]


# -- § Public Interfaces, configuration of the topic -------------------------------------------------------------------


def test_metadata_topic_cleanup_policy_is_snapshot() -> None:
    """§ Public Interfaces, Topic configuration 1: it can be read."""
    with EmbeddedNode() as node, RawConnection(node.port) as server:
        row = {"resource_type": TOPIC_RESOURCE, "resource_name": METADATA_TOPIC, "configuration_keys": None}
        (found,) = server.call(ApiKey.DESCRIBE_CONFIGS, 4, {"resources": [row]}).results
        assert found.error_code == 0
        assert [(each.name, each.value, each.read_only) for each in found.configs] == [
            ("cleanup.policy", "snapshot", True)
        ]


@pytest.mark.parametrize("key", [ApiKey.INCREMENTAL_ALTER_CONFIGS, ApiKey.ALTER_CONFIGS])
def test_metadata_topic_configs_are_read_only(key: ApiKey) -> None:
    """§ Public Interfaces, Topic configuration 1: updates of this and of any other key are rejected."""
    with EmbeddedNode() as node, RawConnection(node.port) as server:
        for name in ("cleanup.policy", "retention.ms"):
            rows = [{"name": name, "value": "compact", "config_operation": 0}]
            changed = {"resource_type": TOPIC_RESOURCE, "resource_name": METADATA_TOPIC, "configs": rows}
            asked = {"resources": [changed], "validate_only": False}
            (answer,) = server.call(key, 1, asked).responses
            assert answer.error_code == ErrorCode.POLICY_VIOLATION
            assert "read-only" in answer.error_message


# -- § DeleteRecords --------------------------------------------------------------------------------------------------


def test_delete_records_on_the_metadata_topic_is_rejected() -> None:
    """§ Compatibility of DeleteRecords; N23: 44 as in the KIP; released Kafka does not know the topic."""
    with EmbeddedNode() as node, RawConnection(node.port) as server:
        for partition, offset in ((0, -1), (0, 5), (1, 0)):
            rows = [{"partition_index": partition, "offset": offset}]
            asked = {"topics": [{"name": METADATA_TOPIC, "partitions": rows}], "timeout": 10_000}
            answer = server.call(ApiKey.DELETE_RECORDS, 2, asked).topics[0].partitions[0]
            assert (answer.error_code, answer.low_watermark) == (ErrorCode.POLICY_VIOLATION, -1)
