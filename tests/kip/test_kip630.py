"""KIP-630, sentence by sentence, on one directory: snapshot format, generation and deletion.

`§` names the section of the KIP and the sentence in it, a number such as N11 the rule of
`docs/rules/snapshots.md`. Where released Kafka differs from the KIP, the test names the behaviour that applies.
Loading is tested in `test_kip630_loading.py`, the transfer between nodes in `test_kip630_transfer.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, Literal

import pytest

from fenceline.config.broker import ALL_CONFIGS
from fenceline.config.node import NodeConfig
from fenceline.metadata.changes import difference
from fenceline.metadata.features import METADATA_VERSION
from fenceline.metadata.records import ConfigRecord, FeatureLevelRecord, decode_record
from fenceline.metadata.snapshot import image_of
from fenceline.node.metadata import snapshot_files
from fenceline.node.metadata.batches import record_batch
from fenceline.node.metadata.metadata_log import MetadataLog
from fenceline.node.metadata.snapshots import Snapshots
from fenceline.node.quorum.log import QuorumLog
from fenceline.quorum.control_records import (
    KRaftVersion,
    KRaftVoters,
    SnapshotFooter,
    SnapshotHeader,
    decode_control,
)
from fenceline.quorum.fetches import NeedsSnapshot, Valid, validate_offset_and_epoch
from fenceline.quorum.log_view import SnapshotId
from fenceline.quorum.voter_set import VoterHistory
from fenceline.records.batch import Codec, crc_is_valid, iter_headers
from fenceline.records.decode import decode_batch
from fenceline.testing.sim_disk import SimDisk
from tests.kip.snapshot_directory import (
    DATA,
    DIRECTORY,
    EPOCH,
    VOTERS,
    History,
    content_of,
    snapshot_of,
    with_snapshots,
)
from tests.node.controller_helpers import AtOnce, Held, StillClock


def _batches(content: bytes) -> list[Any]:
    return [(header, decode_batch(content, header)) for header in iter_headers(content)]


# -- § Snapshot, § Metadata Topic Partition ---------------------------------------------------------------------------


def test_snapshot_id_is_the_end_offset_and_epoch_of_the_last_record(history: History) -> None:
    """§ Snapshot 1-2; N1: the end offset is exclusive and the next offset to fetch."""
    snapshot = history.snapshot()
    assert snapshot == (history.log.end_offset, EPOCH)


def test_snapshots_are_ordered_by_epoch_then_offset(disk: SimDisk, history: History) -> None:
    """§ Snapshot; N1."""
    for each in (SnapshotId(5, 3), SnapshotId(9, 1), SnapshotId(3, 3), SnapshotId(4, 2)):
        disk.open_append(f"{DIRECTORY}/{each.file_name}")
    found = snapshot_files.find_snapshots(disk, DIRECTORY)
    assert found == [(9, 1), (4, 2), (3, 3), (5, 3)]


def test_snapshot_file_is_next_to_the_segments_with_its_own_suffix(disk: SimDisk, history: History) -> None:
    """§ Snapshot Format, file name; N2: Kafka writes the epoch with 10 digits, the KIP has 20 (G23)."""
    history.snapshot()
    assert "00000000000000000013-0000000003.checkpoint" in disk.listdir(DIRECTORY)
    assert snapshot_files.snapshot_of("00000000000000000017-00000000000000000003.checkpoint") is None


def test_partial_file_has_another_suffix(disk: SimDisk, history: History) -> None:
    """§ Snapshot Format, atomicity; N3, N16."""
    seen: list[list[str]] = []
    batches = snapshot_of(history.image)

    def watched() -> Any:
        for batch in batches:
            seen.append([name for name in disk.listdir(DIRECTORY) if ".checkpoint" in name])
            yield batch

    history.log.write_snapshot(SnapshotId(17, 3), watched())
    assert seen[0] == ["00000000000000000017-0000000003.checkpoint.part"]
    assert [name for name in disk.listdir(DIRECTORY) if ".checkpoint" in name] == [
        "00000000000000000017-0000000003.checkpoint"
    ]


def test_snapshot_is_durable_before_the_rename(disk: SimDisk, history: History) -> None:
    """§ Snapshot Format; N16: fsync, rename, fsync of the directory."""
    order: list[str] = []
    for name in ("fsync", "rename", "fsync_dir"):
        original = getattr(disk, name)

        def reported(*arguments: Any, name: str = name, original: Callable[..., Any] = original) -> Any:
            order.append(name)
            return original(*arguments)

        setattr(disk, name, reported)
    history.snapshot()
    assert order == ["fsync", "rename", "fsync_dir"]


def test_failed_write_leaves_no_file(disk: SimDisk, history: History) -> None:
    """§ Snapshot Format; N16."""
    calls: tuple[Literal["write", "fsync", "rename"], ...] = ("write", "fsync", "rename")
    for call in calls:
        disk.fail(call, ".part")
        with pytest.raises(OSError, match="error"):
            history.snapshot()
        disk.heal()
        assert not [name for name in disk.listdir(DIRECTORY) if ".checkpoint" in name]


# -- § Snapshot Format ------------------------------------------------------------------------------------------------


def test_snapshot_uses_the_log_format(history: History) -> None:
    """§ Snapshot Format 1; N6: batches of magic 2, uncompressed, offsets from 0, the snapshot's epoch in each."""
    batches = _batches(content_of(history, history.snapshot()))
    content = content_of(history, history.log.snapshots[-1])
    assert all(header.codec is Codec.NONE and crc_is_valid(content, header) for header, _ in batches)
    assert {header.leader_epoch for header, _ in batches} == {EPOCH}
    offsets = [one.offset for _, records in batches for one in records]
    assert offsets == list(range(len(offsets)))


