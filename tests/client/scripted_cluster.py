"""An in-memory cluster under a test's control: elections, truncations, rejections, lost responses, old versions.

Speaks the real protocol over real sockets, so the client under test needs no seams. Its leaders check producers'
sequences as Kafka's do and keep an epoch cache by `epochs.md` E13-E17, so a client's mistake is visible in the log.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

from fenceline.errors import ErrorCode
from fenceline.ids import TopicPartition
from fenceline.records.batch import assign_in_place, check_crc, iter_headers, read_header
from fenceline.records.decode import decode_batch
from fenceline.wire import entities, fetch, frame, produce
from fenceline.wire.apis import ApiKey

HANG_UP = object()
"""A fault: the request is carried out, its answer is lost with the connection."""
SILENT = object()
"""A fault: the request is carried out, and never answered."""
REFUSE = object()
"""A fault: the connection is closed before the request is carried out."""

_VERSIONS: dict[ApiKey, tuple[int, int]] = {
    ApiKey.PRODUCE: (3, 13),
    ApiKey.FETCH: (4, 18),
    ApiKey.LIST_OFFSETS: (1, 11),
    ApiKey.METADATA: (0, 13),
    ApiKey.API_VERSIONS: (0, 4),
    ApiKey.INIT_PRODUCER_ID: (0, 5),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (2, 4),
    ApiKey.FIND_COORDINATOR: (4, 6),
    ApiKey.OFFSET_FETCH: (8, 9),
    ApiKey.ADD_PARTITIONS_TO_TXN: (0, 5),
    ApiKey.ADD_OFFSETS_TO_TXN: (0, 4),
    ApiKey.END_TXN: (0, 5),
    ApiKey.TXN_OFFSET_COMMIT: (0, 5),
}


@dataclass
class Log:
    """One partition: batches, epoch starts (epoch, start offset), and the producer's last five batches."""

    leader: int = 1
    leader_epoch: int = 0
    start_offset: int = 0
    batches: list[bytes] = field(default_factory=list)
    named_epoch: int | None = None
    """The leader's epoch as metadata name it; None: as it is."""
    epochs: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])
    producers: dict[int, list[tuple[int, int, int, int]]] = field(default_factory=lambda: defaultdict(list))
    """Producer id -> (epoch, first sequence, last sequence, base offset)."""
    read_replica: int | None = None
    """The follower that consumers with a rack are sent to (KIP-392)."""
    replica_end: int | None = None
    """Where that follower's log ends; None: where the leader's does."""

    sent: Callable[[bytes], bytes] = bytes
    """What Fetch gives in place of a batch."""

    @property
    def end_offset(self) -> int:
        return read_header(self.batches[-1]).next_offset if self.batches else self.start_offset

    def values(self) -> list[bytes | None]:
        return [r.value for raw in self.batches for h in iter_headers(raw) for r in decode_batch(raw, h)]

    def append(self, records: bytes) -> tuple[ErrorCode, int]:
        raw = bytearray(records)
        header = read_header(raw)
        check_crc(raw, header)
        if header.producer_id >= 0:
            known = self.producers[header.producer_id]
            if known and known[-1][0] > header.producer_epoch:
                return ErrorCode.INVALID_PRODUCER_EPOCH, -1
            for epoch, first, last, offset in known:
                if (epoch, first, last) == (header.producer_epoch, header.base_sequence, header.last_sequence):
                    return ErrorCode.NONE, offset
            expected = None if not known else (known[-1][2] + 1 if known[-1][0] == header.producer_epoch else 0)
            if expected is not None and header.base_sequence != expected & 0x7FFFFFFF:
                return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
        base_offset = self.end_offset
        assign_in_place(raw, 0, base_offset, self.leader_epoch)
        self.batches.append(bytes(raw))
        if header.producer_id >= 0:
            known.append((header.producer_epoch, header.base_sequence, header.last_sequence, base_offset))
            del known[:-5]
        return ErrorCode.NONE, base_offset

    def elect(self, leader: int, *, cut_to: int | None = None) -> None:
        """Starts a new epoch; `cut_to` first truncates the log to that offset."""
        if cut_to is not None:
            self.batches = [raw for raw in self.batches if read_header(raw).next_offset <= cut_to]
            assert self.end_offset == cut_to, "truncate at a batch boundary"
            self.epochs = [(e, start) for e, start in self.epochs if start < cut_to]
        self.leader, self.leader_epoch = leader, self.leader_epoch + 1
        self.epochs.append((self.leader_epoch, self.end_offset))

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """E13."""
        higher = [start for e, start in self.epochs if e > epoch]
        lower = [e for e, _ in self.epochs if e <= epoch]
        if epoch == self.epochs[-1][0]:
            return epoch, self.end_offset
        if epoch < 0 or not higher:
            return -1, -1
        return (lower[-1] if lower else epoch), higher[0]


