"""A directory on a simulated disk for the tests of KIP-630."""

from __future__ import annotations

import pytest

from fenceline.testing.sim_disk import SimDisk
from tests.kip.snapshot_directory import DATA, History


@pytest.fixture
def disk() -> SimDisk:
    disk = SimDisk()
    disk.mkdir(DATA)
    return disk


@pytest.fixture
def history(disk: SimDisk) -> History:
    made = History(disk)
    made.begin()
    made.grow(3)
    return made
