"""The data of the demo's page: leaders, lost ranges, events, the state of the raw table, the checks.

Owns the data classes only. Times are seconds since the start of the timeline; end offsets are exclusive; ranges are of
the demo's topic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from fenceline.demo.checks import Check


@dataclass(frozen=True, slots=True)
class LeadershipPeriod:
    """One leader epoch of one partition, from its election to the next one.

    `start_offset` to `end_offset` is what this epoch wrote and the log holds at the end of the demo; they are equal if
    that is nothing. `to_s` is None for the current leader. `unclean`: elected although it lacked committed records.
    """

    partition: int
    epoch: int
    leader: int
    from_s: float
    to_s: float | None
    start_offset: int
    end_offset: int
    unclean: bool = False


@dataclass(frozen=True, slots=True)
class ReportedRange:
    """A range that was truncated, from the receipt of the replica that truncated it.

    `reported_s`: when the consumer reported it, None if it did not; `consumer_message` is the consumer's error message.
    """

    partition: int
    start_offset: int
    end_offset: int
    epoch: int
    records: int
    receipt: str
    loss_class: str
    cause: str
    replica: int
    reported_s: float | None = None
    consumer_message: str = ""


@dataclass(frozen=True, slots=True)
class Event:
    """An entry of the timeline."""

    at_s: float
    text: str


class RowState(StrEnum):
    """The result of comparing rows of a table with the log."""

    MATCHING = "matching"
    """The log has these records."""
    STALE = "stale"
    """The log has other records at these offsets, or none."""
    MISSING = "missing"
    """The log has records that the table lacks."""


@dataclass(frozen=True, slots=True)
class ReportedSpan:
    """Consecutive offsets of one partition and epoch with the same state."""

    partition: int
    start_offset: int
    end_offset: int
    epoch: int
    state: RowState

    @property
    def count(self) -> int:
        return self.end_offset - self.start_offset


@dataclass(frozen=True, slots=True)
class ReportedTable:
    """The raw table at one version, compared with the log after the loss."""

    name: str
    spans: Sequence[ReportedSpan]

    def count(self, state: RowState) -> int:
        return sum(span.count for span in self.spans if span.state is state)


@dataclass(frozen=True, slots=True)
class Sample:
    """Totals at one time. `in_log`: readable records; it falls at a loss."""

    at_s: float
    in_log: int
    in_table: int
    in_aggregate: int


@dataclass(frozen=True, slots=True)
class ConnectorResult:
    """The table that Spark's own Kafka connector wrote. `error`: why its query failed, if it did."""

    rows: int
    stale_rows: int
    missing_rows: int
    error: str = ""


@dataclass(slots=True)
class DemoReport:
    """Filled in while the demo runs.

    `connector` is None if it did not run; `connector_skipped` is the reason. `isolated`: start and end of the leader's
    isolation.
    """

    topic: str
    brokers: int
    leadership_periods: list[LeadershipPeriod] = field(default_factory=list)
    lost: list[ReportedRange] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    isolated: tuple[float, float] | None = None
    before: ReportedTable | None = None
    after: ReportedTable | None = None
    repair_text: str = ""
    published_text: str = ""
    """What was written into the topic of the aggregate."""
    samples: list[Sample] = field(default_factory=list)
    produced: int = 0
    producing_s: float = 0.0
    streaming_s: float = 0.0
    total_s: float = 0.0
    connector: ConnectorResult | None = None
    connector_skipped: str = ""
    checks: list[Check] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return bool(self.checks) and all(check.passed for check in self.checks)

    @property
    def lost_records(self) -> int:
        return sum(lost.records for lost in self.lost)
