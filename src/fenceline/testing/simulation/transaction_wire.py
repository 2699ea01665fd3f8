"""Requests of simulated transactional clients to brokers, encoded in the Kafka protocol.

Owns one function for each API of transactions, with the coordinators as the client knows them. After a
`ConnectionError` the outcome of the request is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from fenceline.errors import ErrorCode
from fenceline.testing.simulation.brokers_wire import PartitionInfo, Wire
from fenceline.wire import fetch, produce
from fenceline.wire.apis import ApiKey
from fenceline.wire.fetch import FetchedPartition, FetchPartition, FetchRequest
from fenceline.wire.produce import PartitionRecords, PartitionResult, ProduceRequest

_GROUP: Final = 0
_TRANSACTION: Final = 1
_READ_COMMITTED: Final = 1
_FETCH: Final = 16


class ClientVersions(NamedTuple):
    """Of the APIs: a client of transaction version 1 adds partitions itself, one of version 2 does not (KIP-890)."""

    init_producer: int
    produce: int
    end: int
    commit_offsets: int
    adds_partitions: bool


TRANSACTION_V1: Final = ClientVersions(4, 11, 4, 3, adds_partitions=True)
TRANSACTION_V2: Final = ClientVersions(5, 13, 5, 5, adds_partitions=False)


class Identity(NamedTuple):
    """What a producer with a transactional id was given."""

    transactional_id: str
    producer_id: int
    epoch: int


class TransactionWire(Wire):
    """See the module."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._coordinators: dict[tuple[int, str], int] = {}

    async def _to_coordinator(
        self, kind: int, name: str, ask_at: int, key: ApiKey, version: int, fields: Mapping[str, Any]
    ) -> Any:
        """The response of the coordinator of a group or id; None if there is none now. `ask_at`: the broker that is
        asked where it is. Raises ConnectionError."""
        found = self._coordinators.get((kind, name), -1)
        if found < 0:
            wanted = {"key_type": kind, "coordinator_keys": [name]}
            answer = (await self.call(ask_at, ApiKey.FIND_COORDINATOR, 4, wanted)).coordinators[0]
            if answer.error_code:
                return None
            found = self._coordinators[kind, name] = int(answer.node_id)
        try:
            return await self.call(found, key, version, fields)
        except ConnectionError:
            self.drop(found)
            self.forget_coordinators()
            raise

    def forget_coordinators(self) -> None:
        """They are looked for again."""
        self._coordinators.clear()

    async def init_producer(
        self, ask_at: int, versions: ClientVersions, transactional_id: str, timeout_ms: int, before: Identity | None
    ) -> tuple[int, Identity]:
        """(error code, identity). `before`: the identity that it has, to raise its epoch."""
        fields = {
            "transactional_id": transactional_id,
            "transaction_timeout": timeout_ms,
            "producer_id": before.producer_id if before is not None else -1,
            "producer_epoch": before.epoch if before is not None else -1,
        }
        answer = await self._to_coordinator(
            _TRANSACTION, transactional_id, ask_at, ApiKey.INIT_PRODUCER_ID, versions.init_producer, fields
        )
        if answer is None:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, Identity(transactional_id, -1, -1)
        return int(answer.error_code), Identity(transactional_id, answer.producer_id, answer.producer_epoch)

    async def add_partition(self, ask_at: int, identity: Identity, place: PartitionInfo) -> int:
        fields = {
            "v3_and_below_transactional_id": identity.transactional_id,
            "v3_and_below_producer_id": identity.producer_id,
            "v3_and_below_producer_epoch": identity.epoch,
            "v3_and_below_topics": [{"name": place.topic, "partitions": [place.index]}],
        }
        answer = await self._to_coordinator(
            _TRANSACTION, identity.transactional_id, ask_at, ApiKey.ADD_PARTITIONS_TO_TXN, 3, fields
        )
        if answer is None:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return int(answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code)

    async def add_offsets(self, ask_at: int, identity: Identity, group: str) -> int:
        fields = {
            "transactional_id": identity.transactional_id,
            "producer_id": identity.producer_id,
            "producer_epoch": identity.epoch,
            "group_id": group,
        }
        answer = await self._to_coordinator(
            _TRANSACTION, identity.transactional_id, ask_at, ApiKey.ADD_OFFSETS_TO_TXN, 3, fields
        )
        return int(answer.error_code) if answer is not None else ErrorCode.COORDINATOR_NOT_AVAILABLE

    async def produce_in_transaction(
        self, versions: ClientVersions, identity: Identity, place: PartitionInfo, batch: bytes, timeout_ms: int
    ) -> PartitionResult:
        by_name = versions.produce < produce.FIRST_WITH_TOPIC_IDS
        records = PartitionRecords(
            place.topic if by_name else None,
            None if by_name else place.topic_id.bytes,
            place.index,
            memoryview(batch),
        )
        request = ProduceRequest(identity.transactional_id, -1, timeout_ms, [records])
        body = produce.encode_request(versions.produce, request)
        answer = await self.post(place.leader, ApiKey.PRODUCE, versions.produce, body)
        return produce.parse_response(versions.produce, answer).results[0]

    async def commit_position(
        self, ask_at: int, versions: ClientVersions, identity: Identity, group: str, place: PartitionInfo, offset: int
    ) -> int:
        partition = {
            "partition_index": place.index,
            "committed_offset": offset,
            "committed_leader_epoch": -1,
            "committed_metadata": "",
        }
        fields = {
            "transactional_id": identity.transactional_id,
            "group_id": group,
            "producer_id": identity.producer_id,
            "producer_epoch": identity.epoch,
            "generation_id": -1,
            "member_id": "",
            "group_instance_id": None,
            "topics": [{"name": place.topic, "partitions": [partition]}],
        }
        answer = await self._to_coordinator(
            _GROUP, group, ask_at, ApiKey.TXN_OFFSET_COMMIT, versions.commit_offsets, fields
        )
        if answer is None:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return int(answer.topics[0].partitions[0].error_code)

    async def stable_position(self, ask_at: int, group: str, place: PartitionInfo) -> tuple[int, int]:
        """(error code, committed offset), without offsets of undecided transactions."""
        wanted = {"topic_id": place.topic_id, "partition_indexes": [place.index]}
        asked = {"group_id": group, "member_id": None, "member_epoch": -1, "topics": [wanted]}
        fields = {"groups": [asked], "require_stable": True}
        answer = await self._to_coordinator(_GROUP, group, ask_at, ApiKey.OFFSET_FETCH, 10, fields)
        if answer is None:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, -1
        found = answer.groups[0]
        if found.error_code:
            return int(found.error_code), -1
        partition = found.topics[0].partitions[0]
        return int(partition.error_code), int(partition.committed_offset)

    async def end(
        self, ask_at: int, versions: ClientVersions, identity: Identity, *, commit: bool
    ) -> tuple[int, Identity]:
        """(error code, the identity for the next transaction)."""
        fields = {
            "transactional_id": identity.transactional_id,
            "producer_id": identity.producer_id,
            "producer_epoch": identity.epoch,
            "committed": commit,
        }
        answer = await self._to_coordinator(
            _TRANSACTION, identity.transactional_id, ask_at, ApiKey.END_TXN, versions.end, fields
        )
        if answer is None:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, identity
        if answer.error_code or versions.end < TRANSACTION_V2.end:
            return int(answer.error_code), identity
        return 0, Identity(identity.transactional_id, answer.producer_id, answer.producer_epoch)

    async def fetch_committed(self, place: PartitionInfo, offset: int, max_wait_ms: int) -> FetchedPartition | None:
        """A fetch of READ_COMMITTED. None: the response does not contain the partition."""
        wanted = FetchPartition(None, place.topic_id.bytes, place.index, offset, 1 << 20, place.epoch, -1)
        request = FetchRequest(None, -1, -1, max_wait_ms, 1, 1 << 20, _READ_COMMITTED, 0, -1, [wanted], [], "")
        body = fetch.encode_request(_FETCH, request)
        answer = await self.post(place.leader, ApiKey.FETCH, _FETCH, body)
        response = fetch.parse_response(_FETCH, answer)
        return response.partitions[0] if response.partitions else None
