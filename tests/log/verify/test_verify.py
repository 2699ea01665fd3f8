"""`fenceline verify` over partitions: intact logs and every kind of damage."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fenceline.log.core.compaction_bound import BOUND_FILE, COMPLETE_FILE
from fenceline.log.core.disk import write_all
from fenceline.log.core.file_names import LOG_SUFFIX, offset_in
from fenceline.log.core.index import TimeIndex
from fenceline.log.core.producer_state import Origin
from fenceline.log.verify.findings import MAX_FINDINGS, LogFindingKind, Severity
from fenceline.log.verify.verify import find_places, verify_places
from fenceline.losses.check import stored_batches
from fenceline.records.batch import Codec, compute_crc
from fenceline.records.build import build_batch
from fenceline.records.markers import abort_marker
from fenceline.testing.sim_disk import SimDisk
from tests.log.helpers import DIRECTORY, SMALL, TP, append, batch, open_log
from tests.log.verify_helpers import QUIET, content_of, errors, flip, logs, notes, put, rain, said, verified

INDEX = f"{DIRECTORY}/00000000000000000000"


@pytest.fixture
def log(disk: SimDisk) -> None:
    rain(disk)
    assert len(logs(disk)) >= 3


@pytest.mark.usefixtures("log")
def test_intact_log_is_counted_and_has_no_findings(disk: SimDisk) -> None:
    (report,) = verified(disk, settings=replace(QUIET, deep=True, sequences=True))
    assert said([report]) == []
    assert report.topic_partition == TP
    assert (report.batches, report.records) == (20, 35)
    assert (report.start_offset, report.end_offset) == (0, 35)
    assert report.segments == len(logs(disk))
    assert report.size_bytes == sum(len(content_of(disk, path)) for path in logs(disk))
    assert [(run.epoch, run.first_offset, run.last_offset) for run in report.runs] == [
        (0, 0, 14),
        (1, 15, 29),
        (3, 30, 34),
    ]


def test_every_flipped_byte_is_detected(disk: SimDisk) -> None:
    """No checksum covers a batch's offset, length, epoch and magic; the log around it does."""
    rain(disk)
    missed = []
    for path in logs(disk):
        whole = content_of(disk, path)
        for position in range(len(whole)):
            for mask in (0x01, 0x80):
                flip(disk, path, position, mask)
                if not errors(verified(disk)):
                    missed.append((path, position, mask))
                put(disk, path, whole)
    assert missed == []


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(place=st.integers(0, 1 << 30), mask=st.integers(1, 255), codec=st.sampled_from(Codec), epochs=st.integers(1, 3))
def test_byte_with_any_other_value_is_detected(place: int, mask: int, codec: Codec, epochs: int) -> None:
    disk = SimDisk()
    disk.mkdir("/data")
    log = open_log(disk, config=SMALL)
    for epoch in range(epochs):
        for number in range(4):
            append(log, 1 + number, epoch=epoch, codec=codec)
    log.close()
    assert errors(verified(disk)) == []
    paths = logs(disk)
    sizes = [len(content_of(disk, path)) for path in paths]
    place %= sum(sizes)
    for path, size in zip(paths, sizes, strict=True):
        if place < size:
            flip(disk, path, place, mask)
            break
        place -= size
    assert errors(verified(disk))


@pytest.mark.usefixtures("log")
def test_every_damaged_place_is_reported_with_its_position(disk: SimDisk) -> None:
    first, second, *_ = logs(disk)
    flip(disk, first, 70)
    flip(disk, first, 16)  # magic of the first batch
    flip(disk, second, 61)
    reports = verified(disk)
    found = [(f.kind.value, f.path, f.position) for f in reports[0].findings.kept]
    assert found == [("damaged", first, 0), ("crc", second, 0)]
    assert all(f.advice for f in reports[0].findings.kept)


@pytest.mark.usefixtures("log")
def test_batches_after_a_hole_are_found(disk: SimDisk) -> None:
    path = logs(disk)[0]
    whole = content_of(disk, path)
    size = int.from_bytes(whole[8:12], "big") + 12
    put(disk, path, whole[:size] + b"\x02" * 200 + whole[size + 200 :])
    (report,) = verified(disk)
    (finding,) = report.findings.kept
    assert (finding.kind.value, finding.position) == ("damaged", size)
    assert "the next complete batch begins at byte" in finding.message
    assert report.batches > 15


