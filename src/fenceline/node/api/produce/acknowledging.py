"""Produce responses that wait for other replicas (acks=all) or for the disk (`flush.messages`).

Owns one request's response from the append until all acknowledgements have arrived or the request has timed out, and
the timers of all waiting responses of a broker. Never appends.

The response frame is encoded before the wait, on the assumption that every partition succeeds. Only a response with an
error is decoded and encoded again.

Rules: `epochs.md E42`; `gaps.md G49`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from fenceline.errors import ErrorCode, PeerError
from fenceline.node.api.leader_hints import LeaderHints
from fenceline.node.context import RequestContext
from fenceline.node.logs import Logger
from fenceline.node.net.server import Buffer, frame_of
from fenceline.wire.apis import ApiKey
from fenceline.wire.frame import parse_response_header
from fenceline.wire.produce import PartitionResult, encode_response, parse_response

if TYPE_CHECKING:
    from fenceline.node.net.connection import PendingAnswer
    from fenceline.node.replication.replica import Replica

log = Logger("produce")

_MESSAGES = {
    ErrorCode.REQUEST_TIMED_OUT: "The records are in the leader's log, but not yet on all in-sync replicas",
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: "The records are in the log, but on too few in-sync replicas",
}
_KEPT_QUEUES: Final = 8
_SIZE_PREFIX_BYTES: Final = 4


FlushUpTo: TypeAlias = "Callable[[Replica, int], Awaitable[PeerError | None]]"
"""As `LogFlushes.up_to`: waits until a log is durable up to an offset; the reason why it never will be."""


class AckedBy(Enum):
    REPLICAS = "replicas"
    DISK = "disk"


class PendingAck(NamedTuple):
    """`position` in the answer waits until all records below `end_offset` are committed, or flushed."""

    position: int
    replica: Replica
    end_offset: int
    by: AckedBy


class ProducePurgatory:
    """All waiting responses of one broker: their timeouts, and when they are sent.

    Clients use one or two different timeouts, and requests with the same timeout expire in arrival order. So each
    timeout value has one timer, and a response that is sent in time needs none.

    Responses are sent in a later iteration of the event loop. A response is usually completed while a follower's fetch
    is being handled, and sending it lets its connection handle the next request, which may append to the log that the
    fetch has just read.
    """

    __slots__ = ("_loop", "_queues", "_ready", "_timers", "flush_up_to", "hints")

    def __init__(self, loop: asyncio.AbstractEventLoop, hints: LeaderHints, flush_up_to: FlushUpTo) -> None:
        self._loop = loop
        self.hints = hints
        self.flush_up_to = flush_up_to
        self._queues: dict[int, dict[DelayedProduce, float]] = {}
        """Timeout in milliseconds -> waiting requests, oldest first, with their deadlines (event loop seconds)."""
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._ready: list[tuple[PendingAnswer, list[Buffer]]] = []

    def send_later(self, pending: PendingAnswer, frame: list[Buffer]) -> None:
        """All acknowledgements have arrived: send the frame."""
        if not self._ready:
            self._loop.call_soon(self._send)
        self._ready.append((pending, frame))

    def _send(self) -> None:
        ready, self._ready = self._ready, []
        for pending, frame in ready:
            pending.complete(frame)

    def add(self, waiting: DelayedProduce, timeout_ms: int) -> None:
        queue = self._queues.get(timeout_ms)
        loop = self._loop
        if queue is None:
            queue = self._queues[timeout_ms] = {}
            self._timers[timeout_ms] = loop.call_later(timeout_ms / 1000, self._expire, timeout_ms)
        queue[waiting] = loop.time() + timeout_ms / 1000

    def discard(self, waiting: DelayedProduce, timeout_ms: int) -> None:
        queue = self._queues.get(timeout_ms)
        if queue is None:
            return
        queue.pop(waiting, None)
        # The timer of a timeout that is in use stays; timers of many different timeouts do not pile up.
        if not queue and len(self._queues) > _KEPT_QUEUES:
            del self._queues[timeout_ms]
            self._timers.pop(timeout_ms).cancel()

    def _expire(self, timeout_ms: int) -> None:
        queue = self._queues[timeout_ms]
        loop = self._loop
        now = loop.time()
        ended = []
        for waiting, until in queue.items():
            if until > now:
                self._timers[timeout_ms] = loop.call_later(until - now, self._expire, timeout_ms)
                break
            ended.append(waiting)
        else:
            del self._queues[timeout_ms], self._timers[timeout_ms]
        for waiting in ended:
            queue.pop(waiting, None)
            waiting.time_out()


class DelayedProduce:
    """One request. `frame`: its response if every partition succeeds."""

    __slots__ = (
        "_answers",
        "_context",
        "_flushing",
        "_frame",
        "_pending",
        "_remaining",
        "_results",
        "_timeout_ms",
        "_waiting",
    )

    def __init__(
        self,
        answers: ProducePurgatory,
        context: RequestContext,
        frame: list[Buffer],
        pending: PendingAnswer,
    ) -> None:
        self._answers = answers
        self._context = context
        self._frame = frame
        self._pending = pending
        self._remaining = 0
        self._waiting: Sequence[PendingAck] = ()
        self._results: list[PartitionResult] | None = None
        """The results, once one of them differs from `frame`."""
        self._flushing: asyncio.Task[None] | None = None
        self._timeout_ms = -1

    def wait_for(self, pending_acks: Sequence[PendingAck], timeout_ms: int) -> None:
        """Send the response when all acknowledgements have arrived. `timeout_ms` limits the wait for replicas only."""
        self._remaining = len(pending_acks)
        unflushed = [each for each in pending_acks if each.by is AckedBy.DISK]
        if unflushed:
            self._flushing = asyncio.ensure_future(self._flush(unflushed))
            pending_acks = [each for each in pending_acks if each.by is AckedBy.REPLICAS]
        self._waiting = pending_acks
        if pending_acks:
            self._timeout_ms = max(timeout_ms, 0)
            self._answers.add(self, self._timeout_ms)
            for position, replica, end_offset, _ in pending_acks:
                replica.when_committed(end_offset, self, position)

    def committed(self, position: int, code: ErrorCode) -> None:
        self._acknowledged(position, code)

    async def _flush(self, unflushed: Sequence[PendingAck]) -> None:
        try:
            for each in unflushed:
                error = await self._answers.flush_up_to(each.replica, each.end_offset)
                self._acknowledged(
                    each.position, *((error.code, error.told) if error is not None else (ErrorCode.NONE,))
                )
        except Exception:
            log.exception("flush failed", peer=self._context.peer)
            self._cancel_timeout()
            self._pending.fail("internal error, see the previous log message")

    def time_out(self) -> None:
        """The timeout for acknowledgements from replicas has expired."""
        for each in self._waiting:
            if each.replica.forget(self, each.position):
                self._acknowledged(each.position, ErrorCode.REQUEST_TIMED_OUT)

    def _acknowledged(self, position: int, code: ErrorCode, message: str = "") -> None:
        if code:
            results = self._results
            if results is None:
                results = self._results = self._read_frame()
            result = results[position]
            results[position] = PartitionResult(
                result.topic,
                result.topic_id,
                result.index,
                code,
                error_message=message or _MESSAGES.get(code),
            )
        self._remaining -= 1
        if self._remaining == 0:
            self._cancel_timeout()
            frame = self._frame
            if self._results is not None:
                answer = self._answers.hints.produce_response(self._context.listener, self._results)
                body = encode_response(self._context.api_version, answer)
                frame = frame_of(ApiKey.PRODUCE, self._context, body)
            self._answers.send_later(self._pending, frame)

    def _read_frame(self) -> list[PartitionResult]:
        version = self._context.api_version
        message = memoryview(b"".join(self._frame))[_SIZE_PREFIX_BYTES:]
        _, start = parse_response_header(ApiKey.PRODUCE, version, message)
        return list(parse_response(version, message[start:]).results)

    def _cancel_timeout(self) -> None:
        if self._timeout_ms >= 0:
            self._answers.discard(self, self._timeout_ms)
            self._timeout_ms = -1
