"""Two peers that get the same requests: Apache Kafka on a socket, and our handlers behind the same bytes.

`Session` runs a script against one side and records the responses, with all values that may differ by chance
(member ids, topic ids, ports, order where the protocol defines none) replaced by names.
"""

from __future__ import annotations

import asyncio
import re
import struct
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from enum import IntEnum
from random import Random
from typing import Any, Protocol
from uuid import UUID

from immutables import Map

from fenceline.groups.settings import GroupSettings
from fenceline.ids import CONSUMER_OFFSETS_TOPIC, TopicPartition
from fenceline.metadata.features import GROUP_VERSION
from fenceline.metadata.image import EMPTY_IMAGE, Endpoint, MetadataImage, PartitionImage, TopicImage
from fenceline.node.api.handlers import consumer_groups, find_coordinator, group_membership, group_offsets, groups
from fenceline.node.clock import SystemClock
from fenceline.node.context import NodeView, RequestContext
from fenceline.node.coordination.loading import Batches
from fenceline.node.groups.driver import GroupsDriver
from fenceline.records.build import build_batch
from fenceline.records.decode import decode_all
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import read_request, read_response, unknown_fields, write_request, write_response
from fenceline.wire.frame import encode_request_frame, parse_response_header
from tests.node.api.handlers.fakes import broker_image

Seen = dict[str, Any]


class Peer(Protocol):
    topic_ids: dict[str, UUID]

    async def call(self, client: str, api: ApiKey, version: int, fields: Seen) -> Any:
        """Send one request as this client and return the response's entity."""
        ...


class SocketPeer:
    """A broker behind a port; one connection per client."""

    def __init__(self, port: int) -> None:
        self.topic_ids: dict[str, UUID] = {}
        self._port = port
        self._connections: dict[str, tuple[asyncio.StreamReader, asyncio.StreamWriter]] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._correlation_id = 0

    async def call(self, client: str, api: ApiKey, version: int, fields: Seen) -> Any:
        async with self._locks.setdefault(client, asyncio.Lock()):
            if client not in self._connections:
                self._connections[client] = await asyncio.open_connection("127.0.0.1", self._port)
            reader, writer = self._connections[client]
            self._correlation_id += 1
            body = write_request(api, version, fields)
            for part in encode_request_frame(api, version, self._correlation_id, client, body):
                writer.write(part)
            (size,) = struct.unpack(">i", await asyncio.wait_for(reader.readexactly(4), 60))
            frame = await reader.readexactly(size)
            _, position = parse_response_header(api, version, frame)
            return read_response(api, version, frame[position:])

    async def prepare(self, topics: Iterable[str], partitions: int) -> None:
        """Create the topics and wait until the group coordinator is available."""
        wanted = [{"name": name, "num_partitions": partitions, "replication_factor": 1} for name in topics]
        await self.call("setup", ApiKey.CREATE_TOPICS, 7, {"topics": wanted, "timeout": 20_000})
        for _ in range(400):
            found = await self.call("setup", ApiKey.FIND_COORDINATOR, 3, {"key": "g", "key_type": 0})
            described = await self.call("setup", ApiKey.DESCRIBE_GROUPS, 5, {"groups": [f"w{n}" for n in range(500)]})
            if not found.error_code and not any(group.error_code for group in described.groups):
                break
            await asyncio.sleep(0.05)
        else:
            raise AssertionError("the coordinator of groups does not come up")
        metadata = await self.call(
            "setup", ApiKey.METADATA, 12, {"topics": [{"topic_id": None, "name": name} for name in topics]}
        )
        self.topic_ids = {topic.name: topic.topic_id for topic in metadata.topics}

    def close(self) -> None:
        for _, writer in self._connections.values():
            writer.close()


class MemoryLog:
    """`__consumer_offsets` as batches in memory."""

    def __init__(self) -> None:
        self.batches: dict[int, bytearray] = {}
        self._ends: dict[int, int] = {}

    def append(
        self, topic_partition: TopicPartition, leader_epoch: int, records: list[tuple[bytes | None, bytes | None]]
    ) -> int:
        assert topic_partition.topic == CONSUMER_OFFSETS_TOPIC
        partition = topic_partition.partition
        base = self._ends.get(partition, 0)
        batch = build_batch([(0, key, value, ()) for key, value in records], base_offset=base, leader_epoch=0)
        self.batches.setdefault(partition, bytearray()).extend(batch)
        self._ends[partition] = base + len(records)
        return base

    def read(self, topic_partition: TopicPartition, leader_epoch: int) -> Batches:
        return decode_all(bytes(self.batches.get(topic_partition.partition, b"")))

    def when_committed(self, topic_partition: TopicPartition, leader_epoch: int) -> None:
        return None

    def records(self) -> list[tuple[bytes | None, bytes | None]]:
        return [
            (record.key, record.value)
            for _, batch in sorted(self.batches.items())
            for _, records in decode_all(bytes(batch))
            for record in records
        ]


