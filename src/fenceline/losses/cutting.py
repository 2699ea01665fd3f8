"""Cuts a log so that no loss goes without a receipt, whenever the machine stops.

Owns the order: what is about to go is counted and written down, then the log is cut, then the receipt says what has
really gone and where it is. After a crash `settle` looks which of it happened. A disk that is full makes room from
older evidence first, then cuts without evidence and says so; a receipt that can not be written stops the cut.

Blocks on the disk: for a thread, or at start. Used by simulations as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple
from uuid import UUID

from fenceline.ids import TopicPartition
from fenceline.log.disk import Disk
from fenceline.log.errors import NotSettled, StorageError, passes
from fenceline.log.lost_batches import LostBatches, Piece, count_lost
from fenceline.log.partition_log import NO_LIMIT, PartitionLog
from fenceline.log.recovery_note import RecoveryNote, read_note
from fenceline.losses.classes import LaterStart, of_cut, of_deleted, of_recovery
from fenceline.losses.folder import Intent, ReceiptFolder
from fenceline.losses.quarantine import FULL
from fenceline.losses.receipt import NOBODY, Cause, Receipt, identified

_NO_EVIDENCE: Final = "The disk was full, or the node stopped before the cut bytes were kept."
_TORN: Final = "The torn end of one write is not kept."
_STOPPED: Final = "The node stopped in the middle of the cut."
_NOT_SYNCED: Final = "What the disk had not kept yet when the machine lost its power is nowhere."
_LOST_POWER: Final = "the machine lost its power in the middle of a cut, and the disk had not kept them yet"
_MISSING: Final = "The disk has nothing of it any more."
_BY_OFFSETS: Final = "records are counted by their offsets"
_NOBODY_KNOWS: Final = "the log can not be opened any more, and may have had some of them still"


Range = tuple[int, int]
"""Offsets [start, end)."""


class Ends(NamedTuple):
    """Where a log begins and ends, as it is now."""

    log_start_offset: int
    log_end_offset: int


class Papers(NamedTuple):
    """Whose they are. `ends`: None where the log can not be opened, so that nobody knows."""

    topic_partition: TopicPartition
    topic_id: UUID | None
    ends: Ends | None


@dataclass(frozen=True, slots=True)
class Cut:
    """What a follower is to do, and for whom. `begins_anew`: empty the log, it goes on at `offset`."""

    offset: int
    begins_anew: bool
    cause: Cause
    reason: str
    replica: int
    leader: int
    leader_epoch: int
    time_ms: int
    unanswered_ends: frozenset[int] = frozenset()
    """Ends of batches whose producers were told that they are not committed; only where this replica led just before
    and nobody else since."""
    clean_since: int = NO_LIMIT
    """No leader of a later epoch was elected uncleanly; NO_LIMIT: not known of any."""
    is_whole: bool = False
    """The leader has all that goes: nothing is lost, and nothing is kept."""


def cut_log(disk: Disk, log: PartitionLog, cut: Cut, make_room: Callable[[], bool] = lambda: False) -> list[Receipt]:
    """Carry it out; the receipts of what was lost lie beside the evidence when this returns.

    `make_room` frees space of the disk, False when there is none to be freed. Raises NotSettled: the log is cut, or
    partly cut, and the same call goes on once there is room. Raises StorageError: where the disk is full, the log is as
    it was.
    """
    folder = ReceiptFolder(disk, log.directory)
    receipts: list[Receipt] = []
    high_watermark = log.high_watermark
    while True:
        if log.unfinished is None or log.unfinished.offset != cut.offset:
            if log.unfinished is not None:
                _resume(log)
                log.unfinished = None
            receipts += _settle_now(folder, log, make_room, cut.replica, high_watermark)
            try:
                intent = _intent_of(folder, log, cut)
                if intent is not None:
                    folder.intend(intent)
            except OSError as error:
                if error.errno in FULL and make_room():
                    continue
                raise StorageError.of(f"writing the loss receipt of {log.topic_partition}", error) from error
        else:
            # It has its intent, which tells all of it when it is done.
            _forget_deleted(folder, log)
        try:
            _do(log, cut, keep_evidence=not cut.is_whole)
        except StorageError as error:
            if error.disk_full and (log.offline is None or log.unfinished is not None) and make_room():
                continue
            if log.unfinished is not None or log.offline is not None or not error.disk_full:
                raise _waiting(log, error) from error
            _do_without_evidence(log, cut)
        log.unfinished = None
        return receipts + _settle_now(folder, log, make_room, cut.replica, high_watermark)


def settle(
    disk: Disk,
    log: PartitionLog,
    *,
    replica: int,
    high_watermark: int,
) -> list[Receipt]:
    """Receipts of cuts that a crash interrupted, and of what recovery cut; before the log is used. Raises OSError.

    `high_watermark`: of the last checkpoint.
    """
    papers = Papers(log.topic_partition, log.topic_id, Ends(log.log_start_offset, log.log_end_offset))
    return settle_papers(ReceiptFolder(disk, log.directory), papers, replica=replica, high_watermark=high_watermark)


def settle_papers(folder: ReceiptFolder, papers: Papers, *, replica: int, high_watermark: int) -> list[Receipt]:
    """As `settle`, where the log may be one that can not be opened."""
    disk = folder.disk
    notes = [(path, note) for path in folder.notes() if (note := read_note(disk, path)) is not None]
    # What recovery cut is the notes' to tell, also where it lay in the range of an interrupted cut.
    noted = sorted((note.lost.start_offset, note.lost.end_offset_exclusive) for _, note in notes)
    is_whole = any(intent.is_whole for intent in folder.intents())
    receipts = _settle_intents(folder, papers.ends, noted)
    for path, note in notes:
        if is_whole:
            disk.unlink(path)  # of a log that is being emptied: its leader has all of it
            continue
        if note.is_missing and not note.is_untold and not (note := _not_told(folder, note)).lost.records:
            disk.unlink(path)
            continue
        receipt = _receipt_of_note(folder, note, papers.topic_partition, papers.topic_id, replica, high_watermark)
        if not folder.is_known(receipt.id):
            folder.owe(receipt)
            receipts.append(receipt)
        disk.unlink(path)
    if notes:
        # One that came back with a loss of power would stand in the place of the next recovery's.
        disk.fsync_dir(folder.path)
    return receipts


def _resume(log: PartitionLog) -> None:
    """Raises NotSettled."""
    try:
        log.resume()
    except StorageError as error:
        raise _waiting(log, error) from error


def _waiting(log: PartitionLog, error: StorageError) -> StorageError:
    """What a cut ends with that the disk refused: NotSettled where that was in the middle, and may pass."""
    if log.unfinished is None:
        return error
    log.offline = None  # it is out of service as long as it is being cut
    return NotSettled(error.message, error.errno)


def _do_without_evidence(log: PartitionLog, cut: Cut) -> None:
    """Raises NotSettled, StorageError."""
    try:
        _do(log, cut, keep_evidence=False)
    except StorageError as error:
        raise _waiting(log, error) from error


def _forget_deleted(folder: ReceiptFolder, log: PartitionLog) -> None:
    """Older evidence may have gone; its names are free for what a cut that has begun keeps. Raises NotSettled."""
    there = set(folder.evidence())
    try:
        for intent in list(folder.intents()):
            others = tuple(name for name in intent.others if name in there)
            if others != intent.others:
                folder.intend(replace(intent, others=others))
    except OSError as error:
        raise _waiting(log, StorageError.of(f"truncating {log.topic_partition}", error)) from error


def _do(log: PartitionLog, cut: Cut, *, keep_evidence: bool = True) -> None:
    """From the beginning, or from where the disk refused it. Raises StorageError."""
    if log.unfinished is not None:
        keep_evidence = log.unfinished.keeps_evidence
        log.resume()
    if cut.begins_anew:
        log.truncate_fully_and_start_at(cut.offset, keep_evidence=keep_evidence)
    else:
        log.truncate_to(cut.offset, keep_evidence=keep_evidence)


def _intent_of(folder: ReceiptFolder, log: PartitionLog, cut: Cut) -> Intent | None:
    """None where nothing is lost. Raises OSError."""
    pieces = log.pieces_from(0 if cut.begins_anew else cut.offset)
    lost = count_lost(folder.disk, pieces, start_offset=log.log_start_offset, unanswered_ends=cut.unanswered_ends)
    if not lost.records and not lost.unreadable_bytes:
        return None
    leader = None
    if cut.begins_anew and cut.cause is Cause.LEADER_STARTS_LATER:
        has_retention = log.config.deletes and log.config.retention_ms >= 0
        expired_below_ms = cut.time_ms - log.config.retention_ms if has_retention else -1
        leader = LaterStart(cut.offset, cut.clean_since, expired_below_ms)
    loss_class, known_by = of_cut(lost, log.high_watermark, leader=leader)
    topic, partition = log.topic_partition
    receipt = Receipt(
        topic=topic,
        topic_id=log.topic_id,
        partition=partition,
        start_offset=lost.start_offset,
        end_offset_exclusive=lost.end_offset_exclusive,
        leader_epochs=lost.leader_epochs,
        records=lost.records,
        size_bytes=lost.size_bytes,
        loss_class=loss_class,
        known_by=known_by,
        cause=cut.cause,
        reason=cut.reason,
        replica=cut.replica,
        leader=cut.leader,
        leader_epoch=cut.leader_epoch,
        time_ms=cut.time_ms,
    )
    kept_end = 0 if cut.begins_anew else min(log.end_after(cut.offset), lost.start_offset)
    return Intent(
        identified(receipt),
        log.log_start_offset,
        log.log_end_offset,
        log.high_watermark,
        cut.begins_anew,
        tuple(folder.evidence()),
        kept_end,
        cut.is_whole,
    )


def _settle_now(
    folder: ReceiptFolder, log: PartitionLog, make_room: Callable[[], bool], replica: int, high_watermark: int
) -> list[Receipt]:
    """Also of what a cut found damaged in the part that was to stay (`truncation._reload`), and cut off."""
    papers = Papers(log.topic_partition, log.topic_id, Ends(log.log_start_offset, log.log_end_offset))
    while True:
        try:
            return settle_papers(folder, papers, replica=replica, high_watermark=high_watermark)
        except OSError as error:
            what = f"writing the loss receipt of {log.topic_partition}"
            # The intent is durable, and settled by the next attempt or start; until then this log must not be served.
            if passes(error.errno):
                if error.errno in FULL and make_room():
                    continue
                raise NotSettled.of(what, error) from error
            log.offline = StorageError.of(what, error)
            raise log.offline from error


def _settle_intents(folder: ReceiptFolder, ends: Ends | None, noted: Sequence[Range] = ()) -> list[Receipt]:
    """`noted`: ranges that recovery tells, ascending. Raises OSError."""
    told_up_to = max((end for _, end in noted), default=0)
    receipts = []
    for intent in list(folder.intents()):
        if intent.is_whole:
            folder.drop_intent(intent.receipt.id)
            continue
        told = [_lost_with_power(intent, each) for each in _untold(ends, intent, noted)] if ends else []
        if not folder.is_known(intent.receipt.id):
            cut = _what_happened(folder, ends, intent, told_up_to) if ends else _what_was_planned(folder, intent)
            told += [cut] if cut is not None else []
        for receipt in told:
            if not folder.is_known(receipt.id):
                folder.owe(receipt)
                receipts.append(receipt)
        folder.drop_intent(intent.receipt.id)
    return receipts


def _untold(log: Ends, intent: Intent, noted: Sequence[Range]) -> Iterator[Range]:
    """What the log had before the cut, and has not now, and neither recovery nor the cut tells: it has gone with the
    machine's power, also of what was to stay."""
    told_up_to = max((end for _, end in noted), default=0)
    for start, end in (0, intent.kept_end_offset), (intent.receipt.start_offset, _gone_from(log, intent, told_up_to)):
        at = max(start, log.log_end_offset, intent.log_start_offset)
        for note_start, note_end in noted:
            if at < min(note_start, end):
                yield at, min(note_start, end)
            at = max(at, note_end)
        if at < end:
            yield at, end


