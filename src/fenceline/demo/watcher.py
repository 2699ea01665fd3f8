"""A plain consumer of all partitions, as an application would run one: it is told when the log was cut.

Owns its thread and what it was told. It has no policy that would hide a truncation (`auto.offset.reset=none`): the
function of `on.truncation` notes the error, and goes back to where the histories part.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from fenceline.client import Consumer, LogTruncationError
from fenceline.demo.narration import Narration
from fenceline.demo.story import Lost
from fenceline.demo.worker import Worker
from fenceline.errors import FencelineError
from fenceline.ids import TopicPartition
from fenceline.losses.receipt import Receipt

if TYPE_CHECKING:
    import pyarrow as pa

_POLL_MS: Final = 200
_RECEIPTS_WITHIN_MS: Final = 5_000


@dataclass(slots=True)
class Told:
    """A truncation, when the consumer reported it, and (once it has stopped) with the receipts of it."""

    at_s: float
    error: LogTruncationError

    def is_about(self, receipt: Receipt) -> bool:
        """Whether records of the receipt are among those that it says are gone."""
        error = self.error
        is_same = (error.topic, error.partition) == (receipt.topic, receipt.partition)
        return (
            is_same
            and error.divergent_offset < receipt.end_offset_exclusive
            and receipt.start_offset < error.truncated_from
        )


class Watcher(Worker):
    """Reads until it is stopped; narrates what it is told, at once."""

    def __init__(self, bootstrap: str, topic: str, partitions: Iterable[int], narration: Narration) -> None:
        super().__init__("watcher")
        self._bootstrap = bootstrap
        self._partitions = [TopicPartition(topic, partition) for partition in partitions]
        self._narration = narration
        self.ends: dict[int, int] = {tp.partition: 0 for tp in self._partitions}
        """Up to where (exclusive) it has read each partition."""
        self.told: list[Told] = []

    def work(self) -> None:
        settings: dict[str, Any] = {
            "auto.offset.reset": "none",
            "on.truncation": self._note,
            "metadata.max.age.ms": 1000,
        }
        with Consumer(self._bootstrap, **settings) as consumer:
            consumer.assign(self._partitions)
            consumer.seek_to_beginning(self._partitions)
            while not self.is_to_stop:
                self._take(consumer.poll_arrow(_POLL_MS))
            for each in self.told:
                self._join_receipts(consumer, each)

    def has_read(self, ends: Mapping[int, int]) -> bool:
        """Whether it stands at these ends (exclusive)."""
        return all(self.ends.get(partition, 0) >= end for partition, end in ends.items())

    def _take(self, records: pa.RecordBatch) -> None:
        if not records.num_rows:
            return
        import pyarrow as pa

        last = pa.Table.from_batches([records]).group_by("partition").aggregate([("offset", "max")])
        for partition, offset in zip(last["partition"].to_pylist(), last["offset_max"].to_pylist(), strict=True):
            self.ends[partition] = offset + 1

    def _note(self, error: LogTruncationError) -> str:
        at_s = self._narration.tell(f"the consumer reports that {error.topic}-{error.partition} was truncated")
        self.told.append(Told(at_s, error))
        self.ends[error.partition] = max(error.divergent_offset, 0)
        return "rewind"

    @staticmethod
    def _join_receipts(consumer: Consumer, told: Told) -> None:
        try:
            receipts = consumer.loss_receipts(told.error, timeout_ms=_RECEIPTS_WITHIN_MS)
        except FencelineError:
            return
        told.error = told.error.with_evidence(receipts)


def lost_as_told(receipts: Sequence[Receipt], told: Sequence[Told]) -> list[Lost]:
    """Each loss that has a receipt, with what the consumer said of it first."""
    lost: list[Lost] = []
    for receipt in receipts:
        first = next((each for each in told if each.is_about(receipt)), None)
        lost.append(
            Lost(
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
