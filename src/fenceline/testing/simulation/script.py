"""Scripts: what is done to a simulated cluster, line by line, and what is seen of it after each.

Owns the language and its words for what is seen. They say nothing of times, ids and offsets, which change with every
change of the code: "another leader" is a promise, "node 2 at 1.234 s" is an accident.

| Line | Does |
|---|---|
| `cluster STORY key=value ...` | first line: a story of `stage.STORIES`, its options without any faults |
| `settle` | runs until one leader is known to all that run, and clients are served (at most two minutes) |
| `run S` | runs S virtual seconds |
| `cut WHO`, `cut WHO in`, `cut WHO out` | from the other nodes, both ways or one; `heal` ends all cuts |
| `kill WHO`, `unplug WHO`, `stop WHO` | kill -9, loss of power, SIGTERM; `start` starts all that do not run |
| `pause WHO`, `resume` | SIGSTOP, SIGCONT of all |
| `jump WHO S` | somebody sets its wall clock S seconds on |
| `fill WHO`, `room` | its disk is full; all disks have room |
| `spoil WHO` | all metadata snapshots on its disk lose their last bytes |
| `tear WHO` | zeros in the middle of the newest segment of its metadata log, on the disk |
| `future WHO` | a newer release leads there, and writes a record that this one does not know |

WHO: `leader`, `follower` (the first that follows), `followers`, `voters` (all), `last` (of the line before).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from fenceline.log.file_names import LOG_SUFFIX
from fenceline.node.metadata_log import DIRECTORY_NAME
from fenceline.testing.simulation.checks import Invariants
from fenceline.testing.simulation.controller_of_one import DriverView
from fenceline.testing.simulation.options import Options
from fenceline.testing.simulation.stage import STORIES, Story
from fenceline.testing.simulation.world import DATA_DIR, LogSink, NodeState, Process, World

_SETTLE_S: Final = 120.0
_STEP_S: Final = 0.25
_TORN_BYTES: Final = 64
_TOLD = re.compile(r"(?:logs (?:warning|error) (.*)|gives up \(.*?\): (.*))$")
_NUMBERS = re.compile(r"\[[\d, ]*\]|\d+")


class ScriptError(Exception):
    """A line that is not understood."""


def play_script(text: str, seed: int = 1) -> str:
    """The script with what is seen after each line. Raises ScriptError, and what invariants raise."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    seen: list[str] = []
    play: _Play | None = None
    try:
        for line in lines:
            if line.startswith("#"):
                seen.append(line)
                continue
            word, *rest = line.split()
            seen.append(f"> {line}")
            if play is None:
                if word != "cluster":
                    raise ScriptError(f"a script begins with `cluster`, not with {line!r}")
                play = _Play(rest[0], dict(each.split("=", 1) for each in rest[1:]), seed)
            else:
                seen += play.do(word, rest)
    finally:
        if play is not None:
            play.close()
    return "\n".join(seen) + "\n"


