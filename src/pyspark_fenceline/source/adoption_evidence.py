"""Whether the log still holds what a query read before a position without an epoch.

Owns the rule for checkpoints of Spark's Kafka source, which keep offsets only. The evidence is the log's epochs, the
timestamps of its records, the times of the checkpoint and the cluster's loss receipts. Pure; knows neither brokers nor
files. An undecided position is `Unproven`, never guessed (decision 027).

The rule: a leader only appends. So the log below the position is what was read, if the leader at the time of the plan
is one whose epoch the log still has, and no later epoch of the log begins below the position. It is not, if an epoch
that begins below the position has its first record dated after the read was committed, or if a receipt reports that a
replica lost readable records there after that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from fenceline.client.core.epoch_history import EpochStart
from fenceline.client.core.loss_receipts import LossReceipt
from pyspark_fenceline.common.log_matching import LogEpochs

CLOCKS_AGREE_MS: Final = 5_000
"""The order of two timestamps that are closer to each other is unknown: they come from different clocks."""
LIVE_MS: Final = 24 * 60 * 60 * 1000
"""Timestamps of records count as append times if the first one below the position that is at most this much older than
the plan is not in the future either. Otherwise they are event times, which prove nothing about the log."""
_READABLE: Final = ("committed", "maybe_acknowledged")


@dataclass(frozen=True, slots=True)
class Times:
    """When the batch that ends at the position was planned and committed, by the checkpoint (ms since 1970).
    `committed_ms` is None if it was not committed or the time is unknown."""

    planned_ms: int
    committed_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Dates:
    """First offsets whose records are dated at or after a time; None where there is none.

    `live_from`: a day before the plan. `doubtful_from`: right before the plan. `late_from`: right after the commit.
    """

    live_from: int | None = None
    doubtful_from: int | None = None
    late_from: int | None = None


@dataclass(frozen=True, slots=True)
class CheckpointEvidence:
    """Of one partition. `times`: a sentence if they are unknown; then `dates` is empty. `leading`: the newest epoch
    that holds a record dated before the plan. `receipts`: of the topic's name and the partition, including those of an
    earlier topic of that name."""

    offset: int
    log: LogEpochs
    times: Times | str
    dates: Dates = Dates()
    leading: EpochStart | None = None
    receipts: Sequence[LossReceipt] = ()


@dataclass(frozen=True, slots=True)
class Proven:
    """The log holds below the position what was read."""


@dataclass(frozen=True, slots=True)
class Replaced:
    """The log holds other records below the position. `offset`: where they begin; None where only "below the position"
    is known. `log_epoch`: the log's epoch before that."""

    offset: int | None
    log_epoch: int


@dataclass(frozen=True, slots=True)
class Unproven:
    """`because`: why it is undecided, as a sentence without its full stop."""

    because: str


def judge(evidence: CheckpointEvidence) -> Proven | Replaced | Unproven:
    """The verdict on a position that lies above 0 and inside the log."""
    log, times = evidence.log, evidence.times
    of_topic = [one for one in evidence.receipts if _is_of_topic(one, log)]
    against = [one for one in of_topic if _contradicts(one, evidence)]
    if isinstance(times, str):
        receipts = "; loss receipts name records below the position: " + _listed(against) if against else ""
        return Unproven(times + receipts)
    late = _late_epoch(evidence)
    if late is not None:
        is_exact = isinstance(_held(evidence, late.offset, times), Proven)
        return Replaced(late.offset if is_exact else None, log.epoch_at(late.offset - 1) if is_exact else late.epoch)
    held = _held(evidence, evidence.offset, times)
    read_by_ms = times.planned_ms if times.committed_ms is None else times.committed_ms
    after = [one for one in against if one.time_ms >= read_by_ms]
    if after:
        if isinstance(held, Proven):
            return Unproven("timestamps support the position, but a loss receipt contradicts it: " + _listed(after))
        start = min(one.start_offset for one in after)
        return Replaced(start, log.epoch_at(start - 1))
    earlier = [one for one in evidence.receipts if one not in of_topic and one.time_ms >= times.planned_ms]
    if earlier and isinstance(held, Proven):
        return Unproven("a topic of the same name with another id existed after the plan: " + _listed(earlier))
    return held