def peer_image(topics: Iterable[str], partitions: int, topic_ids: Mapping[str, UUID] | None = None) -> MetadataImage:
    """Metadata of one broker with these topics, with the given or with generated ids."""
    known = topic_ids or {}
    images = {
        name: TopicImage(known.get(name, UUID(int=10 + n)), name, (PartitionImage((1,), (1,), 1),) * partitions)
        for n, name in enumerate(topics)
    }
    images[CONSUMER_OFFSETS_TOPIC] = TopicImage(
        UUID(int=1), CONSUMER_OFFSETS_TOPIC, (PartitionImage((1,), (1,), 1),) * 50
    )
    return replace(
        EMPTY_IMAGE,
        offset=1,
        topics_by_name=Map(images),
        topics_by_id=Map({topic.id: topic for topic in images.values()}),
        brokers=Map({1: broker_image(1, endpoints=(Endpoint("PLAINTEXT", "127.0.0.1", 9092, 0),))}),
        features=Map({GROUP_VERSION: 1}),
    )


class HandlerPeer:
    """Our handlers on a broker that has only an image and a coordinator; bytes in, bytes out. Needs a running loop."""

    def __init__(
        self,
        topics: Sequence[str],
        partitions: int,
        settings: GroupSettings,
        topic_ids: Mapping[str, UUID] | None = None,
    ) -> None:
        image = peer_image(topics, partitions, topic_ids)
        self.topic_ids = {name: image.topics_by_name[name].id for name in topics}
        self.log = MemoryLog()
        self.driver = GroupsDriver(self.log, SystemClock(), settings=settings, rng=Random(1), image=lambda: image)
        for partition in range(50):
            self.driver.on_leader(partition, 0)
        missing: Any = None
        node = NodeView(1, "", missing, lambda: image)
        apis = (
            *find_coordinator.apis(node, missing, missing),
            *group_membership.apis(self.driver),
            *group_offsets.apis(node, self.driver),
            *groups.apis(self.driver),
            *consumer_groups.apis(node, self.driver),
        )
        self._apis = {api.key: api for api in apis}

    async def call(self, client: str, api: ApiKey, version: int, fields: Seen) -> Any:
        registered = self._apis[api]
        assert registered.min_version <= version <= registered.max_version
        request = read_request(api, version, write_request(api, version, fields))
        context = RequestContext(version, 1, client, "127.0.0.1:1", "127.0.0.1", "PLAINTEXT")
        answer = registered.handler(context, request)
        ready: Any = await answer if isinstance(answer, Awaitable) else answer
        assert not unknown_fields(api, ready), "every field returned by a handler is in the schema"
        return read_response(api, version, write_response(api, version, ready))

    def close(self) -> None:
        self.driver.close()


_MEMBER_ID = re.compile(r"^(.*)-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$")
_ATTEMPTS = 20
_BY_CHANCE = frozenset({"throttle_time", "port", "node_id"})


class Session:
    """One run of a script against one side."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.seen: list[Any] = []
        self._names: dict[str, str] = {}

    async def ask(self, api: ApiKey, version: int, *, client: str = "c", note: str = "", **fields: Any) -> Any:
        """Send a request, record the response under its note, and return the entity."""
        answer = await self.peer.call(client, api, version, fields)
        self.seen.append((note or api.name, version, self.plain(answer)))
        return answer

    async def until(self, attempt: Callable[[int], Awaitable[bool]]) -> None:
        """Repeat a script that depends on the order in which two connections are served until it had that order.

        Responses of the other attempts are dropped. `attempt` gets its number, for its own group.
        """
        for number in range(_ATTEMPTS):
            seen, names = len(self.seen), dict(self._names)
            if await attempt(number):
                return
            del self.seen[seen:]
            self._names = names
        raise AssertionError(f"not in {_ATTEMPTS} attempts")

    def start(self, api: ApiKey, version: int, *, client: str = "c", **fields: Any) -> asyncio.Task[Any]:
        """Send a request that may be parked. Its response is recorded by `result`."""
        return asyncio.ensure_future(self.peer.call(client, api, version, fields))

    async def result(self, task: asyncio.Task[Any], note: str) -> Any:
        answer = await asyncio.wait_for(task, 60)
        self.seen.append((note, self.plain(answer)))
        return answer

    def plain(self, value: Any) -> Any:
        """An entity as dictionaries, with names for values that differ by chance."""
        if isinstance(value, UUID):
            known = {topic_id: name for name, topic_id in self.peer.topic_ids.items()}
            return f"id of {known.get(value, value)}"
        if isinstance(value, str):
            match = _MEMBER_ID.match(value)
            return value if match is None else self._names.setdefault(value, f"{match[1]}#{len(self._names)}")
        if isinstance(value, IntEnum):
            return value.name
        if isinstance(value, timedelta) or value is None or isinstance(value, int | bytes | float):
            return value
        if isinstance(value, memoryview):
            return bytes(value)
        if isinstance(value, tuple | list):
            return sorted((self.plain(each) for each in value), key=repr)
        return {name: self.plain(getattr(value, name)) for name in value.__slots__ if name not in _BY_CHANCE}
