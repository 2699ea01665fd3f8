"""Fetch (api key 1): sessions, fencing, reads, and the fetches that wait for data.

Owns the life of a fetch from request to answer. Records leave as pieces of the log's files; nothing is decoded.

1. The session says which partitions to read (`fenceline.replica.fetch_session`).
2. Each partition is checked (leader `E4`, epoch `E1-E2`, divergence `E8-E10`) and read up to its bound (`E43`).
3. Enough bytes, an error, or no time to wait: answer. Else the fetch parks at its partitions and is read anew when one
   of them moves, at the latest after `max_wait_ms` (`E7`: every check runs again).
4. What is not in the page cache is brought there by a thread, so that the loop never waits for a disk. What that takes
   of memory comes out of one budget for all connections (`fenceline.fetch.load.max.bytes`).
5. What came from the disk gives way to who is in a hurry (`load_pace`); what a replica asks for never does.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from fenceline.errors import ErrorCode, PeerError
from fenceline.log.disk import FileSlice
from fenceline.log.errors import StorageError
from fenceline.node.connection import PendingAnswer
from fenceline.node.handlers.registry import RequestContext
from fenceline.node.load_budget import Lease, LoadBudget
from fenceline.node.load_pace import ANSWER_BYTES, LoadPace
from fenceline.node.logs import Logger
from fenceline.node.server import Buffer, frame_of
from fenceline.replica.fetch_session import FetchSessions, SessionAnswer
from fenceline.replica.leader import NO_EPOCH, IsolationLevel, check_leader_epoch
from fenceline.wire.apis import ApiKey
from fenceline.wire.fetch import (
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    encode_response,
    parse_request,
)

if TYPE_CHECKING:
    from fenceline.log.partition_log import PartitionLog
    from fenceline.log.reading import LogRead
    from fenceline.log.segment import Segment
    from fenceline.node.broker import Broker
    from fenceline.node.replicas import Replica
    from fenceline.wire.produce import NodeEndpoint

log = Logger("fetch")

MIN_VERSION: Final = 4
MAX_VERSION: Final = 18
_FIRST_WITH_TOPIC_IDS: Final = 13
_FIRST_WITH_LEADER_HINT: Final = 16
_ISOLATION_LEVELS: Final = (0, 1)
_MISSING: Final = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
_HINTED_ERRORS: Final = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)


class _Cold(NamedTuple):
    """What of one partition would wait for the disk."""

    position: int
    """In the answer's partitions."""
    read: LogRead
    unread_aborted: Sequence[Segment]
    """Segments whose aborted transactions are not in memory."""
    partition_log: PartitionLog
    offset: int
    end_offset_exclusive: int

    def load(self) -> None:
        for segment in self.unread_aborted:
            segment.aborted_transactions()
        self.read.begin_load()


class _Result:
    """One pass over all partitions of a fetch."""

    __slots__ = ("cold", "fetched", "from_disk_bytes", "is_for_replica", "must_answer", "size_bytes")

    def __init__(self, is_for_replica: bool) -> None:
        self.is_for_replica = is_for_replica
        self.fetched: list[FetchedPartition] = []
        self.size_bytes = 0
        self.from_disk_bytes = 0
        """Of these, what is not in the page cache yet or was brought there for this reader."""
        self.must_answer = False
        self.cold: list[_Cold] = []


