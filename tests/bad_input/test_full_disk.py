"""Reports about a metadata log whose disk is full or fails. `tests/node` tests that a vote waits for space."""

from __future__ import annotations

import asyncio
import errno
from typing import Any

import pytest

from fenceline.errors import OperatorError
from fenceline.log.core.errors import StorageError
from fenceline.node.logs import redirect
from fenceline.node.metadata.metadata_log import METADATA_PARTITION
from fenceline.node.storage.storage_trouble import StorageTrouble
from fenceline.testing.sim_disk import SimDisk
from tests.node.controller_helpers import StillClock, driver, prepare

DIRECTORY = "/data"


def operator_error_after(error: BaseException) -> OperatorError:
    """The error reported to the operator when `error` stops the node."""

    async def story() -> OperatorError:
        disk = SimDisk()
        prepare(disk, DIRECTORY)
        controller = driver(disk, DIRECTORY)
        await controller.start()
        failed = controller.failed()
        controller.driver_failed(error)
        with pytest.raises(OperatorError) as reported:
            await failed
        await controller.stop()
        return reported.value

    return asyncio.run(story())


@pytest.mark.parametrize(
    "error", [OSError(errno.EIO, "Input/output error"), StorageError("flushing the log: Input/output error", errno.EIO)]
)
def test_failed_flush_reports_uncertain_disk_content(error: Exception) -> None:
    reported = operator_error_after(error)
    assert "Input/output error" in reported.message
    assert "The content of the disk is uncertain" in reported.advice


def test_full_disk_advice_asks_for_space_without_restart() -> None:
    reported: list[dict[str, Any]] = []
    before = redirect(lambda level, room, event, fields: reported.append({"event": event, **fields}))
    try:
        full = StorageError.of("appending", OSError(errno.ENOSPC, "No space left on device"))
        StorageTrouble(StillClock()).rejected(METADATA_PARTITION, 5, full)
    finally:
        redirect(before)
    (line,) = reported
    assert (line["event"], line["partition"]) == ("records rejected", "__cluster_metadata-0")
    assert "One of several controllers leaves the work to the others" in line["advice"]
    assert "takes part again once there is space. No restart is needed." in line["advice"]
