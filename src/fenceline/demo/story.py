"""What happened in one demo, for the page: who led when, what was lost, who noticed, what the table held.

Owns the shapes only. Times are seconds since the cluster was up; offsets are exclusive at their ends; ranges are of the
demo's one topic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from fenceline.demo.checks import Check


@dataclass(frozen=True, slots=True)
class Reign:
    """One leader epoch of one partition, from its election to the next one.

    `start_offset` to `end_offset` is what this epoch wrote and the log still holds at the end of the story; equal where
    that is nothing. `to_s` is None while it lasts. `unclean`: elected though it lacked committed records.
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
class Lost:
    """A range that was cut off a log, by the receipt of the replica that cut it.

    `told_s`: when the consumer reported it, None where it did not; `consumer_words` is what it said.
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
    told_s: float | None = None
    consumer_words: str = ""


@dataclass(frozen=True, slots=True)
class Moment:
    """Something that a person should see on the way."""

    at_s: float
    text: str


class Rows(StrEnum):
    """How rows of a table stand to the log."""

    RIGHT = "right"
    """The log has these records."""
    STALE = "stale"
    """The log has other records at these offsets, or none."""
    MISSING = "missing"
    """The log has records that the table lacks."""


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive offsets of one partition that stand to the log in one way, as written in one epoch."""

    partition: int
    start_offset: int
    end_offset: int
    epoch: int
    rows: Rows

    @property
    def count(self) -> int:
        return self.end_offset - self.start_offset


@dataclass(frozen=True, slots=True)
class TableState:
    """The raw table at one moment, held against the log as it was at the end of the loss."""

    name: str
    spans: Sequence[Span]

    def rows(self, kind: Rows) -> int:
        return sum(span.count for span in self.spans if span.rows is kind)


@dataclass(frozen=True, slots=True)
class Sample:
    """Totals so far. `in_log`: what may be read; less after a loss."""

    at_s: float
    in_log: int
    in_table: int
    in_aggregate: int


@dataclass(frozen=True, slots=True)
class Connector:
    """What Spark's own Kafka connector made of the same stream. `ended_with`: its error, if it had one."""

    rows: int
    stale_rows: int
    missing_rows: int
    ended_with: str = ""


@dataclass(slots=True)
class Story:
    """Filled in while the demo runs.

    `connector` is None when it did not run, and `connector_skipped` says why. `isolated`: from when to when the leader
    was cut off.
    """

    topic: str
    brokers: int
    reigns: list[Reign] = field(default_factory=list)
    lost: list[Lost] = field(default_factory=list)
    moments: list[Moment] = field(default_factory=list)
    isolated: tuple[float, float] | None = None
    before: TableState | None = None
    after: TableState | None = None
    repair_words: str = ""
    samples: list[Sample] = field(default_factory=list)
    produced: int = 0
    producing_s: float = 0.0
    streaming_s: float = 0.0
    total_s: float = 0.0
    connector: Connector | None = None
    connector_skipped: str = ""
    checks: list[Check] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return bool(self.checks) and all(check.passed for check in self.checks)

    @property
    def lost_records(self) -> int:
        return sum(lost.records for lost in self.lost)