class Fetching:
    """The Fetch handler of one broker."""

    def __init__(
        self,
        broker: Broker,
        *,
        max_response_bytes: int,
        max_load_bytes: int,
        load_floor_byte_rate: int,
        max_sessions: int,
        rng: Random,
    ) -> None:
        self._broker = broker
        self._replicas = broker.partitions
        self._metrics = metrics = broker.metrics
        self._max_response_bytes = max_response_bytes
        self._load_budget = metrics.load_budget = LoadBudget(max_load_bytes)
        self._load_pace = metrics.load_pace = LoadPace(load_floor_byte_rate, metrics.hurries)
        self._sessions = FetchSessions(max_sessions=max_sessions)
        self._rng = rng

    def handle(self, context: RequestContext, body: memoryview) -> list[Buffer] | PendingAnswer:
        request = parse_request(context.api_version, body)
        if request.isolation_level not in _ISOLATION_LEVELS:
            return frame_of(
                ApiKey.FETCH, context, encode_response(context.api_version, _refused(request, context.api_version))
            )
        try:
            answer = self._sessions.begin(
                request,
                uses_topic_ids=context.api_version >= _FIRST_WITH_TOPIC_IDS,
                now_ms=self._broker.clock.monotonic_ms(),
                fresh_id=self._rng.randrange(1, 2**31),
            )
        except PeerError as error:
            return frame_of(
                ApiKey.FETCH, context, encode_response(context.api_version, FetchResponse([], error_code=error.code))
            )
        result = self.read(request, answer)
        if self.is_ready(request, answer, result):
            if not self.must_wait(result):
                return self.frame(context, answer, result)
            pending = PendingAnswer()
            self.answer_cold(context, answer, result, pending)
            return pending
        return _ParkedFetch(self, context, request, answer).park()

    def is_ready(self, request: FetchRequest, answer: SessionAnswer, result: _Result) -> bool:
        return result.must_answer or result.size_bytes >= request.min_bytes or request.max_wait_ms <= 0

    def must_wait(self, result: _Result) -> bool:
        """Whether this answer has to wait for the disk, or for its turn after others."""
        return bool(result.cold) or self._is_limited(result)

    def _is_limited(self, result: _Result) -> bool:
        return result.from_disk_bytes > 0 and not result.is_for_replica and self._load_pace.rate() < math.inf

    def read(self, request: FetchRequest, answer: SessionAnswer) -> _Result:
        """Check and read every partition, within the request's and the node's limit of bytes.

        Partitions that do not exist come last and do not end the wait of the others, as in Kafka: a reader with an
        outdated list shall not turn in circles.
        """
        result = _Result(request.replica_id >= 0)
        missing: list[FetchedPartition] = []
        budget = min(request.max_bytes, self._max_response_bytes)
        for partition in answer.partitions:
            left = budget - result.size_bytes
            if self._is_limited(result):
                left = min(left, ANSWER_BYTES - result.from_disk_bytes)
            try:
                self._read_partition(request, partition, left, result)
            except PeerError as error:
                code = error.code
                if code in _MISSING:
                    if code is ErrorCode.UNKNOWN_TOPIC_ID and answer.knew(partition):
                        # A session remembers the name of a topic that was deleted since.
                        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    missing.append(_failed(partition, code)._replace(aborted_transactions=[]))
                    continue
                if isinstance(error, StorageError):
                    self._storage_failed(partition, error)
                result.must_answer = True
                result.fetched.append(_failed(partition, code))
        if not result.fetched:
            result.must_answer = True
        if len(missing) > 1:
            missing.sort(key=lambda partition: partition.error_code != ErrorCode.UNKNOWN_TOPIC_ID)
        result.fetched += missing
        return result

    def _read_partition(
        self, request: FetchRequest, partition: FetchPartition, budget_bytes: int, result: _Result
    ) -> None:
        replica = self._replicas.leader(partition.topic, partition.topic_id, partition.index)
        leader = replica.leader
        assert leader is not None, "a leader without leader state"
        # Every negative epoch is none here (ListOffsets takes -1 alone).
        code = check_leader_epoch(max(partition.current_leader_epoch, NO_EPOCH), leader.leader_epoch)
        if code is not ErrorCode.NONE:
            raise PeerError(code)
        if request.replica_id >= 0:
            # Nobody replicates from a node that is its partitions' only replica (`epochs.md E30`).
            known = partition.current_leader_epoch >= 0
            raise PeerError(ErrorCode.UNKNOWN_LEADER_EPOCH if known else ErrorCode.NOT_LEADER_OR_FOLLOWER)
        partition_log = replica.log
        if partition.last_fetched_epoch >= 0:
            diverging = self._divergence(replica, partition)
            if diverging is not None:
                result.must_answer = True
                result.fetched.append(self._empty(replica, partition, diverging))
                return
        bound = leader.read_bound(
            replica_id=request.replica_id,
            isolation=request.isolation_level,
            log_end_offset=partition_log.log_end_offset,
            last_stable_offset=partition_log.last_stable_offset,
        )
        offset = partition.fetch_offset
        if offset < partition_log.log_start_offset or offset > partition_log.log_end_offset:
            raise PeerError(ErrorCode.OFFSET_OUT_OF_RANGE)
        if offset >= bound:
            empty = self._empty(replica, partition, None)
            is_committed = request.isolation_level == IsolationLevel.READ_COMMITTED
            result.fetched.append(empty._replace(aborted_transactions=[]) if is_committed else empty)
            return
        at_least_one = result.size_bytes == 0
        if budget_bytes <= 0 and not at_least_one:
            # Out of this answer's bytes; there is data, so the reader must not wait for more.
            result.must_answer = True
            result.fetched.append(self._empty(replica, partition, None))
            return
        read = partition_log.read(
            offset,
            min(partition.max_bytes, max(budget_bytes, 0)),
            end_offset_exclusive=bound,
            at_least_one=at_least_one,
        )
        records = cast("Buffer", read.payload)
        size = len(records)
        aborted: list[tuple[int, int]] | None = None
        unread_aborted: Sequence[Segment] = ()
        if request.isolation_level == IsolationLevel.READ_COMMITTED:
            unread_aborted = partition_log.aborted_to_load(offset, bound)
            aborted = [] if unread_aborted else _aborted(partition_log, offset, bound)
        if not read.resident or unread_aborted:
            result.cold.append(_Cold(len(result.fetched), read, unread_aborted, partition_log, offset, bound))
        if not read.resident:
            result.must_answer = True
            size = min(partition.max_bytes, partition_log.readable_bytes(offset, bound))
        if not read.resident or isinstance(read.payload, FileSlice):
            result.from_disk_bytes += size
        result.size_bytes += size
        result.fetched.append(
            FetchedPartition(
                partition.topic,
                partition.topic_id,
                partition.index,
                0,
                leader.high_watermark,
                partition_log.last_stable_offset,
                partition_log.log_start_offset,
                aborted_transactions=aborted,
                records=records,
            )
        )
        if size:
            self._metrics.fetched_partitions += 1
            self._metrics.fetched_bytes += size

    def _divergence(self, replica: Replica, partition: FetchPartition) -> tuple[int, int] | None:
        """`epochs.md E8-E10`: where the reader's log leaves ours, or None. Raises OFFSET_OUT_OF_RANGE."""
        epoch, end_offset = replica.log.end_offset_for_epoch(partition.last_fetched_epoch)
        if epoch == -1 or end_offset == -1 or partition.fetch_offset < replica.log.log_start_offset:
            raise PeerError(ErrorCode.OFFSET_OUT_OF_RANGE)
        if epoch < partition.last_fetched_epoch or end_offset < partition.fetch_offset:
            return epoch, end_offset
        return None

    def _empty(
        self, replica: Replica, partition: FetchPartition, diverging: tuple[int, int] | None
    ) -> FetchedPartition:
        return FetchedPartition(
            partition.topic,
            partition.topic_id,
            partition.index,
            0,
            replica.high_watermark,
            replica.log.last_stable_offset,
            replica.log.log_start_offset,
            diverging_epoch=diverging,
            records=b"",
        )

    def _storage_failed(self, partition: FetchPartition | FetchedPartition, error: StorageError) -> None:
        replicas = self._replicas
        if partition.topic_id is not None:
            replica = replicas.by_id(partition.topic_id, partition.index)
        else:
            replica = replicas.get(partition.topic or "", partition.index)
        if replica is not None:
            replicas.storage_failed(replica, error)

    # --- answers --------------------------------------------------------------------------------------------------

    def frame(self, context: RequestContext, answer: SessionAnswer, result: _Result) -> list[Buffer]:
        partitions = answer.select(result.fetched)
        endpoints: tuple[NodeEndpoint, ...] = ()
        if context.api_version >= _FIRST_WITH_LEADER_HINT and result.must_answer:
            partitions, endpoints = self._with_hints(partitions, is_for_replica=result.is_for_replica)
        response = FetchResponse(partitions, session_id=answer.session_id, node_endpoints=endpoints)
        return frame_of(ApiKey.FETCH, context, encode_response(context.api_version, response))

    def _with_hints(
        self, partitions: list[FetchedPartition], *, is_for_replica: bool
    ) -> tuple[list[FetchedPartition], tuple[NodeEndpoint, ...]]:
        """Tell who leads where the reader asked with an outdated epoch or the wrong node (KIP-951, `epochs.md E6`)."""
        broker = self._broker
        hinted = [
            p._replace(current_leader=broker.leader_hint(p.topic, p.topic_id, p.index))
            if p.error_code in _HINTED_ERRORS
            else p
            for p in partitions
        ]
        if is_for_replica:
            return hinted, ()
        return hinted, broker.node_endpoints({p.current_leader[0] for p in hinted if p.current_leader is not None})

    def answer_cold(
        self, context: RequestContext, answer: SessionAnswer, result: _Result, pending: PendingAnswer
    ) -> None:
        """Wait for the turn, load what is not in the page cache in a thread, then answer."""
        loading = asyncio.ensure_future(self._load(result, pending))

        def loaded(task: asyncio.Future[Lease]) -> None:
            if task.cancelled():
                pending.fail("node stops")
            elif task.exception() is not None:
                log.error("read failed", peer=context.peer, error=str(task.exception()))
                pending.fail("the log could not be read, see the log line before")
            else:
                lease = task.result()
                lease.sending(partial(pending.drop, "does not read its answer while others wait for memory to read"))
                pending.complete(self.frame(context, answer, result), lease.give_back)

        loading.add_done_callback(loaded)

    async def _load(self, result: _Result, pending: PendingAnswer) -> Lease:
        """Bring what is cold into the page cache; the share of memory that the copies of small pieces take."""
        cold = result.cold
        taking = asyncio.ensure_future(self._admit(result))
        # Nobody else is held up by a peer that went away.
        pending.on_abandoned(taking.cancel)
        try:
            lease = await taking
        except asyncio.CancelledError:
            for each in cold:
                each.read.close()
            raise
        pending.on_abandoned(None)
        if not cold:
            return lease
        try:
            payloads = await asyncio.get_running_loop().run_in_executor(self._broker.disk_threads, _load_all, cold)
            for each, payload in zip(cold, payloads, strict=True):
                fetched = result.fetched[each.position]
                try:
                    if isinstance(payload, StorageError):
                        raise payload
                    aborted = fetched.aborted_transactions
                    if aborted is not None:
                        aborted = _aborted(each.partition_log, each.offset, each.end_offset_exclusive)
                    result.fetched[each.position] = fetched._replace(
                        records=cast("Buffer", payload), aborted_transactions=aborted
                    )
                except StorageError as error:
                    # Of one partition; the others of this fetch are answered as they are.
                    self._storage_failed(fetched, error)
                    result.fetched[each.position] = _failed(fetched, error.code)
        except BaseException:
            lease.give_back()
            raise
        return lease

    async def _admit(self, result: _Result) -> Lease:
        if not result.is_for_replica:
            await self._load_pace.turn(result.from_disk_bytes)
        return await self._load_budget.take(sum(each.read.copied_bytes_limit for each in result.cold))


