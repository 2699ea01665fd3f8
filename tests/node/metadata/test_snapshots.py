"""When snapshots are written (snapshots.md N11, N12, N14)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fenceline.controller.requests import (
    ConfigChange,
    ConfigOperation,
    CreateTopics,
    DeleteTopics,
    IncrementalAlterConfigs,
    TopicReference,
    TopicToCreate,
)
from fenceline.metadata.image import ConfigResource, ConfigResourceType
from fenceline.node.controller.driver import ControllerDriver
from fenceline.node.logs import Logger
from fenceline.node.metadata import snapshots as metadata_snapshots
from fenceline.node.metadata.metadata_log import MetadataLog
from fenceline.testing.sim_disk import SimDisk
from tests.node.controller_helpers import StillClock, driver, join, joined, prepare


def _disk() -> SimDisk:
    disk = SimDisk()
    disk.mkdir("/data")
    prepare(disk, "/data")
    return disk


async def _turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_a_snapshot_is_written_by_time_when_something_was_committed() -> None:
    async def story() -> None:
        clock = StillClock()
        controller = await joined(_disk(), "/data", clock=clock)
        assert len(controller.log.snapshots) == 1
        clock.ms += 3_600_000
        await controller.submit(CreateTopics((TopicToCreate("t", 1, 1),)))
        await _turns()
        assert controller.log.snapshots[-1] == (controller.image.offset + 1, controller.epoch)

    asyncio.run(story())


def test_a_running_controller_counts_modified_and_deleted_records() -> None:
    """KIP-630 changed ratio: new topics and settings do not count, changed settings do; G23."""
    overrides = {
        "metadata.log.max.record.bytes.between.snapshots": "1",
        "metadata.log.max.snapshot.interval.ms": "0",
        "metadata.snapshot.min.changed_records.ratio": "0.5",
    }

    async def create(controller: ControllerDriver, stem: str) -> None:
        for number in range(20):
            await controller.submit(CreateTopics((TopicToCreate(f"{stem}{number}", 1, 1),)))
            await _turns()

    async def alter(controller: ControllerDriver, number: int, value: str) -> None:
        change = ConfigChange("retention.ms", ConfigOperation.SET, value)
        resource = ConfigResource(ConfigResourceType.TOPIC, f"t{number}")
        answer = await controller.submit(IncrementalAlterConfigs(((resource, (change,)),)))
        assert answer.resources[0].outcome.code == 0
        await _turns()

    async def alter_all(controller: ControllerDriver, value: str) -> None:
        for number in range(20):
            await alter(controller, number, value)

    async def story() -> None:
        disk = _disk()
        controller = await joined(disk, "/data", overrides=overrides)
        small = controller.log.newest_snapshot
        await create(controller, "t")
        for number in range(20):
            await alter(controller, number, "1")
            if controller.log.newest_snapshot == small:
                await alter(controller, number, "2")
        newest = controller.log.newest_snapshot
        assert newest != small
        await create(controller, "u")
        assert controller.log.newest_snapshot == newest, "40 new records, no other record changed"
        await alter_all(controller, "7")
        assert controller.log.newest_snapshot == newest, "20 of more than 40"
        for number in range(10):
            await controller.submit(DeleteTopics((TopicReference(f"t{number}"),)))
            await _turns()
        assert controller.log.newest_snapshot != newest, "and 20 of deleted topics"
        await controller.stop()

    asyncio.run(story())


def test_a_snapshot_is_written_after_a_start_that_replayed_many_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_snapshots, "_REPLAYED_RECORDS", 10)
    monkeypatch.setattr(metadata_snapshots, "_QUIET_S", 0.0)

    async def story() -> None:
        disk = _disk()
        first = driver(disk, "/data")
        await first.start()
        await join(first)
        await first.stop()
        second = driver(disk, "/data", seed=2)
        await second.start()
        await _turns(1000)
        await second.stop()
        assert second.log.replay().snapshot.end_offset == second.image.offset + 1

    asyncio.run(story())


def test_a_failed_snapshot_leaves_no_file_and_is_reported_and_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    """G32: counted, and always retried; N54."""
    reported: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.setattr(Logger, "_write", lambda self, level, event, fields: reported.append((event, fields)))

    async def story() -> None:
        disk = _disk()
        controller = driver(disk, "/data", overrides={"metadata.log.max.record.bytes.between.snapshots": "1"})
        await controller.start()
        disk.fail("fsync", ".part")
        await join(controller)
        await _turns()
        assert len(controller.log.snapshots) == 1
        event, fields = reported[0]
        assert event == "metadata snapshot not written"
        assert controller._snapshots is not None
        assert (controller._snapshots.failed_count, controller._snapshots.generated_count) == (len(reported), 0)
        assert fields["path"].endswith(".checkpoint")
        disk.heal()
        await controller.submit(CreateTopics((TopicToCreate("t", 1, 1),)))
        await _turns()
        assert len(controller.log.snapshots) == 2
        assert controller._snapshots.generated_count == 1
        await controller.stop()

    asyncio.run(story())


def test_the_oldest_snapshots_are_deleted_above_the_retention_size(monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[str] = []
    monkeypatch.setattr(Logger, "_write", lambda self, level, event, fields: reported.append(event))

    async def story() -> None:
        disk, clock = _disk(), StillClock()
        overrides = {
            "metadata.log.max.record.bytes.between.snapshots": "700",
            "metadata.max.retention.bytes": "4000",
            "metadata.log.segment.ms": "1",
        }
        controller = await joined(disk, "/data", clock=clock, overrides=overrides)
        for number in range(40):
            clock.ms += 1000
            await controller.submit(CreateTopics((TopicToCreate(f"t{number}", 1, 1),)))
            await _turns()
        log = controller.log
        assert log.start_offset == log.snapshots[0].end_offset > 0
        kept = {name for name in disk.listdir(log.directory) if name.endswith(".checkpoint")}
        assert kept == {each.file_name for each in log.snapshots}
        segments = [name for name in disk.listdir(log.directory) if name.endswith(".log")]
        assert len(segments) == len(log.partition_log.segments) < 40
        image = controller.image
        await controller.stop()
        assert MetadataLog.open(disk, "/data", now_ms=0).replay().image == image

    asyncio.run(story())
    assert not reported


def test_a_failed_deletion_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.setattr(Logger, "_write", lambda self, level, event, fields: reported.append((event, fields)))

    async def story() -> None:
        disk = _disk()
        overrides = {"metadata.log.max.record.bytes.between.snapshots": "700", "metadata.max.retention.bytes": "0"}
        controller = driver(disk, "/data", overrides=overrides)
        await controller.start()
        disk.fail("rename", ".checkpoint")
        await join(controller)
        for number in range(10):
            await controller.submit(CreateTopics((TopicToCreate(f"t{number}", 1, 1),)))
            await _turns()
        await controller.stop()

    asyncio.run(story())
    assert {event for event, _ in reported} == {"could not delete old metadata"}
