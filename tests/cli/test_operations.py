"""`fenceline quorum`, `features` and `brokers`: against three Fenceline nodes, and against Apache Kafka."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typer.testing import CliRunner

from fenceline.cli.app import app
from fenceline.ids import encode_uuid
from fenceline.local_cluster.cluster import LocalCluster
from fenceline.testing.apache_kafka import small_kafka
from fenceline.testing.waiting import eventually

pytestmark = pytest.mark.timeout(300)


class Target(NamedTuple):
    """The cluster that commands run against. `directories`: each voter's directory id."""

    bootstrap: str
    controller: str
    directories: dict[int, str]

    @property
    def nodes(self) -> list[int]:
        return sorted(self.directories)

    def run(self, *arguments: str, code: int = 0) -> str:
        result = CliRunner().invoke(app, list(arguments), env={"FENCELINE_BOOTSTRAP": self.bootstrap})
        assert result.exit_code == code, result.output
        return result.output

    def run_json(self, *arguments: str) -> Any:
        return json.loads(self.run(*arguments, "--json"))


@pytest.fixture(scope="module")
def local() -> Iterator[LocalCluster]:
    with LocalCluster(3) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def fenceline_target(local: LocalCluster) -> Target:
    # Any controller will do, active or not.
    controller = f"127.0.0.1:{local.layout.nodes[1].controller_port}"
    return Target(
        local.bootstrap, controller, {each.node_id: encode_uuid(each.directory_id) for each in local.layout.nodes}
    )


@pytest.fixture(scope="module")
def kafka_target() -> Iterator[Target]:
    with small_kafka() as kafka:
        controller = f"127.0.0.1:{kafka.controller_port}"
        yield Target(f"127.0.0.1:{kafka.port}", controller, {1: _meta(kafka.log_dir)["directory.id"]})


@pytest.fixture(params=["fenceline", pytest.param("kafka", marks=pytest.mark.kafka)])
def target(request: pytest.FixtureRequest) -> Target:
    found: Target = request.getfixturevalue(f"{request.param}_target")
    return found


def _meta(directory: Path) -> dict[str, str]:
    lines = (directory / "meta.properties").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


# --- both ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by_controller", [False, True], ids=["broker", "controller"])
def test_the_quorum_is_described(target: Target, by_controller: bool) -> None:
    where = ("--bootstrap-controller", target.controller) if by_controller else ()
    found = target.run_json("quorum", "describe", *where)
    assert list(found) == ["leader_id", "leader_epoch", "high_watermark", "voters", "observers"]
    assert found["leader_id"] in target.nodes
    assert found["leader_epoch"] >= 1
    assert found["high_watermark"] > 0
    assert {voter["id"]: voter["directory_id"] for voter in found["voters"]} == target.directories
    assert found["observers"] == []
    leader = next(voter for voter in found["voters"] if voter["id"] == found["leader_id"])
    assert leader["lag"] == 0
    assert leader["log_end_offset"] >= found["high_watermark"]
    assert leader["last_caught_up_ms"] > 0
    endpoints = [endpoint for voter in found["voters"] for endpoint in voter["endpoints"]]
    assert f"CONTROLLER://{target.controller}" in endpoints
    shown = target.run("quorum", "describe", *where)
    assert f"Leader {found['leader_id']}, epoch {found['leader_epoch']}" in shown
    assert all(directory in shown for directory in target.directories.values())


@pytest.mark.parametrize("by_controller", [False, True], ids=["broker", "controller"])
def test_features_are_listed_for_each_node(target: Target, by_controller: bool) -> None:
    where = ("--bootstrap-controller", target.controller) if by_controller else ()
    found = target.run_json("features", "list", *where)
    assert found["finalized"]["metadata.version"] == 30
    assert found["finalized"]["kraft.version"] == 1
    assert [node["id"] for node in found["nodes"]] == target.nodes
    for node in found["nodes"]:
        assert node["supported"]["metadata.version"] == {"min": 7, "max": 30}
        assert node["trouble"] is None
    shown = target.run("features", "list", *where)
    assert "3.3-IV3 to 4.3-IV0" in shown


def test_feature_levels_are_checked_and_changed(target: Target) -> None:
    def level(feature: str) -> int:
        found: int = target.run_json("features", "list", "-c", target.controller)["finalized"].get(feature, 0)
        return found

    checked = target.run_json("features", "downgrade", "group.version=0", "--dry-run")
    assert checked == {"levels": {"group.version": 0}, "change": "safe_downgrade", "dry_run": True}
    assert level("group.version") == 1
    target.run("features", "disable", "group.version")
    eventually(lambda: level("group.version") == 0)
    assert "group.version is set to 1" in target.run("features", "upgrade", "--release-version", "4.3")
    eventually(lambda: level("group.version") == 1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("upgrade", "nothing.version=1"), "nothing.version"),
        (("downgrade", "metadata.version=4.2-IV0"), "metadata.version"),
        (("upgrade", "group.version=9"), "List the levels that each node supports"),
        (("upgrade", "group.version=new"), "is not a level"),
        (("upgrade", "metadata.version=9.9"), "is not a metadata version"),
        (("upgrade",), "mutually exclusive, and one is required"),
        (("upgrade", "group.version=1", "--release-version", "4.3"), "mutually exclusive, and one is required"),
    ],
)
def test_invalid_feature_levels_are_rejected(target: Target, arguments: tuple[str, ...], said: str) -> None:
    output = target.run("features", *arguments, code=1)
    assert said in output
    assert "Traceback" not in output


