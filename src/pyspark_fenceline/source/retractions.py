"""Retracts rows that a stream has delivered and that its logs lost (`includeRetractions`).

Owns which rows these are, and what a batch reads so that it delivers exactly what its offsets define. The end offset of
a batch after a truncation identifies the rows that it retracts. A batch that is replayed after its own records were
lost reads them from where they are kept, and the next batch retracts them. So a sum over the stream's rows is correct
after every batch, and a replay returns the same rows or ends the query. Pure: never reads rows, and never talks to a
broker (`retractor`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from fenceline.errors import OperatorError
from fenceline.ids import TopicPartition
from pyspark_fenceline.common.lost_ranges import LostRange
from pyspark_fenceline.common.offsets import PartitionPosition, SourceOffset
from pyspark_fenceline.common.planning import PlannedRange
from pyspark_fenceline.errors import DataLossError, Loss, LossKind
from pyspark_fenceline.source.batches import batch_start
from pyspark_fenceline.source.ranges import Comparison, range_between

BATCH_IS_EXACT: Final = (
    "It happened while the batch was being read. Nothing of the batch is committed: start the query again. It reads "
    "the lost records of the batch from where they are kept, and retracts them with the next batch."
)
_ANEW: Final = "start the query with a new checkpointLocation and an empty sink"


def delivered_since(held: SourceOffset) -> Mapping[TopicPartition, int]:
    """The offset from which on all records were delivered. Raises `OperatorError` for a checkpoint without it."""
    if held.since is None:
        raise OperatorError(
            "The checkpoint was made without includeRetractions: it does not record which rows were delivered",
            f"To retract rows, {_ANEW}.",
        )
    return held.since


def lost_rows(held: SourceOffset, losses: Sequence[Loss]) -> tuple[LostRange, ...]:
    """Rows before the position of the query that the logs no longer hold, by the truncations among `losses`.

    Raises `DataLossError` if they are not known.
    """
    since = delivered_since(held)
    found: list[LostRange] = []
    for loss in losses:
        if loss.kind is not LossKind.LOG_TRUNCATED:
            continue
        tp = TopicPartition(loss.topic, loss.partition)
        if loss.divergent_offset is None:
            raise cannot_retract(losses, f"it is not known which rows of {tp} were lost")
        if loss.divergent_offset <= loss.log_start_offset and since[tp] < loss.log_start_offset:
            # A leader knows only the log that it still has: the logs may diverge anywhere below.
            raise cannot_retract(
                losses,
                f"the log of {tp} now starts at {loss.log_start_offset}, and it is not known which of the rows from "
                f"{since[tp]} up to there were lost",
            )
        rows = _range_of(tp, held, max(loss.divergent_offset, since[tp]), losses)
        found += [rows] if rows is not None else []
    return tuple(found)


def _range_of(tp: TopicPartition, held: SourceOffset, start: int, losses: Sequence[Loss]) -> LostRange | None:
    """The rows from `start` to a position. Raises `DataLossError` if their epochs are not known."""
    position = held.positions[tp]
    if start >= position.offset:
        return None
    if not position.epochs or position.epochs[0].offset > start:
        raise cannot_retract(
            losses, f"the leader epochs of offsets {start} to {position.offset - 1} of {tp} are not known"
        )
    whole = LostRange(tp, start, position.offset, position.epochs, held.topic_ids.get(tp.topic))
    return whole.part(start, position.offset)


def cannot_retract(losses: Sequence[Loss], why: str, ways: Iterable[str] = ()) -> DataLossError:
    """The error of a query that must retract rows and cannot."""
    return DataLossError(losses, f"Rows cannot be retracted: {why}. Options: {'; '.join((*ways, _ANEW))}.")


def since_after(
    held: SourceOffset, positions: Mapping[TopicPartition, PartitionPosition], losses: Sequence[Loss]
) -> dict[TopicPartition, int]:
    """`SourceOffset.since` of the next batch: after a rewind records count as delivered from its target on."""
    since = dict(delivered_since(held))
    for loss in losses:
        tp = TopicPartition(loss.topic, loss.partition)
        if tp in since:
            since[tp] = min(since[tp], loss.resume_offset)
    return {tp: since.get(tp, 0) for tp in positions}


@dataclass(frozen=True, slots=True)
class ExactBatch:
    """What a batch reads. `ranges`: from the logs; `lost`: records lost since it was planned, to be read from where
    they are kept. `losses`: found at its beginning or its end."""

    ranges: list[PlannedRange]
    lost: tuple[LostRange, ...]
    losses: list[Loss]


def plan_exact_batch(first: SourceOffset, last: SourceOffset, begin: Comparison, finish: Comparison) -> ExactBatch:
    """All records between two offsets as they were when the batch was planned, by the comparisons of its `batch_start`
    and of `last` with the logs. Raises `DataLossError` if it is not known which of them are lost."""
    begins = batch_start(first, last)
    found = {TopicPartition(loss.topic, loss.partition): loss for loss in begin.losses}
    found |= {
        TopicPartition(loss.topic, loss.partition): loss
        for loss in finish.losses
        if loss.kind is not LossKind.OFFSETS_EXPIRED
    }
    losses = list(found.values())
    ranges: list[PlannedRange] = []
    lost: list[LostRange] = []
    for tp, end in last.positions.items():
        start = begins.positions.get(tp, PartitionPosition(0))
        loss = found.get(tp)
        if end.offset <= start.offset or (loss is not None and loss.kind is not LossKind.LOG_TRUNCATED):
            continue
        cut = end.offset
        if loss is not None:
            if loss.divergent_offset is None:
                raise cannot_retract(losses, f"it is not known which rows of {tp} were lost")
            cut = min(max(loss.divergent_offset, start.offset), end.offset)
        if cut > start.offset:
            ranges.append(range_between(tp, start, end.at(cut)))
        rows = _range_of(tp, last, cut, losses)
        lost += [rows] if rows is not None else []
    return ExactBatch(ranges, tuple(lost), losses)
