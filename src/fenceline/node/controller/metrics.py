"""The Prometheus collectors of a node's metadata and its controller. `docs/metrics.md` documents the names.

Owns counts of the cluster updated by the image's deltas (only if metrics are scraped), and the collectors that read
them and the counters of the metadata's parts at scrape time, in the scraper's thread. Never decides, and never visits
all partitions after the first time.

Every controller counts elections when the image changes: a leader from the eligible replicas, and one from outside ISR
and eligible replicas, which may have lost records (`recovery.md V15`; also if the partition was RECOVERING before,
which Kafka does not count).

Rules: recovery.md V15; since_4_0.md K17, K27; snapshots.md N54 (KIP-630 "Metrics").
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from fenceline.controller.brokers import BrokerControlState, state_of
from fenceline.ids import NO_LEADER
from fenceline.metadata.changes import difference
from fenceline.metadata.image import EMPTY_IMAGE, LeaderRecoveryState
from fenceline.node.metric_families import counters, gauge_by, gauges

if TYPE_CHECKING:
    from fenceline.metadata.changes import Delta
    from fenceline.metadata.image import MetadataImage, PartitionImage
    from fenceline.node.controller.driver import ControllerDriver
    from fenceline.node.metrics import NodeMetrics
    from fenceline.quorum.log_view import SnapshotId


class ClusterCounts:
    """Counts over a controller's image, updated by its changes."""

    def __init__(self, image: MetadataImage) -> None:
        self.leaderless = 0
        self.not_preferred = 0
        """Not led by the preferred replica, or without a leader."""
        self.recovering = 0
        self.reassigning = 0
        self.eligible_elections = 0
        self.unclean_elections = 0
        self.brokers: Mapping[BrokerControlState, int] = {}
        self.follow(image, difference(EMPTY_IMAGE, image))

    def follow(self, image: MetadataImage, delta: Delta) -> None:
        for topic in delta.deleted_topics:
            for partition in topic.partitions:
                self._count(partition, -1)
        for topic in delta.created_topics:
            for partition in topic.partitions:
                self._count(partition, 1)
        for change in delta.changed_partitions:
            if change.before is not None:
                self._count(change.before, -1)
                self._count_election(change.before, change.after)
            self._count(change.after, 1)
        if delta.changed_brokers:
            self.brokers = Counter(map(state_of, image.brokers.values()))

    def _count(self, partition: PartitionImage, sign: int) -> None:
        if partition.leader != partition.preferred_leader:
            self.not_preferred += sign
            if partition.leader == NO_LEADER:
                self.leaderless += sign
        if partition.leader_recovery_state is LeaderRecoveryState.RECOVERING:
            self.recovering += sign
        if partition.adding or partition.removing:
            self.reassigning += sign

    def _count_election(self, before: PartitionImage, after: PartitionImage) -> None:
        if after.leader in (before.leader, NO_LEADER) or after.leader in before.isr:
            return
        if after.leader in before.elr:
            self.eligible_elections += 1
        elif after.leader_recovery_state is LeaderRecoveryState.RECOVERING:
            self.unclean_elections += 1


