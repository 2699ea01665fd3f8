"""Lives of a machine on a simulated disk."""

from __future__ import annotations

from random import Random

from fenceline.testing.sim_disk import SimDisk
from fenceline.testing.simulation.disk import LifeDisk


def a_life(disk: SimDisk, seed: int, changes: int = -1) -> LifeDisk:
    """The disk of a machine that loses its power at this many changes from now; at none where that is negative."""

    def die() -> None:
        life.forget()
        disk.crash()

    life = LifeDisk(disk, Random(seed), log_event=lambda _: None, end_process=die)
    life.crash_after(changes)
    return life
