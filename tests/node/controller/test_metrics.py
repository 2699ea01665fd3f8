"""Metrics of a controller for Prometheus: its counters, the state of the cluster, its log and its quorum."""

from __future__ import annotations

import asyncio
import re
import urllib.request
from pathlib import Path
from random import Random

import pytest

from fenceline.config.authorizer import STANDARD
from fenceline.config.node import NodeConfig
from fenceline.controller.brokers import BrokerControlState
from fenceline.controller.requests import BrokerHeartbeat, CreateTopics, TopicToCreate
from fenceline.errors import OperatorError
from fenceline.metadata.changes import difference
from fenceline.metadata.image import EMPTY_IMAGE, LeaderRecoveryState
from fenceline.node.broker import Broker
from fenceline.node.controller.metrics import ClusterCounts
from fenceline.node.controller_node import ControllerNode
from fenceline.node.metric_families import Durations
from fenceline.quorum.log_view import SnapshotId
from tests.controller.helpers import Cluster
from tests.controller.world import ACTIONS, World
from tests.node.test_controller_nodes import Three, eventually, join, run

Figures = dict[str, float]


async def scrape(port: int) -> Figures:
    """The scraped values by name and labels."""

    def get() -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            text: str = answer.read().decode()
        return text

    text = await asyncio.get_running_loop().run_in_executor(None, get)
    rows = (line.rpartition(" ") for line in text.splitlines() if line and not line.startswith("#"))
    found: Figures = {}
    for name, _, value in rows:
        assert name not in found, f"{name} is there twice"
        found[name] = float(value)
    return found


def test_controller_only_node_serves_its_metrics(tmp_path: Path) -> None:
    async def story() -> None:
        cluster = Three(tmp_path)
        cluster.configs = [
            NodeConfig.load(None, {**config.raw, "fenceline.metrics.port": "0"}, {}) for config in cluster.configs
        ]
        try:
            await cluster.start(1, 2, 3)
            leader = await cluster.leader()
            await join(leader)
            await leader.controller.submit(CreateTopics((TopicToCreate("t", 3, 1),)))
            active, standby = (
                node.metrics_endpoint
                for node in sorted(cluster.running.values(), key=lambda node: node is not leader)[:2]
            )
            assert active is not None
            assert standby is not None
            figures = await scrape(active.port)
            assert figures["fenceline_controller_active"] == 1
            assert figures["fenceline_controller_terms_total"] == 1
            assert figures['fenceline_brokers{state="unfenced"}'] == 1
            assert figures['fenceline_brokers{state="fenced"}'] == 0
            assert (figures["fenceline_topics"], figures["fenceline_partitions"]) == (1, 3)
            assert figures["fenceline_leaderless_partitions"] == 0
            assert figures["fenceline_quorum_voters"] == 3
            assert figures["fenceline_quorum_leader_id"] == leader.node_id
            assert figures['fenceline_quorum_role{role="leader"}'] == 1
            assert 0 < figures["fenceline_metadata_offset"] <= leader.controller.image.offset
            assert figures["fenceline_metadata_log_end_offset"] >= figures["fenceline_metadata_high_watermark"] > 0
            for what in ("queue", "turn", "commit"):
                name = f"fenceline_controller_{what}_seconds"
                assert figures[f"{name}_count"] >= 3, "registration, heartbeat, topic"
                assert figures[f'{name}_bucket{{le="+Inf"}}'] == figures[f"{name}_count"]
                assert figures[f"{name}_sum"] >= 0
            assert figures['fenceline_controller_requests_total{api="fetch"}'] > 0
            assert "fenceline_produced_bytes_total" not in figures, "this node is no broker"

            beat = BrokerHeartbeat(7, leader.controller.image.brokers[7].epoch, 1 << 40, want_fence=True)
            await leader.controller.submit(beat)
            await eventually(lambda: all(each.controller.image.brokers[7].fenced for each in cluster.running.values()))
            for port, is_active in ((active.port, 1), (standby.port, 0)):
                figures = await scrape(port)
                assert figures["fenceline_controller_active"] == is_active
                assert figures['fenceline_brokers{state="fenced"}'] == 1
                assert figures["fenceline_leaderless_partitions"] == 3
        finally:
            await asyncio.gather(*(cluster.stop(node_id) for node_id in list(cluster.running)))

    run(story)


def test_combined_node_serves_metrics_of_both_roles(tmp_path: Path) -> None:
    async def story() -> None:
        config = NodeConfig.load(
            None,
            {
                "log.dirs": str(tmp_path / "data"),
                "listeners": "PLAINTEXT://127.0.0.1:0",
                "fenceline.metrics.port": "0",
                "authorizer.class.name": STANDARD,
            },
            {},
        )
        node = Broker(config)
        try:
            await node.start()
            assert node.metrics_endpoint is not None
            figures = await scrape(node.metrics_endpoint.port)
            assert figures["fenceline_controller_active"] == 1
            assert figures["fenceline_connections"] == 0
            assert figures["fenceline_metadata_snapshots_total"] == 0
            assert figures["fenceline_metadata_snapshot_end_offset"] == 0, "the snapshot written by format"
            assert figures["fenceline_metadata_snapshot_bytes"] > 0
            assert figures["fenceline_metadata_snapshot_age_seconds"] >= 0
            lag = figures["fenceline_metadata_snapshot_lag_records"]
            assert lag == figures["fenceline_metadata_high_watermark"] > 0
            assert figures["fenceline_metadata_snapshot_generation_seconds_count"] == 0
            assert figures["fenceline_metadata_snapshot_load_seconds_count"] == 1, "the load at the start"
            page = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text()
            documented = set(re.findall(r"`(fenceline_\w+)", page))
            kinds = re.compile(r"_(created|bucket|sum|count)$")
            shown = {kinds.sub("", name.partition("{")[0]) for name in figures}
            # Have no value until there are requests, or followers, or TLS.
            asked = {"fenceline_requests_total", "fenceline_controller_requests_total"}
            asked |= {"fenceline_follower_lag_records", "fenceline_follower_lag_seconds"}
            asked.add("fenceline_certificate_expiry_timestamp_seconds")
            assert shown | asked == documented
        finally:
            await node.stop()

    run(story)