def test_the_first_batch_is_a_control_batch_with_the_header(history: History) -> None:
    """§ Snapshot Format, header; N7: version 0 and the append time of the last batch that it covers."""
    (header, records), *_ = _batches(content_of(history, history.snapshot()))
    assert header.is_control
    controls = [decode_control(one.key, one.value) for one in records]
    last_batch_ms = 1000 + history.log.end_offset - 4
    assert controls == [SnapshotHeader(0, last_batch_ms), KRaftVersion(0, 1), KRaftVoters(0, VOTERS)]


def test_the_last_batch_is_a_control_batch_with_the_footer(history: History) -> None:
    """§ Snapshot Format, footer; N8."""
    *_, (header, records) = _batches(content_of(history, history.snapshot()))
    assert header.is_control
    assert [decode_control(one.key, one.value) for one in records] == [SnapshotFooter()]


def test_snapshot_holds_exactly_the_complete_state(history: History) -> None:
    """§ Snapshot Format 2-4; N10: complete, no deletion, metadata.version first."""
    values = [
        one.value
        for header, records in _batches(content_of(history, history.snapshot()))
        if not header.is_control
        for one in records
    ]
    records = [decode_record(value) for value in values]
    assert records[0] == FeatureLevelRecord(METADATA_VERSION, 30)
    assert not [one for one in records if type(one).__name__.startswith(("Remove", "Unregister"))]
    assert not [one for one in records if type(one).__name__.endswith("ChangeRecord")]
    assert image_of(records, history.image.offset, EPOCH) == history.image


def test_large_state_is_split_into_batches(history: History) -> None:
    """N6: at most 1024 records in a batch, fewer if records are large."""
    from fenceline.metadata.delta import MetadataDelta
    from fenceline.metadata.records import ConfigRecord

    delta = MetadataDelta(history.image)
    for number in range(2500):
        delta.replay(ConfigRecord(4, "1", f"a{number:05}", "x" * (30_000 if number > 2000 else 1)))
    image, _ = delta.build(99, EPOCH)
    batches = [header for batch in snapshot_of(image) for header in iter_headers(batch)]
    assert max(header.record_count for header in batches) == 1024
    assert max(header.size_bytes for header in batches) < 8 << 20
    assert len(batches) > 6


# -- § When to Snapshot -----------------------------------------------------------------------------------------------


class Quorum:
    """The quorum as a snapshot needs it."""

    slowest_fetch_offset: int | None = None
    leader_log_start_offset: int | None = None

    def voters_before(self, end_offset: int) -> Any:
        assert end_offset > 0
        return 1, VOTERS