def _lost_with_power(intent: Intent, lost: Range) -> Receipt:
    start, end = lost
    loss_class, known_by = of_cut(LostBatches(start, end, end - start, 0, ()), intent.high_watermark)
    receipt = replace(
        intent.receipt,
        start_offset=start,
        end_offset_exclusive=end,
        leader_epochs=(),
        records=end - start,
        size_bytes=0,
        loss_class=loss_class,
        known_by=f"{known_by}; {_BY_OFFSETS}, their bytes and epochs are not known",
        cause=Cause.RECOVERY,
        reason=_LOST_POWER,
        leader=NOBODY,
        leader_epoch=NOBODY,
        evidence_note=_NOT_SYNCED,
    )
    return identified(receipt)


def _gone_from(log: Ends, intent: Intent, told_up_to: int) -> int:
    """From where on a cut has been carried out, and is to be told."""
    # Segments go from the last to the first: the start moves up when the log has begun anew, and not before.
    is_anew = intent.begins_anew and log.log_start_offset > intent.log_start_offset
    return max(intent.receipt.start_offset if is_anew else log.log_end_offset, told_up_to)


def _what_was_planned(folder: ReceiptFolder, intent: Intent) -> Receipt:
    evidence = tuple(f"{folder.path}/{name}" for name in folder.evidence() if name not in intent.others)
    known_by = f"{intent.receipt.known_by}; {_NOBODY_KNOWS}"
    return replace(intent.receipt, known_by=known_by, evidence=evidence, evidence_note="" if evidence else _NO_EVIDENCE)