class _Play:
    """One cluster."""

    def __init__(self, story: str, options: dict[str, str], seed: int) -> None:
        given = {"clients": "1", "think_ms": "200", "liveness_s": "1e9", **options}
        self._world = World(seed, Options(nodes=3).with_text(given), sink=self._hear)
        self._invariants = Invariants(self._world)
        self._heard: set[str] = set()
        self._last: list[Process] = []
        self._sink = LogSink(self._world)
        self._sink.__enter__()
        self._story: Story = STORIES[story][0](self._world, self._invariants)
        self._world.scheduler.watcher = self._invariants.look
        # A script does what it likes to disks: whoever gives up has its reasons.
        self._world.standing_excuses = lambda process: {"script"}
        self._story.build()
        self._before = self._leader()

    def close(self) -> None:
        self._world.close()
        self._sink.__exit__()

    def _hear(self, line: str) -> None:
        told = _TOLD.search(line.partition("\n")[0])
        if told is not None:
            self._heard.add(_NUMBERS.sub("N", told[1] or told[2]).strip())

    # -- who -----------------------------------------------------------------------------------------------------------

    def _states(self) -> dict[int, NodeState]:
        processes = self._world.processes.values()
        return {process.node_id: process.view.state() for process in processes if process.view is not None}

    def _leader(self) -> tuple[int, int]:
        """(epoch, id) of the newest leader, id -1 where nobody leads in the newest epoch."""
        states = self._states()
        epoch = max((state.epoch for state in states.values()), default=-1)
        return epoch, next((n for n, state in states.items() if state.is_leader and state.epoch == epoch), -1)

    def _who(self, name: str) -> list[Process]:
        processes = self._world.processes
        _, leader = self._leader()
        followers = [process for process in processes.values() if process.node_id != leader and process.is_up]
        match name:
            case "leader" if leader >= 0:
                self._last = [processes[leader]]
            case "follower" if followers:
                self._last = followers[:1]
            case "followers":
                self._last = followers
            case "voters":
                self._last = list(processes.values())
            case "last":
                pass
            case _:
                raise ScriptError(f"there is no {name}")
        return self._last

    # -- doing ---------------------------------------------------------------------------------------------------------

    def do(self, word: str, rest: list[str]) -> Iterator[str]:
        """What is seen of it."""
        if word in ("settle", "run"):
            yield from self._run(word, rest)
            return
        who = self._who(rest[0]) if rest else list(self._world.processes.values())
        if word == "heal":
            self._world.network.heal()
        elif word not in _ACTIONS:
            raise ScriptError(f"nobody knows how to {word}")
        for process in who:
            if word == "cut":
                self._cut(process, who, rest[1] if len(rest) > 1 else "both")
            elif word == "jump":
                process.clock.jump(int(rest[1]) * 1000)
            elif word != "heal":
                _ACTIONS[word](process)

    def _cut(self, process: Process, together: list[Process], way: str) -> None:
        for other in self._world.processes.values():
            if other not in together:
                if way != "in":
                    self._world.network.cut(process.node_id, other.node_id)
                if way != "out":
                    self._world.network.cut(other.node_id, process.node_id)

    def _run(self, word: str, rest: list[str]) -> Iterator[str]:
        scheduler = self._world.scheduler
        before, had = self._before, len(self._invariants.committed)
        if word == "run":
            scheduler.run(until_s=scheduler.now_s + float(rest[0]))
        else:
            ends_s = scheduler.now_s + _SETTLE_S
            while scheduler.now_s < ends_s and not (self._is_settled() and self._has_committed(had)):
                scheduler.run(until_s=scheduler.now_s + _STEP_S)
        self._invariants.whole()
        self._before = epoch, leader = self._leader()
        states = self._states()
        agree = sum(state.epoch == epoch and state.leader_id == leader for state in states.values())
        moved = "the epoch is higher" if epoch > before[0] else "the epoch is the same"
        who = "nobody leads" if leader < 0 else "the same leader" if leader == before[1] else "another leader"
        clients = "clients are served" if self._has_committed(had) else "clients are not served"
        yield f"{who}, {moved}, {agree if leader >= 0 else 0} of {len(self._world.processes)} follow or lead, {clients}"
        heard, self._heard = self._heard, set()
        yield from (f"! {told}" for told in sorted(heard))

    def _has_committed(self, had: int) -> bool:
        """More than what was on its way."""
        return len(self._invariants.committed) > had + 3

    def _is_settled(self) -> bool:
        epoch, leader = self._leader()
        up = [process for process in self._world.processes.values() if process.is_up]
        states = self._states()
        return leader >= 0 and len(states) == len(up) and all(s[:2] == (epoch, leader) for s in states.values())


def _fill(process: Process) -> None:
    process.excuse("full disk")
    process.disk.capacity_bytes = process.disk.used_bytes


def _make_room(process: Process) -> None:
    process.disk.capacity_bytes = None


def _spoil(process: Process) -> None:
    disk, directory = process.disk, f"{DATA_DIR}/{DIRECTORY_NAME}"
    for name in disk.listdir(directory):
        if name.endswith(".checkpoint"):
            path = f"{directory}/{name}"
            fd = disk.open_append(path)
            disk.truncate(fd, len(disk.peek(path) or b"") - 20)
            disk.fsync(fd)
            disk.close(fd)


def _tear(process: Process) -> None:
    disk, directory = process.disk, f"{DATA_DIR}/{DIRECTORY_NAME}"
    path = f"{directory}/{max(name for name in disk.listdir(directory) if name.endswith(LOG_SUFFIX))}"
    content = disk.peek(path) or b""
    middle = len(content) // 2
    fd = disk.open_append(path)
    disk.truncate(fd, middle)
    disk.write(fd, bytes(_TORN_BYTES) + content[middle + _TORN_BYTES :])
    disk.fsync(fd)
    disk.close(fd)


def _write_from_the_future(process: Process) -> None:
    if process.loop is None or not isinstance(process.view, DriverView):
        raise ScriptError(f"{process.name} does not run")
    process.loop.call_soon(process.view.append, b"\1\x63\0from the future")


_ACTIONS: Final = {
    "cut": lambda process: None,
    "jump": lambda process: None,
    "heal": lambda process: None,
    "kill": lambda process: process.kill(power_lost=False),
    "unplug": lambda process: process.kill(power_lost=True),
    "stop": lambda process: process.request_stop(),
    "start": lambda process: process.start(),
    "pause": lambda process: process.pause(),
    "resume": lambda process: process.resume(),
    "fill": _fill,
    "room": _make_room,
    "spoil": _spoil,
    "tear": _tear,
    "future": _write_from_the_future,
}
