"""A scripted leader on a socket, and a follower of it: real fetchers over real logs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final
from uuid import UUID

from fenceline.ids import TopicPartition
from fenceline.log.core.config import LogConfig
from fenceline.log.partition.partition_log import PartitionLog
from fenceline.losses.cutting import LogCut
from fenceline.metadata.image import Endpoint
from fenceline.node.clock import SystemClock
from fenceline.node.replication.replica import Replica
from fenceline.node.replication.replica_fetchers import ReplicaFetchers
from fenceline.records.build import build_batch
from fenceline.replica.fetcher import FetchLimits
from fenceline.testing.sim_disk import SimDisk
from fenceline.wire import entities
from fenceline.wire.apis import ApiKey
from fenceline.wire.fetch import (
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    encode_response,
    parse_request,
)
from fenceline.wire.frame import parse_request_header

LEADER: Final = 2
EPOCH: Final = 5
TOPIC: Final = "rain"
TOPIC_ID: Final = UUID(int=7)
LIMITS: Final = FetchLimits(max_wait_ms=500, min_bytes=1, max_bytes=1 << 20, partition_max_bytes=1 << 20, backoff_ms=30)
_WAIT_S: Final = 60
_VERSIONS: Final = {ApiKey.FETCH: (13, 17), ApiKey.LIST_OFFSETS: (8, 10)}


def batch(offset: int, records: int = 1, epoch: int = EPOCH) -> bytes:
    return bytes(build_batch([(offset, b"k", b"v", ())] * records, base_offset=offset, leader_epoch=epoch))


class Leader:
    """`log`: the correct answers, batches of one record. `wrong(asked)`: the answer it sends instead."""

    def __init__(self, ends: dict[int, int]) -> None:
        self.ends = ends
        self.wrong: Callable[[FetchPartition], FetchedPartition | None] = lambda asked: None
        self.error = 0
        """Of the whole answer."""
        self.offsets: Callable[[str, int, int], list[dict[str, Any]]] = self._offsets
        self.asked: list[FetchRequest] = []
        self.port = 0

    def _offsets(self, topic: str, index: int, timestamp: int) -> list[dict[str, Any]]:
        offset = self.ends[index] if timestamp == -1 else 0
        return [{"partition_index": index, "error_code": 0, "timestamp": -1, "offset": offset, "leader_epoch": EPOCH}]

    async def serve(self) -> asyncio.Server:
        server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        return server

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                frame = memoryview(await reader.readexactly(size))
                header = parse_request_header(frame)
                body = frame[header.body_position :]
                answer = header.correlation_id.to_bytes(4, "big")
                if header.api_key == ApiKey.FETCH:
                    answer += b"\0" + await self._fetch(header.api_version, parse_request(header.api_version, body))
                elif header.api_key == ApiKey.LIST_OFFSETS:
                    asked = entities.read_request(ApiKey.LIST_OFFSETS, header.api_version, body)
                    topics = [
                        {"name": topic.name, "partitions": self.offsets(topic.name, p.partition_index, p.timestamp)}
                        for topic in asked.topics
                        for p in topic.partitions
                    ]
                    answer += b"\0" + entities.write_response(
                        ApiKey.LIST_OFFSETS, header.api_version, {"topics": topics}
                    )
                else:
                    keys = [
                        {"api_key": key, "min_version": low, "max_version": high}
                        for key, (low, high) in _VERSIONS.items()
                    ]
                    answer += entities.write_response(
                        ApiKey.API_VERSIONS, header.api_version, {"error_code": 0, "api_keys": keys}
                    )
                writer.write(len(answer).to_bytes(4, "big") + answer)
        writer.close()

    async def _fetch(self, version: int, request: FetchRequest) -> bytes:
        self.asked.append(request)
        fetched = [self.wrong(asked) or self._right(asked) for asked in request.partitions]
        if not any(each.records or each.error_code or each.diverging_epoch for each in fetched):
            await asyncio.sleep(0.01)  # a leader with nothing to report holds the fetch
        return b"".join(bytes(each) for each in encode_response(version, FetchResponse(fetched, error_code=self.error)))

    def _right(self, asked: FetchPartition) -> FetchedPartition:
        end = self.ends[asked.index]
        records = b"".join(batch(offset) for offset in range(asked.fetch_offset, min(end, asked.fetch_offset + 2)))
        return response_for(asked, high_watermark=end, records=records)


def response_for(asked: FetchPartition, **fields: Any) -> FetchedPartition:
    """An answer for one partition."""
    given: dict[str, Any] = {"error_code": 0, "high_watermark": 0, "log_start_offset": 0, "records": b""}
    return FetchedPartition(asked.topic, asked.topic_id, asked.index, **(given | fields))


class Host:
    """Broker 1. Truncations are applied directly."""

    node_id, broker_epoch = 1, 100

    def __init__(self, leader: Leader) -> None:
        self._leader = leader
        self.failures: list[tuple[TopicPartition, Any]] = []
        self.cuts: list[LogCut] = []

    def replication_endpoint(self, node_id: int) -> Endpoint:
        return Endpoint("PLAINTEXT", "127.0.0.1", self._leader.port, 0)

    def storage_failed(self, replica: Replica, error: Any) -> None:
        self.failures.append((replica.topic_partition, error))

    def cut_log(self, replica: Replica, cut: LogCut) -> None:
        self.cuts.append(cut)
        if cut.truncates_fully:
            replica.log.truncate_fully_and_start_at(cut.offset)
        else:
            replica.log.truncate_to(cut.offset)

    async def checkpoint(self) -> None:
        pass

    def cut_ended(self, replica: Replica) -> None:
        pass


class Follower:
    """A follower of all partitions of the leader, on one disk."""

    def __init__(self, leader: Leader, disk: SimDisk | None = None) -> None:
        self.leader = leader
        self.disk = disk or SimDisk()
        self.disk.mkdir("/data")
        self.host = Host(leader)
        self._threads = ThreadPoolExecutor(1)
        clock = SystemClock()
        self.fetchers = ReplicaFetchers(self.host, clock, self._threads, LIMITS, answer_timeout_ms=1000 * _WAIT_S)
        self.replicas: dict[int, Replica] = {}
        for index in leader.ends:
            where = TopicPartition(TOPIC, index)
            log = PartitionLog.open(
                self.disk,
                f"/data/{TOPIC}-{index}",
                topic_partition=where,
                topic_id=TOPIC_ID,
                config=LogConfig(),
                now_ms=0,
            )
            self.replicas[index] = Replica(where, TOPIC_ID, log, LogConfig(), clock)

    def follow(self) -> None:
        for replica in self.replicas.values():
            replica.leader_epoch = EPOCH
            self.fetchers.follow(replica, LEADER, EPOCH)

    def end(self, index: int) -> int:
        return self.replicas[index].log.log_end_offset

    def phase_of(self, index: int) -> Any:
        (link,) = self.fetchers._links.values()
        return link.fetcher.states[TOPIC_ID.bytes, index].phase

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(_WAIT_S):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.002)

    async def close(self) -> None:
        await self.fetchers.close()
        self._threads.shutdown()


def play_story(
    leader: Leader, story: Callable[[Follower], Coroutine[Any, Any, None]], disk: SimDisk | None = None
) -> None:
    async def whole() -> None:
        server = await leader.serve()
        follower = Follower(leader, disk)
        try:
            await story(follower)
        finally:
            await follower.close()
            server.close()

    asyncio.run(whole())
