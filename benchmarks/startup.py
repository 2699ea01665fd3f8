"""Spawn to the first Metadata answer on a formatted directory, and idle memory."""

from __future__ import annotations

import socket
import struct
import subprocess
import time

from benchmarks.harness import Figures, resident_mb, scratch
from fenceline.testing.apache_kafka import ApacheKafka, free_port, java_command
from fenceline.testing.node import EmbeddedNode


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
    figure = "spawn to first Metadata answer"
    with scratch() as directory:
        for side in ("fenceline", "kafka"):
            root = directory / side
            port = free_port()
            subject = (
                EmbeddedNode(data_dir=root, port=port) if side == "fenceline" else ApacheKafka(data_dir=root, port=port)
            )
            subject.start()
            time.sleep(2)
            figures.add("resident memory, idle", side, resident_mb(subject.pid), "MB")
            subject.stop()
            command = (
                subject.command()
                if isinstance(subject, EmbeddedNode)
                else java_command("kafka.Kafka", str(root / "server.properties"))
            )
            for attempt in range(repeats + 1):
                started = time.perf_counter()
                process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                try:
                    first_answer_s(port)
                    if attempt:
                        figures.add(figure, side, time.perf_counter() - started, "s")
                finally:
                    process.terminate()
                    process.wait()