class Node:
    """Snapshots of a history, with a stopped clock."""

    def __init__(self, history: History, settings: Mapping[str, str], executor: AtOnce | None = None) -> None:
        overrides = {
            **settings,
            "log.dirs": "/data",
            "listeners": "PLAINTEXT://127.0.0.1:9092,CONTROLLER://localhost:9093",
            "controller.listener.names": "CONTROLLER",
        }
        self.history = history
        self.clock = StillClock()
        config = NodeConfig.load(None, overrides, {})
        self.snapshots = Snapshots(history.log, config, self.clock, executor or AtOnce())

    async def grow(self, batches: int = 1) -> None:
        for _ in range(batches):
            await self.commit(self.history.grow)

    async def commit(self, step: Callable[[], None]) -> None:
        """One step of the history, as the node receives it."""
        before = self.history.log.size_bytes
        step()
        size = self.history.log.size_bytes - before
        self.snapshots.follow(self.history.image, self.history.delta)
        self.snapshots.committed(size, self.history.image, Quorum())  # type: ignore[arg-type]
        await _turns()


_BYTES = "metadata.log.max.record.bytes.between.snapshots"
_INTERVAL = "metadata.log.max.snapshot.interval.ms"


def _run(story: Any) -> None:
    asyncio.run(asyncio.wait_for(story, 60))


async def _turns() -> None:
    """Threads finish immediately here: after a few turns of the loop their results are processed."""
    for _ in range(20):
        await asyncio.sleep(0)


def test_snapshot_is_taken_after_max_bytes(history: History) -> None:
    """§ When to Snapshot; N11: bytes of committed records since the last one."""

    async def story() -> None:
        node = Node(history, {_BYTES: "900", _INTERVAL: "0"})
        counts = []
        for _ in range(12):
            await node.grow()
            counts.append(len(history.log.snapshots))
        assert counts[0] == 0
        assert counts[-1] in (3, 4), counts
        assert all(later - earlier <= 1 for earlier, later in pairwise(counts))
        await node.snapshots.finish()

    _run(story())


def test_snapshot_is_taken_after_max_interval_if_records_were_committed(history: History) -> None:
    """Not in the KIP; N12, N13: Kafka's second limit; either of the two is sufficient. 0 disables it."""

    async def story(interval_ms: int) -> int:
        node = Node(history, {_INTERVAL: str(interval_ms)})
        await node.grow()
        node.clock.ms += 10_000
        await node.grow()
        node.clock.ms += 9_999
        await node.grow()
        await node.snapshots.finish()
        return len(history.log.snapshots)

    assert asyncio.run(story(0)) == 0
    assert asyncio.run(story(10_000)) == 1


_RATIO = "metadata.snapshot.min.changed_records.ratio"


def _counting(history: History, ratio: str = "0.5") -> Node:
    """The byte limit is always reached and the time limit never, so the ratio decides."""
    node = Node(history, {_RATIO: ratio, _BYTES: "1", _INTERVAL: "0"})
    node.snapshots.count_changes(history.image)
    return node


def _settings(name: str, count: int, value: str) -> list[ConfigRecord]:
    return [ConfigRecord(2, name, f"key-{number}", value) for number in range(count)]


def test_snapshot_requires_the_minimum_changed_ratio(disk: SimDisk) -> None:
    """§ When to Snapshot, changed ratio; G23: new records do not count, whatever their size."""

    async def story() -> None:
        history = History(disk)
        history.begin()
        node = _counting(history)
        await node.commit(lambda: history.commit([FeatureLevelRecord(METADATA_VERSION, 30), *_settings("a", 9, "1")]))
        assert node.snapshots.generated_count == 1, "the first one needs no change: 10 records"
        await node.commit(lambda: history.commit(_settings("b", 100, "1")))
        assert node.snapshots.generated_count == 1, "a hundred new records change none of the ten"
        await node.commit(lambda: history.commit(_settings("a", 4, "2")))
        await node.commit(lambda: history.commit(_settings("a", 4, "3")))
        assert node.snapshots.generated_count == 1, "4 of 10, each counted once"
        await node.commit(lambda: history.commit([ConfigRecord(2, "a", "key-8", None)]))
        assert node.snapshots.generated_count == 2, "and 1 deleted: 5 of 10"
        newest = history.log.newest_snapshot
        assert snapshot_files.verify_snapshot(disk, history.log.path_of(newest), newest).record_count > 100
        await node.commit(lambda: history.commit(_settings("a", 8, "4")))
        assert node.snapshots.generated_count == 2, "8 of 109"
        await node.snapshots.finish()

    _run(story())
    assert ALL_CONFIGS[_RATIO].default == "0", "not set: as in Kafka"


