"""Appends of a coordinator to its topic, and the one timer for all its deadlines.

Owns the tasks of appends that wait for replicas, and when a waiting request is told that it takes too long. Decides
nothing: the coordinator gets the log's answer. Everything runs on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Protocol, TypeAlias

from fenceline.errors import ErrorCode, PeerError
from fenceline.ids import TopicPartition
from fenceline.log.core.errors import StorageError
from fenceline.node.clock import Clock
from fenceline.node.coordination.loading import CoordinatorTopicReads
from fenceline.node.logs import Logger

KeyValue: TypeAlias = tuple[bytes | None, bytes | None]
Completed: TypeAlias = Callable[[PeerError | None], None]

log: Final = Logger("coordinators")


class CoordinatorLog(CoordinatorTopicReads, Protocol):
    """The partitions of the coordinator's topic that this broker leads."""

    def append(
        self, topic_partition: TopicPartition, leader_epoch: int, records: list[KeyValue]
    ) -> Awaitable[int] | int:
        """Append one batch; returns its base offset once it is committed. Raises PeerError if the log rejects it or if
        this broker does not lead the partition in that epoch: then nothing was written."""


class CoordinatorAppends:
    """Of one coordinator."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._tasks: set[asyncio.Future[int]] = set()

    def start(
        self,
        partition: int,
        append: Callable[[TopicPartition], Awaitable[int] | int],
        timeout_ms: int,
        completed: Completed,
        late: Callable[[], None],
    ) -> None:
        """Append one batch with this call of a `CoordinatorLog`. `completed` is called once, before this returns if the
        log decides at once: with None when the batch is committed, or with the error. `late` is called before that if
        it takes longer than the timeout."""
        try:
            result = append(TopicPartition(self._topic, partition))
        except PeerError as error:
            self._log_rejected(partition, error)
            completed(error)
            return
        if isinstance(result, int):
            completed(None)
            return
        # Tasks start in creation order, so batches reach the log in the order of their duties.
        task = asyncio.ensure_future(result)

        def is_late() -> None:
            log.warning(
                "write of a coordinator not replicated in time",
                partition=f"{self._topic}-{partition}",
                waited_ms=timeout_ms,
                advice=f"In-sync replicas do not fetch. Check them with: fenceline topics describe {self._topic}",
            )
            late()

        timer = asyncio.get_running_loop().call_later(timeout_ms / 1000, is_late)
        task.add_done_callback(lambda done: self._done(partition, done, timer, completed))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    def _done(
        self, partition: int, done: asyncio.Future[int], timer: asyncio.TimerHandle, completed: Completed
    ) -> None:
        timer.cancel()
        if done.cancelled():
            return
        error = done.exception()
        if error is None or isinstance(error, PeerError):
            if error is not None:
                self._log_rejected(partition, error)
            completed(error)
        else:
            completed(PeerError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error)))
            raise error

    def _log_rejected(self, partition: int, error: PeerError) -> None:
        if not isinstance(error, StorageError):  # storage errors are logged once a minute elsewhere
            log.warning(
                "write of a coordinator rejected",
                partition=f"{self._topic}-{partition}",
                error=str(error),
            )


class CoordinatorTimer:
    """One timer for all deadlines. It may fire early if its deadline has moved; then it is only armed again."""

    def __init__(self, clock: Clock, next_deadline_ms: Callable[[], int | None], on_time: Callable[[], None]) -> None:
        self._clock = clock
        self._next_deadline_ms = next_deadline_ms
        self._on_time = on_time
        self._handle: asyncio.TimerHandle | None = None
        self._at_ms = 0
        self._is_closed = False

    def arm(self) -> None:
        """After anything that may have set an earlier deadline."""
        at_ms = self._next_deadline_ms()
        if at_ms is None or self._is_closed or (self._handle is not None and self._at_ms <= at_ms):
            return
        if self._handle is not None:
            self._handle.cancel()
        delay_ms = max(at_ms - self._clock.monotonic_ms(), 0)
        self._at_ms = at_ms
        self._handle = asyncio.get_running_loop().call_later(delay_ms / 1000, self._fire)

    def close(self) -> None:
        self._is_closed = True
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _fire(self) -> None:
        self._handle = None
        try:
            self._on_time()
        finally:
            # Also after a bug of ours: others have deadlines.
            self.arm()
