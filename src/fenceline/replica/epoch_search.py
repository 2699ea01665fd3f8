"""Finds the start offsets of epochs within a gap, by asking the leader, before a batch behind the gap is appended.

Owns the questions about one gap and the interpretation of the answers. Sends nothing, and changes no log.

Batches show a follower where an epoch starts, unless there is a gap before its first batch. Compaction leaves gaps, and
the epoch may start anywhere within one; so may epochs that have no records left. If a replica took the first remaining
batch as the start, it would, as leader, report an older epoch as longer than it was: a diverging log would not be
truncated there, and its loss would not be reported.

Each answer of OffsetForLeaderEpoch to "where does epoch e - 1 end?" gives the start of e, and the epoch before it
(`epochs.md E13`), so the search goes down to an epoch that the follower's own log has.

| leader's epochs, epoch@start | follower has   | next batch     | asked: answered          | learned      |
|------------------------------|----------------|----------------|--------------------------|--------------|
| 0@0, 1@100                   | 0, up to 95    | epoch 1 at 150 | 0: (0, 100)              | 1@100        |
| 0@0, 1@100, 3@200            | 0, up to 95    | epoch 3 at 250 | 2: (1, 200), 0: (0, 100) | 1@100, 3@200 |
| 3@40: its log starts there   | nothing, at 40 | epoch 3 at 90  | 2: (2, 40)               | 3@40         |
| the leader does not know     | 0, up to 95    | epoch 1 at 150 | 0: (-1, -1)              | 1@95         |

An unknown start must not be too high, so the lowest possible one is used: the end of the own log (last row). If a log
is truncated too far because of it, the records are fetched again.
"""

from __future__ import annotations

from fenceline.log.core.agreement import EpochsOfLog
from fenceline.log.core.epoch_cache import UNDEFINED


class EpochSearch:
    """One gap: from the end of `log` to `first_offset`, the position of the first batch of `epoch`."""

    def __init__(self, epoch: int, first_offset: int, log: EpochsOfLog) -> None:
        self.log_end_offset = log.log_end_offset
        self._own_epoch = log.latest_epoch
        self._epoch = epoch
        """The epoch whose start is searched for."""
        self._found: list[tuple[int, int]] = []
        self._ceiling = first_offset
        self.is_done = False
        if epoch == 0:
            self._set_start(self.log_end_offset)

    @property
    def asks(self) -> int:
        """The epoch whose end the leader is asked for."""
        return self._epoch - 1

    @property
    def starts(self) -> tuple[tuple[int, int], ...]:
        """(epoch, start) of the epochs that start within the gap, oldest first; empty until `is_done`."""
        return tuple(reversed(self._found)) if self.is_done else ()

    def on_answer(self, epoch: int, end: int) -> None:
        """The leader's newest epoch not above the requested one, and the start of the next one."""
        if end == UNDEFINED or not 0 <= epoch <= self.asks:
            self._set_start(self.log_end_offset)
            return
        start = max(self.log_end_offset, min(end, self._ceiling))
        if self._found and start == self._ceiling:
            self.is_done = True  # for an epoch below all of its own, the leader returns the requested epoch
            return
        self._set_start(start)
        if epoch <= self._own_epoch:
            self.is_done = True
        elif not self.is_done:
            self._epoch = epoch
            if epoch == 0:
                self._set_start(self.log_end_offset)

    def _set_start(self, start: int) -> None:
        self._found.append((self._epoch, start))
        self._ceiling = start
        # An epoch that starts at the own log end has no unknown epoch before it in the gap.
        self.is_done = start == self.log_end_offset
