"""Checks a change of a running broker's own configs, on the broker that receives the request (C36).

Owns the errors, with the messages and code (42) of Kafka 4.3.1. Never stores anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from fenceline.config.broker import ALL_CONFIGS, PER_LISTENER_CONFIGS, broker_key, is_dynamic, update_mode
from fenceline.config.cordoned import CORDONED, cordoned_dirs
from fenceline.config.definitions import InvalidConfig, UpdateMode
from fenceline.config.node import NodeConfig, check_relations
from fenceline.errors import ErrorCode, OperatorError, PeerError

_LISTENER_PREFIX: Final = "listener.name."
_FIXED_HERE: Final = frozenset({"listeners", "listener.security.protocol.map"})


def check_broker_update(node: NodeConfig, wanted: Mapping[str, str], *, cluster_default: bool) -> None:
    """Check the complete new set of overrides of this broker, or of all brokers. Raises PeerError (INVALID_REQUEST).

    Unknown keys pass, as in Kafka: they may belong to a plug-in.
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
            (n for n in wanted if n.startswith(_LISTENER_PREFIX) or update_mode(n) is UpdateMode.PER_BROKER),
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
    try:
        check_relations({**node.raw, **wanted})
    except OperatorError as error:
        raise PeerError(ErrorCode.INVALID_REQUEST, error.message) from error
    cordoned_dirs(wanted.get(CORDONED), node.log_dirs)


def _reject(names: Iterable[str], reason: str) -> None:
    if found := sorted(names):
        raise PeerError(ErrorCode.INVALID_REQUEST, f"{reason}: [{', '.join(found)}]")


def _check_value(name: str, text: str) -> None:
    key = broker_key(name)
    if key is None:
        return
    try:
        key.parse(text)
    except InvalidConfig as error:
        raise PeerError(ErrorCode.INVALID_REQUEST, error.message) from error
