"""Two directories of one partition: which of them is the log.

Owns the comparison. A move between directories that a loss of power interrupted leaves the log in one and what was to
take its place in the other, under the same name; so does Apache Kafka's when it is killed between its two renames. One
of them then continues where the other ends. Where the two part, only the operator or the metadata knows.

Never changes a file: what recovery would cut off a copy is only left out of the comparison, and what a crash left half
done (an exchange of segments by compaction, files on their way out) stays so until it is known which copy counts. The
other one keeps its files, and loses nothing that would need a receipt.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fenceline.log.agreement import agreed_end
from fenceline.log.config import LogConfig
from fenceline.log.recovery import load

if TYPE_CHECKING:
    from fenceline.log.disk import Disk
    from fenceline.log.log_dir_offsets import Known
    from fenceline.log.recovery import Loaded

_GAPS_ALLOWED: Final = LogConfig(cleanup_policy=frozenset(("compact",)))
"""To look how far a log goes: gaps are no reason to end it."""


@dataclass(frozen=True, slots=True)
class Survey:
    """A log as opening it would find it."""

    found: Loaded

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


def survey(disk: Disk, directory: str, known: Known, *, clean: bool) -> Survey:
    """Look at the log in a directory. `known`: what the checkpoints say of it; `clean`: since a clean stop nothing has
    happened to it. For a thread. Raises CorruptLog."""
    return Survey(
        load(
            disk,
            directory,
            config=_GAPS_ALLOWED,
            recovery_point=known.recovery_point,
            clean=clean,
            log_start_offset=known.log_start_offset,
            now_ms=0,
            looks_only=True,
        )
    )


def the_longer(one: Survey, other: Survey) -> Survey | None:
    """The one that has all that the other has, the first of two that are the same; None where they part."""
    longer, shorter = (one, other) if one.log_end_offset >= other.log_end_offset else (other, one)
    overlap = shorter.log_end_offset >= longer.log_start_offset
    if overlap and agreed_end(shorter, longer) == shorter.log_end_offset:
        return longer
    return None
