"""`fenceline cluster`: one process for the cluster, and commands from another one."""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest
from typer.testing import CliRunner

from fenceline.cli.app import app
from fenceline.cli.cluster import _Foreground
from fenceline.local_cluster import reaper
from fenceline.testing.waiting import eventually
from tests.support.processes import is_alive
from tests.testing.echo_peer import need_cuts

DEADLINE_S = 60


class Up:
    """`fenceline cluster up` in a process of its own. Its output can be awaited line by line."""

    def __init__(self, data_dir: Path, *arguments: str) -> None:
        self.data_dir = data_dir
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "fenceline",
                "cluster",
                "up",
                "--data-dir",
                str(data_dir),
                "--port",
                "0",
                *arguments,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        reaper.watch_process(self.process.pid)
        self.said: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.complaints: queue.SimpleQueue[str] = queue.SimpleQueue()
        for pipe, lines in ((self.process.stdout, self.said), (self.process.stderr, self.complaints)):
            threading.Thread(target=self._read, args=(pipe, lines), daemon=True).start()

    def __enter__(self) -> Up:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()
        reaper.forget_process(self.process.pid)

    def wait(self) -> int:
        return self.process.wait(DEADLINE_S)

    def run(self, command: str, *arguments: str, code: int = 0) -> str:
        """A command in another terminal."""
        found = CliRunner().invoke(app, ["cluster", command, *arguments, "--data-dir", str(self.data_dir)])
        assert found.exit_code == code, found.output
        return found.output

    def run_json(self, command: str, *arguments: str) -> Any:
        return json.loads(self.run(command, *arguments, "--json"))

    def rest(self, lines: queue.SimpleQueue[str]) -> str:
        """The remaining output, once the process has ended."""
        text = ""
        while line := lines.get(timeout=DEADLINE_S):
            text += line
        return text

    @staticmethod
    def _read(pipe: Any, lines: queue.SimpleQueue[str]) -> None:
        with pipe:
            for line in pipe:
                lines.put(line)
        lines.put("")


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with Up(tmp_path_factory.mktemp("cluster"), "--nodes", "1") as running:
        assert "Fenceline cluster is ready: 1 node, cluster " in running.said.get(timeout=DEADLINE_S)
        yield running


def test_status(up: Up) -> None:
    found = up.run_json("status")
    assert found["supervisor_pid"] == up.process.pid
    [node] = found["nodes"]
    assert (node["node"], node["state"], node["roles"]) == (1, "running", ["broker", "controller"])
    assert node["address"] == found["bootstrap"]
    assert node["pid"] == int((up.data_dir / "node-1" / "pid").read_text())
    shown = up.run("status")
    assert found["bootstrap"] in shown
    assert "running" in shown


def test_pause_and_resume(up: Up) -> None:
    assert up.run_json("pause", "1")["state"] == "paused"
    assert "paused" in up.run("status")
    assert "Resumed node 1" in up.run("resume", "1")
    assert up.run_json("status")["nodes"][0]["state"] == "running"


@pytest.mark.parametrize(
    ("options", "inbound", "outbound", "shown"),
    [
        ((), True, True, "all"),
        (("--inbound",), True, False, "all (inbound)"),
        (("--outbound",), False, True, "all (outbound)"),
        (("--inbound", "--outbound"), True, True, "all"),
    ],
)
def test_isolate_and_heal(up: Up, options: tuple[str, ...], inbound: bool, outbound: bool, shown: str) -> None:
    need_cuts()
    assert up.run_json("isolate", "1", *options)["cuts"] == [{"peer": None, "inbound": inbound, "outbound": outbound}]
    assert shown in up.run("status")
    assert up.run_json("heal", "1")["cuts"] == []


def test_kill_and_restart(up: Up) -> None:
    killed = up.run_json("kill", "1")
    assert (killed["state"], killed["exit_code"], killed["pid"]) == ("ended", -9, None)
    assert "SIGKILL" in up.run("status")
    assert "node 1 was stopped on request" in up.complaints.get(timeout=DEADLINE_S)
    assert "Node 1 is not running" in up.run("kill", "1", code=1)
    assert "Restarted node 1" in up.run("restart", "1")
    assert up.run_json("status")["nodes"][0]["state"] == "running"


