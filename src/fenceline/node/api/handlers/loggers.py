"""Log levels as configs of the BROKER_LOGGER resource (KIP-412). This node has one logger, `root`.

Owns the names of levels: TRACE is set as DEBUG and FATAL as ERROR, and so returned. Levels are neither metadata nor
kept after a restart.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from fenceline.config.definitions import InvalidConfig
from fenceline.controller.requests import ConfigChange, ConfigOperation
from fenceline.errors import ErrorCode, PeerError
from fenceline.node import logs

ROOT: Final = "root"
_LEVELS: Final[Mapping[str, str]] = MappingProxyType(
    {"DEBUG": "debug", "ERROR": "error", "FATAL": "error", "INFO": "info", "TRACE": "debug", "WARN": "warning"}
)
_WORDS: Final[Mapping[str, str]] = MappingProxyType(
    {"debug": "DEBUG", "info": "INFO", "warning": "WARN", "error": "ERROR"}
)


def log_level() -> str:
    """The level of `root`, by Kafka's name."""
    return _WORDS[logs.level()]


def check_node_id(node_id: int, name: str) -> None:
    """Raises PeerError if the resource is not this node."""
    try:
        asked = int(name)
    except ValueError:
        raise PeerError(ErrorCode.INVALID_REQUEST, f"Node id must be an integer, but it is: {name}") from None
    if asked != node_id:
        raise PeerError(ErrorCode.INVALID_REQUEST, f"Unexpected node id. Expected {node_id}, but received {name}")


def alter_log_level(change: ConfigChange, *, validate_only: bool) -> None:
    """Set a level. Raises the same errors as Kafka: unknown logger or level, deleting root, list operations."""
    match change.operation:
        case ConfigOperation.APPEND | ConfigOperation.SUBTRACT:
            raise PeerError(
                ErrorCode.INVALID_REQUEST,
                f"{change.operation.name} operation is not allowed for the BROKER_LOGGER resource",
            )
    if change.name != ROOT:
        raise InvalidConfig(f"Logger {change.name} does not exist!")
    if change.operation is ConfigOperation.DELETE:
        raise PeerError(ErrorCode.INVALID_REQUEST, "Removing the log level of the root logger is not allowed")
    if change.value is None or change.value not in _LEVELS:
        raise InvalidConfig(
            f"Cannot set the log level of {ROOT} to {change.value} as it is not a supported log level. "
            f"Valid log levels are {', '.join(_LEVELS)}"
        )
    if not validate_only:
        logs.set_level(_LEVELS[change.value])
