"""Every invariant detects its violation: views with one wrong value each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from uuid import UUID

import pytest

from fenceline.metadata.image import EMPTY_IMAGE, MetadataImage
from fenceline.metadata.records import NoOpRecord, TopicRecord
from fenceline.node.metadata.batches import SnapshotBatches, record_batch
from fenceline.testing.simulation.checks import InvariantBroken, Invariants
from fenceline.testing.simulation.options import Options
from fenceline.testing.simulation.world import NodeState, Process, StoredBatch, World

FIRST = NodeState(1, 1, True, 0, 0, 0, ((0, 0),), ((1, "a"),), -1)


def batch(base: int, epoch: int = 1, topic: str | None = None) -> StoredBatch:
    """A batch of one record."""
    record = NoOpRecord() if topic is None else TopicRecord(topic, UUID(int=base + 1))
    content = bytes(record_batch([record], 30, 0, base_offset=base, epoch=epoch))
    return StoredBatch(base, base + 1, epoch, content)


@dataclass
class FakeView:
    """A node that reports values set by the test."""

    now: NodeState = FIRST
    log: list[StoredBatch] = field(default_factory=list)
    published: MetadataImage | None = None
    snapshots: dict[tuple[int, int], bytes] = field(default_factory=dict)
    has_failed: bool = False
    log_directory: str = "/data"

    def has_changed(self) -> bool:
        return True

    def state(self) -> NodeState:
        return self.now

    def batches(self, start: int, end: int) -> list[StoredBatch]:
        return [each for each in self.log if each.next_offset > start and each.base_offset < end]

    def image(self) -> MetadataImage | None:
        return self.published

    def read_snapshot(self, end_offset: int, epoch: int) -> bytes | None:
        return self.snapshots.get((end_offset, epoch))


class Scene:
    """Two nodes of three committed batches; node 1 leads epoch 1."""

    def __init__(self) -> None:
        async def body(process: Process) -> None: ...

        self.body = body
        self.world = World(1, Options(nodes=2))
        self.invariants = Invariants(self.world)
        log = [batch(0), batch(1, topic="t"), batch(2)]
        self.nodes = [self.world.add(1, body), self.world.add(2, body)]
        self.one, self.two = FakeView(log=list(log)), FakeView(log=list(log))
        self.nodes[0].view, self.nodes[1].view = self.one, self.two
        self.sync(1, log)
        self.set(1, log_end=3, high_watermark=3)
        self.set(2, is_leader=False, log_end=3, high_watermark=3)

    def set(self, node_id: int, **changes: object) -> None:
        violation = self.one if node_id == 1 else self.two
        violation.now = violation.now._replace(**changes)
        self.invariants.check(self.nodes[node_id - 1])

    def sync(self, node_id: int, batches: list[StoredBatch]) -> None:
        """Write the batches to the node's disk and sync them."""
        disk = self.nodes[node_id - 1].disk
        fd = disk.open_append("/data/0.log")
        for each in batches:
            disk.write(fd, each.content)
        disk.fsync(fd)
        disk.close(fd)
        disk.fsync_dir("/data")

    def restart(self, node_id: int, **changes: object) -> None:
        self.invariants._life_ended(self.nodes[node_id - 1])
        self.set(node_id, **changes)


def _two_leaders(scene: Scene) -> None:
    scene.set(2, is_leader=True)


def _epoch_decreases(scene: Scene) -> None:
    scene.set(2, epoch=0)


def _epoch_decreases_after_a_restart(scene: Scene) -> None:
    scene.set(2, epoch=7, leader_id=-1)
    scene.restart(2, epoch=6, leader_id=-1)


def _high_watermark_decreases(scene: Scene) -> None:
    scene.set(2, high_watermark=2)


def _committed_record_changed(scene: Scene) -> None:
    scene.two.log[2] = batch(2, topic="other")
    scene.invariants.check_all()


def _another_batch_of_the_same_epoch(scene: Scene) -> None:
    scene.one.log.append(batch(3))
    scene.set(1, log_end=4)
    scene.two.log.append(batch(3, topic="other"))
    scene.set(2, log_end=4)


def _committed_record_in_another_epoch(scene: Scene) -> None:
    scene.two.log[2] = batch(2, epoch=0)
    scene.restart(2)


