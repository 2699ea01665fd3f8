"""A metadata log directory on a simulated disk, whose content is known at every offset."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from uuid import UUID

from fenceline.metadata.changes import Delta
from fenceline.metadata.delta import MetadataDelta
from fenceline.metadata.image import EMPTY_IMAGE, MetadataImage
from fenceline.metadata.node_records import RegisterBrokerRecord
from fenceline.metadata.records import (
    ConfigRecord,
    FeatureLevelRecord,
    MetadataRecord,
    PartitionRecord,
    ProducerIdsRecord,
    TopicRecord,
)
from fenceline.node.metadata.batches import SnapshotBatches, control_batch, record_batch
from fenceline.node.metadata.metadata_log import MetadataLog
from fenceline.quorum.control_records import ControlRecord, KRaftVersion, KRaftVoters, Voter, leader_change
from fenceline.quorum.log_view import SnapshotId
from fenceline.testing.sim_disk import SimDisk
from fenceline.testing.simulation.disk import LifeDisk
from fenceline.testing.simulation.scheduler import ProcessEnded
from tests.support.lives import a_life

DATA = "/data"
DIRECTORY = f"{DATA}/__cluster_metadata-0"
EPOCH = 3
VOTER = Voter(1, UUID(int=500))
VOTERS = (VOTER,)


def records_of(number: int) -> list[MetadataRecord]:
    """The records of batch `number` of every history; they apply after the previous batches."""
    if number == 0:
        broker = RegisterBrokerRecord(broker_id=1, broker_epoch=4, log_dirs=(UUID(int=7),))
        return [FeatureLevelRecord("metadata.version", 30), broker]
    topic = UUID(int=number)
    return [
        TopicRecord(f"topic-{number}", topic),
        PartitionRecord(0, topic, (1,), (1,), (), (), 1, 0, 0, 0, (UUID(int=7),)),
        ConfigRecord(2, f"topic-{number}", "retention.ms", str(number)),
        ProducerIdsRecord(1, 4, number * 1000),
    ]


class History:
    """A log that grows by batches, and the image after each batch."""

    def __init__(self, disk: SimDisk | LifeDisk, *, segment_bytes: int = 1 << 20) -> None:
        self.disk = disk
        self.log = MetadataLog.open(disk, DATA, now_ms=0, segment_bytes=segment_bytes)
        self.image = EMPTY_IMAGE
        self.images: dict[int, MetadataImage] = {}
        self.committed_offset = -1
        """Of the last record that is durable."""
        self.number = 0
        self.delta = Delta()
        """What the last batch changed."""

    def begin(self) -> None:
        """The first batch of the epoch."""
        opening: list[ControlRecord] = [leader_change(1, [1], [1]), KRaftVersion(0, 1), KRaftVoters(0, VOTERS)]
        self.log.append(control_batch(opening, 1000), EPOCH, 1000)
        self._flushed(MetadataDelta(EMPTY_IMAGE).build(self.log.end_offset - 1, EPOCH)[0])

    def grow(self, batches: int = 1) -> None:
        """Appends committed batches; their timestamp is 1000 ms plus their base offset."""
        for _ in range(batches):
            records = records_of(self.number)
            self.number += 1
            self.commit(records)

    def commit(self, records: Sequence[MetadataRecord]) -> None:
        """Appends one committed batch."""
        now_ms = 1000 + self.log.end_offset
        self.log.append(record_batch(records, 30, now_ms), EPOCH, now_ms)
        delta = MetadataDelta(self.image)
        for record in records:
            delta.replay(record)
        image, self.delta = delta.build(self.log.end_offset - 1, EPOCH)
        self._flushed(image)

    def _flushed(self, image: MetadataImage) -> None:
        self.log.flush()
        self.log.advance_high_watermark(self.log.end_offset)
        self.image = image
        self.committed_offset = self.log.end_offset - 1
        self.images[self.committed_offset] = image

    def snapshot(self) -> SnapshotId:
        """Writes a frozen and registered snapshot of the current state."""
        snapshot = SnapshotId(self.image.offset + 1, EPOCH)
        timestamp_ms = self.log.timestamp_at_end_of(self.image.offset, EPOCH)()
        assert timestamp_ms is not None
        self.log.write_snapshot(snapshot, snapshot_of(self.image, timestamp_ms))
        self.log.snapshot_written(snapshot)
        return snapshot


def with_snapshots(disk: SimDisk, count: int, segment_bytes: int = 300) -> History:
    """A history with `count` snapshots, each after two batches."""
    history = History(disk, segment_bytes=segment_bytes)
    history.begin()
    for _ in range(count):
        history.grow(2)
        history.snapshot()
    return history


def content_of(history: History, snapshot: SnapshotId) -> bytes:
    """The bytes of its file."""
    found = history.disk.pread(history.disk.open_read(history.log.path_of(snapshot)), 1 << 30, 0)
    return bytes(found)


def snapshot_of(image: MetadataImage, timestamp_ms: int = 0) -> SnapshotBatches:
    return SnapshotBatches(image, now_ms=5000, last_log_timestamp_ms=timestamp_ms, kraft_version=1, voters=VOTERS)


def image_after(batches: int, end_offset: int, epoch: int) -> MetadataImage:
    """The image of the first `batches` of every history, as on another node."""
    delta = MetadataDelta(EMPTY_IMAGE)
    for number in range(batches):
        for record in records_of(number):
            delta.replay(record)
    return delta.build(end_offset - 1, epoch)[0]


def crash_at_every_call(
    story: Callable[[LifeDisk], None],
    check: Callable[[SimDisk], None],
    *,
    boot: Callable[[LifeDisk], object] | None = None,
    seeds: int = 6,
) -> int:
    """Run the story with a power loss at its first, second, ... disk change until it completes. Check the disk after
    each, and after a second power loss at each disk change of the following `boot`. Returns the number of disk
    changes in the story."""
    for changes in range(10_000):
        crashed = False
        for seed in range(seeds):
            disk = SimDisk(seed * 10_007 + changes)
            disk.mkdir(DATA)
            life = a_life(disk, seed, changes)
            try:
                story(life)
            except ProcessEnded:
                crashed = True
            else:
                life.end()
            if boot is not None and seed == 0:
                crash_at_every_call_of(boot, disk, check)
            check(disk)
        if not crashed:
            return changes
    raise AssertionError("the story does not end")


def crash_at_every_call_of(
    boot: Callable[[LifeDisk], object], found: SimDisk, check: Callable[[SimDisk], None]
) -> None:
    """A power loss at each disk change that `boot` makes."""
    for changes in range(1000):
        disk = deepcopy(found)
        life = a_life(disk, changes, changes)
        try:
            boot(life)
        except ProcessEnded:
            check(disk)
        else:
            return
    raise AssertionError("the boot does not end")
