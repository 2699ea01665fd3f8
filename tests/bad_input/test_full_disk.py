"""What is said of a metadata log whose disk is full or fails. That a vote waits for room is `tests/node`'s."""

from __future__ import annotations

import asyncio
import errno
from typing import Any

import pytest

from fenceline.errors import OperatorError
from fenceline.log.errors import StorageError
from fenceline.node.logs import redirect
from fenceline.node.metadata_log import METADATA_PARTITION
from fenceline.node.storage_trouble import StorageTrouble
from fenceline.testing.sim_disk import SimDisk
from tests.node.controller_helpers import StillClock, driver, prepare

DIRECTORY = "/data"


def ends_with(error: BaseException) -> OperatorError:
    """What the operator is told when the node can not go on for `error`."""

    async def story() -> OperatorError:
        disk = SimDisk()
        prepare(disk, DIRECTORY)
        controller = driver(disk, DIRECTORY)
        await controller.start()
        failed = controller.failed()
        controller.driver_failed(error)
        with pytest.raises(OperatorError) as told:
            await failed
        await controller.stop()
        return told.value

    return asyncio.run(story())


@pytest.mark.parametrize(
    "error", [OSError(errno.EIO, "Input/output error"), StorageError("flushing the log: Input/output error", errno.EIO)]
)
def test_a_failed_flush_leaves_the_disk_uncertain(error: Exception) -> None:
    told = ends_with(error)
    assert "Input/output error" in told.message
    assert "The content of the disk is uncertain" in told.advice


def test_a_full_disk_asks_for_room_and_no_restart() -> None:
    told: list[dict[str, Any]] = []
    before = redirect(lambda level, room, event, fields: told.append({"event": event, **fields}))
    try:
        full = StorageError.of("appending", OSError(errno.ENOSPC, "No space left on device"))
        StorageTrouble(StillClock()).rejected(METADATA_PARTITION, 5, full)
    finally:
        redirect(before)
    (line,) = told
    assert (line["event"], line["partition"]) == ("records rejected", "__cluster_metadata-0")
    assert "One of several controllers leaves the work to the others" in line["advice"]
    assert "takes part again once there is space. No restart is needed." in line["advice"]
