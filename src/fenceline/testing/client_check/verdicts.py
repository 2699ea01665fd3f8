"""What a program did in a case: from what it printed, and from what the log has.

Owns the words of the verdicts and their order. Runs nothing.

| Word | Means |
|---|---|
| recovered | what was written after the case was processed, and nothing of the following is true |
| noticed | it printed something about the case, or ended with an error |
| lost | records that are in the log were not processed; or that were acknowledged are not in the log |
| duplicated | records were processed, or written, more than once |
| hung | it ran on, and did not process what was written after the case |
| crashed | it ended by itself, and went on when it was started again; or it did not, "for good" |
| stopped | records are gone, it said so, ended with an error, and ended again when it was started again |
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from fenceline.testing.client_check.program import PrintedLine

VALUE: Final = re.compile(r"\b(?:r|lost|new|aborted|hanging|anew)-[0-9a-z]*-?\d+\b")
_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class CaseVerdict:
    """The outcome of one case. `lost`, `duplicated`: values. `stale`: values that it processed and that the log lost
    afterwards. `remarks`: what it printed about the case. `timeline`: of the laboratory."""

    case: str
    recovered: bool
    noticed: bool
    must_notice: bool
    hung: bool
    exit_code: int | None
    recovered_after_restart: bool | None = None
    lost: tuple[str, ...] = ()
    duplicated: tuple[str, ...] = ()
    stale: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    timeline: str = ""
    impossible: str = ""
    """Why the case could not be made true; nothing else counts then."""
    seconds: float = 0.0
    notes: tuple[str, ...] = field(default=())

    @property
    def crashed(self) -> bool:
        return self.exit_code is not None

    @property
    def stopped(self) -> bool:
        """It refuses to continue after a loss that it has reported, until a person decides."""
        ended = self.exit_code not in (None, 0) and self.recovered_after_restart is False
        return ended and self.must_notice and bool(self.remarks)

    @property
    def words(self) -> list[str]:
        """The verdict, the worst first."""
        if self.impossible:
            return ["not run"]
        words = []
        if self.stopped:
            words.append("stopped")
        elif self.crashed:
            words.append("crashed" if self.recovered_after_restart is not False else "crashed for good")
        if self.hung:
            words.append("hung")
        if self.lost:
            words.append(f"lost {len(self.lost)}")
        if self.duplicated:
            words.append(f"duplicated {len(self.duplicated)}")
        if not words:
            words.append("recovered")
        if self.noticed:
            words.append("noticed")
        elif self.must_notice:
            words.append("silent")
        return words

    @property
    def is_good(self) -> bool:
        """Nothing is lost or hangs, and what must be noticed was."""
        silent = self.must_notice and not self.noticed
        ended = self.crashed and self.recovered_after_restart is False and not self.stopped
        return not (self.lost or self.hung or ended or silent or self.impossible)

    def summary(self) -> str:
        """One line."""
        return ", ".join(self.words)

    def details(self) -> list[str]:
        """Lines that say more, for a person."""
        lines = []
        for what, values in (
            ("lost", self.lost),
            ("duplicated", self.duplicated),
            ("no longer in the log", self.stale),
        ):
            if values:
                more = f" and {len(values) - _SHOWN} more" if len(values) > _SHOWN else ""
                lines.append(f"{what}: {', '.join(values[:_SHOWN])}{more}")
        if self.exit_code is not None:
            lines.append(f"it ended with exit code {self.exit_code}")
        lines += [f"it printed: {each}" for each in self.remarks[:_SHOWN]]
        lines += self.notes
        if self.impossible:
            lines.append(self.impossible)
        return lines


def processed(lines: Iterable[PrintedLine]) -> Counter[str]:
    """The values that the program printed, and how often."""
    counts: Counter[str] = Counter()
    for line in lines:
        if not line.is_error:
            counts.update(VALUE.findall(line.text))
    return counts


def remarks(
    lines: Sequence[PrintedLine],
    since_s: float,
    about: re.Pattern[str],
    noise: Collection[str] = (),
) -> tuple[str, ...]:
    """Lines since a time that say something about the case, are no values, and have no shape of `noise`."""
    found = [
        line.text
        for line in lines
        if line.at_s >= since_s
        and about.search(line.text)
        and not VALUE.fullmatch(line.text.strip())
        and shape(line.text) not in noise
    ]
    return tuple(dict.fromkeys(found))


def shape(line: str) -> str:
    """A line without what differs each time: numbers, ids and addresses."""
    return re.sub(r"[0-9a-f]*[0-9][0-9a-f]*", "#", line)


def duplicates(counts: Mapping[str, int]) -> tuple[str, ...]:
    return tuple(value for value, count in counts.items() if count > 1)
