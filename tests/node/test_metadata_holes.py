"""Start of a voter whose metadata log is damaged before intact batches (gaps.md G24, `docs/decisions/010`)."""

from __future__ import annotations

import errno
from copy import deepcopy
from uuid import UUID

import pytest

from fenceline.errors import OperatorError
from fenceline.log.core.errors import CorruptLog
from fenceline.node.controller.opening import OpenedController
from fenceline.node.metadata.batches import control_batch
from fenceline.node.metadata.metadata_log import MetadataLog
from fenceline.node.metadata.promised_end import record_promised_end, valid_extent
from fenceline.node.metadata.replay import NO_SNAPSHOT
from fenceline.quorum.control_records import KRaftVoters, Voter
from fenceline.quorum.duties import Send
from fenceline.quorum.log_view import NO_PROMISED_END, QuorumLogEnd, SnapshotId
from fenceline.quorum.messages import VoteRequest
from fenceline.testing.sim_disk import SimDisk
from tests.kip.snapshot_directory import DATA, DIRECTORY, EPOCH, VOTER, History, image_after, snapshot_of
from tests.node.controller_helpers import ALONE, WITH_OTHERS, open_voter

STATIC = {"controller.quorum.voters": "7@localhost:9093,8@other:9093,9@third:9093"}


def _history(*, segment_bytes: int = 1 << 20, voters: tuple[int, ...] = ()) -> History:
    """A log whose records from offset 12 on were rewritten by a new epoch, and whose voters change at the end."""
    disk = SimDisk()
    disk.mkdir(DATA)
    history = History(disk, segment_bytes=segment_bytes)
    history.begin()
    history.grow(5)
    if voters:
        members = tuple(Voter(each, UUID(int=500 + each)) for each in voters)
        history.log.append(control_batch([KRaftVoters(0, members)], 1000), EPOCH + 1, 1000)
        history.log.flush()
    return history


def _tear(history: History, offset: int) -> int:
    """Zero the batch that begins at this offset; returns its position in its file."""
    log = history.log.partition_log
    segment = max((each for each in log.segments if each.base_offset <= offset), key=lambda each: each.base_offset)
    disk = history.disk
    assert isinstance(disk, SimDisk)
    content = disk.peek(segment.path) or b""
    position = 0
    while int.from_bytes(content[position : position + 8], "big") < offset:
        position += 12 + int.from_bytes(content[position + 8 : position + 12], "big")
    size = 12 + int.from_bytes(content[position + 8 : position + 12], "big")
    fd = disk.open_append(segment.path)
    disk.truncate(fd, position)
    disk.write(fd, bytes(size) + content[position + size :])
    disk.fsync(fd)
    disk.close(fd)
    return position


def _open(history: History, node_id: int, settings: dict[str, str], directory_id: int = 900) -> OpenedController:
    return open_voter(history.disk, DATA, node_id, settings, directory_id=directory_id)


@pytest.mark.parametrize("settings", [pytest.param(WITH_OTHERS, id="dynamic"), pytest.param(STATIC, id="static")])
@pytest.mark.parametrize("segment_bytes", [1 << 20, 300])
def test_a_voter_starts_before_the_hole_and_keeps_its_promised_end(
    segment_bytes: int, settings: dict[str, str]
) -> None:
    history = _history(segment_bytes=segment_bytes)
    end = history.log.end
    batches = [each.base_offset for each in history.log.partition_log.segments] if segment_bytes == 300 else [9]
    _tear(history, batches[-3] if segment_bytes == 300 else 9)
    opened = _open(history, 7, settings)
    assert opened.log.promised == end
    assert opened.log.end == QuorumLogEnd(EPOCH, batches[-3] if segment_bytes == 300 else 9)
    assert not opened.is_alone
    opened.quorum.start(0, None)
    duties = opened.quorum.tick(10_000)
    assert not [duty for duty in duties if isinstance(duty, Send) and isinstance(duty.message, VoteRequest)]
    assert _open(history, 7, settings).log.promised == end, "also after another restart"


def test_a_hole_in_the_first_flush_after_a_fetched_snapshot() -> None:
    history = _history()
    snapshot = history.snapshot()
    log = history.log
    log.partition_log.truncate_fully_and_start_at(snapshot.end_offset)
    history.grow(3)
    end = log.end
    _tear(history, snapshot.end_offset)
    opened = _open(history, 7, WITH_OTHERS)
    assert opened.log.end == (snapshot.epoch, snapshot.end_offset)
    assert (opened.log.start_offset, opened.log.promised) == (snapshot.end_offset, end)
    assert opened.replayed.image.offset == snapshot.end_offset - 1


@pytest.mark.parametrize("torn", [True, False], ids=["torn", "hole"])
def test_unflushed_log_of_a_broker_is_replaced_by_the_fetched_snapshot(torn: bool) -> None:
    """A broker never flushes its log: a loss of power between the new snapshot and the truncation of the log may leave
    the log damaged below the snapshot's end (operations, seed 21000399).
    """
    history = _history()
    disk = history.disk
    assert isinstance(disk, SimDisk)
    log = history.log.partition_log
    fetched = SnapshotId(200, EPOCH + 1)
    image = image_after(9, fetched.end_offset, fetched.epoch)
    disk.write(disk.open_append(history.log.path_of(fetched)), b"".join(snapshot_of(image)))
    position = _tear(history, 9)
    if torn:
        disk.truncate(disk.open_append(log.segments[0].path), position + 12)
    with pytest.raises(OperatorError):
        MetadataLog.open(deepcopy(disk), DATA, now_ms=0)
    opened = MetadataLog.open(disk, DATA, now_ms=0, votes=False)
    assert (opened.start_offset, opened.end) == (200, QuorumLogEnd(fetched.epoch, 200))
    assert opened.replay().image == image


