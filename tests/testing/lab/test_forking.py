"""Processes of nodes: how they start, and that none is left behind, whatever ends their parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fenceline.client import Admin, Producer
from fenceline.errors import OperatorError
from fenceline.testing.lab import forking
from fenceline.testing.lab.cluster import LabCluster
from fenceline.testing.waiting import eventually
from tests.support.processes import is_alive

_STARTS = """
import sys, threading
from fenceline.testing.lab.cluster import LabCluster
cluster = LabCluster(2).start()
print(cluster.root, *(cluster.processes.running(node).pid for node in cluster.nodes), flush=True)
sys.stdin.read()
"""


def test_nodes_start_without_a_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the system cannot fork: each has an interpreter of its own, and faults all the same."""
    monkeypatch.setenv(forking.NO_FORK, "1")
    assert not forking.can_fork()
    with LabCluster(1) as cluster, Producer(cluster.client_settings) as producer:
        topic = cluster.create_topic()
        fault = cluster.faults.fail_requests("Produce", "NOT_LEADER_OR_FOLLOWER", topic=topic, times=1)
        assert producer.send(topic, b"value").result(30).offset == 0
        assert fault.hits == 1
        assert b"lab_node" in Path(f"/proc/{cluster.processes.running(1).pid}/cmdline").read_bytes()


def test_the_environment_is_that_of_the_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    forking.prepare()
    monkeypatch.setenv("FENCELINE_NUM_PARTITIONS", "7")
    with LabCluster(1) as cluster, Admin(cluster.client_settings) as admin:
        admin.create_topics(["seven"])
        assert len(admin.metadata(["seven"]).topics["seven"].partitions) == 7


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, None])
def test_nothing_is_left_behind(how: signal.Signals | None) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _STARTS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        root, *pids = process.stdout.readline().split()
        assert Path(root).is_dir()
        assert all(is_alive(int(pid)) for pid in pids)
        if how is None:
            process.stdin.close()
        else:
            process.send_signal(how)
        process.wait()
    eventually(lambda: not any(is_alive(int(pid)) for pid in pids), "the nodes end", wait_s=30)
    eventually(lambda: not Path(root).exists(), "the folder is removed", wait_s=30)


def test_a_killed_fork_server_takes_its_nodes_along_and_is_replaced() -> None:
    with LabCluster(1) as cluster:
        pid = cluster.processes.running(1).pid
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(parent, signal.SIGKILL)
        eventually(lambda: not cluster.processes.is_running(1), wait_s=30)
        assert not is_alive(pid)
        cluster.start_node(1)
        assert cluster.create_topic()


def test_nothing_starts_in_a_closed_cluster_and_waits_end() -> None:
    with LabCluster(1) as cluster:
        fault = cluster.faults.hang_requests("Metadata", client_id="nobody")
    for use in (
        lambda: cluster.start_node(1),
        lambda: cluster.wait_for_group("g"),
        lambda: cluster.losses(wait_s=60),
        fault.wait_hits,
    ):
        with pytest.raises(OperatorError, match=r"has ended|is stopping"):
            use()


def test_a_node_that_cannot_start_says_why() -> None:
    with pytest.raises(OperatorError, match="ended with 1 before it was ready") as error:
        LabCluster(1, properties={"num.partitions": "many"}).start()
    assert "num.partitions" in error.value.message


def test_a_folder_of_a_running_cluster_is_refused(tmp_path: Path) -> None:
    with LabCluster(1, data_dir=tmp_path / "data"), pytest.raises(OperatorError, match="already running"):
        LabCluster(1, data_dir=tmp_path / "data").start()


def test_a_port_that_is_taken_is_named() -> None:
    with LabCluster(1) as cluster:
        port = int(cluster.bootstrap_servers.rpartition(":")[2])
        with pytest.raises(OperatorError, match=f"Port {port}"):
            LabCluster(1, port=port).start()


def test_a_cluster_continues_in_its_folder(tmp_path: Path) -> None:
    with LabCluster(1, data_dir=tmp_path / "data") as cluster:
        topic = cluster.create_topic()
    with LabCluster(1, data_dir=tmp_path / "data") as cluster:
        assert topic in cluster.admin.metadata().topics


def test_a_secure_cluster_has_a_login() -> None:
    with LabCluster(1, security=True) as cluster, Producer(cluster.client_settings) as producer:
        topic = cluster.create_topic()
        with (
            cluster.faults.delay(1, 0.01),
            cluster.faults.fail_requests("Produce", "NOT_LEADER_OR_FOLLOWER", topic=topic, times=1) as fault,
        ):
            assert producer.send(topic, b"value").result(30).offset == 0
            assert fault.hits == 1
