"""Incremental fetch sessions (KIP-227): what a reader asked for before, and what it has been told.

Owns the cached partitions of each session and the rules that open, continue and close one. Never reads a log.

| request (session id, epoch) | meaning                                                                     |
|-----------------------------|-----------------------------------------------------------------------------|
| any, -1                     | no session: full answer, the named session is closed                        |
| any, 0                      | open a session: full answer, the named session is closed first              |
| id, n                       | continue: only changes are sent; n must be the epoch after the last answered |

An answer within a session leaves out partitions with nothing new: no records, no error, same high watermark and log
start. A cached partition keeps its leader epoch and is fenced by it every time (`epochs.md E5`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from fenceline.errors import ErrorCode, PeerError
from fenceline.wire.fetch import FetchedPartition, FetchPartition, FetchRequest

FINAL_EPOCH: Final = -1
INITIAL_EPOCH: Final = 0
NO_SESSION_ID: Final = 0
_LAST_EPOCH: Final = 2**31 - 1

PartitionKey: TypeAlias = tuple[str | bytes | None, int]
"""Topic (name below v13, raw id from v13) and partition index."""


class Told(NamedTuple):
    """What the reader knows from the last answer about one partition."""

    high_watermark: int
    log_start_offset: int


_NOTHING_TOLD: Final = Told(-1, -1)


def key_of(partition: FetchPartition | FetchedPartition) -> PartitionKey:
    topic = partition.topic_id if partition.topic_id is not None else partition.topic
    return topic, partition.index


@dataclass(slots=True)
class FetchSession:
    """One reader's session. `partitions` is in the order in which they are served next."""

    session_id: int
    uses_topic_ids: bool
    is_replica: bool
    next_epoch: int = 1
    partitions: OrderedDict[PartitionKey, FetchPartition] = field(default_factory=OrderedDict)
    told: dict[PartitionKey, Told] = field(default_factory=dict)
    last_used_ms: int = 0
    opened_ms: int = 0

    def update(self, added: Iterable[FetchPartition], forgotten: Iterable[PartitionKey]) -> None:
        """Add or replace partitions, then drop the forgotten ones."""
        for partition in added:
            self.partitions[key_of(partition)] = partition
        for key in forgotten:
            self.partitions.pop(key, None)
            self.told.pop(key, None)

    def filter(self, fetched: list[FetchedPartition], *, reorder: bool = True) -> list[FetchedPartition]:
        """Leave out what the reader knows already; partitions with records move to the end of the order."""
        changed = []
        told, order = self.told, self.partitions
        for partition in fetched:
            key = key_of(partition)
            now = Told(partition.high_watermark, partition.log_start_offset)
            has_records = partition.records is not None and len(partition.records) > 0
            if (
                has_records
                or partition.error_code
                or partition.diverging_epoch is not None
                or partition.snapshot_id is not None
                or partition.preferred_read_replica != -1
                or told.get(key, _NOTHING_TOLD) != now
            ):
                changed.append(partition)
                # After an error the reader needs the partition again, whatever it knew before.
                if not partition.error_code:
                    told[key] = now
                elif partition.error_code != ErrorCode.UNKNOWN_TOPIC_ID:
                    told[key] = _NOTHING_TOLD
                if has_records and reorder and key in order:
                    order.move_to_end(key)
        return changed


@dataclass(frozen=True, slots=True)
class SessionAnswer:
    """How to answer one fetch: which partitions to read, and the session to filter by (None: a full answer)."""

    partitions: list[FetchPartition]
    session_id: int
    session: FetchSession | None
    is_full: bool

    def select(self, fetched: list[FetchedPartition]) -> list[FetchedPartition]:
        if self.session is None:
            return fetched
        changed = self.session.filter(fetched, reorder=not self.is_full)
        return fetched if self.is_full else changed

    def knew(self, partition: FetchPartition) -> bool:
        """Whether the session has found this partition's topic before."""
        return self.session is not None and key_of(partition) in self.session.told


