"""Leaders whose answers to this broker's fetches are overdue.

Owns the timer of each leader's answer, and the set of leaders that are silent. Never decides that a leader has failed:
the set is reported to the active controller, which also asks the other followers and the leader itself
(`fenceline.controller.silence`). Opens no connection and reads no answer: the links to the leaders report here.

An answer counts as overdue only if it is still missing a moment after its deadline was noticed, and if the timer itself
was on time: a process that was not running itself (stopped, swapped out, on a busy machine) finds its deadlines passed
and the answers in its sockets. Only the loop's clock is read, which no change of the wall clock moves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Final

_AGAIN_S: Final = 0.03
"""Between noticing that an answer is overdue and reporting it."""
_LATE_S: Final = 0.1
"""A timer that is later than this shows that this process was not running: the answer gets its time again."""


class SilentBrokers:
    """The silent leaders of one broker. Event loop only."""

    def __init__(self, silence_ms: int, changed: Callable[[Collection[int]], None]) -> None:
        """`silence_ms`: by how much an answer may be overdue; negative: no leader is ever silent. `changed` is called
        with the ids of all silent leaders when one is added or removed."""
        self._silence_s = silence_ms / 1000
        self._changed = changed
        self._ids: dict[int, None] = {}

    def watch(self, leader_id: int, received: Callable[[], int]) -> AnswerTimer:
        """The timer of the answers of one leader. Close it when the leader is not followed any more. `received`: bytes
        received of a large answer that is incomplete; it is not overdue while they become more."""
        return AnswerTimer(self, leader_id, self._silence_s, received)

    def add(self, leader_id: int) -> None:
        if leader_id not in self._ids:
            self._ids[leader_id] = None
            self._changed(tuple(self._ids))

    def remove(self, leader_id: int) -> None:
        if leader_id in self._ids:
            del self._ids[leader_id]
            self._changed(tuple(self._ids))


class AnswerTimer:
    """The answers of one leader: `expect` before each request, `answered` when something arrives or shows that the
    leader's process runs or has ended."""

    __slots__ = (
        "_due_s",
        "_leader_id",
        "_owner",
        "_received",
        "_received_bytes",
        "_silence_s",
        "_timer",
        "_was_overdue",
    )

    def __init__(self, owner: SilentBrokers, leader_id: int, silence_s: float, received: Callable[[], int]) -> None:
        self._owner = owner
        self._leader_id = leader_id
        self._silence_s = silence_s
        self._due_s: float | None = None
        """When the oldest pending answer is overdue, by the loop's clock. None: no answer is pending."""
        self._was_overdue = False
        """It was, at the last check."""
        self._received = received
        self._received_bytes = 0
        """At the last check of an overdue answer."""
        self._timer: asyncio.TimerHandle | None = None

    def expect(self, within_s: float) -> None:
        """An answer is due within this time. An earlier one that is still pending keeps its own time."""
        if self._silence_s < 0 or self._due_s is not None:
            return
        self._due_s = asyncio.get_running_loop().time() + within_s + self._silence_s
        self._was_overdue = False
        self._received_bytes = 0
        if self._timer is None:
            self._arm(self._due_s)

    def answered(self) -> None:
        self._due_s = None
        self._owner.remove(self._leader_id)

    def close(self) -> None:
        self.answered()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, at_s: float) -> None:
        # One timer for many answers: it is not moved with each of them.
        self._timer = asyncio.get_running_loop().call_at(at_s, self._check)

    def _check(self) -> None:
        self._timer = None
        due_s, now_s = self._due_s, asyncio.get_running_loop().time()
        if due_s is None:
            return
        if now_s < due_s:
            self._arm(due_s)
            return
        received_bytes = self._received()
        runs_again = now_s - due_s >= _LATE_S or received_bytes > self._received_bytes
        self._received_bytes = received_bytes
        if self._was_overdue and not runs_again:
            self._owner.add(self._leader_id)
            return
        self._was_overdue = not runs_again
        self._due_s = now_s + (max(_AGAIN_S, self._silence_s) if runs_again else _AGAIN_S)
        self._arm(self._due_s)
