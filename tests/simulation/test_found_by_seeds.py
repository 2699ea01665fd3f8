"""Bugs that seeds have found in the production code, each as a small test."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from fenceline.errors import OperatorError
from fenceline.log.core.errors import StorageError
from fenceline.metadata.records import NoOpRecord, TopicRecord
from fenceline.node.metadata.batches import record_batch
from fenceline.node.metadata.loader import MetadataLoader
from fenceline.node.metadata.metadata_log import MetadataLog
from fenceline.quorum.election_state import ElectionState
from fenceline.records.batch import assign_in_place
from fenceline.testing.sim_disk import SimDisk
from fenceline.testing.simulation.loop import SimExecutor, run
from fenceline.testing.simulation.stage import play


class _Disk(SimDisk):
    """Reads return byte `at` with its lowest bit flipped, once `is_wrong` is set."""

    is_wrong = False
    at = 0

    def pread(self, fd: int, size_bytes: int, position: int, /) -> bytes:
        content = bytearray(super().pread(fd, size_bytes, position))
        if self.is_wrong and position <= self.at < position + len(content):
            content[self.at - position] ^= 1
        return bytes(content)


def _append(log: MetadataLog, count: int = 1) -> None:
    for _ in range(count):
        log.append(record_batch([NoOpRecord()], 25, 0), 1, 0)


def test_data_of_a_killed_process_is_made_durable_at_the_start() -> None:
    """Controllers, seed 6: a follower was killed before its flush, and after its start reported all records in its
    files to the leader."""
    disk = SimDisk()
    disk.mkdir("/data")
    _append(MetadataLog.open(disk, "/data", now_ms=0), 3)
    again = MetadataLog.open(disk, "/data", now_ms=0)
    assert again.end_offset == 3
    safe = disk.durable(again.directory)["00000000000000000000.log"]
    assert len(safe) == again.size_bytes
    for seed in range(20):
        disk.rng.seed(seed)
        disk.crash()
        assert MetadataLog.open(disk, "/data", now_ms=0).end_offset == 3


def test_a_vote_of_a_killed_process_is_made_durable_at_the_start() -> None:
    """Controllers, seed 1191: a process ended between the rename of `quorum-state` and the sync of the directory; its
    successor acted on the vote, lost power, and had forgotten it."""
    disk = SimDisk()
    disk.mkdir("/data")
    log = MetadataLog.open(disk, "/data", now_ms=0)
    disk.fsync_dir("/data")
    sync, disk.fsync_dir = disk.fsync_dir, lambda path: None  # type: ignore[method-assign]
    log.write_election(ElectionState(7), 1, ())
    disk.fsync_dir = sync  # type: ignore[method-assign]
    assert "quorum-state" not in disk.durable(log.directory)
    again = MetadataLog.open(disk, "/data", now_ms=0)
    assert again.read_election() == ElectionState(7)
    assert "quorum-state" in disk.durable(log.directory)


def test_metadata_with_wrong_bits_is_rejected() -> None:
    """Controllers, seed 36: committed records are read back from the disk, and may have wrong bits."""
    disk = _Disk(resident=lambda: False)
    disk.mkdir("/data")
    log = MetadataLog.open(disk, "/data", now_ms=0)
    log.append(record_batch([TopicRecord("flights", UUID(int=7))], 25, 0), 1, 0)

    async def load() -> tuple[MetadataLoader, list[BaseException]]:
        failed: list[BaseException] = []
        loader = MetadataLoader(log, executor=SimExecutor(1), failed=failed.append)
        loader.committed(1)
        await asyncio.sleep(1)
        return loader, failed

    loader, failed = run(load())
    assert set(loader.image.topics_by_name) == {"flights"}
    assert not failed
    disk.at, disk.is_wrong = log.size_bytes - 3, True
    loader, failed = run(load())
    assert not loader.image.topics_by_name
    assert isinstance(failed[0], OperatorError)
    assert "heck the disk" in failed[0].advice
    with pytest.raises(OperatorError, match="is damaged"):
        log.replay()
    disk.at = 10  # of the size: quorum's seed 8
    loader, failed = run(load())
    assert not loader.image.topics_by_name
    assert isinstance(failed[0], OperatorError)
    with pytest.raises(OperatorError, match="is damaged"):
        log.replay()
    disk.at = 12  # of the epoch, which no CRC covers: quorum's seed 245
    loader, failed = run(load())
    assert not loader.image.topics_by_name
    assert isinstance(failed[0], OperatorError)
    disk.at = 7  # of the offset, which no CRC covers: all's seed 20126
    loader, failed = run(load())
    assert not loader.image.topics_by_name
    assert isinstance(failed[0], OperatorError)


def test_a_batch_out_of_sequence_is_rejected() -> None:
    disk = _Disk(resident=lambda: False)
    disk.mkdir("/data")
    log = MetadataLog.open(disk, "/data", now_ms=0)
    for _ in range(3):
        log.append(record_batch([NoOpRecord()], 25, 0), 1, 0)
        flush = log.begin_flush()
        assert flush is not None
        flush()
        flush.end(None)
    disk.at = log.size_bytes // 3 + 7
    assert log.replay().record_count == 3
    disk.is_wrong = True
    with pytest.raises(OperatorError, match="a batch at offset 0, expected 1"):
        log.replay()


@pytest.mark.parametrize("at", range(12, 16))
def test_an_epoch_missing_from_the_checkpoint_is_rejected(at: int) -> None:
    """No CRC covers either, and a log that claims an epoch too high wins elections: quorum's seed 245, all's 20126."""
    disk = _Disk(resident=lambda: False)
    disk.mkdir("/data")
    log = MetadataLog.open(disk, "/data", now_ms=0)
    log.append(record_batch([NoOpRecord()], 25, 0), 3, 0)
    disk.at, disk.is_wrong = at, True
    for read in (log.replay, log.replay_committed):
        with pytest.raises(
            OperatorError, match=r"has a batch of epoch \d+ at offset 0, but .*checkpoint has epoch 3"
        ) as reported:
            read()
        assert "Check" in reported.value.advice or "check it" in reported.value.advice
    disk.is_wrong = False
    assert log.replay().record_count == 1


def test_an_append_to_a_full_disk_leaves_no_epoch_behind() -> None:
    """Otherwise no append from the leader is accepted any more, and the node wins elections with an epoch that it does
    not have: all's seed 246."""
    disk = SimDisk()
    disk.mkdir("/data")
    log = MetadataLog.open(disk, "/data", now_ms=0)
    log.append(record_batch([NoOpRecord()], 25, 0), 1, 0)
    written = disk.peek(f"{log.directory}/{0:020}.log") or b""
    second, third = bytearray(written), bytearray(written)
    assign_in_place(second, 0, 1, 2)
    assign_in_place(third, 0, 2, 4)
    disk.capacity_bytes = disk.used_bytes + len(second)
    with pytest.raises(StorageError):
        log.partition_log.append_as_follower(memoryview(bytes(second + third)))
    assert log.end == (1, 1)
    disk.capacity_bytes = disk.used_bytes
    with pytest.raises(StorageError):
        log.append(record_batch([NoOpRecord()], 25, 0), 5, 0)
    assert log.end == (1, 1)
    disk.capacity_bytes = None
    log.partition_log.append_as_follower(memoryview(bytes(second + third)))
    assert log.end == (4, 3)
    assert log.partition_log.epochs.entries == ((1, 0), (2, 1), (4, 2))


