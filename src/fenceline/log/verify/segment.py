"""Reads every byte of one segment file: yields plain batches, or flaws that describe the damage.

Owns the scan, the search for a batch boundary after damage, and the messages for damage. Never stops at the first flaw,
never changes a file, and knows only this file: `partition.py` owns the meaning for the partition.

Reads in windows of `WINDOW_BYTES`, so that the checksum finds the bytes in the processor's cache and a segment of any
size needs bounded memory. Does not map the file: a broker may shorten it meanwhile, which would kill this process.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from fenceline.errors import PeerError
from fenceline.log.core.disk import Disk
from fenceline.log.verify.findings import LogFindingKind
from fenceline.records.batch import (
    BATCH_OVERHEAD,
    CRC_COVERS_FROM,
    LENGTH_PREFIX,
    MAGIC,
    BatchHeader,
    peek_header,
)
from fenceline.records.batch_scan import COLUMNS, TOTALS, scan_plain
from fenceline.records.crc import crc32c

WINDOW_BYTES: Final = 1 << 20
MAX_UNVERIFIED_BYTES: Final = 16 << 20
"""The checksum of a batch that claims to be larger is checked before memory is allocated for it."""
LARGEST_WINDOW_BYTES: Final = 256 << 20
"""Larger batches are checked piece by piece, and their records cannot be read."""
ROWS: Final = 4096
"""Maximum number of batches per step."""
MIN_ROWS: Final = 16
"""Minimum, so that a small file has room for batches that are written meanwhile."""
MAGIC_POSITION: Final = 16
MAX_GROWTH_CHECKS: Final = 10
"""How often the end of a growing file is checked again."""
_COLUMN: Final = {name: index for index, name in enumerate(COLUMNS)}
_UNUSED_ATTRIBUTES: Final = ~0x7F
_HIGHEST_OFFSET: Final = (1 << 63) - 1


class Rows:
    """Plain batches of one window. Valid until the next step: columns and bytes are views."""

    __slots__ = ("_columns", "_content", "_content_position", "count", "totals")

    def __init__(
        self, columns: memoryview, count: int, totals: dict[str, int], content: memoryview, content_position: int
    ) -> None:
        self._columns = columns
        self.count = count
        self.totals = totals
        """Named by TOTALS."""
        self._content = content
        self._content_position = content_position

    def column(self, name: str) -> memoryview:
        """One of COLUMNS; items are int."""
        start = _COLUMN[name] * (len(self._columns) // len(COLUMNS))
        return self._columns[start : start + self.count]

    def value(self, name: str, row: int) -> int:
        found: int = self.column(name)[row]
        return found

    def content(self, row: int) -> memoryview:
        """The bytes of one batch."""
        start = self.value("position", row) - self._content_position
        return self._content[start : start + self.value("size_bytes", row)]

    @property
    def end_position(self) -> int:
        return self.value("position", self.count - 1) + self.value("size_bytes", self.count - 1)


class Problem(NamedTuple):
    kind: LogFindingKind
    message: str
    advice: str


@dataclass(frozen=True, slots=True)
class Flaw:
    """Bytes `position` up to `end_position` that are not a plain batch.

    `header`: the batch header in these bytes; None if there is none. `torn`: the file ends within an unfinished write.
    `crc_ok`: None if there is no batch to check.
    """

    position: int
    end_position: int
    problems: tuple[Problem, ...]
    header: BatchHeader | None
    crc_ok: bool | None
    torn: bool
    content: memoryview | None = None
    """The batch, if it is complete and its checksum is right."""


_RESTORE: Final = (
    "Other replicas may have it intact: compare with `fenceline verify`, then stop the node and move this directory "
    "away, so that it is copied again from the leader."
)
_TORN_ADVICE: Final = (
    "A crash leaves this, and the next start of the node truncates it. If the node is running and the file does not "
    "grow, restart it."
)


class SegmentWalk:
    """One pass over one file. `next_offset` and `leader_epoch` are the expected values; both may be set between steps.

    `grow` is called if the file ends within a batch: it gets the known size and returns a larger one once there is one,
    or the same if the file does not grow. Without it the size is final.
    """

    def __init__(
        self,
        disk: Disk,
        path: str,
        *,
        start: int = 0,
        end: int,
        next_offset: int = 0,
        leader_epoch: int = -1,
        check_crc: bool = True,
        grow: Callable[[int], int] | None = None,
        window_bytes: int = WINDOW_BYTES,
    ) -> None:
        self._disk = disk
        self._path = path
        self.position = start
        self.end = end
        self.next_offset = next_offset
        self.leader_epoch = leader_epoch
        self.check_crc = check_crc
        self._grow = grow
        self._growths = 0
        self._window_bytes = window_bytes
        rows = min(ROWS, (end - start) // BATCH_OVERHEAD + MIN_ROWS)
        self._rows = array("q", bytes(8 * rows * len(COLUMNS)))
        self._columns = memoryview(self._rows)
        self._totals = array("q", bytes(8 * len(TOTALS)))
        self._fd = -1

    def __iter__(self) -> Iterator[Rows | Flaw]:
        """Raises OSError."""
        self._fd = self._disk.open_read(self._path)
        try:
            yield from self._steps()
        finally:
            self._disk.close(self._fd)
            self._fd = -1

    def _steps(self) -> Iterator[Rows | Flaw]:
        window, window_position = memoryview(b""), self.position
        while self.position < self.end:
            at = self.position - window_position
            count = scan_plain(
                window, at, len(window), self.position, self._rows, self._totals, self.next_offset,
                self.leader_epoch, self.check_crc,
            )  # fmt: skip
            if count:
                rows = Rows(self._columns, count, dict(zip(TOTALS, self._totals, strict=True)), window, window_position)
                self.position = rows.end_position
                self.next_offset = rows.value("last_offset", count - 1) + 1
                self.leader_epoch = rows.value("leader_epoch", count - 1)
                yield rows
                continue
            due = self._due(window[at:])
            if due > len(window) - at:
                window, window_position = self._read(self.position, due), self.position
                if len(window) >= min(due, self.end - self.position):
                    continue
                self.end = self.position + len(window)
                yield _shorter(self.position, self.end)
                continue
            flaw = self._flaw(window[at:])
            if flaw.torn and self._grown():
                window, window_position = memoryview(b""), self.position
                continue
            self.position = flaw.end_position
            yield flaw

    def _due(self, rest: memoryview) -> int:
        """How many bytes are needed to check the next batch, at most up to the end of the file."""
        left = self.end - self.position
        if len(rest) < min(BATCH_OVERHEAD, left):
            return min(self._window_bytes, left)
        if len(rest) >= BATCH_OVERHEAD:
            size = _size_in(rest)
            if rest[MAGIC_POSITION] == MAGIC and len(rest) < size <= min(left, LARGEST_WINDOW_BYTES):
                if size > MAX_UNVERIFIED_BYTES and self._long_crc(self.position, size) != peek_header(rest).crc:
                    return 0
                return max(size, min(self._window_bytes, left))
        return 0

    def _grown(self) -> bool:
        if self._grow is None or self._growths >= MAX_GROWTH_CHECKS:
            return False
        self._growths += 1
        size = self._grow(self.end)
        grown = size > self.end
        self.end = max(size, self.end)
        return grown

    def _read(self, position: int, size_bytes: int) -> memoryview:
        size_bytes = min(size_bytes, self.end - position)
        content = self._disk.pread(self._fd, size_bytes, position)
        while len(content) < size_bytes:
            more = self._disk.pread(self._fd, size_bytes - len(content), position + len(content))
            if not more:
                break
            content += more
        return memoryview(content)

    # -- what is wrong --------------------------------------------------------------------------------------------

    def _flaw(self, rest: memoryview) -> Flaw:
        """Of the bytes at `position`; `rest` begins there and has a complete header unless the file ends."""
        position, left = self.position, self.end - self.position
        if left < BATCH_OVERHEAD:
            return self._torn(f"the file ends with {left} bytes, too few for a batch")
        if not any(rest[:BATCH_OVERHEAD]):
            return self._zeros()
        size = _size_in(rest)
        fits = BATCH_OVERHEAD <= size <= left
        magic = rest[MAGIC_POSITION]
        if magic != MAGIC:
            if fits and self._is_boundary(position + size):
                kind = LogFindingKind.OLD_FORMAT if magic in (0, 1) else LogFindingKind.DAMAGED
                return self._one(size, kind, f"a batch with magic {magic}, expected {MAGIC}")
            return self._lost(f"no batch begins here: magic {magic}, length {size - LENGTH_PREFIX}")
        if not fits:
            beyond = size > left
            words = f"a batch of {size} bytes, {left} of them in the file" if beyond else f"a batch of {size} bytes"
            return self._lost(words, torn=beyond)
        header = peek_header(rest)._replace(position=position)
        crc = crc32c(rest[CRC_COVERS_FROM:size]) if len(rest) >= size else self._long_crc(position, size)
        if crc != header.crc:
            if not self._is_boundary(position + size):
                return self._lost(f"the checksum or the length ({size} bytes) of the batch here is wrong")
            self.next_offset = _within(max(self.next_offset, _sane_next(header, self.next_offset)))
            offset = f"at offset {header.base_offset}"
            problem = Problem(
                LogFindingKind.CRC,
                f"the checksum of the batch {offset} is {crc:#010x}, but {header.crc:#010x} is stored",
                _RESTORE,
            )
            return Flaw(position, position + size, (problem,), header, False, torn=False)
        problems = tuple(self._out_of_place(header))
        content = rest[:size] if len(rest) >= size else None
        self.next_offset = _within(header.base_offset + max(header.last_offset_delta, 0) + 1)
        self.leader_epoch = header.leader_epoch
        return Flaw(position, position + size, problems, header, True, torn=False, content=content)

    def _out_of_place(self, header: BatchHeader) -> Iterator[Problem]:
        base, delta = header.base_offset, header.last_offset_delta
        if base < self.next_offset:
            yield Problem(
                LogFindingKind.OFFSETS,
                f"a batch at offset {base}, where {self.next_offset} or a later one is expected",
                _RESTORE,
            )
        if header.leader_epoch < self.leader_epoch:
            yield Problem(
                LogFindingKind.EPOCHS,
                f"the batch at offset {base} has epoch {header.leader_epoch}, the one before it {self.leader_epoch}",
                _RESTORE,
            )
        try:
            codec = header.codec.name.lower()
        except PeerError as error:
            yield Problem(LogFindingKind.HEADER, f"the batch at offset {base}: {error.message}", _RESTORE)
            codec = ""
        room = (header.size_bytes - BATCH_OVERHEAD) // 7 if codec == "none" else header.record_count
        if delta < 0 or not 0 <= header.record_count <= min(delta + 1, room):
            yield Problem(
                LogFindingKind.HEADER,
                f"the batch at offset {base} of {header.size_bytes} bytes claims {header.record_count} records and a"
                f" last offset of {base + delta}",
                _RESTORE,
            )
        if base + delta >= _HIGHEST_OFFSET:
            yield Problem(
                LogFindingKind.HEADER, f"the batch at offset {base} ends past the highest possible offset", _RESTORE
            )

    def _one(self, size: int, kind: LogFindingKind, message: str) -> Flaw:
        return Flaw(self.position, self.position + size, (Problem(kind, message, _RESTORE),), None, None, torn=False)

    def _torn(self, message: str) -> Flaw:
        problem = Problem(LogFindingKind.TORN, message, _TORN_ADVICE)
        return Flaw(self.position, self.end, (problem,), None, None, torn=True)

    def _zeros(self) -> Flaw:
        position = self.position
        end = self._end_of_zeros(position)
        if end == self.end:
            return self._torn(f"zeros from here to the end of the file ({end - position} bytes)")
        return self._lost(f"{end - position} zeros instead of a batch", search_from=end - min(7, end - position))

    def _end_of_zeros(self, position: int) -> int:
        while position < self.end:
            chunk = bytes(self._read(position, self._window_bytes))
            if not chunk:
                break
            rest = chunk.lstrip(b"\0")
            if rest:
                return position + len(chunk) - len(rest)
            position += len(chunk)
        return self.end

    def _lost(self, message: str, *, torn: bool = False, search_from: int | None = None) -> Flaw:
        """Bytes that are no batch: up to the next complete one, or to the end."""
        found = self._next_complete(self.position + 1 if search_from is None else search_from)
        if found is None and torn:
            return self._torn(message)
        end = self.end if found is None else found
        following = "no complete batch follows" if found is None else f"the next complete batch begins at byte {found}"
        problem = Problem(LogFindingKind.DAMAGED, f"{message}; {following}", _RESTORE)
        return Flaw(self.position, end, (problem,), None, None, torn=False)

    def _next_complete(self, position: int) -> int | None:
        """Position of the next batch with a valid checksum and plausible offsets."""
        while self.end - position >= BATCH_OVERHEAD:
            window = self._read(position, self._window_bytes)
            text = bytes(window)
            at = text.find(MAGIC, MAGIC_POSITION)
            while at >= 0 and at - MAGIC_POSITION + BATCH_OVERHEAD <= len(text):
                start = at - MAGIC_POSITION
                if self._is_complete(window[start:], position + start):
                    return position + start
                at = text.find(MAGIC, at + 1)
            if len(text) < BATCH_OVERHEAD or position + len(text) >= self.end:
                return None
            position += len(text) - BATCH_OVERHEAD + 1
        return None

    def _is_complete(self, rest: memoryview, position: int) -> bool:
        size = _size_in(rest)
        if not BATCH_OVERHEAD <= size <= self.end - position:
            return False
        header = peek_header(rest)
        if (
            header.base_offset < 0
            or header.leader_epoch < -1
            or header.attributes & _UNUSED_ATTRIBUTES
            or not 0 <= header.record_count <= header.last_offset_delta + 1
        ):
            return False
        crc = crc32c(rest[CRC_COVERS_FROM:size]) if len(rest) >= size else self._long_crc(position, size)
        return crc == header.crc

    def _is_boundary(self, position: int) -> bool:
        """Whether a batch may begin there, or the file ends."""
        if position == self.end:
            return True
        head = self._read(position, BATCH_OVERHEAD)
        if len(head) < BATCH_OVERHEAD:
            return False
        return head[MAGIC_POSITION] == MAGIC and _size_in(head) >= BATCH_OVERHEAD and head[0] < 0x80

    def _long_crc(self, position: int, size_bytes: int) -> int:
        crc, position, end = 0, position + CRC_COVERS_FROM, position + size_bytes
        while position < end:
            piece = self._read(position, min(WINDOW_BYTES, end - position))
            if not piece:
                break
            crc = crc32c(piece, crc)
            position += len(piece)
        return crc


def _size_in(rest: memoryview) -> int:
    return int.from_bytes(rest[8:LENGTH_PREFIX], "big", signed=True) + LENGTH_PREFIX


def _within(offset: int) -> int:
    """The nearest valid offset: a damaged batch may hold any value."""
    return min(max(offset, 0), _HIGHEST_OFFSET)


def _sane_next(header: BatchHeader, next_offset: int) -> int:
    """The offset after a damaged batch: its own value, if plausible."""
    believable = header.base_offset == next_offset and 0 <= header.record_count == header.last_offset_delta + 1
    return header.next_offset if believable else next_offset


def _shorter(position: int, end: int) -> Flaw:
    problem = Problem(
        LogFindingKind.GONE,
        "the file has become shorter while it was read",
        "Verify again; a running node truncates its logs.",
    )
    return Flaw(position, end, (problem,), None, None, torn=False)
