"""Comparison of the replicas of one partition, and evidence of truncated batches."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fenceline.errors import OperatorError
from fenceline.log.partition.partition_log import PartitionLog
from fenceline.log.verify.verify import find_places
from fenceline.testing.sim_disk import SimDisk
from tests.log.helpers import SMALL, append, open_log, read_all
from tests.log.verify_helpers import QUIET, content_of, errors, flip, logs, notes, put, rain, said, verified

ONE, TWO = "/one/rain-0", "/two/rain-0"


@pytest.fixture
def disk() -> SimDisk:
    disk = SimDisk()
    for path in ("/one", "/two", "/three"):
        disk.mkdir(path)
    return disk


def copy_of(log: PartitionLog, disk: SimDisk, directory: str, *, up_to: int) -> PartitionLog:
    """A follower's log after it fetched from `log`."""
    follower = open_log(disk, directory, config=SMALL)
    for header, content in read_all(log):
        if header.next_offset <= up_to:
            follower.append_as_follower(memoryview(bytearray(content)))
    return follower


def diverged(disk: SimDisk) -> None:
    """An unclean election at offset 21: `/one` continued in epoch 1, `/two` in epoch 2."""
    log = open_log(disk, ONE, config=SMALL)
    for _ in range(7):
        append(log, 3, epoch=0)
    follower = copy_of(log, disk, TWO, up_to=21)
    for _ in range(4):
        append(log, 2, epoch=1)
    for _ in range(2):
        append(follower, 3, epoch=2)
    log.close()
    follower.close()


