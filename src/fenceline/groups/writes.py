"""The duties of one partition of `__consumer_offsets`: its pending writes, and the requests that wait for them.

Owns the order of writes and responses. Never appends by itself: it requests appends with `messages.AppendGroupRecords`
and gets the results. Knows no group.

Invariants: a change that a client saw is in the log; a write that the log rejected leaves no trace in the offsets; a
response that depends on a write is sent when that write is complete, never before. A request that has waited too long
gets a retriable error (`late`), and the write stays pending: the log decides whether it is committed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from fenceline.coordination import append_error
from fenceline.errors import ErrorCode
from fenceline.groups.messages import (
    AppendGroupMarker,
    AppendGroupRecords,
    Duty,
    EndOfTransaction,
    GroupAnswer,
    KeyValue,
    Now,
    OffsetRewound,
    Outcome,
    Ticket,
    TransactionalProducer,
)

OnComplete: TypeAlias = Callable[[ErrorCode, Now], None]
"""Called once when a write is committed (NONE) or rejected; for a waiting request also when it takes too long."""
OnIdle: TypeAlias = Callable[[ErrorCode], None]
"""Called once when no write is pending any more, or with an error if the wait is cancelled."""


def no_callback(error: ErrorCode, now: Now) -> None:
    """No request waits for the write."""


@dataclass(slots=True)
class _Write:
    """The callbacks of one append."""

    on_complete: list[OnComplete]
    """Callbacks that send a response."""
    on_decision: OnComplete | None = None
    """The callback for the log's decision, however long that takes."""
    on_idle: list[OnIdle] = field(default_factory=list)


class PendingValues(Protocol):
    """The values that a write has changed before the log's decision (`offsets.offsets.OffsetStore`)."""

    def confirm(self, write_id: int) -> None: ...
    def undo(self, write_id: int) -> None: ...


class Writes:
    """Of one shard."""

    def __init__(self, partition: int, epoch: int, next_write_id: Callable[[], int], values: PendingValues) -> None:
        self._partition = partition
        self._epoch = epoch
        self._next_write_id = next_write_id
        self._values = values
        self._duties: list[Duty] = []
        self._open: dict[int, _Write] = {}
        """Pending, oldest first."""
        self.count = 0
        """Number of writes begun."""

    def pop_duties(self) -> list[Duty]:
        """Everything to do since the last call, in order."""
        duties, self._duties = self._duties, []
        return duties

    def answer(self, ticket: Ticket, outcome: Outcome) -> None:
        self._duties.append(GroupAnswer(ticket, outcome))

    def report(self, rewound: Sequence[OffsetRewound]) -> None:
        """Log these for the operator."""
        self._duties.extend(rewound)

    def begin(
        self,
        batch: Sequence[KeyValue],
        on_complete: OnComplete = no_callback,
        on_decision: OnComplete | None = None,
        producer: TransactionalProducer | None = None,
    ) -> int:
        """Request one append, in a transaction if there is a producer; `on_complete` sends the response, `on_decision`
        gets the log's decision. Returns the write id."""
        write_id = self._begin(on_complete, on_decision)
        self._duties.append(AppendGroupRecords(self._partition, self._epoch, write_id, tuple(batch), producer))
        return write_id

    def begin_marker(self, end: EndOfTransaction, on_complete: OnComplete) -> int:
        """Request the append of an end marker. Returns the write id."""
        write_id = self._begin(on_complete, None)
        self._duties.append(AppendGroupMarker(self._epoch, write_id, end))
        return write_id

    def _begin(self, on_complete: OnComplete, on_decision: OnComplete | None) -> int:
        write_id = self._next_write_id()
        assert not self._open or write_id > next(reversed(self._open)), "writes complete in the order of their ids"
        self._open[write_id] = _Write([on_complete], on_decision)
        self.count += 1
        return write_id

    def respond_after_newest(
        self, ticket: Ticket, outcome: Outcome, on_rejected: Callable[[ErrorCode], Outcome]
    ) -> None:
        """Respond when the newest write is complete; with `on_rejected` if the log rejects it."""
        self._newest().on_complete.append(
            lambda error, now: self.answer(ticket, on_rejected(error) if error else outcome)
        )

    def committed(self, write_id: int, now: Now) -> None:
        """The write is committed. An unknown write id is an old one and is ignored."""
        self._complete(write_id, ErrorCode.NONE, now)

    def rejected(self, write_id: int, code: ErrorCode, now: Now) -> None:
        """The log rejected the write with this code."""
        self._complete(write_id, append_error(code), now)

    def late(self, write_id: int, now: Now) -> None:
        """The write is in the log but not committed in time: waiting requests may retry."""
        write = self._open.get(write_id)
        if write is None:
            return
        error = append_error(ErrorCode.REQUEST_TIMED_OUT)
        on_complete, write.on_complete = write.on_complete, []
        on_idle, write.on_idle = write.on_idle, []
        for each in on_complete:
            each(error, now)
        for waiter in on_idle:
            waiter(error)

    def when_idle(self, on_idle: OnIdle) -> bool:
        """Call `on_idle` when the pending writes are complete; False, and nothing is called, if there are none."""
        if not self._open:
            return False
        self._newest().on_idle.append(on_idle)
        return True

    def unload(self, now: Now) -> None:
        """Another broker coordinates the partition: waiting requests get NOT_COORDINATOR, the log's decision changes
        nothing."""
        writes, self._open = self._open, {}
        for write in writes.values():
            for on_complete in write.on_complete:
                on_complete(ErrorCode.NOT_COORDINATOR, now)
            for on_idle in write.on_idle:
                on_idle(ErrorCode.NOT_COORDINATOR)

    def _newest(self) -> _Write:
        return self._open[next(reversed(self._open))]

    def _complete(self, write_id: int, error: ErrorCode, now: Now) -> None:
        write = self._open.pop(write_id, None)
        if write is None:
            return
        if error is ErrorCode.NONE:
            self._values.confirm(write_id)
        else:
            self._values.undo(write_id)
        if write.on_decision is not None:
            write.on_decision(error, now)
        for on_complete in write.on_complete:
            on_complete(error, now)
        self._run_on_idle(write)

    def _run_on_idle(self, write: _Write) -> None:
        if self._open and write.on_idle:
            # Writes complete in log order; if an earlier one is still open, wait for its end.
            self._newest().on_idle.extend(write.on_idle)
            return
        for on_idle in write.on_idle:
            on_idle(ErrorCode.NONE)
