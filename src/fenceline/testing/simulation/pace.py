"""How long a simulated client waits between two requests, and when all clients of a cluster pause.

Owns bursts and pauses. The cost of a busy run grows with its requests, its findings grow with its faults. So clients
send bursts, and faults hit a cluster under load, just after load, and idle. `Pace` belongs to one client; `LoadCycle`
is shared by the clients of a cluster: faults and operators are rarer during its pauses.
"""

from __future__ import annotations

from bisect import bisect_right
from random import Random
from typing import Final

PROGRESS: Final = 5
"""Requests that each client must complete after the last fault."""
_BURST: Final = (3, 12)
"""Requests between two pauses."""
_REST_S: Final = (0.2, 1.2)
_LEISURELY_MS: Final = 100.0
"""A client that waits this long between requests needs no pauses."""


class Pace:
    """The pace of one client, drawn from its random source."""

    def __init__(self, rng: Random, think_ms: float) -> None:
        """Waits `think_ms` on average; busy clients send bursts."""
        self._rng = rng
        self._longest_s = think_ms / 500
        self._rests = think_ms < _LEISURELY_MS
        self._left = rng.randint(*_BURST) if self._rests else 0
        """Requests until the next pause."""

    def next_s(self) -> float:
        """Seconds from a response to the next request."""
        think_s = self._rng.random() * self._longest_s + 0.0001
        if self._rests:
            self._left -= 1
            if self._left <= 0:
                self._left = self._rng.randint(*_BURST)
                think_s += self._rng.uniform(*_REST_S)
        return think_s


_QUIET_PACE: Final = 0.25
"""The rate of faults and operators while clients pause."""


class LoadCycle:
    """Load and pauses in turn, for all clients of a cluster. It begins with load. Must be called with times that never
    decrease."""

    def __init__(self, rng: Random, load_s: float, quiet_s: float) -> None:
        """Mean length of load and pauses."""
        self._rng = rng
        self._load_s = load_s
        self._quiet_s = quiet_s
        self._turns: list[float] = [0.0]
        """When load begins (even indexes) and ends (odd indexes), as far as it was drawn."""

    def quiet_s(self, now_s: float) -> float:
        """Seconds until load begins again; 0.0 under load."""
        at = self._turn_at(now_s)
        return self._turns[at + 1] - now_s if at % 2 else 0.0

    def lasting_s(self, now_s: float, busy_s: float) -> float:
        """Seconds from now that correspond to `busy_s` under load: during a pause everything is slower."""
        at, when_s = self._turn_at(now_s), now_s
        while True:
            pace = _QUIET_PACE if at % 2 else 1.0
            end_s = self._turn_after(at)
            if busy_s <= (end_s - when_s) * pace:
                return when_s + busy_s / pace - now_s
            busy_s -= (end_s - when_s) * pace
            at, when_s = at + 1, end_s

    def _turn_at(self, now_s: float) -> int:
        """The index of the current turn."""
        while self._turns[-1] <= now_s:
            self._turn_after(len(self._turns) - 1)
        return bisect_right(self._turns, now_s) - 1

    def _turn_after(self, at: int) -> float:
        """When this turn ends."""
        if at + 1 == len(self._turns):
            mean_s = self._quiet_s if at % 2 else self._load_s
            self._turns.append(self._turns[at] + mean_s * self._rng.uniform(0.4, 1.6))
        return self._turns[at + 1]
