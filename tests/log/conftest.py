"""An in-memory disk for every test of this directory that requests it."""

from __future__ import annotations

import pytest

from fenceline.testing.sim_disk import SimDisk


@pytest.fixture
def disk() -> SimDisk:
    disk = SimDisk()
    disk.mkdir("/data")
    return disk
