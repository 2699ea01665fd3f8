"""Parses listener addresses in `listeners` and `advertised.listeners`.

Owns their syntax and the check of their security protocols. Opens nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from fenceline.errors import OperatorError

SECURITY_PROTOCOLS: Final[Mapping[str, int]] = {"PLAINTEXT": 0, "SSL": 1, "SASL_PLAINTEXT": 2, "SASL_SSL": 3}
"""Names and the numbers they have on the wire and in broker registrations."""
SECURED: Final = tuple(SECURITY_PROTOCOLS)[1:]

_ADDRESS: Final = re.compile(
    r"(?P<name>[^:/]+)://(?:\[(?P<v6>[0-9a-fA-F:.%]+)\]|(?P<host>[^:/\[\]]*)):(?P<port>[0-9]+)"
)
_ANY_ADDRESS: Final = frozenset({"0.0.0.0", "::"})


class ListenerConfig(NamedTuple):
    """`host` is "" for all interfaces; `port` 0 lets the system choose."""

    name: str
    host: str
    port: int
    security_protocol: str = "PLAINTEXT"

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


def parse_protocol_map(text: str) -> dict[str, str]:
    """`NAME:PROTOCOL` pairs. Raises OperatorError."""
    pairs: dict[str, str] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, separator, protocol = item.rpartition(":")
        if not separator or protocol.strip().upper() not in SECURITY_PROTOCOLS:
            raise OperatorError(
                f"invalid entry {item!r} in listener.security.protocol.map: expected NAME:PROTOCOL",
                f"Valid protocols are {', '.join(SECURITY_PROTOCOLS)}.",
            )
        pairs[name.strip().upper()] = protocol.strip().upper()
    return pairs


def protocol_of(name: str, key: str, protocols: Mapping[str, str]) -> str:
    """Of a listener. Raises OperatorError if it is not in the map: it must not be unencrypted unnoticed (A1)."""
    found = protocols.get(name)
    if found is None:
        raise OperatorError(
            f"listener {name} in {key} has no security protocol in listener.security.protocol.map",
            f"Add {name}:PROTOCOL to listener.security.protocol.map, and the other listeners if the key is not set;"
            f" protocols are {', '.join(SECURITY_PROTOCOLS)}.",
        )
    return found


def parse_listeners(key: str, items: Sequence[str], protocols: Mapping[str, str]) -> tuple[ListenerConfig, ...]:
    """The addresses of one property. Raises OperatorError: bad syntax, a repeated name or port, no protocol."""
    found: list[ListenerConfig] = []
    for item in items:
        match = _ADDRESS.fullmatch(item.strip())
        if match is None or int(match["port"]) > 65535:
            raise OperatorError(f"invalid listener {item!r} in {key}", "Use the form NAME://host:port.")
        name = match["name"].upper()
        protocol = protocol_of(name, key, protocols)
        found.append(ListenerConfig(name, match["v6"] or match["host"] or "", int(match["port"]), protocol))
    for what, values in (("name", [one.name for one in found]), ("port", [one.port for one in found if one.port])):
        if len(set(values)) != len(values) and (what == "name" or key == "listeners"):
            raise OperatorError(f"each {what} in {key} must be unique: {', '.join(items)}")
    return tuple(found)


def check_roles(
    roles: frozenset[str], listeners: tuple[ListenerConfig, ...], controllers: tuple[ListenerConfig, ...], is_set: bool
) -> None:
    """Raises OperatorError if a role lacks its listeners, or a listener its role. `is_set`: `listeners` was set."""
    if "broker" in roles and not listeners:
        raise OperatorError("listeners contains no listener for clients", "Add one, for example PLAINTEXT://:9092.")
    if "controller" not in roles and controllers:
        raise OperatorError(
            f"listeners contains {controllers[0]}, but this node is not a controller",
            "Remove it; controller.listener.names only names the listener of the controllers.",
        )
    if roles == {"controller"}:
        if not controllers:
            raise OperatorError(
                "listeners contains no listener of controller.listener.names, which a controller requires",
                "Add one, for example CONTROLLER://:9093.",
            )
        if listeners and is_set:
            raise OperatorError(
                f"listeners contains {listeners[0]}, but this node is not a broker",
                "Remove it, or add its name to controller.listener.names.",
            )


def is_any_address(host: str) -> bool:
    """Whether the host means all interfaces, which clients cannot connect to."""
    return host in _ANY_ADDRESS
