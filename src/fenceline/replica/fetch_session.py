"""Incremental fetch sessions (KIP-227): the partitions of each reader, and what it has been sent.

Owns the cached partitions of each session and the rules that open, continue and close one. Never reads a log.

| request (session id, epoch) | meaning                                                                     |
|-----------------------------|-----------------------------------------------------------------------------|
| any, -1                     | no session: full response, the named session is closed                      |
| any, 0                      | open a session: full response, the named session is closed first            |
| id, n                       | continue: only changes are sent; n must be the epoch after the last answered |

A response within a session omits partitions with nothing new: no records, no error, same high watermark and log start.
A cached partition keeps its leader epoch and is fenced by it every time (`epochs.md E5`).

The cost of a fetch depends on what changed. A partition without records for the reader, of which the reader knows
everything else, is idle: it is not read again until it changes. Meanwhile it is registered in the replica's waiters,
from which the first call removes it.

| event                                                | effect on an idle partition                                  |
|------------------------------------------------------|-------------------------------------------------------------|
| the reader requests it again, with other fields      | read with this request                                      |
| log end, high watermark, log start, epoch, role move | read with the next request, or wakes the parked one         |
| high watermark moves, last stable offset does not    | READ_COMMITTED: read with the next request or response      |
| the follower's broker epoch changes (E31), or the    | all partitions of the session are read                      |
| reader's isolation level                             |                                                             |
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from operator import attrgetter
from typing import Final, NamedTuple, TypeAlias

from fenceline.errors import ErrorCode, PeerError
from fenceline.replica.fencing import NO_EPOCH
from fenceline.replica.progress import FollowerProgress
from fenceline.replica.waiters import Registry, Waiters
from fenceline.wire.fetch import FetchedPartition, FetchPartition, FetchRequest

FINAL_EPOCH: Final = -1
INITIAL_EPOCH: Final = 0
NO_SESSION_ID: Final = 0
_LAST_EPOCH: Final = 2**31 - 1

PartitionKey: TypeAlias = tuple[str | bytes | None, int]
"""Topic (name below v13, raw id from v13) and partition index."""


class SentState(NamedTuple):
    """The state of one partition in the last response to the reader."""

    high_watermark: int
    log_start_offset: int


_NOTHING_SENT: Final = SentState(-1, -1)


def key_of(partition: FetchPartition | FetchedPartition) -> PartitionKey:
    topic = partition.topic_id if partition.topic_id is not None else partition.topic
    return topic, partition.index


class SessionPartition:
    """One partition that a reader fetches, with the last state sent. `session` None: a request without session."""

    __slots__ = ("_progress", "_unheard", "_waiters", "asked", "is_known", "key", "place", "sent", "session")

    def __init__(self, asked: FetchPartition, session: FetchSession | None = None, place: int = 0) -> None:
        self.key = key_of(asked)
        self.asked = asked
        self.session = session
        self.place = place
        """Partitions are served in ascending order of this."""
        self.sent = _NOTHING_SENT
        self.is_known = False
        """The topic has existed in this session."""
        self._waiters: Registry | None = None
        self._progress: FollowerProgress | None = None
        self._unheard: Waiters | None = None

    @property
    def is_idle(self) -> bool:
        return self._waiters is not None

    def record_sent(self, now: SentState) -> None:
        """The response has records of this partition, so it is served last in the next response."""
        session = self.session
        assert session is not None, "only partitions of a session keep state"
        self.sent, self.is_known = now, True
        self.place = session.take_place()

    def mark_idle(
        self, waiters: Registry, progress: FollowerProgress | None = None, *, unheard: Waiters | None = None
    ) -> None:
        """The reader knows everything: do not read the partition again until `waiters` are called.

        unheard: are called for changes that the next response reports, but that do not end the wait of a request.
        progress: of a follower that is at the log end. Each further fetch of its session confirms that, so until the
        log grows its fetch time is that of the session (`epochs.md E32`).
        """
        session = self.session
        assert session is not None, "only partitions of a session keep state"
        session.changed.pop(self.key, None)
        self._waiters, self._progress = waiters, progress
        waiters.add(self.mark_changed)
        self._unheard = unheard
        if unheard is not None:
            unheard.add(self._mark_unheard)

    def _mark_unheard(self) -> None:
        if self._unheard is None or self.session is None:
            return
        self._unheard.discard(self._mark_unheard)
        self._unheard = None
        self.session.changed[self.key] = self

    def mark_changed(self) -> None:
        """The partition may have changed: read it with the next request."""
        session = self.session
        if self._waiters is None or session is None:
            return
        self.let_go()
        session.changed[self.key] = self
        for listener in tuple(session.listeners):
            listener()

    def let_go(self) -> None:
        """Unregister from the replica's waiters."""
        if self._waiters is None or self.session is None:
            return
        self._waiters.discard(self.mark_changed)
        self._waiters = None
        if self._unheard is not None:
            self._unheard.discard(self._mark_unheard)
            self._unheard = None
        if self._progress is not None:
            self._progress.confirm_caught_up(self.session.last_used_ms)
            self._progress = None