def _hole_in_the_committed_log(scene: Scene) -> None:
    scene.two.log.append(batch(4))
    scene.set(2, log_end=5, high_watermark=5)


def _leader_without_committed_records(scene: Scene) -> None:
    scene.set(2, epoch=2, is_leader=True, log_end=2, high_watermark=2)


def _published_image_changes(scene: Scene) -> None:
    image = scene.invariants.committed.image_at(2)
    assert image is not None
    scene.one.published = image
    scene.set(1, image_offset=2)
    scene.one.published = replace(
        image, topics_by_name=EMPTY_IMAGE.topics_by_name, topics_by_id=EMPTY_IMAGE.topics_by_id
    )
    scene.invariants.check_all()


def _leader_with_other_records(scene: Scene) -> None:
    scene.two.log[1] = batch(1, topic="other")
    scene.set(2, epoch=2, is_leader=True)


def _high_watermark_beyond_the_log_end(scene: Scene) -> None:
    scene.set(2, high_watermark=4)


def _log_start_without_snapshot(scene: Scene) -> None:
    scene.set(2, log_start=2)


def _log_start_beyond_the_log_end(scene: Scene) -> None:
    scene.set(2, log_start=4)


def _two_voters_added_at_once(scene: Scene) -> None:
    scene.set(2, voters=((1, "a"), (2, "b"), (3, "c")))


def _two_voters(scene: Scene) -> None:
    scene.set(1, voters=((1, "a"), (2, "b")))


def _committed_on_one_of_two(scene: Scene) -> None:
    _two_voters(scene)
    scene.one.log.append(batch(3))
    scene.sync(1, scene.one.log[3:])
    scene.set(1, log_end=4)
    scene.set(1, high_watermark=4)


def _a_follower_commits_before_its_leader(scene: Scene) -> None:
    _two_voters(scene)
    scene.two.log.append(batch(3))
    scene.sync(2, scene.two.log[3:])
    scene.set(2, log_end=4)
    scene.set(2, high_watermark=4)


def _commits_an_old_epoch_by_counting(scene: Scene) -> None:
    scene.two.log.append(batch(3))
    scene.sync(2, scene.two.log)
    scene.set(2, epoch=2, leader_id=2, is_leader=True, log_end=4)
    scene.set(2, high_watermark=4)


def _committed_and_not_synced(scene: Scene) -> None:
    scene.one.log.append(batch(3))
    scene.set(1, log_end=4, high_watermark=4)


def _leader_truncates_its_log(scene: Scene) -> None:
    scene.one.log.append(batch(3))
    scene.set(1, log_end=4)
    scene.set(1, log_end=3)


def _leader_loads_a_snapshot(scene: Scene) -> None:
    scene.set(1, snapshots=((0, 0),), log_start=0)
    image = scene.invariants.committed.image_at(2)
    assert image is not None
    scene.invariants.committed.compare(batch(3), "n3")
    scene.one.snapshots[4, 1] = _snapshot(scene.invariants.committed.image_at(3) or image)
    scene.set(1, snapshots=((4, 1),), log_start=4, log_end=4)


def _healthy_quorum_is_disturbed(scene: Scene) -> None:
    _two_voters(scene)
    scene.set(2, is_leader=False, in_touch=True, voters=((1, "a"), (2, "b")))
    scene.world.scheduler.now_s = 30.0
    third = scene.world.add(3, scene.body)
    third.view = FakeView(log=list(scene.two.log), now=scene.two.now._replace(in_touch=False))
    scene.invariants.check(third)
    third.view.now = third.view.now._replace(epoch=2, leader_id=-1)
    scene.invariants.check(third)


def _image_before_commit(scene: Scene) -> None:
    scene.one.published = EMPTY_IMAGE
    scene.set(1, image_offset=3)


def _image_differs_from_the_log(scene: Scene) -> None:
    image = scene.invariants.committed.image_at(2)
    assert image is not None
    scene.one.published = replace(image, topics_by_name=EMPTY_IMAGE.topics_by_name)
    scene.set(1, image_offset=2)


def _snapshot_batches(image: MetadataImage) -> list[bytearray]:
    return list(SnapshotBatches(image, now_ms=0, last_log_timestamp_ms=0, kraft_version=0, voters=()))


