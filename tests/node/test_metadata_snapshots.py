"""When snapshots are written (snapshots.md N11, N12, N14)."""

from __future__ import annotations

import asyncio

import pytest

from fenceline.controller.requests import CreateTopics, NewTopic
from fenceline.node import metadata_snapshots
from fenceline.testing.sim_disk import SimDisk

from .controller_helpers import StillClock, driver, join, prepare


def _disk() -> SimDisk:
    disk = SimDisk()
    disk.mkdir("/data")
    prepare(disk, "/data")
    return disk


async def _turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_by_time_when_something_is_committed() -> None:
    async def story() -> None:
        clock = StillClock()
        controller = driver(_disk(), "/data", clock=clock)
        await controller.start()
        await join(controller)
        assert len(controller.log.snapshots) == 1
        clock.ms += 3_600_000
        await controller.submit(CreateTopics((NewTopic("t", 1, 1),)))
        await _turns()
        assert controller.log.snapshots[-1] == (controller.image.offset + 1, controller.epoch)

    asyncio.run(story())


def test_after_a_start_that_read_much(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_failed_snapshot_leaves_no_file_and_is_tried_again() -> None:
    async def story() -> None:
        disk = _disk()
        controller = driver(disk, "/data", overrides={"metadata.log.max.record.bytes.between.snapshots": "1"})
        await controller.start()
        disk.fail("fsync", ".part")
        await join(controller)
        await _turns()
        assert len(controller.log.snapshots) == 1
        disk.heal()
        await controller.submit(CreateTopics((NewTopic("t", 1, 1),)))
        await _turns()
        assert len(controller.log.snapshots) == 2
        await controller.stop()

    asyncio.run(story())
