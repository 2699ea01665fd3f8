"""Limits of connections that cannot work (A63).

Owns the form of `max.connections.per.ip.overrides`. Never resolves a name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fenceline.config.broker import without_listener
from fenceline.errors import OperatorError

PER_IP: Final = "max.connections.per.ip"
OVERRIDES: Final = "max.connections.per.ip.overrides"
_NOT_ZERO: Final = ("max.connections", "max.connection.creation.rate")


def check_connections(raw: Mapping[str, str]) -> None:
    """Check the set values. Raises OperatorError."""
    for name, text in raw.items():
        if without_listener(name) not in _NOT_ZERO:
            continue
        if not text.strip().removeprefix("+").isdecimal():
            raise OperatorError(f"{name}={text} is not a positive number", "Set it to 1 or more.")
        if not int(text):
            raise OperatorError(f"{name}={text}: no client could connect", "Set it to 1 or more.")
    overrides = connection_overrides(raw.get(OVERRIDES, ""))
    if raw.get(PER_IP, "").strip() == "0" and not overrides:
        raise OperatorError(f"{PER_IP} can be set to zero only if {OVERRIDES} property is set.")


def connection_overrides(text: str) -> tuple[tuple[str, int], ...]:
    """Limits by host name or address. Raises OperatorError."""
    found: list[tuple[str, int]] = []
    for entry in filter(None, (each.strip() for each in text.split(","))):
        host, _, count = entry.rpartition(":")
        if not host or not count.strip().isascii() or not count.strip().isdigit():
            raise OperatorError(
                f"{OVERRIDES} has the entry {entry!r}, which is not of the form address:count",
                "Separate entries by commas: 10.0.0.1:100,10.0.0.2:200.",
            )
        found.append((host.strip("[]"), int(count)))
    return tuple(found)
