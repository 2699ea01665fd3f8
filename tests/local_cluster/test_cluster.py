"""A local cluster from Python: its life cycle, that of its nodes, and notifications."""

from __future__ import annotations

import os
import queue
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fenceline.client import Admin
from fenceline.errors import OperatorError
from fenceline.local_cluster import LocalCluster, NodeEnded
from fenceline.local_cluster.control import ask
from fenceline.local_cluster.probe import known_brokers
from fenceline.testing.waiting import eventually
from tests.support.processes import is_alive
from tests.testing.echo_peer import need_cuts


@pytest.fixture(scope="module")
def ended() -> queue.SimpleQueue[NodeEnded]:
    return queue.SimpleQueue()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, ended: queue.SimpleQueue[NodeEnded]) -> Iterator[LocalCluster]:
    with LocalCluster(1, data_dir=tmp_path_factory.mktemp("cluster"), on_end=ended.put) as running:
        yield running


def port_of(cluster: LocalCluster) -> int:
    return int(cluster.bootstrap.rpartition(":")[2])


def test_started_nodes_are_registered(cluster: LocalCluster) -> None:
    assert known_brokers(port_of(cluster), timeout_s=30) == {1}
    [status] = cluster.status()
    assert (status.node, status.state, status.pid, status.exit_code) == (1, "running", cluster.pid(1), None)
    assert status.memory_bytes is None or status.memory_bytes > 1_000_000
    assert (cluster.root / "node-1" / "pid").read_text().strip() == str(cluster.pid(1))
    assert (cluster.root / "supervisor.pid").read_text().strip() == str(os.getpid())


def test_killed_on_request_and_restarted(cluster: LocalCluster, ended: queue.SimpleQueue[NodeEnded]) -> None:
    with Admin(cluster.bootstrap) as admin:
        admin.create_topics(["kept"])
    pid = cluster.pid(1)
    cluster.kill(1)
    news = ended.get(timeout=60)
    assert (news.node, news.exit_code, news.was_wanted) == (1, -signal.SIGKILL, True)
    assert cluster.status_of(1).state == "ended"
    with pytest.raises(OperatorError, match="Node 1 is not running"):
        cluster.kill(1)
    cluster.restart(1)
    assert cluster.pid(1) != pid
    with Admin(cluster.bootstrap) as admin:
        assert "kept" in admin.metadata(["kept"]).topics


def test_a_node_that_exits_by_itself_is_reported(cluster: LocalCluster, ended: queue.SimpleQueue[NodeEnded]) -> None:
    os.kill(cluster.pid(1), signal.SIGSEGV)
    news = ended.get(timeout=60)
    assert (news.exit_code, news.was_wanted) == (-signal.SIGSEGV, False)
    assert any("Fenceline is ready" in line for line in news.last_lines)
    assert cluster.status_of(1).exit_code == -signal.SIGSEGV
    cluster.restart(1)
    cluster.restart(1)
    assert ended.get(timeout=60).exit_code == 0
    assert cluster.status_of(1).exit_code is None


def test_paused_and_resumed(cluster: LocalCluster) -> None:
    cluster.pause(1)
    assert cluster.status_of(1).state == "paused"
    assert known_brokers(port_of(cluster), timeout_s=0.2) == frozenset()
    cluster.resume(1)
    assert cluster.status_of(1).state == "running"
    assert known_brokers(port_of(cluster), timeout_s=30) == {1}


def test_isolated_and_healed(cluster: LocalCluster) -> None:
    need_cuts()
    with socket.create_connection(("127.0.0.1", port_of(cluster))):
        cluster.isolate(1)
        assert known_brokers(port_of(cluster), timeout_s=0.2) == frozenset()
        [cut] = cluster.status_of(1).cuts
        assert (cut.peer, cut.inbound, cut.outbound) == (None, True, True)
        cluster.heal(1)
    assert known_brokers(port_of(cluster), timeout_s=30) == {1}
    assert cluster.status_of(1).cuts == ()


def test_invalid_requests_are_rejected(cluster: LocalCluster) -> None:
    for wrong in (
        lambda: cluster.kill(2),
        lambda: cluster.isolate(1, peers=[2]),
        lambda: cluster.isolate(1, peers=[1]),
        lambda: cluster.isolate(1, inbound=False, outbound=False),
    ):
        with pytest.raises(OperatorError):
            wrong()
    assert cluster.status_of(1).cuts == ()


