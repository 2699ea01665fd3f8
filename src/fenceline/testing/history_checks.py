"""Checks a history of producers and consumers for events that cannot have happened in a correct log.

Owns the rules and nothing else: pure functions of a `History`. One pass per partition, so that memory use depends on
the largest partition, not on the run. Raises nothing for a violation: each is an `Anomaly`.

The kinds are those of Jepsen's Kafka workload, and a few that need the log of every replica. A loss that a receipt
reports (`LossRange`) is no anomaly: a record in such a range may be missing, and another may have its offset. But a
consumer that had read it must have been notified, and positioned again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from fenceline.testing.history import NO_OFFSET, ConsumerHistory, History, LogContents, Partition, Polls, Sends

SHOWN_OF_A_KIND: Final = 5


class AnomalyKind(Enum):
    LOST_WRITE = "acknowledged, but not in the log"
    LOST_READ = "read by a consumer, but not in the log"
    DUPLICATE = "sent once, but in the log twice"
    INCONSISTENT_OFFSET = "two values at one offset"
    DISAGREEMENT = "acknowledged at another offset than in the log"
    REJECTED_AND_WRITTEN = "rejected, but in the log"
    NEVER_SENT = "in the log, but never sent to this partition"
    REORDERED = "before a record that its idempotent producer sent earlier"
    POLL_SKIP = "skipped by a consumer"
    NONMONOTONIC_POLL = "a consumer went back without a seek"
    CROSSED_TRUNCATION = "truncated after a consumer had read it, which continued without a notification"
    HOLE = "offsets without a record"
    COPIES_DIFFER = "copies of a log have different ends"


@dataclass(frozen=True, slots=True)
class Anomaly:
    """`offset`: -1 if the anomaly has none. `who`: the client or copy that shows it."""

    kind: AnomalyKind
    partition: Partition
    who: str
    offset: int
    value: int
    detail: str = ""

    def __str__(self) -> str:
        topic, index = self.partition
        where = f"{topic}-{index}" + (f" offset {self.offset}" if self.offset != NO_OFFSET else "")
        return f"{self.kind.name}: {where}, value {self.value}, {self.who}: {self.detail or self.kind.value}"


@dataclass(frozen=True, slots=True)
class LossRange:
    """A truncated range that was reported as lost. `values`: the values in it, if known; then no other value may be
    missing."""

    partition: Partition
    start_offset: int
    end_offset_exclusive: int
    values: frozenset[int] | None = None

    def covers(self, offset: int, value: int) -> bool:
        """An acknowledgement without an offset is covered by its value alone."""
        if self.values is not None and value not in self.values:
            return False
        if offset == NO_OFFSET:
            return self.values is not None
        return self.start_offset <= offset < self.end_offset_exclusive


def check(history: History, losses: Iterable[LossRange] = ()) -> Iterator[Anomaly]:
    """All anomalies, partition by partition. Raises ValueError if the log of a partition is not in the history: without
    it no loss can be detected."""
    reported = list(losses)
    partitions = {each for producer in history.producers for each in producer.sends}
    partitions.update(each for consumer in history.consumers for each in consumer.polls)
    partitions.update(history.logs)
    for partition in sorted(partitions):
        if not history.logs.get(partition):
            raise ValueError(f"the final content of the log of {partition[0]}-{partition[1]} is not recorded")
        losses = [each for each in reported if each.partition == partition]
        yield from _PartitionCheck(history, partition, losses).anomalies()


def summary(anomalies: Iterable[Anomaly]) -> str:
    """The number of each kind, and the first of each; empty if there are none."""
    counts: Counter[AnomalyKind] = Counter()
    lines: list[str] = []
    for each in anomalies:
        counts[each.kind] += 1
        if counts[each.kind] <= SHOWN_OF_A_KIND:
            lines.append(str(each))
    if not counts:
        return ""
    return "\n".join([", ".join(f"{count} {kind.name}" for kind, count in counts.most_common()), *lines])


class _PartitionCheck:
    """The check of one partition."""

    def __init__(self, history: History, partition: Partition, losses: Sequence[LossRange]) -> None:
        self._partition = partition
        self._losses = losses
        self._producers = [(each, each.sends[partition]) for each in history.producers if partition in each.sends]
        self._consumers = [(each, each.polls[partition]) for each in history.consumers if partition in each.polls]
        self._copies = history.logs[partition]
        self._at: dict[int, int] = {}
        """Offset -> value, from the first copy that has it."""
        self._where: dict[int, int] = {}
        """Value -> its lowest offset in any copy."""
        for contents in self._copies.values():
            for offset, value in zip(contents.offsets, contents.values, strict=True):
                self._at.setdefault(offset, value)
                self._where[value] = min(offset, self._where.get(value, offset))
        self._offsets = sorted(self._at)
        self._may_repeat = {
            value for producer, sends in self._producers if not producer.is_idempotent for value in sends.values
        }

    def anomalies(self) -> Iterator[Anomaly]:
        for name, contents in self._copies.items():
            yield from self._copy(name, contents)
        yield from self._ends()
        sent: set[int] = set()
        for producer, sends in self._producers:
            sent.update(sends.values)
            yield from self._acknowledgements(producer.name, sends)
            yield from self._rejections(producer.name, sends)
            if producer.is_idempotent:
                yield from self._order(producer.name, sends)
        for value, offset in self._where.items():
            if value not in sent:
                yield self._anomaly(AnomalyKind.NEVER_SENT, "log", offset, value)
        for consumer, polls in self._consumers:
            yield from self._polls(consumer, polls)

    # -- copies of the log ---------------------------------------------------------------------------------------------

    def _copy(self, name: str, contents: LogContents) -> Iterator[Anomaly]:
        first_at: dict[int, int] = {}
        expected: int | None = None
        for offset, value in zip(contents.offsets, contents.values, strict=True):
            if expected is not None and offset > expected:
                yield self._anomaly(AnomalyKind.HOLE, name, expected, value, f"{offset} comes after {expected - 1}")
            elif expected is not None and offset < expected:
                yield self._anomaly(
                    AnomalyKind.INCONSISTENT_OFFSET, name, offset, value, f"{offset} is in the log twice"
                )
            expected = offset + 1
            known = self._at[offset]
            if known != value and not self._is_reported(offset, value):
                yield self._anomaly(
                    AnomalyKind.INCONSISTENT_OFFSET, name, offset, value, f"another copy has {known} at this offset"
                )
            before = first_at.setdefault(value, offset)
            if before != offset and value not in self._may_repeat:
                yield self._anomaly(AnomalyKind.DUPLICATE, name, offset, value, f"it is at offset {before}, too")

    def _ends(self) -> Iterator[Anomaly]:
        ends = {name: contents.offsets[-1] + 1 if contents.offsets else 0 for name, contents in self._copies.items()}
        if len(set(ends.values())) > 1:
            shortest = min(ends, key=lambda name: ends[name])
            all_ends = ", ".join(f"{name} at {end}" for name, end in ends.items())
            yield self._anomaly(AnomalyKind.COPIES_DIFFER, shortest, ends[shortest], NO_OFFSET, f"ends: {all_ends}")

    # -- producers -----------------------------------------------------------------------------------------------------

    def _acknowledgements(self, name: str, sends: Sends) -> Iterator[Anomaly]:
        acknowledged_at: dict[int, int] = {}
        for value, offset in zip(sends.acknowledged_values, sends.acknowledged_offsets, strict=True):
            found = self._where.get(value)
            before = acknowledged_at.setdefault(value, offset)
            if NO_OFFSET not in (before, offset) and before != offset:
                yield self._anomaly(
                    AnomalyKind.DISAGREEMENT, name, offset, value, f"it was first acknowledged at {before}"
                )
            is_reported = self._is_reported(offset, value)
            if found is None:
                if not is_reported:
                    yield self._anomaly(AnomalyKind.LOST_WRITE, name, offset, value)
                continue
            for copy, contents in self._copies.items():
                if not _holds(contents, found):
                    yield self._anomaly(AnomalyKind.LOST_WRITE, copy, found, value, "another copy has it")
            is_there = offset == NO_OFFSET or self._at.get(offset) == value
            if not is_there and not is_reported and value not in self._may_repeat:
                yield self._anomaly(AnomalyKind.DISAGREEMENT, name, offset, value, f"it is at {found}")

    def _rejections(self, name: str, sends: Sends) -> Iterator[Anomaly]:
        for value in sends.rejected:
            if value in self._where:
                yield self._anomaly(AnomalyKind.REJECTED_AND_WRITTEN, name, self._where[value], value)

    def _order(self, name: str, sends: Sends) -> Iterator[Anomaly]:
        last_offset, last_value = -1, 0
        for value in sends.values:
            offset = self._where.get(value)
            if offset is None:
                continue
            if offset < last_offset:
                yield self._anomaly(AnomalyKind.REORDERED, name, offset, value, f"{last_value} is at {last_offset}")
            else:
                last_offset, last_value = offset, value

    # -- consumers -----------------------------------------------------------------------------------------------------

    def _polls(self, consumer: ConsumerHistory, polls: Polls) -> Iterator[Anomaly]:
        position: int | None = None  # the offset of the next record; None: anywhere
        lost: tuple[int, int] | None = None  # the first truncated record that it read, unless it went back
        for offset, value in zip(polls.offsets, polls.values, strict=True):
            if offset < 0:
                position = value
                if lost is not None and position <= lost[0]:
                    lost = None
                continue
            if position is not None and offset < position:
                yield self._anomaly(
                    AnomalyKind.NONMONOTONIC_POLL, consumer.name, offset, value, f"its position was {position}"
                )
            elif position is not None:
                left_out = self._first_from(position)
                if left_out is not None and left_out < offset:
                    yield self._anomaly(
                        AnomalyKind.POLL_SKIP,
                        consumer.name,
                        left_out,
                        self._at[left_out],
                        f"its position was {position}, the next record was {offset}",
                    )
            position = offset + 1
            known = self._at.get(offset)
            if known == value:
                # A log with this record never had the lost one before it.
                if lost is not None and lost[0] < offset:
                    yield self._anomaly(
                        AnomalyKind.CROSSED_TRUNCATION, consumer.name, *lost, f"it continued to {offset}"
                    )
                    lost = None
            elif self._is_reported(offset, value):
                lost = lost or (offset, value)
            elif known is None:
                yield self._anomaly(AnomalyKind.LOST_READ, consumer.name, offset, value)
            else:
                yield self._anomaly(
                    AnomalyKind.INCONSISTENT_OFFSET, consumer.name, offset, value, f"the log has {known} at this offset"
                )

    def _first_from(self, position: int) -> int | None:
        if position in self._at:
            return position
        index = bisect_left(self._offsets, position)
        return self._offsets[index] if index < len(self._offsets) else None

    # -- shared --------------------------------------------------------------------------------------------------------

    def _is_reported(self, offset: int, value: int) -> bool:
        return any(each.covers(offset, value) for each in self._losses)

    def _anomaly(self, kind: AnomalyKind, who: str, offset: int, value: int, detail: str = "") -> Anomaly:
        return Anomaly(kind, self._partition, who, offset, value, detail)


def _holds(contents: LogContents, offset: int) -> bool:
    offsets = contents.offsets
    if not offsets or not offsets[0] <= offset <= offsets[-1]:
        return False
    # In a log without holes the index is the distance from the first offset.
    guess = offset - offsets[0]
    if guess < len(offsets) and offsets[guess] == offset:
        return True
    index = bisect_left(offsets, offset)
    return index < len(offsets) and offsets[index] == offset