class ScriptedCluster:
    """Use as a context manager. A test may change the state between calls; `lock` guards it."""

    def __init__(self, nodes: int = 1, *, versions: dict[ApiKey, tuple[int, int]] | None = None) -> None:
        self.versions = {**_VERSIONS, **(versions or {})}
        self.logs: dict[TopicPartition, Log] = {}
        self.committed: dict[TopicPartition, tuple[int, int]] = {}
        """Offset and epoch, of whatever group is asked about; node 1 coordinates them all."""
        self.ids: dict[str, UUID] = {}
        self.ports: dict[int, int] = {}
        self.lock = threading.RLock()
        self.seen: Counter[ApiKey] = Counter()
        self.requests: list[tuple[ApiKey, int, Any]] = []
        self.fetches: list[tuple[int, int, Any]] = []
        """(node, version, request)"""
        self.faults: dict[ApiKey, list[Any]] = defaultdict(list)
        """Next outcomes by API: None (as usual), HANG_UP, REFUSE, or an ErrorCode for every partition asked for."""
        self.fault_rule: Callable[[ApiKey], Any] | None = None
        self.node_rule: Callable[[int, ApiKey], Any] | None = None
        self._nodes = nodes
        self.transaction_version = 2
        """The finalized level of transaction.version."""
        self.transactional: dict[str, tuple[int, int]] = {}
        """The producer id and epoch of each transactional id, at its coordinator, node 1."""
        self._ended: dict[str, tuple[int, int]] = {}
        """The producer id and epoch of the last EndTxn that began a new epoch: its retry is answered again."""
        self._next_producer_id = 100
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._servers: list[asyncio.Server] = []
        self._writers: set[asyncio.StreamWriter] = set()

    def __enter__(self) -> ScriptedCluster:
        self._thread.start()
        for node_id in range(1, self._nodes + 1):
            asyncio.run_coroutine_threadsafe(self._listen(node_id), self._loop).result()
        return self

    def __exit__(self, *_: object) -> None:
        async def stop() -> None:
            for server in self._servers:
                server.close()
            for writer in list(self._writers):
                writer.transport.abort()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.ports[1]}"

    def add_topic(self, name: str, partitions: int = 1, leader: int = 1) -> list[TopicPartition]:
        self.ids[name] = uuid4()
        tps = [TopicPartition(name, i) for i in range(partitions)]
        self.logs.update({tp: Log(leader) for tp in tps})
        return tps

    def hang_up(self) -> None:
        """Close every connection."""
        self._loop.call_soon_threadsafe(lambda: [w.transport.abort() for w in list(self._writers)])

    # -- the server

    async def _listen(self, node_id: int) -> None:
        server = await asyncio.start_server(lambda r, w: self._serve(node_id, r, w), "127.0.0.1", 0)
        self._servers.append(server)
        self.ports[node_id] = server.sockets[0].getsockname()[1]

    async def _serve(self, node_id: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                raw = bytearray(await reader.readexactly(size))
                header = frame.parse_request_header(raw)
                key, body = ApiKey(header.api_key), memoryview(raw)[header.body_position :]
                with self.lock:
                    self.seen[key] += 1
                    fault = self.faults[key].pop(0) if self.faults[key] else None
                    if fault is None and self.fault_rule is not None:
                        fault = self.fault_rule(key)
                    if fault is None and self.node_rule is not None:
                        fault = self.node_rule(node_id, key)
                    if fault is REFUSE:
                        return
                    version, answer = self._answer(node_id, key, header.api_version, body, fault)
                if fault is HANG_UP:
                    return
                if fault is SILENT:
                    continue
                if key is ApiKey.FETCH and not any(p.records for p in self._fetched):
                    await asyncio.sleep(0.01)
                if answer is not None:
                    writer.writelines(frame.encode_response_frame(key, version, header.correlation_id, answer))
                    await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    def _answer(self, node_id: int, key: ApiKey, version: int, body: memoryview, fault: Any) -> tuple[int, Any]:
        low, high = self.versions.get(key, (0, -1))
        if key is ApiKey.API_VERSIONS:
            keys = [{"api_key": k, "min_version": lo, "max_version": hi} for k, (lo, hi) in self.versions.items()]
            if version > high:
                fields = {"error_code": 35, "api_keys": [k for k in keys if k["api_key"] == key]}
                return 0, entities.write_response(key, 0, fields)
            level = {"max_version_level": self.transaction_version, "min_version_level": self.transaction_version}
            features = {"finalized_features_epoch": 1, "finalized_features": [{"name": "transaction.version", **level}]}
            return version, entities.write_response(key, version, {"api_keys": keys, **features})
        assert low <= version <= high, f"{key.name} v{version} was not offered"
        code = fault if isinstance(fault, ErrorCode) else None
        if key is ApiKey.PRODUCE:
            return version, self._produce(node_id, version, produce.parse_request(version, body), code)
        if key is ApiKey.FETCH:
            return version, self._fetch(node_id, version, fetch.parse_request(version, body), code)
        request = entities.read_request(key, version, body)
        self.requests.append((key, version, request))
        fields = getattr(self, f"_{key.name.lower()}")(node_id, request, code)
        return version, entities.write_response(key, version, fields)

    def _metadata(self, node_id: int, request: Any, code: ErrorCode | None) -> dict[str, Any]:
        names = self.ids if request.topics is None else [t.name for t in request.topics]
        return {
            "brokers": [{"node_id": n, "host": "127.0.0.1", "port": port} for n, port in self.ports.items()],
            "cluster_id": "scripted",
            "controller_id": 1,
            "topics": [
                {
                    "error_code": (code or 0) if name in self.ids else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    "name": name,
                    "topic_id": self.ids.get(name),
                    "partitions": [
                        {
                            "partition_index": tp.partition,
                            "leader_id": log.leader,
                            "leader_epoch": log.leader_epoch if log.named_epoch is None else log.named_epoch,
                            "replica_nodes": list(self.ports),
                            "isr_nodes": [log.leader],
                        }
                        for tp, log in self.logs.items()
                        if tp.topic == name and code is None
                    ],
                }
                for name in names
            ],
        }

    def _init_producer_id(self, node_id: int, request: Any, code: ErrorCode | None) -> dict[str, Any]:
        if request.transactional_id is not None and code is None:
            known = self.transactional.get(request.transactional_id)
            asked = getattr(request, "producer_id", -1), getattr(request, "producer_epoch", -1)
            if asked[0] >= 0 and asked != known:
                return {"error_code": ErrorCode.PRODUCER_FENCED}
            if known is None:
                self._next_producer_id += 1
            made = (self._next_producer_id, 0) if known is None else (known[0], known[1] + 1)
            self.transactional[request.transactional_id] = made
            self._ended.pop(request.transactional_id, None)
            return {"error_code": 0, "producer_id": made[0], "producer_epoch": made[1]}
        self._next_producer_id += 1
        return {"error_code": code or 0, "producer_id": self._next_producer_id, "producer_epoch": 0}

    def _add_partitions_to_txn(self, node_id: int, request: Any, code: ErrorCode | None) -> dict[str, Any]:
        asked = request.v3_and_below_producer_id, request.v3_and_below_producer_epoch
        error = code or self._fenced(request.v3_and_below_transactional_id, asked)
        return {
            "results_by_topic_v3_and_below": [
                {
                    "name": topic.name,
                    "results_by_partition": [
                        {"partition_index": index, "partition_error_code": error} for index in topic.partitions
                    ],
                }
                for topic in request.v3_and_below_topics
            ]
        }

    def _add_offsets_to_txn(self, node_id: int, request: Any, code: ErrorCode | None) -> dict[str, Any]:
        return {"error_code": code or self._fenced_request(request)}

    def _end_txn(self, node_id: int, request: Any, code: ErrorCode | None) -> dict[str, Any]:
        key, asked = request.transactional_id, (request.producer_id, request.producer_epoch)
        known = self.transactional.get(key, (-1, -1))
        if self.requests[-1][1] < 5:
            return {"error_code": code or self._fenced(key, asked)}
        if code is None and asked == known:
            self.transactional[key] = known = known[0], known[1] + 1
            self._ended[key] = asked
        elif code is None and asked != self._ended.get(key):
            code = ErrorCode.PRODUCER_FENCED
        return {"error_code": code or 0, "producer_id": known[0], "producer_epoch": known[1]}

    def _txn_offset_commit(self, node_id: int, request: Any, code: ErrorCode | None) -> dict[str, Any]:
        error = code or self._fenced_request(request)
        if not error:
            for topic in request.topics:
                for each in topic.partitions:
                    at = each.committed_offset, each.committed_leader_epoch
                    self.committed[TopicPartition(topic.name, each.partition_index)] = at
        return {
            "topics": [
                {
                    "name": topic.name,
                    "partitions": [
                        {"partition_index": each.partition_index, "error_code": error} for each in topic.partitions
                    ],
                }
                for topic in request.topics
            ]
        }

    def _fenced_request(self, request: Any) -> ErrorCode:
        return self._fenced(request.transactional_id, (request.producer_id, request.producer_epoch))

    def _fenced(self, transactional_id: str, asked: tuple[int, int]) -> ErrorCode:
        known = self.transactional.get(transactional_id)
        return ErrorCode.NONE if asked == known else ErrorCode.PRODUCER_FENCED

    def _list_offsets(self, node_id: int, request: Any, code: ErrorCode | None) -> dict[str, Any]:
        # A broker limited to version 4 is Kafka 2.1, which checks epochs in ListOffsets but returns none.
        tells_epochs = self.requests[-1][1] != 4

        def answer(topic: str, asked: Any) -> dict[str, Any]:
            log = self.logs[TopicPartition(topic, asked.partition_index)]
            error = code or self._check(log, node_id, getattr(asked, "current_leader_epoch", -1))
            offset = log.end_offset if asked.timestamp == -1 else log.start_offset
            epoch = log.leader_epoch if tells_epochs else -1
            known = {"offset": offset, "leader_epoch": epoch} if not error else {}
            return {"partition_index": asked.partition_index, "error_code": error, **known}

        return {
            "topics": [
                {"name": t.name, "partitions": [answer(str(t.name), p) for p in t.partitions]} for t in request.topics
            ]
        }

    def _offset_for_leader_epoch(self, node_id: int, request: Any, code: ErrorCode | None) -> dict[str, Any]:
        def answer(topic: str, asked: Any) -> dict[str, Any]:
            log = self.logs[TopicPartition(topic, asked.partition)]
            error = code or self._check(log, node_id, asked.current_leader_epoch)
            epoch, end = (-1, -1) if error else log.end_of_epoch(asked.leader_epoch)
            return {"partition": asked.partition, "error_code": error, "leader_epoch": epoch, "end_offset": end}

        return {
            "topics": [
                {"topic": t.topic, "partitions": [answer(str(t.topic), p) for p in t.partitions]}
                for t in request.topics
            ]
        }

    def _find_coordinator(self, node_id: int, request: Any, code: ErrorCode | None) -> dict[str, Any]:
        found = {"node_id": 1, "host": "127.0.0.1", "port": self.ports[1], "error_code": code or 0}
        return {"coordinators": [{"key": key, **found} for key in request.coordinator_keys]}

    def _offset_fetch(self, node_id: int, request: Any, code: ErrorCode | None) -> dict[str, Any]:
        def answer(topic: str, index: int) -> dict[str, Any]:
            offset, epoch = self.committed.get(TopicPartition(topic, index), (-1, -1))
            return {"partition_index": index, "committed_offset": offset, "committed_leader_epoch": epoch}

        return {
            "groups": [
                {
                    "group_id": group.group_id,
                    "error_code": code or 0,
                    "topics": [
                        {"name": t.name, "partitions": [answer(str(t.name), index) for index in t.partition_indexes]}
                        for t in group.topics
                    ],
                }
                for group in request.groups
            ]
        }

    def _check(self, log: Log, node_id: int, epoch: int) -> ErrorCode:
        if epoch >= 0 and epoch != log.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH if epoch < log.leader_epoch else ErrorCode.UNKNOWN_LEADER_EPOCH
        return ErrorCode.NONE if log.leader == node_id else ErrorCode.NOT_LEADER_OR_FOLLOWER

    def _produce(self, node_id: int, version: int, request: produce.ProduceRequest, code: ErrorCode | None) -> Any:
        results = []
        for asked in request.partitions:
            tp = self._tp(asked.topic, asked.topic_id, asked.index)
            log, base_offset = self.logs[tp], -1
            error = code or self._check(log, node_id, -1)
            if not error:
                error, base_offset = log.append(bytes(asked.records or b""))
            results.append(
                produce.PartitionResult(
                    asked.topic,
                    asked.topic_id,
                    asked.index,
                    error,
                    base_offset,
                    current_leader=(log.leader, log.leader_epoch)
                    if error is ErrorCode.NOT_LEADER_OR_FOLLOWER
                    else None,
                )
            )
        if request.acks == 0:
            return None
        return produce.encode_response(version, produce.ProduceResponse(results))

    def _fetch(self, node_id: int, version: int, request: fetch.FetchRequest, code: ErrorCode | None) -> Any:
        self.requests.append((ApiKey.FETCH, version, request))
        self.fetches.append((node_id, version, request))
        self._fetched: list[fetch.FetchedPartition] = []
        left_bytes = request.max_bytes
        for asked in request.partitions:
            if not asked.topic and all(known.bytes != bytes(asked.topic_id or b"") for known in self.ids.values()):
                unknown = asked.topic, asked.topic_id, asked.index, ErrorCode.UNKNOWN_TOPIC_ID
                self._fetched.append(fetch.FetchedPartition(*unknown))
                continue
            tp = self._tp(asked.topic, asked.topic_id, asked.index)
            log = self.logs[tp]
            is_near = version >= 11 and node_id == log.read_replica
            error = code or self._check(log, log.leader if is_near else node_id, asked.current_leader_epoch)
            name = asked.topic, asked.topic_id, asked.index
            if not error and not is_near and request.rack_id and log.read_replica is not None:
                ends = log.end_offset, log.end_offset, log.start_offset
                self._fetched.append(fetch.FetchedPartition(*name, 0, *ends, preferred_read_replica=log.read_replica))
                continue
            end_offset = log.replica_end if is_near and log.replica_end is not None else log.end_offset
            if error:
                leads_elsewhere = error in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)
                hint = (log.leader, log.leader_epoch) if version >= 16 and leads_elsewhere else None
                self._fetched.append(fetch.FetchedPartition(*name, error, current_leader=hint))
                continue
            ends = log.end_offset, log.end_offset, log.start_offset
            if asked.last_fetched_epoch >= 0:
                epoch, end = log.end_of_epoch(asked.last_fetched_epoch)
                end = min(end, end_offset)
                if epoch < 0 or asked.fetch_offset < log.start_offset:
                    self._fetched.append(fetch.FetchedPartition(*name, ErrorCode.OFFSET_OUT_OF_RANGE))
                    continue
                if epoch < asked.last_fetched_epoch or end < asked.fetch_offset:
                    self._fetched.append(fetch.FetchedPartition(*name, 0, *ends, diverging_epoch=(epoch, end)))
                    continue
            if not log.start_offset <= asked.fetch_offset <= end_offset:
                self._fetched.append(fetch.FetchedPartition(*name, ErrorCode.OFFSET_OUT_OF_RANGE))
                continue
            found, size = [], 0
            for raw in log.batches:
                if (
                    left_bytes > 0
                    and size < max(1, asked.max_bytes)
                    and read_header(raw).next_offset > asked.fetch_offset
                ):
                    found.append(log.sent(raw))
                    size += len(raw)
                    left_bytes -= len(raw)
            self._fetched.append(fetch.FetchedPartition(*name, 0, *ends, records=b"".join(found)))
        return fetch.encode_response(version, fetch.FetchResponse(self._fetched))

    def _tp(self, topic: str | None, topic_id: bytes | None, index: int) -> TopicPartition:
        if not topic:
            topic = next(name for name, known in self.ids.items() if known.bytes == bytes(topic_id or b""))
        return TopicPartition(topic, index)
