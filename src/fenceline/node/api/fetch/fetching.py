"""Fetch (api key 1): sessions, fencing, reads, and fetches that wait for data.

Owns the life of a fetch from request to response. Records are sent as slices of the log's files; nothing is decoded.

1. The session determines which partitions to read (`fenceline.replica.fetch_session`).
2. Each partition is checked and read up to its bound (`reads.py`; `E43`).
3. The fetch is answered if it has enough bytes, an error, or no time to wait. Otherwise it parks (`parked_fetch.py`),
   and partitions that changed are read again, at the latest after `max_wait_ms` (`E7`: every check runs again).
4. Records that are not in the page cache are loaded by a thread, so that the event loop never waits for a disk. The
   memory for this comes out of one budget for all connections (`fenceline.fetch.load.max.bytes`).
5. Evidence of a loss is no topic's: `evidence_fetch.py` answers for it.
6. Responses with records from the disk are slowed down while latency-sensitive requests are served (`load_pace`);
   replica fetches never are.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from errno import ENOENT
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final, cast

from fenceline.compiled import compiled
from fenceline.errors import ErrorCode, PeerError
from fenceline.log.core import tail
from fenceline.log.core.disk import FileSlice
from fenceline.log.core.errors import StorageError
from fenceline.node.api.fetch.evidence_fetch import EvidenceFetch, is_of_evidence
from fenceline.node.api.fetch.load_budget import Lease, LoadBudget
from fenceline.node.api.fetch.load_pace import LoadPace
from fenceline.node.api.fetch.parked_fetch import ParkedFetch
from fenceline.node.api.fetch.preferred_replicas import PreferredReplicas
from fenceline.node.api.fetch.reads import ColdRead, FetchReads, FetchResult, Reader, ReadPlain, failed_partition
from fenceline.node.api.leader_hints import LeaderHints
from fenceline.node.context import RequestContext
from fenceline.node.logs import Logger
from fenceline.node.net.connection import PendingAnswer
from fenceline.node.net.server import Buffer, frame_of
from fenceline.replica.fencing import CONSUMER_REPLICA_ID, DEBUG_REPLICA_ID, NO_EPOCH
from fenceline.replica.fetch_session import INITIAL_EPOCH, NO_SESSION_ID, FetchSessions, SessionAnswer
from fenceline.wire.acl_codes import AclOperation
from fenceline.wire.apis import ApiKey
from fenceline.wire.fetch import FetchedPartition, FetchRequest, FetchResponse, encode_response, parse_request

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from fenceline.node.client_limits import PeerQuotas
    from fenceline.node.clock import Clock
    from fenceline.node.losses.evidence_reads import EvidenceReads
    from fenceline.node.metrics import NodeMetrics
    from fenceline.node.replication.replicas import Replicas
    from fenceline.node.replication.replication import Replication
    from fenceline.node.turns import Turns
    from fenceline.wire.produce import LeaderEndpoint

log = Logger("fetch")

MIN_VERSION: Final = 4
MAX_VERSION: Final = 18
RACK_AWARE_SELECTOR: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
"""Kafka's name for rack-aware selection (`PreferredReplicas`); its LeaderSelector is the default."""
_FIRST_FROM_FOLLOWERS: Final = 11
_FIRST_WITH_TOPIC_IDS: Final = 13
_FIRST_WITH_LEADER_HINT: Final = 16
_MOST_LOADED_AHEAD: Final = 8
"""Partitions of a response behind whose records more is loaded."""
_ISOLATION_LEVELS: Final = (0, 1)
_PLAIN_ABI: Final = 8
"""Changes with every change of `_plain_fetch.pyx`, so that an outdated build is not used."""

_plain_fetch = compiled("fenceline.node.api.fetch._plain_fetch", _PLAIN_ABI) if tail.IS_NATIVE else None
_handle_plain: Final[
    Callable[[FetchHandler, RequestContext, memoryview], list[Buffer] | PendingAnswer | None] | None
] = getattr(_plain_fetch, "handle_plain", None)
"""The fast path for followers that keep up; None if it was not built. It returns None, having changed nothing, if a
request is not for it."""
_answer_plain: Final[
    Callable[[FetchHandler, RequestContext, FetchRequest, SessionAnswer], Sequence[Buffer] | None] | None
] = getattr(_plain_fetch, "answer_plain", None)
_read_plain: Final[ReadPlain | None] = getattr(_plain_fetch, "read_plain", None)
_HINTED_ERRORS: Final = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)