def _last_mentions(partitions: list[FetchPartition]) -> list[FetchPartition]:
    """A partition that is named twice counts once, in its first place, with what was asked last."""
    by_key = {key_of(partition): partition for partition in partitions}
    return partitions if len(by_key) == len(partitions) else list(by_key.values())


class FetchSessions:
    """All sessions of a node, bounded in number. Without room a reader gets full answers, as without a session."""

    def __init__(self, *, max_sessions: int = 1000, min_eviction_ms: int = 120_000) -> None:
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        self._max_sessions = max_sessions
        self._min_eviction_ms = min_eviction_ms

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, request: FetchRequest, *, uses_topic_ids: bool, now_ms: int, fresh_id: int) -> SessionAnswer:
        """Apply a request to its session.

        `fresh_id` is a random positive int32 used if a session is opened.
        Raises PeerError 70 (unknown session), 71 (epoch out of turn) or 106 (topic ids and names mixed).
        """
        if request.session_epoch in (FINAL_EPOCH, INITIAL_EPOCH):
            if request.session_id != NO_SESSION_ID:
                self._sessions.pop(request.session_id, None)
            partitions = _last_mentions(request.partitions)
            if request.session_epoch == FINAL_EPOCH:
                return SessionAnswer(partitions, NO_SESSION_ID, None, True)
            session = self._open(request, uses_topic_ids, now_ms, fresh_id)
            if session is None:
                return SessionAnswer(partitions, NO_SESSION_ID, None, True)
            return SessionAnswer(partitions, session.session_id, session, True)
        session = self._sessions.get(request.session_id)
        if session is None:
            raise PeerError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.next_epoch != request.session_epoch:
            raise PeerError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.uses_topic_ids != uses_topic_ids:
            raise PeerError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        forgotten = [
            (topic_id if topic_id is not None else topic, index)
            for topic, topic_id, indexes in request.forgotten
            for index in indexes
        ]
        session.update(request.partitions, forgotten)
        if not session.partitions:
            del self._sessions[session.session_id]
            return SessionAnswer([], NO_SESSION_ID, None, True)
        session.next_epoch = session.next_epoch + 1 if session.next_epoch < _LAST_EPOCH else 1
        session.last_used_ms = now_ms
        self._sessions.move_to_end(session.session_id)
        return SessionAnswer(list(session.partitions.values()), session.session_id, session, False)

    def _open(self, request: FetchRequest, uses_topic_ids: bool, now_ms: int, fresh_id: int) -> FetchSession | None:
        is_replica = request.replica_id >= 0
        if len(self._sessions) >= self._max_sessions and not self._evict(is_replica, len(request.partitions), now_ms):
            return None
        while fresh_id in self._sessions or fresh_id == NO_SESSION_ID:
            fresh_id = fresh_id % _LAST_EPOCH + 1
        session = FetchSession(fresh_id, uses_topic_ids, is_replica, opened_ms=now_ms, last_used_ms=now_ms)
        session.update(request.partitions, ())
        self._sessions[fresh_id] = session
        return session

    def _evict(self, is_replica: bool, partition_count: int, now_ms: int) -> bool:
        """Make room for a session of `partition_count`, by the three rules of KIP-227 in their order.

        1. The longest unused session goes when it is idle for longer than the eviction time.
        2. A replica displaces any consumer, the one with the fewest partitions first.
        3. A session that lived for longer than the eviction time gives way to one with more partitions, of its own
           kind or of a replica.
        """
        oldest = next(iter(self._sessions.values()))
        if now_ms - oldest.last_used_ms > self._min_eviction_ms:
            del self._sessions[oldest.session_id]
            return True
        candidates = [
            (session.is_replica, len(session.partitions), session.session_id)
            for session in self._sessions.values()
            if (is_replica and not session.is_replica)
            or session.last_used_ms - session.opened_ms > self._min_eviction_ms
        ]
        least = min(candidates, default=None)
        if least is None or least[:2] >= (is_replica, partition_count):
            return False
        del self._sessions[least[2]]
        return True
