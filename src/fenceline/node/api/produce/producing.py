"""Produce (api key 0): from the request's bytes to the log in as few steps as possible.

Owns the checks before an append and the mapping of results to the response. Never decodes a record, never waits for a
disk: records are views of the receive buffer, appended before the handler returns. `acknowledging` handles the wait
for other replicas and flushes.

Order of checks as in Kafka: rights, acks, topic, leader, min.insync.replicas, then the batch itself
(`fenceline.records`). Batches that open a transaction wait for its coordinator first (`transactional.py`); the
connection handles no other request meanwhile, so that the producer's batches stay in order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from fenceline.compiled import compiled
from fenceline.errors import ErrorCode, PeerError
from fenceline.log.core import tail
from fenceline.log.core.errors import StorageError
from fenceline.log.core.producer_state import Origin
from fenceline.node.api.leader_hints import LeaderHints
from fenceline.node.api.produce.acknowledging import AckedBy, DelayedProduce, FlushUpTo, PendingAck, ProducePurgatory
from fenceline.node.api.produce.transactional import (
    Codes,
    RequestGuards,
    TransactionalProduce,
    Verdicts,
    has_transactional,
    refusal,
)
from fenceline.node.context import RequestContext
from fenceline.node.logs import Logger
from fenceline.node.net.connection import PendingAnswer
from fenceline.node.net.server import Buffer, frame_of
from fenceline.records.batch import peek_header
from fenceline.records.errors import RecordsError
from fenceline.wire.apis import ApiKey
from fenceline.wire.produce import (
    PartitionRecords,
    PartitionResult,
    ProduceRequest,
    encode_response,
    parse_request,
)

if TYPE_CHECKING:
    from fenceline.ids import TopicPartition
    from fenceline.log.core.guards import VerificationGuard
    from fenceline.node.clock import Clock
    from fenceline.node.metrics import NodeMetrics
    from fenceline.node.replication.replica import Replica
    from fenceline.node.replication.replicas import Replicas
    from fenceline.security.rights import RequestRights

log = Logger("produce")

VERIFICATION_KEY: Final = "transaction.partition.verification.enable"
MIN_VERSION: Final = 3
MAX_VERSION: Final = 13
_WITHOUT_LOG_START: Final = (
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.RECORD_LIST_TOO_LARGE,
    ErrorCode.KAFKA_STORAGE_ERROR,
)
"""Errors that Kafka returns without the partition's log start offset."""
_PLAIN_ABI: Final = 10
"""Changes with every change of `_plain_produce.pyx`, so that an outdated build is not used."""
_ADMIN_CLIENT_ID: Final = "__admin_client"

_plain_produce = compiled("fenceline.node.api.produce._plain_produce", _PLAIN_ABI) if tail.IS_NATIVE else None
_answer_plain: Final[
    Callable[[ProduceHandler, RequestContext, memoryview], list[Buffer] | PendingAnswer | None] | None
] = getattr(_plain_produce, "answer_plain", None)
"""The fast path for plain requests; None if it was not built.

Returns the response frame or a pending response, or None, having changed nothing, if a request is not for it."""


class _Appended(NamedTuple):
    results: list[PartitionResult]
    """One for each partition of the request, in its order."""
    pending_acks: list[PendingAck]