class FetchHandler:
    """The Fetch handler of one broker."""

    def __init__(
        self,
        replicas: Replicas,
        replication: Replication,
        *,
        loop: asyncio.AbstractEventLoop,
        turns: Turns,
        clock: Clock,
        metrics: NodeMetrics,
        hints: LeaderHints,
        threads: Executor,
        rng: Random,
        max_response_bytes: int,
        max_load_bytes: int,
        load_floor_byte_rate: int,
        max_sessions: int,
        name_of: Callable[[bytes], str | None],
        preferred: PreferredReplicas | None = None,
        evidence: EvidenceReads | None = None,
        serves_evidence: bool = True,
    ) -> None:
        """`threads` load records from the disk. `name_of`, `preferred`: as those of `FetchReads`. `evidence`: None if
        the node keeps none; `serves_evidence`: whether clients may read it."""
        self.replication = replication
        self.loop = loop
        self.turns = turns
        self.clock = clock
        self.metrics = metrics
        self._hints = hints
        self._threads = threads
        self.load_budget = LoadBudget(max_load_bytes)
        self.reads = FetchReads(
            replicas,
            replication,
            metrics,
            LoadPace(load_floor_byte_rate, metrics.urgent_requests),
            max_response_bytes=max_response_bytes,
            name_of=name_of,
            preferred=preferred,
            read_plain=_read_plain,
        )
        self._evidence = (
            EvidenceFetch(
                evidence,
                self.load_budget,
                self.reads.load_pace,
                is_enabled=serves_evidence,
                max_response_bytes=max_response_bytes,
            )
            if evidence is not None
            else None
        )
        self.sessions = FetchSessions(max_sessions=max_sessions)
        self._rng = rng

    def handle(self, context: RequestContext, body: memoryview) -> list[Buffer] | PendingAnswer:
        rights = context.rights
        # The fast path is for followers only, whose one right is on the cluster.
        if _handle_plain is not None and (rights is None or rights.on_cluster(AclOperation.CLUSTER_ACTION, quiet=True)):
            plain = _handle_plain(self, context, body)
            if plain is not None:
                if context.quotas is not None:
                    context.quotas.is_exempt = True
                return plain
        request = parse_request(context.api_version, body)
        if context.quotas is not None:
            request = _within_quota(context, request)
        if request.isolation_level not in _ISOLATION_LEVELS:
            return frame_of(
                ApiKey.FETCH, context, encode_response(context.api_version, _refused(request, context.api_version))
            )
        if self._evidence is not None and is_of_evidence(context.api_version, request):
            return self._evidence.handle(context, request)
        try:
            answer = self.sessions.begin(
                request,
                uses_topic_ids=context.api_version >= _FIRST_WITH_TOPIC_IDS,
                now_ms=self.clock.monotonic_ms(),
                fresh_id=self._rng.randrange(1, 2**31) if request.session_epoch == INITIAL_EPOCH else NO_SESSION_ID,
                is_outdated=request.replica_id >= 0 and self._is_outdated(request),
            )
        except PeerError as error:
            return frame_of(
                ApiKey.FETCH, context, encode_response(context.api_version, FetchResponse([], error_code=error.code))
            )
        # Brokers fetch from leaders only, and so do clients older than fetching from followers (`epochs.md E3`).
        takes_any_replica = (
            context.api_version >= _FIRST_FROM_FOLLOWERS
            if request.replica_id == CONSUMER_REPLICA_ID
            else request.replica_id <= DEBUG_REPLICA_ID
        )
        reader = Reader(takes_any_replica, context.listener, _read_fault(context, request), context.takes_files)
        return self.read_or_park(context, request, answer, reader, has_just_arrived=True)

    def read_or_park(
        self,
        context: RequestContext,
        request: FetchRequest,
        answer: SessionAnswer,
        reader: Reader,
        *,
        has_just_arrived: bool = False,
    ) -> list[Buffer] | PendingAnswer:
        """The response to a request that its session has accepted. `has_just_arrived`: the follower state in it has not
        been applied yet (`epochs.md E31`)."""
        result = self.reads.read(request, answer, reader, has_just_arrived=has_just_arrived)
        if self.is_ready(request, answer, result):
            if not self.must_wait(result):
                return self.frame(context, answer, result)
            pending = PendingAnswer()
            self.answer_cold(context, answer, result, pending)
            return pending
        return ParkedFetch(self, context, request, answer, reader).park()

    def plain_answer(
        self, context: RequestContext, request: FetchRequest, answer: SessionAnswer
    ) -> Sequence[Buffer] | None:
        """The fast path's response to a parked fetch: empty if it has to wait on; None, having changed nothing, if it
        needs the general path."""
        return _answer_plain(self, context, request, answer) if _answer_plain is not None else None

    def _is_outdated(self, request: FetchRequest) -> bool:
        """Whether the request comes from an earlier process of a broker that has registered again since (KIP-903)."""
        return NO_EPOCH != request.replica_epoch < self.replication.eligible_epoch(request.replica_id)

    def is_ready(self, request: FetchRequest, answer: SessionAnswer, result: FetchResult) -> bool:
        return result.must_answer or result.size_bytes >= request.min_bytes or request.max_wait_ms <= 0

    def must_wait(self, result: FetchResult) -> bool:
        """Whether this response has to wait for the disk, or for its turn after others."""
        return bool(result.cold) or (result.from_disk_bytes > 0 and self.reads.is_limited(result))

    # --- answers --------------------------------------------------------------------------------------------------

    def frame(self, context: RequestContext, answer: SessionAnswer, result: FetchResult) -> list[Buffer]:
        if context.quotas is not None and (throttle_ms := _throttle_ms(context, context.quotas, result)):
            return self._throttled(context, answer, throttle_ms)
        partitions = answer.select(result.fetched)
        endpoints: tuple[LeaderEndpoint, ...] = ()
        if context.api_version >= _FIRST_WITH_LEADER_HINT and result.must_answer:
            partitions, endpoints = self._with_hints(partitions, context.listener, is_for_replica=result.is_for_replica)
        if result.is_for_replica:
            self.reads.count_throttled(result.fetched)
        response = FetchResponse(partitions, session_id=answer.session_id, node_endpoints=endpoints)
        return frame_of(ApiKey.FETCH, context, encode_response(context.api_version, response))

    def _throttled(self, context: RequestContext, answer: SessionAnswer, throttle_ms: int) -> list[Buffer]:
        """A response without partitions: the reader waits, and asks again. A session that it does not know of yet is
        closed, since it would expect all partitions in its first response."""
        if answer.is_full:
            self.sessions.close(answer)
        response = FetchResponse([], throttle_ms=throttle_ms, session_id=answer.session_id)
        return frame_of(ApiKey.FETCH, context, encode_response(context.api_version, response))

    def _with_hints(
        self, partitions: list[FetchedPartition], listener: str, *, is_for_replica: bool
    ) -> tuple[list[FetchedPartition], tuple[LeaderEndpoint, ...]]:
        """Add the leader where the reader sent an outdated epoch or asked the wrong node (KIP-951, `epochs.md E6`)."""
        hinted = [
            p._replace(current_leader=self._hints.leader(p.topic, p.topic_id, p.index))
            if p.error_code in _HINTED_ERRORS
            else p
            for p in partitions
        ]
        if is_for_replica:
            return hinted, ()
        leaders = {p.current_leader[0] for p in hinted if p.current_leader is not None}
        return hinted, self._hints.endpoints(leaders, listener)

    def answer_cold(
        self, context: RequestContext, answer: SessionAnswer, result: FetchResult, pending: PendingAnswer
    ) -> None:
        """Wait for the turn, load records into the page cache in a thread, then send the response."""
        loading = asyncio.ensure_future(self._load(result, pending))

        def loaded(task: asyncio.Future[Lease]) -> None:
            if task.cancelled():
                pending.fail("the node is shutting down")
            elif task.exception() is not None:
                log.error("fetch failed: the log could not be read", peer=context.peer, error=str(task.exception()))
                pending.fail("the log could not be read, see the previous log message")
            else:
                lease = task.result()
                lease.sending(
                    partial(pending.drop, "the peer does not read its response while other fetches wait for memory")
                )
                pending.complete(self.frame(context, answer, result), lease.release)

        loading.add_done_callback(loaded)

    async def _load(self, result: FetchResult, pending: PendingAnswer) -> Lease:
        """Load cold records into the page cache. Returns the lease of the memory that copies of small reads take."""
        cold = result.cold
        taking = asyncio.ensure_future(self._admit(result))
        # A peer that has disconnected must not delay others.
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
            payloads = await asyncio.get_running_loop().run_in_executor(self._threads, _load_all, cold)
            for each, payload in zip(cold, payloads, strict=True):
                fetched = result.fetched[each.position]
                try:
                    if isinstance(payload, StorageError):
                        raise payload
                    aborted = fetched.aborted_transactions
                    if aborted is not None:
                        aborted = each.aborted()
                    result.fetched[each.position] = fetched._replace(
                        records=cast("Buffer", payload), aborted_transactions=aborted
                    )
                except StorageError as error:
                    # Only this partition fails; the others of this fetch are answered normally.
                    if error.errno == ENOENT and each.was_removed():
                        # Its segment was deleted before the thread read it: the client fetches again.
                        continue
                    self.reads.storage_failed(fetched, error)
                    result.fetched[each.position] = failed_partition(fetched, error.code)
        except BaseException:
            lease.release()
            raise
        if any(isinstance(payload, FileSlice) for payload in payloads):
            with contextlib.suppress(RuntimeError):  # the node is shutting down
                self._threads.submit(_load_ahead, cold[:_MOST_LOADED_AHEAD])
        return lease

    async def _admit(self, result: FetchResult) -> Lease:
        if not result.is_for_replica:
            await self.reads.load_pace.turn(result.from_disk_bytes)
        return await self.load_budget.acquire(sum(each.read.copied_bytes_limit for each in result.cold))


