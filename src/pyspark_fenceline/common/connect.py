"""Connections to brokers, kept for the life of a Python process.

Owns the cache of clients and the translation between `fenceline.client` and the values this package plans with. Spark
unpickles a reader for every task but reuses its worker processes, and a partition does not stick to a worker
(`pyspark.md S12`): clients are globals of this module, keyed by their settings, and created on first use. A client does
not survive a fork, so the process id is part of the key. The client package is imported on first use.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from fenceline.client.core.errors import BrokersUnreachable, NeverReached, broker_error
from fenceline.errors import ErrorCode, OperatorError, PeerError
from fenceline.ids import ZERO_UUID, TopicPartition, decode_uuid, encode_uuid
from pyspark_fenceline.common.cluster import EpochEnd, ReadableEnd, TopicFacts
from pyspark_fenceline.common.planning import PlannedRange
from pyspark_fenceline.common.task_login import of_driver

if TYPE_CHECKING:
    import pyarrow as pa

    from fenceline.client.admin.async_admin import ProducerDescription
    from fenceline.client.core.offsets import OffsetAndEpoch
    from fenceline.client.producer.producer import Producer
    from fenceline.client.reader.lost_records import LostRecordsReader
    from fenceline.client.reader.reader import RangeReader

T = TypeVar("T")
_READER_DEFAULTS: Final = {"max.partition.fetch.bytes": 8 * 1024 * 1024, "queued.max.bytes": 64 * 1024 * 1024}
"""Fetches large enough for record batches of 64k rows at 100 bytes a row, two in flight for each leader."""

_FIRST_CONTACT_MS: Final = 10_000
"""How long the first connection may take, unless the client has a `default.api.timeout.ms` of its own."""

_cache: dict[tuple[Any, ...], Any] = {}
_lock = threading.Lock()


def _cached(kind: str, properties: Mapping[str, str], make: Callable[[], T]) -> T:
    key = (os.getpid(), kind, tuple(sorted(properties.items())))
    with _lock:
        found = _cache.get(key)
        if found is None:
            found = _cache[key] = make()
        return cast(T, found)


def forget(kind: str, properties: Mapping[str, str]) -> None:
    """Close and remove a cached client, so that the next use reconnects."""
    with _lock:
        found = _cache.pop((os.getpid(), kind, tuple(sorted(properties.items()))), None)
    if found is not None:
        found.close()


def check_addresses(servers: str) -> None:
    """Raises `OperatorError` for an invalid address in `kafka.bootstrap.servers`."""
    from fenceline.client.core.config import addresses

    try:
        addresses([server.strip() for server in servers.split(",") if server.strip()])
    except OperatorError as error:
        raise OperatorError(f"Option 'kafka.bootstrap.servers': {error.message}", error.advice) from None


def connect(properties: Mapping[str, str]) -> ClientCluster:
    """The process's cluster client for these properties, for planning."""
    return _cached("cluster", properties, lambda: ClientCluster(properties))


def reached(properties: Mapping[str, str]) -> ClientCluster:
    """`connect` as a new query begins, which has nothing to wait for yet. Raises NeverReached."""
    cluster = connect(properties)
    cluster.reach()
    return cluster


def reader(properties: Mapping[str, str]) -> RangeReader:
    """The process's reader for these properties."""
    from fenceline.client.reader.reader import RangeReader

    return _cached("reader", properties, lambda: RangeReader({**_READER_DEFAULTS, **of_driver(properties)}))


def lost_records(properties: Mapping[str, str]) -> LostRecordsReader:
    """The process's reader of lost records for these properties."""
    from fenceline.client.reader.lost_records import LostRecordsReader

    return _cached("lost records", properties, lambda: LostRecordsReader({**_READER_DEFAULTS, **properties}))


def producer(properties: Mapping[str, str]) -> Producer:
    """The process's producer for these properties."""
    from fenceline.client.producer.producer import Producer

    return _cached("producer", properties, lambda: Producer(of_driver(properties)))


def read_arrow(
    client: RangeReader,
    ranges: Collection[PlannedRange],
    topic_ids: Mapping[str, str | None],
    progress: dict[TopicPartition, int],
    **columns: Any,
) -> Iterator[pa.RecordBatch]:
    """The records of ranges, at most one of a partition. `progress` gets the end offset (exclusive) of each range's
    records before they are yielded."""
    from fenceline.client.reader.ranges import OffsetRange as ClientRange

    topics = {one.topic_partition.topic for one in ranges}
    ids = {topic: decode_uuid(topic_id) for topic in topics if (topic_id := topic_ids.get(topic))}
    wanted = {
        one.topic_partition: ClientRange(
            one.start_offset,
            one.end_offset_exclusive,
            one.start_epoch,
            one.end_epoch,
            ids.get(one.topic_partition.topic),
            one.epochs,
        )
        for one in ranges
    }
    assert len(wanted) == len(ranges), "two ranges of one partition at once"
    return client.read(wanted, progress=progress, **columns)


def partitions_with_records(
    client: Mapping[str, str], ranges: Mapping[TopicPartition, tuple[int, int]]
) -> set[TopicPartition]:
    """The partitions whose small range of offsets (end exclusive) holds a record."""
    found: set[TopicPartition] = set()
    for tp, (start, end) in ranges.items():
        if any(batch.num_rows for batch in list(reader(client).read({tp: (start, end)}))):
            found.add(tp)
    return found