def test_added_records_count_once_modified_or_deleted(disk: SimDisk) -> None:
    """§ When to Snapshot, changed ratio: the KIP mentions this case."""

    async def story() -> None:
        history = History(disk)
        history.begin()
        node = _counting(history)
        await node.commit(lambda: history.commit([FeatureLevelRecord(METADATA_VERSION, 30), *_settings("a", 3, "1")]))
        await node.commit(lambda: history.commit(_settings("b", 2, "1")))
        assert node.snapshots.generated_count == 1
        await node.commit(lambda: history.commit([ConfigRecord(2, "b", "key-0", "2")]))
        assert node.snapshots.generated_count == 1
        await node.commit(lambda: history.commit([ConfigRecord(2, "b", "key-1", None)]))
        assert node.snapshots.generated_count == 2, "2 of 4"
        await node.snapshots.finish()

    _run(story())


def test_change_count_survives_a_restart(disk: SimDisk) -> None:
    """§ When to Snapshot, changed ratio: the difference between the snapshot on disk and the image is computed."""

    async def story() -> None:
        history = History(disk)
        history.begin()
        history.commit([FeatureLevelRecord(METADATA_VERSION, 30), *_settings("a", 9, "1")])
        history.snapshot()
        history.commit(_settings("a", 4, "2"))
        node = _counting(history)
        await _turns()
        await node.commit(lambda: history.commit(_settings("b", 100, "1")))
        assert node.snapshots.generated_count == 0
        await node.commit(lambda: history.commit([ConfigRecord(2, "a", "key-5", "2")]))
        assert node.snapshots.generated_count == 1
        await node.snapshots.finish()

    _run(story())


def test_loaded_leader_snapshot_resets_the_change_count(disk: SimDisk) -> None:
    """§ When to Snapshot, changed ratio; N14."""

    async def story() -> None:
        history = History(disk)
        history.begin()
        history.commit([FeatureLevelRecord(METADATA_VERSION, 30), *_settings("a", 9, "1")])
        history.snapshot()
        node = _counting(history)
        await _turns()
        before = history.image
        history.commit(_settings("a", 9, "2"))
        node.snapshots.loaded(history.image)
        node.snapshots.follow(history.image, difference(before, history.image))
        await node.commit(lambda: history.commit(_settings("a", 4, "3")))
        assert node.snapshots.generated_count == 0, "4 of 10: the nine are in the snapshot that was loaded"
        await node.commit(lambda: history.commit(_settings("a", 5, "4")))
        assert node.snapshots.generated_count == 1
        await node.snapshots.finish()

    _run(story())


def test_failed_snapshot_keeps_the_change_count(disk: SimDisk) -> None:
    """§ When to Snapshot, changed ratio; G32."""

    async def story() -> None:
        history = History(disk)
        history.begin()
        history.commit([FeatureLevelRecord(METADATA_VERSION, 30), *_settings("a", 9, "1")])
        history.snapshot()
        node = _counting(history)
        await _turns()
        disk.fail("write", ".part")
        await node.commit(lambda: history.commit(_settings("a", 5, "2")))
        assert (node.snapshots.generated_count, node.snapshots.failed_count) == (0, 1)
        disk.heal()
        await node.commit(lambda: history.commit(_settings("b", 1, "1")))
        assert node.snapshots.generated_count == 1
        await node.snapshots.finish()

    _run(story())


def test_one_snapshot_at_a_time_of_an_immutable_image(history: History) -> None:
    """§ When to Snapshot; N14, N16: the log grows while a thread writes; new records are not included."""

    async def story() -> None:
        held = Held()
        node = Node(history, {_BYTES: "1", _INTERVAL: "0"}, held)
        await node.grow()
        image = history.image
        await node.grow(3)
        assert len(held.waiting) == 1
        assert not history.log.snapshots
        held.let_go()
        await asyncio.sleep(0.01)
        (snapshot,) = history.log.snapshots
        assert snapshot == (image.offset + 1, EPOCH)
        held.let_go()
        await asyncio.sleep(0.01)
        replayed = MetadataLog.open(history.disk, DATA, now_ms=0)
        assert replayed.replay().image == history.image
        finishing = asyncio.ensure_future(node.snapshots.finish())
        await asyncio.sleep(0.01)
        held.let_go()
        await finishing

    _run(story())


