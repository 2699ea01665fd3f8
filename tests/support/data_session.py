"""One telling of a script of data path requests to a server, with the answers made comparable between servers.

What a server makes up (topic ids, session ids, producer ids, times of append) is replaced by names in the order in
which it first shows; times are relative to the start of the script; records are shown by their contents, so that
two zlibs may differ. Answers are plain JSON, so that they can be recorded for machines without Java.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any
from uuid import UUID

from fenceline.records.batch import Codec
from fenceline.records.build import Record, build_batch
from fenceline.records.decode import decode_all
from fenceline.wire.apis import ApiKey
from tests.support.raw import ConnectionClosed, RawConnection, plain

UNKNOWN_ID = UUID("0b558df6-ad2d-4cdb-8a0f-3e29f648b81e")
_DROPPED = frozenset({"throttle_time", "host", "port"})
_HOUR_MS = 3_600_000

Rows = Sequence[tuple[int, bytes | None, bytes | None]]


class DataSession:
    """A connection, the topics of one script, and what was answered so far (`seen`). Use as a context manager."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.seen: list[Any] = []
        self.now_ms = int(time.time() * 1000)
        self._run = f"{random.randrange(16**6):06x}"
        self._connections: dict[str, RawConnection] = {}
        self._topics: dict[str, UUID] = {}
        self._sessions: dict[int, str] = {}
        self._producers: dict[int, str] = {}
        self._threads = ThreadPoolExecutor(4)
        self._parked = itertools.count()

    def __enter__(self) -> DataSession:
        return self

    def __exit__(self, *_: object) -> None:
        for connection in self._connections.values():
            connection.__exit__(None, None, None)
        self._threads.shutdown()

    # --- asking ---------------------------------------------------------------------------------------------------

    def tell(self, api: ApiKey, version: int, fields: Mapping[str, Any], *, client_id: str = "raw") -> Any:
        """Send a request, note the comparable answer, and return the entity (None when the connection was closed)."""
        try:
            answer = self._connection(client_id).call(api, version, fields)
        except (ConnectionClosed, ConnectionResetError):
            self.note(f"{api.name} v{version}", "closed")
            self._connections.pop(client_id).__exit__(None, None, None)
            return None
        self.note(f"{api.name} v{version}", self.comparable(api, answer))
        return answer

    def ask(self, api: ApiKey, version: int, fields: Mapping[str, Any]) -> Any:
        """The same without a note: for what a script only needs to know."""
        return self._connection("raw").call(api, version, fields)

    def send_only(self, api: ApiKey, version: int, fields: Mapping[str, Any]) -> None:
        """A request that has no answer (acks=0)."""
        self._connection("raw").send(api, version, fields)

    def in_background(self, api: ApiKey, version: int, fields: Mapping[str, Any]) -> Future[Any]:
        """Ask over a connection of its own and go on; `arrived` notes the answer."""
        connection = self._connection(f"parked {next(self._parked)}")
        return self._threads.submit(connection.call, api, version, fields)

    def arrived(self, api: ApiKey, version: int, future: Future[Any]) -> Any:
        answer = future.result(60)
        self.note(f"{api.name} v{version} parked", self.comparable(api, answer))
        return answer

    def note(self, what: str, answer: Any) -> None:
        self.seen.append([what, answer])

    def _connection(self, client_id: str) -> RawConnection:
        connection = self._connections.get(client_id)
        if connection is None:
            connection = self._connections[client_id] = RawConnection(self.port, client_id=client_id)
        return connection

    # --- topics ---------------------------------------------------------------------------------------------------

    def name(self, topic: str) -> str:
        """The name on the server of a topic of this script."""
        return topic if topic.startswith("__") else f"{topic}-{self._run}"

    def topic_id(self, topic: str) -> UUID:
        return self._topics.get(topic, UNKNOWN_ID)

    def create(self, topic: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> None:
        """Make a topic and wait until every partition of it is led."""
        rows = [{"name": key, "value": value} for key, value in (configs or {}).items()]
        name = self.name(topic)
        created = {"name": name, "num_partitions": partitions, "replication_factor": 1, "configs": rows}
        answer = self.ask(ApiKey.CREATE_TOPICS, 7, {"topics": [created], "timeout": 30_000})
        assert answer.topics[0].error_code == 0, answer
        self._topics[topic] = answer.topics[0].topic_id
        asked = [{"partition_index": index, "timestamp": -1} for index in range(partitions)]
        for _ in self.until(60):
            found = self.ask(
                ApiKey.LIST_OFFSETS, 5, {"replica_id": -1, "topics": [{"name": name, "partitions": asked}]}
            )
            if all(row.error_code == 0 for row in found.topics[0].partitions):
                return

    def delete(self, topic: str) -> None:
        answer = self.ask(ApiKey.DELETE_TOPICS, 5, {"topic_names": [self.name(topic)], "timeout": 30_000})
        assert answer.responses[0].error_code == 0, answer

    @staticmethod
    def until(deadline_s: float) -> Iterable[int]:
        """Tries, with a short pause between them; fails when there was no success in time."""
        deadline = time.monotonic() + deadline_s
        for attempt in itertools.count():
            yield attempt
            assert time.monotonic() < deadline, "it does not come about"
            time.sleep(0.02)

    # --- records --------------------------------------------------------------------------------------------------

    def rows(self, count: int = 1, *, size_bytes: int = 1, at_ms: int = -1000, key: bytes | None = b"k") -> Rows:
        return [(self.now_ms + at_ms + n, key, b"%d" % n + b"x" * (size_bytes - 1)) for n in range(count)]

    def batch(self, count: int = 1, *, size_bytes: int = 1, at_ms: int = -1000, **more: Any) -> bytes:
        rows = [(*row, ()) for row in self.rows(count, size_bytes=size_bytes, at_ms=at_ms)]
        return bytes(build_batch(rows, **more))

    def produced(self, topic: str, index: int = 0, records: bytes | None = None, *, version: int = 9) -> None:
        """Append without a note; it must succeed."""
        answer = self.ask(ApiKey.PRODUCE, version, self.produce(topic, index, records or self.batch()))
        assert answer.responses[0].partition_responses[0].error_code == 0, answer

    def produce(self, topic: str, index: int, records: bytes | None, **more: Any) -> dict[str, Any]:
        return self.produce_all([(topic, index, records)], **more)

    def produce_all(
        self, parts: Iterable[tuple[str, int, bytes | None]], *, acks: int = -1, transactional_id: str | None = None
    ) -> dict[str, Any]:
        """The fields of a Produce request; parts of one topic must be neighbours."""
        topics = [
            {
                "name": self.name(topic),
                "topic_id": self.topic_id(topic),
                "partition_data": [{"index": index, "records": records} for _, index, records in rows],
            }
            for topic, rows in itertools.groupby(parts, key=lambda part: part[0])
        ]
        return {"transactional_id": transactional_id, "acks": acks, "timeout": 10_000, "topic_data": topics}

    def fetch(
        self,
        parts: Iterable[tuple[str, int, int] | tuple[str, int, int, Mapping[str, Any]]],
        *,
        forgotten: Iterable[tuple[str, int]] = (),
        **more: Any,
    ) -> dict[str, Any]:
        """The fields of a Fetch request of (topic, partition, offset, further fields)."""
        topics = [
            {
                "topic": self.name(topic),
                "topic_id": self.topic_id(topic),
                "partitions": [
                    {"partition": row[1], "fetch_offset": row[2], "partition_max_bytes": 1 << 20}
                    | dict(row[3] if len(row) > 3 else {})
                    for row in rows
                ],
            }
            for topic, rows in itertools.groupby(parts, key=lambda part: part[0])
        ]
        gone = [
            {"topic": self.name(topic), "topic_id": self.topic_id(topic), "partitions": [index for _, index in rows]}
            for topic, rows in itertools.groupby(forgotten, key=lambda part: part[0])
        ]
        return {
            "replica_id": -1,
            "max_wait": 0,
            "min_bytes": 1,
            "max_bytes": 50 << 20,
            "topics": topics,
            "forgotten_topics_data": gone,
            **more,
        }

    # --- making answers comparable --------------------------------------------------------------------------------

    def comparable(self, api: ApiKey, answer: Any) -> Any:
        if api is ApiKey.INIT_PRODUCER_ID and answer.producer_id >= 0:
            self._producers.setdefault(answer.producer_id, f"producer {len(self._producers)}")
        shown = self._shown("", plain(answer))
        if api is not ApiKey.FETCH:
            _sort(shown)
        return shown

    def _shown(self, field: str, value: Any) -> Any:
        rule: Callable[[Any], Any] | None = getattr(self, f"_show_{field}", None)
        if rule is not None:
            return rule(value)
        if isinstance(value, dict):
            return {name: self._shown(name, item) for name, item in value.items() if name not in _DROPPED}
        if isinstance(value, list):
            return [self._shown("", item) for item in value]
        return value.replace(f"-{self._run}", "") if isinstance(value, str) else value

    def _show_topic_id(self, value: Any) -> Any:
        names = {str(topic_id): f"id of {topic}" for topic, topic_id in self._topics.items()}
        return names.get(str(value), str(value))

    def _show_session_id(self, value: int) -> Any:
        return self._sessions.setdefault(value, f"session {len(self._sessions)}") if value else 0

    def _show_producer_id(self, value: int) -> Any:
        return self._producers.get(value, value)

    def _show_error_message(self, value: str | None) -> Any:
        return value if value is None else "words"

    _show_batch_index_error_message = _show_error_message

    def _show_log_append_time(self, value: Any) -> Any:
        return None if value is None else "a time"

    def _show_timestamp(self, value: int) -> Any:
        return f"start{value - self.now_ms:+}" if abs(value - self.now_ms) < 10 * _HOUR_MS else value

    _show_last_timestamp = _show_timestamp

    def _shown_record(self, record: Record, is_stamped: bool) -> list[Any]:
        key, value = (None if part is None else part[:10].decode() for part in (record.key, record.value))
        return [record.offset, "a time" if is_stamped else self._show_timestamp(record.timestamp), key, value]

    def _show_records(self, value: Any) -> Any:
        if value is None:
            return None
        return [
            {
                "base_offset": header.base_offset,
                "leader_epoch": header.leader_epoch,
                "codec": Codec(header.codec).name,
                "timestamp_type": int(header.timestamp_type),
                "max_timestamp": "a time" if header.timestamp_type else self._show_timestamp(header.max_timestamp),
                "producer": [self._show_producer_id(header.producer_id), header.producer_epoch, header.base_sequence],
                "records": [self._shown_record(record, bool(header.timestamp_type)) for record in records],
            }
            for header, records in decode_all(value, allow_partial_tail=True)
        ]


def _sort(value: Any) -> None:
    """Order rows by name and partition: Kafka answers in the order of its hash maps."""
    if isinstance(value, dict):
        for item in value.values():
            _sort(item)
    elif isinstance(value, list):
        for item in value:
            _sort(item)
        value.sort(key=_place)


def _place(row: Any) -> tuple[str, ...]:
    names = ("name", "topic", "topic_id", "index", "partition_index", "partition", "api_key", "producer_id")
    return tuple(str(row.get(name)) for name in names) if isinstance(row, dict) else (str(row),)


def differences(theirs: Any, ours: Any, path: str = "") -> list[str]:
    """Where our answer is not Kafka's. Words of an error may be ours alone: Kafka often has none."""
    if theirs == ours or (theirs is None and ours == "words"):
        return []
    if isinstance(theirs, dict) and isinstance(ours, dict) and theirs.keys() == ours.keys():
        return [found for name in theirs for found in differences(theirs[name], ours[name], f"{path}.{name}")]
    if isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        pairs = enumerate(zip(theirs, ours, strict=True))
        return [found for n, (their, our) in pairs for found in differences(their, our, f"{path}[{n}]")]
    return [f"{path}: Kafka {theirs!r}, we {ours!r}"]