def _what_happened(folder: ReceiptFolder, log: Ends, intent: Intent, told_up_to: int) -> Receipt | None:
    """The receipt of as much of a cut as was carried out; None where nothing was."""
    planned = intent.receipt
    new = [name for name in folder.evidence() if name not in intent.others]
    gone_from = _gone_from(log, intent, told_up_to)
    if gone_from <= planned.start_offset:
        evidence = tuple(f"{folder.path}/{name}" for name in new)
        return replace(planned, evidence=evidence, evidence_note="" if evidence else _NO_EVIDENCE)
    if gone_from >= intent.log_end_offset:
        return None
    # Part of it: whole segments have gone, the rest is cut again by whoever follows next.
    evidence = tuple(f"{folder.path}/{name}" for name in new if _base_offset(name) >= gone_from)
    lost = count_lost(
        folder.disk, [Piece(path, 0, _size(folder.disk, path)) for path in evidence], start_offset=gone_from
    )
    loss_class, known_by = of_cut(replace(lost, start_offset=gone_from), intent.high_watermark)
    if lost.end_offset_exclusive != planned.end_offset_exclusive or _lacks(lost, planned, gone_from):
        # The machine stopped before evidence was kept or on the disk; what is known is what was planned.
        return replace(
            planned,
            start_offset=gone_from,
            records=min(planned.records, planned.end_offset_exclusive - gone_from),
            loss_class=loss_class,
            known_by=f"{known_by}; {_BY_OFFSETS}, bytes and epochs are those of the whole cut",
            evidence=evidence,
            evidence_note=_STOPPED,
        )
    return replace(
        planned,
        start_offset=lost.start_offset,
        leader_epochs=lost.leader_epochs,
        records=lost.records,
        size_bytes=lost.size_bytes,
        loss_class=loss_class,
        known_by=known_by,
        evidence=evidence,
        evidence_note=_STOPPED,
    )


