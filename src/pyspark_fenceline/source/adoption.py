"""Continuing a query from a checkpoint of Spark's own Kafka source.

Owns the checks before the first batch. Such a checkpoint has offsets only, so a log that was truncated below them and
has grown again looks like one that was not. This module collects the log's epochs, the timestamps of its
records, the times of the checkpoint and the cluster's loss receipts; `adoption_evidence` judges them. A position that
they do not decide ends the query, unless its options accept it. After the first batch the checkpoint has epochs.

Apache Kafka has no loss receipts; the rest is the same.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from fenceline.client.core.epoch_history import EpochStart
from fenceline.client.core.loss_receipts import LossReceipt
from fenceline.errors import OperatorError
from fenceline.ids import TopicPartition
from pyspark_fenceline.common.cluster import SourceCluster
from pyspark_fenceline.common.log_epochs import LogEpochsCache
from pyspark_fenceline.common.offsets import SourceOffset
from pyspark_fenceline.common.query_state import StateHint
from pyspark_fenceline.source.adoption_evidence import (
    CLOCKS_AGREE_MS,
    LIVE_MS,
    CheckpointEvidence,
    Dates,
    Proven,
    Replaced,
    Times,
    Unproven,
    describe_evidence,
    epochs_begun_before,
    judge,
)
from pyspark_fenceline.source.adoption_times import times_of
from pyspark_fenceline.source.history import Diverged, Holds, Verdict
from pyspark_fenceline.source.ranges import Snapshot, recreated_topics

_log = logging.getLogger("pyspark_fenceline")
CODE: Final = "CHECKPOINT_UNPROVEN"
OPTION: Final = "onUnproven"
_ADVICE: Final = (
    "If the source has no option checkpointLocation, set it to the query's checkpoint: its times may prove the "
    "positions. Otherwise compare the query's output with the log (docs/audit.md). If it is correct, set the option "
    'onUnproven to "accept" for one start: the query continues at these positions. If not, start with a new checkpoint.'
)
_NO_WAY_BACK: Final = (
    "the checkpoint was written by Spark's own Kafka source. The first batch adds leader epochs and topic ids, and "
    "then Spark's source can no longer read it. `fenceline checkpoint export` writes a checkpoint that it can read "
    '("Coming from Spark\'s Kafka connector" in docs/spark.md)'
)


FindRecords = Callable[[Mapping[TopicPartition, tuple[int, int]]], Collection[TopicPartition]]
"""Returns the partitions whose range of offsets (end exclusive) holds a record."""
_SEARCHED_OFFSETS: Final = 1000
"""Number of offsets of an epoch that are searched for a record; an epoch without one there (compaction) is skipped."""


class UnprovenCheckpointError(OperatorError):
    """It is unknown whether the log holds what the checkpoint's query has read. `reasons`: by partition."""

    def __init__(self, reasons: Mapping[TopicPartition, str]) -> None:
        self.reasons = dict(reasons)
        super().__init__(_describe(reasons), _ADVICE)

    def __reduce__(self) -> tuple[type[UnprovenCheckpointError], tuple[dict[TopicPartition, str]]]:
        return type(self), (self.reasons,)


def _describe(reasons: Mapping[TopicPartition, str]) -> str:
    shown = "; ".join(reason for _, reason in sorted(reasons.items())[:3])
    more = f"; and {len(reasons) - 3} more partitions" if len(reasons) > 3 else ""
    names = json.dumps({"partitions": [str(tp) for tp in sorted(reasons)]})
    what = "The records before the checkpoint's positions are not proven to be in the log"
    return f"{what}: {shown}{more}. {CODE} {names}"


