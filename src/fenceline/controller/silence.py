"""Reports of followers about leaders that do not answer: who misses whom. Soft state, never in the log.

Owns the reports, and when a broker may be fenced for its silence again. Decides whether the reports suffice: a majority
of the broker's in-sync followers must miss it. Never probes (`node.controller.silence_watch`), never fences
(`controller.brokers`); `now_ms` is passed in.

Why it is safe. A broker that is fenced for its silence may be alive, and may still believe that it leads. Nothing that
it acknowledges from then on can be lost, for the same reasons for which a broker whose session expired cannot lose
anything; silence only makes the fencing earlier. Each of these parts is necessary, and the simulation finds the loss
when one is removed (docs/replication.md "A leader that freezes"):

| part | rule |
|---|---|
| the next leader is elected from the in-sync set, and leads in a higher epoch | epochs.md E35, E64 |
| followers of the new epoch do not fetch from the old leader any more | epochs.md E2, E23 |
| the old leader acknowledges acks=all only what all replicas of its in-sync set have fetched | epochs.md E40, E42 |
| it cannot remove them from that set: the controller rejects the change of an old leader epoch | epochs.md E39 |
| it learns of the new epoch, becomes a follower, and cuts what the new leader does not have | epochs.md E25 |

A report counts for `REPORT_VALID_MS`; followers repeat theirs twice a second. After a broker was fenced for its silence
the next time must be longer ago each time: what silences a broker again and again (a host that swaps, a debugger) may
cost an election now and then, never one every second.

Rules: controller.md C15-C17; epochs.md E2, E23, E25, E35, E39, E40, E42, E64.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from fenceline.controller.requests import SilentBroker

REPORT_VALID_MS: Final = 1_500
"""Three intervals of a follower's reports."""
_LONGEST_DOUBLING: Final = 6


class SilenceReports:
    """By reporting broker: the leaders that it misses."""

    __slots__ = ("_fencings", "_reports", "_session_ms", "fenced_count", "last_fenced_id")

    def __init__(self, session_ms: int) -> None:
        """`session_ms`: the session timeout. A broker that was fenced for its silence is not fenced for it again for
        that long, the next time for twice as long, up to 64 times; after that time without a silence it begins anew."""
        self._session_ms = session_ms
        self._reports: dict[int, tuple[int, frozenset[SilentBroker]]] = {}
        """When the report arrived, and its content. A broker that misses none has none."""
        self._fencings: dict[SilentBroker, tuple[int, int]] = {}
        """How often a broker was fenced for its silence in this term, without a long time in between; and when it may
        be fenced for it again."""
        self.fenced_count = 0
        """Number of brokers fenced for their silence since the start of this node."""
        self.last_fenced_id = -1
        """The last of them; -1: there is none."""

    def report(self, broker_id: int, silent: Iterable[SilentBroker], now_ms: int) -> None:
        """A heartbeat of an unfenced broker: what it misses now, in place of its last report."""
        missed = frozenset(silent)
        if missed:
            self._reports[broker_id] = now_ms, missed
        elif self._reports:
            self._reports.pop(broker_id, None)

    def reported(self, now_ms: int) -> set[SilentBroker]:
        """All brokers that are missed by any other."""
        return {each for at_ms, missed in self._reports.values() if now_ms - at_ms < REPORT_VALID_MS for each in missed}

    def is_missed(self, broker: SilentBroker, followers: Collection[int], now_ms: int) -> bool:
        """Whether a majority of `followers`, the broker's unfenced in-sync followers, misses it. A broker without
        followers is never missed: fencing it would elect no leader."""
        count = 0
        for follower in followers:
            at_ms, missed = self._reports.get(follower, (0, frozenset()))
            count += broker in missed and now_ms - at_ms < REPORT_VALID_MS
        return 2 * count > len(followers)

    def may_fence(self, broker: SilentBroker, now_ms: int) -> bool:
        """Whether the last fencing of this incarnation for its silence is long enough ago."""
        return now_ms >= self._fencings.get(broker, (0, now_ms))[1]

    def fenced(self, broker: SilentBroker, now_ms: int) -> None:
        """The broker is fenced for its silence."""
        times, next_ms = self._fencings.get(broker, (0, now_ms))
        if now_ms >= next_ms + (self._session_ms << _LONGEST_DOUBLING):
            times = 0
        pause_ms = self._session_ms << min(times, _LONGEST_DOUBLING)
        self._fencings[broker] = times + 1, now_ms + pause_ms
        self.fenced_count += 1
        self.last_fenced_id = broker.broker_id

    def clear(self) -> None:
        """Reset for a new term."""
        self._reports.clear()
        self._fencings.clear()