def _lacks(lost: LostBatches, planned: Receipt, gone_from: int) -> bool:
    """Whether evidence from `gone_from` on has fewer records than were there: of a log that has all its offsets."""
    has_all = planned.records == planned.end_offset_exclusive - planned.start_offset
    return has_all and lost.records < planned.end_offset_exclusive - gone_from


def _not_told(folder: ReceiptFolder, note: RecoveryNote) -> RecoveryNote:
    """What is missing at the end of a log may have been cut, with a receipt, before the next checkpoint."""
    start, end = note.lost.start_offset, note.lost.end_offset_exclusive
    for receipt in sorted(folder.contents().receipts, key=lambda each: each.start_offset):
        if receipt.start_offset <= start < receipt.end_offset_exclusive:
            start = min(receipt.end_offset_exclusive, end)
        elif start < receipt.start_offset < end <= receipt.end_offset_exclusive:
            end = receipt.start_offset
    lost = replace(note.lost, start_offset=start, end_offset_exclusive=end, records=end - start)
    return replace(note, lost=lost)


def _receipt_of_note(
    folder: ReceiptFolder,
    note: RecoveryNote,
    topic_partition: TopicPartition,
    topic_id: UUID | None,
    replica: int,
    high_watermark: int,
) -> Receipt:
    """Raises OSError."""
    claimed = {path for receipt in folder.contents().receipts for path in receipt.evidence}
    new = (f"{folder.path}/{name}" for name in folder.evidence() if name not in note.others)
    # A copy that a crash interrupted before its first byte is none.
    evidence = tuple(path for path in new if path not in claimed and _size(folder.disk, path))
    if note.is_untold:
        evidence = ()  # whole files are gone; what is there belongs to what followed
    lost = note.lost
    if note.is_set_aside:
        loss_class, known_by = of_cut(lost, max(high_watermark, note.known_high_watermark))
    elif note.deleted_below:
        loss_class, known_by = of_deleted(note.deleted_below)
    else:
        loss_class, known_by = of_recovery(lost, high_watermark, torn=note.torn)
        if note.is_missing:
            known_by = f"{known_by}; {_BY_OFFSETS}, their bytes and epochs are not known"
    receipt = Receipt(
        topic=topic_partition.topic,
        topic_id=topic_id,
        partition=topic_partition.partition,
        start_offset=lost.start_offset,
        end_offset_exclusive=lost.end_offset_exclusive,
        leader_epochs=lost.leader_epochs,
        records=lost.records,
        size_bytes=lost.size_bytes + lost.unreadable_bytes,
        loss_class=loss_class,
        known_by=known_by,
        cause=Cause.SET_ASIDE if note.is_set_aside else Cause.RECOVERY,
        reason=note.reason,
        replica=replica,
        leader=NOBODY,
        leader_epoch=NOBODY,
        time_ms=note.time_ms,
        evidence=evidence,
        evidence_note="" if evidence else _MISSING if note.is_missing else _TORN if note.torn else _NO_EVIDENCE,
    )
    return identified(receipt)


def _size(disk: Disk, path: str) -> int:
    found = disk.stat(path)
    return found.size_bytes if found is not None else 0


def _base_offset(name: str) -> int:
    """Of the segment that evidence was made of; -1 where it is the end of one."""
    digits, _, rest = name.partition(".")
    return int(digits) if digits.isdigit() and rest.startswith("log.") and "from-" not in rest else -1
