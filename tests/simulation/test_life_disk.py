"""The disk of one process: its end, its crash points, and wrong bits."""

from __future__ import annotations

from random import Random

import pytest

from fenceline.log.core.disk import read_file, replace_file
from fenceline.testing.sim_disk import SimDisk
from fenceline.testing.simulation.disk import LifeDisk
from fenceline.testing.simulation.scheduler import ProcessEnded


class Machine:
    def __init__(self, seed: int = 1) -> None:
        self.disk = SimDisk(seed)
        self.disk.mkdir("/d")
        self.reported: list[str] = []
        self.life = LifeDisk(self.disk, Random(seed), log_event=self.reported.append, end_process=self._die)

    def _die(self) -> None:
        self.life.forget()
        self.disk.crash()


def test_an_ended_process_changes_nothing() -> None:
    machine = Machine()
    fd = machine.life.open_append("/d/a")
    machine.life.write(fd, b"written")
    machine.life.end()
    for call in (
        lambda: machine.life.write(fd, b"more"),
        lambda: machine.life.fsync(fd),
        lambda: machine.life.open_append("/d/b"),
        lambda: machine.life.unlink("/d/a"),
        lambda: machine.life.listdir("/d"),
        lambda: machine.life.stat("/d/a"),
    ):
        with pytest.raises(ProcessEnded):
            call()
    assert machine.disk.peek("/d/a") == b"written", "the system persists the writes of a killed process"
    assert machine.disk.open_descriptors == 0


def test_replacing_a_file_survives_a_crash_at_every_call() -> None:
    """The file is old or new, never partial: all durable state depends on this."""
    seen: set[tuple[int, bytes | None]] = set()
    crashes = 0
    for calls in range(8):
        for seed in range(30):
            machine = Machine(seed)
            replace_file(machine.life, "/d/a", b"old")
            machine.life.crash_after(calls)
            try:
                replace_file(machine.life, "/d/a", b"new" * 1000)
            except ProcessEnded:
                crashes += 1
            seen.add((calls, machine.disk.peek("/d/a")))
    assert crashes == 150, "five calls"
    assert {content for _, content in seen} == {b"old", b"new" * 1000}
    assert {content for calls, content in seen if calls == 0} == {b"old"}
    assert {content for calls, content in seen if calls == 7} == {b"new" * 1000}


def test_a_write_is_torn() -> None:
    sizes = set()
    for seed in range(40):
        machine = Machine(seed)
        fd = machine.life.open_append("/d/a")
        machine.life.fsync_dir("/d")
        machine.life.crash_after(0)
        with pytest.raises(ProcessEnded):
            machine.life.write(fd, b"x" * 100)
        sizes.add(len(machine.disk.peek("/d/a") or b""))
    assert 0 in sizes
    assert len(sizes) > 5


def test_the_next_append_of_one_directory_is_torn() -> None:
    """Other writes succeed."""
    sizes = set()
    for seed in range(20):
        machine = Machine(seed)
        machine.disk.mkdir("/d/a-0")
        machine.life.crash_in_append("/d/a-0")
        replace_file(machine.life, "/d/a-0/00.txt", b"text")
        replace_file(machine.life, "/d/00.log", b"another directory")
        fd = machine.life.open_append("/d/a-0/00.log")
        machine.life.fsync_dir("/d/a-0")
        with pytest.raises(ProcessEnded):
            machine.life.write(fd, b"x" * 100)
        sizes.add(len(machine.disk.peek("/d/a-0/00.log") or b""))
    assert len(sizes) > 5
    machine = Machine()
    machine.life.crash_in_append("/d")
    machine.life.cancel_crash()
    machine.life.write(machine.life.open_append("/d/00.log"), b"x")


def test_wrong_bits_are_read_but_not_stored() -> None:
    machine = Machine()
    replace_file(machine.life, "/d/a", bytes(100))
    machine.life.flip_chance = 1.0
    wrong = read_file(machine.life, "/d/a")
    assert wrong is not None
    assert sum(each.bit_count() for each in wrong) == 1
    machine.life.flip_chance = 0.0
    assert read_file(machine.life, "/d/a") == bytes(100)
    assert machine.life.flips == 1


def test_every_change_is_reported() -> None:
    machine = Machine()
    replace_file(machine.life, "/d/a", b"content")
    assert [line.split()[0] for line in machine.reported] == ["create", "write", "fsync", "rename", "fsync"]
    assert machine.life.changes == 5