@pytest.mark.parametrize(
    ("scenario", "seed"),
    [
        ("quorum", 174),  # a snapshot that needs a damaged record
        ("controllers", 246),  # epochs of batches that were rejected by a full disk
        ("controllers", 256),  # too many open files at the start of a term
        ("quorum", 1272),  # one wrong bit in one read at a start truncated committed records
        ("quorum", 1964),  # a wrong bit in the offset of a batch
        ("quorum", 1432),  # a wrong bit in the epochs' checkpoint was written back
    ],
)
def test_seeds_that_found_a_bug(scenario: str, seed: int) -> None:
    outcome = play(seed, scenario)
    assert outcome.failure is None, outcome.report()


def test_a_broker_fetches_metadata_lost_in_a_power_failure_again() -> None:
    """Brokers, seed 22: a broker that never votes syncs no append, so a hole may precede complete batches. A voter with
    such a log may have acknowledged lost records: it starts only if others have them (`test_holes`)."""
    disk = SimDisk()
    disk.mkdir("/data")
    log = MetadataLog.open(disk, "/data", now_ms=0)
    _append(log, 3)
    path, size = f"{log.directory}/00000000000000000000.log", log.size_bytes // 3
    last = disk.peek(path, 2 * size)
    assert last is not None
    fd = disk.open_append(path)
    disk.truncate(fd, size)
    disk.write(fd, bytes(size) + last)
    disk.close(fd)
    with pytest.raises(OperatorError, match="complete batches follow"):
        MetadataLog.open(disk, "/data", now_ms=0)
    again = MetadataLog.open(disk, "/data", now_ms=0, votes=False)
    assert again.end_offset == 1