@pytest.mark.usefixtures("log")
def test_zeros_in_the_middle_do_not_hide_later_batches(disk: SimDisk) -> None:
    path = logs(disk)[0]
    whole = content_of(disk, path)
    size = int.from_bytes(whole[8:12], "big") + 12
    put(disk, path, whole[:size] + bytes(size) + whole[2 * size :])
    (report,) = verified(disk)
    (finding,) = report.findings.kept
    assert finding.kind.value == "damaged"
    assert f"the next complete batch begins at byte {2 * size}" in finding.message


@pytest.mark.parametrize("missing", [1, 30, 60, 61, 80])
def test_torn_end_of_a_closed_log_is_an_error(disk: SimDisk, missing: int) -> None:
    rain(disk)
    path = logs(disk)[-1]
    put(disk, path, content_of(disk, path)[:-missing])
    (report,) = verified(disk)
    assert "torn" in errors([report])
    put(disk, "/data/meta.properties", b"")
    (report,) = verified(disk)
    assert "torn" in notes([report])
    assert "torn" not in errors([report]), "a running or killed node may leave a torn end"


def test_verify_waits_for_a_batch_that_is_being_written(disk: SimDisk) -> None:
    rain(disk)
    put(disk, "/data/meta.properties", b"")
    path = logs(disk)[-1]
    whole = content_of(disk, path)
    put(disk, path, whole[:-40])

    def write_a_little(seconds: float) -> None:
        have = len(content_of(disk, path))
        fd = disk.open_append(path)
        write_all(disk, fd, whole[have : have + 20])
        disk.close(fd)

    (report,) = verified(disk, settings=replace(QUIET, wait=write_a_little))
    assert said([report]) == []
    assert report.end_offset == 35


def test_zeros_at_the_end_are_torn(disk: SimDisk) -> None:
    rain(disk)
    path = logs(disk)[-1]
    put(disk, path, content_of(disk, path) + bytes(5000))
    assert errors(verified(disk)) == ["torn"]


def test_missing_segment_and_missing_batches_are_reported_as_gaps(disk: SimDisk) -> None:
    rain(disk, epochs=[0, 0, 0, 0])
    disk.unlink(logs(disk)[1])
    (report,) = verified(disk)
    assert errors([report]) == ["gap"]
    assert said(verified(disk, settings=replace(QUIET, allow_gaps=True)), Severity.ERROR) == []


def test_gaps_of_a_topic_compacted_here_are_not_reported(disk: SimDisk) -> None:
    rain(disk, epochs=[0, 0, 0, 0])
    disk.unlink(logs(disk)[1])
    put(disk, "/data/cleaner-offset-checkpoint", b"0\n1\nrain 0 5\n")
    put(disk, "/data/meta.properties", b"")
    assert errors(verified(disk)) == []


@pytest.mark.parametrize(
    ("name", "content", "explains"),
    [
        (BOUND_FILE, b"%d\n", True),
        (BOUND_FILE, b"0\n", False),
        (BOUND_FILE, b"damaged", True),
        (COMPLETE_FILE, b"%d 3\n", True),
        (COMPLETE_FILE, b"0 0\n", False),
        (COMPLETE_FILE, b"1", True),
    ],
)
def test_gaps_of_a_log_whose_files_record_a_compaction(
    disk: SimDisk, name: str, content: bytes, *, explains: bool
) -> None:
    """Compacted here, before the checkpoint was written, or at the leader it was fetched from (`operations`, seeds
    9102022 and 9102088). A gap above the compacted part is a loss; an unreadable file applies to every offset."""
    rain(disk, epochs=[0, 0, 0, 0])
    disk.unlink(logs(disk)[1])
    following = offset_in(logs(disk)[1].rpartition("/")[2], LOG_SUFFIX)
    assert following is not None
    path = f"{DIRECTORY}/{name}"
    put(disk, path, content % following if b"%" in content else content)
    assert errors(verified(disk)) == ([] if explains else ["gap"])
    if b"%" in content:
        put(disk, path, content % (following - 1))
        assert errors(verified(disk)) == ["gap"]