def test_snapshot_ends_at_a_committed_batch_boundary(history: History) -> None:
    """§ When to Snapshot; N15, N53: not inside a batch, past the high watermark or of another epoch."""
    log = history.log
    end = log.end_offset
    assert log.timestamp_at_end_of(end - 1, EPOCH)() is not None
    assert log.timestamp_at_end_of(end - 2, EPOCH)() is None
    assert log.timestamp_at_end_of(end - 1, EPOCH + 1)() is None
    log.append(record_batch([FeatureLevelRecord("group.version", 1)], 30, 1), EPOCH, 1)
    assert log.timestamp_at_end_of(end, EPOCH)() is None


def test_snapshot_stores_the_voters_at_its_end_offset(history: History) -> None:
    """N7: not those of a change that may be reverted."""
    asked: list[int] = []

    class Changing(Quorum):
        def voters_before(self, end_offset: int) -> Any:
            asked.append(end_offset)
            return 1, VOTERS

    async def story() -> None:
        node = Node(history, {_BYTES: "1", _INTERVAL: "0"})
        node.snapshots.committed(100, history.image, Changing())  # type: ignore[arg-type]
        await node.snapshots.finish()
        (snapshot,) = history.log.snapshots
        assert asked == [snapshot.end_offset] == [history.image.offset + 1]
        found = snapshot_files.verify_snapshot(history.disk, history.log.path_of(snapshot), snapshot)
        assert (found.kraft_version, found.voters) == (1, VOTERS)

    _run(story())


def test_the_same_snapshot_is_not_written_twice(history: History) -> None:
    """N15."""

    async def story() -> None:
        node = Node(history, {_BYTES: "1", _INTERVAL: "0"})
        await node.grow()
        assert len(history.log.snapshots) == 1
        node.snapshots.committed(100, history.image, Quorum())  # type: ignore[arg-type]
        await asyncio.sleep(0.01)
        assert len(history.log.snapshots) == 1
        assert node.snapshots.generated_count == 1
        await node.snapshots.finish()

    _run(story())


# -- § When to Increase the Log Begin Offset, § When to Delete Snapshots ----------------------------------------------


def test_the_log_starts_at_0_or_at_a_snapshot(disk: SimDisk) -> None:
    """§ When to Increase the Log Begin Offset 1-2; N19, N48."""
    history = with_snapshots(disk, 4)
    log = history.log
    assert log.start_offset == 0
    ends = [each.end_offset for each in log.snapshots]
    sizes = log.snapshot_sizes(log.snapshots)
    total = log.size_bytes + sum(sizes.values())
    for limit in (total, total - 1, 1000, 0):
        log.forget_oldest(sizes, limit, 0)
        assert log.start_offset in (0, *ends)
        assert log.start_offset == 0 or log.start_offset == log.snapshots[0].end_offset
    assert log.start_offset == ends[-1]
    assert log.replay().image == history.image


def test_newest_snapshot_is_never_deleted(disk: SimDisk) -> None:
    """§ When to Delete Snapshots; N19, N20: so both limits are soft."""
    log = with_snapshots(disk, 3).log
    newest = log.newest_snapshot
    log.forget_oldest({}, 0, 10**12, timestamps=dict.fromkeys(log.snapshots, 0), max_age_ms=0)
    assert log.snapshots == [newest]


def test_expired_snapshots_are_deleted_oldest_first(disk: SimDisk) -> None:
    """§ When to Delete Snapshots; N18: by the time in the header, oldest first, until one is recent enough."""
    log = with_snapshots(disk, 4).log
    snapshots = list(log.snapshots)
    timestamps = log.snapshot_timestamps(snapshots)
    assert timestamps == {each: 1000 + each.end_offset - 4 for each in snapshots[1:]} | {
        snapshots[0]: 1000 + snapshots[0].end_offset - 4
    }
    age_ms = 10
    now_ms = timestamps[snapshots[1]] + age_ms + 1
    log.forget_oldest({}, -1, now_ms, timestamps=timestamps, max_age_ms=age_ms)
    assert log.snapshots == snapshots[2:]
    log.forget_oldest({}, -1, now_ms, timestamps=timestamps, max_age_ms=-1)
    assert log.snapshots == snapshots[2:]