class ProduceHandler:
    """The Produce handler of one broker."""

    def __init__(
        self,
        replicas: Replicas,
        *,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        metrics: NodeMetrics,
        hints: LeaderHints,
        flush_up_to: FlushUpTo,
        rejected: Callable[[TopicPartition, int, StorageError], None],
        transactions: TransactionalProduce,
        name_of: Callable[[bytes], str | None],
    ) -> None:
        """`rejected` is called when a log has rejected records with a storage error: with the partition, its log end
        offset, and the error. `name_of`: of the topic with an id, None if it is unknown."""
        self.replicas = replicas
        self.clock = clock
        self.metrics = metrics
        self._loop = loop
        self._hints = hints
        self._rejected = rejected
        self._transactions = transactions
        self._name_of = name_of
        self._verifying: set[asyncio.Task[None]] = set()
        self._answers = ProducePurgatory(loop, hints, flush_up_to)

    def handle(self, context: RequestContext, body: memoryview) -> list[Buffer] | PendingAnswer | None:
        if _answer_plain is not None:
            plain = _answer_plain(self, context, body)
            if plain is not None:
                return plain
        request = parse_request(context.api_version, body)
        partitions = _last_mentions(request.partitions)
        denied: list[PartitionResult] = []
        is_transactional = request.acks in (-1, 0, 1) and has_transactional(partitions)
        if context.rights is not None:
            transactional_id = request.transactional_id
            if not is_transactional:
                partitions, denied = self._denied(context.rights, None, partitions)
            elif transactional_id is not None:  # without one the whole request is refused
                partitions, denied = self._denied(context.rights, transactional_id, partitions)
        if is_transactional and partitions:
            return self._handle_transactional(context, request, partitions, denied)
        return self._answer(context, request, self._append_all(context, request, partitions), denied=denied)

    def _denied(
        self, rights: RequestRights, transactional_id: str | None, partitions: list[PartitionRecords]
    ) -> tuple[list[PartitionRecords], list[PartitionResult]]:
        """The partitions that the sender may write, and the results of the others. `transactional_id`: of a
        transactional request (`security.md A55`)."""
        if transactional_id is not None and rights.are_known and not rights.may_write_as(transactional_id):
            code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            allowed = []
        else:
            code = rights.topic_fault
            allowed = [p for p in partitions if self._may_write(rights, p)]
        if len(allowed) == len(partitions):
            return partitions, []
        kept = set(map(_key, allowed))
        denied = [_failed(p, code, "") for p in partitions if _key(p) not in kept]
        self.metrics.failed_produce_partitions += len(denied)
        return allowed, denied

    def _may_write(self, rights: RequestRights, partition: PartitionRecords) -> bool:
        topic, topic_id, _, _ = partition
        name = topic if topic_id is None else self._name_of(topic_id)
        return name is None or rights.may_write(name)  # an unknown id is refused as such

    def _append_all(
        self,
        context: RequestContext,
        request: ProduceRequest,
        partitions: list[PartitionRecords],
        guards: Mapping[int, VerificationGuard] = MappingProxyType({}),
        refused: Mapping[int, PartitionResult] = MappingProxyType({}),
    ) -> _Appended:
        """Append to all partitions. By position: the guards of batches that open a transaction, and partitions that are
        refused already."""
        acks, version = request.acks, context.api_version
        pending_acks: list[PendingAck] = []
        if acks not in (-1, 0, 1):
            return _Appended([self._refuse_acks(p, acks) for p in partitions], pending_acks)
        now_ms = self.clock.now_ms()
        internal_allowed = context.client_id == _ADMIN_CLIENT_ID
        results = [
            refused.get(position)
            or self.append(
                p, version, acks, now_ms, internal_allowed, position, pending_acks, guard=guards.get(position)
            )
            for position, p in enumerate(partitions)
        ]
        return _Appended(results, pending_acks)

    def _answer(
        self,
        context: RequestContext,
        request: ProduceRequest,
        appended: _Appended,
        pending: PendingAnswer | None = None,
        *,
        denied: Sequence[PartitionResult] = (),
    ) -> list[Buffer] | PendingAnswer | None:
        """The response. `pending`: it is owed already. `denied`: of partitions that the sender may not write; they come
        last, as the positions of acknowledgements are those of `appended`."""
        results = [*appended.results, *denied] if denied else appended.results
        pending_acks = appended.pending_acks
        if request.acks == 0:
            if any(result.error_code for result in results):
                # acks=0 has no response that could carry the error, so the connection is closed, as in Kafka.
                failed = next(result for result in results if result.error_code)
                pending = pending or PendingAnswer()
                self._loop.call_soon(pending.fail, f"produce with acks=0 failed: {ErrorCode(failed.error_code).name}")
                return pending
            if pending is not None:
                pending.complete(None)
            return pending
        answer = self._hints.produce_response(context.listener, results)
        if context.throttle_ms:
            answer = replace(answer, throttle_ms=context.throttle_ms)
        frame = frame_of(ApiKey.PRODUCE, context, encode_response(context.api_version, answer))
        if pending_acks:
            return self.wait_for(pending_acks, context, frame, request.timeout_ms, pending)
        if pending is None:
            return frame
        pending.complete(frame)
        return pending

    def _handle_transactional(
        self,
        context: RequestContext,
        request: ProduceRequest,
        partitions: list[PartitionRecords],
        denied: Sequence[PartitionResult],
    ) -> list[Buffer] | PendingAnswer | None:
        try:
            opening = self._transactions.begin(request.transactional_id, context.api_version, partitions)
        except PeerError as error:
            self.metrics.failed_produce_partitions += len(partitions)
            results = [_failed(p, error.code, error.told) for p in partitions]
            return self._answer(context, request, _Appended(results, []), denied=denied)
        if opening is None or not opening.to_ask:
            guards = opening.guards if opening is not None else {}
            appended = self._append_all(context, request, partitions, guards)
            return self._answer(context, request, appended, denied=denied)
        verdicts = self._transactions.ask(opening)
        if isinstance(verdicts, dict):
            codes = self._transactions.codes(opening, partitions, verdicts)
            if codes is not None:
                appended = self._append_confirmed(context, request, partitions, opening, codes)
                return self._answer(context, request, appended, denied=denied)
        # The receive buffer is reused while the coordinator is asked.
        kept = [
            p._replace(records=memoryview(bytearray(p.records))) if p.records is not None else p for p in partitions
        ]
        pending = PendingAnswer()
        verifying = asyncio.ensure_future(self._verify(context, request, kept, denied, opening, verdicts, pending))
        self._verifying.add(verifying)
        verifying.add_done_callback(self._verifying.discard)
        return pending

    async def _verify(
        self,
        context: RequestContext,
        request: ProduceRequest,
        partitions: list[PartitionRecords],
        denied: Sequence[PartitionResult],
        opening: RequestGuards,
        verdicts: Verdicts | Awaitable[Verdicts],
        pending: PendingAnswer,
    ) -> None:
        """Wait for the transaction's coordinator, then append what it confirms."""
        try:
            codes = await self._transactions.await_codes(opening, partitions, verdicts)
            appended = self._append_confirmed(context, request, partitions, opening, codes)
            self._answer(context, request, appended, pending, denied=denied)
        except Exception:
            log.exception("transactional produce failed", peer=context.peer)
            pending.fail("internal error, see the previous log message")

    def _append_confirmed(
        self,
        context: RequestContext,
        request: ProduceRequest,
        partitions: list[PartitionRecords],
        opening: RequestGuards,
        codes: Codes,
    ) -> _Appended:
        """`codes`: of the partitions that the coordinator does not confirm."""
        refused = {
            position: _failed(partitions[position], *refusal(code, context.api_version))
            for position, code in {**opening.errors, **codes}.items()
        }
        self.metrics.failed_produce_partitions += len(refused)
        return self._append_all(context, request, partitions, opening.guards, refused)

    def wait_for(
        self,
        pending_acks: list[PendingAck],
        context: RequestContext,
        frame: list[Buffer],
        timeout_ms: int,
        pending: PendingAnswer | None = None,
    ) -> PendingAnswer:
        """The response in `frame`, once all of `pending_acks` is acknowledged. `pending`: it is owed already."""
        pending = pending or PendingAnswer(lets_follow=True)
        DelayedProduce(self._answers, context, frame, pending).wait_for(pending_acks, timeout_ms)
        return pending

    def _refuse_acks(self, partition: PartitionRecords, acks: int) -> PartitionResult:
        """The topic is looked up first, as in Kafka."""
        try:
            self.replicas.leader(partition.topic, partition.topic_id, partition.index)
        except PeerError as error:
            return _failed(partition, error.code, error.told)
        return _failed(partition, ErrorCode.INVALID_REQUIRED_ACKS, f"Invalid required acks: {acks}")

    def append(
        self,
        partition: PartitionRecords,
        version: int,
        acks: int,
        now_ms: int,
        internal_allowed: bool,
        position: int,
        pending_acks: list[PendingAck],
        *,
        guard: VerificationGuard | None = None,
    ) -> PartitionResult:
        """Append to one partition. `position`: in the response. Acknowledgements to wait for go to `pending_acks`.
        `guard`: of a batch that opens a transaction."""
        topic, topic_id, index, records = partition
        log_start_offset = -1
        try:
            replica = self.replicas.leader(topic, topic_id, index)
            leader = replica.leader
            assert leader is not None, "a leader without leader state"
            if replica.is_internal and not internal_allowed:
                raise PeerError(
                    ErrorCode.INVALID_TOPIC_EXCEPTION,
                    f"Clients may not write to the internal topic {replica.topic_partition.topic}",
                )
            log_start_offset = replica.log.log_start_offset
            if acks == -1 and not leader.has_enough_replicas(replica.config.min_insync_replicas):
                raise PeerError(
                    ErrorCode.NOT_ENOUGH_REPLICAS,
                    f"in-sync replicas: {len(leader.isr)}, min.insync.replicas: {replica.config.min_insync_replicas}",
                )
            if records is None:
                raise PeerError(ErrorCode.INVALID_RECORD, "The request contains no records for this partition")
            appended = replica.log.append_as_leader(
                records,
                leader_epoch=leader.leader_epoch,
                now_ms=now_ms,
                version=version,
                origin=Origin.CLIENT,
                guard=guard,
            )
        except RecordsError as error:
            self.metrics.failed_produce_partitions += 1
            told_start = -1 if error.is_framing or error.code in _WITHOUT_LOG_START else log_start_offset
            return _failed(partition, error.code, error.told, told_start)._replace(record_errors=error.record_errors)
        except StorageError as error:
            return self.refused(partition, replica, error)
        except PeerError as error:
            self.metrics.failed_produce_partitions += 1
            told_start = -1 if error.code in _WITHOUT_LOG_START else log_start_offset
            return _failed(partition, error.code, error.told, told_start)
        # A duplicate waits too: the flush of the first attempt may be in progress.
        if acks and replica.log.unflushed_messages >= replica.config.flush_messages:
            pending_acks.append(PendingAck(position, replica, replica.log.log_end_offset, AckedBy.DISK))
        if not appended.duplicate:
            replica.appended()
            self.metrics.produced_partitions += 1
            self.metrics.produced_bytes += appended.size_bytes
        if acks == -1:
            end_offset = appended.last_offset + 1
            if end_offset > replica.high_watermark:
                pending_acks.append(PendingAck(position, replica, end_offset, AckedBy.REPLICAS))
            elif not leader.had_enough_replicas(replica.config.min_insync_replicas):
                return _failed(partition, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, "")
        return PartitionResult(
            topic,
            topic_id,
            index,
            0,
            appended.base_offset,
            appended.log_append_time_ms,
            appended.log_start_offset,
        )

    def refused(self, partition: PartitionRecords, replica: Replica, error: StorageError) -> PartitionResult:
        """The append failed with a storage error."""
        self._rejected(replica.topic_partition, replica.log.log_end_offset, error)
        if partition.records is not None:
            replica.log.failed_batches.add(peek_header(partition.records), error, self.clock.now_ms())
        self.metrics.failed_produce_partitions += 1
        return _failed(partition, error.code, error.told)


def _failed(partition: PartitionRecords, code: ErrorCode, message: str, log_start_offset: int = -1) -> PartitionResult:
    return PartitionResult(
        partition.topic,
        partition.topic_id,
        partition.index,
        code,
        log_start_offset=log_start_offset,
        error_message=message or None,
    )


def _key(partition: PartitionRecords) -> tuple[str | bytes | None, int]:
    return partition.topic_id or partition.topic, partition.index


def _last_mentions(partitions: list[PartitionRecords]) -> list[PartitionRecords]:
    """If a request names a partition twice, the last mention counts, as in Kafka."""
    if len(partitions) < 2:
        return partitions
    by_key = {_key(p): p for p in partitions}
    return partitions if len(by_key) == len(partitions) else list(by_key.values())
