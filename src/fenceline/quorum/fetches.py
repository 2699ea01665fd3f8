"""Fetch and FetchSnapshot on the leader.

Owns the three-way verdict on a fetch and the purgatory of waiting fetches, bounded; a request costs the same however
many fetches wait. Determines which records or bytes a response carries; the driver reads them.

Rules: raft.md Q14, Q24-Q27; snapshots.md N24-N32; since_4_0.md K12, K13; gaps.md G26-G28, G40 (when leadership ends,
waiting fetches are completed at once).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from fenceline.deadlines import Deadlines
from fenceline.errors import ErrorCode
from fenceline.quorum.core import Core
from fenceline.quorum.duties import QuorumAnswer, ServePiece, ServeRecords, Token
from fenceline.quorum.log_view import BOOTSTRAP_SNAPSHOT, LogView, QuorumEpochEnd, SnapshotId
from fenceline.quorum.messages import (
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    QuorumFetchRequest,
    QuorumFetchResponse,
    ReplicaKey,
)


@dataclass(frozen=True, slots=True)
class Valid:
    """The fetcher's log is a prefix of this one."""


@dataclass(frozen=True, slots=True)
class Diverging:
    """The logs diverge; they may agree up to here."""

    at: QuorumEpochEnd


@dataclass(frozen=True, slots=True)
class NeedsSnapshot:
    """The log no longer has the records that the fetcher needs, or a snapshot is faster."""

    snapshot_id: SnapshotId


Verdict: TypeAlias = Valid | Diverging | NeedsSnapshot


def end_of_epoch(log: LogView, epoch: int) -> QuorumEpochEnd:
    """N27: the largest epoch of this log that is not above `epoch`, and its end offset."""
    found = log.end_offset_for_epoch(epoch)
    if found.epoch < 0 or found.end_offset < 0:
        return QuorumEpochEnd(log.end.epoch, log.end.offset)
    earliest = log.earliest_snapshot
    if earliest is not None and found == QuorumEpochEnd(epoch, earliest.end_offset) and epoch != earliest.epoch:
        return QuorumEpochEnd(earliest.epoch, earliest.end_offset)
    return found


def validate_offset_and_epoch(log: LogView, offset: int, epoch: int) -> Verdict:
    """Q25, N24, N26: validate a fetcher that has everything before `offset`, its last record in `epoch`."""
    latest, earliest = log.latest_snapshot, log.earliest_snapshot
    if offset == 0 and latest not in (None, BOOTSTRAP_SNAPSHOT):
        assert latest is not None, "excluded by the condition"
        return NeedsSnapshot(latest)
    if offset == 0 and log.start_offset == 0:
        return Valid()
    if earliest not in (None, BOOTSTRAP_SNAPSHOT) and latest is not None:
        assert earliest is not None, "excluded by the condition"
        before = offset < log.start_offset or (offset == log.start_offset and epoch != earliest.epoch)
        if before or epoch < earliest.epoch:
            return NeedsSnapshot(latest)
    end = end_of_epoch(log, epoch)
    return Diverging(end) if end.epoch != epoch or end.end_offset < offset else Valid()


class _Parked(NamedTuple):
    token: Token
    request: QuorumFetchRequest
    fetcher: ReplicaKey | None
    """None: no replica."""