_LAG = "metadata.start.offset.lag.time.max.ms"


def _cleaning(disk: SimDisk, quorum: Quorum, lag_ms: str) -> Node:
    """A history of three snapshots that have all expired."""
    history = with_snapshots(disk, 3)
    node = Node(history, {"metadata.max.retention.ms": "1000", _LAG: lag_ms, _INTERVAL: "0"})
    node.clock.ms = 10_000_000
    node.snapshots.replayed(0, lambda: history.image, quorum)  # type: ignore[arg-type]
    return node


async def _cleaned(node: Node) -> list[SnapshotId]:
    node.snapshots._clean()
    await _turns()
    return list(node.history.log.snapshots)


def test_leader_keeps_records_that_a_live_replica_still_fetches(disk: SimDisk) -> None:
    """§ When to Increase the Log Begin Offset 2a; G30: all live replicas have the records before the new start."""

    async def story() -> None:
        quorum = Quorum()
        node = _cleaning(disk, quorum, "604800000")
        oldest, second, newest = node.history.log.snapshots
        quorum.slowest_fetch_offset = second.end_offset - 1
        assert await _cleaned(node) == [oldest, second, newest]
        quorum.slowest_fetch_offset = second.end_offset
        assert await _cleaned(node) == [second, newest], "it is past one snapshot"
        quorum.slowest_fetch_offset = None
        assert await _cleaned(node) == [newest], "no replica is live"
        await node.snapshots.finish()

    _run(story())
    assert ALL_CONFIGS[_LAG].default == "604800000"


def test_leader_waits_for_the_start_offset_lag_time(disk: SimDisk) -> None:
    """§ When to Increase the Log Begin Offset 2b: metadata.start.offset.lag.time.max.ms, by the time in the header of
    the snapshot where the log is to start; so a restart or a leader change does not restart the wait."""

    async def story() -> None:
        quorum = Quorum()
        node = _cleaning(disk, quorum, "5000000")
        oldest, second, newest = node.history.log.snapshots
        quorum.slowest_fetch_offset = 0
        times = node.history.log.snapshot_timestamps([second, newest])
        node.clock.ms = times[second] + 5_000_000
        assert await _cleaned(node) == [oldest, second, newest]
        node.clock.ms += 1
        assert await _cleaned(node) == [second, newest]
        node.clock.ms = times[newest] + 5_000_001
        assert await _cleaned(node) == [newest]
        await node.snapshots.finish()

    _run(story())


def test_zero_start_offset_lag_time_disables_the_wait(disk: SimDisk) -> None:
    """§ When to Increase the Log Begin Offset 2b: 0 ms is Kafka's behaviour (N22)."""

    async def story() -> None:
        quorum = Quorum()
        quorum.slowest_fetch_offset = 0
        node = _cleaning(disk, quorum, "0")
        assert len(await _cleaned(node)) == 1
        await node.snapshots.finish()

    _run(story())


def test_follower_start_is_bounded_by_its_leader_and_its_newest_snapshot(disk: SimDisk) -> None:
    """§ When to Increase the Log Begin Offset, followers: at most the leader's, and only at a local snapshot
    (N19); G30: also bounded in time, and by twice the byte limit."""

    async def story() -> None:
        quorum = Quorum()
        node = _cleaning(disk, quorum, "604800000")
        oldest, second, newest = node.history.log.snapshots
        quorum.leader_log_start_offset = oldest.end_offset
        assert await _cleaned(node) == [oldest, second, newest]
        quorum.leader_log_start_offset = newest.end_offset - 1
        assert await _cleaned(node) == [second, newest]
        assert node.history.log.start_offset == second.end_offset, "a local snapshot below the leader's start"
        quorum.leader_log_start_offset = newest.end_offset + 1000
        assert await _cleaned(node) == [newest]
        assert node.history.log.start_offset == newest.end_offset
        await node.snapshots.finish()

    _run(story())


