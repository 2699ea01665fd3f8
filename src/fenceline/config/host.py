"""Several nodes of one host from one configuration: `fenceline start --nodes N`.

Owns what is derived for each of them, as settings that replace those of the configuration. Node 1 of the host is the
configured one; the others are brokers, with the next ids and ports. Starts nothing, reads nothing.

| setting | of node i of the host, i from 0 |
|---|---|
| `node.id` | the configured one + i |
| `process.roles` | as configured for the first, `broker` for the others: two voters of a host would fail together |
| ports of `listeners`, `advertised.listeners`, `fenceline.metrics.port` | + i times a step, so that none collide |
| `log.dirs`, `metadata.log.dir` | `node-ID` in each of them |
| `broker.rack` | the host, unless it is set |
| `fenceline.placement.distinct.racks` | true, unless it is set: two replicas never share a host |
| `controller.quorum.bootstrap.servers` | without a quorum: 127.0.0.1, at the port before the lowest |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from fenceline.config.broker import DISTINCT_RACKS
from fenceline.config.listeners import ListenerConfig
from fenceline.config.node import NodeConfig
from fenceline.errors import OperatorError

MAX_NODES: Final = 64
_METRICS_PORT: Final = "fenceline.metrics.port"
_HIGHEST_PORT: Final = 65_535


@dataclass(frozen=True, slots=True)
class NodeOfHost:
    """`settings` replace those of the configuration."""

    node_id: int
    settings: Mapping[str, str]


def nodes_of_host(config: NodeConfig, count: int, host: str) -> tuple[NodeOfHost, ...]:
    """The nodes of `host`. Raises OperatorError if the configuration cannot be that of several nodes."""
    if not 1 <= count <= MAX_NODES:
        raise OperatorError(
            f"--nodes {count} is not possible", f"A host has 1 to {MAX_NODES} nodes, one for each core."
        )
    if not config.is_broker:
        raise OperatorError(
            "--nodes starts brokers, and process.roles has only controller",
            "Start a node that is only a controller without --nodes.",
        )
    used = [each.port for each in (*config.listeners, *config.controller_listeners, *config.advertised_listeners)]
    metrics_port = config.get_int(_METRICS_PORT)
    quorum, controller_port = _quorum(config, [*used, metrics_port])
    fixed = [each.port for each in config.controller_listeners] + [controller_port]
    moving = {*(each.port for each in config.listeners), metrics_port}
    step = _step({port for port in moving if port > 0}, {port for port in fixed if port > 0})
    highest = max((port for port in moving if port > 0), default=0) + step * (count - 1)
    if highest > _HIGHEST_PORT:
        raise OperatorError(f"--nodes {count} would need port {highest}", "Set lower ports in `listeners`.")
    return tuple(
        NodeOfHost(config.node_id + index, _settings(config, index, step, host, quorum)) for index in range(count)
    )


def _quorum(config: NodeConfig, used: list[int]) -> tuple[Mapping[str, str], int]:
    """What all nodes of the host set, so that they find the controllers; the port of a new listener for them, or 0."""
    if config.quorum_voters or config.quorum_bootstrap_servers:
        return {}, 0
    if config.controller_listeners:
        own = config.controller_listeners[0]
        return {"controller.quorum.bootstrap.servers": f"{own.host or '127.0.0.1'}:{own.port}"}, 0
    lowest = min((port for port in used if port > 0), default=0) - 1
    if lowest <= 0:
        raise OperatorError(
            "--nodes needs a port at which its brokers find their controller",
            "Set fixed ports with --listen or `listeners`, or configure controller.quorum.bootstrap.servers.",
        )
    return {"controller.quorum.bootstrap.servers": f"127.0.0.1:{lowest}"}, lowest


def _step(moving: set[int], fixed: set[int]) -> int:
    """The smallest one for which no two ports of a host collide, whatever the number of its nodes: with more nodes,
    those that exist keep their ports."""
    step = 1
    while True:
        ports = [port + step * index for port in moving for index in range(MAX_NODES)]
        if len(set(ports)) == len(ports) and not fixed & set(ports):
            return step
        step += 1


def _settings(config: NodeConfig, index: int, step: int, host: str, quorum: Mapping[str, str]) -> dict[str, str]:
    node_id, shift = config.node_id + index, index * step
    # Each has its own directory, also the first, so that their number can change.
    settings: dict[str, str] = {
        "node.id": str(node_id),
        "broker.id": str(node_id),
        "log.dirs": ",".join(str(path / f"node-{node_id}") for path in config.log_dirs),
        "broker.rack": config.rack or host,
        DISTINCT_RACKS: config.raw.get(DISTINCT_RACKS, "true"),
        **quorum,
    }
    if config.is_set("metadata.log.dir"):
        settings["metadata.log.dir"] = str(config.metadata_log_dir / f"node-{node_id}")
    listeners = [_moved(each, shift) for each in config.listeners]
    if config.is_set("advertised.listeners"):
        advertised = [_moved(each, shift) for each in config.advertised_listeners]
        if index == 0:
            advertised += [str(each) for each in config.advertised_controller_listeners]
        settings["advertised.listeners"] = ",".join(advertised)
    if index > 0:
        settings["process.roles"] = "broker"
    elif config.controller_listeners:
        listeners += map(str, config.controller_listeners)
    elif config.is_controller:
        name = config.controller_listener_names[0]
        address = quorum["controller.quorum.bootstrap.servers"]
        listeners.append(f"{name}://{address}")
        if "advertised.listeners" in settings:
            settings["advertised.listeners"] += f",{name}://{address}"
    settings["listeners"] = ",".join(listeners)
    if config.get_int(_METRICS_PORT) > 0:
        settings[_METRICS_PORT] = str(config.get_int(_METRICS_PORT) + shift)
    return settings


def _moved(listener: ListenerConfig, shift: int) -> str:
    return str(listener._replace(port=listener.port + shift if listener.port else 0))
