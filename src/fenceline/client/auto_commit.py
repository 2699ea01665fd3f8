"""Committing by itself (`enable.auto.commit`): each interval while the caller polls, and before giving partitions up.

Owns the times. A commit that fails is logged: the next one covers it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from fenceline.client.config import ClientConfig
from fenceline.client.offsets import CommittedOffset
from fenceline.errors import OperatorError, PeerError
from fenceline.ids import TopicPartition

_log = logging.getLogger("fenceline.client")
_LAST_COMMIT_MS: Final = 5_000
"""How long giving partitions up waits for the commit before it."""

Offsets = dict[TopicPartition, CommittedOffset]


class AutoCommit:
    """Does nothing without a group or with enable.auto.commit=false.

    `commit(offsets, timeout_ms)` sends; `commitable()` tells the positions up to which records were handed out.
    """

    def __init__(
        self,
        config: ClientConfig,
        commitable: Callable[[], Offsets],
        commit: Callable[[Offsets, float | None], Awaitable[None]],
    ) -> None:
        self._group_id: str | None = config["group.id"]
        self._is_on = bool(config["enable.auto.commit"] and self._group_id)
        self._interval_s: float = config["auto.commit.interval.ms"] / 1000
        self._commitable = commitable
        self._commit = commit
        self._due_s: float | None = None
        self._under_way: set[asyncio.Task[Any]] = set()

    def start_interval(self) -> None:
        """The next commit is due one interval from now."""
        self._due_s = time.monotonic() + self._interval_s

    def when_due(self) -> None:
        """Commit in the background if the interval is over; the first call starts it.

        What is committed is what was handed out before: the poll that calls this hands more out before the task runs.
        """
        if not self._is_on:
            return
        if self._due_s is None:
            self.start_interval()
        elif time.monotonic() >= self._due_s:
            self.start_interval()
            task = asyncio.ensure_future(self._commit_quietly(self._commitable(), None))
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)

    async def before_giving_up(self) -> None:
        """Commit now and wait for it, but not for long."""
        if self._is_on:
            await self._commit_quietly(self._commitable(), _LAST_COMMIT_MS)

    def close(self) -> None:
        for task in self._under_way:
            task.cancel()

    async def _commit_quietly(self, offsets: Offsets, timeout_ms: float | None) -> None:
        try:
            await self._commit(offsets, timeout_ms)
        except (PeerError, OperatorError) as error:
            _log.warning("group %s: auto commit failed: %s", self._group_id, error)
