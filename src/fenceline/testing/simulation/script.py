"""Scripts: actions on a simulated cluster, line by line, and what is observed after each.

Owns the language and the vocabulary of the observations. They contain no times, ids or offsets, which change with every
change of the code: "another leader" is guaranteed, "node 2 at 1.234 s" is not.

| Line | Effect |
|---|---|
| `cluster SCENARIO key=value ...` | first line: a scenario of `stage.SCENARIOS`, its options without any faults |
| `settle` | runs until all running nodes know one leader, and clients are served (at most two minutes) |
| `run S` | runs S virtual seconds |
| `cut WHO`, `cut WHO in`, `cut WHO out` | from the other nodes, in both directions or one; `heal` ends all cuts |
| `kill WHO`, `unplug WHO`, `stop WHO` | kill -9, power failure, SIGTERM; `start` starts all stopped nodes |
| `pause WHO`, `resume` | SIGSTOP, SIGCONT of all |
| `jump WHO S` | the wall clock is set forward by S seconds |
| `fill WHO`, `room` | its disk is full; all disks have room |
| `spoil WHO` | all metadata snapshots on its disk lose their last bytes |
| `tear WHO` | zeros in the middle of the newest segment of its metadata log, on the disk |
| `future WHO` | a newer release leads there, and writes a record that this one does not know |

WHO: `leader`, `follower` (the first follower), `followers`, `voters` (all), `last` (as in the previous line).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from fenceline.log.core.file_names import LOG_SUFFIX
from fenceline.node.metadata.metadata_log import DIRECTORY_NAME
from fenceline.testing.simulation.checks import Invariants
from fenceline.testing.simulation.controller_of_one import DriverView
from fenceline.testing.simulation.options import Options
from fenceline.testing.simulation.stage import SCENARIOS, Scenario
from fenceline.testing.simulation.world import DATA_DIR, LogSink, NodeState, Process, World

_SETTLE_S: Final = 120.0
_STEP_S: Final = 0.25
_TORN_BYTES: Final = 64
_LOGGED = re.compile(r"(?:logs (?:warning|error) (.*)|gives up \(.*?\): (.*))$")
_NUMBERS = re.compile(r"\[[\d, ]*\]|\d+")


class ScriptError(Exception):
    """A line that cannot be parsed."""


def play_script(text: str, seed: int = 1) -> str:
    """The script with the observations after each line. Raises ScriptError and InvariantBroken."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    output: list[str] = []
    play: _Play | None = None
    try:
        for line in lines:
            if line.startswith("#"):
                output.append(line)
                continue
            command, *arguments = line.split()
            output.append(f"> {line}")
            if play is None:
                if command != "cluster":
                    raise ScriptError(f"a script must begin with `cluster`, not with {line!r}")
                play = _Play(arguments[0], dict(each.split("=", 1) for each in arguments[1:]), seed)
            else:
                output += play.execute(command, arguments)
    finally:
        if play is not None:
            play.close()
    return "\n".join(output) + "\n"


class _Play:
    """One cluster."""

    def __init__(self, scenario: str, options: dict[str, str], seed: int) -> None:
        values = {"clients": "1", "think_ms": "200", "liveness_s": "1e9", **options}
        self._world = World(seed, Options(nodes=3).with_text(values), sink=self._record_line)
        self._invariants = Invariants(self._world)
        self._messages: set[str] = set()
        self._last: list[Process] = []
        self._sink = LogSink(self._world)
        self._sink.__enter__()
        self._scenario: Scenario = SCENARIOS[scenario][0](self._world, self._invariants)
        self._world.scheduler.watcher = self._invariants.check
        # A script may damage disks in any way, so every node may give up.
        self._world.standing_excuses = lambda process: {"script"}
        self._scenario.build()
        self._before = self._leader()

    def close(self) -> None:
        self._world.close()
        self._sink.__exit__()

    def _record_line(self, line: str) -> None:
        found = _LOGGED.search(line.partition("\n")[0])
        if found is not None:
            self._messages.add(_NUMBERS.sub("N", found[1] or found[2]).strip())

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def _states(self) -> dict[int, NodeState]:
        processes = self._world.processes.values()
        return {process.node_id: process.view.state() for process in processes if process.view is not None}

    def _leader(self) -> tuple[int, int]:
        """(epoch, id) of the newest leader, id -1 if there is none in the newest epoch."""
        states = self._states()
        epoch = max((state.epoch for state in states.values()), default=-1)
        return epoch, next((n for n, state in states.items() if state.is_leader and state.epoch == epoch), -1)

    def _select(self, name: str) -> list[Process]:
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
                raise ScriptError(f"there is no {name!r}")
        return self._last

    # -- actions -------------------------------------------------------------------------------------------------------

    def execute(self, command: str, arguments: list[str]) -> Iterator[str]:
        """Runs one line and yields the observations."""
        if command in ("settle", "run"):
            yield from self._run(command, arguments)
            return
        selected = self._select(arguments[0]) if arguments else list(self._world.processes.values())
        if command == "heal":
            self._world.network.heal()
        elif command not in _ACTIONS:
            raise ScriptError(f"unknown command {command!r}")
        for process in selected:
            if command == "cut":
                self._cut(process, selected, arguments[1] if len(arguments) > 1 else "both")
            elif command == "jump":
                process.clock.jump(int(arguments[1]) * 1000)
            elif command != "heal":
                _ACTIONS[command](process)

    def _cut(self, process: Process, together: list[Process], way: str) -> None:
        for other in self._world.processes.values():
            if other not in together:
                if way != "in":
                    self._world.network.cut(process.node_id, other.node_id)
                if way != "out":
                    self._world.network.cut(other.node_id, process.node_id)

    def _run(self, command: str, arguments: list[str]) -> Iterator[str]:
        scheduler = self._world.scheduler
        before, had = self._before, len(self._invariants.committed)
        if command == "run":
            scheduler.run(until_s=scheduler.now_s + float(arguments[0]))
        else:
            ends_s = scheduler.now_s + _SETTLE_S
            while scheduler.now_s < ends_s and not (self._is_settled() and self._has_committed(had)):
                scheduler.run(until_s=scheduler.now_s + _STEP_S)
        self._invariants.check_all()
        self._before = epoch, leader = self._leader()
        states = self._states()
        agree = sum(state.epoch == epoch and state.leader_id == leader for state in states.values())
        moved = "the epoch is higher" if epoch > before[0] else "the epoch is the same"
        leadership = "nobody leads" if leader < 0 else "the same leader" if leader == before[1] else "another leader"
        clients = "clients are served" if self._has_committed(had) else "clients are not served"
        agreeing = f"{agree if leader >= 0 else 0} of {len(self._world.processes)}"
        yield f"{leadership}, {moved}, {agreeing} follow or lead, {clients}"
        messages, self._messages = self._messages, set()
        yield from (f"! {message}" for message in sorted(messages))

    def _has_committed(self, had: int) -> bool:
        """More than the requests that were in flight."""
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
