"""Committing by itself (`enable.auto.commit`): each interval while the caller polls, and before giving partitions up.

Owns the times. A commit that fails is logged: the next one covers it. What is committed and the membership that commits
it are taken at one moment, so that a commit that is tried again after a rebalance is of the generation before it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from fenceline.client.config import ClientConfig
from fenceline.client.consumer_offsets import MadeCommit
from fenceline.errors import OperatorError, PeerError

_log = logging.getLogger("fenceline.client")
_LAST_COMMIT_MS: Final = 5_000
"""How long giving partitions up waits for the commit before it."""


class AutoCommit:
    """Does nothing without a group or with enable.auto.commit=false.

    `make()` gives the positions up to which records were handed out, as a commit of the present membership;
    `send(commit, timeout_ms)` sends it.
    """

    def __init__(
        self,
        config: ClientConfig,
        make: Callable[[], MadeCommit],
        send: Callable[[MadeCommit, float | None], Awaitable[None]],
    ) -> None:
        self._group_id: str | None = config["group.id"]
        self._is_on = bool(config["enable.auto.commit"] and self._group_id)
        self._interval_s: float = config["auto.commit.interval.ms"] / 1000
        self._make = make
        self._send = send
        self._due_s: float | None = None
        self._under_way: set[asyncio.Task[Any]] = set()

    def start_interval(self) -> None:
        """The next commit is due one interval from now."""
        self._due_s = time.monotonic() + self._interval_s

    def when_due(self) -> None:
        """Commit in the background if the interval is over; the first call starts it.

        What is committed is what was handed out before: the poll that calls this hands more out before the task runs.
        While one still waits for its answer no other is made: a coordinator that is slow is not asked more often.
        """
        if not self._is_on:
            return
        if self._due_s is None:
            self.start_interval()
        elif time.monotonic() >= self._due_s and not self._under_way:
            self.start_interval()
            task = asyncio.ensure_future(self._commit_quietly(self._make(), None))
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)

    async def before_giving_up(self) -> None:
        """Commit now and wait for it, but not for long. One that still waits for its answer is given up: this one
        covers it, and its retry would take the committed offset back.
        """
        if self._is_on:
            self.close()
            await self._commit_quietly(self._make(), _LAST_COMMIT_MS)

    def close(self) -> None:
        """Give up what is under way."""
        for task in self._under_way:
            task.cancel()

    async def _commit_quietly(self, made: MadeCommit, timeout_ms: float | None) -> None:
        try:
            await self._send(made, timeout_ms)
        except (PeerError, OperatorError) as error:
            _log.warning("group %s: auto commit failed: %s", self._group_id, error)
