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
from fenceline.client.core.client_base import BlockingClient, CallerThreadCalls
from fenceline.client.core.errors import LogTruncationError
from fenceline.client.core.fetched import ConsumerRecords, Fetched, to_arrow
from fenceline.client.core.loss_receipts import LossReceipt
from fenceline.client.core.offsets import CommittedOffset, LogOffset, OffsetAndEpoch
from fenceline.ids import NO_EPOCH, TopicPartition

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

    def assign(self, partitions: Collection[TopicPartition]) -> None:
        """See `AsyncConsumer.assign`."""
        self._on_loop(lambda: self._async.assign(partitions))

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

    def assignment(self) -> list[TopicPartition]:
        return self._on_loop(self._async.assignment)

    def subscription(self) -> frozenset[str]:
        return self._on_loop(self._async.subscription)

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

    def next_offsets(self) -> dict[TopicPartition, CommittedOffset]:
        """See `AsyncConsumer.next_offsets`."""
        return self._on_loop(self._async.next_offsets)

    def _poll_pieces(self, timeout_ms: float, max_bytes: int) -> list[Fetched]:
        return self._run_with_listeners(lambda: self._async.poll_pieces(timeout_ms, max_bytes=max_bytes))

    # -- positions

    def seek(self, tp: TopicPartition, offset: int | CommittedOffset, leader_epoch: int = NO_EPOCH) -> None:
        """See `AsyncConsumer.seek`."""
        self._on_loop(lambda: self._async.seek(tp, offset, leader_epoch))

    def seek_to_beginning(self, partitions: Collection[TopicPartition] = ()) -> None:
        self._on_loop(lambda: self._async.seek_to_beginning(partitions))

    def seek_to_end(self, partitions: Collection[TopicPartition] = ()) -> None:
        self._on_loop(lambda: self._async.seek_to_end(partitions))

    def position(self, tp: TopicPartition, *, timeout_ms: float | None = None) -> int:
        """See `AsyncConsumer.position`."""
        return self._loop_thread.run(self._async.position(tp, timeout_ms=timeout_ms))

    def position_and_epoch(self, tp: TopicPartition, *, timeout_ms: float | None = None) -> CommittedOffset:
        """See `AsyncConsumer.position_and_epoch`."""
        return self._loop_thread.run(self._async.position_and_epoch(tp, timeout_ms=timeout_ms))

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """See `AsyncConsumer.pause`."""
        self._on_loop(lambda: self._async.pause(partitions))

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        self._on_loop(lambda: self._async.resume(partitions))

    def paused(self) -> list[TopicPartition]:
        return self._on_loop(self._async.paused)

    def lag(self, tp: TopicPartition) -> int | None:
        """See `AsyncConsumer.lag`."""
        return self._on_loop(lambda: self._async.lag(tp))

    # -- offsets

    def committed(
        self, partitions: Collection[TopicPartition], *, timeout_ms: float | None = None
    ) -> dict[TopicPartition, CommittedOffset | None]:
        """See `AsyncConsumer.committed`."""
        return self._loop_thread.run(self._async.committed(partitions, timeout_ms=timeout_ms))

    def commit(
        self,
        offsets: Mapping[TopicPartition, CommittedOffset | int] | None = None,
        *,
        timeout_ms: float | None = None,
    ) -> None:
        """See `AsyncConsumer.commit`."""
        self._loop_thread.run(self._async.commit(offsets, timeout_ms=timeout_ms))

    def beginning_offsets(
        self, partitions: Collection[TopicPartition], *, timeout_ms: float | None = None
    ) -> dict[TopicPartition, LogOffset]:
        """See `AsyncConsumer.beginning_offsets`."""
        return self._loop_thread.run(self._async.beginning_offsets(partitions, timeout_ms=timeout_ms))

    def end_offsets(
        self, partitions: Collection[TopicPartition], *, timeout_ms: float | None = None
    ) -> dict[TopicPartition, LogOffset]:
        """See `AsyncConsumer.end_offsets`."""
        return self._loop_thread.run(self._async.end_offsets(partitions, timeout_ms=timeout_ms))

    def offsets_for_times(
        self, timestamps_ms: Mapping[TopicPartition, int], *, timeout_ms: float | None = None
    ) -> dict[TopicPartition, OffsetAndEpoch | None]:
        """See `AsyncConsumer.offsets_for_times`."""
        return self._loop_thread.run(self._async.offsets_for_times(timestamps_ms, timeout_ms=timeout_ms))

    def partitions_for(self, topic: str, *, timeout_ms: float | None = None) -> list[int]:
        return self._loop_thread.run(self._async.partitions_for(topic, timeout_ms=timeout_ms))

    # -- truncations

    def truncations(self) -> list[LogTruncationError]:
        """See `AsyncConsumer.truncations`."""
        return self._on_loop(self._async.truncations)

    def loss_receipts(self, error: LogTruncationError, *, timeout_ms: float | None = None) -> tuple[LossReceipt, ...]:
        """See `AsyncConsumer.loss_receipts`."""
        return self._loop_thread.run(self._async.loss_receipts(error, timeout_ms=timeout_ms))

    # -- closing

    def close(self, timeout_s: float = 30) -> None:
        """See `AsyncConsumer.close`."""
        self._close_with(lambda: self._run_with_listeners(lambda: self._async.close(timeout_s * 1000)))

    # -- calls into the event loop

    def _on_loop(self, function: Callable[[], T]) -> T:
        async def call() -> T:
            return function()

        return self._loop_thread.run(call())

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
            choice: Choice = await self._caller_calls.call(lambda: decide(error))
            return choice

        return ask


__all__ = ["AsyncConsumer", "Consumer"]
