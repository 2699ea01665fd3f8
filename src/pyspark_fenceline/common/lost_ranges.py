"""Rows that a stream delivered and that the log lost, as a batch's offset identifies them.

Owns the identity of such rows and its JSON form. By log matching a topic id, a partition, an offset and a leader epoch
identify one record, so a replayed batch retracts exactly the same rows, wherever they are read from. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from fenceline.client.core.epoch_history import EpochStart
from fenceline.ids import TopicPartition


class EpochSpan(NamedTuple):
    """Offsets of one leader epoch."""

    start_offset: int
    end_offset_exclusive: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class LostRange:
    """Offsets of a partition that a query has read. `epochs`: of the log that was read, oldest first; the first one
    begins at or before `start_offset`. `topic_id`: None if the broker has no ids."""

    topic_partition: TopicPartition
    start_offset: int
    end_offset_exclusive: int
    epochs: tuple[EpochStart, ...]
    topic_id: str | None = None

    def __post_init__(self) -> None:
        if self.start_offset >= self.end_offset_exclusive:
            raise ValueError("the range has no offsets")
        if not self.epochs or self.epochs[0].offset > self.start_offset:
            raise ValueError(f"the epoch of offset {self.start_offset} is not known")

    def __str__(self) -> str:
        return f"offsets {self.start_offset} to {self.end_offset_exclusive - 1} of {self.topic_partition}"

    def spans(self) -> list[EpochSpan]:
        """The range split by epoch, in the order of offsets."""
        ends = [*(start.offset for start in self.epochs[1:]), self.end_offset_exclusive]
        cut = [
            EpochSpan(max(start.offset, self.start_offset), min(end, self.end_offset_exclusive), start.epoch)
            for start, end in zip(self.epochs, ends, strict=True)
        ]
        return [span for span in cut if span.start_offset < span.end_offset_exclusive]

    def part(self, start_offset: int, end_offset_exclusive: int) -> LostRange:
        """A part of the range, with the epochs that it needs."""
        first = max(index for index, start in enumerate(self.epochs) if start.offset <= start_offset)
        epochs = tuple(start for start in self.epochs[first:] if start.offset < end_offset_exclusive)
        return replace(self, start_offset=start_offset, end_offset_exclusive=end_offset_exclusive, epochs=epochs)


@dataclass(frozen=True, slots=True)
class InEvidence:
    """The rows are read from segment files: evidence that a replica kept, or its log."""


@dataclass(frozen=True, slots=True)
class InTable:
    """The rows are read from a Delta table at a version, or from files removed before it."""

    path: str
    version: int


KeptIn = InEvidence | InTable


@dataclass(frozen=True, slots=True)
class Retraction:
    """Rows that a batch retracts, and where they are read."""

    rows: LostRange
    kept_in: KeptIn


def encode_retractions(retractions: Sequence[Retraction]) -> list[dict[str, Any]]:
    """As JSON, in the order given."""
    encoded = []
    for one in retractions:
        rows = one.rows
        fields: dict[str, Any] = {
            "end_offset_exclusive": rows.end_offset_exclusive,
            "epochs": [list(start) for start in rows.epochs],
            "offset": rows.start_offset,
            "partition": rows.topic_partition.partition,
            "topic": rows.topic_partition.topic,
            "topic_id": rows.topic_id,
        }
        if isinstance(one.kept_in, InTable):
            fields["table"] = {"path": one.kept_in.path, "version": one.kept_in.version}
        encoded.append(fields)
    return encoded


def decode_retractions(encoded: Sequence[Mapping[str, Any]]) -> tuple[Retraction, ...]:
    """Inverse of `encode_retractions`. Raises KeyError, TypeError, ValueError for anything else."""
    found = []
    for fields in encoded:
        rows = LostRange(
            TopicPartition(fields["topic"], int(fields["partition"])),
            int(fields["offset"]),
            int(fields["end_offset_exclusive"]),
            tuple(EpochStart(int(epoch), int(offset)) for epoch, offset in fields["epochs"]),
            fields["topic_id"],
        )
        table = fields.get("table")
        kept_in = InEvidence() if table is None else InTable(str(table["path"]), int(table["version"]))
        found.append(Retraction(rows, kept_in))
    return tuple(found)
