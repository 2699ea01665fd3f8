"""Configs of groups (KIP-848, KIP-932, KIP-1071) and of client metrics subscriptions (KIP-714).

Owns their names, defaults and bounds. They are stored and returned; the protocols that they tune are not supported yet.
The messages are Kafka 4.3.1's. Rules: controller.md C36.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from fenceline.config.broker import BROKER_CONFIGS
from fenceline.config.definitions import (
    ConfigKey,
    ConfigType,
    ConfigValue,
    InvalidConfig,
    ListRules,
    invalid_value,
    table,
)
from fenceline.config.key_table import read_table
from fenceline.errors import ErrorCode, PeerError

_GROUP_TABLE: Final = """
consumer.session.timeout.ms int 45000 medium >=1
    Session timeout in milliseconds of a member in the consumer protocol.
consumer.heartbeat.interval.ms int 5000 medium >=1
    Heartbeat interval in milliseconds in the consumer protocol.
consumer.assignment.interval.ms int 1000 medium >=0
    Milliseconds between assignments in the consumer protocol.
share.session.timeout.ms int 45000 medium >=1
    Session timeout in milliseconds of a member of a share group.
share.heartbeat.interval.ms int 5000 medium >=1
    Heartbeat interval in milliseconds of a share group.
share.record.lock.duration.ms int 30000 medium >=1000
    Milliseconds that a record is locked for one member.
share.delivery.count.limit int 5 medium >=2
    Maximum deliveries of a record.
share.partition.max.record.locks int 2000 medium >=100
    Records of a partition that may be locked at once.
share.auto.offset.reset string latest medium
    Where a share group starts: earliest, latest or by_duration:<ISO 8601 duration>.
share.isolation.level string read_uncommitted medium in:read_committed,read_uncommitted
    Whether records of open transactions are delivered.
share.renew.acknowledge.enable boolean true medium
    Whether members may renew the lock of a record.
share.assignment.interval.ms int 1000 medium >=0
    Milliseconds between assignments of a share group.
streams.session.timeout.ms int 45000 medium >=1
    Session timeout in milliseconds of a member of a streams group.
streams.heartbeat.interval.ms int 5000 medium >=1
    Heartbeat interval in milliseconds of a streams group.
streams.num.standby.replicas int 0 medium >=0
    Standby copies of each task.
streams.initial.rebalance.delay.ms int 3000 medium >=0
    Milliseconds that a new streams group waits for more members.
streams.assignment.interval.ms int 1000 medium >=0
    Milliseconds between assignments of a streams group.
"""

GROUP_CONFIGS: Final[Mapping[str, ConfigKey]] = table(read_table(_GROUP_TABLE))

CLIENT_METRICS_CONFIGS: Final[Mapping[str, ConfigKey]] = table(
    (
        ConfigKey("metrics", ConfigType.LIST, "", "Prefixes of the metrics that clients push.", validator=ListRules()),
        ConfigKey("interval.ms", ConfigType.INT, "300000", "Milliseconds between pushes."),
        ConfigKey("match", ConfigType.LIST, "", "Which clients push: selector=pattern pairs.", validator=ListRules()),
    )
)

GROUP_SYNONYMS: Final[Mapping[str, str]] = MappingProxyType(
    {name: f"group.{name}" if f"group.{name}" in BROKER_CONFIGS else name for name in GROUP_CONFIGS}
)
"""Group config to the broker key that is its default; itself if there is none."""

_SELECTORS: Final = frozenset(
    {
        "client_instance_id",
        "client_id",
        "client_software_name",
        "client_software_version",
        "client_source_address",
        "client_source_port",
    }
)
_PUSH_INTERVAL_MS: Final = (100, 3_600_000)
_OFFSET_RESET: Final = "share.auto.offset.reset"
_DURATION: Final = re.compile(r"by_duration:P(?!$)(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+(\.\d+)?S)?)?")


def validate_group_configs(configs: Mapping[str, str], bound: Callable[[str], ConfigValue]) -> None:
    """Check the complete set of a group's overrides; `bound` looks up broker keys. Raises InvalidConfig."""
    for name in configs:
        if name not in GROUP_CONFIGS:
            raise InvalidConfig(f"Unknown group config name: {name}")
    values = {name: GROUP_CONFIGS[name].parse(text) for name, text in configs.items()}
    for name, value in values.items():
        if name == _OFFSET_RESET and value not in ("earliest", "latest") and not _DURATION.fullmatch(str(value)):
            raise invalid_value(
                name,
                value,
                "The value must be either 'earliest', 'latest' or of the format 'by_duration:<PnDTnHnMn.nS>'.",
            )
        _check_bounds(name, value, bound)
    for kind in ("consumer", "share", "streams"):
        heartbeat, session = f"{kind}.heartbeat.interval.ms", f"{kind}.session.timeout.ms"
        if heartbeat in values or session in values:
            shortest = values.get(heartbeat, bound(GROUP_SYNONYMS[heartbeat]))
            longest = values.get(session, bound(GROUP_SYNONYMS[session]))
            if isinstance(shortest, int) and isinstance(longest, int) and longest <= shortest:
                raise InvalidConfig(f"{session} must be greater than {heartbeat}")


def _check_bounds(name: str, value: ConfigValue, bound: Callable[[str], ConfigValue]) -> None:
    """Broker keys may bound a group's values: `group.<kind>.min.<rest>` and `.max.`."""
    kind, _, rest = name.partition(".")
    least, most = f"group.{kind}.min.{rest}", f"group.{kind}.max.{rest.removeprefix('num.')}"
    lowest = bound(least) if least in BROKER_CONFIGS else None
    highest = bound(most) if most in BROKER_CONFIGS else None
    if isinstance(value, int) and isinstance(lowest, int) and value < lowest:
        raise InvalidConfig(f"{name} must be greater than or equal to {least}")
    if isinstance(value, int) and isinstance(highest, int) and value > highest:
        raise InvalidConfig(f"{name} must be less than or equal to {most}")


def validate_client_metrics(name: str, configs: Mapping[str, str]) -> None:
    """Check a subscription's complete settings. Raises PeerError (42) or InvalidConfig (40), as Kafka does."""
    if not name:
        raise PeerError(ErrorCode.INVALID_REQUEST, "Subscription name can't be empty")
    for key in configs:
        if key not in CLIENT_METRICS_CONFIGS:
            raise PeerError(ErrorCode.INVALID_REQUEST, f"Unknown client metrics configuration: {key}")
    values = {key: CLIENT_METRICS_CONFIGS[key].parse(text) for key, text in configs.items()}
    interval = values.get("interval.ms")
    low, high = _PUSH_INTERVAL_MS
    if isinstance(interval, int) and not low <= interval <= high:
        raise PeerError(
            ErrorCode.INVALID_REQUEST,
            f"Invalid value {interval} for interval.ms, interval must be between {low} and {high} (1 hour)",
        )
    matches = values.get("match")
    for match in matches if isinstance(matches, tuple) else ():
        selector, separator, pattern = match.partition("=")
        if not separator or selector.strip() not in _SELECTORS or not _is_pattern(pattern.strip()):
            raise InvalidConfig(f"Illegal client matching pattern: {match}")


def _is_pattern(text: str) -> bool:
    try:
        re.compile(text)
    except re.error:
        return False
    return True