def test_a_node_that_exits_by_itself_is_reported_and_not_restarted(up: Up) -> None:
    os.kill(up.run_json("status")["nodes"][0]["pid"], signal.SIGABRT)
    assert "node 1 exited unexpectedly: exit code -6, SIGABRT; last lines:" in up.complaints.get(timeout=DEADLINE_S)
    assert "Fenceline is ready" in up.complaints.get(timeout=DEADLINE_S)
    assert "fenceline cluster restart 1" in up.complaints.get(timeout=DEADLINE_S)
    assert up.run_json("status")["nodes"][0]["state"] == "ended"
    up.run("restart", "1")


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("kill", "5"), "There is no node 5"),
        (("isolate", "1", "--from", "1"), "cannot be cut off from itself"),
        (("isolate", "1", "--from", "2"), "There is no node 2"),
    ],
)
def test_errors_have_no_traceback_and_exit_with_1(up: Up, command: tuple[str, ...], said: str) -> None:
    output = up.run(*command, code=1)
    assert said in output
    assert "Traceback" not in output


def test_a_second_cluster_in_the_same_folder_is_rejected(up: Up) -> None:
    output = up.run("up", code=1)
    assert "is already running" in output


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_cluster_can_be_started_again(tmp_path: Path, number: signal.Signals) -> None:
    ids = []
    for _ in range(2):
        with Up(tmp_path, "--nodes", "1", "--json") as running:
            ready = json.loads(running.said.get(timeout=DEADLINE_S))
            assert ready["event"] == "ready"
            ids.append(ready["cluster_id"])
            running.process.send_signal(number)
            assert running.wait() == 0, running.rest(running.complaints)
            assert not is_alive(ready["nodes"][0]["pid"])
    assert ids[0] == ids[1]
    found = CliRunner().invoke(app, ["cluster", "status", "--data-dir", str(tmp_path)])
    assert found.exit_code == 1
    assert "No cluster is running" in found.output


def test_a_second_signal_kills_all_nodes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class NeverStops:
        is_killed = False

        def start(self) -> None: ...

        def stop(self) -> dict[int, int]:
            threading.Event().wait()
            return {}

        def kill_all(self) -> None:
            self.is_killed = True

    local: Any = NeverStops()
    events: queue.SimpleQueue[Any] = queue.SimpleQueue()
    for number in (signal.SIGTERM, signal.SIGINT):
        events.put(number)
    monkeypatch.setattr(os, "_exit", sys.exit)
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    with pytest.raises(SystemExit) as ended:
        _Foreground(local, events, as_json=False).run()
    assert ended.value.code == 130
    assert local.is_killed


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs a parent-death signal")
def test_nodes_end_when_their_supervisor_is_killed(tmp_path: Path) -> None:
    with Up(tmp_path, "--nodes", "1", "--json") as running:
        pid = json.loads(running.said.get(timeout=DEADLINE_S))["nodes"][0]["pid"]
        assert is_alive(pid)
        running.process.kill()
        running.wait()
    eventually(lambda: not is_alive(pid), "the node ends with its supervisor")
    with Up(tmp_path) as again:
        assert "is ready" in again.said.get(timeout=DEADLINE_S)


def test_a_port_in_use_is_rejected(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with Up(tmp_path, "--port", str(port)) as running:
            assert running.wait() == 1
            assert f"Port {port}, needed by node 1, is already in use" in running.rest(running.complaints)
    assert not (tmp_path / "node-1").exists()


def test_a_node_that_fails_to_start_is_reported(tmp_path: Path) -> None:
    with Up(tmp_path, "--nodes", "1", "--override", "log.retention.ms=soon") as running:
        assert running.wait() == 1
        complaint = running.rest(running.complaints)
    assert complaint.count("ended with 1 before it was ready") == 1
    assert "log.retention.ms" in complaint
    assert "Traceback" not in complaint


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--nodes", "0"), "A local cluster has 1 to 64 nodes"),
        (("--override", "x"), "has no value"),
        (("--override", "node.id=3"), "node.id cannot be set"),
        (("--log-level", "loud"), "--log-level loud is not a log level"),
    ],
)
def test_invalid_options_are_rejected(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    with Up(tmp_path, *arguments) as running:
        assert running.wait() == 1
        assert said in running.rest(running.complaints)