def test_latency_and_lag_of_snapshots(tmp_path: Path) -> None:
    """KIP-630 "Metrics": GenSnapshotLatencyMs, LoadSnapshotLatencyMs, SnapshotSizeBytes and SnapshotLag."""

    async def story() -> None:
        overrides = {
            "log.dirs": str(tmp_path / "data"),
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "fenceline.metrics.port": "0",
            "metadata.log.max.record.bytes.between.snapshots": "1",
        }
        node = Broker(NodeConfig.load(None, overrides, {}))
        try:
            await node.start()
            snapshots, log = node.controller.snapshots, node.controller.log
            assert node.metrics_endpoint is not None
            assert snapshots is not None
            await node.controller.submit(CreateTopics((TopicToCreate("t", 3, 1),)))
            await eventually(lambda: log.newest_snapshot.end_offset > 0)
            figures = await scrape(node.metrics_endpoint.port)
            generated = figures["fenceline_metadata_snapshots_total"]
            assert figures["fenceline_metadata_snapshot_generation_seconds_count"] == generated > 0
            assert figures["fenceline_metadata_snapshot_bytes"] > 0
            lag = figures["fenceline_metadata_high_watermark"] - figures["fenceline_metadata_snapshot_end_offset"]
            assert figures["fenceline_metadata_snapshot_lag_records"] == lag

            loads = snapshots.loads.count
            image = node.controller.image
            node.controller.loaded(SnapshotId(image.offset + 1, image.epoch), image)
            await eventually(lambda: snapshots.loads.count == loads + 1)
        finally:
            await node.stop()

    run(story)


def test_address_in_use_is_reported(tmp_path: Path) -> None:
    async def story() -> None:
        cluster = Three(tmp_path)
        taken = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
        port = str(taken.sockets[0].getsockname()[1])
        config = NodeConfig.load(None, {**cluster.configs[0].raw, "fenceline.metrics.port": port}, {})
        node = ControllerNode(config)
        try:
            with pytest.raises(OperatorError) as refused:
                await node.start()
            assert "fenceline.metrics.port" in refused.value.advice
        finally:
            await node.stop()
            taken.close()

    run(story)


def test_counts_follow_the_image() -> None:
    """After any sequence of changes, the counts equal those of the image."""
    for seed in range(40):
        rng, world = Random(seed), World(elr=seed % 2 == 0)
        weights, actions = zip(*ACTIONS, strict=True)
        before = EMPTY_IMAGE
        counts = ClusterCounts(before)
        for _ in range(60):
            rng.choices(actions, weights)[0](world, rng)
            counts.follow(world.image, difference(before, world.image))
            before = world.image
            afresh = ClusterCounts(before)
            for name in ("leaderless", "not_preferred", "recovering", "reassigning", "brokers"):
                assert getattr(counts, name) == getattr(afresh, name), name
        partitions = [p for topic in before.topics_by_id.values() for p in topic.partitions]
        assert counts.leaderless == sum(p.leader == -1 for p in partitions)
        assert counts.not_preferred == sum(p.leader != p.replicas[0] for p in partitions)
        assert counts.recovering == sum(p.leader_recovery_state is LeaderRecoveryState.RECOVERING for p in partitions)
        assert counts.reassigning == sum(bool(p.adding or p.removing) for p in partitions)
        assert counts.brokers.get(BrokerControlState.FENCED, 0) == sum(b.fenced for b in before.brokers.values())


def _elections(cluster: Cluster, work: list[tuple[str, int]]) -> tuple[int, int]:
    """(eligible, unclean) election counts, for brokers that are fenced and unfenced in this order."""
    counts = ClusterCounts(cluster.image)
    for what, broker in work:
        before = cluster.image
        if what == "crash":
            cluster.now_ms += 9000
            cluster.register(broker, incarnation=cluster.now_ms)
        else:
            cluster.heartbeat(broker, want_fence=what == "fence")
        counts.follow(cluster.image, difference(before, cluster.image))
    return counts.eligible_elections, counts.unclean_elections


def test_elections_are_counted_by_kind() -> None:
    """recovery.md V15; since_4_0.md K27."""
    one = Cluster(2)
    one.create("t", (1, 2))
    assert _elections(one, [("fence", 1), ("unfence", 1)]) == (0, 0), "from the ISR"
    assert _elections(one, [("fence", 2), ("unfence", 2)]) == (1, 0), "it was last in the ISR, and stopped cleanly"
    assert _elections(one, [("fence", 2), ("crash", 2), ("unfence", 2)]) == (0, 1), "its log may lack records"


def test_durations_are_counted_in_buckets() -> None:
    durations = Durations()
    for seconds in (0.0, 0.0001, 0.002, 99.0):
        durations.observe(seconds)
    family = durations.family("name", "help")
    buckets = {sample.labels["le"]: sample.value for sample in family.samples if sample.name == "name_bucket"}
    assert (buckets["0.0001"], buckets["0.001"], buckets["0.003"], buckets["10.0"], buckets["+Inf"]) == (2, 2, 3, 3, 4)
    assert durations.count == 4
    assert durations.total_s == pytest.approx(99.0021)