def test_gap_within_a_segment_above_the_compacted_part(disk: SimDisk) -> None:
    log = open_log(disk)
    for base in (0, 10, 30, 50):
        records = build_batch([(1_000, b"k", b"v", ())] * 5, base_offset=base, leader_epoch=1)
        log.append_as_follower(memoryview(records))
    log.close(clean=False)
    for compacted_to, missing in ((0, "offsets 5 to 9 are missing, and 30 more in 2 places"), (30, "offsets 35 to 49")):
        put(disk, f"{DIRECTORY}/{COMPLETE_FILE}", b"%d 1\n" % compacted_to)
        (report,) = verified(disk)
        (gap,) = [found.message for found in report.findings.kept if found.kind is LogFindingKind.GAP]
        assert missing in gap
    put(disk, f"{DIRECTORY}/{COMPLETE_FILE}", b"50 1\n")
    assert errors(verified(disk)) == []


def test_compaction_interrupted_by_a_crash_leaves_no_gap(disk: SimDisk) -> None:
    """Its result replaces segments that are already deleted: the next start completes the swap."""
    rain(disk, epochs=[0, 0, 0, 0])
    taken = logs(disk)[1]
    content = content_of(disk, taken)
    disk.unlink(taken)
    put(disk, taken + ".swap", content)
    (report,) = verified(disk)
    assert (errors([report]), set(notes([report]))) == ([], {"leftover"})


def test_overlapping_segments(disk: SimDisk) -> None:
    rain(disk)
    first, second, *_ = logs(disk)
    put(disk, second, content_of(disk, first))
    assert "segments" not in errors(verified(disk))
    assert "offsets" in errors(verified(disk)), "batches below the base offset of their segment"
    base = int(second[-24:-4])
    put(disk, f"{DIRECTORY}/{base - 1:020d}.log", content_of(disk, second))
    assert "segments" in errors(verified(disk))


@pytest.mark.usefixtures("log")
def test_index_with_wrong_entries(disk: SimDisk) -> None:
    whole = content_of(disk, INDEX + ".index")
    assert len(whole) >= 16
    for position, mask, words in [(7, 1, "no batch begins"), (11, 0x7F, ""), (0, 0x7F, "ascending order")]:
        flip(disk, INDEX + ".index", position, mask)
        (report,) = verified(disk)
        assert set(errors([report])) == {"offset_index"}, position
        assert words in report.findings.kept[0].message
        put(disk, INDEX + ".index", whole)
    put(disk, INDEX + ".index", whole + (900).to_bytes(4, "big") + (90_000).to_bytes(4, "big"))
    (report,) = verified(disk)
    assert "past the end of the log" in report.findings.kept[0].message
    assert report.findings.kept[0].position == len(whole)
    put(disk, INDEX + ".index", whole + bytes(4096))
    assert said(verified(disk)) == [], "preallocated files end in zeros"


@pytest.mark.usefixtures("log")
def test_index_entry_that_points_after_its_offset(disk: SimDisk) -> None:
    content = bytearray(content_of(disk, INDEX + ".index"))
    content[0:4] = (0).to_bytes(4, "big")
    put(disk, INDEX + ".index", bytes(content))
    (report,) = verified(disk)
    assert "after offset 0: look-ups miss it" in report.findings.kept[0].message


@pytest.mark.usefixtures("log")
@pytest.mark.parametrize(("change", "words"), [(-1, "look-ups by time miss it"), (1_000_000, "no record up to there")])
def test_time_index_with_wrong_entries(disk: SimDisk, change: int, words: str) -> None:
    path = INDEX + ".timeindex"
    times = TimeIndex.decode(content_of(disk, path))
    assert times is not None
    at = 1 if change < 0 else len(times) - 1
    times.timestamps[at] += change
    if change < 0:
        times.offsets[at] += 1
    put(disk, path, times.encode())
    (report,) = verified(disk)
    assert errors([report]) == ["time_index"]
    assert words in report.findings.kept[0].message


def test_index_damage_of_the_active_segment_is_a_note(disk: SimDisk) -> None:
    rain(disk)
    put(disk, "/data/meta.properties", b"")
    stem = logs(disk)[-1].removesuffix(".log")
    put(disk, stem + ".index", b"nonsense" * 3)
    (report,) = verified(disk)
    assert (errors([report]), notes([report])) == ([], ["offset_index"])