def epochs_begun_before(log: LogEpochs, dates: Dates) -> list[tuple[EpochStart, int]]:
    """The epochs that may have begun before the plan, newest first, each with the end of its records dated before the
    plan. Compaction may have left no such record, so the caller must check the log.
    """
    ends = [start.offset for start in log.epochs[1:]] + [log.end_offset]
    dated_end = log.end_offset if dates.doubtful_from is None else dates.doubtful_from
    found = [(start, min(end, dated_end)) for start, end in zip(log.epochs, ends, strict=False)]
    return [(start, end) for start, end in reversed(found) if start.offset < end]


def _held(evidence: CheckpointEvidence, offset: int, times: Times) -> Proven | Unproven:
    """Whether the log up to `offset` is what its leader had when the batch was planned."""
    log, dates = evidence.log, evidence.dates
    if log.leader_epoch < 0:
        return Unproven("the brokers keep no leader epochs for this topic")
    live_end = evidence.offset if dates.doubtful_from is None else min(dates.doubtful_from, evidence.offset)
    if dates.live_from is None or dates.live_from >= live_end:
        return Unproven(
            f"no record below the position is dated within a day before {format_time(times.planned_ms)}, when the "
            "batch was planned: the records' timestamps are not append times, or this is another log"
        )
    leading = evidence.leading
    if leading is None:
        return Unproven(
            f"no record of the log is dated before {format_time(times.planned_ms)}, when the batch was planned"
        )
    later = [start for start in log.epochs if start.epoch > leading.epoch]
    if later and later[0].offset < offset:
        first = later[0]
        return Unproven(
            f"epoch {first.epoch} of the log begins at {first.offset}, below the position, and may have begun after "
            f"{format_time(times.planned_ms)}, when the batch was planned"
        )
    known = {start.epoch for start in later}
    missing = [epoch for epoch in range(leading.epoch + 1, log.leader_epoch + 1) if epoch not in known]
    if missing:
        return Unproven(
            f"leaders elected since then left no records in the log (epochs {_spans(missing)}): the query may have "
            "read records that one of them wrote and lost"
        )
    return Proven()


def _late_epoch(evidence: CheckpointEvidence) -> EpochStart | None:
    """The epoch that begins below the position with the log's first record dated after the commit.

    Such a record in the middle of an epoch has a wrong timestamp.
    """
    late = evidence.dates.late_from
    if late is None or late >= evidence.offset:
        return None
    return next((start for start in evidence.log.epochs if start.offset == late), None)


def _is_of_topic(receipt: LossReceipt, log: LogEpochs) -> bool:
    return not receipt.topic_id or log.topic_id is None or receipt.topic_id == log.topic_id


def _contradicts(receipt: LossReceipt, evidence: CheckpointEvidence) -> bool:
    """Whether readable records below the position were lost and are not in the log again."""
    end = min(receipt.end_offset_exclusive, evidence.offset)
    if receipt.loss_class not in _READABLE or receipt.start_offset >= end:
        return False
    # The log's epochs below its start are unknown.
    places = [place for place in (receipt.start_offset, end - 1) if place >= evidence.log.start_offset]
    return any(evidence.log.epoch_at(place) not in receipt.leader_epochs for place in places)


# Formatting -----------------------------------------------------------------------------------------------------------


def format_time(time_ms: int) -> str:
    """A time as text, in UTC."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def describe_evidence(evidence: CheckpointEvidence) -> str:
    """The evidence as text, for the user who has to decide."""
    log, times = evidence.log, evidence.times
    epochs = ", ".join(f"{start.epoch} from {start.offset}" for start in log.epochs[-8:]) or "unknown"
    known = [f"the log starts at {log.start_offset} and ends at {log.end_offset}; its epochs: {epochs}"]
    if isinstance(times, Times):
        committed = "not committed" if times.committed_ms is None else f"committed at {format_time(times.committed_ms)}"
        known.append(f"the checkpoint's batch was planned at {format_time(times.planned_ms)}, {committed}")
    return "; ".join(known)


def _listed(receipts: Sequence[LossReceipt]) -> str:
    more = f" and {len(receipts) - 3} more" if len(receipts) > 3 else ""
    return ", ".join(str(one) for one in receipts[:3]) + more


def _spans(epochs: Sequence[int]) -> str:
    return str(epochs[0]) if len(epochs) == 1 else f"{epochs[0]} to {epochs[-1]}"
