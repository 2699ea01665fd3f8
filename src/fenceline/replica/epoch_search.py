"""Where the epochs begin that lie behind a gap: what a follower asks its leader before it takes a batch from there.

Owns the questions about one gap, and what the answers mean. Sends nothing, and changes no log.

Batches tell a follower where an epoch begins, as long as there is no gap before the first of them. Compaction leaves
gaps, and the epoch may begin anywhere within one; so may epochs of which nothing is left. A replica that takes the
first batch that is left for the beginning would, once it leads, call an older epoch longer than it was: a log that
parted from the others there would not be cut, and nobody would hear of its loss.

Each answer of OffsetForLeaderEpoch to "where does epoch e - 1 end?" tells where e begins, and which epoch came before
it (`epochs.md E13`), so the questions go down until the follower's own log knows.

| leader's epochs, epoch@start | follower has   | comes          | asked: answered          | learned      |
|------------------------------|----------------|----------------|--------------------------|--------------|
| 0@0, 1@100                   | 0, up to 95    | epoch 1 at 150 | 0: (0, 100)              | 1@100        |
| 0@0, 1@100, 3@200            | 0, up to 95    | epoch 3 at 250 | 2: (1, 200), 0: (0, 100) | 1@100, 3@200 |
| 3@40: its log starts there   | nothing, at 40 | epoch 3 at 90  | 2: (2, 40)               | 3@40         |
| such that it does not tell   | 0, up to 95    | epoch 1 at 150 | 0: (-1, -1)              | 1@95         |

What must not be taken for too high is taken for the lowest that can be: the end of the own log (last row). A log that
is cut too far by that gets what is left there again.
"""

from __future__ import annotations

from fenceline.log.agreement import EpochsOfLog
from fenceline.log.epoch_cache import UNDEFINED


class EpochSearch:
    """One gap: from the end of `log` to `first_offset`, where the first batch of `epoch` lies."""

    def __init__(self, epoch: int, first_offset: int, log: EpochsOfLog) -> None:
        self.log_end_offset = log.log_end_offset
        self._own_epoch = log.latest_epoch
        self._epoch = epoch
        """Whose beginning is looked for."""
        self._found: list[tuple[int, int]] = []
        self._ceiling = first_offset
        self.is_done = False
        if epoch == 0:
            self._begins_at(self.log_end_offset)

    @property
    def asks(self) -> int:
        """Of which epoch the leader is to tell the end."""
        return self._epoch - 1

    @property
    def starts(self) -> tuple[tuple[int, int], ...]:
        """(epoch, start) of those that begin within the gap, oldest first; once it is done."""
        return tuple(reversed(self._found)) if self.is_done else ()

    def on_answer(self, epoch: int, end: int) -> None:
        """The leader's newest epoch not above the one that was asked for, and where the next one begins."""
        if end == UNDEFINED or not 0 <= epoch <= self.asks:
            self._begins_at(self.log_end_offset)
            return
        start = max(self.log_end_offset, min(end, self._ceiling))
        if self._found and start == self._ceiling:
            self.is_done = True  # below all that the leader has, it answers as if what was asked for were there
            return
        self._begins_at(start)
        if epoch <= self._own_epoch:
            self.is_done = True
        elif not self.is_done:
            self._epoch = epoch
            if epoch == 0:
                self._begins_at(self.log_end_offset)

    def _begins_at(self, start: int) -> None:
        self._found.append((self._epoch, start))
        self._ceiling = start
        # What begins where the own log ends has nothing before it that this log does not know.
        self.is_done = start == self.log_end_offset
