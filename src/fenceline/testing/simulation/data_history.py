"""The one history of each partition: what was written, what is committed, and what clients received.

Owns the state that the data checks need. Base offset and leader epoch identify a batch (log matching): every log that
has it has the same bytes, and the same batch before it. After an unclean election, history continues from the log of
the elected leader; what that log lacks counts as lost.

A history belongs to one topic id: clients write the id into each record, so that a batch of another incarnation of the
same name is detected everywhere. A log start may move only for a reason: a request that names the offset, or retention
if the topic has it. For a compacted topic, records are compared instead of batches: a missing record must have a newer
one with its key.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from typing import NamedTuple

from fenceline.records.batch import BATCH_OVERHEAD, read_header
from fenceline.records.build import Record
from fenceline.records.decode import decode_batch
from fenceline.records.markers import read_end_marker
from fenceline.testing.simulation.checks import InvariantBroken
from fenceline.testing.simulation.world import StoredBatch


class BatchId(NamedTuple):
    """The identity of a batch: its base offset and leader epoch."""

    base_offset: int
    epoch: int


class Written(NamedTuple):
    content: bytes
    before: BatchId | None
    """The batch before it; None at the start of a log."""


class PartitionHistory:
    """The history of one partition of one topic id."""

    def __init__(self, name: str, mark: bytes = b"") -> None:
        """`mark`: bytes that clients write into each record; empty if they do not."""
        self.name = name
        self.mark = mark
        self.is_compacted = False
        """Whether it was ever compacted: then records are compared, not batches."""
        self.has_retention = False
        """Whether its config ever allowed retention to delete segments."""
        self.flushes_each = True
        """Whether its config has had flush.messages=1 since its creation."""
        self.deletable = 0
        """The highest offset in requests to delete records."""
        self.log_start = 0
        """The highest valid log start of any replica."""
        self.acknowledged_batches: set[tuple[int, bytes]] = set()
        """Batches acknowledged to a producer: base offset, and the bytes of the records."""
        self.lost_batches: list[StoredBatch] = []
        """Committed batches that unclean elections lost."""
        self.readable_when_lost: set[StoredBatch] = set()
        """The lost batches that were above the log start at that time; the current log start says nothing about
        them."""
        self._records: dict[tuple[int, int], tuple[bytes | None, bytes | None]] = {}
        """For a compacted topic: key and value by offset and leader epoch."""
        self._superseded: set[BatchId] = set()
        """Records that compaction removed in favour of newer ones, which an unclean election then lost."""
        self.written: dict[BatchId, Written] = {}
        self.batches: list[StoredBatch] = []
        """The committed batches, from offset 0 on."""
        self._bases: list[int] = []
        self.ends: dict[int, int] = {}
        """By leader epoch: the end of what its leader reported as committed."""
        self.leaders: dict[int, int] = {}
        """By leader epoch."""
        self.last_unclean = -1
        """The newest leader epoch that began with an unclean election."""
        self.unclean_log_epoch = -1
        """The newest leader epoch whose uncleanly elected leader has started: history continues from its log."""
        self.recovering_epoch = -1
        """The leader epoch that is RECOVERING in the newest image; -1: none."""
        self.reported_ends: dict[int, int] = {}
        """By leader epoch: the highest end offset that a client received."""
        self.lost = 0
        """The number of committed batches that unclean elections lost."""

    @property
    def end(self) -> int:
        return self.batches[-1].next_offset if self.batches else 0

    # -- written -------------------------------------------------------------------------------------------------------

    def wrote(self, batch: StoredBatch, before: BatchId | None, where: str) -> BatchId:
        """A log has this batch after the batch `before`. Raises InvariantBroken if another log contradicts it."""
        batch_id = BatchId(batch.base_offset, batch.epoch)
        if self.mark and self.mark not in batch.content and read_header(batch.content).record_count:
            raise InvariantBroken(
                f"{where}: {describe(batch_id)} was written to another topic of this name (incarnation)"
            )
        if self.is_compacted:
            self._add_records(batch, where)
            self.written.setdefault(batch_id, Written(batch.content, before))
            return batch_id
        known = self.written.setdefault(batch_id, Written(batch.content, before))
        if known.content != batch.content:
            raise InvariantBroken(f"{where}: {describe(batch_id)} differs from the batch of other logs (log matching)")
        if known.before != before and before is not None and known.before is not None:
            raise InvariantBroken(
                f"{where}: {describe(batch_id)} follows {describe(before)}, but {describe(known.before)} in another log"
                " (log matching)"
            )
        if known.before is None and before is not None:
            self.written[batch_id] = known._replace(before=before)
        if before is not None and before.epoch > batch.epoch:
            raise InvariantBroken(f"{where}: the epoch decreases from {describe(before)} to {describe(batch_id)} (G11)")
        return batch_id

    # -- deletion and compaction ---------------------------------------------------------------------------------------

    def becomes_compacted(self) -> None:
        """From now on any of its records may be replaced by a newer one with the same key."""
        if not self.is_compacted:
            self.is_compacted = True
            for batch_id, written in self.written.items():
                self._add_records(StoredBatch(batch_id.base_offset, 0, batch_id.epoch, written.content), self.name)

    def _add_records(self, batch: StoredBatch, where: str) -> None:
        for record in decoded(batch):
            content = (record.key, record.value)
            if self._records.setdefault((record.offset, batch.epoch), content) != content:
                raise InvariantBroken(
                    f"{where}: the record at {record.offset} of epoch {batch.epoch} differs from that of other logs"
                    " (log matching)"
                )

    def starts_at(self, offset: int, *, by_retention: bool, where: str) -> None:
        """A log starts there. `by_retention`: whether a segment begins there. Raises InvariantBroken if neither a
        request nor retention is the reason."""
        if offset > max(self.log_start, self.deletable) and not (self.has_retention and by_retention):
            raise InvariantBroken(
                f"{where}: the log starts at {offset}, but records were deleted up to"
                f" {max(self.log_start, self.deletable)} only (log start)"
            )
        self.log_start = max(self.log_start, offset)

    def survivors(self, start: int) -> set[int]:
        """Offsets from `start` on that compaction must keep: the newest of each key, unless it is a tombstone. Records
        of an aborted transaction may go, and replace nothing."""
        aborted = self._aborted()
        newest: dict[bytes | None, tuple[int, bool]] = {}
        for batch in self.batches:
            if batch.base_offset in aborted or read_header(batch.content).is_control:
                continue
            for record in decoded(batch):
                if BatchId(record.offset, batch.epoch) not in self._superseded:
                    newest[record.key] = (record.offset, record.value is None)
        return {offset for offset, is_deletion in newest.values() if offset >= start and not is_deletion}

    def _aborted(self) -> set[int]:
        """Base offsets of the batches of aborted transactions."""
        aborted: set[int] = set()
        opened: dict[int, list[int]] = {}
        for batch in self.batches:
            header = read_header(batch.content)
            if not header.is_transactional:
                continue
            if not header.is_control:
                opened.setdefault(header.producer_id, []).append(batch.base_offset)
                continue
            ended = opened.pop(header.producer_id, [])
            marker = read_end_marker(header, memoryview(batch.content))
            if marker is not None and not marker.commit:
                aborted.update(ended)
        return aborted

    # -- committed -----------------------------------------------------------------------------------------------------

    def batch_at(self, base_offset: int) -> StoredBatch | None:
        """The committed batch with this base offset."""
        at = bisect_left(self._bases, base_offset)
        return self.batches[at] if at < len(self._bases) and self._bases[at] == base_offset else None

    def commit(self, batches: Iterable[StoredBatch], where: str) -> None:
        """A leader reports these as committed: they must be the known ones, or the next ones."""
        for batch in batches:
            if batch.base_offset >= self.end:
                # A log that was emptied may restart beyond the others; an unclean election may make it the history.
                if batch.base_offset != self.end and not self.is_compacted and batch.base_offset > self.log_start:
                    raise InvariantBroken(
                        f"{where}: commits at {batch.base_offset}, but the committed end is {self.end} (StrongIsr)"
                    )
                self.batches.append(batch)
                self._bases.append(batch.base_offset)
            else:
                self.compare(batch, where)

    def compare(self, batch: StoredBatch, where: str) -> None:
        """A batch below the committed end must be the committed one."""
        if self.is_compacted:
            self._compare_records(batch, where)
            return
        known = self.batch_at(batch.base_offset)
        if known != batch:
            what = "none" if known is None else f"{known.base_offset}..{known.next_offset - 1} of epoch {known.epoch}"
            raise InvariantBroken(
                f"{where}: {batch.base_offset}..{batch.next_offset - 1} of epoch {batch.epoch} is in the log, but"
                f" the committed batch is {what}"
            )

    def _covering(self, offset: int) -> StoredBatch | None:
        """The committed batch that contains this offset."""
        at = bisect_right(self._bases, offset) - 1
        return self.batches[at] if at >= 0 and offset < self.batches[at].next_offset else None

    def _compare_records(self, batch: StoredBatch, where: str) -> None:
        self._add_records(batch, where)
        for record in decoded(batch):
            known = self._covering(record.offset)
            if known is not None and known.epoch != batch.epoch:
                raise InvariantBroken(
                    f"{where}: the record at {record.offset} is of epoch {batch.epoch}, but that"
                    f" of epoch {known.epoch} is committed"
                )

    def committed_before(self, epoch: int) -> int:
        """The end of what leaders of earlier epochs reported as committed."""
        return max((end for led, end in self.ends.items() if led < epoch), default=0)

    def adopt_unclean_log(
        self,
        log: Iterable[StoredBatch],
        start: int,
        end: int,
        epoch: int,
        epoch_at: Callable[[int], int] = lambda offset: -1,
    ) -> None:
        """An uncleanly elected leader has this log from `start` to `end`: committed batches that it lacks are lost.
        `epoch_at`: the leader epoch at an offset of it, also for records removed by compaction: with the same epoch it
        was the same record."""
        log = list(log)
        mine = {BatchId(batch.base_offset, batch.epoch) for batch in log}
        kept = 0
        while kept < len(self.batches):
            batch = self.batches[kept]
            is_there = BatchId(batch.base_offset, batch.epoch) in mine or batch.next_offset <= start
            was_there = self.is_compacted and batch.next_offset <= end and epoch_at(batch.base_offset) == batch.epoch
            if not is_there and not was_there:
                break
            kept += 1
        if self.is_compacted and kept < len(self.batches):
            there = {record.offset for batch in log for record in decoded(batch)}
            newest = {record.key: record.offset for batch in self.batches[kept:] for record in decoded(batch)}
            self._superseded.update(
                BatchId(record.offset, batch.epoch)
                for batch in self.batches[:kept]
                for record in decoded(batch)
                if record.key in newest and record.offset >= start and record.offset not in there
            )
        self.lost += len(self.batches) - kept
        self.lost_batches += self.batches[kept:]
        self.readable_when_lost.update(each for each in self.batches[kept:] if each.base_offset >= self.log_start)
        del self.batches[kept:], self._bases[kept:]
        self.ends = {led: min(end, self.end) for led, end in self.ends.items()}
        self.last_unclean = max(self.last_unclean, epoch)
        self.unclean_log_epoch = max(self.unclean_log_epoch, epoch)

    # -- clients -------------------------------------------------------------------------------------------------------

    def acknowledged(self, base_offset: int, producer_id: int, sequence: int, where: str) -> None:
        """A producer received this offset for its batch, with acks=all."""
        known = self.batch_at(base_offset)
        if known is not None and _is_of(known.content, producer_id, sequence):
            return
        epochs = [
            batch_id.epoch
            for batch_id, written in self.written.items()
            if batch_id.base_offset == base_offset and _is_of(written.content, producer_id, sequence)
        ]
        if not epochs:
            raise InvariantBroken(f"{where}: no log has the batch that was acknowledged at {base_offset}")
        if max(epochs) >= self.last_unclean:
            raise InvariantBroken(f"{where}: acknowledged at {base_offset} with acks=all, but not committed")

    def record_acknowledged(self, base_offset: int, batch: bytes) -> None:
        """The batch was acknowledged to its producer, with any acks."""
        self.acknowledged_batches.add((base_offset, batch[BATCH_OVERHEAD:]))

    def was_acknowledged(self, batch: StoredBatch) -> bool:
        """Whether it was acknowledged to a producer."""
        return (batch.base_offset, batch.content[BATCH_OVERHEAD:]) in self.acknowledged_batches

    def is_only_copy(self, batch: StoredBatch) -> bool:
        """Whether no leader of another epoch wrote the same records at this offset, for example when a producer retries
        a rejected batch: a response has no epoch, and may mean either of them."""
        records = batch.content[BATCH_OVERHEAD:]
        return not any(
            batch_id.base_offset == batch.base_offset
            and batch_id.epoch != batch.epoch
            and written.content[BATCH_OVERHEAD:] == records
            for batch_id, written in self.written.items()
        )

    def read(self, batch_id: BatchId, content: bytes, before: BatchId | None, where: str) -> None:
        """A consumer that has read up to `before` (None: it starts here) received this batch as the next one."""
        if self.is_compacted:
            # A leader that does not know of an unclean election yet returns records that it lost.
            check = self._compare_records if batch_id.epoch >= self.last_unclean else self._add_records
            check(StoredBatch(batch_id.base_offset, 0, batch_id.epoch, content), where)
            return
        written = self.written.get(batch_id)
        if written is None or written.content != content:
            raise InvariantBroken(f"{where}: {describe(batch_id)} was read, but no log has this content")
        # The first batch of a log that starts later (DeleteRecords) has no recorded batch before it.
        if before is not None and written.before is not None and written.before != before:
            raise InvariantBroken(
                f"{where}: {describe(batch_id)} was read after {describe(before)}, but in the log it follows"
                f" {describe(written.before)}: a truncation was not detected"
            )
        known = self.batch_at(batch_id.base_offset)
        if (known is None or known.epoch != batch_id.epoch) and batch_id.epoch >= self.last_unclean:
            raise InvariantBroken(f"{where}: {describe(batch_id)} was read but is not committed (E43)")

    def least_end(self, epoch: int) -> int:
        """The least end offset that the leader of this epoch may return to a client (KIP-207)."""
        return max((end for led, end in self.reported_ends.items() if self.last_unclean <= led <= epoch), default=0)

    def record_end(self, epoch: int, end: int) -> None:
        self.reported_ends[epoch] = max(self.reported_ends.get(epoch, 0), end)


def _is_of(content: bytes, producer_id: int, sequence: int) -> bool:
    header = read_header(content)
    return header.producer_id == producer_id and header.base_sequence == sequence


def decoded(batch: StoredBatch) -> list[Record]:
    """The records of a batch."""
    return decode_batch(batch.content, read_header(batch.content))


def describe(batch_id: BatchId) -> str:
    return f"the batch at {batch_id.base_offset} of epoch {batch_id.epoch}"


def first_from(batches: list[StoredBatch], offset: int) -> list[StoredBatch]:
    """The batches that begin at or after an offset."""
    return batches[bisect_right(batches, offset - 1, key=lambda batch: batch.base_offset) :]
