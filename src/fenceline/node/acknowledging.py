"""Answers to Produce that wait: for other replicas (acks=all), and for the disk (`flush.messages`).

Owns one request's answer from the append until everything that it owes is done, or its time is up. Never appends.

Rules: `epochs.md E42`; `gaps.md G49`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from fenceline.errors import ErrorCode
from fenceline.node.handlers.registry import RequestContext
from fenceline.node.logs import Logger
from fenceline.node.server import frame_of
from fenceline.wire.apis import ApiKey
from fenceline.wire.produce import PartitionResult, ProduceResponse, encode_response

if TYPE_CHECKING:
    from fenceline.node.broker import Broker
    from fenceline.node.connection import PendingAnswer
    from fenceline.node.replica import Replica

log = Logger("produce")

_MESSAGES = {
    ErrorCode.REQUEST_TIMED_OUT: "Not all in-sync replicas have the records yet; they are in the leader's log",
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: "The records are in the log, on fewer than min.insync.replicas",
}


class OwedBy(Enum):
    REPLICAS = "replicas"
    DISK = "disk"


class Owed(NamedTuple):
    """`position` in the answer waits until everything below `end_offset` is committed, or flushed."""

    position: int
    replica: Replica
    end_offset: int
    by: OwedBy


class Acknowledging:
    """One request."""

    __slots__ = ("_broker", "_context", "_flushing", "_left", "_pending", "_results", "_timer", "_waiting")

    def __init__(
        self, broker: Broker, context: RequestContext, results: list[PartitionResult], pending: PendingAnswer
    ) -> None:
        self._broker = broker
        self._context = context
        self._results = results
        self._pending = pending
        self._left = 0
        self._waiting: list[Owed] = []
        self._flushing: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def wait_for(self, owed: Sequence[Owed], timeout_ms: int) -> None:
        """Answer when all of it is done. Replicas get `timeout_ms`, the disk as long as it takes."""
        self._left = len(owed)
        self._waiting = [each for each in owed if each.by is OwedBy.REPLICAS]
        unflushed = [each for each in owed if each.by is OwedBy.DISK]
        if unflushed:
            self._flushing = asyncio.ensure_future(self._flush(unflushed))
        if self._waiting:
            self._timer = self._broker.loop.call_later(max(timeout_ms, 0) / 1000, self._time_out)
            for each in self._waiting:
                each.replica.when_committed(each.end_offset, self, each.position)

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

    def _time_out(self) -> None:
        self._timer = None
        for each in self._waiting:
            if each.replica.forget(self, each.position):
                self._done(each.position, ErrorCode.REQUEST_TIMED_OUT)

    def _done(self, position: int, code: ErrorCode, message: str = "") -> None:
        if code:
            result = self._results[position]
            self._results[position] = PartitionResult(
                result.topic,
                result.topic_id,
                result.index,
                code,
                error_message=message or _MESSAGES.get(code),
            )
        self._left -= 1
        if self._left == 0:
            self._forget()
            body = encode_response(self._context.api_version, ProduceResponse(self._results))
            self._pending.complete(frame_of(ApiKey.PRODUCE, self._context, body))

    def _forget(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
