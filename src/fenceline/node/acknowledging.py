"""Answers to Produce that wait: for other replicas (acks=all), and for the disk (`flush.messages`).

Owns one request's answer from the append until everything that it owes is done, or its time is up; for all of them,
their deadlines and the turn of the loop in which they leave. Never appends.

The answer is made before it waits, as if all went well; only where something does not is it read and written anew, so
that what is the rule costs no more than keeping it.

Rules: `epochs.md E42`; `gaps.md G49`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from fenceline.errors import ErrorCode
from fenceline.node.handlers.registry import RequestContext
from fenceline.node.leader_hints import with_leader_hints
from fenceline.node.logs import Logger
from fenceline.node.server import Buffer, frame_of
from fenceline.wire.apis import ApiKey
from fenceline.wire.frame import parse_response_header
from fenceline.wire.produce import PartitionResult, encode_response, parse_response

if TYPE_CHECKING:
    from fenceline.node.broker import Broker
    from fenceline.node.connection import PendingAnswer
    from fenceline.node.replica import Replica

log = Logger("produce")

_MESSAGES = {
    ErrorCode.REQUEST_TIMED_OUT: "Not all in-sync replicas have the records yet; they are in the leader's log",
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: "The records are in the log, on fewer than min.insync.replicas",
}
_KEPT_QUEUES: Final = 8
_SIZE_PREFIX_BYTES: Final = 4


class OwedBy(Enum):
    REPLICAS = "replicas"
    DISK = "disk"


class Owed(NamedTuple):
    """`position` in the answer waits until everything below `end_offset` is committed, or flushed."""

    position: int
    replica: Replica
    end_offset: int
    by: OwedBy


class WaitingAnswers:
    """All of one broker: when they give up, and how they leave.

    Clients use one or two time-outs, so those of one time-out end in their order: each has one timer, and an answer
    that was in time costs none.

    An answer leaves in a turn of the loop of its own. What completes it is mostly a follower's fetch that is being
    read, and with an answer its connection goes on: to a request that appends to what that fetch has read already.
    """

    __slots__ = ("_broker", "_queues", "_ready", "_timers")

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._queues: dict[int, dict[Acknowledging, float]] = {}
        """Time-out in milliseconds -> who waits, oldest first, and until when (the loop's seconds)."""
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._ready: list[tuple[PendingAnswer, list[Buffer]]] = []

    def leave(self, pending: PendingAnswer, frame: list[Buffer]) -> None:
        """All that it owed is done."""
        if not self._ready:
            self._broker.loop.call_soon(self._send)
        self._ready.append((pending, frame))

    def _send(self) -> None:
        ready, self._ready = self._ready, []
        for pending, frame in ready:
            pending.complete(frame)

    def add(self, waiting: Acknowledging, timeout_ms: int) -> None:
        queue = self._queues.get(timeout_ms)
        loop = self._broker.loop
        if queue is None:
            queue = self._queues[timeout_ms] = {}
            self._timers[timeout_ms] = loop.call_later(timeout_ms / 1000, self._look, timeout_ms)
        queue[waiting] = loop.time() + timeout_ms / 1000

    def discard(self, waiting: Acknowledging, timeout_ms: int) -> None:
        queue = self._queues.get(timeout_ms)
        if queue is None:
            return
        queue.pop(waiting, None)
        # The timer of a time-out that is used again and again stays; those of many different ones do not pile up.
        if not queue and len(self._queues) > _KEPT_QUEUES:
            del self._queues[timeout_ms]
            self._timers.pop(timeout_ms).cancel()

    def _look(self, timeout_ms: int) -> None:
        queue = self._queues[timeout_ms]
        loop = self._broker.loop
        now = loop.time()
        ended = []
        for waiting, until in queue.items():
            if until > now:
                self._timers[timeout_ms] = loop.call_later(until - now, self._look, timeout_ms)
                break
            ended.append(waiting)
        else:
            del self._queues[timeout_ms], self._timers[timeout_ms]
        for waiting in ended:
            queue.pop(waiting, None)
            waiting.time_out()


class Acknowledging:
    """One request. `frame`: its answer where all that is owed is done."""

    __slots__ = (
        "_answers",
        "_broker",
        "_context",
        "_flushing",
        "_frame",
        "_left",
        "_pending",
        "_results",
        "_timeout_ms",
        "_waiting",
    )

    def __init__(
        self,
        broker: Broker,
        answers: WaitingAnswers,
        context: RequestContext,
        frame: list[Buffer],
        pending: PendingAnswer,
    ) -> None:
        self._broker = broker
        self._answers = answers
        self._context = context
        self._frame = frame
        self._pending = pending
        self._left = 0
        self._waiting: Sequence[Owed] = ()
        self._results: list[PartitionResult] | None = None
        """What the answer says, once it says anything else than `frame`."""
        self._flushing: asyncio.Task[None] | None = None
        self._timeout_ms = -1

    def wait_for(self, owed: Sequence[Owed], timeout_ms: int) -> None:
        """Answer when all of it is done. Replicas get `timeout_ms`, the disk as long as it takes."""
        self._left = len(owed)
        unflushed = [each for each in owed if each.by is OwedBy.DISK]
        if unflushed:
            self._flushing = asyncio.ensure_future(self._flush(unflushed))
            owed = [each for each in owed if each.by is OwedBy.REPLICAS]
        self._waiting = owed
        if owed:
            self._timeout_ms = max(timeout_ms, 0)
            self._answers.add(self, self._timeout_ms)
            for position, replica, end_offset, _ in owed:
                replica.when_committed(end_offset, self, position)

    def committed(self, position: int, code: ErrorCode) -> None:
        self._done(position, code)

    async def _flush(self, unflushed: Sequence[Owed]) -> None:
        try:
            for each in unflushed:
                error = await self._broker.flush_up_to(each.replica, each.end_offset)
                self._done(each.position, *((error.code, error.message) if error is not None else (ErrorCode.NONE,)))
        except Exception:
            log.exception("flush failed", peer=self._context.peer)
            self._forget()
            self._pending.fail("internal error, see the log line before")

    def time_out(self) -> None:
        """The replicas' time is up."""
        for each in self._waiting:
            if each.replica.forget(self, each.position):
                self._done(each.position, ErrorCode.REQUEST_TIMED_OUT)

    def _done(self, position: int, code: ErrorCode, message: str = "") -> None:
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
        self._left -= 1
        if self._left == 0:
            self._forget()
            frame = self._frame
            if self._results is not None:
                answer = with_leader_hints(self._broker, self._context.listener, self._results)
                body = encode_response(self._context.api_version, answer)
                frame = frame_of(ApiKey.PRODUCE, self._context, body)
            self._answers.leave(self._pending, frame)

    def _read_frame(self) -> list[PartitionResult]:
        version = self._context.api_version
        message = memoryview(b"".join(self._frame))[_SIZE_PREFIX_BYTES:]
        _, start = parse_response_header(ApiKey.PRODUCE, version, message)
        return list(parse_response(version, message[start:]).results)

    def _forget(self) -> None:
        if self._timeout_ms >= 0:
            self._answers.discard(self, self._timeout_ms)
            self._timeout_ms = -1
