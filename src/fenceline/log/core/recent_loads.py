"""Which parts of segments were read from the disk, and where the system may have read ahead of them.

Owns what the event loop must not send although it is in the page cache. The system reads ahead of a load by itself, and
marks a page of what it has read; when that page is read or sent, it reads ahead again. If the loop sent such a page, it
would start reads of megabytes, and readers of old records would no longer be paced. So what follows a load is loaded by
a thread as well, which finds it in the page cache; except where nothing is left to read ahead (`cached`). Never reads
anything.
"""

from __future__ import annotations

import time
from threading import Lock
from typing import Final, Generic, NamedTuple, TypeVar

SYSTEM_AHEAD_BYTES: Final = 64 << 20
"""At least how far behind a load the system may have read, in windows of up to 16 MiB."""
LOADING_S: Final = 10.0
"""For how long after a load pages of its segment may be on their way from the disk."""
SEGMENTS_KEPT: Final = 1024
LOADS_KEPT: Final = 16
"""Of one segment: readers at different places in it."""

_Segment = TypeVar("_Segment")


class _Load(NamedTuple):
    start: int
    end: int
    at_s: float


class _Loads(NamedTuple):
    """Of one segment. Within the cached range nothing is left to read ahead."""

    recent: tuple[_Load, ...] = ()
    cached_from: int = 0
    cached_to: int = 0

    def was_loaded(self, start: int, end: int) -> bool:
        return any(each.start <= start and end <= each.end for each in self.recent)


_NONE: Final = _Loads()


class RecentLoads(Generic[_Segment]):
    """By segment. All methods may be called in any thread."""

    def __init__(self) -> None:
        self._loads: dict[_Segment, _Loads] = {}
        self._lock = Lock()
        """Held by who changes an entry; entries are replaced as a whole."""

    def segments(self) -> list[_Segment]:
        return list(self._loads)

    def begun(self, segment: _Segment, start: int) -> None:
        """A load begins."""
        with self._lock:
            self._note(segment, self._loads.get(segment, _NONE), start, start)
            while len(self._loads) > SEGMENTS_KEPT:
                del self._loads[next(iter(self._loads))]

    def loaded(self, segment: _Segment, start: int, end: int) -> None:
        """A load that has begun is done up to `end`. It has no effect if the segment was forgotten meanwhile."""
        with self._lock:
            known = self._loads.get(segment)
            if known is not None:
                self._note(segment, known, start, end)

    def _note(self, segment: _Segment, known: _Loads, start: int, end: int) -> None:
        """A load replaces the one that it continues."""
        others = [each for each in known.recent if not each.start <= start <= each.end]
        recent = (*others[-LOADS_KEPT + 1 :], _Load(start, end, time.monotonic()))
        was_wrong = known.cached_from <= start < known.cached_to
        self._loads[segment] = _Loads(recent) if was_wrong else known._replace(recent=recent)

    def cached(self, segment: _Segment, start: int, end: int) -> None:
        """All of a range is in the page cache, and either more than the system would have read ahead, or up to where
        records are appended."""
        with self._lock:
            known = self._loads.get(segment)
            if known is not None:
                self._loads[segment] = known._replace(cached_from=start, cached_to=end)

    def forget(self, segment: _Segment) -> None:
        with self._lock:
            self._loads.pop(segment, None)

    def was_loaded(self, segment: _Segment, start: int, end: int) -> bool:
        """Whether this range was part of a load that is done."""
        return self._loads.get(segment, _NONE).was_loaded(start, end)

    def may_be_under_way(self, segment: _Segment) -> bool:
        """Whether pages of the segment may be on their way from the disk, which is seen in a mapping only."""
        recent = self._loads.get(segment, _NONE).recent
        return bool(recent) and time.monotonic() - recent[-1].at_s < LOADING_S

    def may_be_read_ahead(self, segment: _Segment, start: int, end: int) -> bool:
        """Whether the system may have read some of this range ahead of a load. Time does not matter: a reader may
        pause, and the marks stay."""
        known = self._loads.get(segment)
        if known is None or known.was_loaded(start, end) or (known.cached_from <= start and end <= known.cached_to):
            return False
        return any(each.start <= start < each.end + SYSTEM_AHEAD_BYTES and each.end < end for each in known.recent)
