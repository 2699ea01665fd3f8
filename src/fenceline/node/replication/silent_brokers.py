"""Leaders whose answers to this broker's fetches are overdue.

Owns the timer of each leader's answer, and the set of leaders that are silent. Never decides that a leader has failed:
the set is reported to the active controller, which also asks the other followers and the leader itself
(`fenceline.controller.silence`). Opens no connection and reads no answer: the links to the leaders report here.

When an answer counts as overdue is decided by `answer_deadline`. Only the loop's clock is read, which no change of the
wall clock moves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Final

from fenceline.answer_deadline import AnswerDeadline


class SilentBrokers:
    """The silent leaders of one broker. Event loop only."""

    def __init__(self, silence_ms: int, changed: Callable[[Collection[int]], None]) -> None:
        """`silence_ms`: by how much an answer may be overdue; negative: no leader is ever silent. `changed` is called
        with the ids of all silent leaders when one is added or removed."""
        self._silence_ms = silence_ms
        self._changed = changed
        self._ids: dict[int, None] = {}

    def watch(self, leader_id: int, received: Callable[[], int]) -> AnswerTimer:
        """The timer of the answers of one leader. Close it when the leader is not followed any more. `received`: bytes
        received of a large answer that is incomplete; it is not overdue while they become more."""
        return AnswerTimer(self, leader_id, self._silence_ms, received)

    def add(self, leader_id: int) -> None:
        if leader_id not in self._ids:
            self._ids[leader_id] = None
            self._changed(tuple(self._ids))

    def remove(self, leader_id: int) -> None:
        if leader_id in self._ids:
            del self._ids[leader_id]
            self._changed(tuple(self._ids))


NO_BROKERS: Final = SilentBrokers(-1, lambda broker_ids: None)
"""For links that do not watch their leader: none is ever silent."""


class AnswerTimer:
    """The answers of one leader: `expect` before each request, `answered` when something arrives or shows that the
    leader's process runs or has ended."""

    __slots__ = ("_deadline", "_is_expected", "_leader_id", "_owner", "_received", "_received_bytes", "_timer")

    def __init__(self, owner: SilentBrokers, leader_id: int, silence_ms: int, received: Callable[[], int]) -> None:
        self._owner = owner
        self._leader_id = leader_id
        self._deadline = None if silence_ms < 0 else AnswerDeadline(silence_ms)
        """Of the oldest pending answer. None: this leader is never silent."""
        self._is_expected = False
        self._received = received
        self._received_bytes = 0
        """At the last check of an overdue answer."""
        self._timer: asyncio.TimerHandle | None = None

    def expect(self, within_ms: int) -> None:
        """An answer is due within this time. An earlier one that is still pending keeps its own time."""
        if self._deadline is None or self._is_expected:
            return
        self._is_expected = True
        self._received_bytes = 0
        self._deadline.expect(_now_ms() + within_ms)
        self._arm()

    def answered(self) -> None:
        self._is_expected = False
        if self._deadline is not None:
            self._deadline.clear()
        self._owner.remove(self._leader_id)

    def close(self) -> None:
        self.answered()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        # One timer for many answers: it is not moved with each of them.
        if self._timer is None and self._deadline is not None and self._deadline.check_at_ms is not None:
            self._timer = asyncio.get_running_loop().call_at(self._deadline.check_at_ms / 1000, self._check)

    def _check(self) -> None:
        self._timer = None
        deadline, now_ms = self._deadline, _now_ms()
        if deadline is None or deadline.check_at_ms is None:
            return
        if now_ms >= deadline.check_at_ms:
            received_bytes = self._received()
            is_arriving, self._received_bytes = received_bytes > self._received_bytes, received_bytes
            if deadline.is_overdue(now_ms, is_arriving=is_arriving):
                self._owner.add(self._leader_id)
        self._arm()


def _now_ms() -> int:
    return round(1000 * asyncio.get_running_loop().time())