class Adoption:
    """Judges one query's checkpoint when the query starts."""

    def __init__(
        self,
        cluster: SourceCluster,
        hint: StateHint,
        read_receipts: Callable[[], Sequence[LossReceipt]],
        find_records: FindRecords,
        *,
        accepts_unproven: bool,
    ) -> None:
        self._cluster = cluster
        self._hint = hint
        self._read_receipts = read_receipts
        self._find_records = find_records
        self._accepts_unproven = accepts_unproven
        self._is_announced = False
        self.accepted: dict[TopicPartition, int] = {}
        """Positions that were accepted without proof at the last call."""

    def verdicts(
        self, held: SourceOffset, snapshot: Snapshot, lost: Collection[TopicPartition] = ()
    ) -> dict[TopicPartition, Verdict]:
        """Verdicts on the positions of Spark's source. None for partitions in `lost`, and for positions that other
        rules decide: nothing was read, or they lie outside the log. Raises `UnprovenCheckpointError`.
        """
        if not self._is_announced:
            self._is_announced = True
            _log.warning("%s", _NO_WAY_BACK)
        recreated = recreated_topics(held, snapshot)
        inside = {
            tp: position.offset
            for tp, position in held.positions.items()
            if tp in snapshot.ends
            and tp not in lost
            and tp.topic not in recreated
            and max(snapshot.starts[tp], 1) <= position.offset <= snapshot.ends[tp].offset
        }
        if not inside:
            return {}
        verdicts: dict[TopicPartition, Verdict] = {}
        unproven: dict[TopicPartition, str] = {}
        for tp, evidence in self._collect(inside, held, snapshot).items():
            match judge(evidence):
                case Proven():
                    verdicts[tp] = Holds()
                case Replaced(None, log_epoch):
                    verdicts[tp] = Diverged(None, log_epoch)
                case Replaced(offset, log_epoch):
                    assert offset is not None, "the case above"
                    verdicts[tp] = Diverged(offset, log_epoch, offset)
                case Unproven(because):
                    unproven[tp] = f"{tp} at {evidence.offset}: {because} ({describe_evidence(evidence)})"
        if unproven and not self._accepts_unproven:
            raise UnprovenCheckpointError(unproven)
        self.accepted = {tp: inside[tp] for tp in unproven}
        if unproven:
            _log.warning("continuing, because the query's options allow it: %s", _describe(unproven))
        return verdicts

    def _collect(
        self, inside: Mapping[TopicPartition, int], held: SourceOffset, snapshot: Snapshot
    ) -> dict[TopicPartition, CheckpointEvidence]:
        logs = LogEpochsCache(self._cluster).fetch({tp: snapshot.topic_ids[tp.topic] for tp in inside})
        found = times_of(self._hint, held)
        receipts: dict[TopicPartition, list[LossReceipt]] = {}
        for one in self._read_receipts():
            receipts.setdefault(TopicPartition(one.topic, one.partition), []).append(one)
        times = dict.fromkeys(inside, found) if isinstance(found, str) else {tp: found[tp] for tp in inside}
        dates = self._dates({tp: each for tp, each in times.items() if isinstance(each, Times)})
        leading = self._leading({tp: epochs_begun_before(logs[tp], each) for tp, each in dates.items()})
        return {
            tp: CheckpointEvidence(
                offset, logs[tp], times[tp], dates.get(tp, Dates()), leading.get(tp), receipts.get(tp, ())
            )
            for tp, offset in inside.items()
        }

    def _leading(
        self, epochs: Mapping[TopicPartition, list[tuple[EpochStart, int]]]
    ) -> dict[TopicPartition, EpochStart]:
        """The first of each partition's epochs that holds a record."""
        leading: dict[TopicPartition, EpochStart] = {}
        left = {tp: iter(each) for tp, each in epochs.items()}
        while left:
            asked = {tp: one for tp, each in left.items() if (one := next(each, None)) is not None}
            ranges = {
                tp: (start.offset, min(end, start.offset + _SEARCHED_OFFSETS)) for tp, (start, end) in asked.items()
            }
            found = self._find_records(ranges) if ranges else ()
            leading |= {tp: asked[tp][0] for tp in found}
            left = {tp: left[tp] for tp in asked if tp not in leading}
        return leading

    def _dates(self, times: Mapping[TopicPartition, Times]) -> dict[TopicPartition, Dates]:
        live = self._first_at({tp: each.planned_ms - LIVE_MS for tp, each in times.items()})
        doubtful = self._first_at({tp: each.planned_ms - CLOCKS_AGREE_MS for tp, each in times.items()})
        late = self._first_at(
            {tp: each.committed_ms + CLOCKS_AGREE_MS for tp, each in times.items() if each.committed_ms is not None}
        )
        return {tp: Dates(live[tp], doubtful[tp], late.get(tp)) for tp in times}

    def _first_at(self, times_ms: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int | None]:
        """Negative timestamps have a special meaning in a request."""
        return self._cluster.offsets_at({tp: max(0, at) for tp, at in times_ms.items()}) if times_ms else {}
