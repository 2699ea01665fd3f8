"""The faults of one node, as the laboratory describes them to the node's process.

Owns the description and its form on the control channel (JSON). Injects nothing: `nodes` does. A description is
complete, never a change: a process that is started anew gets the faults of its predecessor.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any, Final


class Effect(StrEnum):
    """What happens to a request that a rule matches."""

    ERROR = "error"
    """It is answered with an error code, and not handled."""
    DELAY = "delay"
    """It is handled later."""
    LOSE_ANSWER = "lose answer"
    """It is handled, its answer is dropped, and the connection is reset."""
    LOSE_REQUEST = "lose request"
    """It is not handled, and the connection is reset."""
    HANG = "hang"
    """It is handled, and neither it nor a later request of the connection is answered."""
    THROTTLE = "throttle"
    """It is handled; its sender is told to be quiet, and is not read for so long."""


CLIENTS: Final = "clients"
NODES: Final = "nodes"
BROKERS: Final = "brokers"
CONTROLLERS: Final = "controllers"


@dataclass(frozen=True, slots=True)
class LinkFault:
    """What the network does between a node and some of its peers.

    `peer`: `clients`, `nodes`, the id of a node, or "" for all. `listener`: of these, only connections to listeners of
    `brokers` or of `controllers`. `client_id`: only the connections of this client. `delay_s` is one way, and each
    piece takes up to `jitter_s` more. `bytes_per_s` (0: unlimited) is shared by the connections of the fault, and each
    way has its own. `holds_incoming`, `holds_outgoing`: nothing arrives until the fault ends."""

    fault_id: int
    peer: str = ""
    client_id: str | None = None
    listener: str = ""
    delay_s: float = 0.0
    jitter_s: float = 0.0
    bytes_per_s: float = 0.0
    holds_incoming: bool = False
    holds_outgoing: bool = False

    def matches(self, peer: str, client_id: str | None, listener: str) -> bool:
        """`peer`: `clients` or the id of a node. `listener`: `brokers` or `controllers`."""
        if self.listener not in ("", listener):
            return False
        if self.client_id is not None and client_id != self.client_id:
            return False
        return self.peer in ("", peer) or (self.peer == NODES and peer != CLIENTS)


@dataclass(frozen=True, slots=True)
class RequestFault:
    """What happens to the requests of some API.

    `api`: its key, None for all. `client_id`, `topic`, `group`: only requests of this client, that name this topic,
    that belong to this group. The first `skip` matching requests pass; `times` (0: unlimited) are then affected.
    `asks`: whether the laboratory decides for each matching request. `value` is the error code, the delay in seconds,
    or the throttle time in milliseconds."""

    fault_id: int
    effect: Effect
    api: int | None = None
    client_id: str | None = None
    topic: str | None = None
    group: str | None = None
    skip: int = 0
    times: int = 0
    asks: bool = False
    value: float = 0.0


@dataclass(frozen=True, slots=True)
class DiskFault:
    """What the disk does: `is_full` refuses new bytes (ENOSPC), `fails_writes` and `fails_reads` answer EIO, each write
    and flush takes `slower_s` longer. `torn_after_bytes`: when so many more bytes are written to files whose path
    contains `path`, the last write ends in the middle and the process dies, as if the power had failed; -1: never."""

    is_full: bool = False
    fails_writes: bool = False
    fails_reads: bool = False
    slower_s: float = 0.0
    torn_after_bytes: int = -1
    path: str = ""


@dataclass(frozen=True, slots=True)
class NodeFaults:
    """All faults of one node. `peers`: the addresses (`host:port`) on which the nodes listen, and their ids;
    `controller_ports`: the ports of listeners of controllers."""

    links: tuple[LinkFault, ...] = ()
    requests: tuple[RequestFault, ...] = ()
    disk: DiskFault = field(default_factory=DiskFault)
    clock_ahead_ms: int = 0
    peers: Mapping[str, int] = field(default_factory=dict)
    controller_ports: tuple[int, ...] = ()

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> NodeFaults:
        """Raises ValueError, KeyError, TypeError."""
        read: dict[str, Any] = json.loads(text)
        return cls(
            links=tuple(LinkFault(**each) for each in read["links"]),
            requests=tuple(RequestFault(**{**each, "effect": Effect(each["effect"])}) for each in read["requests"]),
            disk=DiskFault(**read["disk"]),
            clock_ahead_ms=int(read["clock_ahead_ms"]),
            peers={str(address): int(node) for address, node in read["peers"].items()},
            controller_ports=tuple(read["controller_ports"]),
        )

    def without(self, fault_id: int) -> NodeFaults:
        """Without the fault of the network or of requests that has this id."""
        return replace(
            self,
            links=tuple(each for each in self.links if each.fault_id != fault_id),
            requests=tuple(each for each in self.requests if each.fault_id != fault_id),
        )
