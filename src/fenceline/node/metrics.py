"""The node's counters: plain integers on the hot path, converted for Prometheus only at a scrape.

Owns the counters of a server and the endpoint that exposes them with a node's other metrics. `docs/metrics.md`
documents the names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from fenceline.errors import OperatorError
from fenceline.node.metric_families import counter_by, counters, gauges
from fenceline.wire.apis import ApiKey

if TYPE_CHECKING:
    from fenceline.config.node import NodeConfig
    from fenceline.node.api.fetch.load_budget import LoadBudget
    from fenceline.node.api.fetch.load_pace import LoadPace
    from fenceline.node.broker import Broker


class NodeMetrics:
    """Counters of one node. Every field is a total since the start unless its name says otherwise."""

    __slots__ = (
        "connections",
        "failed_produce_partitions",
        "fetched_bytes",
        "fetched_partitions",
        "load_budget",
        "load_pace",
        "parked_fetches",
        "produced_bytes",
        "produced_partitions",
        "received_bytes",
        "requests",
        "woken_fetches",
    )

    def __init__(self) -> None:
        self.connections = 0
        """Open now."""
        self.received_bytes = 0
        self.produced_bytes = 0
        self.produced_partitions = 0
        self.failed_produce_partitions = 0
        self.fetched_bytes = 0
        self.fetched_partitions = 0
        self.parked_fetches = 0
        """Waiting now."""
        self.woken_fetches = 0
        """Fetches that waited and were completed because data arrived."""
        self.load_budget: LoadBudget | None = None
        self.load_pace: LoadPace | None = None
        self.requests: dict[int, int] = {}
        """By api key."""

    def count_request(self, api_key: int) -> None:
        self.requests[api_key] = self.requests.get(api_key, 0) + 1

    def urgent_requests(self) -> int:
        """Number of requests that indicate latency-sensitive clients."""
        return self.requests.get(ApiKey.PRODUCE, 0) + self.woken_fetches

    def has_urgent_requests(self) -> bool:
        return self.load_pace is None or self.load_pace.has_urgent_requests()


class NodeCollector:
    """Collects a broker's metrics at scrape time."""

    def __init__(self, broker: Broker, metrics: NodeMetrics) -> None:
        self._broker = broker
        self._metrics = metrics

    def collect(self) -> Iterator[Any]:
        metrics = self._metrics
        budget, pace = metrics.load_budget, metrics.load_pace
        yield requests_by_api("fenceline_requests", "Requests received, by API", metrics)
        yield from counters(
            ("fenceline_received_bytes", "Bytes received from clients", metrics.received_bytes),
            ("fenceline_produced_bytes", "Bytes of records appended", metrics.produced_bytes),
            ("fenceline_produced_batches", "Record batches appended", metrics.produced_partitions),
            ("fenceline_produce_failures", "Record batches rejected", metrics.failed_produce_partitions),
            (
                "fenceline_group_rewinds",
                "Offset commits that moved back because the log was truncated",
                self._broker.groups.rewinds,
            ),
            ("fenceline_fetched_bytes", "Bytes of records sent to readers", metrics.fetched_bytes),
            ("fenceline_fetched_partitions", "Partitions with records in Fetch responses", metrics.fetched_partitions),
            ("fenceline_woken_fetches", "Fetches that waited and were completed with new data", metrics.woken_fetches),
            (
                "fenceline_fetch_load_held_seconds",
                "Seconds that fetches from disk yielded to other work, in total",
                pace.held_s if pace is not None else 0.0,
            ),
        )
        yield from gauges(
            ("fenceline_connections", "Open client connections", metrics.connections),
            ("fenceline_parked_fetches", "Fetches that wait for data", metrics.parked_fetches),
            (
                "fenceline_fetch_load_bytes",
                "Memory that fetches from the disk hold of fenceline.fetch.load.max.bytes",
                budget.used_bytes if budget is not None else 0,
            ),
            (
                "fenceline_fetch_load_waiting",
                "Fetches that wait for fenceline.fetch.load.max.bytes",
                budget.waiting_count if budget is not None else 0,
            ),
            ("fenceline_offline_partitions", "Partitions that cannot be served", self._broker.offline_partition_count),
            (
                "fenceline_offline_log_directories",
                "Directories of log.dirs that have failed or could not be opened",
                len(self._broker.log_dirs.offline),
            ),
        )


def requests_by_api(name: str, help_text: str, metrics: NodeMetrics) -> Any:
    """Requests of one server."""
    requests = {
        ApiKey(key).name.lower() if key in ApiKey._value2member_map_ else str(key): count
        for key, count in sorted(metrics.requests.items())
    }
    return counter_by("api", name, help_text, requests)


class MetricsEndpoint:
    """An HTTP server in its own thread."""

    def __init__(self, server: Any) -> None:
        self._server = server

    @property
    def port(self) -> int:
        port: int = self._server.server_port
        return port

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def open_endpoint(config: NodeConfig, collectors: Iterable[Any]) -> MetricsEndpoint:
    """Opens the endpoint if `fenceline.metrics.port` is set. Raises OperatorError if the address cannot be bound."""
    from prometheus_client import start_http_server
    from prometheus_client.registry import CollectorRegistry

    host, port = config.get_str("fenceline.metrics.host") or "", config.get_int("fenceline.metrics.port")
    registry = CollectorRegistry()
    for collector in collectors:
        registry.register(collector)
    try:
        server, _ = start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        raise OperatorError(
            f"Cannot open the metrics endpoint on {host or '*'}:{port}: {error.strerror}",
            "Set another fenceline.metrics.port, or remove the key.",
        ) from error
    return MetricsEndpoint(server)
