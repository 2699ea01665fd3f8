"""Sessions of brokers: who was heard of when, and what each has applied. Soft state, never in the log (C15).

Owns contact times and metadata offsets by broker. Decides nothing but whether a session is alive; `now_ms` comes in.

Rules: controller.md C14, C15, C17, C18; since_4_0.md K24 (a session is alive for 9 s after any heartbeat of its epoch).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

NO_OFFSET: Final = -1


@dataclass(slots=True)
class Session:
    """One broker epoch's life. `shutdown_offset`: metadata offset at which its controlled shutdown began, or None."""

    broker_epoch: int
    last_contact_ms: int
    registration_offset: int
    """Offset of its RegisterBrokerRecord: it may be unfenced once it has applied that (C14)."""
    metadata_offset: int = NO_OFFSET
    shutdown_offset: int | None = None
    heard: bool = False
    """A heartbeat came in this epoch, or would have come to the controller before this one (K24)."""


class Sessions:
    """Sessions by broker id."""

    __slots__ = ("_sessions", "_timeout_ms", "expired_count")

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_ms = timeout_ms
        self._sessions: dict[int, Session] = {}
        self.expired_count = 0
        """Sessions that were ended because nothing was heard."""

    def get(self, broker_id: int) -> Session | None:
        return self._sessions.get(broker_id)

    def begin(self, broker_id: int, broker_epoch: int, now_ms: int, registration_offset: int) -> Session:
        """A session of a new incarnation, or a fresh one after a failover."""
        session = Session(broker_epoch, now_ms, registration_offset)
        self._sessions[broker_id] = session
        return session

    def touch(self, broker_id: int, broker_epoch: int, now_ms: int, metadata_offset: int) -> Session:
        session = self._sessions.get(broker_id)
        if session is None or session.broker_epoch != broker_epoch:
            session = self.begin(broker_id, broker_epoch, now_ms, NO_OFFSET)
        session.last_contact_ms = now_ms
        session.heard = True
        session.metadata_offset = metadata_offset
        return session

    def contact(self, broker_id: int, broker_epoch: int, now_ms: int) -> None:
        """A heartbeat has arrived, and waits for its decision: that the broker lives is known at once (C18, K24)."""
        session = self._sessions.get(broker_id)
        if session is not None and session.broker_epoch == broker_epoch:
            session.last_contact_ms = now_ms
            session.heard = True

    def has(self, broker_id: int, broker_epoch: int) -> bool:
        session = self._sessions.get(broker_id)
        return session is not None and session.broker_epoch == broker_epoch

    def drop(self, broker_id: int) -> None:
        self._sessions.pop(broker_id, None)

    def expire(self, broker_id: int) -> None:
        """Its time is up."""
        if self._sessions.pop(broker_id, None) is not None:
            self.expired_count += 1

    def is_alive(self, broker_id: int, broker_epoch: int, now_ms: int) -> bool:
        """K24: a heartbeat of that epoch came within the session timeout. A registration alone does not count."""
        session = self._sessions.get(broker_id)
        return (
            session is not None
            and session.broker_epoch == broker_epoch
            and session.heard
            and now_ms - session.last_contact_ms < self._timeout_ms
        )

    def expired(self, now_ms: int) -> Iterator[int]:
        """Brokers whose session has ended, the longest silent first."""
        limit = now_ms - self._timeout_ms
        silent = [(s.last_contact_ms, broker) for broker, s in self._sessions.items() if s.last_contact_ms <= limit]
        return (broker for _, broker in sorted(silent))

    def lowest_offset(self, active: Iterable[int]) -> int | None:
        """The lowest metadata offset that the `active` brokers have applied; None without brokers."""
        offsets = [session.metadata_offset for broker in active if (session := self._sessions.get(broker)) is not None]
        return min(offsets, default=None)

    def clear(self) -> None:
        self._sessions.clear()