def _load_all(cold: Sequence[_Cold]) -> list[memoryview | FileSlice | StorageError]:
    """In a thread: ask the disk for everything first, then wait for it."""
    loaded: list[memoryview | FileSlice | StorageError] = []
    failed: dict[int, StorageError] = {}
    for each in cold:
        try:
            each.load()
        except StorageError as error:
            failed[each.position] = error
        except OSError as error:
            failed[each.position] = StorageError.of("reading aborted transactions", error)
    for each in cold:
        try:
            loaded.append(failed[each.position] if each.position in failed else each.read.finish_load())
        except StorageError as error:
            loaded.append(error)
    return loaded


def _aborted(partition_log: PartitionLog, offset: int, end_offset_exclusive: int) -> list[tuple[int, int]]:
    found = partition_log.aborted_transactions(offset, end_offset_exclusive)
    return [(each.producer_id, each.first_offset) for each in found]


def _refused(request: FetchRequest, version: int) -> FetchResponse:
    """The answer to a request that makes no sense: below topic ids each partition says so, too."""
    code = ErrorCode.UNKNOWN_SERVER_ERROR
    partitions = [] if version >= _FIRST_WITH_TOPIC_IDS else request.partitions
    failed = [_failed(p, code)._replace(aborted_transactions=[]) for p in partitions]
    return FetchResponse(failed, error_code=code, session_id=request.session_id)


