"""The directories with which a node starts, and the combinations that it rejects."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random

import pytest

from fenceline.config.node import NodeConfig
from fenceline.errors import OperatorError
from fenceline.ids import encode_uuid
from fenceline.log.core.disk import OsDisk
from fenceline.log.directories.log_dir import CLEAN_FILE
from fenceline.node.logs import redirect
from fenceline.node.metadata.format import format_directory
from fenceline.node.metadata.metadata_log import DIRECTORY_NAME
from fenceline.node.storage.directories import Directories, open_directories

CLUSTER = "AAAAAAAAQACAAAAAAAAAAA"
OTHER_CLUSTER = "BBBBBBBBQACAAAAAAAAAAA"


def config(*paths: Path, **more: str) -> NodeConfig:
    return NodeConfig.load(None, {"log.dirs": ",".join(map(str, paths)), **more}, {})


def opened(*paths: Path, **more: str) -> Directories:
    return open_directories(config(*paths, **more), OsDisk(), Random(1))


def give_back(directories: Directories) -> None:
    for each in directories.all:
        each.give_back()


def ids(directories: Directories) -> list[str]:
    give_back(directories)
    return [encode_uuid(each.directory_id) for each in directories.data if each.directory_id is not None]


@pytest.fixture
def paths(tmp_path: Path) -> tuple[Path, Path, Path]:
    found = tuple(tmp_path / name for name in "abc")
    format_directory(found, cluster_id=CLUSTER, node_id=1)
    return found[0], found[1], found[2]


def test_each_directory_has_its_own_id_and_keeps_it(tmp_path: Path) -> None:
    first = ids(opened(tmp_path / "a", tmp_path / "b"))
    assert len(set(first)) == 2
    with pytest.raises(OperatorError, match="c is not formatted or not mounted"):
        opened(tmp_path / "a", tmp_path / "b", tmp_path / "c")
    assert not (tmp_path / "c").exists()
    cluster_id = (tmp_path / "a" / "meta.properties").read_text().split("cluster.id=")[1].split()[0]
    everything = [tmp_path / name for name in "abc"]
    format_directory(everything, cluster_id=cluster_id, node_id=1, ignore_formatted=True)
    assert ids(opened(*everything))[:2] == first


def test_the_metadata_log_is_in_the_first_or_the_configured_directory(paths: tuple[Path, Path, Path]) -> None:
    directories = opened(*paths)
    assert directories.metadata.path == str(paths[0])
    give_back(directories)
    directories = opened(*paths, **{"metadata.log.dir": str(paths[2])})
    assert (directories.metadata.path, directories.metadata_is_apart) == (str(paths[2]), False)
    give_back(directories)
    directories = opened(*paths[:2], **{"metadata.log.dir": str(paths[2])})
    assert directories.metadata_is_apart
    assert [each.path for each in directories.data] == [str(paths[0]), str(paths[1])]
    give_back(directories)


def test_a_directory_of_another_cluster_or_node_is_rejected(paths: tuple[Path, Path, Path], tmp_path: Path) -> None:
    format_directory([tmp_path / "d"], cluster_id=OTHER_CLUSTER, node_id=1)
    with pytest.raises(OperatorError, match=f"d belongs to cluster {OTHER_CLUSTER}, this node to cluster {CLUSTER}"):
        opened(*paths, tmp_path / "d")
    format_directory([tmp_path / "e"], cluster_id=CLUSTER, node_id=2)
    with pytest.raises(OperatorError, match="e belongs to node 2, this is node 1"):
        opened(*paths, tmp_path / "e")


def test_a_copied_directory_is_rejected(paths: tuple[Path, Path, Path], tmp_path: Path) -> None:
    shutil.copytree(paths[1], tmp_path / "copy")
    with pytest.raises(OperatorError, match=r"b and \S+copy have the same directory\.id"):
        opened(*paths, tmp_path / "copy")


@pytest.mark.parametrize(
    "name",
    [
        "cleaner-offset-checkpoint",
        "log-start-offset-checkpoint",
        "recovery-point-offset-checkpoint",
        "replication-offset-checkpoint",
    ],
)
def test_an_unreadable_checkpoint_is_reported_and_an_empty_one_is_not(
    paths: tuple[Path, Path, Path], name: str
) -> None:
    """Apache Kafka creates empty checkpoints."""
    reported: list[tuple[str, str]] = []
    before = redirect(lambda level, room, event, fields: reported.append((event, str(fields))))
    try:
        (paths[1] / name).write_bytes(b"")
        give_back(opened(*paths))
        assert reported == []
        (paths[1] / name).write_bytes(b"0\n3\nhalf a li")
        give_back(opened(*paths))
    finally:
        redirect(before)
    assert [event for event, _ in reported] == ["checkpoint file damaged and ignored"]
    assert name in reported[0][1]


def test_a_metadata_log_in_another_directory_is_rejected(paths: tuple[Path, Path, Path]) -> None:
    (paths[1] / DIRECTORY_NAME).mkdir()
    with pytest.raises(OperatorError, match="b contains a metadata log"):
        opened(*paths)


def test_all_directories_are_locked(paths: tuple[Path, Path, Path]) -> None:
    directories = opened(*paths)
    with pytest.raises(OperatorError, match="c is in use by"):
        opened(paths[2])
    give_back(directories)
    give_back(opened(paths[2]))


def test_a_rejected_start_leaves_the_other_directories_unchanged(paths: tuple[Path, Path, Path]) -> None:
    """A clean shutdown still counts, and no lock is left."""
    mark = '{"version": 0, "brokerEpoch": 12}'
    for path in paths:
        (path / CLEAN_FILE).write_text(mark)
    (paths[2] / "meta.properties").write_text("nonsense")
    with pytest.raises(OperatorError, match="damaged"):
        opened(*paths)
    assert [(path / CLEAN_FILE).read_text() for path in paths] == [mark] * 3
    directories = opened(*paths[:2])
    assert [each.previous_broker_epoch for each in directories.data] == [12, 12]
    give_back(directories)


def test_an_inaccessible_directory_is_left_out(paths: tuple[Path, Path, Path]) -> None:
    shutil.rmtree(paths[1])
    paths[1].write_text("a file where the disk was mounted")
    directories = opened(*paths)
    assert [each.path for each in directories.data] == [str(paths[0]), str(paths[2])]
    assert directories.offline == {str(paths[1]): "Not a directory"}
    give_back(directories)


def test_an_unmounted_disk_is_not_formatted(paths: tuple[Path, Path, Path]) -> None:
    shutil.rmtree(paths[1])
    paths[1].mkdir()
    with pytest.raises(OperatorError, match="b is not formatted or not mounted") as refused:
        opened(*paths)
    assert "remove it from log.dirs" in refused.value.advice


def test_the_metadata_log_directory_is_required(paths: tuple[Path, Path, Path]) -> None:
    shutil.rmtree(paths[0])
    paths[0].write_text("a file")
    with pytest.raises(OperatorError, match=r"a: it is a file"):
        opened(*paths)


def test_at_least_one_partition_directory_is_required(paths: tuple[Path, Path, Path]) -> None:
    for path in paths[:2]:
        shutil.rmtree(path)
        path.write_text("a file")
    with pytest.raises(
        OperatorError, match=r"No directory of log\.dirs is usable: \S+a: Not a directory, \S+b: Not a" " dir"
    ):
        opened(*paths[:2], **{"metadata.log.dir": str(paths[2])})
