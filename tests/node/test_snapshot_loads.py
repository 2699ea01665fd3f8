"""How a running broker applies a metadata snapshot that replaces its whole image (snapshots.md N40-N42), and how a node
starts whose only snapshot is damaged (gaps.md G24).
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from fenceline.config.node import NodeConfig
from fenceline.controller.requests import CreateTopics, DeleteTopics, TopicReference, TopicToCreate
from fenceline.errors import ErrorCode, PeerError
from fenceline.metadata.image import MetadataImage
from fenceline.node.broker import Broker
from fenceline.node.metadata.loader import MetadataLoader
from fenceline.node.metadata.metadata_log import MetadataLog
from fenceline.node.metadata.snapshot_files import SnapshotDamaged
from fenceline.quorum.duties import Send
from fenceline.quorum.log_view import NO_PROMISED_END, SnapshotId
from fenceline.testing.sim_disk import SimDisk
from tests.kip.snapshot_directory import DATA, DIRECTORY, EPOCH, History, image_after, with_snapshots
from tests.log.helpers import append
from tests.node.controller_helpers import ALONE, WITH_OTHERS, AtOnce, open_voter

CLUSTER = {"listeners": "PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0", "controller.listener.names": "CONTROLLER"}


def _broker(directory: Path, **overrides: str) -> Broker:
    settings = {"log.dirs": str(directory), "listeners": "PLAINTEXT://127.0.0.1:0", **overrides}
    return Broker(NodeConfig.load(None, settings, {}))


def _partitions(directory: Path) -> set[str]:
    return {each.name for each in directory.iterdir() if each.is_dir() and not each.name.startswith("__")}


async def _until(holds: Any) -> None:
    while not holds():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def _with_topics(broker: Broker, *names: str) -> None:
    for name in names:
        await broker.controller.submit(CreateTopics((TopicToCreate(name, 2, 1),)))
        for index in (0, 1):
            replica = broker.partitions.get(name, index)
            assert replica is not None
            append(replica.log, 3)


async def _image_without(broker: Broker, topic: str) -> MetadataImage:
    """Another node's snapshot: this topic is deleted, all else is as here."""
    from fenceline.metadata.delta import MetadataDelta
    from fenceline.metadata.records import RemoveTopicRecord

    delta = MetadataDelta(broker.image)
    delta.replay(RemoveTopicRecord(broker.image.topics_by_name[topic].id))
    return delta.build(broker.image.offset, broker.image.epoch)[0]


def test_topics_missing_from_a_snapshot_are_removed_from_a_running_broker(tmp_path: Path) -> None:
    """N41: their directories, open replicas, caches and metrics; all other topics stay and are served."""

    async def story() -> None:
        broker = _broker(tmp_path)
        await broker.start()
        try:
            await _with_topics(broker, "gone", "kept")
            assert _partitions(tmp_path) == {"gone-0", "gone-1", "kept-0", "kept-1"}
            topic_id = broker.image.topics_by_name["gone"].id
            heard: list[set[str]] = []
            broker.controller.subscribe(lambda image, delta: heard.append({each.name for each in delta.deleted_topics}))
            image = await _image_without(broker, "gone")
            broker.controller.loaded(SnapshotId(image.offset + 1, image.epoch), image)
            await _until(lambda: broker.image is image)
            assert heard == [{"gone"}], "one change"
            await _until(lambda: _partitions(tmp_path) == {"kept-0", "kept-1"})
            assert broker.partitions.get("gone", 0) is None
            assert broker.partitions.by_id(topic_id.bytes, 0) is None
            assert {each.topic_partition.topic for each in broker.partitions.in_service} == {"kept"}
            assert not [each for each in broker.log_dirs.first.open_logs if each.topic == "gone"]
            assert broker.controller.partition_count == 2
            with pytest.raises(PeerError) as refused:
                broker.partitions.leader("gone", None, 0)
            assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            kept = broker.partitions.leader("kept", None, 0)
            assert kept.log.log_end_offset == 3
        finally:
            await broker.stop()

    asyncio.run(asyncio.wait_for(story(), 60))


