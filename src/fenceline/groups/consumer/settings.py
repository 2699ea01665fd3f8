"""Broker settings for groups of the consumer protocol. Owns names, defaults and units; reads no file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from fenceline.errors import OperatorError
from fenceline.groups.consumer.assignors import RANGE, UNIFORM

SESSION_TIMEOUT_CONFIG: Final = "consumer.session.timeout.ms"
HEARTBEAT_INTERVAL_CONFIG: Final = "consumer.heartbeat.interval.ms"
ASSIGNMENT_INTERVAL_CONFIG: Final = "consumer.assignment.interval.ms"


class MigrationPolicy(StrEnum):
    """In which direction a group with members may change its protocol."""

    DISABLED = "disabled"
    DOWNGRADE = "downgrade"
    UPGRADE = "upgrade"
    BIDIRECTIONAL = "bidirectional"

    @property
    def allows_upgrade(self) -> bool:
        return self in (MigrationPolicy.UPGRADE, MigrationPolicy.BIDIRECTIONAL)

    @property
    def allows_downgrade(self) -> bool:
        return self in (MigrationPolicy.DOWNGRADE, MigrationPolicy.BIDIRECTIONAL)


@dataclass(frozen=True, slots=True)
class Interval:
    """A time in ms, and the bounds for a group's own value."""

    default_ms: int
    least_ms: int
    most_ms: int

    def of_group(self, configs: Mapping[str, str], name: str) -> int:
        """The effective value for a group with these configs: its own value within the bounds, or the default."""
        value = configs.get(name)
        if value is None:
            return self.default_ms
        try:
            return min(max(int(value), self.least_ms), self.most_ms)
        except ValueError:
            return self.default_ms


_ASSIGNORS: Final[Mapping[str, str]] = {
    name: assignor
    for assignor in (UNIFORM, RANGE)
    for name in (assignor, f"org.apache.kafka.coordinator.group.assignor.{assignor.capitalize()}Assignor")
}
"""By all names that Kafka's configuration accepts."""


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """Kafka's broker properties `group.consumer.*`, with Kafka's defaults."""

    session: Interval = Interval(45_000, 45_000, 60_000)
    heartbeat: Interval = Interval(5_000, 5_000, 15_000)
    assignment: Interval = Interval(1_000, 0, 15_000)
    """Minimum time between two targets of a group: changes in between are combined."""
    max_size: int = 2**31 - 1
    assignors: tuple[str, ...] = (UNIFORM, RANGE)
    """By name; the first is the default."""
    migration_policy: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL
    regex_refresh_interval_ms: int = 600_000

    @staticmethod
    def from_lookup(get: Callable[[str], object | None]) -> ConsumerSettings:
        """Settings from a lookup of Kafka's property names; None is the default. Raises ValueError, OperatorError."""
        base = ConsumerSettings()

        def number(name: str, default: int) -> int:
            value = get(f"group.consumer.{name}")
            return default if value is None else int(str(value))

        def interval(name: str, base: Interval) -> Interval:
            return Interval(
                number(name, base.default_ms), number(f"min.{name}", base.least_ms), number(f"max.{name}", base.most_ms)
            )

        assignors = get("group.consumer.assignors")
        if isinstance(assignors, str):
            names = tuple(name.strip() for name in assignors.split(",") if name.strip())
        else:
            names = tuple(str(name) for name in assignors) if isinstance(assignors, list | tuple) else base.assignors
        policy = get("group.consumer.migration.policy")
        return ConsumerSettings(
            session=interval("session.timeout.ms", base.session),
            heartbeat=interval("heartbeat.interval.ms", base.heartbeat),
            assignment=interval("assignment.interval.ms", base.assignment),
            max_size=number("max.size", base.max_size),
            assignors=tuple(_assignor(name) for name in names) or base.assignors,
            migration_policy=base.migration_policy if policy is None else MigrationPolicy(str(policy).lower()),
            regex_refresh_interval_ms=number("regex.refresh.interval.ms", base.regex_refresh_interval_ms),
        )


def _assignor(name: str) -> str:
    found = _ASSIGNORS.get(name)
    if found is None:
        raise OperatorError(
            f"group.consumer.assignors contains {name!r}, which this node does not support",
            f"Supported assignors: {UNIFORM}, {RANGE}.",
        )
    return found
