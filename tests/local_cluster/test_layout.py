"""The folder of a local cluster: formatting, reuse, and settings that are rejected before a start."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fenceline.config.node import NodeConfig
from fenceline.config.properties import read_properties
from fenceline.errors import OperatorError
from fenceline.ids import encode_uuid
from fenceline.local_cluster import ports as local_cluster_ports
from fenceline.local_cluster.cuts import MAX_NODES, outbound_address
from fenceline.local_cluster.layout import ClusterLayout, plan, write
from fenceline.local_cluster.ports import free_ports, is_free


def make(root: Path, nodes: int = 3, controllers: int = 0) -> ClusterLayout:
    layout = plan(root, nodes=nodes, controllers=controllers, port=0)
    write(layout, {})
    return layout


def settings(layout: ClusterLayout, node: int) -> dict[str, str]:
    return read_properties(layout.nodes[node - 1].properties_file)


def test_three_combined_nodes(tmp_path: Path) -> None:
    layout = make(tmp_path)
    first = layout.nodes[0].port
    assert first is not None
    assert [(node.node_id, node.port, node.roles) for node in layout.nodes] == [
        (number, first + number - 1, ("broker", "controller")) for number in (1, 2, 3)
    ]
    controllers = [node.controller_port for node in layout.nodes]
    assert settings(layout, 2) == {
        "node.id": "2",
        "process.roles": "broker,controller",
        "listeners": f"PLAINTEXT://127.0.0.1:{first + 1},CONTROLLER://127.0.0.1:{controllers[1]}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{first + 1}",
        "inter.broker.listener.name": "PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "controller.quorum.bootstrap.servers": ",".join(f"127.0.0.1:{port}" for port in controllers),
        "log.dirs": str(tmp_path / "node-2" / "data"),
        "fenceline.outbound.address": outbound_address(2),
        "offsets.topic.replication.factor": "3",
        "transaction.state.log.replication.factor": "3",
        "transaction.state.log.min.isr": "2",
        "share.coordinator.state.topic.replication.factor": "3",
        "share.coordinator.state.topic.min.isr": "2",
    }
    assert layout.bootstrap == ",".join(f"127.0.0.1:{first + index}" for index in range(3))


def test_every_node_can_read_its_settings(tmp_path: Path) -> None:
    layout = make(tmp_path, nodes=2, controllers=1)
    for node in layout.nodes:
        config = NodeConfig.load(node.properties_file)
        assert config.node_id == node.node_id
        assert config.process_roles == set(node.roles)
        assert not config.warnings


def test_dedicated_controllers(tmp_path: Path) -> None:
    layout = make(tmp_path, nodes=2, controllers=3)
    assert [node.roles for node in layout.nodes] == [("broker",)] * 2 + [("controller",)] * 3
    assert settings(layout, 1)["listeners"] == f"PLAINTEXT://127.0.0.1:{layout.nodes[0].port}"
    assert settings(layout, 3)["listeners"] == f"CONTROLLER://127.0.0.1:{layout.nodes[2].controller_port}"
    assert "advertised.listeners" not in settings(layout, 3)
    assert layout.bootstrap.count(",") == 1
    assert len(layout.listeners) == 5


def test_formatted_once_and_for_one_cluster(tmp_path: Path) -> None:
    layout = make(tmp_path)
    metas = [(node.data_dir / "meta.properties").read_text() for node in layout.nodes]
    for node, meta in zip(layout.nodes, metas, strict=True):
        assert f"cluster.id={layout.cluster_id}" in meta
        assert f"node.id={node.node_id}" in meta
        assert f"directory.id={encode_uuid(node.directory_id)}" in meta
    again = plan(tmp_path, nodes=None, controllers=None, port=0)
    write(again, {})
    assert again.cluster_id == layout.cluster_id
    assert [node.controller_port for node in again.nodes] == [node.controller_port for node in layout.nodes]
    assert [(node.data_dir / "meta.properties").read_text() for node in layout.nodes] == metas


def test_formatting_of_a_half_formatted_folder_is_completed(tmp_path: Path) -> None:
    layout = make(tmp_path)
    for path in layout.nodes[2].data_dir.glob("*.properties"):
        path.unlink()
    kept = json.loads((tmp_path / "cluster.json").read_text())
    (tmp_path / "cluster.json").write_text(json.dumps({**kept, "formatted": False}))
    write(plan(tmp_path, nodes=3, controllers=0, port=0), {})
    assert f"cluster.id={layout.cluster_id}" in (layout.nodes[2].data_dir / "meta.properties").read_text()


@pytest.mark.parametrize(
    ("controllers", "lost", "advice"),
    [
        (0, 2, "--no-initial-controllers; once the cluster is up, `fenceline quorum remove 2`"),
        (1, 2, "format it as an empty node: fenceline format --config"),
        (1, 4, "it was the only controller"),
    ],
)
def test_a_missing_directory_is_not_silently_recreated(
    tmp_path: Path, controllers: int, lost: int, advice: str
) -> None:
    layout = make(tmp_path, controllers=controllers)
    shutil.rmtree(layout.nodes[lost - 1].data_dir)
    with pytest.raises(OperatorError, match=f"Node {lost} has lost its directory") as refused:
        write(plan(tmp_path, nodes=None, controllers=None, port=0), {})
    assert advice in refused.value.advice
    assert not layout.nodes[lost - 1].data_dir.exists()


def test_overrides_apply_to_one_run(tmp_path: Path) -> None:
    layout = plan(tmp_path, nodes=1, controllers=0, port=0)
    write(layout, {"num.partitions": "7", "offsets.topic.replication.factor": "2"})
    assert settings(layout, 1)["num.partitions"] == "7"
    assert settings(layout, 1)["offsets.topic.replication.factor"] == "2"
    write(plan(tmp_path, nodes=1, controllers=0, port=0), {})
    assert "num.partitions" not in settings(layout, 1)


@pytest.mark.parametrize(("nodes", "controllers", "said"), [(2, None, "--nodes 3, not 2"), (3, 1, "--controllers 0")])
def test_another_number_of_nodes_is_rejected(tmp_path: Path, nodes: int, controllers: int | None, said: str) -> None:
    make(tmp_path)
    with pytest.raises(OperatorError, match=said):
        plan(tmp_path, nodes=nodes, controllers=controllers, port=0)


@pytest.mark.parametrize("is_controller", [False, True])
def test_a_port_in_use_is_rejected(tmp_path: Path, is_controller: bool) -> None:
    layout = make(tmp_path)
    node = layout.nodes[1]
    port = node.controller_port if is_controller else node.port
    assert port is not None
    with socket.create_server(("127.0.0.1", port)):
        assert not is_free(port)
        with pytest.raises(OperatorError, match=f"Port {port}, needed by node 2, is already in use") as refused:
            plan(tmp_path, nodes=3, controllers=0, port=layout.nodes[0].port or 0)
    assert ("cluster.json keeps it" in refused.value.advice) is is_controller


def test_a_port_in_use_leaves_no_files_behind(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OperatorError, match="already in use"):
        plan(tmp_path, nodes=1, controllers=0, port=taken.getsockname()[1])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("nodes", "controllers", "port", "said"),
    [
        (0, 0, 0, "1 to 64 nodes, not 0"),
        (1, -1, 0, "1 to 64 nodes"),
        (MAX_NODES, 1, 0, "not 65"),
        (3, 0, 65_534, "no 3 ports from 65534"),
        (1, 0, -1, "no 1 ports"),
    ],
)
def test_invalid_numbers_are_rejected(tmp_path: Path, nodes: int, controllers: int, port: int, said: str) -> None:
    with pytest.raises(OperatorError, match=said):
        plan(tmp_path, nodes=nodes, controllers=controllers, port=port)


def test_a_folder_with_other_files_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    plan(tmp_path, nodes=1, controllers=0, port=0)
    (tmp_path / "thesis.txt").touch()
    with pytest.raises(OperatorError, match=r"holds thesis\.txt, but no cluster"):
        plan(tmp_path, nodes=1, controllers=0, port=0)
    with pytest.raises(OperatorError, match="is a file"):
        plan(tmp_path / "thesis.txt", nodes=1, controllers=0, port=0)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 2}', '{"version": 1, "cluster_id": "x", "nodes": [{}]}'])
def test_a_damaged_description_is_rejected(tmp_path: Path, text: str) -> None:
    (tmp_path / "cluster.json").write_text(text)
    with pytest.raises(OperatorError, match=r"cluster\.json cannot be parsed"):
        plan(tmp_path, nodes=None, controllers=None, port=0)


def test_settings_of_the_cluster_cannot_be_overridden(tmp_path: Path) -> None:
    layout = plan(tmp_path, nodes=1, controllers=0, port=0)
    with pytest.raises(OperatorError, match=r"node\.id cannot be set"):
        write(layout, {"node.id": "7"})
    assert not (tmp_path / "cluster.json").exists()


def test_the_description_is_readable_json(tmp_path: Path) -> None:
    layout = make(tmp_path, nodes=1)
    kept = json.loads((tmp_path / "cluster.json").read_text())
    assert kept["cluster_id"] == layout.cluster_id
    assert kept["nodes"][0]["roles"] == ["broker", "controller"]


def test_free_ports_are_consecutive_and_not_ephemeral(monkeypatch: pytest.MonkeyPatch) -> None:
    first = free_ports(5)
    assert all(is_free(first + index) for index in range(5))
    assert all(20_000 <= free_ports(200) <= 32_768 - 200 for _ in range(20)), "more ports than one block"
    taken = free_ports(1) + 2
    monkeypatch.setattr(local_cluster_ports, "is_free", lambda port: port != taken)
    found = [free_ports(2, apart_from=range(taken + 3, taken + 5)) for _ in range(3)]
    assert not {taken, taken + 3, taken + 4} & {port for first in found for port in (first, first + 1)}


def test_ports_are_assigned_to_one_process_only() -> None:
    """A node opens its port some time after the port was found free."""
    others = subprocess.Popen(
        [sys.executable, "-c", f"{_GIVE}; sys.stdin.read()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with others:
        assert others.stdin is not None
        assert others.stdout is not None
        theirs = set(json.loads(others.stdout.readline()))
        ours = {free_ports(1) for _ in range(500)}
        others.stdin.close()
    assert len(theirs) == len(ours) == 500
    assert not theirs & ours


def test_ports_are_assigned_to_one_thread_only() -> None:
    """Threads of a test start clusters at the same time."""
    with ThreadPoolExecutor(8) as threads:
        given = list(threads.map(lambda _: free_ports(1), range(400)))
    assert len(set(given)) == 400


_GIVE = (
    "import json, sys; from fenceline.local_cluster.ports import free_ports;"
    " print(json.dumps([free_ports(1) for _ in range(500)]), flush=True)"
)