def test_twice_the_byte_limit_is_never_kept(disk: SimDisk) -> None:
    """G30."""
    history = with_snapshots(disk, 3)
    log = history.log
    sizes = log.snapshot_sizes(log.snapshots)
    everything = log.size_bytes + sum(sizes.values())
    wanted: Any = {
        "wanted_offset": log.snapshots[0].end_offset,
        "timestamps": dict.fromkeys(log.snapshots, 0),
        "max_lag_ms": 1000,
    }
    assert log.forget_oldest(sizes, everything // 2 + 1, 0, **wanted) == []
    assert len(log.snapshots) == 3
    log.forget_oldest(sizes, everything // 2 - 1, 0, **wanted)
    assert len(log.snapshots) < 3


def test_restart_begins_with_the_first_segment_and_serves_as_before(disk: SimDisk) -> None:
    """G31, N43: the log starts at its first segment; the oldest snapshot is at or after that."""
    history = with_snapshots(disk, 3)
    sizes = history.log.snapshot_sizes(history.log.snapshots)
    history.log.forget_oldest(sizes, 0, 0)
    (kept,) = history.log.snapshots
    assert history.log.start_offset == kept.end_offset
    log = MetadataLog.open(disk, DATA, now_ms=0)
    assert 0 <= log.start_offset <= kept.end_offset
    view = QuorumLog(log, VoterHistory(), 1)
    assert validate_offset_and_epoch(view, 0, 0) == NeedsSnapshot(kept)
    assert validate_offset_and_epoch(view, kept.end_offset, kept.epoch) == Valid()
    assert log.replay().image == history.image


def test_frozen_snapshot_is_immutable(disk: SimDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """N5."""
    opened: list[str] = []
    open_append = disk.open_append

    def watch(path: str) -> int:
        opened.append(path)
        return open_append(path)

    monkeypatch.setattr(disk, "open_append", watch)
    history = with_snapshots(disk, 3)
    for delete in history.log.forget_oldest(history.log.snapshot_sizes(history.log.snapshots), 0, 0):
        delete()
    MetadataLog.open(disk, DATA, now_ms=0).replay()
    assert opened
    assert not [path for path in opened if path.endswith(".checkpoint")]


def test_only_whole_segments_below_the_start_are_deleted(disk: SimDisk) -> None:
    """§ When to Increase the Log Begin Offset; N18, N20: no separate retention deletes segments."""
    log = with_snapshots(disk, 4).log
    before = len(log.partition_log.segments)
    log.partition_log.enforce_retention(10**13)
    assert len(log.partition_log.segments) == before
    deletions = log.forget_oldest({}, 0, 0)
    assert log.partition_log.segments[0].base_offset <= log.start_offset
    assert len(log.partition_log.segments) < before
    for delete in deletions:
        delete()
    names = disk.listdir(DIRECTORY)
    assert not [name for name in names if name.endswith(".deleted")]
    assert MetadataLog.open(disk, DATA, now_ms=0).start_offset <= log.start_offset, "G31: never checkpointed"


def test_reader_of_a_deleted_snapshot_reads_it_to_the_end(disk: SimDisk) -> None:
    """§ When to Delete Snapshots; N21: renamed immediately, deleted later."""
    log = with_snapshots(disk, 2).log
    oldest = log.snapshots[0]
    fd = disk.open_read(log.path_of(oldest))
    deletions = log.forget_oldest({}, 0, 0)
    assert disk.stat(log.path_of(oldest)) is None
    assert disk.stat(log.path_of(oldest) + ".deleted") is not None
    for delete in deletions:
        delete()
    assert disk.stat(log.path_of(oldest) + ".deleted") is None
    assert disk.pread(fd, 100, 0)


def test_cleaning_runs_periodically(disk: SimDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """N18: periodically, by both limits, without a new snapshot."""
    monkeypatch.setattr("fenceline.node.metadata.snapshots._CLEANING_S", 0.001)

    async def story() -> None:
        history = with_snapshots(disk, 3)
        node = Node(history, {"metadata.max.retention.ms": "1000", "internal.metadata.delete.delay.millis": "0"})
        node.clock.ms = 10_000_000
        node.snapshots.replayed(0, lambda: history.image, Quorum())  # type: ignore[arg-type]
        while len(history.log.snapshots) > 1:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        await node.snapshots.finish()
        assert not [name for name in disk.listdir(DIRECTORY) if name.endswith(".deleted")]

    _run(story())
