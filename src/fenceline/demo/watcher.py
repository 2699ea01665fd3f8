"""A consumer of all partitions, as an application would run it, which reports truncations of the log.

Owns its thread and the reported truncations. No reset policy hides a truncation (`auto.offset.reset=none`): the
callback of `on.truncation` records the error and rewinds to the offset of the divergence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from fenceline.client import Consumer, LogTruncationError
from fenceline.demo.report import ReportedRange
from fenceline.demo.timeline import Timeline
from fenceline.demo.worker import Worker
from fenceline.errors import FencelineError
from fenceline.ids import TopicPartition
from fenceline.losses.receipt import Receipt

if TYPE_CHECKING:
    import pyarrow as pa

_POLL_MS: Final = 200
_RECEIPTS_WITHIN_MS: Final = 5_000


@dataclass(slots=True)
class ReportedTruncation:
    """A truncation with the time of the report; once the watcher has stopped, the error has its receipts."""

    at_s: float
    error: LogTruncationError

    def covers(self, receipt: Receipt) -> bool:
        """Whether records of the receipt are in the truncated range."""
        error = self.error
        is_same = (error.topic, error.partition) == (receipt.topic, receipt.partition)
        return (
            is_same
            and error.divergent_offset < receipt.end_offset_exclusive
            and receipt.start_offset < error.truncated_from
        )


class Watcher(Worker):
    """Reads until it is stopped; adds each truncation to the timeline."""

    def __init__(self, bootstrap: str, topic: str, partitions: Iterable[int], timeline: Timeline) -> None:
        super().__init__("watcher")
        self._bootstrap = bootstrap
        self._partitions = [TopicPartition(topic, partition) for partition in partitions]
        self._timeline = timeline
        self.ends: dict[int, int] = {tp.partition: 0 for tp in self._partitions}
        """Position (exclusive) in each partition."""
        self.truncations: list[ReportedTruncation] = []

    def work(self) -> None:
        settings: dict[str, Any] = {
            "auto.offset.reset": "none",
            "on.truncation": self._on_truncation,
            "metadata.max.age.ms": 1000,
        }
        with Consumer(self._bootstrap, **settings) as consumer:
            consumer.assign(self._partitions)
            consumer.seek_to_beginning(self._partitions)
            while not self.should_stop:
                self._update_positions(consumer.poll_arrow(_POLL_MS))
            for each in self.truncations:
                self._add_receipts(consumer, each)

    def has_read(self, ends: Mapping[int, int]) -> bool:
        """Whether it has reached these end offsets (exclusive)."""
        return all(self.ends.get(partition, 0) >= end for partition, end in ends.items())

    def _update_positions(self, records: pa.RecordBatch) -> None:
        if not records.num_rows:
            return
        import pyarrow as pa

        last = pa.Table.from_batches([records]).group_by("partition").aggregate([("offset", "max")])
        for partition, offset in zip(last["partition"].to_pylist(), last["offset_max"].to_pylist(), strict=True):
            self.ends[partition] = offset + 1

    def _on_truncation(self, error: LogTruncationError) -> str:
        at_s = self._timeline.add(f"The consumer reports that {error.topic}-{error.partition} was truncated")
        self.truncations.append(ReportedTruncation(at_s, error))
        self.ends[error.partition] = max(error.divergent_offset, 0)
        return "rewind"

    @staticmethod
    def _add_receipts(consumer: Consumer, reported: ReportedTruncation) -> None:
        try:
            receipts = consumer.loss_receipts(reported.error, timeout_ms=_RECEIPTS_WITHIN_MS)
        except FencelineError:
            return
        reported.error = reported.error.with_evidence(receipts)


def lost_ranges(receipts: Sequence[Receipt], reported: Sequence[ReportedTruncation]) -> list[ReportedRange]:
    """Each range with a receipt, with the consumer's first report of it."""
    lost: list[ReportedRange] = []
    for receipt in receipts:
        first = next((each for each in reported if each.covers(receipt)), None)
        lost.append(
            ReportedRange(
                receipt.partition,
                receipt.start_offset,
                receipt.end_offset_exclusive,
                receipt.leader_epochs[-1] if receipt.leader_epochs else -1,
                receipt.records,
                receipt.id[:12],
                receipt.loss_class.value,
                receipt.cause.value,
                receipt.replica,
                first.at_s if first is not None else None,
                str(first.error) if first is not None else "",
            )
        )
    return lost
