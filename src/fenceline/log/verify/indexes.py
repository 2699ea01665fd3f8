"""Compares the index files of a segment with its batches during the scan.

Owns what each entry promises to a look-up (`formats.md F4`), and the messages for violations. An index is built from
the log, so a wrong one loses no record: look-ups may miss some, or read too much.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final, TypeVar

from fenceline.log.core.disk import Disk, read_file
from fenceline.log.core.file_names import SNAPSHOT_SUFFIX
from fenceline.log.core.index import OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES, OffsetIndex, TimeIndex, decode_aborted
from fenceline.log.core.producer_state import BadSnapshot, ProducerStates
from fenceline.log.verify.findings import Findings, LogFinding, LogFindingKind, Severity
from fenceline.log.verify.segment import Rows

_REBUILD: Final = "Stop the node and remove the file: the next start rebuilds it from the log."
_NEVER: Final = 1 << 62
Index = TypeVar("Index", OffsetIndex, TimeIndex)


class IndexCheck:
    """Of one segment. Call `see` for every window of batches in order, then `finish`, which reports the results.

    `severity`: a note in the newest segment of a log that was not closed, because the node's next start repairs it.
    """

    def __init__(self, disk: Disk, stem: str, base_offset: int, severity: Severity, findings: Findings) -> None:
        self._stem = stem
        self._base_offset = base_offset
        self._severity = severity
        self._findings = findings
        self.missing: list[str] = []
        self._found: list[LogFinding] = []
        self._index = self._read(disk, ".index", LogFindingKind.OFFSET_INDEX, OffsetIndex)
        self._times = self._read(disk, ".timeindex", LogFindingKind.TIME_INDEX, TimeIndex)
        self._aborted = self._read_aborted(disk)
        self._index_at = 0
        self._time_at = 0
        self._max_timestamp = -1
        self._next_offset = base_offset
        self._markers: set[tuple[int, int]] = set()

    # -- reading ------------------------------------------------------------------------------------------------

    def _read(self, disk: Disk, suffix: str, kind: LogFindingKind, index: type[Index]) -> Index:
        """The file's content; an empty index if it is missing or invalid, which is noted."""
        path = self._stem + suffix
        content = read_file(disk, path)
        if content is None:
            self.missing.append(path)
            return index()
        found = index.decode(content)
        if found is None:
            self._report(kind, path, f"{len(content)} bytes that are truncated or not in ascending order")
            return index()
        return found

    def _read_aborted(self, disk: Disk) -> list[tuple[int, int]]:
        path = self._stem + ".txnindex"
        content = read_file(disk, path)
        if not content:
            return []
        entries = decode_aborted(content)
        if entries is None:
            self._report(
                LogFindingKind.TRANSACTION_INDEX, path, f"{len(content)} bytes that are not a transaction index"
            )
            return []
        return [(entry.producer_id, entry.last_offset) for entry in entries]

    # -- comparing ----------------------------------------------------------------------------------------------

    def see(self, rows: Rows) -> None:
        self._see_positions(rows)
        self._see_times(rows)
        self._next_offset = rows.value("last_offset", rows.count - 1) + 1

    def marker(self, producer_id: int, offset: int) -> None:
        """The log has the marker of an aborted transaction there."""
        self._markers.add((producer_id, offset))

    def _see_positions(self, rows: Rows) -> None:
        positions, bases, count = rows.column("position"), rows.column("base_offset"), rows.count
        entries, offsets = self._index.positions, self._index.offsets
        first, self._index_at = self._index_at, bisect_left(entries, rows.end_position, self._index_at)
        row = 0
        for at in range(first, self._index_at):
            position, offset = entries[at], self._base_offset + offsets[at]
            row = bisect_left(positions, position, row)
            if row == count or positions[row] != position:
                self._wrong_index(at, offset, f"points to byte {position} of the log, where no batch begins")
            elif bases[row] > offset:
                self._wrong_index(
                    at, offset, f"points to byte {position} of the log, after offset {offset}: look-ups miss it"
                )

    def _see_times(self, rows: Rows) -> None:
        lasts, highest = rows.column("last_offset"), rows.column("highest_timestamp")
        entries = self._times
        before, row = self._max_timestamp, 0
        while self._time_at < len(entries):
            offset = self._base_offset + entries.offsets[self._time_at]
            if offset > lasts[rows.count - 1]:
                break
            row = bisect_left(lasts, offset, row)
            self._max_timestamp = max(before, highest[row - 1]) if row else before
            self._check_time(self._time_at, offset, max(before, highest[row]))
            self._time_at += 1
        self._max_timestamp = max(before, highest[-1])

    def _check_time(self, at: int, offset: int, highest: int) -> None:
        stamp = self._times.timestamps[at]
        if self._max_timestamp > stamp:
            self._wrong_time(
                at,
                offset,
                f"has timestamp {stamp}, but an earlier record has {self._max_timestamp}: look-ups by time miss it",
            )
        elif stamp > highest:
            self._wrong_time(at, offset, f"has timestamp {stamp}, but no record up to there is later than {highest}")

    def finish(self, log_path: str, *, complete: bool) -> None:
        """At the end of the segment. Reports nothing unless it is `complete` and all its batches were seen: damage of
        the log would be reported twice."""
        if not complete:
            return
        if self._index_at < len(self._index):
            at = self._index_at
            self._wrong_index(
                at,
                self._base_offset + self._index.offsets[at],
                f"points to byte {self._index.positions[at]}, past the end of the log",
                more=len(self._index) - at - 1,
            )
        if self._time_at < len(self._times):
            at = self._time_at
            offset = self._base_offset + self._times.offsets[at]
            self._wrong_time(at, offset, "is for an offset past the end of the segment")
        for producer_id, offset in self._aborted:
            if (producer_id, offset) not in self._markers:
                self._report(
                    LogFindingKind.TRANSACTION_INDEX,
                    self._stem + ".txnindex",
                    f"has a transaction of producer {producer_id} aborted at offset {offset}, but {log_path} has no "
                    "such marker",
                    offset=offset,
                )
        for finding in self._found:
            self._findings.add(finding)

    def _wrong_index(self, at: int, offset: int, words: str, *, more: int = 0) -> None:
        also = f" ({more} more entries do)" if more else ""
        self._report(
            LogFindingKind.OFFSET_INDEX,
            self._stem + ".index",
            f"entry {at} for offset {offset} {words}{also}",
            position=at * OFFSET_ENTRY_BYTES,
            offset=offset,
        )

    def _wrong_time(self, at: int, offset: int, words: str) -> None:
        self._report(
            LogFindingKind.TIME_INDEX,
            self._stem + ".timeindex",
            f"entry {at} for offset {offset} {words}",
            position=at * TIME_ENTRY_BYTES,
            offset=offset,
        )

    def _report(self, kind: LogFindingKind, path: str, message: str, *, position: int = -1, offset: int = -1) -> None:
        self._found.append(LogFinding(kind, self._severity, path, position, offset, message, _REBUILD))


def check_producer_snapshot(disk: Disk, stem: str, findings: Findings) -> None:
    """Check the checksum and the form of a `.snapshot` file. Raises OSError."""
    path = stem + SNAPSHOT_SUFFIX
    content = read_file(disk, path)
    if content is None:
        return
    try:
        ProducerStates().load(content, now_ms=0, expiration_ms=_NEVER)
    except BadSnapshot as error:
        findings.error(
            LogFindingKind.PRODUCER_SNAPSHOT,
            path,
            f"not a producer snapshot: {error}",
            "Stop the node and remove the file: the next start reads the producers from the log.",
        )
