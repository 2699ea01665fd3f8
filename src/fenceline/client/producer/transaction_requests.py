"""The requests of a transaction, to its coordinator and to that of a consumer group, with retries.

Owns their versions, the lookup of the coordinators, and the translation of error codes into the exceptions of
`transaction_errors`. Holds no state of a transaction: the caller passes the producer id and epoch.

With transaction.version 2 (KIP-890) partitions are added by Produce and TxnOffsetCommit themselves, and EndTxn 5
returns the producer id and epoch of the next transaction. Below, partitions are added by requests of their own, and
newer versions of these APIs must not be used.

Rules: `transactions.md` X14, X15, X18, X30, X33, X54, X57.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple

from fenceline.client.core.cluster import Cluster, CoordinatorOf
from fenceline.client.core.deadline import Deadline
from fenceline.client.core.errors import COORDINATOR_MOVED, ConnectionLost, TimedOut, broker_error, error_code
from fenceline.client.core.group_requests import ConsumerGroupMetadata
from fenceline.client.core.offsets import CommittedOffset
from fenceline.client.producer.transaction_errors import Reaction, TransactionRequest, abortable, failed, reaction_to
from fenceline.errors import ErrorCode, PeerError
from fenceline.ids import TopicPartition
from fenceline.wire.apis import ApiKey

FEATURE: Final = "transaction.version"
_EPOCH_ON_END: Final = 5
"""The first version of EndTxn that begins a new epoch (KIP-890)."""
_OFFSETS_THAT_ADD: Final = 5
"""The first version of TxnOffsetCommit that adds the group's partition to the transaction."""
_WITH_MEMBER: Final = 3
"""The first version of TxnOffsetCommit with the member (KIP-447)."""
_EPOCH_IN_INIT: Final = 3
"""The first version of InitProducerId with which a producer asks for its next epoch (KIP-360)."""
_QUICK_PAUSES: Final = 10
_QUICK_PAUSE_S: Final = 0.02
"""The markers of the previous transaction are usually written within a few of these pauses (X55)."""


class ProducerIdAndEpoch(NamedTuple):
    """(-1, -1): none yet."""

    producer_id: int = -1
    epoch: int = -1


NO_PRODUCER: Final = ProducerIdAndEpoch()