def test_missing_saved_indexes_are_noted_once(disk: SimDisk) -> None:
    rain(disk)
    stems = [path.removesuffix(".log") for path in logs(disk)]
    for stem in stems:
        disk.unlink(stem + ".index")
        disk.unlink(stem + ".timeindex")
    (report,) = verified(disk)
    (finding,) = report.findings.kept
    assert (finding.kind.value, finding.severity.value) == ("offset_index", "note")
    assert f"as are {2 * len(stems) - 1} more index files" in finding.message
    put(disk, "/data/meta.properties", b"")
    assert said(verified(disk)) == [], "a node saves them when it flushes"
    put(disk, "/data/recovery-point-offset-checkpoint", b"0\n1\nrain 0 %d\n" % int(stems[1][-20:]))
    (report,) = verified(disk)
    (finding,) = report.findings.kept
    assert "as are 1 more index files" in finding.message


def test_index_damage_above_the_recovery_point_is_a_note(disk: SimDisk) -> None:
    rain(disk)
    put(disk, "/data/meta.properties", b"")
    stems = [path.removesuffix(".log") for path in logs(disk)]
    put(disk, stems[0] + ".index", b"nonsense" * 3)
    assert (errors(verified(disk)), notes(verified(disk))) == ([], ["offset_index"])
    put(disk, "/data/recovery-point-offset-checkpoint", b"0\n1\nrain 0 %d\n" % int(stems[1][-20:]))
    assert errors(verified(disk)) == ["offset_index"]


def test_transaction_index_is_compared_with_the_markers(disk: SimDisk) -> None:
    log = open_log(disk)
    for sequence in (0, 1):
        append(log, producer_id=5, producer_epoch=0, base_sequence=sequence, transactional=True)
        marker = memoryview(abort_marker(5, 0, 0, 1_000))
        log.append_as_leader(marker, leader_epoch=0, now_ms=1_000, origin=Origin.COORDINATOR)
    log.advance_high_watermark(log.log_end_offset)
    log.close()
    assert said(verified(disk)) == []
    (path,) = [f"{DIRECTORY}/{name}" for name in disk.listdir(DIRECTORY) if name.endswith(".txnindex")]
    flip(disk, path, 25)  # last offset of the first entry
    assert errors(verified(disk)) == ["transaction_index"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"0\n2\n0 0\n1 15\n", "has epoch 3"),
        (b"0\n3\n0 0\n1 14\n3 30\n", "has epoch 0"),
        (b"0\n3\n0 0\n2 15\n3 30\n", "has epoch 1"),
        (b"0\n3\n0 0\n1 15\n3 12\n", "do not increase"),
        (b"0\n3\n0 0\n1 15\n", "announces 3 entries"),
        (b"\xff\xfe", ""),
        (b"0\n4\n0 0\n1 15\n3 30\n4 99\n", "past the log end"),
    ],
)
def test_epoch_checkpoint_that_contradicts_the_batches(disk: SimDisk, content: bytes, words: str) -> None:
    rain(disk)
    put(disk, f"{DIRECTORY}/leader-epoch-checkpoint", content)
    (report,) = verified(disk)
    assert set(errors([report])) == {"epoch_checkpoint"}
    assert words in report.findings.kept[0].message


def test_epoch_checkpoint_may_list_empty_epochs_and_may_lag_on_a_running_node(disk: SimDisk) -> None:
    rain(disk)
    put(disk, f"{DIRECTORY}/leader-epoch-checkpoint", b"0\n4\n0 0\n1 15\n3 30\n5 35\n")
    assert said(verified(disk)) == []
    put(disk, f"{DIRECTORY}/leader-epoch-checkpoint", b"0\n2\n0 0\n1 15\n")
    put(disk, "/data/meta.properties", b"")
    assert (errors(verified(disk)), notes(verified(disk))) == ([], ["epoch_checkpoint"])
    disk.unlink(f"{DIRECTORY}/leader-epoch-checkpoint")
    assert said(verified(disk)) == [], "not written yet"
    put(disk, "/data/recovery-point-offset-checkpoint", b"0\n1\nrain 0 15\n")
    assert notes(verified(disk)) == ["epoch_checkpoint"]
    disk.unlink("/data/meta.properties")
    assert notes(verified(disk)) == ["epoch_checkpoint"]


