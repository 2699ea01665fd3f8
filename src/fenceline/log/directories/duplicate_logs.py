"""Decides which of two directories of one partition is the log.

Owns the comparison. A power loss during a move between directories leaves the log in one directory and its copy in the
other, under the same name; so does Apache Kafka when it is killed between its two renames. One of them then continues
the other. If they diverge, only the operator or the metadata can decide.

Never changes a file: data that recovery would truncate is ignored in the comparison. Operations that a crash left
unfinished (compaction swaps, deletions) stay so until it is decided which copy is used. The other one keeps its files,
and no receipt is needed for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fenceline.log.core.agreement import agreed_end
from fenceline.log.core.config import LogConfig
from fenceline.log.recovery.recovery import load

if TYPE_CHECKING:
    from fenceline.log.core.disk import Disk
    from fenceline.log.directories.log_dir_offsets import KnownOffsets
    from fenceline.log.recovery.recovery import LoadedLog

_GAPS_ALLOWED: Final = LogConfig(cleanup_policy=frozenset(("compact",)))
"""To find out how far a log goes: gaps do not end it."""


@dataclass(frozen=True, slots=True)
class LogInspection:
    """A log as opening it would find it."""

    found: LoadedLog

    @property
    def log_start_offset(self) -> int:
        return self.found.log_start_offset

    @property
    def log_end_offset(self) -> int:
        return self.found.log_end_offset

    @property
    def latest_epoch(self) -> int:
        return self.found.epochs.latest_epoch

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """(epoch, end offset) by `epochs.md E13`."""
        return self.found.epochs.end_offset_for(epoch, self.log_end_offset)


def inspect_log(disk: Disk, directory: str, known: KnownOffsets, *, clean: bool) -> LogInspection:
    """Inspect the log in a directory. `known`: its checkpointed offsets; `clean`: nothing has happened to it since a
    clean shutdown. For a thread. Raises CorruptLog."""
    return LogInspection(
        load(
            disk,
            directory,
            config=_GAPS_ALLOWED,
            recovery_point=known.recovery_point,
            clean=clean,
            log_start_offset=known.log_start_offset,
            now_ms=0,
            read_only=True,
        )
    )


def longer_log(one: LogInspection, other: LogInspection) -> LogInspection | None:
    """The one that contains the other, the first if they are equal; None if they diverge."""
    longer, shorter = (one, other) if one.log_end_offset >= other.log_end_offset else (other, one)
    overlap = shorter.log_end_offset >= longer.log_start_offset
    if overlap and agreed_end(shorter, longer) == shorter.log_end_offset:
        return longer
    return None