def _snapshot(image: MetadataImage) -> bytes:
    return b"".join(_snapshot_batches(image))


def _snapshot_differs_from_the_log(scene: Scene) -> None:
    image = scene.invariants.committed.image_at(2)
    assert image is not None
    other = replace(image, topics_by_name=EMPTY_IMAGE.topics_by_name, topics_by_id=EMPTY_IMAGE.topics_by_id)
    scene.two.snapshots[3, 1] = _snapshot(other)
    scene.set(2, snapshots=((0, 0), (3, 1)))


def _snapshot_without_footer(scene: Scene) -> None:
    image = scene.invariants.committed.image_at(2)
    assert image is not None
    scene.two.snapshots[3, 1] = b"".join(_snapshot_batches(image)[:-1])
    scene.set(2, snapshots=((0, 0), (3, 1)))


def _snapshot_beyond_the_log_end(scene: Scene) -> None:
    scene.set(2, snapshots=((0, 0), (9, 1)))


def _snapshot_of_another_epoch(scene: Scene) -> None:
    scene.set(2, snapshots=((0, 0), (3, 0)))


@pytest.mark.parametrize(
    ("violation", "rule"),
    [
        (_two_leaders, "Q51"),
        (_epoch_decreases, "Q50"),
        (_epoch_decreases_after_a_restart, "Q50"),
        (_high_watermark_decreases, "Q53"),
        (_committed_record_changed, "Q56"),
        (_another_batch_of_the_same_epoch, "log matching"),
        (_committed_record_in_another_epoch, "Q56"),
        (_hole_in_the_committed_log, "Q56"),
        (_leader_without_committed_records, "Q56"),
        (_leader_with_other_records, "Q56"),
        (_high_watermark_beyond_the_log_end, "N49"),
        (_log_start_without_snapshot, "N48"),
        (_log_start_beyond_the_log_end, "N49"),
        (_two_voters_added_at_once, "Q44"),
        (_committed_on_one_of_two, "Q52"),
        (_committed_and_not_synced, "Q52"),
        (_a_follower_commits_before_its_leader, "Q52"),
        (_commits_an_old_epoch_by_counting, "Q32"),
        (_leader_truncates_its_log, "Q55"),
        (_leader_loads_a_snapshot, "Q55"),
        (_healthy_quorum_is_disturbed, "K7"),
        (_image_before_commit, "G35"),
        (_image_differs_from_the_log, "C1"),
        (_published_image_changes, "C1"),
        (_snapshot_differs_from_the_log, "N50"),
        (_snapshot_without_footer, "N50"),
        (_snapshot_beyond_the_log_end, "N53"),
        (_snapshot_of_another_epoch, "N53"),
    ],
)
def test_each_violation_is_detected(violation: Callable[[Scene], None], rule: str) -> None:
    scene = Scene()
    with pytest.raises(InvariantBroken, match=rule):
        violation(scene)


def test_a_correct_history_passes() -> None:
    scene = Scene()
    image = scene.invariants.committed.image_at(2)
    assert image is not None
    assert set(image.topics_by_name) == {"t"}
    scene.one.published = image
    scene.set(1, image_offset=2)
    scene.two.snapshots[3, 1] = _snapshot(image)
    scene.set(2, snapshots=((0, 0), (3, 1)))
    scene.set(2, snapshots=((3, 1),), log_start=3)
    scene.set(2, epoch=2, is_leader=True, leader_id=2)
    scene.set(2, voters=((1, "a"), (2, "b")))
    scene.two.log.append(batch(3, 2))
    scene.sync(1, scene.two.log)
    scene.sync(2, scene.two.log)
    scene.set(2, log_end=4)
    scene.set(2, high_watermark=4)
    scene.restart(1, epoch=1, high_watermark=0, is_leader=False)
    late = scene.world.add(3, scene.body)  # elected in an epoch that is over, which it does not know yet
    late.view = FakeView(now=FIRST._replace(epoch=1, leader_id=3, is_leader=False))
    scene.invariants.check(late)
    scene.invariants._leaders.clear()
    late.view.now = late.view.now._replace(is_leader=True)
    scene.invariants.check(late)
    scene.set(1, epoch=2, is_leader=False, leader_id=2, high_watermark=3)
    scene.invariants.check_all()
    assert scene.invariants.changes > 8