def test_records_below_the_log_start_need_no_epoch_entry(disk: SimDisk) -> None:
    rain(disk)
    put(disk, f"{DIRECTORY}/leader-epoch-checkpoint", b"0\n3\n0 9\n1 15\n3 30\n")
    assert said(verified(disk)) == [], "DeleteRecords may be the cause: a copy has no proof"
    put(disk, "/data/log-start-offset-checkpoint", b"0\n0\n")
    assert errors(verified(disk)) == ["epoch_checkpoint"]
    put(disk, "/data/log-start-offset-checkpoint", b"0\n1\nrain 0 9\n")
    assert said(verified(disk)) == []
    put(disk, "/data/log-start-offset-checkpoint", b"0\n1\nrain 0 8\n")
    assert errors(verified(disk)) == ["epoch_checkpoint"]
    put(disk, "/data/meta.properties", b"")
    assert said(verified(disk)) == [], "a running node writes that file periodically"


def test_metadata_log_start_is_in_no_checkpoint(disk: SimDisk) -> None:
    """`gaps.md G31`: records covered by a snapshot have left the epochs, but are still in the first segment."""
    metadata = "/data/__cluster_metadata-0"
    rain(disk, metadata)
    put(disk, f"{metadata}/leader-epoch-checkpoint", b"0\n3\n0 9\n1 15\n3 30\n")
    put(disk, "/data/log-start-offset-checkpoint", b"0\n0\n")
    assert errors(verified(disk, "/data")) == []


def test_checkpoints_that_kafka_has_not_written_yet(disk: SimDisk) -> None:
    rain(disk)
    for name in ("cleaner-offset", "log-start-offset", "recovery-point-offset", "replication-offset"):
        put(disk, f"/data/{name}-checkpoint", b"")
    assert said(verified(disk, "/data")) == []


@pytest.mark.parametrize("name", ["replication-offset-checkpoint", "recovery-point-offset-checkpoint"])
def test_log_end_below_its_checkpoints(disk: SimDisk, name: str) -> None:
    rain(disk)
    put(disk, "/data/meta.properties", b"")
    put(disk, f"/data/{name}", b"0\n1\nrain 0 36\n")
    assert notes(verified(disk)) == ["offset_checkpoint"]
    put(disk, "/data/.kafka_cleanshutdown", b"{}")
    assert errors(verified(disk)) == ["offset_checkpoint"]
    put(disk, f"/data/{name}", b"0\n1\nrain 0 35\n")
    assert said(verified(disk)) == []
    put(disk, f"/data/{name}", b"0\n7\nrain 0 35\n")
    reports = verified(disk, "/data")
    assert errors(reports) == ["offset_checkpoint"]


def test_log_end_above_its_end_at_close(disk: SimDisk) -> None:
    """Offsets of a compacted log may have gaps, and no checksum covers that of its last batch."""
    log = rain(disk)
    put(disk, "/data/meta.properties", b"")
    put(disk, "/data/.kafka_cleanshutdown", b"{}")
    put(disk, "/data/recovery-point-offset-checkpoint", b"0\n1\nrain 0 35\n")
    assert said(verified(disk)) == []
    last = stored_batches(log)[-1]
    path = logs(disk)[-1]
    flip(disk, path, len(content_of(disk, path)) - last.size_bytes + 5)
    reports = verified(disk, settings=replace(QUIET, allow_gaps=True))
    assert "offset_checkpoint" in errors(reports)
    (reported,) = [each for report in reports for each in report.findings.kept if "closed with its end" in each.message]
    assert reported.path == path, "the finding names the file of the batch"
    put(disk, "/data/recovery-point-offset-checkpoint", b"0\n0\n")
    assert "offset_checkpoint" not in errors(verified(disk, settings=replace(QUIET, allow_gaps=True)))


@pytest.mark.usefixtures("log")
def test_unrelated_files_in_the_directory(disk: SimDisk) -> None:
    snapshots = [name for name in disk.listdir(DIRECTORY) if name.endswith(".snapshot")]
    flip(disk, f"{DIRECTORY}/{snapshots[0]}", 3)
    put(disk, f"{DIRECTORY}/partition.metadata", b"version: 0\n")
    put(disk, f"{DIRECTORY}/00000000000000000003.log.deleted", b"x")
    put(disk, f"{DIRECTORY}/00000000000000000003.log.cleaned", b"x")
    put(disk, f"{DIRECTORY}/00000000000000000003.log.swap", b"x")
    put(disk, f"{DIRECTORY}/00000000000000000099.index", b"")
    (report,) = verified(disk)
    assert sorted(errors([report])) == ["partition_metadata", "producer_snapshot"]
    assert notes([report]) == ["leftover"] * 4


