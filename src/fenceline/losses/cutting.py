"""Truncates a log so that every loss has a receipt, even if the machine stops at any point.

Owns the order: the affected batches are counted and recorded as an intent, then the log is truncated, then the receipt
records what was really removed and where it is. After a crash `resolve_pending` determines how far that went. A full
disk first makes room by deleting older evidence, then truncates without evidence and records that; if the receipt
cannot be written, the truncation stops.

Blocks on the disk: for a thread, or at start. Simulations use it unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple
from uuid import UUID

from fenceline.ids import TopicPartition
from fenceline.log.core.disk import Disk
from fenceline.log.core.errors import StorageError, TruncationPending, is_transient
from fenceline.log.core.lost_batches import LostBatches, LostPiece, count_lost
from fenceline.log.partition.partition_log import NO_LIMIT, PartitionLog
from fenceline.log.recovery.note import RecoveryNote, read_note
from fenceline.losses.classes import LaterStart, of_cut, of_deleted, of_recovery
from fenceline.losses.folder import Intent, ReceiptFolder
from fenceline.losses.quarantine import FULL
from fenceline.losses.receipt import NO_NODE, LossCause, Receipt, identified
from fenceline.losses.transactions import lost_transactions

_NO_EVIDENCE: Final = "The disk was full, or the node stopped before the truncated bytes were saved."
_TORN: Final = "The torn end of one write is not kept."
_STOPPED: Final = "The node stopped during the truncation."
_NOT_SYNCED: Final = "Data that was not on the disk when the machine lost power cannot be recovered."
_LOST_POWER: Final = "the machine lost power during a truncation, and the records were not on the disk yet"
_MISSING: Final = "The records are no longer on the disk."
_BY_OFFSETS: Final = "records are counted by their offsets"
_MAY_HAVE_REMAINED: Final = "the log cannot be opened any more, and may still have had some of them"


Range = tuple[int, int]
"""Offsets [start, end)."""


class Ends(NamedTuple):
    """The current start and end of a log."""

    log_start_offset: int
    log_end_offset: int


class LogContext(NamedTuple):
    """The log that a folder belongs to. `ends`: None if the log cannot be opened and the ends are unknown."""

    topic_partition: TopicPartition
    topic_id: UUID | None
    ends: Ends | None


@dataclass(frozen=True, slots=True)
class LogCut:
    """The truncation a follower must do, with its context. `truncates_fully`: empty the log, which continues at
    `offset`."""

    offset: int
    truncates_fully: bool
    cause: LossCause
    reason: str
    replica: int
    leader: int
    leader_epoch: int
    time_ms: int
    unanswered_ends: frozenset[int] = frozenset()
    """Ends of batches whose producers were answered that they are not committed; set only if this replica led just
    before and no other since."""
    clean_since: int = NO_LIMIT
    """No leader of a later epoch was elected uncleanly; NO_LIMIT: none is known."""
    is_lossless: bool = False
    """The leader has everything that is removed: nothing is lost, and nothing is kept."""


def cut_log(disk: Disk, log: PartitionLog, cut: LogCut, make_room: Callable[[], bool] = lambda: False) -> list[Receipt]:
    """Truncate; when this returns, the receipts of the lost records are next to the evidence.

    `make_room` frees disk space, and returns False if there is none to free. Raises TruncationPending: the log is
    truncated, or partly, and the same call continues once there is room. Raises StorageError: on a full disk the log is
    unchanged.
    """
    folder = ReceiptFolder(disk, log.directory)
    receipts: list[Receipt] = []
    high_watermark = log.high_watermark
    keep_evidence = False
    while True:
        if log.unfinished is None or log.unfinished.offset != cut.offset:
            if log.unfinished is not None:
                _resume(log)
                log.unfinished = None
            receipts += _resolve_now(folder, log, make_room, cut.replica, high_watermark)
            try:
                intent = _intent_of(folder, log, cut)
                if intent is not None:
                    folder.intend(intent)
                    keep_evidence = not cut.is_lossless
            except OSError as error:
                if error.errno in FULL and make_room():
                    continue
                raise StorageError.of(f"writing the loss receipt of {log.topic_partition}", error) from error
        else:
            # The intent covers it, and becomes its receipt.
            _refresh_intents(folder, log)
        try:
            _truncate(log, cut, keep_evidence=keep_evidence)
        except StorageError as error:
            if error.disk_full and (log.offline is None or log.unfinished is not None) and make_room():
                continue
            if log.unfinished is not None or log.offline is not None or not error.disk_full:
                raise _pending_error(log, error) from error
            _truncate_without_evidence(log, cut)
        log.unfinished = None
        return receipts + _resolve_now(folder, log, make_room, cut.replica, high_watermark)


def resolve_pending(
    disk: Disk,
    log: PartitionLog,
    *,
    replica: int,
    high_watermark: int,
) -> list[Receipt]:
    """Receipts of truncations that a crash interrupted, and of those by recovery; call it before the log is used.
    Raises OSError.

    `high_watermark`: of the last checkpoint.
    """
    context = LogContext(log.topic_partition, log.topic_id, Ends(log.log_start_offset, log.log_end_offset))
    return resolve_pending_files(
        ReceiptFolder(disk, log.directory), context, replica=replica, high_watermark=high_watermark
    )


def resolve_pending_files(
    folder: ReceiptFolder, context: LogContext, *, replica: int, high_watermark: int
) -> list[Receipt]:
    """As `resolve_pending`, also for a log that cannot be opened."""
    disk = folder.disk
    notes = [(path, note) for path in folder.notes() if (note := read_note(disk, path)) is not None]
    # The notes report what recovery cut, also within the range of an interrupted truncation.
    noted = sorted((note.lost.start_offset, note.lost.end_offset_exclusive) for _, note in notes)
    is_lossless = any(intent.is_lossless for intent in folder.intents())
    receipts = _resolve_intents(folder, context.ends, noted)
    for path, note in notes:
        if is_lossless:
            disk.unlink(path)  # of a log that is being emptied: its leader has all of it
            continue
        if note.is_missing and not note.is_untold and not (note := _unreported_part(folder, note)).lost.records:
            disk.unlink(path)
            continue
        receipt = _receipt_of_note(folder, note, context.topic_partition, context.topic_id, replica, high_watermark)
        if not folder.is_known(receipt.id):
            folder.mark_due(receipt)
            receipts.append(receipt)
        disk.unlink(path)
    if notes:
        # A note that reappears after a power loss would replace that of the next recovery.
        disk.fsync_dir(folder.path)
    return receipts


def _resume(log: PartitionLog) -> None:
    """Raises TruncationPending."""
    try:
        log.resume()
    except StorageError as error:
        raise _pending_error(log, error) from error


def _pending_error(log: PartitionLog, error: StorageError) -> StorageError:
    """The error of a truncation that the disk failed: TruncationPending if it failed in the middle and may pass."""
    if log.unfinished is None:
        return error
    log.offline = None  # it stays out of service during the truncation
    return TruncationPending(error.message, error.errno)


def _truncate_without_evidence(log: PartitionLog, cut: LogCut) -> None:
    """Raises TruncationPending, StorageError."""
    try:
        _truncate(log, cut, keep_evidence=False)
    except StorageError as error:
        raise _pending_error(log, error) from error


def _refresh_intents(folder: ReceiptFolder, log: PartitionLog) -> None:
    """Older evidence may have been deleted; its names are free for the evidence of a truncation that has begun. Raises
    TruncationPending."""
    there = set(folder.evidence())
    try:
        for intent in list(folder.intents()):
            others = tuple(name for name in intent.others if name in there)
            if others != intent.others:
                folder.intend(replace(intent, others=others))
    except OSError as error:
        raise _pending_error(log, StorageError.of(f"truncating {log.topic_partition}", error)) from error


def _truncate(log: PartitionLog, cut: LogCut, *, keep_evidence: bool = True) -> None:
    """Truncate from the beginning, or continue where the disk failed. Raises StorageError."""
    if log.unfinished is not None:
        keep_evidence = log.unfinished.keeps_evidence
        log.resume()
    if cut.truncates_fully:
        log.truncate_fully_and_start_at(cut.offset, keep_evidence=keep_evidence)
    else:
        log.truncate_to(cut.offset, keep_evidence=keep_evidence)


def _intent_of(folder: ReceiptFolder, log: PartitionLog, cut: LogCut) -> Intent | None:
    """None if nothing is lost. Raises OSError."""
    pieces = log.pieces_from_start() if cut.truncates_fully else log.pieces_from(cut.offset)
    lost = count_lost(folder.disk, pieces, start_offset=log.log_start_offset, unanswered_ends=cut.unanswered_ends)
    if not lost.records and not lost.unreadable_bytes:
        return None
    leader = None
    if cut.truncates_fully and cut.cause is LossCause.LEADER_STARTS_LATER:
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
        transactions=lost_transactions(lost.transactions),
        transaction_count=lost.transaction_count,
    )
    kept_end = 0 if cut.truncates_fully else min(log.end_after(cut.offset), lost.start_offset)
    return Intent(
        identified(receipt),
        log.log_start_offset,
        log.log_end_offset,
        log.high_watermark,
        cut.truncates_fully,
        tuple(folder.evidence()),
        kept_end,
        cut.is_lossless,
    )


def _resolve_now(
    folder: ReceiptFolder, log: PartitionLog, make_room: Callable[[], bool], replica: int, high_watermark: int
) -> list[Receipt]:
    """Includes what the truncation found damaged in the part that was to stay (`truncation._reload`), and cut."""
    context = LogContext(log.topic_partition, log.topic_id, Ends(log.log_start_offset, log.log_end_offset))
    while True:
        try:
            return resolve_pending_files(folder, context, replica=replica, high_watermark=high_watermark)
        except OSError as error:
            what = f"writing the loss receipt of {log.topic_partition}"
            # The intent is durable; the next attempt or start resolves it. Until then this log must not be served.
            if is_transient(error.errno):
                if error.errno in FULL and make_room():
                    continue
                raise TruncationPending.of(what, error) from error
            log.offline = StorageError.of(what, error)
            raise log.offline from error


def _resolve_intents(folder: ReceiptFolder, ends: Ends | None, noted: Sequence[Range] = ()) -> list[Receipt]:
    """`noted`: ranges reported by recovery, ascending. Raises OSError."""
    reported_up_to = max((end for _, end in noted), default=0)
    receipts = []
    for intent in list(folder.intents()):
        if intent.is_lossless:
            folder.drop_intent(intent.receipt.id)
            continue
        reports = [_lost_with_power(intent, each) for each in _unreported_ranges(ends, intent, noted)] if ends else []
        if not folder.is_known(intent.receipt.id):
            cut = _executed_receipt(folder, ends, intent, reported_up_to) if ends else _planned_receipt(folder, intent)
            reports += [cut] if cut is not None else []
        for receipt in reports:
            if not folder.is_known(receipt.id):
                folder.mark_due(receipt)
                receipts.append(receipt)
        folder.drop_intent(intent.receipt.id)
    return receipts


def _unreported_ranges(log: Ends, intent: Intent, noted: Sequence[Range]) -> Iterator[Range]:
    """Offsets that the log had before the truncation and has not now, reported neither by recovery nor by the
    truncation: lost with the machine's power, possibly from the part that was to stay."""
    reported_up_to = max((end for _, end in noted), default=0)
    for start, end in (
        (0, intent.kept_end_offset),
        (intent.receipt.start_offset, _executed_from(log, intent, reported_up_to)),
    ):
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
        cause=LossCause.RECOVERY,
        reason=_LOST_POWER,
        leader=NO_NODE,
        leader_epoch=NO_NODE,
        evidence_note=_NOT_SYNCED,
        transactions=(),
        transaction_count=0,
    )
    return identified(receipt)


