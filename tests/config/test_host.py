"""Settings of several nodes of one host."""

from __future__ import annotations

from pathlib import Path

import pytest

from fenceline.config.host import MAX_NODES, NodeOfHost, nodes_of_host
from fenceline.config.node import NodeConfig
from fenceline.errors import OperatorError

_VOTERS = {
    "node.id": "10",
    "listeners": "PLAINTEXT://10.0.0.1:9092,CONTROLLER://10.0.0.1:9093",
    "controller.quorum.voters": "10@10.0.0.1:9093,20@10.0.0.2:9093,30@10.0.0.3:9093",
    "log.dirs": "/a,/b",
}


def _nodes(settings: dict[str, str], count: int) -> tuple[NodeOfHost, ...]:
    return nodes_of_host(NodeConfig.load(None, settings, {}), count, "vm")


def _configs(settings: dict[str, str], count: int) -> list[NodeConfig]:
    return [NodeConfig.load(None, {**settings, **each.settings}, {}) for each in _nodes(settings, count)]


def test_one_host_without_a_quorum() -> None:
    first, second, third = _configs({"listeners": "PLAINTEXT://127.0.0.1:9092", "log.dirs": "/data"}, 3)
    assert [each.node_id for each in (first, second, third)] == [1, 2, 3]
    assert (first.is_controller, second.is_controller, third.is_controller) == (True, False, False)
    assert [str(each.listeners[0]) for each in (first, second, third)] == [
        "PLAINTEXT://127.0.0.1:9092",
        "PLAINTEXT://127.0.0.1:9093",
        "PLAINTEXT://127.0.0.1:9094",
    ]
    assert [str(each) for each in first.controller_listeners] == ["CONTROLLER://127.0.0.1:9091"]
    for other in (second, third):
        assert [(each.host, each.port) for each in other.quorum_bootstrap_servers] == [("127.0.0.1", 9091)]
    assert [each.log_dirs for each in (first, second)] == [(Path("/data/node-1"),), (Path("/data/node-2"),)]
    assert {each.rack for each in (first, second, third)} == {"vm"}
    assert all(each.get_bool("fenceline.placement.distinct.racks") for each in (first, second, third))


def test_a_host_of_a_cluster_has_one_voter_and_its_ports_do_not_collide() -> None:
    configs = _configs(_VOTERS, 3)
    assert [each.node_id for each in configs] == [10, 11, 12]
    assert [each.process_roles for each in configs[1:]] == [{"broker"}] * 2
    assert [each.listeners[0].port for each in configs] == [9092, 9094, 9096]
    assert [[each.port for each in config.controller_listeners] for config in configs] == [[9093], [], []]
    assert configs[1].quorum_voters == configs[0].quorum_voters
    assert configs[2].log_dirs == (Path("/a/node-12"), Path("/b/node-12"))
    assert configs[2].metadata_log_dir == Path("/a/node-12")


def test_ports_of_a_node_do_not_depend_on_the_number_of_nodes() -> None:
    settings = {"listeners": "A://:9092,B://:9096", "listener.security.protocol.map": "A:PLAINTEXT,B:PLAINTEXT"}
    settings |= {"inter.broker.listener.name": "A", "controller.quorum.voters": "1@x:1", "process.roles": "broker"}
    settings |= {"node.id": "2", "controller.listener.names": "C", "fenceline.metrics.port": "9100"}
    settings["listener.security.protocol.map"] += ",C:PLAINTEXT"
    two, many = _configs(settings, 2), _configs(settings, MAX_NODES)
    assert [each.listeners for each in two] == [each.listeners for each in many[:2]]
    ports = [each.port for config in many for each in config.listeners]
    ports += [config.get_int("fenceline.metrics.port") for config in many]
    assert len(set(ports)) == len(ports) == 3 * MAX_NODES


def test_advertised_addresses_move_with_the_ports() -> None:
    settings = {**_VOTERS, "advertised.listeners": "PLAINTEXT://kafka.example:29092"}
    assert [str(each.advertised_listeners[0]) for each in _configs(settings, 3)] == [
        "PLAINTEXT://kafka.example:29092",
        "PLAINTEXT://kafka.example:29094",
        "PLAINTEXT://kafka.example:29096",
    ]


def test_what_the_operator_sets_stays() -> None:
    settings = {**_VOTERS, "broker.rack": "east", "fenceline.placement.distinct.racks": "false"}
    for config in _configs(settings, 2):
        assert config.rack == "east"
        assert not config.get_bool("fenceline.placement.distinct.racks")


@pytest.mark.parametrize(
    ("settings", "count", "message"),
    [
        ({}, 0, "--nodes 0 is not possible"),
        ({}, MAX_NODES + 1, "is not possible"),
        ({"listeners": "PLAINTEXT://:65534"}, 4, "would need port"),
        ({"listeners": "PLAINTEXT://:0"}, 2, "needs a port at which its brokers find their controller"),
        (
            {"process.roles": "controller", "listeners": "CONTROLLER://:9093", "controller.quorum.voters": "1@x:9093"},
            2,
            "process.roles has only controller",
        ),
    ],
)
def test_configurations_that_cannot_be_of_several_nodes(settings: dict[str, str], count: int, message: str) -> None:
    with pytest.raises(OperatorError, match=message):
        _nodes(settings, count)