class TransactionRequests:
    """The requests of one transactional id. Each raises TransactionAbortable, TransactionFailed (ProducerFenced among
    them), and TimedOut if retries reached the deadline: then the outcome of the last one is unknown.
    """

    def __init__(self, cluster: Cluster, transactional_id: str) -> None:
        self._cluster = cluster
        self._transactional_id = transactional_id

    def is_version_2(self) -> bool | None:
        """Whether the cluster has finalized transaction.version 2, as the newest connection knows it; None without a
        connection.
        """
        connection = self._cluster.newest_connection()
        if connection is None:
            return None
        has_level = connection.features.get(FEATURE, 0) >= 2
        return has_level and connection.max_version(ApiKey.END_TXN) >= _EPOCH_ON_END

    def can_ask_next_epoch(self) -> bool:
        """Whether a producer may ask for its next epoch (Kafka 2.5 and newer)."""
        connection = self._cluster.newest_connection()
        return connection is not None and connection.max_version(ApiKey.INIT_PRODUCER_ID) >= _EPOCH_IN_INIT

    async def init_producer(
        self, timeout_ms: int, deadline: Deadline, current: ProducerIdAndEpoch = NO_PRODUCER
    ) -> ProducerIdAndEpoch:
        """End the transaction that is open, if any, and get a producer id and epoch that fence former producers.

        `current`: of this producer, to get its next epoch: that fails if another producer has started meanwhile.
        """
        fields = {
            "transactional_id": self._transactional_id,
            "transaction_timeout": timeout_ms,
            "producer_id": current.producer_id,
            "producer_epoch": current.epoch,
        }
        is_bump = current.producer_id >= 0
        response = await self._ask(
            TransactionRequest.INIT_PRODUCER,
            ApiKey.INIT_PRODUCER_ID,
            fields,
            deadline,
            _one_code,
            min_version=_EPOCH_IN_INIT if is_bump else 0,
        )
        return ProducerIdAndEpoch(int(response.producer_id), int(response.producer_epoch))

    async def add_partitions(
        self, producer: ProducerIdAndEpoch, partitions: Collection[TopicPartition], deadline: Deadline
    ) -> None:
        """Add partitions below transaction.version 2."""
        grouped: dict[str, list[int]] = {}
        for tp in sorted(partitions):
            grouped.setdefault(tp.topic, []).append(tp.partition)
        fields = {
            "v3_and_below_transactional_id": self._transactional_id,
            "v3_and_below_producer_id": producer.producer_id,
            "v3_and_below_producer_epoch": producer.epoch,
            "v3_and_below_topics": [{"name": name, "partitions": indexes} for name, indexes in grouped.items()],
        }
        await self._ask(
            TransactionRequest.ADD_PARTITIONS, ApiKey.ADD_PARTITIONS_TO_TXN, fields, deadline, _codes_of_partitions
        )

    async def add_offsets(self, producer: ProducerIdAndEpoch, group_id: str, deadline: Deadline) -> None:
        """Add the group's partition of committed offsets below transaction.version 2."""
        fields = self._fields_of(producer) | {"group_id": group_id}
        await self._ask(TransactionRequest.ADD_OFFSETS, ApiKey.ADD_OFFSETS_TO_TXN, fields, deadline, _one_code)

    async def commit_offsets(
        self,
        producer: ProducerIdAndEpoch,
        group: ConsumerGroupMetadata,
        offsets: Mapping[TopicPartition, CommittedOffset],
        deadline: Deadline,
        *,
        is_version_2: bool,
    ) -> None:
        """Write offsets, with their leader epochs, that become visible if the transaction is committed."""
        by_topic: dict[str, list[dict[str, Any]]] = {}
        for tp, offset in offsets.items():
            by_topic.setdefault(tp.topic, []).append(
                {
                    "partition_index": tp.partition,
                    "committed_offset": offset.offset,
                    "committed_leader_epoch": offset.leader_epoch,
                    "committed_metadata": offset.metadata,
                }
            )
        fields = self._fields_of(producer) | {
            "group_id": group.group_id,
            "generation_id": group.generation_id,
            "member_id": group.member_id,
            "group_instance_id": group.group_instance_id,
            "topics": [{"name": name, "partitions": listed} for name, listed in by_topic.items()],
        }
        has_member = group.generation_id >= 0 or bool(group.member_id) or group.group_instance_id is not None
        await self._ask(
            TransactionRequest.COMMIT_OFFSETS,
            ApiKey.TXN_OFFSET_COMMIT,
            fields,
            deadline,
            _codes_of_offsets,
            group_id=group.group_id,
            min_version=_OFFSETS_THAT_ADD if is_version_2 else _WITH_MEMBER if has_member else 0,
            max_version=None if is_version_2 else _OFFSETS_THAT_ADD - 1,
        )

    async def end(
        self, producer: ProducerIdAndEpoch, deadline: Deadline, *, commit: bool, is_version_2: bool
    ) -> ProducerIdAndEpoch:
        """Commit or abort; can be repeated after TimedOut. Returns the next transaction's producer id and epoch."""
        response = await self._ask(
            TransactionRequest.COMMIT if commit else TransactionRequest.ABORT,
            ApiKey.END_TXN,
            self._fields_of(producer) | {"committed": commit},
            deadline,
            _one_code,
            min_version=_EPOCH_ON_END if is_version_2 else 0,
            max_version=None if is_version_2 else _EPOCH_ON_END - 1,
        )
        if not is_version_2:
            return producer
        return ProducerIdAndEpoch(int(response.producer_id), int(response.producer_epoch))

    def _fields_of(self, producer: ProducerIdAndEpoch) -> dict[str, Any]:
        return {
            "transactional_id": self._transactional_id,
            "producer_id": producer.producer_id,
            "producer_epoch": producer.epoch,
        }

    # -- inside

    async def _ask(
        self,
        request: TransactionRequest,
        api_key: ApiKey,
        fields: dict[str, Any],
        deadline: Deadline,
        codes: Callable[[Any], Iterable[tuple[str, ErrorCode]]],
        *,
        group_id: str | None = None,
        min_version: int = 0,
        max_version: int | None = None,
    ) -> Any:
        """Send the request to the coordinator of the transactional id, or to that of `group_id`, until it succeeds.

        `codes`: what the response's error codes are about, with the codes.
        """
        of = CoordinatorOf.TRANSACTION if group_id is None else CoordinatorOf.GROUP
        key = self._transactional_id if group_id is None else group_id
        busy = 0
        while True:
            asked = TransactionRequest.FIND_COORDINATOR
            try:
                node_id = await self._cluster.coordinator(key, deadline, of)
                asked = request
                response = await self._cluster.call(
                    node_id, api_key, fields, deadline=deadline, min_version=min_version, max_version=max_version
                )
                self._raise_worst(request, codes(response))
                return response
            except PeerError as error:
                reaction = reaction_to(asked, error.code)
                if reaction is Reaction.ABORT:
                    raise abortable(error) from error
                if reaction is Reaction.FAIL:
                    raise failed(error) from error
                if not (isinstance(error, TimedOut) and deadline.is_over):
                    deadline.last_error = error
                if error.code in COORDINATOR_MOVED or isinstance(error, ConnectionLost | TimedOut):
                    self._cluster.forget_coordinator(key, of)
                if isinstance(error, ConnectionLost | TimedOut):
                    self._cluster.request_refresh()
                is_busy = error.code is ErrorCode.CONCURRENT_TRANSACTIONS
            if deadline.is_over:
                timed_out = self._cluster.timeout_error(deadline)
                raise timed_out from timed_out.__cause__
            busy = busy + 1 if is_busy else 0
            if 0 < busy <= _QUICK_PAUSES:
                await asyncio.sleep(min(_QUICK_PAUSE_S, deadline.left_ms / 1000))
            else:
                await self._cluster.pause(deadline)

    def _raise_worst(self, request: TransactionRequest, codes: Iterable[tuple[str, ErrorCode]]) -> None:
        """Raise for the code with the strongest reaction."""
        order = (Reaction.FAIL, Reaction.ABORT, Reaction.RETRY)
        found = [
            (order.index(reaction_to(request, code)), about, code)
            for about, code in codes
            # The coordinator did not look at this one because of the error of another.
            if code not in (ErrorCode.NONE, ErrorCode.OPERATION_NOT_ATTEMPTED)
        ]
        if found:
            _, about, code = min(found, key=lambda each: each[0])
            where = f" of {about}" if about else ""
            raise broker_error(code, f"{request.value}{where} for transactional.id {self._transactional_id}")


def _one_code(response: Any) -> Iterable[tuple[str, ErrorCode]]:
    return [("", error_code(response.error_code))]


def _codes_of_partitions(response: Any) -> Iterable[tuple[str, ErrorCode]]:
    return [
        (f"{topic.name}-{partition.partition_index}", error_code(partition.partition_error_code))
        for topic in response.results_by_topic_v3_and_below
        for partition in topic.results_by_partition
    ]


def _codes_of_offsets(response: Any) -> Iterable[tuple[str, ErrorCode]]:
    return [
        (f"{topic.name}-{partition.partition_index}", error_code(partition.error_code))
        for topic in response.topics
        for partition in topic.partitions
    ]
