"""Whether the answer of a peer is overdue, for a process that may not have been running itself.

Owns when to check for one answer. Never a clock, a timer or a connection.

A process that was stopped, swapped out or short of CPU finds its deadlines passed when it runs again, and the answers
in its sockets. So an answer is overdue only if it is still missing `AGAIN_MS` after its deadline was noticed, and if
both checks were on time: a check that is `LATE_MS` late gives the answer its time again.
"""

from __future__ import annotations

from typing import Final

AGAIN_MS: Final = 30
LATE_MS: Final = 100


class AnswerDeadline:
    """See the module. All times are of one monotonic clock."""

    __slots__ = ("_silence_ms", "_was_overdue", "check_at_ms")

    def __init__(self, silence_ms: int) -> None:
        """`silence_ms`: by how much an answer may be late."""
        self._silence_ms = silence_ms
        self._was_overdue = False
        """It was, at the last check."""
        self.check_at_ms: int | None = None
        """When to call `is_overdue`; None: nothing is to be checked."""

    def expect(self, due_ms: int) -> None:
        """An answer is due at this time, in place of an earlier one."""
        self.check_at_ms = due_ms + self._silence_ms
        self._was_overdue = False

    def clear(self) -> None:
        """No answer is expected."""
        self.check_at_ms = None

    def is_overdue(self, now_ms: int, *, is_arriving: bool = False) -> bool:
        """Called at `check_at_ms`, which is None if the answer is overdue, and otherwise the time of the next check.
        `is_arriving`: a part of the answer has arrived since the last one."""
        assert self.check_at_ms is not None, "an answer is expected"
        starts_again = is_arriving or now_ms - self.check_at_ms >= LATE_MS
        if self._was_overdue and not starts_again:
            self.check_at_ms = None
            return True
        self._was_overdue = not starts_again
        self.check_at_ms = now_ms + (max(AGAIN_MS, self._silence_ms) if starts_again else AGAIN_MS)
        return False