def test_batches_behind_the_hole_are_kept_unchanged() -> None:
    history = _history()
    disk = history.disk
    assert isinstance(disk, SimDisk)
    position = _tear(history, 9)
    path = history.log.partition_log.segments[0].path
    tail = disk.peek(path, position)
    _open(history, 7, WITH_OTHERS)
    folder = f"{DIRECTORY}/lost+found"
    assert [disk.peek(f"{folder}/{name}") for name in disk.listdir(folder)] == [tail]


def test_the_promise_is_durable_before_truncation() -> None:
    """A disk that rejects the promise, or the evidence, leaves the log unchanged."""
    history = _history()
    disk = history.disk
    assert isinstance(disk, SimDisk)
    end = history.log.end
    _tear(history, 9)
    path = history.log.partition_log.segments[0].path
    before = disk.peek(path)
    disk.fail("fsync", "promised-end.tmp", errno.EIO)
    with pytest.raises(OperatorError, match=r"Cannot write .*promised-end"):
        _open(history, 7, WITH_OTHERS)
    assert disk.peek(path) == before
    disk.heal()
    disk.fail("write", under=f"{DIRECTORY}/lost+found", number=errno.ENOSPC)
    with pytest.raises(OperatorError, match="so the log was not truncated") as refused:
        _open(history, 7, WITH_OTHERS)
    assert "Free disk space" in refused.value.advice
    assert disk.peek(path) == before
    disk.heal()
    assert _open(history, 7, WITH_OTHERS).log.promised == end


def test_an_existing_promise_is_not_lowered() -> None:
    """Power is lost again after the batches behind the hole were moved away: the next hole has no batches behind it."""
    history = _history()
    _tear(history, 13)
    first = _open(history, 7, WITH_OTHERS).log
    end = first.promised
    _tear(history, 5)
    again = _open(history, 7, WITH_OTHERS).log
    assert (again.end.offset, again.promised) == (5, end)


@pytest.mark.parametrize(
    ("node_id", "settings", "voters"),
    [
        pytest.param(7, ALONE, (), id="no other voter is known"),
        pytest.param(VOTER.voter_id, WITH_OTHERS, (), id="only voter according to the records before the hole"),
        pytest.param(7, WITH_OTHERS, (7,), id="only voter according to the records behind the hole"),
    ],
)
def test_start_is_refused_without_another_copy(node_id: int, settings: dict[str, str], voters: tuple[int, ...]) -> None:
    history = _history(voters=voters)
    disk = history.disk
    assert isinstance(disk, SimDisk)
    _tear(history, 9)
    path = history.log.partition_log.segments[0].path
    before = disk.peek(path)
    with pytest.raises(OperatorError, match="complete batches follow"):
        _open(history, node_id, settings)
    assert disk.peek(path) == before
    assert disk.peek(f"{DIRECTORY}/promised-end") is None


def test_voters_behind_the_hole_count() -> None:
    """The only voter according to the records before the hole, one of three according to those behind it."""
    history = _history(voters=(1, 2, 3))
    end = history.log.end
    _tear(history, 9)
    opened = _open(history, VOTER.voter_id, WITH_OTHERS, VOTER.voter_directory_id.int)
    assert opened.log.promised == end == QuorumLogEnd(EPOCH + 1, end.offset)
    assert not opened.is_alone
    duties = opened.quorum.start(0, opened.log.read_election())
    assert {duty.destination.host for duty in duties if isinstance(duty, Send)} == {"other"}
    assert not opened.quorum.is_leader


def test_zeros_at_the_end_require_no_promise() -> None:
    """The torn end of a write was never acknowledged."""
    history = _history()
    _tear(history, 17)
    assert history.log.end.offset == 21
    opened = _open(history, 7, WITH_OTHERS)
    assert (opened.log.end.offset, opened.log.promised) == (17, NO_PROMISED_END)


def test_a_disk_that_returns_different_bytes_on_each_read_is_rejected() -> None:
    """No checksum covers the offset of a batch: an offset that is read too high would be a promise that cannot
    be kept.
    """
    history = _history()
    disk = history.disk
    assert isinstance(disk, SimDisk)
    damage = CorruptLog(history.log.partition_log.segments[0].path, _tear(history, 9), "a hole", "")
    true_pread = disk.pread
    reads = 0

    def pread(fd: int, size_bytes: int, position: int, /) -> bytes:
        nonlocal reads
        content = bytearray(true_pread(fd, size_bytes, position))
        reads += 1
        if reads % 2:
            content[0] ^= 1
        return bytes(content)

    disk.pread = pread  # type: ignore[method-assign]
    with pytest.raises(CorruptLog) as refused:
        record_promised_end(disk, DIRECTORY, NO_SNAPSHOT, lambda voters: True, damage)
    assert refused.value is damage
    assert disk.peek(f"{DIRECTORY}/promised-end") is None


def test_intact_batches_are_found_behind_every_damage() -> None:
    history = _history(voters=(1, 2, 3))
    end = history.log.end
    for offset in (13, 5, 0):
        _tear(history, offset)
    found = valid_extent(history.disk, DIRECTORY)
    assert found.end == end
    assert [each.voter_id for each in found.voters] == [1, 2, 3]
    assert MetadataLog.open(history.disk, DATA, now_ms=0, others_have_it=lambda voters: True).end_offset == 0
