from __future__ import annotations

from pathlib import Path

import pytest

from fenceline.config.listeners import ListenerConfig
from fenceline.config.node import NodeConfig
from fenceline.errors import OperatorError


def load(tmp_path: Path, text: str, **overrides: str) -> NodeConfig:
    path = tmp_path / "server.properties"
    path.write_text(text)
    return NodeConfig.load(path, {key.replace("_", "."): value for key, value in overrides.items()}, {"HOME": "/h"})


def test_without_any_settings() -> None:
    config = NodeConfig.load(None, {}, {"HOME": "/home/me"})
    assert config.node_id == 1
    assert config.process_roles == {"broker", "controller"}
    assert config.listeners == (ListenerConfig("PLAINTEXT", "", 9092),)
    assert config.advertised_listeners[0].host
    assert config.log_dirs == (Path("/home/me/.local/share/fenceline"),)
    assert config.metadata_log_dir == config.log_dirs[0]
    assert config.get_int("offsets.topic.replication.factor") == 1
    assert config.warnings == ()


def test_xdg_folder() -> None:
    assert NodeConfig.load(None, {}, {"XDG_DATA_HOME": "/x"}).log_dirs == (Path("/x/fenceline"),)


def test_a_file_has_kafkas_defaults(tmp_path: Path) -> None:
    assert load(tmp_path, "").get_int("offsets.topic.replication.factor") == 3


def test_overrides_before_environment_before_file(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("num.partitions=1\nlog.retention.ms=1\nlog.dirs=/d\n")
    environment = {"FENCELINE_NUM_PARTITIONS": "2", "fenceline_log_retention_ms": "2", "FENCELINE_PURE_PYTHON": "1"}
    config = NodeConfig.load(path, {"num.partitions": "3"}, environment)
    assert config.get_int("num.partitions") == 3
    assert config.get("log.retention.ms") == 2
    assert config.log_dirs == (Path("/d"),)
    assert config.origins["num.partitions"] == "--override"
    assert config.origins["log.retention.ms"] == "environment"
    assert config.warnings == ()


def test_unknown_keys_warn() -> None:
    config = NodeConfig.load(None, {"log.retention.millis": "1", "zookeeper.connect": "x"}, {"FENCELINE_NOPE": "1"})
    assert len(config.warnings) == 3
    assert any("did you mean" in warning for warning in config.warnings)


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        ({"log.retention.ms": "abc"}, "Not a number of type LONG"),
        ({"num.partitions": "0"}, "Value must be at least 1"),
        ({"log.retention.ms": "0"}, "at least 1"),
        ({"listeners": "PLAINTEXT://a:1,PLAINTEXT://b:2"}, "must be unique"),
        ({"listeners": "PLAINTEXT://a:1,OTHER://b:2"}, "has no security protocol"),
        ({"listeners": "nonsense"}, "invalid listener"),
        ({"listeners": ""}, "no listener"),
        ({"advertised.listeners": "PLAINTEXT://0.0.0.0:9092"}, "must not use the wildcard address"),
        ({"advertised.listeners": "SSL://a:1"}, "listeners has no SSL"),
        ({"process.roles": "broker"}, "requires the addresses of the controllers"),
        ({"controller.quorum.voters": "1@a:1,2@b:1,3@c:1"}, "has no listener for them"),
        ({"controller.quorum.voters": "a:1"}, "invalid voter"),
        ({"controller.quorum.voters": "1@a"}, "invalid address"),
        ({"controller.quorum.voters": "1@a:1,1@b:1"}, "contains a duplicate id"),
        ({"controller.quorum.voters": "2@b:1"}, "does not contain node 1"),
        ({"controller.quorum.bootstrap.servers": "here"}, "invalid address"),
        ({"process.roles": "broker", "controller.quorum.voters": "1@a:1"}, "which is not a controller"),
        ({"process.roles": "controller"}, "which a controller requires"),
        (
            {"process.roles": "controller", "listeners": "PLAINTEXT://:1,CONTROLLER://:2"},
            "this node is not a broker",
        ),
        (
            {
                "process.roles": "broker",
                "controller.quorum.bootstrap.servers": "a:1",
                "listeners": "PLAINTEXT://:1,CONTROLLER://:2",
            },
            "this node is not a controller",
        ),
        ({"remote.log.storage.system.enable": "true"}, "tiered storage is not implemented"),
        ({"authorizer.class.name": "x.Y"}, "org.apache.kafka.metadata.authorizer.StandardAuthorizer"),
        ({"inter.broker.listener.name": "A", "security.inter.broker.protocol": "SSL"}, "are both set"),
        ({"node.id": "1", "broker.id": "2"}, "differ"),
        ({"log.dirs": "/a,/a"}, "without duplicates"),
        ({"queued.max.request.bytes": "10"}, "at least socket.request.max.bytes"),
        ({"log.cleaner.min.compaction.lag.ms": "9", "log.cleaner.max.compaction.lag.ms": "5"}, "contradict each other"),
        ({"group.consumer.assignors": "org.example.Mine"}, "must be one of: uniform, range"),
    ],
)
def test_rejections_give_the_reason(settings: dict[str, str], part: str) -> None:
    with pytest.raises(OperatorError) as refused:
        NodeConfig.load(None, settings, {"HOME": "/h"})
    assert part in str(refused.value)