class FetchSession:
    """The session of one reader."""

    __slots__ = (
        "_next_place",
        "changed",
        "isolation_level",
        "last_used_ms",
        "listeners",
        "next_epoch",
        "opened_ms",
        "partitions",
        "replica_epoch",
        "replica_id",
        "session_id",
        "uses_topic_ids",
    )

    def __init__(self, session_id: int, *, uses_topic_ids: bool, replica_id: int, now_ms: int) -> None:
        self.session_id = session_id
        self.uses_topic_ids = uses_topic_ids
        self.replica_id = replica_id
        self.next_epoch = 1
        self.replica_epoch = NO_EPOCH
        """Broker epoch of the follower, as of its last request."""
        self.isolation_level = 0
        """Of the last request. What is idle at one level may have records at another."""
        self.partitions: dict[PartitionKey, SessionPartition] = {}
        self.changed: dict[PartitionKey, SessionPartition] = {}
        """Partitions to read with the next request."""
        self.listeners = Waiters()
        """Called when an idle partition changes."""
        self.opened_ms = now_ms
        self.last_used_ms = now_ms
        self._next_place = 0

    @property
    def is_replica(self) -> bool:
        return self.replica_id >= 0

    def update(self, added: Iterable[FetchPartition], forgotten: Iterable[PartitionKey]) -> None:
        """Add or replace partitions, then drop the forgotten ones."""
        for partition in added:
            wanted = self.partitions.get(key_of(partition))
            if wanted is None:
                wanted = SessionPartition(partition, self, self.take_place())
                self.partitions[wanted.key] = wanted
            else:
                wanted.let_go()
                wanted.asked = partition
            self.changed[wanted.key] = wanted
        for key in forgotten:
            removed = self.partitions.pop(key, None)
            if removed is not None:
                removed.let_go()
                self.changed.pop(key, None)

    def take_place(self) -> int:
        self._next_place += 1
        return self._next_place

    def went_on(self, now_ms: int) -> None:
        """A request of the session was accepted."""
        self.next_epoch = self.next_epoch + 1 if self.next_epoch < _LAST_EPOCH else 1
        self.last_used_ms = now_ms

    def mark_all_changed(self) -> None:
        for wanted in self.partitions.values():
            wanted.mark_changed()

    def close(self) -> None:
        """Unregister all partitions."""
        for wanted in self.partitions.values():
            wanted.let_go()

    def to_read(self) -> list[SessionPartition]:
        """Partitions that may have changed, in the order in which they are served."""
        changed = self.changed
        return sorted(changed.values(), key=_PLACE) if len(changed) > 1 else list(changed.values())

    @property
    def has_idle(self) -> bool:
        return len(self.changed) < len(self.partitions)

    def filter(self, fetched: list[FetchedPartition], *, reorder: bool = True) -> list[FetchedPartition]:
        """Omit partitions that the reader knows; partitions with records move to the end of the order."""
        changed = []
        for partition in fetched:
            wanted = self.partitions.get(key_of(partition))
            if wanted is None:
                changed.append(partition)  # removed from the session meanwhile
                continue
            now = SentState(partition.high_watermark, partition.log_start_offset)
            has_records = partition.records is not None and len(partition.records) > 0
            if (
                has_records
                or partition.error_code
                or partition.diverging_epoch is not None
                or partition.snapshot_id is not None
                or partition.preferred_read_replica != -1
                or wanted.sent != now
            ):
                changed.append(partition)
                # After an error the reader gets the partition again, whatever it was sent before.
                if not partition.error_code:
                    wanted.sent, wanted.is_known = now, True
                elif partition.error_code != ErrorCode.UNKNOWN_TOPIC_ID:
                    wanted.sent, wanted.is_known = _NOTHING_SENT, True
                if has_records and reorder:
                    wanted.place = self.take_place()
        return changed


_PLACE: Final = attrgetter("place")


class SessionAnswer:
    """How to answer one fetch: which partitions to read, and the session to filter by (None: a full response)."""

    __slots__ = ("_once", "is_full", "session", "session_id")

    def __init__(self, session: FetchSession | None, *, is_full: bool, once: Iterable[FetchPartition] = ()) -> None:
        self.session = session
        self.session_id = session.session_id if session is not None else NO_SESSION_ID
        self.is_full = is_full
        self._once = [SessionPartition(partition) for partition in once]

    def to_read(self) -> list[SessionPartition]:
        """The partitions to read now. Within a session they change while a fetch waits."""
        return self._once if self.session is None else self.session.to_read()

    @property
    def partitions(self) -> list[FetchPartition]:
        return [wanted.asked for wanted in self.to_read()]

    @property
    def has_idle(self) -> bool:
        """Whether the session has partitions that need not be read."""
        return self.session is not None and self.session.has_idle

    def select(self, fetched: list[FetchedPartition]) -> list[FetchedPartition]:
        if self.session is None:
            return fetched
        changed = self.session.filter(fetched, reorder=not self.is_full)
        return fetched if self.is_full else changed