def test_identical_replicas_have_no_findings(disk: SimDisk) -> None:
    log = open_log(disk, ONE, config=SMALL)
    for number in range(20):
        append(log, 1 + number % 3, epoch=number // 7)
    copy_of(log, disk, TWO, up_to=30).close()
    copy_of(log, disk, "/three/rain-0", up_to=12).close()
    log.close()
    reports = verified(disk, "/one", "/two", "/three")
    assert said(reports) == []
    assert len({report.end_offset for report in reports}) == 3


def test_divergence_is_reported_with_its_first_offset_and_both_epochs(disk: SimDisk) -> None:
    diverged(disk)
    reports = verified(disk, "/one", "/two")
    (finding,) = [finding for report in reports for finding in report.findings.kept]
    assert (finding.kind.value, finding.severity.value, finding.offset) == ("divergence", "error", 21)
    assert finding.path.startswith(ONE), "the others are compared with the newest epoch"
    assert "epoch 1 here, epoch 2 there" in finding.message
    assert "8 offsets here and 6 there" in finding.message
    assert said(verified(disk, "/one", "/two", compare=False)) == []


def test_divergence_above_the_high_watermark_is_a_note(disk: SimDisk) -> None:
    diverged(disk)
    for root in ("/one", "/two"):
        put(disk, f"{root}/meta.properties", b"")
        put(disk, f"{root}/replication-offset-checkpoint", b"0\n1\nrain 0 21\n")
    assert (errors(verified(disk, "/one", "/two")), notes(verified(disk, "/one", "/two"))) == ([], ["divergence"])
    put(disk, "/two/replication-offset-checkpoint", b"0\n1\nrain 0 22\n")
    assert errors(verified(disk, "/one", "/two")) == ["divergence"]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    shared=st.lists(st.integers(1, 4), min_size=1, max_size=30),
    one=st.lists(st.integers(1, 4), max_size=12),
    two=st.lists(st.integers(1, 4), max_size=12),
    segment_bytes=st.sampled_from([300, 700, 1_000_000]),
    same_epoch=st.booleans(),
)
def test_divergence_is_found_at_the_offset_of_the_election(
    shared: list[int], one: list[int], two: list[int], segment_bytes: int, same_epoch: bool
) -> None:
    """The replicas' segments start at different offsets; epochs change in between."""
    disk = SimDisk()
    for path in ("/one", "/two"):
        disk.mkdir(path)
    log = open_log(disk, ONE, config=SMALL)
    for number, count in enumerate(shared):
        append(log, count, epoch=number // 7)
    parting = log.log_end_offset
    follower = open_log(disk, TWO, config=replace(SMALL, segment_bytes=segment_bytes))
    for header, content in read_all(log):
        assert header.next_offset <= parting
        follower.append_as_follower(memoryview(bytearray(content)))
    for count in one:
        append(log, count, epoch=10, size=20)
    for count in two:
        append(follower, count, epoch=10 if same_epoch else 11, size=21)
    log.close()
    follower.close()
    found = [finding for report in verified(disk, "/one", "/two") for finding in report.findings.kept]
    kind = "content" if same_epoch else "divergence"
    assert [(f.kind.value, f.offset) for f in found] == ([(kind, parting)] if one and two else [])


def test_different_bytes_with_the_same_offsets_and_epoch(disk: SimDisk) -> None:
    for directory, size in ((ONE, 20), (TWO, 20)):
        log = open_log(disk, directory, config=SMALL)
        for number in range(9):
            append(log, 2, epoch=0, size=size, timestamp=1_000 + (number == 5 and directory == TWO))
        log.close()
    reports = verified(disk, "/one", "/two")
    (finding,) = [finding for report in reports for finding in report.findings.kept]
    assert (finding.kind.value, finding.offset) == ("content", 10)


def test_damage_in_one_replica_is_reported_once(disk: SimDisk) -> None:
    log = rain(disk, ONE)
    copy_of(open_log(disk, ONE, config=SMALL), disk, TWO, up_to=log.log_end_offset).close()
    flip(disk, logs(disk, TWO)[0], 80)
    assert errors(verified(disk, "/one", "/two")) == ["crc"]


def test_compacted_replicas_are_compared_by_epoch(disk: SimDisk) -> None:
    diverged(disk)
    reports = verified(disk, "/one", "/two", settings=replace(QUIET, allow_gaps=True))
    assert errors(reports) == ["divergence"]


def test_replica_of_a_compacted_replica_may_have_its_gaps(disk: SimDisk) -> None:
    """It fetched the gaps, and none of its own files records that."""
    for directory in (ONE, TWO):
        rain(disk, directory, epochs=[0, 0, 0, 0])
        disk.unlink(logs(disk, directory)[1])
    assert errors(verified(disk, "/one", "/two")) == ["gap", "gap"]
    put(disk, "/one/cleaner-offset-checkpoint", b"0\n1\nrain 0 5\n")
    assert errors(verified(disk, "/one", "/two")) == []
    assert errors(verified(disk, "/two")) == ["gap"], "alone it cannot be distinguished from a loss"


def test_two_topics_with_the_same_name(disk: SimDisk) -> None:
    rain(disk, ONE)
    rain(disk, TWO)
    put(disk, f"{TWO}/partition.metadata", b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAg\n")
    assert errors(verified(disk, "/one", "/two")) == ["topic_id"]


def test_damage_of_evidence_next_to_its_log_is_a_note(disk: SimDisk) -> None:
    log = open_log(disk, ONE, config=SMALL)
    for _ in range(30):
        append(log, 2)
    log.truncate_to(21)
    log.close()
    reports = verified(disk, ONE)
    evidence = [report for report in reports if "/lost+found/" in report.path]
    assert evidence
    assert said(reports) == []
    assert max(report.end_offset for report in evidence) == 60
    flip(disk, evidence[-1].path, 70)
    assert (errors(verified(disk, ONE)), notes(verified(disk, ONE))) == ([], ["crc"])
    (finding,) = [finding for report in verified(disk, ONE) for finding in report.findings.kept]
    assert "losses export" in finding.advice
    assert errors(verified(disk, f"{ONE}/lost+found")) == ["crc"]
    assert errors(verified(disk, evidence[-1].path)) == ["crc"]


def test_accepted_paths(disk: SimDisk) -> None:
    rain(disk, ONE)
    disk.mkdir("/cluster/node-1/data")
    rain(disk, "/cluster/node-1/data/rain-0")
    for path in ("/one", ONE, logs(disk, ONE)[0], "/cluster", "/cluster/node-1", "/cluster/node-1/data"):
        reports = verified(disk, path)
        assert sum(report.batches for report in reports) >= 3, path
        assert said(reports) == [], path
    assert len(find_places(disk, ["/one", ONE, "/one/"]).found) == 1, "named twice, checked once"
    assert len(find_places(disk, ["/cluster", "/one"]).found) == 2


def test_active_segment_of_a_running_node_may_be_torn(disk: SimDisk) -> None:
    rain(disk, ONE)
    path = logs(disk, ONE)[-1]
    put(disk, path, content_of(disk, path)[:-9])
    assert errors(verified(disk, path)) == ["torn"]
    put(disk, "/one/meta.properties", b"")
    assert (errors(verified(disk, path)), notes(verified(disk, path))) == ([], ["torn"])


def test_stray_directories_are_not_replicas(disk: SimDisk) -> None:
    rain(disk, ONE)
    rain(disk, "/two/rain-0.0123456789abcdef-stray", epochs=[9])
    reports = verified(disk, "/one", "/two")
    assert len(reports) == 2
    assert said(reports) == []
    put(disk, "/two/replication-offset-checkpoint", b"0\n1\nrain 0 99\n")
    put(disk, "/two/recovery-point-offset-checkpoint", b"0\n1\nrain 0 99\n")
    assert said(verified(disk, "/two")) == [], "checkpoints describe the directory in use"


@pytest.mark.parametrize("path", ["/nothing", "/three", "/one/meta.properties"])
def test_path_without_a_log_is_rejected(disk: SimDisk, path: str) -> None:
    put(disk, "/one/meta.properties", b"")
    with pytest.raises(OperatorError):
        verified(disk, path)
