"""The nodes of one host as child processes: `fenceline start --nodes N`.

Owns their processes, their restarts, and the lines that they write, which get the node's id. A node that ends by
itself is started again, after 1 s, then 2 s, up to a minute. If a node ends before all have been ready once, nothing
is started again: the configuration is wrong, or a port is in use.

At the first SIGTERM or SIGINT brokers hand over their leaderships and stop, then the node with the controller; at the
second all are killed. No node outlives this process, however it ends (`process.end_with`, `reaper`).
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Final

from fenceline.local_cluster import reaper
from fenceline.local_cluster.process import end_with

EXIT_SECOND_SIGNAL: Final = 130
_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 60.0
_PROVEN_S: Final = 60.0
"""A node that has run so long begins again with the shortest pause."""
_ADDRESS: Final = "listening on "


@dataclass(frozen=True, slots=True)
class NodeCommand:
    """`stops_last`: the others need it to stop cleanly."""

    node_id: int
    arguments: Sequence[str]
    stops_last: bool


@dataclass(frozen=True, slots=True)
class _Ready:
    node_id: int
    line: str


@dataclass(frozen=True, slots=True)
class _Ended:
    node_id: int
    exit_code: int


class _Signal:
    pass


class Restarts:
    """When a node that has ended is started again."""

    def __init__(self) -> None:
        self._pause_s = _FIRST_PAUSE_S

    def pause_s(self, ran_s: float) -> float:
        """After a run of so many seconds."""
        if ran_s >= _PROVEN_S:
            self._pause_s = _FIRST_PAUSE_S
        found, self._pause_s = self._pause_s, min(2 * self._pause_s, _LONGEST_PAUSE_S)
        return found


class HostNodes:
    """See the module. Used by the main thread, which must live as long as the nodes."""

    def __init__(
        self,
        nodes: Sequence[NodeCommand],
        *,
        all_ready: Callable[[Mapping[int, str]], None],
        report: Callable[[str], None],
        lines: IO[bytes],
        environment: Mapping[str, str],
    ) -> None:
        """`all_ready` gets the ready lines of all nodes, once; `report` what happens to nodes, in a sentence; `lines`
        what the nodes write to standard error."""
        self._nodes = {each.node_id: each for each in nodes}
        self._all_ready = all_ready
        self._report = report
        self._lines = lines
        self._environment = dict(environment)
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._ready: dict[int, str] = {}
        self._began_s: dict[int, float] = {}
        self._restarts = {each.node_id: Restarts() for each in nodes}
        self._due_s: dict[int, float] = {}
        """When nodes that have ended are started again."""
        self._events: queue.SimpleQueue[_Ready | _Ended | _Signal] = queue.SimpleQueue()
        self._was_complete = False
        self._is_stopping = False
        self._exit_code = 0

    def run(self) -> int:
        """Run the nodes until a signal; the exit code. Raises nothing that a node does."""
        handlers = {number: signal.signal(number, self._on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            for node_id in self._nodes:
                self._spawn(node_id)
            while self._processes or (self._due_s and not self._is_stopping):
                self._step()
            return self._exit_code
        finally:
            self._kill_all()
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: object) -> None:
        self._events.put(_Signal())

    def _step(self) -> None:
        """Wait for the next event."""
        now_s = time.monotonic()
        wait_s = min(self._due_s.values()) - now_s if self._due_s and not self._is_stopping else None
        try:
            event = self._events.get(timeout=None if wait_s is None else max(wait_s, 0))
        except queue.Empty:
            for node_id in [each for each, due_s in self._due_s.items() if due_s <= time.monotonic()]:
                del self._due_s[node_id]
                self._spawn(node_id)
            return
        if isinstance(event, _Signal):
            if self._is_stopping:
                self._exit_code = EXIT_SECOND_SIGNAL
                self._kill_all()
            else:
                self._stop()
        elif isinstance(event, _Ready):
            self._ready[event.node_id] = event.line
            if not self._was_complete and len(self._ready) == len(self._nodes):
                self._was_complete = True
                self._all_ready(dict(self._ready))
        else:
            self._on_end(event)

    def _on_end(self, event: _Ended) -> None:
        node_id, code = event.node_id, event.exit_code
        process = self._processes.pop(node_id)
        process.wait()
        reaper.forget_process(process.pid)
        if self._is_stopping:
            if code:
                self._report(f"node {node_id} did not stop cleanly: {_reason(code)}")
                self._exit_code = self._exit_code or 1
            self._stop_last()
        elif not self._was_complete:
            self._report(f"node {node_id} could not start: {_reason(code)}; all nodes of this host stop")
            self._exit_code = code if code > 0 else 1
            self._stop()
        else:
            pause_s = self._restarts[node_id].pause_s(time.monotonic() - self._began_s[node_id])
            self._report(f"node {node_id} has ended: {_reason(code)}; it is started again in {pause_s:.0f} s")
            self._due_s[node_id] = time.monotonic() + pause_s

    def _stop(self) -> None:
        self._is_stopping = True
        self._due_s.clear()
        for node_id, process in self._processes.items():
            if not self._nodes[node_id].stops_last:
                process.send_signal(signal.SIGTERM)
        self._stop_last()

    def _stop_last(self) -> None:
        if all(self._nodes[each].stops_last for each in self._processes):
            for process in self._processes.values():
                process.send_signal(signal.SIGTERM)

    def _kill_all(self) -> None:
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait()
            reaper.forget_process(process.pid)
        self._processes.clear()
        self._due_s.clear()

    def _spawn(self, node_id: int) -> None:
        process = subprocess.Popen(
            [sys.executable, "-m", "fenceline", "start", *self._nodes[node_id].arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self._environment,
            # Ctrl-C at the terminal goes to us, and we stop the nodes in order.
            start_new_session=True,
            preexec_fn=end_with(os.getpid()),
        )
        if not sys.platform.startswith("linux"):
            reaper.watch_process(process.pid)
        self._processes[node_id] = process
        self._began_s[node_id] = time.monotonic()
        relay = threading.Thread(target=self._relay, args=(node_id, process), daemon=True)
        relay.start()
        threading.Thread(target=self._watch, args=(node_id, process, relay), daemon=True).start()

    def _watch(self, node_id: int, process: subprocess.Popen[bytes], relay: threading.Thread) -> None:
        assert process.stdout is not None
        with process.stdout as output:
            for line in output:
                self._events.put(_Ready(node_id, line.decode(errors="replace").strip()))
        relay.join()
        self._events.put(_Ended(node_id, process.wait()))

    def _relay(self, node_id: int, process: subprocess.Popen[bytes]) -> None:
        assert process.stderr is not None
        with process.stderr as output:
            for line in output:
                # Lines are read even if they cannot be written any more: a node must not wait for them.
                with contextlib.suppress(OSError, ValueError):
                    self._lines.write(with_node(node_id, line))
                    self._lines.flush()


def with_node(node_id: int, line: bytes) -> bytes:
    """A line of a log with the id of its node: a first key of a JSON object, or in front of another line."""
    if line.startswith(b'{"'):
        return b'{"node": %d, ' % node_id + line[1:]
    return b"[%d] " % node_id + line


def address_of(ready_line: str) -> str:
    """Of the first listener."""
    return ready_line.rpartition(_ADDRESS)[2]


def _reason(exit_code: int) -> str:
    if exit_code < 0:
        return f"killed by {signal.Signals(-exit_code).name}"
    return f"exit code {exit_code}"