class MetadataCollector:
    """Metrics of a node's metadata, whatever its roles: its image, its log, its quorum."""

    def __init__(self, controller: ControllerDriver) -> None:
        self._controller = controller

    def collect(self) -> Iterator[Any]:
        controller = self._controller
        image, quorum, log = controller.image, controller.quorum, controller.log
        newest, high_watermark = log.newest_snapshot, controller.high_watermark
        yield from gauges(
            ("fenceline_topics", "Topics", len(image.topics_by_id)),
            ("fenceline_partitions", "Partitions of all topics", controller.partition_count),
            ("fenceline_metadata_offset", "Last metadata offset applied", image.offset),
            ("fenceline_metadata_high_watermark", "High watermark of the metadata log", high_watermark),
            ("fenceline_metadata_log_start_offset", "Log start offset of the metadata log", log.start_offset),
            ("fenceline_metadata_log_end_offset", "Log end offset of the metadata log", log.end_offset),
            ("fenceline_quorum_epoch", "Epoch of the quorum", quorum.epoch),
            ("fenceline_quorum_leader_id", "Leader of the quorum, -1 if unknown", quorum.leader_id),
            ("fenceline_quorum_voters", "Voters of the quorum", len(quorum.voters)),
        )
        name = type(quorum.role).__name__.lower()
        role = "observer" if name == "follower" and not quorum.is_voter else name
        yield gauge_by("role", "fenceline_quorum_role", "Role of this node in the quorum", {role: 1})
        yield from self._newest_snapshot(newest)
        snapshots = controller.snapshots
        yield from gauges(
            (
                "fenceline_metadata_snapshot_lag_records",
                "Offsets from the end of the newest snapshot to the high watermark",
                max(0, high_watermark - newest.end_offset),
            ),
        )
        if snapshots is not None:
            yield snapshots.generated.family(
                "fenceline_metadata_snapshot_generation_seconds", "Time to generate a snapshot"
            )
            yield snapshots.loads.family("fenceline_metadata_snapshot_load_seconds", "Time to load a snapshot")
        yield from counters(
            ("fenceline_metadata_snapshots", "Snapshots written", snapshots.generated_count if snapshots else 0),
            (
                "fenceline_metadata_snapshot_failures",
                "Snapshots that could not be written",
                snapshots.failed_count if snapshots else 0,
            ),
        )

    def _newest_snapshot(self, newest: SnapshotId) -> Iterator[Any]:
        """Nothing if there is none, or if it is deleted during the scrape."""
        try:
            file = os.stat(self._controller.log.path_of(newest))
        except OSError:
            return
        yield from gauges(
            ("fenceline_metadata_snapshot_end_offset", "End of the newest snapshot", newest.end_offset),
            ("fenceline_metadata_snapshot_bytes", "Size of the newest snapshot", file.st_size),
            (
                "fenceline_metadata_snapshot_age_seconds",
                "Seconds since the newest snapshot was written",
                max(0.0, time.time() - file.st_mtime),
            ),
        )


class ControllerCollector:
    """Metrics of controllers only: their listener, their queue, and the state of the cluster."""

    def __init__(self, controller: ControllerDriver, listener: NodeMetrics) -> None:
        """Event loop only. `listener` has the counters of the controller listener."""
        self._controller = controller
        self._listener = listener
        self._counts = ClusterCounts(controller.image)
        controller.subscribe(self._counts.follow)

    def collect(self) -> Iterator[Any]:
        from fenceline.node.metrics import requests_by_api

        counts, active, listener = self._counts, self._controller.active, self._listener
        metrics = active.metrics
        yield requests_by_api("fenceline_controller_requests", "Requests to the controller listener", listener)
        states = (BrokerControlState.UNFENCED, BrokerControlState.FENCED, BrokerControlState.CONTROLLED_SHUTDOWN)
        brokers = {state.name.lower(): counts.brokers.get(state, 0) for state in states}
        yield gauge_by("state", "fenceline_brokers", "Registered brokers, by state", brokers)
        yield from gauges(
            ("fenceline_controller_active", "1 if this node is the active controller", int(active.is_active)),
            ("fenceline_controller_waiting_requests", "Requests without a response", active.waiting_count),
            ("fenceline_controller_connections", "Open connections of the listener", listener.connections),
            ("fenceline_leaderless_partitions", "Partitions without a leader", counts.leaderless),
            ("fenceline_not_preferred_leaders", "Partitions not led by the preferred replica", counts.not_preferred),
            ("fenceline_recovering_partitions", "Partitions whose leader may lack records", counts.recovering),
            ("fenceline_reassigning_partitions", "Partitions with a reassignment in progress", counts.reassigning),
        )
        yield from counters(
            ("fenceline_controller_terms", "Times this node became the active controller", metrics.terms),
            ("fenceline_controller_received_bytes", "Bytes received by the listener", listener.received_bytes),
            (
                "fenceline_controller_refused_connections",
                "Connections to the listener that were closed because they exceeded a limit",
                sum(listener.refused_connections.values()),
            ),
            ("fenceline_broker_sessions_expired", "Broker sessions that timed out", active.expired_session_count),
            ("fenceline_brokers_gone", "Brokers fenced because their process had ended", active.sessions.gone_count),
            ("fenceline_brokers_silent", "Brokers fenced because they did not answer", active.silent_count),
            (
                "fenceline_broker_false_alarms",
                "Brokers fenced because their process had ended that were alive and returned",
                active.sessions.false_alarm_count,
            ),
            ("fenceline_eligible_elections", "Leaders from the eligible replicas", counts.eligible_elections),
            ("fenceline_unclean_elections", "Leaders that may lack records", counts.unclean_elections),
        )
        yield metrics.queued.family("fenceline_controller_queue_seconds", "Time from a request to its decision")
        yield metrics.turns.family("fenceline_controller_turn_seconds", "Time to decide and append the queued requests")
        yield metrics.commits.family("fenceline_controller_commit_seconds", "Time from an append to its commit")
