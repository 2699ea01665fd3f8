"""Fetch requests for the evidence of a loss: `__fenceline_evidence/<receipt id>` in the place of a topic's name.

A topic's name has no slash, so such a request never means a topic, and other brokers answer it with
UNKNOWN_TOPIC_OR_PARTITION. It names one partition, that of the receipt, in a request by name (versions 4 to 12) without
a session; any other request with such a name is an ordinary one, for a topic that does not exist.

| answer                         | when                                                                            |
|--------------------------------|---------------------------------------------------------------------------------|
| batches as they were stored    | from the first offset wanted on, whole ones, at least one                       |
| no records                     | there are none from that offset on                                              |
| TOPIC_AUTHORIZATION_FAILED     | no READ on `__fenceline_evidence`, or none on the receipt's topic               |
| POLICY_VIOLATION               | `fenceline.evidence.fetch.enable` is false                                      |
| UNKNOWN_TOPIC_OR_PARTITION     | no such receipt here, or none of this partition, or its evidence is deleted     |
| KAFKA_STORAGE_ERROR            | the disk failed                                                                 |
| NOT_LEADER_OR_FOLLOWER         | the rights are not known here, as for other fetches (`RequestRights.topic_fault`) |

The log start offset of an answer is the start of the loss, and its high watermark the end (exclusive). Batches with a
wrong checksum are left out: the receipt has the number of records.

Owns rights, limits and codes of these answers. Records are loaded as those of other fetches: in a thread, in memory of
the same budget, at the same pace (`fetching.py`).
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from fenceline.errors import ErrorCode, PeerError
from fenceline.ids import EVIDENCE_RESOURCE
from fenceline.node.api.fetch.reads import failed_partition
from fenceline.node.logs import Logger
from fenceline.node.net.connection import PendingAnswer
from fenceline.node.net.server import frame_of
from fenceline.node.repeated_lines import RepeatedLines
from fenceline.replica.fencing import CONSUMER_REPLICA_ID
from fenceline.replica.fetch_session import FINAL_EPOCH
from fenceline.wire.apis import ApiKey
from fenceline.wire.fetch import FIRST_WITH_TOPIC_IDS, FetchedPartition, FetchResponse, encode_response

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from fenceline.node.api.fetch.load_budget import Lease, LoadBudget
    from fenceline.node.api.fetch.load_pace import LoadPace
    from fenceline.node.context import RequestContext
    from fenceline.node.losses.evidence_reads import EvidenceReads
    from fenceline.node.losses.keeper import FoundEvidence
    from fenceline.security.rights import RequestRights
    from fenceline.wire.fetch import FetchPartition, FetchRequest

log = Logger("losses")

T = TypeVar("T")

PREFIX: Final = f"{EVIDENCE_RESOURCE}/"


def is_of_evidence(version: int, request: FetchRequest) -> bool:
    """Whether this module answers a request."""
    if version >= FIRST_WITH_TOPIC_IDS or request.session_epoch != FINAL_EPOCH or len(request.partitions) != 1:
        return False
    return request.replica_id == CONSUMER_REPLICA_ID and (request.partitions[0].topic or "").startswith(PREFIX)


class EvidenceFetch:
    """The answers to such requests of one broker."""

    def __init__(
        self,
        reads: EvidenceReads,
        budget: LoadBudget,
        pace: LoadPace,
        *,
        is_enabled: bool,
        max_response_bytes: int,
    ) -> None:
        self._reads = reads
        self._budget = budget
        self._pace = pace
        self._is_enabled = is_enabled
        self._max_response_bytes = max_response_bytes
        self._lines = RepeatedLines(log.info)

    def handle(self, context: RequestContext, request: FetchRequest) -> PendingAnswer:
        """Answers later: the connection takes no other request meanwhile."""
        pending = PendingAnswer()
        wanted = request.partitions[0]
        max_bytes = min(wanted.max_bytes, request.max_bytes, self._max_response_bytes, self._budget.limit_bytes)
        answering = asyncio.ensure_future(self._read(context, wanted, max_bytes, _Waiting(pending)))

        def answered(task: asyncio.Future[tuple[FetchedPartition, Lease | None]]) -> None:
            if task.cancelled():
                pending.fail("the node is shutting down")
                return
            error = task.exception()
            if isinstance(error, PeerError):
                fetched, lease = failed_partition(wanted, error.code), None
                if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    fetched = fetched._replace(aborted_transactions=[])  # as of any topic that does not exist
            elif isinstance(error, OSError):
                log.error("evidence could not be read", peer=context.peer, topic=wanted.topic, reason=str(error))
                fetched, lease = failed_partition(wanted, ErrorCode.KAFKA_STORAGE_ERROR), None
            elif error is not None:
                log.error("fetch of evidence failed", peer=context.peer, topic=wanted.topic, error=repr(error))
                pending.fail("internal error, see the previous log message")
                return
            else:
                fetched, lease = task.result()
            if lease is not None:
                lease.sending(
                    partial(pending.drop, "the peer does not read its response while other fetches wait for memory")
                )
            response = FetchResponse([fetched], throttle_ms=_throttle_ms(context, fetched))
            body = encode_response(context.api_version, response)
            pending.complete(frame_of(ApiKey.FETCH, context, body), None if lease is None else lease.release)

        answering.add_done_callback(answered)
        return pending

    async def _read(
        self, context: RequestContext, wanted: FetchPartition, max_bytes: int, waiting: _Waiting
    ) -> tuple[FetchedPartition, Lease | None]:
        """Raises PeerError, OSError."""
        rights = context.rights
        _require(rights, EVIDENCE_RESOURCE)
        if not self._is_enabled:
            raise PeerError(ErrorCode.POLICY_VIOLATION)
        await waiting.until(self._reads.turn.acquire())
        try:
            found = await self._reads.find((wanted.topic or "").removeprefix(PREFIX))
            if found is None or found.receipt.partition != wanted.index:
                raise PeerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            receipt = found.receipt
            _require(rights, receipt.topic)
            try:
                records, lease = await self._load(found, wanted.fetch_offset, max_bytes, waiting)
            except FileNotFoundError:
                raise PeerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) from None  # it was deleted meanwhile
        finally:
            self._reads.turn.release()
        try:
            _require(rights, EVIDENCE_RESOURCE, receipt.topic)  # they may have been removed while this waited
        except PeerError:
            if lease is not None:
                lease.release()
            raise
        if wanted.fetch_offset <= receipt.start_offset:
            self._lines.write(
                "evidence is read by a client",
                receipt=receipt.id,
                loss=str(receipt),
                host=context.client_host,
                principal=str(context.principal),
            )
        self._reads.count(receipt, len(records))
        start, end = receipt.start_offset, receipt.end_offset_exclusive
        fetched = FetchedPartition(
            wanted.topic, None, wanted.index, 0, end, end, start, aborted_transactions=[], records=records
        )
        return fetched, lease

    async def _load(
        self, found: FoundEvidence, from_offset: int, max_bytes: int, waiting: _Waiting
    ) -> tuple[bytearray, Lease | None]:
        """The next piece, and the memory that it takes. Raises OSError."""
        piece = await self._reads.locate(found, from_offset, max_bytes)
        if not piece.runs:
            return bytearray(), None
        await waiting.until(self._pace.turn(piece.size_bytes))
        lease = await waiting.until(self._budget.acquire(piece.memory_bytes))
        try:
            return await self._reads.load(found, piece), lease
        except BaseException:
            lease.release()
            raise


def _throttle_ms(context: RequestContext, fetched: FetchedPartition) -> int:
    """The quota of the reader: this answer is sent, and its connection then muted."""
    quotas = context.quotas
    if quotas is None:
        return context.throttle_ms
    throttle_ms = max(context.throttle_ms, quotas.fetched(len(fetched.records or b"")))
    if throttle_ms:
        quotas.mute(throttle_ms)
    return throttle_ms


def _require(rights: RequestRights | None, *names: str) -> None:
    """Raises PeerError unless the sender may read topics of these names."""
    if rights is not None and not all(rights.may_read(name) for name in names):
        raise PeerError(rights.topic_fault)


class _Waiting:
    """What an answer waits for before its turn or its memory. A peer that has disconnected does not wait on; work in a
    thread is never given up, so that it ends within its turn."""

    def __init__(self, pending: PendingAnswer) -> None:
        self._now: asyncio.Future[Any] | None = None
        self._is_abandoned = False
        pending.on_abandoned(self._abandon)

    async def until(self, work: Awaitable[T]) -> T:
        """The outcome. Raises CancelledError if the peer has disconnected."""
        task = asyncio.ensure_future(work)
        if self._is_abandoned:
            task.cancel()
        self._now = task
        try:
            return await task
        finally:
            self._now = None

    def _abandon(self) -> None:
        self._is_abandoned = True
        if self._now is not None:
            self._now.cancel()
