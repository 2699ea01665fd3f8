"""A disk in memory for every test of this room that asks for one."""

from __future__ import annotations

import pytest

from fenceline.testing.sim_disk import SimDisk


@pytest.fixture
def disk() -> SimDisk:
    disk = SimDisk()
    disk.mkdir("/data")
    return disk