def _within_quota(context: RequestContext, request: FetchRequest) -> FetchRequest:
    """A client gets at most what its quota allows in a window (A59); brokers have none."""
    quotas = context.quotas
    assert quotas is not None, "the caller has looked"
    if request.replica_id >= 0:
        quotas.is_exempt = True
        context.quotas, context.throttle_ms = None, 0
        return request
    most = quotas.most_to_fetch(request.max_bytes)
    return replace(request, max_bytes=most, min_bytes=min(request.min_bytes, most))


def _throttle_ms(context: RequestContext, quotas: PeerQuotas, result: FetchResult) -> int:
    """For how long the reader is throttled, and its connection muted; its records are then not sent."""
    throttle_ms = max(context.throttle_ms, quotas.fetched(result.size_bytes))
    if throttle_ms:
        quotas.not_fetched(result.size_bytes)
        quotas.mute(throttle_ms)
    return throttle_ms


def _read_fault(context: RequestContext, request: FetchRequest) -> Callable[[str | None], ErrorCode] | None:
    """What the sender may read: brokers everything, others topics with READ (`security.md A55`). Asked again whenever a
    fetch that waits is read again."""
    rights = context.rights
    if rights is None:
        return None
    if request.replica_id >= 0:
        may_read_all = rights.on_cluster(AclOperation.CLUSTER_ACTION)
        return None if may_read_all else lambda topic: rights.topic_fault
    return lambda topic: ErrorCode.NONE if topic is None or rights.may_read(topic) else rights.topic_fault


def _load_all(cold: Sequence[ColdRead]) -> list[memoryview | FileSlice | StorageError]:
    """In a thread: start all reads first, then wait for them."""
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


def _load_ahead(cold: Sequence[ColdRead]) -> None:
    """In a thread, while the response is sent: what the next requests will ask for."""
    for each in cold:
        with contextlib.suppress(StorageError):  # a request for it will report the error
            each.read.load_ahead()


def _refused(request: FetchRequest, version: int) -> FetchResponse:
    """The response to an invalid request: before topic ids, each partition has the error as well."""
    code = ErrorCode.UNKNOWN_SERVER_ERROR
    partitions = [] if version >= _FIRST_WITH_TOPIC_IDS else request.partitions
    failed = [failed_partition(p, code)._replace(aborted_transactions=[]) for p in partitions]
    return FetchResponse(failed, error_code=code, session_id=request.session_id)
