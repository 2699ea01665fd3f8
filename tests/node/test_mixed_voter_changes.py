"""Changes of mixed voter sets: Kafka's tool adds and removes voters, and kraft.version is raised, under
either leader.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fenceline.cli.metadata_files import MetadataFiles
from fenceline.ids import ZERO_UUID, encode_uuid
from fenceline.quorum.control_records import KRaftVersion, KRaftVoters
from fenceline.testing.apache_kafka import run_tool
from fenceline.testing.mixed_cluster import MixedCluster, MixedNode
from fenceline.testing.waiting import eventually
from tests.node.mixed_story import leader_after
from tests.node.test_quorum_processes import create, topics
from tests.scheduling import CLUSTERS
from tests.support.kafka_start import quick_environment
from tests.support.same_metadata import batches_before, checksum, image_before

OURS, KAFKAS = "controller", "kafka:controller"
pytestmark = [pytest.mark.kafka, pytest.mark.together(CLUSTERS), pytest.mark.timeout(600)]


def _cluster(root: Path, kinds: list[str], **how: object) -> MixedCluster:
    scratch = root / "scratch"
    scratch.mkdir()
    return MixedCluster(root, [*kinds, "broker"], environment=quick_environment(scratch), **how)  # type: ignore[arg-type]


def _quorum(asked: MixedNode, *arguments: str) -> None:
    """kafka-metadata-quorum, retried until it succeeds: the node may not be caught up, or the last change not
    committed.
    """

    def attempt() -> bool:
        try:
            run_tool(
                "org.apache.kafka.tools.MetadataQuorumCommand", "--bootstrap-controller", asked.controller, *arguments
            )
        except RuntimeError as error:
            raise AssertionError(str(error)) from error
        return True

    eventually(attempt, f"kafka-metadata-quorum {arguments}", wait_s=120)


def _voters(node: MixedNode) -> dict[int, str]:
    """Ids and directory ids, as the leader reports them."""
    voters = node.describe_quorum().current_voters
    return {each.replica_id: encode_uuid(each.replica_directory_id or ZERO_UUID) for each in voters}


def _directory_id(node: MixedNode) -> str:
    (line,) = (
        line for line in (node.log_dir / "meta.properties").read_text().splitlines() if line.startswith("directory.id=")
    )
    return line.partition("=")[2]


def _check_same(nodes: list[MixedNode], high_watermark: int) -> None:
    """The nodes have stopped."""
    for node in nodes:
        assert batches_before(node.log_dir, high_watermark) == batches_before(nodes[0].log_dir, high_watermark)
    assert len({checksum(image_before(node.log_dir, high_watermark).image) for node in nodes}) == 1


@pytest.mark.parametrize("kinds", [[OURS, KAFKAS], [KAFKAS, OURS]], ids=["kafka joins", "fenceline joins"])
def test_a_quorum_moves_to_the_other_implementation(tmp_path: Path, kinds: list[str]) -> None:
    """Q41, Q42, by kafka-metadata-quorum: the second node is added, then the first, the leader, is removed."""
    with _cluster(tmp_path, kinds, voters=1) as cluster:
        cluster.wait_ready()
        first, second, broker = cluster.nodes
        create(broker, "one")
        _quorum(first, "--command-config", str(second.properties_file), "add-controller")
        directories = {1: first.directory_id, 2: _directory_id(second)}
        eventually(lambda: _voters(leader_after(cluster, 0)[0]) == directories)
        create(broker, "two")
        leader = leader_after(cluster, 0)[0]
        _quorum(leader, "remove-controller", "--controller-id", "1", "--controller-directory-id", directories[1])
        leader = leader_after(cluster, 0, but=1)[0]
        assert leader is second
        eventually(lambda: _voters(second) == {2: directories[2]})
        create(broker, "three")
        assert first.is_running

        def first_follows() -> bool:
            described = second.describe_quorum()
            ends = {each.replica_id: each.log_end_offset for each in described.observers}
            return bool(ends[1] >= described.high_watermark)

        high_watermark = second.describe_quorum().high_watermark
        eventually(first_follows)
        eventually(lambda: {"one", "two", "three"} <= topics(broker))
        for node in (broker, first, second):
            node.stop()
        _check_same([first, second], high_watermark)


@pytest.mark.parametrize("kinds", [[OURS, OURS, KAFKAS], [KAFKAS, KAFKAS, OURS]], ids=["2+1", "1+2"])
def test_static_voters_get_directory_ids_under_either_leader(tmp_path: Path, kinds: list[str]) -> None:
    """Q39, K15: elections with kraft.version 0, then all voters send UpdateRaftVoter to the leader, and version 1
    applies.
    """
    with _cluster(tmp_path, kinds, static=True) as cluster:
        cluster.wait_ready()
        broker = cluster.node(4)
        create(broker, "static")
        leader, described = leader_after(cluster, 0)
        while leader.kind != cluster.node(1).kind:
            leader.kill()
            leader.start()
            leader, described = leader_after(cluster, described.leader_epoch)
        assert set(_voters(leader).values()) == {encode_uuid(ZERO_UUID)}

        def raise_version() -> bool:
            try:
                run_tool(
                    "org.apache.kafka.tools.FeatureCommand",
                    *("--bootstrap-server", broker.bootstrap, "upgrade", "--feature", "kraft.version=1"),
                )
            except RuntimeError as error:
                raise AssertionError(str(error)) from error
            return True

        eventually(raise_version, "kraft.version is raised", wait_s=120)
        expected = {each.node_id: _directory_id(each) for each in cluster.nodes[:3]}
        eventually(lambda: _voters(leader_after(cluster, 0)[0]) == expected)
        old, described = leader_after(cluster, 0)
        old.stop()  # EndQuorumEpoch, which names voters of both implementations
        create(broker, "dynamic")
        old.start()
        leader, described = leader_after(cluster, described.leader_epoch)
        high_watermark = described.high_watermark

        def all_have_it() -> bool:
            voters = leader_after(cluster, 0)[1].current_voters
            return all(each.log_end_offset >= high_watermark for each in voters)

        eventually(all_have_it, wait_s=120)
        for node in reversed(cluster.nodes):
            node.stop()
        _check_same(cluster.nodes[:3], high_watermark)
        for node in cluster.nodes[:3]:
            entries = [entry.record for entry in MetadataFiles.at(node.log_dir).log_entries()]
            assert next(each.k_raft_version for each in entries if isinstance(each, KRaftVersion)) == 1
            assert any(isinstance(each, KRaftVoters) and len(each.voters) == 3 for each in entries)