def test_undecodable_records_are_found_only_by_a_deep_check(disk: SimDisk) -> None:
    rain(disk)
    path = logs(disk)[0]
    content = bytearray(content_of(disk, path))
    size = int.from_bytes(content[8:12], "big") + 12
    content[61] ^= 2  # the length of the first record
    content[17:21] = compute_crc(content, 0, size).to_bytes(4, "big")
    put(disk, path, bytes(content))
    assert said(verified(disk)) == []
    assert errors(verified(disk, settings=replace(QUIET, deep=True))) == ["records"]


def test_producer_sequences_are_checked_on_request(disk: SimDisk) -> None:
    log = open_log(disk)
    for sequence in (0, 1, 2):
        append(log, producer_id=7, producer_epoch=0, base_sequence=sequence)
    log.close()
    path = logs(disk)[0]
    content = content_of(disk, path)
    third = len(content) // 3
    batch_ = bytearray(content[2 * third :])
    batch_[0:8] = (1).to_bytes(8, "big")
    put(disk, path, content[:third] + bytes(batch_))
    put(disk, f"{DIRECTORY}/leader-epoch-checkpoint", b"0\n1\n0 0\n")
    assert said(verified(disk)) == []
    (report,) = verified(disk, settings=replace(QUIET, sequences=True))
    assert errors([report]) == ["sequence"]
    assert "wrote sequence 2 at offset 1, but sequence 1" in report.findings.kept[0].message


def test_damage_is_not_reported_again_as_a_sequence_gap(disk: SimDisk) -> None:
    log = open_log(disk)
    for sequence in range(5):
        append(log, producer_id=7, producer_epoch=0, base_sequence=sequence)
    log.close()
    path = logs(disk)[0]
    flip(disk, path, len(content_of(disk, path)) // 5 + 70)
    for where in (DIRECTORY, path):
        assert errors(verified(disk, where, settings=replace(QUIET, sequences=True))) == ["crc"]


def test_findings_beyond_the_limit_are_only_counted(disk: SimDisk) -> None:
    one = bytes(batch())
    disk.mkdir(DIRECTORY)
    put(disk, f"{DIRECTORY}/00000000000000000000.log", one * (MAX_FINDINGS + 50))
    (report,) = verified(disk)
    assert len(report.findings.kept) == MAX_FINDINGS
    assert report.findings.errors + report.findings.notes == MAX_FINDINGS + report.findings.left_out
    assert report.findings.left_out >= 49


def test_segment_deleted_during_the_check(disk: SimDisk) -> None:
    rain(disk, epochs=[0, 0, 0, 0])
    put(disk, "/data/meta.properties", b"")
    gone = logs(disk)[0]
    (report,) = verified(disk, settings=replace(QUIET, progress=lambda size: None))
    assert said([report]) == []

    def retention(size_bytes: int) -> None:
        for path in logs(disk)[1:2]:
            if path != gone:
                disk.unlink(path)

    (report,) = verified(disk, settings=replace(QUIET, progress=retention))
    assert "gone" in notes([report])
    assert errors([report]) == []


@pytest.mark.parametrize("closed", [True, False])
def test_partition_deleted_between_listing_and_reading(disk: SimDisk, closed: bool) -> None:
    rain(disk)
    put(disk, "/data/meta.properties", b"")
    if closed:
        put(disk, "/data/.kafka_cleanshutdown", b"{}")
    places = find_places(disk, ["/data"])
    segment = find_places(disk, [logs(disk)[0]])
    for name in disk.listdir(DIRECTORY):
        disk.unlink(f"{DIRECTORY}/{name}")
    disk.rmdir(DIRECTORY)
    reports = list(verify_places(disk, places, QUIET))
    assert (errors(reports), notes(reports)) == ((["gone"], []) if closed else ([], ["gone"]))
    assert notes(list(verify_places(disk, segment, QUIET))) == ["gone"]


def test_read_error_is_a_finding(disk: SimDisk) -> None:
    rain(disk)
    disk.fail("read", ".log")
    assert errors(verified(disk)) == ["unreadable"]
    disk.heal()
    put(disk, "/data/replication-offset-checkpoint", b"0\n1\nrain 0 35\n")
    disk.fail("read", "replication-offset-checkpoint")
    reports = verified(disk, "/data")
    assert errors(reports) == ["unreadable"]
    assert reports[-1].batches == 20