class ClientCluster:
    """`cluster.Cluster` over the admin client."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        from fenceline.client.admin.admin import Admin

        self._admin = Admin(of_driver(properties))
        self._isolation_level = str(properties.get("isolation.level", "read_uncommitted"))
        self._cluster_id: str | None = None
        own_timeout_ms = properties.get("default.api.timeout.ms")
        self._first_contact_ms: float | None = float(own_timeout_ms or _FIRST_CONTACT_MS)
        """None: the brokers have answered."""
        self._doubtful: set[str] = set()
        """Topics whose metadata has no leader epochs."""
        self._kept_epochs: set[TopicPartition] = set()
        """Partitions of these topics whose leaders answer OffsetForLeaderEpoch nevertheless."""
        self._properties = of_driver(properties)
        self._watcher: RangeReader | None = None

    def close(self) -> None:
        self._admin.close()
        if self._watcher is not None:
            self._watcher.close()

    def reach(self) -> None:
        """Raises NeverReached if no broker answers the first time, soon: an address may be wrong."""
        if self._first_contact_ms is None:
            return
        try:
            self._admin.describe_cluster(timeout_ms=self._first_contact_ms)
        except BrokersUnreachable as error:
            raise NeverReached(error.message, error.advice) from None
        self._first_contact_ms = None

    def cluster_id(self) -> str | None:
        return self._cluster_id

    def topics(self, names: Collection[str] | None) -> Mapping[str, TopicFacts]:
        answer = self._admin.metadata(None if names is None else list(names))
        found, self._cluster_id = answer.topics, answer.cluster_id
        for name, topic in found.items():
            # A topic that is unauthorized or not available yet may exist.
            if topic.error not in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                raise broker_error(topic.error, f"topic {name}")
            if any(one.leader_epoch < 0 for one in topic.partitions.values()):
                self._doubtful.add(name)
            else:
                self._doubtful.discard(name)
        return {
            name: TopicFacts(
                id=None if topic.id == ZERO_UUID else encode_uuid(topic.id),
                partitions=tuple(topic.partitions),
                is_internal=topic.is_internal,
            )
            for name, topic in sorted(found.items())
            if topic.error is ErrorCode.NONE and topic.partitions
        }

    def log_starts(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        found = self._admin.list_offsets(dict.fromkeys(partitions, "earliest"))
        return {tp: one.offset for tp, one in found.items()}

    def log_ends(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, ReadableEnd]:
        found = self._admin.list_offsets(dict.fromkeys(partitions, "latest"), isolation_level=self._isolation_level)
        return self._readable_ends(found)

    def log_bounds(
        self, partitions: Collection[TopicPartition]
    ) -> tuple[Mapping[TopicPartition, int], Mapping[TopicPartition, ReadableEnd]]:
        found = self._admin.offset_bounds(partitions, isolation_level=self._isolation_level)
        starts = {tp: start.offset for tp, (start, _) in found.items()}
        return starts, self._readable_ends({tp: end for tp, (_, end) in found.items()})

    def _readable_ends(self, found: Mapping[TopicPartition, OffsetAndEpoch]) -> dict[TopicPartition, ReadableEnd]:
        ends = {tp: ReadableEnd(one.offset, one.leader_epoch) for tp, one in found.items()}
        blind = self._without_epochs(ends)
        return {tp: end._replace(leader_epoch=-1) if tp in blind else end for tp, end in ends.items()}

    def offsets_at(self, timestamps_ms: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int | None]:
        found = self._admin.list_offsets(dict(timestamps_ms), isolation_level=self._isolation_level)
        return {tp: None if one.offset < 0 else one.offset for tp, one in found.items()}

    def epoch_ends(self, epochs: Mapping[TopicPartition, tuple[int, int]]) -> Mapping[TopicPartition, EpochEnd]:
        return self._admin.offsets_for_leader_epoch(dict(epochs))

    def producers(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, tuple[ProducerDescription, ...]]:
        """What the leaders know about active producers."""
        return self._admin.describe_producers(partitions)

    def cleanup_policies(self, topics: Collection[str]) -> Mapping[str, str]:
        found = self._admin.describe_configs([("topic", name) for name in sorted(topics)])
        return {name: entries["cleanup.policy"].value or "" for (_, name), entries in found.items()}

    def _without_epochs(self, ends: Mapping[TopicPartition, ReadableEnd]) -> set[TopicPartition]:
        """Partitions whose leaders have an epoch but do not answer OffsetForLeaderEpoch: the topic's message format has
        no epochs, or Kafka 2.1 and 2.2 require the ClusterAction permission (`epochs.md` E22)."""
        own = {
            tp: (end.leader_epoch, end.leader_epoch)
            for tp, end in ends.items()
            if tp.topic in self._doubtful and tp not in self._kept_epochs and end.leader_epoch >= 0
        }
        if not own:
            return set()
        try:
            known = {tp for tp, answer in self.epoch_ends(own).items() if answer.leader_epoch >= 0}
        except PeerError as error:
            if error.code is not ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
                raise
            known = set()
        self._kept_epochs |= known
        return own.keys() - known

    def await_news(self, positions: Mapping[TopicPartition, tuple[int, int]], timeout_ms: int) -> bool:
        from fenceline.client.reader.reader import RangeReader

        if self._watcher is None:
            self._watcher = RangeReader(self._properties)
        return self._watcher.wait_for_change(positions, timeout_ms)
