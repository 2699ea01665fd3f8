"""Formatting directories (since_4_0.md K19, formats.md F1, F2)."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path

import pytest

from fenceline.config.node import NodeConfig
from fenceline.controller.requests import WriteBootstrapRecords
from fenceline.errors import OperatorError
from fenceline.ids import encode_uuid
from fenceline.log.core.disk import OsDisk
from fenceline.log.core.meta_properties import read_meta
from fenceline.log.directories.log_dir import LogDir
from fenceline.metadata.features import fresh_levels
from fenceline.node.metadata.format import (
    format_directory,
    format_if_new,
    initial_quorum,
    parse_initial_controllers,
    read_bootstrap,
)
from fenceline.node.metadata.metadata_log import MetadataLog
from fenceline.node.metadata.replay import NO_SNAPSHOT
from fenceline.quorum.control_records import VoterEndpoint
from fenceline.testing.sim_disk import SimDisk
from tests.node.controller_helpers import CLUSTER

ENDPOINT = VoterEndpoint("CONTROLLER", "localhost", 9093)


def test_each_directory_gets_an_id_and_one_is_the_voter(tmp_path: Path) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    done = format_directory(paths, cluster_id=CLUSTER, node_id=7, metadata_log_dir=paths[1], voter_endpoint=ENDPOINT)
    assert done.directories == tuple(map(str, paths))
    opened = [LogDir.open(str(path), OsDisk(), cluster_id=CLUSTER, node_id=7) for path in paths]
    assert opened[0].directory_id != opened[1].directory_id
    assert read_bootstrap(OsDisk(), str(paths[0])) == WriteBootstrapRecords(tuple(fresh_levels().items()))
    log = MetadataLog.open(OsDisk(), str(paths[1]), now_ms=0)
    assert log.snapshots == [NO_SNAPSHOT]
    replayed = log.replay()
    latest = replayed.voter_history.latest
    assert latest is not None
    assert (replayed.kraft_version, latest.offset) == (1, -1), "no log has the voters yet"
    (voter,) = replayed.voters
    assert (voter.voter_id, voter.voter_directory_id, voter.endpoints) == (7, opened[1].directory_id, (ENDPOINT,))
    assert not (paths[0] / "__cluster_metadata-0").exists()
    for directory in opened:
        directory.close()


def test_formatted_directory_is_unchanged(tmp_path: Path) -> None:
    format_directory([tmp_path], cluster_id=CLUSTER, node_id=1)
    before = (tmp_path / "meta.properties").read_bytes()
    with pytest.raises(OperatorError):
        format_directory([tmp_path], cluster_id=CLUSTER, node_id=1)
    assert format_directory([tmp_path], cluster_id=CLUSTER, node_id=1, ignore_formatted=True).directories == ()
    for cluster, node in ((CLUSTER, 2), ("BBBBBBBBQACAAAAAAAAAAA", 1)):
        with pytest.raises(OperatorError):
            format_directory([tmp_path], cluster_id=cluster, node_id=node, ignore_formatted=True)
    assert (tmp_path / "meta.properties").read_bytes() == before


@pytest.mark.parametrize("cluster_id", ["", "x", "not a cluster id at all", "AAAA"])
def test_invalid_cluster_ids_are_rejected(tmp_path: Path, cluster_id: str) -> None:
    with pytest.raises(OperatorError):
        format_directory([tmp_path / "d"], cluster_id=cluster_id, node_id=1)
    assert not (tmp_path / "d").exists()


def _config(*paths: Path) -> NodeConfig:
    config = NodeConfig.load(None, {"log.dirs": str(paths[0])}, {})
    return dataclasses.replace(config, log_dirs=paths)


def test_a_first_start_formats_and_a_second_does_not(tmp_path: Path) -> None:
    config = _config(tmp_path / "a", tmp_path / "b")
    done = format_if_new(config)
    assert done is not None
    assert len(done.directories) == 2
    assert {read_meta(OsDisk(), path)["cluster.id"] for path in done.directories} == {done.cluster_id}
    assert format_if_new(config) is None


def test_new_disk_is_not_formatted_automatically(tmp_path: Path) -> None:
    format_if_new(_config(tmp_path / "a"))
    with pytest.raises(OperatorError, match="not formatted"):
        format_if_new(_config(tmp_path / "a", tmp_path / "b"))


def test_directory_with_other_files_is_not_formatted(tmp_path: Path) -> None:
    (tmp_path / "topic-0").mkdir()
    with pytest.raises(OperatorError, match="topic-0"):
        format_if_new(_config(tmp_path))


_IDS = ("AAAAAAAAQACAAAAAAAAAAQ", "AAAAAAAAQACAAAAAAAAAAg")
_FIRST = f"1@one:9093:{_IDS[0]},2@[::1]:9094:{_IDS[1]}"


def test_several_initial_controllers(tmp_path: Path) -> None:
    voters = parse_initial_controllers(_FIRST, "CONTROLLER")
    assert [(each.voter_id, each.endpoints[0].host, each.endpoints[0].port) for each in voters] == [
        (1, "one", 9093),
        (2, "::1", 9094),
    ]
    format_directory([tmp_path / "2"], cluster_id=CLUSTER, node_id=2, voters=voters)
    assert read_meta(OsDisk(), str(tmp_path / "2"))["directory.id"] == _IDS[1]
    log = MetadataLog.open(OsDisk(), str(tmp_path / "2"), now_ms=0)
    assert log.replay().voters == voters
    log.close()
    with pytest.raises(OperatorError, match="do not include node 3"):
        format_directory([tmp_path / "3"], cluster_id=CLUSTER, node_id=3, voters=voters)


@pytest.mark.parametrize(
    "text", ["", "1", "1@one:9093", "1@one:x:" + _IDS[0], "1@one:9093:short", f"{_FIRST},{_FIRST}"]
)
def test_invalid_initial_controllers_are_rejected(text: str) -> None:
    with pytest.raises(OperatorError, match="--initial-controllers"):
        parse_initial_controllers(text, "CONTROLLER")


def _node(**settings: str) -> NodeConfig:
    listeners = {"listeners": "PLAINTEXT://:9092,CONTROLLER://one:9093"}
    return NodeConfig.load(None, {**listeners, **{key.replace("_", "."): text for key, text in settings.items()}}, {})


def test_initial_quorum_by_settings_and_options() -> None:
    """K19."""
    alone, joining = _node(), _node(controller_quorum_bootstrap_servers="one:9093,two:9093")
    static = _node(controller_quorum_voters="1@one:9093,2@two:9093")
    none = {"standalone": False, "initial_controllers": None, "joins": False}
    assert initial_quorum(alone, **none) == (VoterEndpoint("CONTROLLER", "one", 9093), ())
    assert initial_quorum(joining, **{**none, "standalone": True})[0] is not None
    assert initial_quorum(joining, **{**none, "joins": True}) == (None, ())
    assert len(initial_quorum(joining, **{**none, "initial_controllers": _FIRST})[1]) == 2
    assert initial_quorum(static, **none) == (None, ())
    for config, options, message in (
        (joining, none, "an option for the initial quorum"),
        (static, {**none, "standalone": True}, "already names the voters"),
        (alone, {**none, "standalone": True, "joins": True}, "only one"),
    ):
        with pytest.raises(OperatorError, match=message):
            initial_quorum(config, **options)


def test_crash_during_format_leaves_a_usable_or_unformatted_directory() -> None:
    from tests.node.controller.test_driver import FailingDisk, PowerLoss

    for calls in range(60):
        disk = SimDisk(calls)
        disk.mkdir("/data")
        off = FailingDisk(disk, calls)

        def attempt(on: object) -> None:
            format_directory(
                ["/data"],
                cluster_id=CLUSTER,
                node_id=1,
                voter_endpoint=ENDPOINT,
                disk=on,
                now_ms=5,  # type: ignore[arg-type]
            )

        with contextlib.suppress(PowerLoss):
            attempt(off)
        disk.crash()
        if disk.stat("/data/meta.properties") is None:
            attempt(disk)
        meta = read_meta(disk, "/data")
        (voter,) = MetadataLog.open(disk, "/data", now_ms=0).replay().voters
        assert encode_uuid(voter.voter_directory_id) == meta["directory.id"]
        assert read_bootstrap(disk, "/data") == WriteBootstrapRecords(tuple(fresh_levels().items()))
        if not off.is_off:
            return
    raise AssertionError("formatting never ended")
