"""A fetch that waits for bytes, an error or its timeout (`epochs.md E7`: every check runs again).

Owns its registrations at the partitions that it waits for, and its timer. Settled partitions of a session notify the
session; the fetch itself is registered at the others only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from fenceline.node.api.fetch.reads import FetchReads, FetchResult, Reader
from fenceline.node.context import RequestContext
from fenceline.node.net.connection import PendingAnswer
from fenceline.replica.fencing import CONSUMER_REPLICA_ID, IsolationLevel
from fenceline.replica.fetch_session import SessionAnswer
from fenceline.wire.fetch import FetchRequest

if TYPE_CHECKING:
    from fenceline.node.metrics import NodeMetrics
    from fenceline.node.net.server import Buffer
    from fenceline.node.replication.replica import Replica
    from fenceline.node.turns import Turns
    from fenceline.replica.waiters import Waiters


class Fetching(Protocol):
    """What a parked fetch uses of its `FetchHandler`."""

    reads: FetchReads
    metrics: NodeMetrics
    loop: asyncio.AbstractEventLoop
    turns: Turns

    def plain_answer(
        self, context: RequestContext, request: FetchRequest, answer: SessionAnswer
    ) -> Sequence[Buffer] | None: ...
    def is_ready(self, request: FetchRequest, answer: SessionAnswer, result: FetchResult) -> bool: ...
    def must_wait(self, result: FetchResult) -> bool: ...
    def frame(self, context: RequestContext, answer: SessionAnswer, result: FetchResult) -> list[Buffer]: ...
    def answer_cold(
        self, context: RequestContext, answer: SessionAnswer, result: FetchResult, pending: PendingAnswer
    ) -> None: ...


class ParkedFetch:
    """A fetch that waits for bytes, an error or its timeout."""

    __slots__ = (
        "_answer",
        "_context",
        "_fetching",
        "_is_woken",
        "_pending",
        "_reader",
        "_replicas",
        "_request",
        "_timer",
    )

    def __init__(
        self,
        fetching: Fetching,
        context: RequestContext,
        request: FetchRequest,
        answer: SessionAnswer,
        reader: Reader,
    ) -> None:
        self._fetching = fetching
        self._context = context
        self._request = request
        self._answer = answer
        self._reader = reader
        self._pending = PendingAnswer()
        self._replicas: list[Replica] = []
        self._is_woken = False
        self._timer: asyncio.TimerHandle | None = None

    def park(self, replicas: Sequence[Replica] | None = None) -> PendingAnswer:
        """`replicas`: those that may change; None: those that the session reads again."""
        self._fetching.metrics.parked_fetches += 1
        session = self._answer.session
        if session is not None:
            session.listeners.add(self._wake)
        if replicas is None:
            self._register_all()
        else:
            for replica in replicas:
                self._register(replica)
        self._timer = self._fetching.loop.call_later(self._request.max_wait_ms / 1000, self._time_out)
        self._pending.on_abandoned(self._unpark)
        return self._pending

    def _register_all(self) -> None:
        """Register at every partition that may change."""
        for wanted in self._answer.to_read():
            replica = self._fetching.reads.replica_of(wanted.asked)
            if replica is not None:
                self._register(replica)

    def _register(self, replica: Replica) -> None:
        self._waiters(replica).add(self._wake)
        self._replicas.append(replica)

    def _unregister(self) -> None:
        for replica in self._replicas:
            self._waiters(replica).discard(self._wake)
        self._replicas.clear()

    def _wake(self) -> None:
        # Several partitions may change within one produce request: check once, after it.
        if not self._is_woken:
            self._is_woken = True
            self._fetching.turns.postpone(self._check)

    def _check(self) -> None:
        self._is_woken = False
        if self._timer is None:
            return
        plain = self._fetching.plain_answer(self._context, self._request, self._answer)
        if plain:
            self._fetching.metrics.woken_fetches += 1
            self._unpark()
            self._pending.complete(plain)
            return
        if plain is not None:
            self._unregister()
            self._register_all()
            return
        result = self._read()
        if self._fetching.is_ready(self._request, self._answer, result):
            self._fetching.metrics.woken_fetches += 1
            self._complete(result)
        elif self._answer.session is not None:
            self._unregister()
            self._register_all()

    def _time_out(self) -> None:
        turns = self._fetching.turns
        if self._timer is None:
            return  # it was answered while it waited for its turn
        if turns.is_over():
            turns.postpone(self._time_out)
        else:
            self._complete(self._read())

    def _complete(self, result: FetchResult) -> None:
        self._unpark()
        if self._fetching.must_wait(result):
            self._fetching.answer_cold(self._context, self._answer, result, self._pending)
        else:
            self._pending.complete(self._fetching.frame(self._context, self._answer, result))

    def _unpark(self) -> None:
        if self._timer is None:
            return
        self._timer.cancel()
        self._timer = None
        self._fetching.metrics.parked_fetches -= 1
        if self._answer.session is not None:
            self._answer.session.listeners.discard(self._wake)
        self._unregister()

    def _waiters(self, replica: Replica) -> Waiters:
        """Consumers wait for the high watermark or the last stable offset, all other readers for the log end."""
        if self._request.replica_id != CONSUMER_REPLICA_ID:
            return replica.follower_waiters
        is_committed = self._request.isolation_level == IsolationLevel.READ_COMMITTED
        return replica.stable_waiters if is_committed else replica.waiters

    def _read(self) -> FetchResult:
        return self._fetching.reads.read(self._request, self._answer, self._reader)
