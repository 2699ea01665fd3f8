"""Automatic commits (`enable.auto.commit`): at each interval while the caller polls, and before a revocation.

Owns their schedule. A failed commit is logged: the next one covers it. Offsets and membership of a commit are captured
together, so that the retry of a commit after a rebalance still belongs to the generation before it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from fenceline.client.consumer.consumer_offsets import PendingCommit
from fenceline.client.core.config import ClientConfig
from fenceline.client.core.surroundings import surroundings
from fenceline.errors import OperatorError, PeerError

_log = logging.getLogger("fenceline.client")
_LAST_COMMIT_MS: Final = 5_000
"""How long a revocation waits for the commit before it."""


class AutoCommit:
    """Does nothing without a group or with enable.auto.commit=false.

    `capture()` returns the positions behind the returned records, as a commit of the current membership;
    `send(commit, timeout_ms)` sends it.
    """

    def __init__(
        self,
        config: ClientConfig,
        capture: Callable[[], PendingCommit],
        send: Callable[[PendingCommit, float | None], Awaitable[None]],
    ) -> None:
        self._group_id: str | None = config["group.id"]
        self._is_on = bool(config["enable.auto.commit"] and self._group_id)
        self._interval_s: float = config["auto.commit.interval.ms"] / 1000
        self._capture = capture
        self._send = send
        self._due_s: float | None = None
        self._now_s = surroundings().monotonic_s
        self._in_flight: set[asyncio.Task[Any]] = set()

    def start_interval(self) -> None:
        """The next commit is due one interval from now."""
        self._due_s = self._now_s() + self._interval_s

    def commit_if_due(self) -> None:
        """Commit in the background if the interval has passed; the first call starts the interval.

        The offsets are captured now: the poll that calls this returns more records before the task runs. At most one
        automatic commit is in flight, so that a slow coordinator gets no more requests.
        """
        if not self._is_on:
            return
        if self._due_s is None:
            self.start_interval()
        elif self._now_s() >= self._due_s and not self._in_flight:
            self.start_interval()
            task = asyncio.ensure_future(self._commit_quietly(self._capture(), None))
            self._in_flight.add(task)
            task.add_done_callback(self._in_flight.discard)

    async def before_revocation(self) -> None:
        """Commit and wait for it, for a limited time. A commit in flight is cancelled: this one covers it, and its
        retry would move the committed offset back.
        """
        if self._is_on:
            self.close()
            await self._commit_quietly(self._capture(), _LAST_COMMIT_MS)

    def close(self) -> None:
        """Cancel the commits in flight."""
        for task in self._in_flight:
            task.cancel()

    async def _commit_quietly(self, commit: PendingCommit, timeout_ms: float | None) -> None:
        try:
            await self._send(commit, timeout_ms)
        except (PeerError, OperatorError) as error:
            _log.warning("group %s: auto commit failed: %s", self._group_id, error)
