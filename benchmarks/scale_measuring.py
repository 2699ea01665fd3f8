"""A node of the benchmark `scale`, and the figures of one size of a curve.

Owns the names of the figures: `CURVE, SIZE: MEASURE`. `benchmarks.scale_page` reads them back.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from benchmarks.harness import Figures, Side, cpu_seconds, resident_mb, source_of
from fenceline.local_cluster import reaper
from fenceline.testing.apache_kafka import free_port
from fenceline.testing.node import EmbeddedNode

IDLE_S: Final = 10.0
_SAMPLE_MS: Final = "5"
"""How often a node measures the delay of its loop; that costs 0.4 % of a core."""


class SizeOfCurve:
    """Records the figures of one size."""

    def __init__(self, figures: Figures, curve: str, size: int, side: str = "fenceline") -> None:
        self.size = size
        self._figures, self._curve, self._side = figures, curve, side

    def add(self, measure: str, value: float, unit: str) -> None:
        self._figures.add(f"{self._curve}, {self.size:,}: {measure}", self._side, value, unit)

    def add_idle(self, percent: float, empty_percent: float) -> None:
        """At rest, and before, when the node was empty: shares of a core."""
        self.add("idle: share of a core, above that of an empty node", max(percent - empty_percent, 0.0), "%")

    def add_pause(self, node: MeasuredNode, what: str = "longest pause of the loop") -> None:
        """The longest delay since the node's start, and how long the loop's thread worked in one."""
        self.add_longest([node.longest_delay_s()], what)

    def add_longest(self, of_nodes_s: Iterable[tuple[float, float]], what: str) -> None:
        """As `add_pause`, of the node with the longest."""
        delay_s, work_s = map(max, zip(*of_nodes_s, strict=True))
        self.add(what, work_s * 1000, "ms")
        self.add(f"{what}, with waits for disk and cores", delay_s * 1000, "ms")


class MeasuredNode:
    """One node in a process, whose loop is observed."""

    def __init__(self, *, side: Side = "fenceline", data_dir: Path | None = None, **overrides: str) -> None:
        self._metrics_port = free_port()
        settings = {
            "fenceline.metrics.port": str(self._metrics_port),
            "fenceline.event.loop.sample.ms": _SAMPLE_MS,
            "offsets.topic.num.partitions": "1",
            "group.initial.rebalance.delay.ms": "0",
            **overrides,
        }
        self._node = EmbeddedNode(data_dir=data_dir, overrides=settings, environment=source_of(side))
        self.start()

    @property
    def bootstrap(self) -> str:
        return self._node.bootstrap

    @property
    def port(self) -> int:
        return self._node.port

    @property
    def pid(self) -> int:
        return self._node.pid

    @property
    def log_dir(self) -> Path:
        return self._node.log_dir

    def cpu_s(self) -> float:
        return cpu_seconds(self._node.pid)

    def resident_mb(self) -> float:
        return resident_mb(self._node.pid)

    def idle_percent(self, wait_s: float) -> float:
        """Of a core, in the next seconds."""
        before, began_s = self.cpu_s(), time.perf_counter()
        time.sleep(wait_s)
        return 100 * (self.cpu_s() - before) / (time.perf_counter() - began_s)

    def metric(self, name: str) -> float:
        return read_metric(self._metrics_port, name)

    def longest_delay_s(self) -> tuple[float, float]:
        return longest_delay_s(self._metrics_port)

    def restart(self, *, kill: bool) -> tuple[float, float]:
        """Seconds of the stop and of the start, until its ready line."""
        began_s = time.perf_counter()
        if kill:
            self._node.kill()
        else:
            self._node.stop(wait_s=300)
        ended_s = time.perf_counter()
        return ended_s - began_s, self.start()

    def stop(self) -> None:
        self._node.stop(wait_s=300)

    def start(self) -> float:
        began_s = time.perf_counter()
        self._node.start(wait_s=580)
        took_s = time.perf_counter() - began_s
        # The first scrape imports modules, and holds up the loop. It is over before the loop is measured.
        self.metric("fenceline_event_loop_longest_delay_seconds")
        time.sleep(1)
        return took_s

    def close(self) -> None:
        self._node.close()


@contextmanager
def measured_node(**options: Any) -> Iterator[MeasuredNode]:
    node = MeasuredNode(**options)
    try:
        yield node
    finally:
        node.close()


def longest_delay_s(port: int) -> tuple[float, float]:
    """Of a node's loop since its start, from its metrics: as a whole, and with work only."""
    delay_s, work_s = (read_metric(port, f"fenceline_event_loop_longest_{kind}_seconds") for kind in ("delay", "work"))
    return delay_s, work_s


def read_metric(port: int, name: str) -> float:
    """A metric without labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith(f"{name} "):
                return float(line.split()[1])
    raise LookupError(name)


class ClientProcess:
    """A client of `benchmarks.scale_clients`."""

    def __init__(self, kind: str, *arguments: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.scale_clients", kind, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        reaper.watch_process(self._process.pid)

    def result(self) -> Any:
        """Of the step that it is in."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("a client ended, see its error above")
        return json.loads(line)

    def proceed(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def next(self) -> Any:
        """Begin the next step, and wait for its result."""
        self.proceed()
        return self.result()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()
        reaper.forget_process(self._process.pid)


@contextmanager
def client_process(kind: str, *arguments: int) -> Iterator[ClientProcess]:
    client = ClientProcess(kind, *arguments)
    try:
        yield client
    finally:
        client.close()
