"""Checks that the leader-epoch checkpoint and the batches of a log agree (`epochs.md E13`-`E16`).

Owns the comparison. An epoch may have no batch; every batch's epoch must have an entry, unless the log was not closed.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

from fenceline.log.core.checkpoints import BadCheckpoint, read_epochs
from fenceline.log.core.disk import Disk, read_file
from fenceline.log.core.epoch_cache import EpochCache
from fenceline.log.core.file_names import EPOCH_FILE
from fenceline.log.verify.findings import LogFindingKind, Report, Severity

if TYPE_CHECKING:
    from fenceline.log.verify.places import PartitionPlace

_ADVICE: Final = (
    "Compare with the other replicas. If the batches are right, stop the node and remove the checkpoint: the next "
    "start reads the epochs from the log."
)


def check_epochs(disk: Disk, place: PartitionPlace, report: Report, content_before: bytes | None) -> None:
    """`content_before`: the checkpoint's content before the batches were read. If a running node has changed it since,
    a mismatch is a note. Raises OSError."""
    path = f"{place.path}/{EPOCH_FILE}"
    findings = report.findings
    open_severity = Severity.ERROR if place.closed else Severity.NOTE
    try:
        entries = read_epochs(disk, path)
    except (BadCheckpoint, UnicodeDecodeError) as error:
        findings.error(LogFindingKind.EPOCH_CHECKPOINT, path, str(error).removeprefix(f"{path}: "), _ADVICE)
        return
    if any(epoch < 0 or start < 0 for epoch, start in entries) or any(
        later[0] <= earlier[0] or later[1] <= earlier[1] for earlier, later in pairwise(entries)
    ):
        findings.error(
            LogFindingKind.EPOCH_CHECKPOINT, path, "epochs or offsets do not increase from line to line", _ADVICE
        )
        return
    changed = not place.closed and read_file(disk, path) != content_before
    wrong = Severity.NOTE if changed else Severity.ERROR
    start = place.log_start_offset
    if entries and not place.log_start_is_exact:
        start = max(start, entries[0][1])
    runs = [run for run in report.runs if run.epoch >= 0 and run.last_offset >= start]
    if not entries:
        if runs and (place.closed or (place.recovery_point or 0) > runs[0].first_offset):
            findings.note(
                LogFindingKind.EPOCH_CHECKPOINT, path, "is missing or empty", "The node reads the epochs from the log."
            )
        return
    cache = EpochCache(entries)
    for run in runs:
        first = max(run.first_offset, start)
        known, at_end = cache.epoch_for_offset(first), cache.epoch_for_offset(run.last_offset)
        if known == at_end == run.epoch:
            continue
        offset, stored = (first, known) if known != run.epoch else (run.last_offset, at_end)
        is_outdated = run.epoch > cache.latest_epoch and stored == cache.latest_epoch
        findings.add_new(
            open_severity if is_outdated else wrong,
            LogFindingKind.EPOCH_CHECKPOINT,
            run.path,
            f"the batch at offset {offset} has epoch {run.epoch}; {EPOCH_FILE} has"
            + (f" {stored} for it" if stored >= 0 else " no entry for it"),
            _ADVICE,
            position=run.position,
            offset=offset,
        )
    if cache.latest_start > report.end_offset:
        findings.add_new(
            open_severity,
            LogFindingKind.EPOCH_CHECKPOINT,
            path,
            f"epoch {cache.latest_epoch} starts at {cache.latest_start}, past the log end at {report.end_offset}",
            _ADVICE,
            offset=cache.latest_start,
        )
