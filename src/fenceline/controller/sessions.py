"""Broker sessions: last contact and applied metadata offset. Soft state, never in the log (C15).

Owns contact times and metadata offsets by broker, and knowledge of the processes: which brokers are connected to this
controller, and which were reported as ended. Decides only whether a session is alive; `now_ms` is passed in.

Rules: controller.md C14, C15, C17, C18; since_4_0.md K24 (a session is alive for 9 s after any heartbeat of its epoch).
A report that a process has ended is accepted once for each broker epoch and term: if the broker comes back, the report
was wrong and its cause may persist. After that only its session counts, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

NO_OFFSET: Final = -1


@dataclass(slots=True)
class Session:
    """The session of one broker epoch. `shutdown_offset`: metadata offset at which its controlled shutdown began, or
    None."""

    broker_epoch: int
    last_contact_ms: int
    registration_offset: int
    """Offset of its RegisterBrokerRecord: the broker may be unfenced once it has applied that (C14)."""
    metadata_offset: int = NO_OFFSET
    shutdown_offset: int | None = None
    has_heartbeat: bool = False
    """A heartbeat of this epoch arrived, here or presumably at the previous controller (K24)."""


class Sessions:
    """Sessions by broker id."""

    __slots__ = ("_connected", "_ended", "_sessions", "_timeout_ms", "expired_count", "false_alarm_count", "gone_count")

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_ms = timeout_ms
        self._sessions: dict[int, Session] = {}
        self._connected: set[tuple[int, int]] = set()
        """(broker id, epoch) of brokers connected to this controller, in any term."""
        self._ended: dict[int, int] = {}
        """By broker id: the epoch whose process was reported as ended, and whose session was ended for that."""
        self.expired_count = 0
        """Number of sessions that timed out."""
        self.gone_count = 0
        """Number of sessions ended because the process ended."""
        self.false_alarm_count = 0
        """Number of these whose broker was in contact again."""

    def get(self, broker_id: int) -> Session | None:
        return self._sessions.get(broker_id)

    def begin(self, broker_id: int, broker_epoch: int, now_ms: int, registration_offset: int) -> Session:
        """Start a session of a new incarnation, or a fresh one after a failover."""
        session = Session(broker_epoch, now_ms, registration_offset)
        self._sessions[broker_id] = session
        return session

    def touch(self, broker_id: int, broker_epoch: int, now_ms: int, metadata_offset: int) -> Session:
        session = self._sessions.get(broker_id)
        if session is None or session.broker_epoch != broker_epoch:
            if session is None and self._ended.get(broker_id) == broker_epoch:
                self.false_alarm_count += 1
            session = self.begin(broker_id, broker_epoch, now_ms, NO_OFFSET)
        session.last_contact_ms = now_ms
        session.has_heartbeat = True
        session.metadata_offset = metadata_offset
        return session

    def contact(self, broker_id: int, broker_epoch: int, now_ms: int) -> None:
        """A heartbeat arrived and waits for its decision: the broker counts as alive at once (C18, K24)."""
        session = self._sessions.get(broker_id)
        if session is not None and session.broker_epoch == broker_epoch:
            session.last_contact_ms = now_ms
            session.has_heartbeat = True

    def has(self, broker_id: int, broker_epoch: int) -> bool:
        session = self._sessions.get(broker_id)
        return session is not None and session.broker_epoch == broker_epoch

    def drop(self, broker_id: int) -> None:
        self._sessions.pop(broker_id, None)

    def expire(self, broker_id: int) -> None:
        """The session timed out."""
        if self._sessions.pop(broker_id, None) is not None:
            self.expired_count += 1

    # -- processes -----------------------------------------------------------------------------------------------------

    def set_connected(self, broker_id: int, broker_epoch: int, *, connected: bool) -> None:
        """Record whether that incarnation has a connection to this controller."""
        if connected:
            self._connected.add((broker_id, broker_epoch))
        else:
            self._connected.discard((broker_id, broker_epoch))

    def is_connected(self, broker_id: int, broker_epoch: int) -> bool:
        return (broker_id, broker_epoch) in self._connected

    def may_have_ended(self, broker_id: int, broker_epoch: int, since_ms: int) -> bool:
        """Whether to accept a report that the process has been gone since `since_ms`: it is not connected, nothing
        arrived from it since, and no such report was accepted for this incarnation before."""
        session = self._sessions.get(broker_id)
        return (
            (broker_id, broker_epoch) not in self._connected
            and self._ended.get(broker_id) != broker_epoch
            and (session is None or session.broker_epoch != broker_epoch or session.last_contact_ms <= since_ms)
        )

    def end(self, broker_id: int, broker_epoch: int, *, for_good: bool) -> None:
        """The process has ended. `for_good`: a record is written for that, and no further report is accepted."""
        if self.has(broker_id, broker_epoch):
            del self._sessions[broker_id]
        if for_good:
            self._ended[broker_id] = broker_epoch
            self.gone_count += 1

    def forget_end(self, broker_id: int) -> None:
        """The record written for its end was discarded."""
        self._ended.pop(broker_id, None)

    # -- timers --------------------------------------------------------------------------------------------------------

    def is_alive(self, broker_id: int, broker_epoch: int, now_ms: int) -> bool:
        """K24: a heartbeat of that epoch arrived within the session timeout. A registration alone does not count."""
        session = self._sessions.get(broker_id)
        return (
            session is not None
            and session.broker_epoch == broker_epoch
            and session.has_heartbeat
            and now_ms - session.last_contact_ms < self._timeout_ms
        )

    def expired(self, now_ms: int) -> Iterator[int]:
        """Brokers whose session has expired, longest silence first."""
        limit = now_ms - self._timeout_ms
        silent = [(s.last_contact_ms, broker) for broker, s in self._sessions.items() if s.last_contact_ms <= limit]
        return (broker for _, broker in sorted(silent))

    def next_end_ms(self, now_ms: int) -> int | None:
        """When the next session expires without another heartbeat; None if there is no running session."""
        ends = (session.last_contact_ms + self._timeout_ms for session in self._sessions.values())
        return min((end for end in ends if end > now_ms), default=None)

    def lowest_offset(self, active: Iterable[int]) -> int | None:
        """The lowest metadata offset that the `active` brokers have applied; None without brokers."""
        offsets = [session.metadata_offset for broker in active if (session := self._sessions.get(broker)) is not None]
        return min(offsets, default=None)

    def clear(self) -> None:
        """Reset for a new term. Connections are kept."""
        self._sessions.clear()
        self._ended.clear()
