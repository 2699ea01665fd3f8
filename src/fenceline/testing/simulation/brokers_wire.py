"""Requests of simulated clients to brokers, encoded in the Kafka protocol.

Owns the connections of one client, the leaders of partitions as it knows them, and one function for each API. After a
`ConnectionError` the outcome of the request is unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any, Final, NamedTuple
from uuid import UUID

from fenceline.node.net.peer_connection import PeerConnection, open_peer
from fenceline.testing.simulation.brokers_node import DATA_PORT
from fenceline.testing.simulation.sockets import Sockets, machine_of
from fenceline.testing.simulation.world import World
from fenceline.wire import fetch, produce
from fenceline.wire.apis import ApiKey
from fenceline.wire.fetch import FetchedPartition, FetchPartition, FetchRequest
from fenceline.wire.produce import PartitionRecords, PartitionResult, ProduceRequest

REQUEST_S: Final = 3.0
LATEST: Final = -1
EARLIEST: Final = -2
_PRODUCE: Final = 13
_FETCH: Final = 16
_FETCH_WITHOUT_EPOCHS: Final = 10
"""From version 11 on followers serve as well (E3), and a client without epochs cannot detect that it read from one."""


class PartitionInfo(NamedTuple):
    """A partition as a client knows it. `leader` -1: there is none."""

    topic: str
    topic_id: UUID
    index: int  # type: ignore[assignment]  # hides tuple.index, which is not used
    leader: int
    epoch: int

    @property
    def key(self) -> tuple[bytes, int]:
        return self.topic_id.bytes, self.index


class Wire:
    """The connections of one client. `number` is negative."""

    def __init__(self, world: World, sockets: Sockets, number: int) -> None:
        self._loop = world.loop
        self._sockets = sockets.of(number)
        self._client_id = f"c{-number}"
        self._connections: dict[int, PeerConnection] = {}

    async def _connection(self, node_id: int) -> PeerConnection:
        known = self._connections.get(node_id)
        if known is not None and known.is_open:
            return known
        opened = await open_peer(
            machine_of(node_id),
            DATA_PORT,
            client_id=self._client_id,
            connect=partial(self._sockets.connect, self._loop),
        )
        self._connections[node_id] = opened
        return opened

    def drop(self, node_id: int) -> None:
        known = self._connections.pop(node_id, None)
        if known is not None:
            known.close()

    async def call(self, node_id: int, key: ApiKey, version: int, fields: Mapping[str, Any]) -> Any:
        """The response. Raises ConnectionError."""
        connection = await self._connection(node_id)
        return await connection.call(key, version, fields, REQUEST_S)

    async def post(self, node_id: int, key: ApiKey, version: int, body: Any) -> memoryview:
        connection = await self._connection(node_id)
        answer = connection.post(key, version, body)
        try:
            async with asyncio.timeout(REQUEST_S):
                return await answer
        except TimeoutError:
            self.drop(node_id)
            raise ConnectionError("no response in time") from None

    # -- APIs ----------------------------------------------------------------------------------------------------------

    async def metadata(self, node_id: int) -> list[PartitionInfo]:
        """Sorted by topic name: brokers return them in the order of a hash table."""
        fields = {"topics": None, "allow_auto_topic_creation": False}
        answer = await self.call(node_id, ApiKey.METADATA, 12, fields)
        return [
            PartitionInfo(topic.name, topic.topic_id, each.partition_index, each.leader_id, each.leader_epoch)
            for topic in sorted(answer.topics, key=lambda topic: str(topic.name))
            if not topic.error_code and not topic.is_internal and not topic.name.startswith("__")
            for each in topic.partitions
        ]

    async def produce(self, place: PartitionInfo, acks: int, batch: bytes, timeout_ms: int) -> PartitionResult:
        records = PartitionRecords(None, place.topic_id.bytes, place.index, memoryview(batch))
        body = produce.encode_request(_PRODUCE, ProduceRequest(None, acks, timeout_ms, [records]))
        answer = await self.post(place.leader, ApiKey.PRODUCE, _PRODUCE, body)
        return produce.parse_response(_PRODUCE, answer).results[0]

    async def fetch(
        self, place: PartitionInfo, offset: int, *, last_epoch: int, max_wait_ms: int, with_epochs: bool
    ) -> FetchedPartition | None:
        """None: the response does not contain the partition."""
        version = _FETCH if with_epochs else _FETCH_WITHOUT_EPOCHS
        wanted = FetchPartition(
            None if with_epochs else place.topic,
            place.topic_id.bytes if with_epochs else None,
            place.index,
            offset,
            1 << 20,
            place.epoch if with_epochs else -1,
            last_epoch if with_epochs else -1,
        )
        request = FetchRequest(None, -1, -1, max_wait_ms, 1, 1 << 20, 0, 0, -1, [wanted], [], "")
        body = fetch.encode_request(version, request)
        answer = await self.post(place.leader, ApiKey.FETCH, version, body)
        response = fetch.parse_response(version, answer)
        return response.partitions[0] if response.partitions else None

    async def list_offset(self, place: PartitionInfo, timestamp: int) -> tuple[int, int, int]:
        """(error code, offset, leader epoch)."""
        partition = {"partition_index": place.index, "current_leader_epoch": place.epoch, "timestamp": timestamp}
        fields = {
            "replica_id": -1,
            "isolation_level": 0,
            "topics": [{"name": place.topic, "partitions": [partition]}],
        }
        found = (await self.call(place.leader, ApiKey.LIST_OFFSETS, 7, fields)).topics[0].partitions[0]
        return int(found.error_code), int(found.offset), int(found.leader_epoch)

    async def end_of_epoch(self, place: PartitionInfo, epoch: int) -> tuple[int, int, int]:
        """(error code, epoch, its end offset)."""
        partition = {"partition": place.index, "current_leader_epoch": place.epoch, "leader_epoch": epoch}
        fields = {"replica_id": -1, "topics": [{"topic": place.topic, "partitions": [partition]}]}
        answer = await self.call(place.leader, ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, fields)
        found = answer.topics[0].partitions[0]
        return int(found.error_code), int(found.leader_epoch), int(found.end_offset)

    async def new_producer(self, node_id: int) -> tuple[int, int]:
        """Producer id and epoch; -1 after an error."""
        fields = {"transactional_id": None, "transaction_timeout": 60000}
        answer = await self.call(node_id, ApiKey.INIT_PRODUCER_ID, 4, fields)
        return (-1, -1) if answer.error_code else (answer.producer_id, answer.producer_epoch)