def test_keys_without_effect_are_reported() -> None:
    config = NodeConfig.load(None, {"num.io.threads": "4", "num.partitions": "2"}, {})
    assert config.without_effect == ("num.io.threads",)


def test_controller_listeners_are_not_for_clients() -> None:
    config = NodeConfig.load(
        None,
        {
            "listeners": "PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:9093",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": "1@127.0.0.1:9093",
        },
        {},
    )
    assert config.listeners == (ListenerConfig("PLAINTEXT", "127.0.0.1", 0),)
    assert config.controller_listeners == (ListenerConfig("CONTROLLER", "127.0.0.1", 9093),)
    assert config.advertised_listeners == config.listeners


@pytest.mark.parametrize("roles", ["broker,controller", "controller", "broker"])
@pytest.mark.parametrize(
    ("protocols", "client", "controller"),
    [
        (None, "PLAINTEXT", "PLAINTEXT"),
        ("PLAINTEXT:PLAINTEXT,CONTROLLER:SSL", "PLAINTEXT", "SSL"),
        ("PLAINTEXT:SSL", "PLAINTEXT", None),
        (None, "SSL", None),
        (None, "SASL_SSL", None),
    ],
)
def test_controllers_are_unencrypted_only_without_any_security(
    roles: str, protocols: str | None, client: str, controller: str | None
) -> None:
    """security.md A1: nobody is surprised by a listener without encryption."""
    addresses = {"broker": f"{client}://:9092", "controller": "CONTROLLER://:9093"}
    settings = {
        "process.roles": roles,
        "listeners": ",".join(addresses[role] for role in roles.split(",")),
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.bootstrap.servers": "one:9093",
        "inter.broker.listener.name": client,
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        **({"listener.security.protocol.map": protocols} if protocols else {}),
    }
    if roles == "controller":
        del settings["inter.broker.listener.name"]
        if protocols is None:
            controller = "PLAINTEXT"
    if controller is None:
        with pytest.raises(OperatorError, match=r"CONTROLLER in .* has no security protocol"):
            NodeConfig.load(None, settings, {})
    else:
        assert NodeConfig.load(None, settings, {}).security_protocol("CONTROLLER") == controller


def test_the_first_listed_controller_listener_comes_first() -> None:
    """Other voters know this node by it."""
    config = NodeConfig.load(
        None,
        {
            "process.roles": "controller",
            "listeners": "NEW://one:9094,OLD://one:9093",
            "listener.security.protocol.map": "OLD:PLAINTEXT,NEW:PLAINTEXT",
            "controller.listener.names": "OLD,NEW",
            "controller.quorum.bootstrap.servers": "one:9093",
        },
        {},
    )
    assert [one.name for one in config.controller_listeners] == ["OLD", "NEW"]
    assert [one.name for one in config.advertised_controller_listeners] == ["OLD", "NEW"]


def test_a_controller_only_node() -> None:
    config = NodeConfig.load(
        None,
        {
            "process.roles": "controller",
            "listeners": "CONTROLLER://:9093",
            "advertised.listeners": "CONTROLLER://one.example:9093",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": "1@one.example:9093,2@[::1]:9094",
        },
        {},
    )
    assert (config.is_broker, config.is_controller, config.can_reach_others) == (False, True, True)
    assert config.listeners == ()
    assert config.advertised_controller_listeners == (ListenerConfig("CONTROLLER", "one.example", 9093),)
    assert config.quorum_voters == ((1, "one.example", 9093), (2, "::1", 9094))


def test_a_broker_only_node() -> None:
    settings = {"process.roles": "broker", "controller.quorum.bootstrap.servers": "one:9093, two:9093"}
    config = NodeConfig.load(None, settings, {})
    assert (config.is_broker, config.is_controller, config.can_reach_others) == (True, False, True)
    assert config.quorum_bootstrap_servers == ((-1, "one", 9093), (-1, "two", 9093))


def test_ipv6_listener() -> None:
    config = NodeConfig.load(None, {"listeners": "PLAINTEXT://[::1]:9092"}, {})
    assert config.listeners[0].host == "::1"
    assert str(config.listeners[0]) == "PLAINTEXT://[::1]:9092"