def _last_mentions(partitions: list[FetchPartition]) -> list[FetchPartition]:
    """A partition that is named twice counts once, at its first position, with the fields of the last mention."""
    if len({(partition[1] or partition[0], partition[2]) for partition in partitions}) == len(partitions):
        return partitions
    return list({key_of(partition): partition for partition in partitions}.values())


class FetchSessions:
    """All sessions of a node, bounded in number. If there is no room, a reader gets full responses, without session."""

    def __init__(self, *, max_sessions: int = 1000, min_eviction_ms: int = 120_000) -> None:
        self.by_id: OrderedDict[int, FetchSession] = OrderedDict()
        """Least recently used first."""
        self._max_sessions = max_sessions
        self._min_eviction_ms = min_eviction_ms

    def __len__(self) -> int:
        return len(self.by_id)

    def begin(
        self, request: FetchRequest, *, uses_topic_ids: bool, now_ms: int, fresh_id: int, is_outdated: bool = False
    ) -> SessionAnswer:
        """Apply a request to its session.

        fresh_id: a random positive int32, used if a session is opened. is_outdated: the request comes from a process of
        a broker that has been replaced: everything is read (and rejected), and its state is ignored (`epochs.md E31`).
        Raises PeerError 70 (unknown session), 71 (unexpected epoch) or 106 (topic ids and names mixed).
        """
        if request.session_epoch in (FINAL_EPOCH, INITIAL_EPOCH):
            if request.session_id in self.by_id:
                self._close(request.session_id)
            session = None
            if request.session_epoch == INITIAL_EPOCH:
                session = self._open(request, uses_topic_ids, now_ms, fresh_id)
            once = _last_mentions(request.partitions) if session is None else ()
            return SessionAnswer(session, is_full=True, once=once)
        session = self.by_id.get(request.session_id)
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
            self._close(session.session_id)
            return SessionAnswer(None, is_full=True)
        reads_as = request.replica_epoch, request.isolation_level
        if is_outdated or reads_as != (session.replica_epoch, session.isolation_level):
            session.mark_all_changed()
            session.replica_epoch, session.isolation_level = reads_as
        session.went_on(now_ms)
        self.by_id.move_to_end(session.session_id)
        return SessionAnswer(session, is_full=False)

    def close(self, answer: SessionAnswer) -> None:
        """The reader will not be told of the session that its request has opened."""
        if answer.session is not None:
            self._close(answer.session_id)
            answer.session, answer.session_id = None, NO_SESSION_ID

    def _close(self, session_id: int) -> None:
        self.by_id.pop(session_id).close()

    def _open(self, request: FetchRequest, uses_topic_ids: bool, now_ms: int, fresh_id: int) -> FetchSession | None:
        is_replica = request.replica_id >= 0
        if len(self.by_id) >= self._max_sessions and not self._evict(is_replica, len(request.partitions), now_ms):
            return None
        while fresh_id in self.by_id or fresh_id == NO_SESSION_ID:
            fresh_id = fresh_id % _LAST_EPOCH + 1
        session = FetchSession(fresh_id, uses_topic_ids=uses_topic_ids, replica_id=request.replica_id, now_ms=now_ms)
        session.replica_epoch, session.isolation_level = request.replica_epoch, request.isolation_level
        session.update(request.partitions, ())
        self.by_id[fresh_id] = session
        return session

    def _evict(self, is_replica: bool, partition_count: int, now_ms: int) -> bool:
        """Make room for a session of `partition_count`, by the three rules of KIP-227 in order.

        1. The least recently used session is evicted if it has been idle for longer than the eviction time.
        2. A replica's session evicts a consumer's, the one with the fewest partitions first.
        3. A session older than the eviction time is evicted for one with more partitions, of the same kind or of a
           replica.
        """
        oldest = next(iter(self.by_id.values()))
        if now_ms - oldest.last_used_ms > self._min_eviction_ms:
            self._close(oldest.session_id)
            return True
        candidates = [
            (session.is_replica, len(session.partitions), session.session_id)
            for session in self.by_id.values()
            if (is_replica and not session.is_replica)
            or session.last_used_ms - session.opened_ms > self._min_eviction_ms
        ]
        least = min(candidates, default=None)
        if least is None or least[:2] >= (is_replica, partition_count):
            return False
        self._close(least[2])
        return True
