"""Prometheus metrics of the requests that a broker serves. `docs/metrics.md` documents the names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from fenceline.node.metric_families import counter_by, counters, gauge_by, gauges
from fenceline.node.metrics import requests_by_api
from fenceline.node.net.connection_limits import LIMITS

if TYPE_CHECKING:
    from datetime import datetime

    from fenceline.log.directories.log_dirs import LogDirs
    from fenceline.node.api.fetch.fetching import FetchHandler
    from fenceline.node.groups.driver import GroupsDriver
    from fenceline.node.metrics import NodeMetrics
    from fenceline.node.replication.replicas import Replicas


class NodeCollector:
    """Collects a broker's metrics at scrape time."""

    def __init__(
        self,
        metrics: NodeMetrics,
        fetching: FetchHandler,
        groups: GroupsDriver,
        replicas: Replicas,
        log_dirs: LogDirs,
        certificate_expiries: Callable[[], Mapping[str, datetime]],
    ) -> None:
        """`certificate_expiries`: by listener, in UTC."""
        self._certificate_expiries = certificate_expiries
        self._metrics = metrics
        self._fetching = fetching
        self._groups = groups
        self._replicas = replicas
        self._log_dirs = log_dirs

    def collect(self) -> Iterator[Any]:
        metrics = self._metrics
        budget = self._fetching.load_budget
        yield requests_by_api("fenceline_requests", "Requests received, by API", metrics)
        yield from counters(
            ("fenceline_received_bytes", "Bytes received from clients", metrics.received_bytes),
            ("fenceline_accepted_connections", "Connections of clients", metrics.accepted_connections),
            ("fenceline_delayed_connections", "Connections that came too fast", metrics.delayed_connections),
            ("fenceline_authentications", "SASL authentications that succeeded", metrics.authentications),
            (
                "fenceline_failed_authentications",
                "TLS handshakes and SASL authentications that failed",
                metrics.failed_authentications,
            ),
            ("fenceline_produced_bytes", "Bytes of records appended", metrics.produced_bytes),
            ("fenceline_produced_batches", "Record batches appended", metrics.produced_partitions),
            ("fenceline_produce_failures", "Record batches rejected", metrics.failed_produce_partitions),
            (
                "fenceline_group_rewinds",
                "Offset commits that moved back because the log was truncated",
                self._groups.rewinds,
            ),
            ("fenceline_fetched_bytes", "Bytes of records sent to readers", metrics.fetched_bytes),
            ("fenceline_fetched_partitions", "Partitions with records in Fetch responses", metrics.fetched_partitions),
            ("fenceline_woken_fetches", "Fetches that waited and were completed with new data", metrics.woken_fetches),
            (
                "fenceline_fetch_load_held_seconds",
                "Seconds that fetches from disk yielded to other work, in total",
                self._fetching.reads.load_pace.held_s,
            ),
        )
        yield counter_by(
            "limit",
            "fenceline_refused_connections",
            "Connections that were closed because they exceeded a limit",
            {limit: metrics.refused_connections.get(limit, 0) for limit in LIMITS},
        )
        yield gauge_by(
            "listener",
            "fenceline_certificate_expiry_timestamp_seconds",
            "When a listener's certificate expires, in seconds since the epoch",
            {name: each.timestamp() for name, each in self._certificate_expiries().items()},
        )
        yield from gauges(
            ("fenceline_connections", "Open client connections", metrics.connections),
            ("fenceline_parked_fetches", "Fetches that wait for data", metrics.parked_fetches),
            (
                "fenceline_fetch_load_bytes",
                "Memory that fetches from the disk hold of fenceline.fetch.load.max.bytes",
                budget.used_bytes,
            ),
            (
                "fenceline_fetch_load_waiting",
                "Fetches that wait for fenceline.fetch.load.max.bytes",
                budget.waiting_count,
            ),
            ("fenceline_offline_partitions", "Partitions that cannot be served", len(self._replicas.offline)),
            (
                "fenceline_offline_log_directories",
                "Directories of log.dirs that have failed or could not be opened",
                len(self._log_dirs.offline),
            ),
        )