def test_brokers_and_their_log_directories_are_listed(target: Target) -> None:
    target.run("topics", "create", "held", "--partitions", "6", "--replication-factor", "1")

    def all_held() -> bool:
        rows = target.run_json("brokers", "list")
        return sum(row["leaders"] for row in rows) >= 6 and {row["state"] for row in rows} == {"unfenced"}

    eventually(all_held)
    rows = target.run_json("brokers", "list")
    assert [row["id"] for row in rows] == target.nodes
    assert {row["endpoint"] for row in rows} == set(target.bootstrap.split(","))

    def on_disk() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = target.run_json("brokers", "log-dirs", "--partitions", "--topic", "held")
        return found

    eventually(lambda: sorted(row["partition"] for row in on_disk()) == list(range(6)))
    one = target.run_json("brokers", "log-dirs", "1")
    assert [(row["broker"], row["state"]) for row in one] == [(1, "ok")]
    assert 0 < one[0]["usable_bytes"] <= one[0]["total_bytes"]


@pytest.mark.parametrize("by_controller", [False, True], ids=["broker", "controller"])
def test_errors_of_the_quorum_are_reported(target: Target, by_controller: bool) -> None:
    where = ("--bootstrap-controller", target.controller) if by_controller else ()
    known = ("--id", "1", "--directory-id", target.directories[1], "--endpoint", "CONTROLLER://127.0.0.1:9")
    assert "DUPLICATE_VOTER" in target.run("quorum", "add", *known, *where, code=1)
    assert "Node 77 is not a voter" in target.run("quorum", "remove", "77", *where, code=1)
    nowhere = ("77", "--directory-id", target.directories[1])
    assert "VOTER_NOT_FOUND" in target.run("quorum", "remove", *nowhere, *where, code=1)
    assert "BROKER_ID_NOT_REGISTERED" in target.run("brokers", "unregister", "77", *where, code=1)


def test_an_address_of_the_other_kind_of_listener_is_reported(target: Target) -> None:
    output = target.run("quorum", "describe", "-b", target.controller, code=1)
    assert "is a controller listener, not a broker listener" in output
    assert "--bootstrap-controller" in output
    output = target.run("quorum", "describe", "-c", target.bootstrap, code=1)
    assert "is a broker listener, not a controller listener" in output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("quorum", "add"), "must be given by --config, or by"),
        (("quorum", "add", "--id", "4"), "must be given by --config, or by"),
        (("quorum", "add", "--config", "/nonexistent", "--id", "4"), "must be given by --config, or by"),
        (("quorum", "remove", "1", "--directory-id", "short"), "is not a directory id"),
        (("brokers", "log-dirs", "77"), "Broker 77 is not in the cluster"),
        (("quorum", "add", "--id", "4", "--directory-id", "A" * 22, "--endpoint", "here:1"), "is not an endpoint"),
    ],
)
def test_invalid_options_are_rejected(fenceline_target: Target, arguments: tuple[str, ...], said: str) -> None:
    output = fenceline_target.run(*arguments, code=1)
    assert said in output
    assert "Traceback" not in output


# --- three Fenceline nodes; the last ones change the cluster ------------------------------------------------------


def test_a_voter_is_removed_and_added_again(fenceline_target: Target, local: LocalCluster) -> None:
    """Removed by its id, added back by its configuration file."""
    target = fenceline_target

    def ids(kind: str) -> list[int]:
        return [each["id"] for each in target.run_json("quorum", "describe")[kind]]

    leader = target.run_json("quorum", "describe")["leader_id"]
    other = next(node for node in target.nodes if node != leader)
    removed = target.run_json("quorum", "remove", str(other))
    assert removed == {"removed": other, "directory_id": target.directories[other]}
    assert ids("voters") == [node for node in target.nodes if node != other]
    eventually(lambda: ids("observers") == [other])
    place = next(each for each in local.layout.nodes if each.node_id == other)
    added = target.run_json("quorum", "add", "--config", str(place.properties_file), "-c", target.controller)
    assert added["endpoints"] == [f"CONTROLLER://127.0.0.1:{place.controller_port}"]
    assert ids("voters") == target.nodes


def test_a_killed_broker_is_fenced_and_can_be_unregistered(fenceline_target: Target, local: LocalCluster) -> None:
    target = fenceline_target
    leader = target.run_json("quorum", "describe")["leader_id"]
    gone = next(node for node in target.nodes if node != leader)
    local.kill(gone)

    def states() -> dict[int, str]:
        return {row["id"]: row["state"] for row in target.run_json("brokers", "list")}

    eventually(lambda: states().get(gone) == "fenced")
    asked = target.run_json("features", "list", "-c", f"127.0.0.1:{_controller_port(local, leader)}")
    assert [node["id"] for node in asked["nodes"] if node["trouble"]] == [gone]
    assert target.run_json("brokers", "unregister", str(gone)) == {"unregistered": gone}
    eventually(lambda: gone not in states())
    local.restart(gone)
    eventually(lambda: states().get(gone) == "unfenced")


def _controller_port(local: LocalCluster, node: int) -> int | None:
    return next(each.controller_port for each in local.layout.nodes if each.node_id == node)
