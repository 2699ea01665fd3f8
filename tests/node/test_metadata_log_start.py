"""The start offsets of the metadata logs of several nodes, and how a snapshot reaches a node that is behind (KIP-630
\"When to Increase the LogStartOffset\", \"Fetch Snapshot\"; gaps.md G28, G30).
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fenceline.config.node import NodeConfig
from fenceline.controller.requests import CreateTopics, TopicToCreate
from fenceline.ids import METADATA_TOPIC_ID
from fenceline.log.core.checkpoints import read_partition_metadata
from fenceline.log.core.disk import replace_file
from fenceline.log.core.file_names import METADATA_FILE
from fenceline.node.controller_node import ControllerNode
from fenceline.node.metadata.metadata_log import MetadataLog
from fenceline.node.quorum.serving import QuorumServing
from fenceline.quorum.duties import ServePiece
from fenceline.testing.sim_disk import SimDisk
from tests.kip.snapshot_directory import DATA, DIRECTORY, History
from tests.node.test_controller_nodes import Three, eventually, join, run

DUE_AT_ONCE = {"metadata.log.max.record.bytes.between.snapshots": "1", "metadata.max.retention.ms": "1"}
"""A snapshot after each batch, and every older one too old to stay."""


async def _three(root: Path, *node_ids: int, **settings: str) -> Three:
    cluster = Three(root)
    cluster.configs = [NodeConfig.load(None, {**config.raw, **settings}, {}) for config in cluster.configs]
    await cluster.start(*(node_ids or (1, 2, 3)))
    return cluster


async def _grow(leader: ControllerNode, name: str) -> None:
    await leader.controller.submit(CreateTopics((TopicToCreate(name, 1, 1),)))


@pytest.mark.parametrize("content", [b"", b"\0" * 40, None])
def test_a_torn_topic_id_is_written_again(content: bytes | None) -> None:
    """Seeds 6, 18 and 22 of the story `operations`: power was lost before the first flush of the metadata log."""
    disk = SimDisk()
    disk.mkdir(DATA)
    history = History(disk)
    history.begin()
    history.grow(3)
    history.log.close()
    path = f"{DIRECTORY}/{METADATA_FILE}"
    disk.unlink(path)
    if content is not None:
        replace_file(disk, path, content)
    MetadataLog.open(disk, DATA, now_ms=0).close()
    assert read_partition_metadata(disk, path) == METADATA_TOPIC_ID


def test_a_follower_log_start_never_passes_its_leaders_and_follows_it(tmp_path: Path) -> None:
    """Over the wire: LogStartOffset of the leader's Fetch responses."""

    async def story() -> None:
        # One leader from start to end, even if the machine stands still for a while.
        cluster = await _three(tmp_path, **DUE_AT_ONCE, **{"controller.quorum.fetch.timeout.ms": "60000"})
        try:
            leader = await cluster.leader()
            await join(leader)
            followers = [node for node in cluster.running.values() if node is not leader]
            for number in range(30):
                await _grow(leader, f"t{number}")
                starts = [node.controller.log.start_offset for node in followers]
                assert max(starts) <= leader.controller.log.start_offset
            goal = leader.controller.log.start_offset
            assert goal > 0

            number = 30
            while min(node.controller.log.start_offset for node in followers) < goal:
                await _grow(leader, f"t{number}")
                number += 1
                await asyncio.sleep(0.05)
            assert leader.controller.is_active
        finally:
            await asyncio.gather(*(cluster.stop(node_id) for node_id in list(cluster.running)))

    run(story)


@pytest.mark.parametrize(("lag_ms", "waits"), [("604800000", True), ("0", False)])
def test_a_leader_waits_for_a_live_replica_up_to_the_limit(tmp_path: Path, lag_ms: str, waits: bool) -> None:
    """A replica that fetches from 1 on holds the log start; with 0 ms it does not."""

    async def story() -> None:
        settings = {**DUE_AT_ONCE, "metadata.start.offset.lag.time.max.ms": lag_ms}
        cluster = await _three(tmp_path, **settings)
        try:
            leader = await cluster.leader()
            await join(leader)
            quorum = type(leader.controller.quorum)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(quorum, "slowest_fetch_offset", property(lambda self: 1 if self.is_leader else None))
                before = leader.controller.log.start_offset
                for number in range(30):
                    await _grow(leader, f"t{number}")
                snapshots = leader.controller.snapshots
                assert snapshots is not None
                await eventually(lambda: snapshots.generated_count > 5 and snapshots._running is None)
                if waits:
                    assert leader.controller.log.start_offset == before
                    assert len(leader.controller.log.snapshots) > 2
                else:
                    await eventually(lambda: leader.controller.log.start_offset > before)
        finally:
            await asyncio.gather(*(cluster.stop(node_id) for node_id in list(cluster.running)))

    run(story)


def test_snapshot_chunks_respect_the_configured_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`replica.fetch.response.max.bytes` of the leader, whatever size the follower requests."""
    asked: list[int] = []
    serve = QuorumServing.piece

    def watched(serving: QuorumServing, duty: ServePiece) -> None:
        asked.append(duty.max_bytes)
        serve(serving, duty)

    monkeypatch.setattr(QuorumServing, "piece", watched)

    async def story() -> None:
        cluster = await _three(tmp_path, 1, 2, **DUE_AT_ONCE, **{"replica.fetch.response.max.bytes": "2000"})
        try:
            leader = await cluster.leader()
            await join(leader)
            for number in range(40):
                await _grow(leader, f"t{number}")
            await eventually(lambda: leader.controller.log.start_offset > 0)
            await cluster.start(3)
            late = cluster.running[3]
            await eventually(lambda: "t39" in late.controller.image.topics_by_name)
            assert len(asked) > 1
            assert set(asked) == {2000}
            assert late.controller.log.start_offset > 0
        finally:
            await asyncio.gather(*(cluster.stop(node_id) for node_id in list(cluster.running)))

    run(story)