@pytest.mark.parametrize("is_clean", [True, False])
def test_topics_deleted_while_a_broker_was_down_are_set_aside_at_its_start(tmp_path: Path, is_clean: bool) -> None:
    """N41: also if the image with which the broker starts lacks them already; none of their files is deleted."""

    data, saved = tmp_path / "data", tmp_path / "saved"
    data.mkdir()

    async def live(*topics: str, delete: str = "") -> None:
        broker = _broker(data, **CLUSTER)
        await broker.start()
        try:
            await _with_topics(broker, *topics)
            if delete:
                await broker.controller.submit(DeleteTopics((TopicReference(delete),)))
                await _until(lambda: f"{delete}-0" not in _partitions(data))
        finally:
            await broker.stop()

    asyncio.run(asyncio.wait_for(live("gone", "kept"), 60))
    shutil.copytree(data / "gone-0", saved)
    asyncio.run(asyncio.wait_for(live(delete="gone"), 60))
    shutil.copytree(saved, data / "gone-0")
    if not is_clean:
        (data / ".kafka_cleanshutdown").unlink()
    asyncio.run(asyncio.wait_for(live(), 60))
    left = _partitions(data)
    assert {each for each in left if not each.endswith("-stray")} == {"kept-0", "kept-1"}
    (stray,) = (each for each in left if each.endswith("-stray"))
    assert stray.startswith("gone-0.")
    assert list((data / stray).glob("*.log"))


def test_an_open_transaction_is_dropped_by_a_snapshot() -> None:
    """N42."""

    async def story() -> None:
        disk = SimDisk()
        disk.mkdir(DATA)
        history = History(disk)
        history.begin()
        failed: list[BaseException] = []
        loader = MetadataLoader(history.log, executor=AtOnce(), failed=failed.append)
        loader.begin(history.image, history.log.end_offset, transaction_is_open=True)
        assert loader.transaction_is_open
        image = image_after(2, 100, EPOCH + 1)
        loader.load(image, 100)
        await _until(lambda: loader.image is image)
        assert not loader.transaction_is_open
        assert loader.applied_offset == 100
        assert not failed

    asyncio.run(asyncio.wait_for(story(), 60))


def _damaged() -> SimDisk:
    """A directory whose log starts at a snapshot that is truncated."""
    disk = SimDisk()
    disk.mkdir(DATA)
    log = with_snapshots(disk, 2).log
    for delete in log.forget_oldest(log.snapshot_sizes(log.snapshots), 0, 0):
        delete()
    assert log.start_offset > 0
    path = log.path_of(log.newest_snapshot)
    fd = disk.open_append(path)
    disk.truncate(fd, len(disk.peek(path) or b"") - 1)
    disk.fsync(fd)
    return disk


def _kept(disk: SimDisk) -> list[str]:
    return sorted(name for name in disk.listdir(DIRECTORY) if name.endswith((".log", ".checkpoint")))


def test_a_start_without_its_only_snapshot_starts_empty_if_others_vote() -> None:
    """G24: it keeps its promise for acknowledged records, asks for no votes, and finds the leader by its
    configuration.
    """
    disk = _damaged()
    end = MetadataLog.open(disk, DATA, now_ms=0, segment_bytes=300).end
    opened = open_voter(disk, DATA, 7, WITH_OTHERS)
    assert (opened.log.start_offset, opened.log.end, opened.log.promised) == (0, NO_PROMISED_END, end)
    assert not opened.is_alone
    duties = opened.quorum.start(0, None)
    asked = {duty.destination.host for duty in duties if isinstance(duty, Send)}
    assert asked == {"other"}
    again = open_voter(disk, DATA, 7, WITH_OTHERS)
    assert again.log.promised == end, "also after another restart"


@pytest.mark.parametrize(
    ("node_id", "settings"),
    [
        pytest.param(7, ALONE, id="no other voter is known"),
        pytest.param(1, WITH_OTHERS, id="it was the only voter"),
    ],
)
def test_a_start_without_its_only_snapshot_is_refused_without_another_copy(
    node_id: int, settings: dict[str, str]
) -> None:
    """G24: the operator may have a backup. The files are unchanged."""
    disk = _damaged()
    before = _kept(disk)
    with pytest.raises(SnapshotDamaged):
        open_voter(disk, DATA, node_id, settings)
    assert _kept(disk) == before