class Fetches:
    """See the module. `fetched` and `contacted` report valid requests to the leader state; `leader_high_watermark` is
    None until known in this term."""

    def __init__(
        self,
        core: Core,
        *,
        fetched: Callable[[ReplicaKey, int], None],
        contacted: Callable[[ReplicaKey], None],
        leader_high_watermark: Callable[[], int | None],
    ) -> None:
        self._core = core
        self._fetched = fetched
        self._contacted = contacted
        self._high_watermark = leader_high_watermark
        self._parked: dict[int, _Parked] = {}
        """By number, the oldest first."""
        self._next_number = 0
        self._number_of: dict[ReplicaKey, int] = {}
        self._deadlines: Deadlines[int] = Deadlines()

    # -- Fetch -------------------------------------------------------------------------------------------------------

    def fetch(self, token: Token, request: QuorumFetchRequest) -> None:
        core = self._core
        if core.wrong_cluster(request.cluster_id):
            core.duties.append(QuorumAnswer(token, QuorumFetchResponse(ErrorCode.INCONSISTENT_CLUSTER_ID)))
            return
        error = core.leader_only(request.current_leader_epoch)
        if error is ErrorCode.NONE and not _is_valid(request, core.local_id):
            error = ErrorCode.INVALID_REQUEST
        if error is not ErrorCode.NONE:
            core.duties.append(QuorumAnswer(token, self._answer(error)))
            return
        match validate_offset_and_epoch(core.log, request.fetch_offset, request.last_fetched_epoch):
            case NeedsSnapshot(snapshot_id):  # proves neither the fetcher's offset nor that it is alive (N25)
                core.duties.append(QuorumAnswer(token, self._answer(snapshot_id=snapshot_id)))
            case Diverging(at):
                core.duties.append(QuorumAnswer(token, self._answer(diverging_epoch=at)))
            case Valid():
                is_replica = request.replica_id >= 0
                fetcher = ReplicaKey(request.replica_id, request.replica_directory_id) if is_replica else None
                if fetcher is not None:
                    self._fetched(fetcher, request.fetch_offset)
                self._serve_or_park(token, request, fetcher)

    def _serve_or_park(self, token: Token, request: QuorumFetchRequest, fetcher: ReplicaKey | None) -> None:
        core = self._core
        if core.leader_only(request.current_leader_epoch) is not ErrorCode.NONE:
            # This fetch committed the record that ended the leadership (Q42).
            core.duties.append(QuorumAnswer(token, self._answer(core.leader_only(request.current_leader_epoch))))
        elif core.log.end.offset > request.fetch_offset:
            self._serve((token,), request.fetch_offset, self._size_of(request))
        elif request.max_wait_ms == 0 or self._lags(request):
            core.duties.append(QuorumAnswer(token, self._answer()))
        else:
            self._make_room(fetcher)
            number = self._next_number
            self._next_number += 1
            self._parked[number] = _Parked(token, request, fetcher)
            self._deadlines.arm(number, core.now_ms + request.max_wait_ms)
            if fetcher is not None:
                self._number_of[fetcher] = number

    def _make_room(self, fetcher: ReplicaKey | None) -> None:
        """A replica has at most one waiting fetch; above the limit the oldest fetch is completed early."""
        before = None if fetcher is None else self._number_of.get(fetcher)
        if before is not None:
            self._end(before)
        while len(self._parked) >= self._core.settings.max_parked_fetches:
            self._end(next(iter(self._parked)))

    def _take(self, number: int) -> _Parked:
        self._deadlines.disarm(number)
        parked = self._parked.pop(number)
        if parked.fetcher is not None:
            del self._number_of[parked.fetcher]
        return parked

    def _end(self, *numbers: int) -> None:
        """Complete these fetches without records."""
        if numbers:
            answer = self._answer()
            self._core.duties += [QuorumAnswer(self._take(number).token, answer) for number in numbers]

    def _lags(self, request: QuorumFetchRequest) -> bool:
        """K12: whether the fetcher's high watermark is behind."""
        known = self._high_watermark()
        return known is not None and request.high_watermark is not None and request.high_watermark < known

    def _serve(self, tokens: tuple[Token, ...], offset: int, size: int) -> None:
        self._core.duties.append(ServeRecords(tokens, offset, size, self._core.log.end.offset, self._answer()))

    def _size_of(self, request: QuorumFetchRequest) -> int:
        """At most so many bytes are served."""
        return max(1, min(request.max_bytes, self._core.settings.served_max_bytes))

    def _answer(
        self,
        error: ErrorCode = ErrorCode.NONE,
        *,
        diverging_epoch: QuorumEpochEnd | None = None,
        snapshot_id: SnapshotId | None = None,
    ) -> QuorumFetchResponse:
        core = self._core
        known = self._high_watermark() if error is ErrorCode.NONE else None
        return QuorumFetchResponse(
            ErrorCode.NONE,
            error,
            core.leader_id,
            core.epoch,
            -1 if known is None else known,
            core.log.start_offset if error is ErrorCode.NONE else -1,
            diverging_epoch,
            snapshot_id,
            node_endpoints=core.leader_endpoints(),
        )

    # -- purgatory ---------------------------------------------------------------------------------------------------

    def records_appended(self) -> None:
        """Q26: new records complete every waiting fetch: first those of voters, whose flush commits. One read is for
        all that wait at the same offset."""
        end_offset = self._core.log.end.offset
        due = [number for number, each in self._parked.items() if end_offset > each.request.fetch_offset]
        due.sort(key=self._is_observer)
        tokens: dict[tuple[int, int], list[Token]] = {}
        for number in due:
            token, request, _ = self._take(number)
            tokens.setdefault((request.fetch_offset, self._size_of(request)), []).append(token)
        for (offset, size), each in tokens.items():
            self._serve(tuple(each), offset, size)

    def _is_observer(self, number: int) -> bool:
        fetcher = self._parked[number].fetcher
        return fetcher is None or not self._core.voters.has(fetcher)

    def high_watermark_moved(self) -> None:
        """K12."""
        self._end(*(number for number, parked in self._parked.items() if self._lags(parked.request)))

    def end_all(self) -> None:
        """Complete all fetches: leadership ended (error 6), or the epoch did (74)."""
        for number in list(self._parked):
            each = self._take(number)
            error = self._core.leader_only(each.request.current_leader_epoch)
            self._core.duties.append(QuorumAnswer(each.token, self._answer(error)))

    def expire(self) -> None:
        due: list[int] = []
        while (number := self._deadlines.pop_due(self._core.now_ms)) is not None:
            due.append(number)
        self._end(*due)

    def next_deadline_ms(self) -> int | None:
        return self._deadlines.next_deadline_ms()

    # -- FetchSnapshot -----------------------------------------------------------------------------------------------

    def fetch_snapshot(self, token: Token, request: FetchSnapshotRequest) -> None:
        """N28-N30."""
        core = self._core
        if core.wrong_cluster(request.cluster_id):
            core.duties.append(QuorumAnswer(token, FetchSnapshotResponse(ErrorCode.INCONSISTENT_CLUSTER_ID)))
            return
        error = core.leader_only(request.current_leader_epoch)
        size = core.log.snapshot_size(request.snapshot_id)
        if error is ErrorCode.NONE:
            if request.replica_id == core.local_id or request.max_bytes <= 0:
                error = ErrorCode.INVALID_REQUEST
            elif size is None or request.snapshot_id == BOOTSTRAP_SNAPSHOT:
                error = ErrorCode.SNAPSHOT_NOT_FOUND
            elif not 0 <= request.position < size:
                error = ErrorCode.POSITION_OUT_OF_RANGE
        answer = FetchSnapshotResponse(
            ErrorCode.NONE, error, core.leader_id, core.epoch, node_endpoints=core.leader_endpoints()
        )
        if error is not ErrorCode.NONE:
            core.duties.append(QuorumAnswer(token, answer))
            return
        assert size is not None, "checked above"
        if request.replica_id >= 0:
            self._contacted(ReplicaKey(request.replica_id, request.replica_directory_id))
        answer = FetchSnapshotResponse(
            leader_id=core.leader_id,
            leader_epoch=core.epoch,
            snapshot_id=request.snapshot_id,
            size=size,
            position=request.position,
            node_endpoints=core.leader_endpoints(),
        )
        limit = min(request.max_bytes, core.settings.snapshot_response_max_bytes)
        core.duties.append(ServePiece(token, request.snapshot_id, request.position, limit, answer))


def _is_valid(request: QuorumFetchRequest, local_id: int) -> bool:
    """Q24. A request with this node's own id comes from another process."""
    return (
        request.max_wait_ms >= 0
        and request.fetch_offset >= 0
        and 0 <= request.last_fetched_epoch <= request.current_leader_epoch
        and request.replica_id != local_id
    )
