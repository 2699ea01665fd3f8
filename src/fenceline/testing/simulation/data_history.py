"""The one history that each partition has: what was written, what of it is committed, what clients were told of it.

Owns the memory that checks of data need. A batch is known by its base offset and leader epoch (log matching): whoever
has it has the same bytes, and the same batch before it. Where a leader was elected uncleanly, history goes on from that
leader's log, and what it lacks was lost with reason.

A history belongs to one topic id: what is written to a topic names the id, so that a batch of another incarnation of
the same name is found wherever it appears. A log start moves with a cause only: a request that names the offset, or
retention where the topic has some. Where a topic is compacted, records count in place of batches: one that is missing
has a newer one with its key.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from typing import NamedTuple

from fenceline.records.batch import BATCH_OVERHEAD, read_header
from fenceline.records.build import Record
from fenceline.records.decode import decode_batch
from fenceline.testing.simulation.checks import InvariantBroken
from fenceline.testing.simulation.world import StoredBatch


class Place(NamedTuple):
    """Where a batch is, and of which epoch: its name."""

    base_offset: int
    epoch: int


class Written(NamedTuple):
    content: bytes
    before: Place | None
    """The batch before it; None at the beginning of a log."""


class History:
    """Of one partition of one topic id."""

    def __init__(self, name: str, mark: bytes = b"") -> None:
        """`mark`: what each record that clients write has in it; empty where they write no such thing."""
        self.name = name
        self.mark = mark
        self.is_compacted = False
        """Whether it ever was: its records count, not its batches."""
        self.has_retention = False
        """Whether its config ever let old segments go."""
        self.flushes_each = True
        """Whether its config always had flush.messages=1, from its creation on."""
        self.deletable = 0
        """Requests to delete records named offsets up to this one."""
        self.log_start = 0
        """The highest that a replica had with a cause."""
        self.answered: set[tuple[int, bytes]] = set()
        """Batches that were acknowledged to a producer: base offset, and the records' bytes."""
        self.lost_batches: list[StoredBatch] = []
        """Committed ones that unclean elections cost."""
        self.readable_when_lost: set[StoredBatch] = set()
        """Of those, what had not been deleted by then; where the log starts now says nothing of them."""
        self._records: dict[tuple[int, int], tuple[bytes | None, bytes | None]] = {}
        """Of a compacted topic: key and value by offset and leader epoch."""
        self._superseded: set[Place] = set()
        """Records that compaction had taken for newer ones, which an unclean election cost."""
        self.written: dict[Place, Written] = {}
        self.batches: list[StoredBatch] = []
        """Committed, from offset 0 on."""
        self._bases: list[int] = []
        self.ends: dict[int, int] = {}
        """By leader epoch: the end of what its leader called committed."""
        self.last_unclean = -1
        """The newest leader epoch that an unclean election began."""
        self.anew_epoch = -1
        """The newest leader epoch whose uncleanly elected leader has begun: history is what its log is."""
        self.recovering_epoch = -1
        """The leader epoch that is RECOVERING by the newest image; -1: none is."""
        self.told_ends: dict[int, int] = {}
        """By leader epoch: the highest end offset that a client was told."""
        self.lost = 0
        """Committed batches that unclean elections cost."""

    @property
    def end(self) -> int:
        return self.batches[-1].next_offset if self.batches else 0

    # -- written -------------------------------------------------------------------------------------------------------

    def wrote(self, batch: StoredBatch, before: Place | None, where: str) -> Place:
        """A log holds this batch behind that one. Raises InvariantBroken where another log knows it otherwise."""
        place = Place(batch.base_offset, batch.epoch)
        if self.mark and self.mark not in batch.content and read_header(batch.content).record_count:
            raise InvariantBroken(f"{where}: {told(place)} was written to another topic of this name (incarnation)")
        if self.is_compacted:
            self._take_records(batch, where)
            self.written.setdefault(place, Written(batch.content, before))
            return place
        known = self.written.setdefault(place, Written(batch.content, before))
        if known.content != batch.content:
            raise InvariantBroken(f"{where}: {told(place)} is not the batch that others have (log matching)")
        if known.before != before and before is not None and known.before is not None:
            raise InvariantBroken(
                f"{where}: {told(place)} stands behind {told(before)}, elsewhere behind {told(known.before)}"
                " (log matching)"
            )
        if known.before is None and before is not None:
            self.written[place] = known._replace(before=before)
        if before is not None and before.epoch > batch.epoch:
            raise InvariantBroken(f"{where}: epochs fall from {told(before)} to {told(place)} (G11)")
        return place

    # -- what is deleted on request ------------------------------------------------------------------------------------

    def becomes_compacted(self) -> None:
        """From now on any of its records may go for a newer one with the same key."""
        if not self.is_compacted:
            self.is_compacted = True
            for place, written in self.written.items():
                self._take_records(StoredBatch(place.base_offset, 0, place.epoch, written.content), self.name)

    def _take_records(self, batch: StoredBatch, where: str) -> None:
        for record in decoded(batch):
            content = (record.key, record.value)
            if self._records.setdefault((record.offset, batch.epoch), content) != content:
                raise InvariantBroken(
                    f"{where}: the record at {record.offset} of epoch {batch.epoch} is not the one that others have"
                    " (log matching)"
                )

    def starts_at(self, offset: int, *, by_retention: bool, where: str) -> None:
        """A log begins there. `by_retention`: where a segment begins. Raises InvariantBroken where no request and no
        retention is the cause."""
        if offset > max(self.log_start, self.deletable) and not (self.has_retention and by_retention):
            raise InvariantBroken(
                f"{where}: the log starts at {offset}, records were deleted up to"
                f" {max(self.log_start, self.deletable)} only (log start)"
            )
        self.log_start = max(self.log_start, offset)

    def survivors(self, start: int) -> set[int]:
        """Offsets from `start` on that compaction may not take: of each key the newest, unless it is a deletion."""
        newest: dict[bytes | None, tuple[int, bool]] = {}
        for batch in self.batches:
            for record in decoded(batch):
                if Place(record.offset, batch.epoch) not in self._superseded:
                    newest[record.key] = (record.offset, record.value is None)
        return {offset for offset, is_deletion in newest.values() if offset >= start and not is_deletion}

    # -- committed -----------------------------------------------------------------------------------------------------

    def batch_at(self, base_offset: int) -> StoredBatch | None:
        """The committed batch that begins there."""
        at = bisect_left(self._bases, base_offset)
        return self.batches[at] if at < len(self._bases) and self._bases[at] == base_offset else None

    def commit(self, batches: Iterable[StoredBatch], where: str) -> None:
        """A leader counts these as committed: they are those that are known, or the next ones."""
        for batch in batches:
            if batch.base_offset >= self.end:
                # A log that was emptied begins anew behind what others have; an unclean election may bring it back.
                if batch.base_offset != self.end and not self.is_compacted and batch.base_offset > self.log_start:
                    raise InvariantBroken(f"{where}: commits at {batch.base_offset}, {self.end} is known (StrongIsr)")
                self.batches.append(batch)
                self._bases.append(batch.base_offset)
            else:
                self.compare(batch, where)

    def compare(self, batch: StoredBatch, where: str) -> None:
        """A batch that lies below the committed end is the committed one."""
        if self.is_compacted:
            self._compare_records(batch, where)
            return
        known = self.batch_at(batch.base_offset)
        if known != batch:
            what = (
                "no batch" if known is None else f"{known.base_offset}..{known.next_offset - 1} of epoch {known.epoch}"
            )
            raise InvariantBroken(
                f"{where}: {batch.base_offset}..{batch.next_offset - 1} of epoch {batch.epoch} stands where"
                f" {what} is committed"
            )

    def _covering(self, offset: int) -> StoredBatch | None:
        """The committed batch that this offset lies in."""
        at = bisect_right(self._bases, offset) - 1
        return self.batches[at] if at >= 0 and offset < self.batches[at].next_offset else None

    def _compare_records(self, batch: StoredBatch, where: str) -> None:
        self._take_records(batch, where)
        for record in decoded(batch):
            known = self._covering(record.offset)
            if known is not None and known.epoch != batch.epoch:
                raise InvariantBroken(
                    f"{where}: the record at {record.offset} is of epoch {batch.epoch}, that of epoch {known.epoch} is"
                    " committed"
                )

    def committed_before(self, epoch: int) -> int:
        """The end of what leaders of older epochs called committed."""
        return max((end for led, end in self.ends.items() if led < epoch), default=0)

    def begin_anew(
        self,
        log: Iterable[StoredBatch],
        start: int,
        end: int,
        epoch: int,
        epoch_at: Callable[[int], int] = lambda offset: -1,
    ) -> None:
        """An uncleanly elected leader has this log from `start` to `end`: what it lacks is lost. `epoch_at`: the leader
        epoch of an offset of it, also where compaction has removed the record: with the same epoch it was the same."""
        log = list(log)
        mine = {Place(batch.base_offset, batch.epoch) for batch in log}
        kept = 0
        while kept < len(self.batches):
            batch = self.batches[kept]
            is_there = Place(batch.base_offset, batch.epoch) in mine or batch.next_offset <= start
            was_there = self.is_compacted and batch.next_offset <= end and epoch_at(batch.base_offset) == batch.epoch
            if not is_there and not was_there:
                break
            kept += 1
        if self.is_compacted and kept < len(self.batches):
            there = {record.offset for batch in log for record in decoded(batch)}
            newest = {record.key: record.offset for batch in self.batches[kept:] for record in decoded(batch)}
            self._superseded.update(
                Place(record.offset, batch.epoch)
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
        self.anew_epoch = max(self.anew_epoch, epoch)

    # -- clients -------------------------------------------------------------------------------------------------------

    def acknowledged(self, base_offset: int, producer_id: int, sequence: int, where: str) -> None:
        """A producer was told that its batch has this offset, with acks=all."""
        known = self.batch_at(base_offset)
        if known is not None and _is_of(known.content, producer_id, sequence):
            return
        epochs = [
            place.epoch
            for place, written in self.written.items()
            if place.base_offset == base_offset and _is_of(written.content, producer_id, sequence)
        ]
        if not epochs:
            raise InvariantBroken(f"{where}: no log has at {base_offset} what was acknowledged there")
        if max(epochs) >= self.last_unclean:
            raise InvariantBroken(f"{where}: acknowledged at {base_offset} with acks=all, and not committed")

    def told_written(self, base_offset: int, batch: bytes) -> None:
        """The batch was acknowledged to its producer, by any acks."""
        self.answered.add((base_offset, batch[BATCH_OVERHEAD:]))

    def was_answered(self, batch: StoredBatch) -> bool:
        """Whether it was acknowledged to a producer."""
        return (batch.base_offset, batch.content[BATCH_OVERHEAD:]) in self.answered

    def is_only_copy(self, batch: StoredBatch) -> bool:
        """Whether no leader of another epoch wrote the same records at this offset, as when a producer sends a refused
        batch again: an answer names no epoch, and may mean either of them."""
        records = batch.content[BATCH_OVERHEAD:]
        return not any(
            place.base_offset == batch.base_offset
            and place.epoch != batch.epoch
            and written.content[BATCH_OVERHEAD:] == records
            for place, written in self.written.items()
        )

    def read(self, place: Place, content: bytes, before: Place | None, where: str) -> None:
        """A consumer that has read up to `before` (None: it begins here) was given this batch as the next one."""
        if self.is_compacted:
            # A leader that does not know yet of an unclean election gives what was lost by it.
            look = self._compare_records if place.epoch >= self.last_unclean else self._take_records
            look(StoredBatch(place.base_offset, 0, place.epoch, content), where)
            return
        written = self.written.get(place)
        if written is None or written.content != content:
            raise InvariantBroken(f"{where}: {told(place)} was read, no log has it like that")
        # The first batch of a log that began later (DeleteRecords) has none before it that anybody wrote down.
        if before is not None and written.before is not None and written.before != before:
            raise InvariantBroken(
                f"{where}: {told(place)} was read after {told(before)}, in the log it stands behind"
                f" {told(written.before)}: a truncation was not noticed"
            )
        known = self.batch_at(place.base_offset)
        if (known is None or known.epoch != place.epoch) and place.epoch >= self.last_unclean:
            raise InvariantBroken(f"{where}: {told(place)} was read and is not committed (E43)")

    def least_end(self, epoch: int) -> int:
        """What a client that asks the leader of this epoch for the log's end may not fall below (KIP-207)."""
        return max((end for led, end in self.told_ends.items() if self.last_unclean <= led <= epoch), default=0)

    def tell_end(self, epoch: int, end: int) -> None:
        self.told_ends[epoch] = max(self.told_ends.get(epoch, 0), end)


def _is_of(content: bytes, producer_id: int, sequence: int) -> bool:
    header = read_header(content)
    return header.producer_id == producer_id and header.base_sequence == sequence


def decoded(batch: StoredBatch) -> list[Record]:
    """Its records."""
    return decode_batch(batch.content, read_header(batch.content))


def told(place: Place) -> str:
    return f"the batch at {place.base_offset} of epoch {place.epoch}"


def first_from(batches: list[StoredBatch], offset: int) -> list[StoredBatch]:
    """Those that begin at or behind an offset."""
    return batches[bisect_right(batches, offset - 1, key=lambda batch: batch.base_offset) :]
