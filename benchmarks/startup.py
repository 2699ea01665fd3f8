"""Spawn to the first Metadata answer on a formatted directory, and idle memory."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import time
from pathlib import Path
from typing import Final

from benchmarks.harness import SIDES, STARTERS, Figures, Side, resident_mb, scratch, source_of
from fenceline.testing.apache_kafka import free_port, java_command
from fenceline.testing.node import EmbeddedNode

_SETTLING_S: Final = 2.0


def metadata_request() -> bytes:
    """A framed Metadata v1 request for no topics."""
    body = struct.pack(">hhih", 3, 1, 7, -1) + struct.pack(">i", 0)
    return struct.pack(">i", len(body)) + body


def first_answer_s(port: int, *, timeout_s: float = 60) -> float:
    """Seconds until a Metadata request is answered on `port`."""
    started = time.perf_counter()
    while time.perf_counter() - started < timeout_s:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
                connection.sendall(metadata_request())
                if len(connection.recv(4)) == 4:
                    return time.perf_counter() - started
        except OSError:
            pass
        time.sleep(0.002)
    raise TimeoutError("no Metadata answer")


def run(figures: Figures, repeats: int) -> None:
    with scratch() as folder:
        starts = {side: _prepared(side, folder) for side in SIDES}
        for attempt in range(repeats + 1):
            for side, (command, port) in starts.items():
                started = time.perf_counter()
                environment = {**os.environ, **source_of(side)}
                quiet = subprocess.DEVNULL
                process = subprocess.Popen(command, stdout=quiet, stderr=quiet, env=environment)
                try:
                    first_answer_s(port)
                    taken_s = time.perf_counter() - started
                    time.sleep(_SETTLING_S)
                    memory_mb = resident_mb(process.pid)
                finally:
                    process.terminate()
                    process.wait()
                if attempt:
                    figures.add("spawn to first Metadata answer", side, taken_s, "s")
                    figures.add("resident memory, idle", side, memory_mb, "MB")


def _prepared(side: Side, folder: Path) -> tuple[list[str], int]:
    """Formats a directory of this side; returns the command that starts its node, and the port."""
    root, port = folder / side, free_port()
    subject = STARTERS[side](data_dir=root, port=port)
    subject.close()
    if isinstance(subject, EmbeddedNode):
        return subject.command(), port
    return java_command("kafka.Kafka", str(root / "server.properties")), port
