"""The node's counters: plain integers on the hot path, converted for Prometheus only at a scrape.

Owns the counters of a server and the endpoint that exposes them with a node's other metrics. `docs/metrics.md`
documents the names.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from fenceline.config import authorizer
from fenceline.errors import OperatorError
from fenceline.node.logs import Logger
from fenceline.node.metric_families import counter_by
from fenceline.node.metrics_access import TOKEN_FILE, MetricsToken, guarded, is_loopback
from fenceline.wire.apis import ApiKey

if TYPE_CHECKING:
    from fenceline.config.node import NodeConfig
    from fenceline.node.metrics_access import WsgiApp


log = Logger("metrics")

_ALL_INTERFACES: Final = "0.0.0.0"


class NodeMetrics:
    """Counters of one node. Every field is a total since the start unless its name says otherwise."""

    __slots__ = (
        "accepted_connections",
        "authentications",
        "connections",
        "delayed_connections",
        "failed_authentications",
        "failed_produce_partitions",
        "fetched_bytes",
        "fetched_partitions",
        "parked_fetches",
        "produced_bytes",
        "produced_partitions",
        "received_bytes",
        "refused_connections",
        "requests",
        "woken_fetches",
    )

    def __init__(self) -> None:
        self.connections = 0
        """Open now."""
        self.accepted_connections = 0
        """By the socket; some of them were refused then."""
        self.refused_connections: dict[str, int] = {}
        """By the limit that they exceeded."""
        self.delayed_connections = 0
        """Served late, because they came too fast."""
        self.authentications = 0
        """Successful SASL exchanges."""
        self.failed_authentications = 0
        """TLS handshakes and SASL exchanges that did not succeed."""
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
        self.requests: dict[int, int] = {}
        """By api key."""

    def count_request(self, api_key: int) -> None:
        self.requests[api_key] = self.requests.get(api_key, 0) + 1

    def urgent_requests(self) -> int:
        """Number of requests that indicate latency-sensitive clients."""
        return self.requests.get(ApiKey.PRODUCE, 0) + self.woken_fetches


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
    """Opens the endpoint if `fenceline.metrics.port` is set. Raises OperatorError if the address cannot be bound, or
    there is no token in `fenceline.metrics.token.file`."""
    from prometheus_client import start_http_server
    from prometheus_client.registry import CollectorRegistry

    host, port = config.get_str("fenceline.metrics.host") or "", config.get_int("fenceline.metrics.port")
    token_file = config.get_str(TOKEN_FILE)
    token = MetricsToken(Path(token_file).expanduser()) if token_file else None
    if token is None and config.get_str(authorizer.CLASS) and not is_loopback(host):
        log.warning(
            "metrics are readable by everybody",
            address=f"{host or '*'}:{port}",
            advice=f"The node checks rights, but not those of this endpoint. Set {TOKEN_FILE}, or"
            " fenceline.metrics.host to 127.0.0.1.",
        )
    registry = CollectorRegistry()
    try:
        server, _ = start_http_server(port, addr=host or _ALL_INTERFACES, registry=registry)
    except OSError as error:
        raise OperatorError(
            f"Cannot open the metrics endpoint on {host or '*'}:{port}: {error.strerror}",
            "Set another fenceline.metrics.port, or remove the key.",
        ) from error
    if token is not None:
        server.set_app(guarded(cast("WsgiApp", server.get_app()), token))
    # Not before the guard: the server runs.
    for collector in collectors:
        registry.register(collector)
    return MetricsEndpoint(server)
