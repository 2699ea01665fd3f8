"""Consumer: the blocking API of `AsyncConsumer`.

Decoding runs in the caller's thread, fetching and heartbeats in the client's thread; listeners run in the caller's
thread inside `poll`, so that they may commit and seek.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from fenceline.client.consumer.async_consumer import AsyncConsumer, Listener
from fenceline.client.consumer.truncation import Choice, Decide
from fenceline.client.core.client_base import BlockingClient, CallerThreadCalls, blocking
from fenceline.client.core.errors import LogTruncationError
from fenceline.client.core.fetched import ConsumerRecords, Fetched, to_arrow
from fenceline.ids import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
BlockingListener = Callable[[list[TopicPartition]], None]


class Consumer(BlockingClient[AsyncConsumer]):
    """Poll from one thread at a time. Close it, or use it as a context manager. Cannot be used after a fork."""

    def __init__(self, bootstrap: str | Sequence[str] | Mapping[str, Any] | None = None, **config: Any) -> None:
        super().__init__("fenceline-consumer", lambda: AsyncConsumer(bootstrap, **config))
        self.config = self._async.config
        self._caller_calls: CallerThreadCalls | None = None
        if (decide := self.config["on.truncation"]) and callable(decide):
            self._async.decide_truncations(self._deferred_decision(decide))

    # -- assignment and subscription

    assign = blocking(AsyncConsumer.assign)

    def subscribe(
        self,
        topics: Collection[str] = (),
        *,
        pattern: str | None = None,
        on_assigned: BlockingListener | None = None,
        on_revoked: BlockingListener | None = None,
        on_lost: BlockingListener | None = None,
    ) -> None:
        """See `AsyncConsumer.subscribe`; the listeners run in this thread, inside `poll`, `unsubscribe` and `close`."""
        self._on_loop(
            lambda: self._async.subscribe(
                topics,
                pattern=pattern,
                on_assigned=self._deferred(on_assigned),
                on_revoked=self._deferred(on_revoked),
                on_lost=self._deferred(on_lost),
            )
        )

    def unsubscribe(self) -> None:
        """See `AsyncConsumer.unsubscribe`."""
        self._run_with_listeners(self._async.unsubscribe)

    assignment = blocking(AsyncConsumer.assignment)
    subscription = blocking(AsyncConsumer.subscription)
    group_metadata = blocking(AsyncConsumer.group_metadata)

    # -- poll

    def poll(self, timeout_ms: float = 0, *, max_records: int | None = None) -> ConsumerRecords:
        """See `AsyncConsumer.poll`."""
        return self._run_with_listeners(lambda: self._async.poll(timeout_ms, max_records=max_records))

    def poll_arrow(self, timeout_ms: float = 0, *, max_bytes: int = 8 * 1024 * 1024, **options: Any) -> pa.RecordBatch:
        """See `AsyncConsumer.poll_arrow`."""
        ends_s = time.monotonic() + timeout_ms / 1000
        while True:
            pieces = self._poll_pieces(max(0.0, (ends_s - time.monotonic()) * 1000), max_bytes)
            try:
                batch = to_arrow(pieces, **options)
            except BaseException:
                self._on_loop(self._async.put_back_pieces)
                raise
            if not pieces:
                return batch
            # Compaction leaves batches without records.
            if self._on_loop(self._async.mark_pieces_returned) and batch.num_rows:
                return batch

    next_offsets = blocking(AsyncConsumer.next_offsets)

    def _poll_pieces(self, timeout_ms: float, max_bytes: int) -> list[Fetched]:
        return self._run_with_listeners(lambda: self._async.poll_pieces(timeout_ms, max_bytes=max_bytes))

    # -- positions

    seek = blocking(AsyncConsumer.seek)
    seek_to_beginning = blocking(AsyncConsumer.seek_to_beginning)
    seek_to_end = blocking(AsyncConsumer.seek_to_end)
    position = blocking(AsyncConsumer.position)
    position_and_epoch = blocking(AsyncConsumer.position_and_epoch)
    pause = blocking(AsyncConsumer.pause)
    resume = blocking(AsyncConsumer.resume)
    paused = blocking(AsyncConsumer.paused)
    lag = blocking(AsyncConsumer.lag)

    # -- offsets

    committed = blocking(AsyncConsumer.committed)
    commit = blocking(AsyncConsumer.commit)
    beginning_offsets = blocking(AsyncConsumer.beginning_offsets)
    end_offsets = blocking(AsyncConsumer.end_offsets)
    offsets_for_times = blocking(AsyncConsumer.offsets_for_times)
    partitions_for = blocking(AsyncConsumer.partitions_for)

    # -- truncations

    truncations = blocking(AsyncConsumer.truncations)
    loss_receipts = blocking(AsyncConsumer.loss_receipts)

    # -- closing

    def close(self, timeout_s: float = 30) -> None:
        """See `AsyncConsumer.close`."""
        self._close_with(lambda: self._run_with_listeners(lambda: self._async.close(timeout_s * 1000)))

    # -- calls into the event loop

    def _run_with_listeners(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        async def work(calls: CallerThreadCalls) -> T:
            # Only one call at a time runs listeners: the one that polls.
            before, self._caller_calls = self._caller_calls, calls
            try:
                return await make()
            finally:
                self._caller_calls = before

        return self._loop_thread.run_with_calls(work)

    def _deferred(self, listener: BlockingListener | None) -> Listener | None:
        if listener is None:
            return None
        if inspect.iscoroutinefunction(listener):
            raise TypeError("listeners of the blocking Consumer must be plain functions, not coroutines")

        async def call(partitions: list[TopicPartition]) -> None:
            assert self._caller_calls is not None, "listeners run inside poll, unsubscribe and close"
            await self._caller_calls.call(lambda: listener(partitions))

        return call

    def _deferred_decision(self, decide: Callable[[LogTruncationError], Choice]) -> Decide:
        """The function of `on.truncation`, called in the thread that polls."""

        async def ask(error: LogTruncationError) -> Choice:
            assert self._caller_calls is not None, "truncations are reported inside poll"
            return await self._caller_calls.call(lambda: decide(error))

        return ask


__all__ = ["AsyncConsumer", "Consumer"]