def _executed_from(log: Ends, intent: Intent, reported_up_to: int) -> int:
    """The first offset of the executed part of a truncation, which must be reported."""
    # Segments are removed last to first: the start moves up once the log has restarted, and not before.
    has_restarted = intent.truncates_fully and log.log_start_offset > intent.log_start_offset
    return max(intent.receipt.start_offset if has_restarted else log.log_end_offset, reported_up_to)


def _planned_receipt(folder: ReceiptFolder, intent: Intent) -> Receipt:
    evidence = tuple(f"{folder.path}/{name}" for name in folder.evidence() if name not in intent.others)
    known_by = f"{intent.receipt.known_by}; {_MAY_HAVE_REMAINED}"
    return replace(intent.receipt, known_by=known_by, evidence=evidence, evidence_note="" if evidence else _NO_EVIDENCE)


def _executed_receipt(folder: ReceiptFolder, log: Ends, intent: Intent, reported_up_to: int) -> Receipt | None:
    """The receipt of the executed part of a truncation; None if nothing was removed."""
    planned = intent.receipt
    new = [name for name in folder.evidence() if name not in intent.others]
    executed_from = _executed_from(log, intent, reported_up_to)
    if executed_from <= planned.start_offset:
        evidence = tuple(f"{folder.path}/{name}" for name in new)
        return replace(planned, evidence=evidence, evidence_note="" if evidence else _NO_EVIDENCE)
    if executed_from >= intent.log_end_offset:
        return None
    # Only part of it: complete segments were removed; the next follower step truncates the rest again.
    evidence = tuple(f"{folder.path}/{name}" for name in new if _base_offset(name) >= executed_from)
    lost = count_lost(
        folder.disk, [LostPiece(path, 0, _size(folder.disk, path)) for path in evidence], start_offset=executed_from
    )
    loss_class, known_by = of_cut(replace(lost, start_offset=executed_from), intent.high_watermark)
    if lost.end_offset_exclusive != planned.end_offset_exclusive or _lacks(lost, planned, executed_from):
        # The machine stopped before evidence was saved; only the planned truncation is known.
        return replace(
            planned,
            start_offset=executed_from,
            records=min(planned.records, planned.end_offset_exclusive - executed_from),
            loss_class=loss_class,
            known_by=f"{known_by}; {_BY_OFFSETS}, bytes and epochs are those of the complete truncation",
            evidence=evidence,
            evidence_note=_STOPPED,
            transactions=tuple(each for each in planned.transactions if each.end_offset_exclusive > executed_from),
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
        transactions=lost_transactions(lost.transactions),
        transaction_count=lost.transaction_count,
    )


