"""`fenceline start --nodes N`: nodes of one host as processes."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fenceline.client.admin.admin import Admin
from fenceline.client.admin.async_admin import NewTopic
from fenceline.client.core.errors import ClientError
from fenceline.local_cluster import reaper
from fenceline.local_cluster.host import HostNodes, Restarts, with_node
from fenceline.local_cluster.ports import free_ports
from fenceline.testing.waiting import eventually


def test_pauses_between_restarts_grow_until_a_run_was_long() -> None:
    restarts = Restarts()
    assert [restarts.pause_s(1) for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert restarts.pause_s(61) == 1
    assert restarts.pause_s(1) == 2


def test_lines_get_the_id_of_their_node() -> None:
    assert with_node(2, b'{"room": "node"}\n') == b'{"node": 2, "room": "node"}\n'
    assert with_node(2, b"Traceback\n") == b"[2] Traceback\n"


class _Host:
    """The command, in a process of its own."""

    def __init__(self, folder: Path, nodes: int) -> None:
        self.port = free_ports(nodes + 1) + 1
        self.folder = folder
        self.errors: list[str] = []
        self._start(nodes)

    def _start(self, nodes: int) -> None:
        command = [sys.executable, "-m", "fenceline", "start", "--nodes", str(nodes), "--log-level", "warning"]
        command += ["--data-dir", str(self.folder), "--listen", f"127.0.0.1:{self.port}"]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        reaper.watch_process(self.process.pid)
        self._reader = threading.Thread(target=self._read, args=(self.process,), daemon=True)
        self._reader.start()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stderr is not None
        with process.stderr as errors:
            self.errors += errors

    def ready_line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def children(self) -> dict[int, int]:
        """Process ids by node id."""
        tasks = Path(f"/proc/{self.process.pid}/task")
        pids = [int(pid) for each in tasks.iterdir() for pid in (each / "children").read_text().split()]
        found = {}
        for pid in pids:
            node = re.search(rb"node\.id=(\d+)", Path(f"/proc/{pid}/cmdline").read_bytes())
            if node is not None:
                found[int(node[1])] = pid
        return found

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        reaper.forget_process(self.process.pid)
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def host(tmp_path: Path) -> Iterator[_Host]:
    host = _Host(tmp_path / "host", 2)
    yield host
    host.end()


def _runs(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_nodes_of_one_host_from_the_start_to_the_stop(host: _Host) -> None:
    line = host.ready_line()
    assert line.startswith("Fenceline is ready: nodes 1 to 2, cluster "), host.errors
    assert f"127.0.0.1:{host.port},127.0.0.1:{host.port + 1}" in line
    with Admin({"bootstrap.servers": f"127.0.0.1:{host.port}"}) as admin:
        admin.create_topics([NewTopic("one", 2, 1)])
        with pytest.raises(ClientError, match="2 replicas need as many racks"):
            admin.create_topics([NewTopic("two", 2, 2)])
    nodes = host.children()
    assert sorted(nodes) == [1, 2]
    os.kill(nodes[2], signal.SIGKILL)
    again = eventually(lambda: (found := host.children().get(2)) != nodes[2] and found, "node 2 is started again")
    assert any("node 2 has ended: killed by SIGKILL; it is started again in 1 s" in each for each in host.errors)
    with Admin({"bootstrap.servers": f"127.0.0.1:{host.port}"}) as admin:
        eventually(lambda: len(admin.describe_cluster().brokers) == 2, "node 2 is back")
    host.process.send_signal(signal.SIGTERM)
    assert host.process.wait(60) == 0, host.errors
    assert not _runs(again)
    assert not _runs(nodes[1])


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_no_node_outlives_a_killed_supervisor(host: _Host) -> None:
    host.ready_line()
    nodes = host.children()
    host.process.kill()
    eventually(lambda: not any(map(_runs, nodes.values())), "the nodes have ended")


@pytest.mark.long
def test_a_lost_directory_is_not_formatted_again(host: _Host, tmp_path: Path) -> None:
    assert host.ready_line()
    host.process.send_signal(signal.SIGINT)
    assert host.process.wait(60) == 0
    (host.folder / "node-1").rename(tmp_path / "elsewhere")
    host._start(2)
    assert host.process.wait(60) == 1
    host._reader.join()
    assert any("Node 1 has lost its directory" in each for each in host.errors), host.errors


@pytest.mark.long
def test_a_node_that_cannot_start_ends_the_command(tmp_path: Path) -> None:
    other = _Host(tmp_path / "first", 2)
    try:
        assert other.ready_line()
        command = [sys.executable, "-m", "fenceline", "start", "--nodes", "2", "--data-dir", str(tmp_path / "second")]
        second = subprocess.run(
            [*command, "--listen", f"127.0.0.1:{other.port}"],
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert second.returncode == 1
        assert "could not start: exit code 1; all nodes of this host stop" in second.stderr
    finally:
        other.end()


def test_a_node_does_not_wait_for_lines_that_cannot_be_written() -> None:
    """The reader of our standard error has gone; the process writes more than a pipe holds, and ends."""

    class _Closed(io.BytesIO):
        def write(self, line: object) -> int:
            raise BrokenPipeError

    host = HostNodes([], all_ready=lambda lines: None, report=print, lines=_Closed(), environment={})
    command = [sys.executable, "-c", "import sys; sys.stderr.write('line\\n' * 100_000)"]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        host._relay(1, process)
        assert process.wait(60) == 0
