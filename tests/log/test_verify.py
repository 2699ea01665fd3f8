"""`fenceline verify` over partitions: what is whole, and everything that is not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fenceline.log.compaction_bound import BOUND_FILE, COMPLETE_FILE
from fenceline.log.disk import write_all
from fenceline.log.file_names import LOG_SUFFIX, offset_in
from fenceline.log.index import TimeIndex
from fenceline.log.producer_state import Origin
from fenceline.log.verify import find_places, verify_places
from fenceline.log.verify_findings import MAX_FINDINGS, Kind, Severity
from fenceline.losses.check import stored_batches
from fenceline.records.batch import Codec, compute_crc
from fenceline.records.build import build_batch
from fenceline.records.markers import abort_marker
from fenceline.testing.sim_disk import SimDisk

from .helpers import DIRECTORY, SMALL, TP, append, batch, open_log
from .verify_helpers import QUIET, content_of, errors, flip, logs, notes, put, rain, said, verified

INDEX = f"{DIRECTORY}/00000000000000000000"


@pytest.fixture
def log(disk: SimDisk) -> None:
    rain(disk)
    assert len(logs(disk)) >= 3


@pytest.mark.usefixtures("log")
def test_a_whole_log_has_no_findings_and_is_counted(disk: SimDisk) -> None:
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


def test_every_flipped_byte_of_a_log_is_found(disk: SimDisk) -> None:
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
def test_a_byte_with_any_other_value_is_found(place: int, mask: int, codec: Codec, epochs: int) -> None:
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
def test_all_of_several_damages_are_named_with_their_places(disk: SimDisk) -> None:
    first, second, *_ = logs(disk)
    flip(disk, first, 70)
    flip(disk, first, 16)  # of the first batch as well: magic
    flip(disk, second, 61)
    reports = verified(disk)
    found = [(f.kind.value, f.path, f.position) for f in reports[0].findings.kept]
    assert found == [("damaged", first, 0), ("crc", second, 0)]
    assert all(f.advice for f in reports[0].findings.kept)


@pytest.mark.usefixtures("log")
def test_batches_behind_a_hole_are_found_again(disk: SimDisk) -> None:
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
def test_zeros_in_the_middle_do_not_hide_what_is_behind(disk: SimDisk) -> None:
    path = logs(disk)[0]
    whole = content_of(disk, path)
    size = int.from_bytes(whole[8:12], "big") + 12
    put(disk, path, whole[:size] + bytes(size) + whole[2 * size :])
    (report,) = verified(disk)
    (finding,) = report.findings.kept
    assert finding.kind.value == "damaged"
    assert f"the next complete batch begins at byte {2 * size}" in finding.message


@pytest.mark.parametrize("missing", [1, 30, 60, 61, 80])
def test_a_torn_end_is_an_error_where_the_log_was_closed(disk: SimDisk, missing: int) -> None:
    rain(disk)
    path = logs(disk)[-1]
    put(disk, path, content_of(disk, path)[:-missing])
    (report,) = verified(disk)
    assert "torn" in errors([report])
    put(disk, "/data/meta.properties", b"")
    (report,) = verified(disk)
    assert "torn" in notes([report])
    assert "torn" not in errors([report]), "a node that runs, or was killed, leaves that"


def test_a_batch_that_is_being_written_is_waited_for(disk: SimDisk) -> None:
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


def test_a_missing_segment_and_missing_batches_are_told_as_gaps(disk: SimDisk) -> None:
    rain(disk, epochs=[0, 0, 0, 0])
    disk.unlink(logs(disk)[1])
    (report,) = verified(disk)
    assert errors([report]) == ["gap"]
    assert said(verified(disk, settings=replace(QUIET, allow_gaps=True)), Severity.ERROR) == []


def test_gaps_of_a_topic_that_was_compacted_here_are_no_findings(disk: SimDisk) -> None:
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
def test_gaps_of_a_log_whose_files_say_that_it_was_compacted(
    disk: SimDisk, name: str, content: bytes, *, explains: bool
) -> None:
    """Here, with the checkpoint not written yet, or at the leader that it was fetched from (`operations`, seeds
    9102022 and 9102088). A gap above what was compacted is a loss; what cannot be read tells of any offset."""
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


def test_gap_within_a_segment_above_what_was_compacted(disk: SimDisk) -> None:
    log = open_log(disk)
    for base in (0, 10, 30, 50):
        records = build_batch([(1_000, b"k", b"v", ())] * 5, base_offset=base, leader_epoch=1)
        log.append_as_follower(memoryview(records))
    log.close(clean=False)
    for compacted_to, missing in ((0, "offsets 5 to 9 are missing, and 30 more in 2 places"), (30, "offsets 35 to 49")):
        put(disk, f"{DIRECTORY}/{COMPLETE_FILE}", b"%d 1\n" % compacted_to)
        (report,) = verified(disk)
        (gap,) = [found.message for found in report.findings.kept if found.kind is Kind.GAP]
        assert missing in gap
    put(disk, f"{DIRECTORY}/{COMPLETE_FILE}", b"50 1\n")
    assert errors(verified(disk)) == []


def test_a_compaction_that_a_crash_interrupted_leaves_no_gap(disk: SimDisk) -> None:
    """Its result is to take the place of segments that are gone already: the next start does that."""
    rain(disk, epochs=[0, 0, 0, 0])
    taken = logs(disk)[1]
    content = content_of(disk, taken)
    disk.unlink(taken)
    put(disk, taken + ".swap", content)
    (report,) = verified(disk)
    assert (errors([report]), set(notes([report]))) == ([], {"leftover"})


def test_segments_that_overlap(disk: SimDisk) -> None:
    rain(disk)
    first, second, *_ = logs(disk)
    put(disk, second, content_of(disk, first))
    assert "segments" not in errors(verified(disk))
    assert "offsets" in errors(verified(disk)), "batches below the name of their segment"
    base = int(second[-24:-4])
    put(disk, f"{DIRECTORY}/{base - 1:020d}.log", content_of(disk, second))
    assert "segments" in errors(verified(disk))


@pytest.mark.usefixtures("log")
def test_an_index_that_leads_astray(disk: SimDisk) -> None:
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
def test_an_index_that_leads_past_its_offset(disk: SimDisk) -> None:
    content = bytearray(content_of(disk, INDEX + ".index"))
    content[0:4] = (0).to_bytes(4, "big")
    put(disk, INDEX + ".index", bytes(content))
    (report,) = verified(disk)
    assert "after offset 0: look-ups miss it" in report.findings.kept[0].message


@pytest.mark.usefixtures("log")
@pytest.mark.parametrize(("change", "words"), [(-1, "look-ups by time miss it"), (1_000_000, "no record up to there")])
def test_a_time_index_that_lies(disk: SimDisk, change: int, words: str) -> None:
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


def test_the_indexes_of_the_newest_segment_of_a_log_that_runs_are_only_noted(disk: SimDisk) -> None:
    rain(disk)
    put(disk, "/data/meta.properties", b"")
    stem = logs(disk)[-1].removesuffix(".log")
    put(disk, stem + ".index", b"nonsense" * 3)
    (report,) = verified(disk)
    assert (errors([report]), notes([report])) == ([], ["offset_index"])


def test_missing_indexes_are_noted_once_where_the_node_had_saved_them(disk: SimDisk) -> None:
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


def test_an_index_that_a_killed_node_had_not_saved_whole_is_only_noted(disk: SimDisk) -> None:
    rain(disk)
    put(disk, "/data/meta.properties", b"")
    stems = [path.removesuffix(".log") for path in logs(disk)]
    put(disk, stems[0] + ".index", b"nonsense" * 3)
    assert (errors(verified(disk)), notes(verified(disk))) == ([], ["offset_index"])
    put(disk, "/data/recovery-point-offset-checkpoint", b"0\n1\nrain 0 %d\n" % int(stems[1][-20:]))
    assert errors(verified(disk)) == ["offset_index"]


def test_the_transaction_index_is_held_against_the_markers(disk: SimDisk) -> None:
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
def test_an_epoch_checkpoint_that_disagrees_with_the_batches(disk: SimDisk, content: bytes, words: str) -> None:
    rain(disk)
    put(disk, f"{DIRECTORY}/leader-epoch-checkpoint", content)
    (report,) = verified(disk)
    assert set(errors([report])) == {"epoch_checkpoint"}
    assert words in report.findings.kept[0].message


def test_an_epoch_checkpoint_may_have_epochs_without_batches_and_may_lag_while_a_node_runs(disk: SimDisk) -> None:
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


def test_records_below_the_log_start_need_no_epoch(disk: SimDisk) -> None:
    rain(disk)
    put(disk, f"{DIRECTORY}/leader-epoch-checkpoint", b"0\n3\n0 9\n1 15\n3 30\n")
    assert said(verified(disk)) == [], "DeleteRecords may have been there: nothing tells in a copy"
    put(disk, "/data/log-start-offset-checkpoint", b"0\n0\n")
    assert errors(verified(disk)) == ["epoch_checkpoint"]
    put(disk, "/data/log-start-offset-checkpoint", b"0\n1\nrain 0 9\n")
    assert said(verified(disk)) == []
    put(disk, "/data/log-start-offset-checkpoint", b"0\n1\nrain 0 8\n")
    assert errors(verified(disk)) == ["epoch_checkpoint"]
    put(disk, "/data/meta.properties", b"")
    assert said(verified(disk)) == [], "a node that runs writes that file now and then"


def test_the_metadata_log_begins_where_no_checkpoint_says(disk: SimDisk) -> None:
    """`gaps.md G31`: what a snapshot stands for has left the epochs, and is in the first segment still."""
    metadata = "/data/__cluster_metadata-0"
    rain(disk, metadata)
    put(disk, f"{metadata}/leader-epoch-checkpoint", b"0\n3\n0 9\n1 15\n3 30\n")
    put(disk, "/data/log-start-offset-checkpoint", b"0\n0\n")
    assert errors(verified(disk, "/data")) == []


def test_checkpoints_that_kafka_has_not_written_to_yet(disk: SimDisk) -> None:
    rain(disk)
    for name in ("cleaner-offset", "log-start-offset", "recovery-point-offset", "replication-offset"):
        put(disk, f"/data/{name}-checkpoint", b"")
    assert said(verified(disk, "/data")) == []


@pytest.mark.parametrize("name", ["replication-offset-checkpoint", "recovery-point-offset-checkpoint"])
def test_a_log_that_ends_below_its_checkpoints(disk: SimDisk, name: str) -> None:
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


def test_a_log_that_ends_above_where_it_was_closed(disk: SimDisk) -> None:
    """Offsets of a compacted log may jump, and no checksum covers the one of its last batch."""
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
    (told,) = [each for report in reports for each in report.findings.kept if "closed with its end" in each.message]
    assert told.path == path, "an operator sees which file has the batch"
    put(disk, "/data/recovery-point-offset-checkpoint", b"0\n0\n")
    assert "offset_checkpoint" not in errors(verified(disk, settings=replace(QUIET, allow_gaps=True)))


@pytest.mark.usefixtures("log")
def test_other_files_beside_the_log(disk: SimDisk) -> None:
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


def test_records_that_can_not_be_read_are_found_by_the_deep_look_only(disk: SimDisk) -> None:
    rain(disk)
    path = logs(disk)[0]
    content = bytearray(content_of(disk, path))
    size = int.from_bytes(content[8:12], "big") + 12
    content[61] ^= 2  # the length of the first record
    content[17:21] = compute_crc(content, 0, size).to_bytes(4, "big")
    put(disk, path, bytes(content))
    assert said(verified(disk)) == []
    assert errors(verified(disk, settings=replace(QUIET, deep=True))) == ["records"]


def test_producers_numbers_are_looked_at_when_asked_for(disk: SimDisk) -> None:
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


def test_damage_is_not_told_again_as_missing_numbers(disk: SimDisk) -> None:
    log = open_log(disk)
    for sequence in range(5):
        append(log, producer_id=7, producer_epoch=0, base_sequence=sequence)
    log.close()
    path = logs(disk)[0]
    flip(disk, path, len(content_of(disk, path)) // 5 + 70)
    for where in (DIRECTORY, path):
        assert errors(verified(disk, where, settings=replace(QUIET, sequences=True))) == ["crc"]


def test_findings_are_counted_when_there_are_too_many_to_keep(disk: SimDisk) -> None:
    one = bytes(batch())
    disk.mkdir(DIRECTORY)
    put(disk, f"{DIRECTORY}/00000000000000000000.log", one * (MAX_FINDINGS + 50))
    (report,) = verified(disk)
    assert len(report.findings.kept) == MAX_FINDINGS
    assert report.findings.errors + report.findings.notes == MAX_FINDINGS + report.findings.left_out
    assert report.findings.left_out >= 49


def test_a_segment_that_is_deleted_meanwhile(disk: SimDisk) -> None:
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
def test_a_partition_that_is_deleted_between_the_look_and_the_reading(disk: SimDisk, closed: bool) -> None:
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


def test_a_disk_that_can_not_be_read_is_a_finding(disk: SimDisk) -> None:
    rain(disk)
    disk.fail("read", ".log")
    assert errors(verified(disk)) == ["unreadable"]
    disk.heal()
    put(disk, "/data/replication-offset-checkpoint", b"0\n1\nrain 0 35\n")
    disk.fail("read", "replication-offset-checkpoint")
    reports = verified(disk, "/data")
    assert errors(reports) == ["unreadable"]
    assert reports[-1].batches == 20