def _lacks(lost: LostBatches, planned: Receipt, executed_from: int) -> bool:
    """Whether the evidence from `executed_from` on has fewer records than the log had, for a log without gaps."""
    has_all = planned.records == planned.end_offset_exclusive - planned.start_offset
    return has_all and lost.records < planned.end_offset_exclusive - executed_from


def _unreported_part(folder: ReceiptFolder, note: RecoveryNote) -> RecoveryNote:
    """The part of a note that has no receipt: records missing at the end of a log may have been truncated, with a
    receipt, before the next checkpoint."""
    start, end = note.lost.start_offset, note.lost.end_offset_exclusive
    for receipt in sorted(folder.contents().receipts, key=lambda each: each.start_offset):
        if receipt.start_offset <= start < receipt.end_offset_exclusive:
            start = min(receipt.end_offset_exclusive, end)
        elif start < receipt.start_offset < end <= receipt.end_offset_exclusive:
            end = receipt.start_offset
    lost = replace(
        note.lost,
        start_offset=start,
        end_offset_exclusive=end,
        records=end - start,
        transactions=(),
        transaction_count=0,
    )
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
    # A copy that a crash interrupted before its first byte is no evidence.
    evidence = tuple(path for path in new if path not in claimed and _size(folder.disk, path))
    if note.is_untold:
        evidence = ()  # complete files are lost; existing files belong to what followed
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
        cause=LossCause.SET_ASIDE if note.is_set_aside else LossCause.RECOVERY,
        reason=note.reason,
        replica=replica,
        leader=NO_NODE,
        leader_epoch=NO_NODE,
        time_ms=note.time_ms,
        evidence=evidence,
        evidence_note="" if evidence else _MISSING if note.is_missing else _TORN if note.torn else _NO_EVIDENCE,
        transactions=lost_transactions(lost.transactions),
        transaction_count=lost.transaction_count,
    )
    return identified(receipt)


def _size(disk: Disk, path: str) -> int:
    found = disk.stat(path)
    return found.size_bytes if found is not None else 0


def _base_offset(name: str) -> int:
    """Base offset of the segment that the evidence was; -1 if it is the end of one."""
    digits, _, rest = name.partition(".")
    return int(digits) if digits.isdigit() and rest.startswith("log.") and "from-" not in rest else -1
