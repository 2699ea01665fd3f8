"""Invariants of majorities: what a leader reports as committed is durable on a majority, and no node disturbs a healthy
majority.

Owns, for each node, since when it has followed the leader without interruption. Reads only the bytes of disks that no
power failure can remove, also of machines that are down.

Rules: raft.md Q52; since_4_0.md K7, K8 (the purpose of the pre-vote).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Final

from fenceline.testing.simulation.world import NodeState, Process, StoredBatch, World

HEALTHY_S: Final = 8.0
"""After this time a vote that was granted before its voter heard from the leader is worthless: longer than an election,
a request and a pause together."""


class Majorities:
    """See the module. Returns a description of the violation, or None."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._states: dict[int, tuple[NodeState, float]] = {}
        """By node: its state, and since when (s) it has led this epoch or been in touch with its leader."""
        self._newest_epoch = -1
        self._files: dict[int, _Files] = {}

    def ended(self, process: Process) -> None:
        self._states.pop(process.node_id, None)

    def newest_voters(self) -> tuple[tuple[int, str], ...]:
        """The voter set as the newest leader knows it."""
        leaders = [state for state, _ in self._states.values() if state.is_leader and state.epoch == self._newest_epoch]
        return leaders[0].voters if leaders else ()

    def disturbed(self, process: Process, state: NodeState) -> str | None:
        """A node begins a new epoch although a majority has been healthy in the newest one for a while."""
        now_s = self._world.scheduler.now_s
        wrong = None
        if state.epoch > self._newest_epoch:
            voters = self.newest_voters()
            healthy = [node for node, _ in voters if node != process.node_id and self._is_healthy(node, now_s)]
            if voters and len(healthy) > len(voters) // 2:
                wrong = f"epoch {state.epoch} begins while the voters {healthy} are healthy in {self._newest_epoch}"
            self._newest_epoch = state.epoch
        known, since_s = self._states.get(process.node_id, (None, now_s))
        if known is None or known[:3] != state[:3] or known.in_touch != state.in_touch:
            since_s = now_s
        self._states[process.node_id] = (state, since_s)
        return wrong

    def _is_healthy(self, node_id: int, now_s: float) -> bool:
        state, since_s = self._states.get(node_id, (None, now_s))
        if state is None or state.epoch != self._newest_epoch or now_s - since_s < HEALTHY_S:
            return False
        return state.is_leader or state.in_touch

    def is_on_a_majority(self, batch: StoredBatch, voters: Iterable[tuple[int, str]], directory: str) -> bool:
        """Q52: whether the batch, or a snapshot that contains its effect, is durable on the disks of a majority of the
        voters."""
        ids = [node_id for node_id, _ in voters]
        durable = sum(self._is_durable(batch, node_id, directory) for node_id in ids)
        return durable > len(ids) // 2

    def _is_durable(self, batch: StoredBatch, node_id: int, directory: str) -> bool:
        process = self._world.processes.get(node_id)
        if process is None:
            return False
        disk = process.disk
        files = self._files.get(node_id)
        if files is None or files.version != disk.durable_version:
            files = self._files[node_id] = _Files(disk.durable_version, disk.durable_names(directory))
        likely = bisect_right(files.logs, f"{batch.base_offset:020}.log") - 1
        if likely >= 0 and batch.content in disk.durable_content(directory, files.logs[likely]):
            return True
        if any(batch.content in disk.durable_content(directory, name) for name in files.logs):
            return True
        return files.newest_snapshot >= batch.next_offset


class _Files:
    """The names of the durable files of a disk that contain records, until the set of durable files changes."""

    __slots__ = ("logs", "newest_snapshot", "version")

    def __init__(self, version: int, names: Iterable[str]) -> None:
        self.version = version
        self.logs: list[str] = []
        """In ascending order."""
        self.newest_snapshot = -1
        """The highest end offset."""
        for name in names:
            if name.endswith(".log"):
                self.logs.append(name)
            elif name.endswith(".checkpoint"):
                self.newest_snapshot = max(self.newest_snapshot, int(name[:20]))
        self.logs.sort()
