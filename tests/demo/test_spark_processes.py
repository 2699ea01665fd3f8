"""Stopping Java prints no errors and leaves no process of Spark."""

from __future__ import annotations

import socket
import struct
import subprocess
import sys

import pytest
from pyspark.accumulators import _start_update_server

from fenceline.demo.spark_processes import children_of, is_running, stop_accumulator_server
from fenceline.testing.waiting import eventually

TOKEN = "secret"


def test_the_accumulator_server_stops_before_java(capfd: pytest.CaptureFixture[str]) -> None:
    server = _start_update_server(TOKEN, False)
    with socket.create_connection(server.server_address[:2], timeout=30) as java:
        # No updates, as Spark sends them after each task.
        java.sendall(TOKEN.encode() + struct.pack("!i", 0))
        assert java.recv(1) == b"\1"
        stop_accumulator_server(server)
        assert java.recv(1) == b"", "the server has closed the connection"
    assert capfd.readouterr().err == ""


def test_a_stopped_session_has_no_accumulator_server() -> None:
    stop_accumulator_server(None)


PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
print(child.pid, flush=True)
input()
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
def test_descendants_are_found_until_they_have_ended() -> None:
    command = [
        sys.executable,
        "-c",
        "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])",
        PARENT,
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdin is not None
        assert first.stdout is not None
        third = int(first.stdout.readline())
        second, *others = children_of(first.pid)
        assert others == [third]
        assert all(map(is_running, (first.pid, second, third)))
        first.stdin.close()
        # The first is not reaped: a zombie does not count as running.
        eventually(lambda: not any(map(is_running, (first.pid, second, third))), "all have ended")


def test_an_unknown_process_is_not_running() -> None:
    assert not is_running(2**31 - 1)
    assert children_of(2**31 - 1) == []
