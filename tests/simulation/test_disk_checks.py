"""Verify and the ledger at the end of a simulated run: their results are compared with what the simulation knows."""

from __future__ import annotations

from random import Random
from typing import Any
from uuid import UUID

import pytest

from fenceline.ids import TopicPartition
from fenceline.log.core.config import LogConfig
from fenceline.log.core.disk import replace_file
from fenceline.log.directories.log_dir import CLEAN_FILE
from fenceline.log.partition.partition_log import PartitionLog
from fenceline.losses.receipt import Receipt, encode
from fenceline.records.batch import assign_in_place, read_header
from fenceline.records.build import build_batch
from fenceline.testing.sim_disk import SimDisk
from fenceline.testing.simulation.checks import InvariantBroken
from fenceline.testing.simulation.disk_checks import (
    ledger_is_complete,
    verify_finds_a_changed_byte,
    verify_finds_nothing,
)
from fenceline.testing.simulation.world import StoredBatch
from tests.support.receipts import a_receipt

PATHS = ["/n1/data", "/n2/data"]


def replica(*values: bytes, segment_bytes: int = 1 << 30) -> SimDisk:
    disk = SimDisk()
    disk.mkdir("/data")
    replace_file(disk, "/data/meta.properties", b"version=1\ncluster.id=c\nnode.id=1\n")
    log = PartitionLog.open(
        disk,
        "/data/t0-0",
        topic_partition=TopicPartition("t0", 0),
        topic_id=UUID(int=7),
        config=LogConfig(segment_bytes=segment_bytes),
        now_ms=1,
    )
    for value in values:
        batch = memoryview(bytearray(build_batch([(1000, None, value, ())])))
        log.append_as_leader(batch, leader_epoch=0, now_ms=1)
    log.close(clean=True)
    replace_file(disk, f"/data/{CLEAN_FILE}", b"{}")
    return disk


def test_verify_reads_all_disks_together() -> None:
    disks = {"n1": replica(b"a", b"b"), "n2": replica(b"a", b"b")}
    verify_finds_nothing(disks, PATHS)
    for seed in range(5):
        verify_finds_a_changed_byte(disks, PATHS, Random(seed))
    verify_finds_nothing(disks, PATHS)


def test_differing_replicas_are_detected() -> None:
    with pytest.raises(InvariantBroken, match=r"\(verify\)"):
        verify_finds_nothing({"n1": replica(b"a", b"b"), "n2": replica(b"a", b"c")}, PATHS)


def test_a_changed_byte_missed_by_verify_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fenceline.testing.simulation.disk_checks.errors_of", lambda disks, directories, holding: [])
    with pytest.raises(InvariantBroken, match="does not find the changed byte"):
        verify_finds_a_changed_byte({"n1": replica(b"a")}, PATHS[:1], Random(0))


@pytest.mark.parametrize("position", [5, 13], ids=["base offset", "leader epoch"])
def test_a_changed_byte_is_revealed_by_the_next_file(position: int) -> None:
    """No checksum covers them. If the next batch starts a file, its position reveals the change."""

    class FirstSegment(Random):
        def choice(self, seq: Any) -> Any:
            return seq[0]

        def randrange(self, *args: int) -> int:
            return position

    verify_finds_a_changed_byte({"n1": replica(b"a", b"b", segment_bytes=80)}, PATHS[:1], FirstSegment())


def receipt(name: str, end: int = 3) -> Receipt:
    return a_receipt(id=name, topic="t0", topic_id=UUID(int=7), end_offset_exclusive=end)


def ledger(*receipts: Receipt) -> list[StoredBatch]:
    batches = []
    for offset, each in enumerate(receipts):
        batch = bytearray(build_batch([(1000, each.id.encode(), encode(each), ())]))
        assign_in_place(memoryview(batch), 0, offset, 0)
        batches.append(StoredBatch(offset, read_header(batch).next_offset, 0, bytes(batch)))
    return batches


def test_the_ledger_has_every_receipt() -> None:
    written = {each.id: each for each in (receipt("a"), receipt("b"))}
    ledger_is_complete(ledger(*written.values()), written, [], was_lost=False)
    ledger_is_complete(ledger(receipt("a")), written, ["b"], was_lost=False)
    ledger_is_complete([], written, [], was_lost=True)
    with pytest.raises(InvariantBroken, match="lacks the receipt"):
        ledger_is_complete(ledger(receipt("a")), written, [], was_lost=False)


def test_the_ledger_matches_the_written_receipts() -> None:
    with pytest.raises(InvariantBroken, match=r"\(ledger\)"):
        ledger_is_complete(ledger(receipt("a", end=2)), {"a": receipt("a")}, [], was_lost=False)


def test_a_directory_fails_and_is_restored() -> None:
    disk = replica(b"a")
    give_back = disk.lose("/data")
    with pytest.raises(OSError, match="Input/output error"):
        disk.open_read("/data/meta.properties")
    disk.mkdir("/data2")
    disk.close(disk.open_append("/data2/file"))
    give_back()
    disk.close(disk.open_read("/data/meta.properties"))
