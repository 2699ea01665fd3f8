"""The results of sends: futures for one record, or for many.

Owns `Delivery` and `BulkDelivery`. They are views of their batches' outcomes (one lock and event per batch, not per
record), so that creating one is cheap. Usable from any thread, and awaitable.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple, Self

from fenceline.client.core.errors import TimedOut
from fenceline.ids import TopicPartition

_log = logging.getLogger("fenceline.client")


class RecordMetadata(NamedTuple):
    """Where a record was written. offset -1: unknown (acks=0). timestamp in ms."""

    topic: str
    partition: int
    offset: int
    timestamp: int


class DeliveryOutcome:
    """The outcome of one batch. Completed once, on the producer's loop; readable from any thread."""

    __slots__ = ("_callbacks", "_event", "_lock", "base_offset", "error", "is_done", "log_append_time_ms", "tp")

    def __init__(self, tp: TopicPartition) -> None:
        self.tp = tp
        self.is_done = False
        self.error: Exception | None = None
        self.base_offset = -1
        self.log_append_time_ms = -1
        self._lock = threading.Lock()
        self._event: threading.Event | None = None
        self._callbacks: list[Callable[[], None]] = []

    def complete(self, base_offset: int, log_append_time_ms: int) -> None:
        self._finish(base_offset, log_append_time_ms, None)

    def fail(self, error: Exception) -> None:
        self._finish(-1, -1, error)

    def _finish(self, base_offset: int, log_append_time_ms: int, error: Exception | None) -> None:
        with self._lock:
            assert not self.is_done, "a batch is completed once"
            self.base_offset, self.log_append_time_ms, self.error = base_offset, log_append_time_ms, error
            self.is_done = True
            callbacks, self._callbacks = self._callbacks, []
            if self._event is not None:
                self._event.set()
        for callback in callbacks:
            _guarded(callback)

    def wait(self, timeout_s: float | None) -> bool:
        """Block until done; False after `timeout_s`."""
        if self.is_done:
            return True
        with self._lock:
            if self.is_done:
                return True
            if self._event is None:
                self._event = threading.Event()
        return self._event.wait(timeout_s)

    def when_done(self, callback: Callable[[], None]) -> None:
        """Call `callback` when done, immediately if it is; on the producer's loop or the caller's thread."""
        with self._lock:
            if not self.is_done:
                self._callbacks.append(callback)
                return
        _guarded(callback)

    async def done(self) -> None:
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()

        def resolve() -> None:
            if not waiter.done():
                waiter.set_result(None)

        def wake() -> None:
            loop.call_soon_threadsafe(resolve)

        self.when_done(wake)
        await waiter


def _guarded(callback: Callable[[], None]) -> None:
    try:
        callback()
    except Exception:
        _log.exception("a delivery callback failed")


class Delivery:
    """The future of one record."""

    __slots__ = ("_index", "_outcome", "_timestamp")

    def __init__(self, outcome: DeliveryOutcome, index: int, timestamp: int) -> None:
        self._outcome = outcome
        self._index = index
        self._timestamp = timestamp

    def done(self) -> bool:
        return self._outcome.is_done

    def result(self, timeout_s: float | None = None) -> RecordMetadata:
        """Block until the record is acknowledged. Raises the error of a failed delivery, or TimedOut."""
        if not self._outcome.wait(timeout_s):
            raise TimedOut(f"no acknowledgement within {timeout_s} s. Call flush, wait longer, or lower linger.ms.")
        return self._metadata()

    def exception(self, timeout_s: float | None = None) -> Exception | None:
        if not self._outcome.wait(timeout_s):
            raise TimedOut(f"no acknowledgement within {timeout_s} s")
        return self._outcome.error

    def add_done_callback(self, callback: Callable[[Self], None]) -> None:
        """Call `callback(delivery)` once; it runs on the producer's loop and must not block."""
        self._outcome.when_done(lambda: callback(self))

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        if not self._outcome.is_done:
            yield from self._outcome.done().__await__()
        return self._metadata()

    def _metadata(self) -> RecordMetadata:
        outcome = self._outcome
        if outcome.error is not None:
            raise outcome.error
        offset = -1 if outcome.base_offset < 0 else outcome.base_offset + self._index
        timestamp = self._timestamp if outcome.log_append_time_ms < 0 else outcome.log_append_time_ms
        return RecordMetadata(outcome.tp.topic, outcome.tp.partition, offset, timestamp)


class SentBatch(NamedTuple):
    """One batch of a `send_arrow` in the log: offsets [base_offset, base_offset + record_count)."""

    topic: str
    partition: int
    base_offset: int
    record_count: int


class BulkDelivery:
    """The future of all rows of a `send_arrow`."""

    __slots__ = ("_outcomes", "record_count")

    def __init__(self, outcomes: Sequence[tuple[DeliveryOutcome, int]]) -> None:
        self._outcomes = outcomes
        self.record_count = sum(count for _, count in outcomes)

    def done(self) -> bool:
        return all(outcome.is_done for outcome, _ in self._outcomes)

    def result(self, timeout_s: float | None = None) -> list[SentBatch]:
        """Block until every row is acknowledged. Raises the first failure, or TimedOut."""
        import time

        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        for outcome, _ in self._outcomes:
            left_s = None if end_s is None else max(0.0, end_s - time.monotonic())
            if not outcome.wait(left_s):
                raise TimedOut(f"not all rows were acknowledged within {timeout_s} s")
        return self._sent()

    def __await__(self) -> Generator[Any, None, list[SentBatch]]:
        for outcome, _ in self._outcomes:
            if not outcome.is_done:
                yield from outcome.done().__await__()
        return self._sent()

    def _sent(self) -> list[SentBatch]:
        sent = []
        for outcome, count in self._outcomes:
            if outcome.error is not None:
                raise outcome.error
            sent.append(SentBatch(outcome.tp.topic, outcome.tp.partition, outcome.base_offset, count))
        return sent