def _failed(partition: FetchPartition | FetchedPartition, code: ErrorCode) -> FetchedPartition:
    return FetchedPartition(partition.topic, partition.topic_id, partition.index, code, records=b"")


class _ParkedFetch:
    """A fetch that waits for bytes, an error or its time-out."""

    __slots__ = ("_answer", "_context", "_fetching", "_is_woken", "_pending", "_replicas", "_request", "_timer")

    def __init__(
        self, fetching: Fetching, context: RequestContext, request: FetchRequest, answer: SessionAnswer
    ) -> None:
        self._fetching = fetching
        self._context = context
        self._request = request
        self._answer = answer
        self._pending = PendingAnswer()
        self._replicas: list[Replica] = []
        self._is_woken = False
        self._timer: asyncio.TimerHandle | None = None

    def park(self) -> PendingAnswer:
        broker = self._fetching._broker
        broker.metrics.parked_fetches += 1
        for partition in self._answer.partitions:
            replica = (
                broker.partitions.by_id(partition.topic_id, partition.index)
                if partition.topic_id is not None
                else broker.partitions.get(partition.topic or "", partition.index)
            )
            if replica is not None:
                replica.waiters.add(self._wake)
                self._replicas.append(replica)
        self._timer = broker.loop.call_later(self._request.max_wait_ms / 1000, self._time_out)
        self._pending.on_abandoned(self._leave)
        return self._pending

    def _wake(self) -> None:
        # Several partitions may move within one produce request: look once, after it.
        if not self._is_woken:
            self._is_woken = True
            self._fetching._broker.loop.call_soon(self._look)

    def _look(self) -> None:
        self._is_woken = False
        if self._timer is None:
            return
        result = self._fetching.read(self._request, self._answer)
        if self._fetching.is_ready(self._request, self._answer, result):
            self._fetching._metrics.woken_fetches += 1
            self._complete(result)

    def _time_out(self) -> None:
        self._complete(self._fetching.read(self._request, self._answer))

    def _complete(self, result: _Result) -> None:
        self._leave()
        if self._fetching.must_wait(result):
            self._fetching.answer_cold(self._context, self._answer, result, self._pending)
        else:
            self._pending.complete(self._fetching.frame(self._context, self._answer, result))

    def _leave(self) -> None:
        if self._timer is None:
            return
        self._timer.cancel()
        self._timer = None
        self._fetching._broker.metrics.parked_fetches -= 1
        for replica in self._replicas:
            replica.waiters.discard(self._wake)
        self._replicas.clear()
