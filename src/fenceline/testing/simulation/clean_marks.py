"""The clean marks of simulated nodes: a process that never registered leaves the mark of the last stop unchanged.

Owns the mark of each node when its process started. Checked when the process ends, before its machine loses unsynced
data.
"""

from __future__ import annotations

from typing import Final

from fenceline.log.directories.log_dir import CLEAN_FILE
from fenceline.testing.simulation.brokers_node import SimBroker
from fenceline.testing.simulation.checks import InvariantBroken
from fenceline.testing.simulation.world import DATA_DIR, Process

_MARK: Final = f"{DATA_DIR}/{CLEAN_FILE}"


class CleanMarks:
    """The clean marks of all nodes."""

    def __init__(self) -> None:
        self._before: dict[int, tuple[SimBroker, bytes | None]] = {}

    def life_started(self, process: Process, broker: SimBroker) -> None:
        """A process starts, before it has changed its disk."""
        self._before[process.node_id] = broker, process.disk.peek(_MARK)

    def life_ended(self, process: Process) -> None:
        """A process ended in any way. A violation ends the simulation."""
        broker, before = self._before.pop(process.node_id, (None, None))
        if broker is None or (broker.has_metadata and broker.broker_epoch >= 0):
            return
        after = process.disk.peek(_MARK)
        if after != before:
            process.world.scheduler.fail(
                InvariantBroken(
                    f"{process.name} never registered in this life, but its clean mark was {_shown(before)} and is"
                    f" {_shown(after)} (clean mark)"
                )
            )


def _shown(mark: bytes | None) -> str:
    return "absent" if mark is None else mark.decode(errors="replace")