def test_commands_of_another_process(cluster: LocalCluster) -> None:
    assert ask(cluster.root, "status")["bootstrap"] == cluster.bootstrap
    assert ask(cluster.root, "pause", node=1)["state"] == "paused"
    assert ask(cluster.root, "resume", node=1)["state"] == "running"
    with pytest.raises(OperatorError, match="There is no node 9"):
        ask(cluster.root, "kill", node=9)
    for request in (("dance", {"node": 1}), ("kill", {}), ("kill", {"node": "first"})):
        with pytest.raises(OperatorError, match="Invalid command"):
            ask(cluster.root, request[0], **request[1])
    assert stat.S_IMODE((cluster.root / "control.sock").stat().st_mode) == 0o600


def test_requests_on_the_control_socket_are_bounded(cluster: LocalCluster) -> None:
    with pytest.raises(OperatorError, match=r"more than 65536 bytes|did not answer"):
        ask(cluster.root, "kill", node="1" * 100_000)
    assert ask(cluster.root, "status")["nodes"][0]["state"] == "running"


def test_a_folder_has_at_most_one_running_cluster(cluster: LocalCluster) -> None:
    second = LocalCluster(data_dir=cluster.root)
    with pytest.raises(OperatorError, match="is already running"):
        second.start()
    second.close()
    assert (cluster.root / "supervisor.pid").exists()
    assert ask(cluster.root, "status")["bootstrap"] == cluster.bootstrap


def test_a_stopped_cluster_starts_again_with_its_data(tmp_path: Path) -> None:
    root = tmp_path / ("long" * 40)
    with LocalCluster(1, data_dir=root) as cluster:
        cluster_id = cluster.cluster_id
        with Admin(cluster.bootstrap) as admin:
            admin.create_topics(["kept"])
        cluster.pause(1)
        assert cluster.stop() == {1: 0}
        assert sorted(path.name for path in root.iterdir()) == ["cluster.json", "lock", "node-1"]
        with pytest.raises(OperatorError, match="No cluster is running"):
            ask(root, "status")
        cluster.start()
        assert cluster.cluster_id == cluster_id
        with Admin(cluster.bootstrap) as admin:
            assert "kept" in admin.metadata(["kept"]).topics


def test_a_node_that_cannot_start_is_reported_with_its_output(tmp_path: Path) -> None:
    cluster = LocalCluster(1, data_dir=tmp_path, overrides={"log.retention.ms": "soon"})
    try:
        with pytest.raises(OperatorError, match="Node 1 ended with 1 before it was ready") as failed:
            cluster.start()
        assert "log.retention.ms" in str(failed.value)
    finally:
        cluster.close()


def test_a_cluster_can_be_stopped_while_it_starts(tmp_path: Path) -> None:
    """The node never becomes ready: it is stopped as soon as it is there."""
    cluster = LocalCluster(1, data_dir=tmp_path)
    failures: list[OperatorError] = []

    def start() -> None:
        try:
            cluster.start()
        except OperatorError as error:
            failures.append(error)

    starting = threading.Thread(target=start)
    starting.start()
    eventually(lambda: (tmp_path / "node-1" / "pid").exists() or not starting.is_alive(), "a process is started")
    cluster.close()
    starting.join(60)
    assert not starting.is_alive()
    assert not (tmp_path / "node-1" / "pid").exists()


def test_a_temporary_folder_is_removed() -> None:
    with LocalCluster(1) as cluster:
        root, pid = cluster.root, cluster.pid(1)
        assert (root / "node-1").exists()
    assert not root.exists()
    assert not is_alive(pid)


@pytest.mark.parametrize("has_folder", [True, False])
def test_nodes_end_when_their_parent_is_killed(tmp_path: Path, has_folder: bool) -> None:
    program = (
        "import sys, pathlib\n"
        "from fenceline.local_cluster import LocalCluster\n"
        "cluster = LocalCluster(1, data_dir=pathlib.Path(sys.argv[1]) if sys.argv[1:] else None); cluster.start()\n"
        "print(cluster.pid(1), cluster.root, flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, *([str(tmp_path)] * has_folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as owner:
        assert owner.stdout is not None
        pid, root = owner.stdout.readline().split()
        assert is_alive(int(pid))
        owner.kill()
    eventually(lambda: not is_alive(int(pid)), "the node ends with its supervisor")
    if has_folder:
        with LocalCluster(data_dir=tmp_path) as again:
            assert again.status_of(1).state == "running"
    else:
        eventually(lambda: not Path(root).exists(), "the temporary folder is gone")
