"""Broker settings for groups. Owns names, defaults and units; reads no file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from fenceline.groups.consumer.settings import ConsumerSettings

DEFAULT_PARTITION_COUNT: Final = 50
NEW_MEMBER_JOIN_TIMEOUT_MS: Final = 5 * 60 * 1000
"""A member that never got its id cannot send heartbeats; its parked JoinGroup ends after this time."""


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Kafka's broker properties of the same meaning, with Kafka's defaults."""

    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    max_size: int = 2**31 - 1
    initial_rebalance_delay_ms: int = 3_000
    new_member_join_timeout_ms: int = NEW_MEMBER_JOIN_TIMEOUT_MS
    offset_metadata_max_chars: int = 4_096
    """`offset.metadata.max.bytes`; Kafka counts UTF-16 code units."""
    offsets_retention_ms: int = 7 * 24 * 60 * 60 * 1000
    offsets_retention_check_interval_ms: int = 600_000
    commit_timeout_ms: int = 5_000
    """`offsets.commit.timeout.ms`: how long a request waits for its write to be committed."""
    consumer: ConsumerSettings = field(default_factory=ConsumerSettings)
    """Of groups of the consumer protocol."""

    @staticmethod
    def from_lookup(get: Callable[[str], object | None]) -> GroupSettings:
        """Settings from a lookup of Kafka's property names; None is the default. Raises ValueError, OperatorError."""
        base = GroupSettings()

        def number(name: str, default: int, scale: int = 1) -> int:
            value = get(name)
            return default if value is None else int(str(value)) * scale

        return GroupSettings(
            min_session_timeout_ms=number("group.min.session.timeout.ms", base.min_session_timeout_ms),
            max_session_timeout_ms=number("group.max.session.timeout.ms", base.max_session_timeout_ms),
            max_size=number("group.max.size", base.max_size),
            initial_rebalance_delay_ms=number("group.initial.rebalance.delay.ms", base.initial_rebalance_delay_ms),
            offset_metadata_max_chars=number("offset.metadata.max.bytes", base.offset_metadata_max_chars),
            offsets_retention_ms=number("offsets.retention.minutes", base.offsets_retention_ms, scale=60_000),
            offsets_retention_check_interval_ms=number(
                "offsets.retention.check.interval.ms", base.offsets_retention_check_interval_ms
            ),
            commit_timeout_ms=number("offsets.commit.timeout.ms", base.commit_timeout_ms),
            consumer=ConsumerSettings.from_lookup(get),
        )
