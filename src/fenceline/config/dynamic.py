"""Checks a change of a running broker's own configs, on the broker that receives the request (C36).

Owns the errors, with the messages and code (42) of Kafka 4.3.1. Never stores anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from fenceline.config.broker import (
    ALL_CONFIGS,
    PER_LISTENER_CONFIGS,
    broker_key,
    is_dynamic,
    listener_of,
    listener_prefix,
    update_mode,
    without_listener,
)
from fenceline.config.cordoned import CORDONED, cordoned_dirs
from fenceline.config.definitions import InvalidConfig, UpdateMode
from fenceline.config.node import NodeConfig, check_relations
from fenceline.errors import ErrorCode, OperatorError, PeerError

_PER_LISTENER_LIMITS: Final = frozenset({"max.connections", "max.connection.creation.rate", "num.network.threads"})
"""Keys of a listener that can be set for all brokers."""
_FIXED_HERE: Final = frozenset({"listeners", "listener.security.protocol.map"})


def check_broker_update(
    node: NodeConfig, wanted: Mapping[str, str], current: Mapping[str, str], *, cluster_default: bool
) -> None:
    """Check the complete new set of overrides of this broker, or of all brokers, against the one it has.

    Raises PeerError (INVALID_REQUEST). Unknown keys pass, as in Kafka: they may belong to a plug-in. The content of
    certificate stores is checked by `node.net.certificates`.
    """
    _reject(
        (name for name in wanted if name in ALL_CONFIGS and not is_dynamic(name)),
        "Cannot update these configs dynamically",
    )
    _reject(
        (name for name in wanted if name in PER_LISTENER_CONFIGS),
        "These security configs can be dynamically updated only per-listener using the listener prefix",
    )
    for name, text in wanted.items():
        _check_value(name, text)
    if cluster_default:
        _reject(
            (n for n in wanted if _is_of_one_listener(n) or update_mode(n) is UpdateMode.PER_BROKER),
            "Cannot update these configs at default cluster level, broker id must be specified",
        )
    for name, text in wanted.items():
        key = ALL_CONFIGS.get(name)
        if key is not None and key.unsupported is not None and key.parse(text) != key.default_value:
            raise PeerError(ErrorCode.INVALID_REQUEST, f"{name} is not supported: {key.unsupported}")
    _reject(
        (name for name in wanted if name in _FIXED_HERE and wanted[name] != node.text(name)),
        "Listeners of a running node cannot be changed",
    )
    _reject(
        (name for name in wanted if wanted[name] != current.get(name) and _changes_listener(node, name, wanted[name])),
        "Only the certificate stores of a running listener can be changed: set these configs in the node's file, and"
        " restart it",
    )
    try:
        check_relations({**node.raw, **wanted})
    except OperatorError as error:
        raise PeerError(ErrorCode.INVALID_REQUEST, error.message) from error
    cordoned_dirs(wanted.get(CORDONED), node.log_dirs)


def _is_of_one_listener(name: str) -> bool:
    found = listener_of(name)
    return found is not None and found[1] not in _PER_LISTENER_LIMITS


def _changes_listener(node: NodeConfig, name: str, text: str) -> bool:
    """Whether it is a key of a listener of this node that cannot be changed (security.md A11). Kafka 4.3.1 stores
    such a change without applying it."""
    found = listener_of(name)
    if found is None or found[1] not in ALL_CONFIGS or found[1] in PER_LISTENER_CONFIGS | _PER_LISTENER_LIMITS:
        return False
    is_here = any(name.startswith(listener_prefix(each.name)) for each in (*node.listeners, *node.controller_listeners))
    return is_here and text != node.raw.get(name)


def _reject(names: Iterable[str], reason: str) -> None:
    if found := sorted(names):
        raise PeerError(ErrorCode.INVALID_REQUEST, f"{reason}: [{', '.join(found)}]")


def _check_value(name: str, text: str) -> None:
    key = broker_key(without_listener(name))
    if key is None:
        return
    try:
        key.parse(text)
    except InvalidConfig as error:
        raise PeerError(ErrorCode.INVALID_REQUEST, error.message) from error
