"""Produce, ListOffsets, OffsetForLeaderEpoch, DeleteRecords, InitProducerId and DescribeProducers, told as scripts.

A script asks a `DataSession` and returns nothing; what was answered is in `DataSession.seen`. Fetch has a module of
its own (`fetch_scripts`).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from typing import Any, Final, TypeAlias

from fenceline.records.batch import Codec
from fenceline.records.build import build_batch
from fenceline.wire.apis import ApiKey
from tests.support.data_session import DataSession

Script: TypeAlias = Callable[[DataSession], None]

PRODUCE_VERSIONS: Final = range(3, 14)
LIST_OFFSETS_VERSIONS: Final = range(1, 12)
_HOUR_MS: Final = 3_600_000
_FOUND_BY_KAFKA_ALONE: Final = {
    *(f"count too low, {codec.name}" for codec in Codec if codec is not Codec.NONE),
    "count too high, LZ4",
    "garbage records, LZ4",
}
"""Lies inside of compressed batches: Kafka decompresses every batch, we only those that must be looked into."""


def _produce(told: DataSession, version: int, topic: str, records: bytes | None, index: int = 0, **more: Any) -> Any:
    return told.tell(ApiKey.PRODUCE, version, told.produce(topic, index, records, **more))


def _read(told: DataSession, topic: str, index: int = 0, offset: int = 0) -> None:
    told.tell(ApiKey.FETCH, 12, told.fetch([(topic, index, offset)]))


# --- produce ------------------------------------------------------------------------------------------------------


def produce_every_version(told: DataSession) -> None:
    told.create("p", 2)
    for version in PRODUCE_VERSIONS:
        for acks in (-1, 1):
            _produce(told, version, "p", told.batch(2), acks=acks)
        for acks in (2, -2, 32767):
            _produce(told, version, "p", told.batch(), acks=acks)
        _produce(told, version, "nowhere", told.batch())
        for index in (2, -1):
            _produce(told, version, "p", told.batch(), index)
        _produce(told, version, "p", b"")
        _produce(told, version, "p", told.batch()[:-1])
        parts = [("p", 0, told.batch()), ("p", 7, told.batch()), ("p", 1, told.batch(3)), ("nowhere", 0, told.batch())]
        told.tell(ApiKey.PRODUCE, version, told.produce_all(parts))
        told.tell(ApiKey.PRODUCE, version, told.produce_all([]))
    _read(told, "p")
    _read(told, "p", 1)


def produce_without_answer(told: DataSession) -> None:
    """acks=0: nothing comes back; an error closes the connection."""
    told.create("p")
    for version in (3, 9, 12, 13):
        told.send_only(ApiKey.PRODUCE, version, told.produce("p", 0, told.batch(), acks=0))
        _read(told, "p", offset=0)
        _produce(told, version, "p", told.batch()[:-1], acks=0)
        _produce(told, version, "nowhere", told.batch(), acks=0)
    _read(told, "p")


def produce_versions_refused(told: DataSession) -> None:
    for version in (2, 14):
        told.note(f"v{version}", _refused(told, ApiKey.PRODUCE, version))
    for version in (3, 19):
        told.note(f"v{version}", _refused(told, ApiKey.FETCH, version))
    for api, version in ((ApiKey.LIST_OFFSETS, 0), (ApiKey.LIST_OFFSETS, 12), (ApiKey.OFFSET_FOR_LEADER_EPOCH, 1)):
        told.note(f"{api.name} v{version}", _refused(told, api, version))


def _refused(told: DataSession, api: ApiKey, version: int) -> str:
    from tests.support.raw import ConnectionClosed, RawConnection

    with RawConnection(told.port) as connection:
        try:
            connection.exchange(api, version, bytes(64))
        except (ConnectionClosed, ConnectionResetError):
            return "closed"
    return "answered"


def produce_same_partition_twice(told: DataSession) -> None:
    told.create("p")
    for version in (3, 9, 13):
        told.tell(ApiKey.PRODUCE, version, told.produce_all([("p", 0, told.batch()), ("p", 0, told.batch(2))]))
        _read(told, "p")


def _need_offsets_topic(told: DataSession) -> None:
    told.ask(ApiKey.FIND_COORDINATOR, 3, {"key": "g", "key_type": 0})
    for _ in told.until(10):
        partition = [{"partition_index": 0, "timestamp": -1}]
        topics = [{"name": "__consumer_offsets", "partitions": partition}]
        found = told.ask(ApiKey.LIST_OFFSETS, 5, {"replica_id": -1, "topics": topics})
        if found.topics[0].partitions[0].error_code == 0:
            break


def produce_to_internal_topics(told: DataSession) -> None:
    _need_offsets_topic(told)
    for version in (3, 7, 8, 12):
        _produce(told, version, "__consumer_offsets", told.batch())


def produce_times_and_codecs(told: DataSession) -> None:
    topics = {
        "stamped": {"message.timestamp.type": "LogAppendTime"},
        "stamped-zstd": {"message.timestamp.type": "LogAppendTime", "compression.type": "zstd"},
        "recent": {"message.timestamp.before.max.ms": str(_HOUR_MS), "message.timestamp.after.max.ms": str(_HOUR_MS)},
        "compacted": {"cleanup.policy": "compact"},
        "small": {"max.message.bytes": "500"},
        "small-unpacked": {"max.message.bytes": "500", "compression.type": "uncompressed"},
        **{name: {"compression.type": name} for name in ("uncompressed", "gzip", "snappy", "lz4", "zstd", "producer")},
    }
    for topic, configs in topics.items():
        told.create(topic, configs=configs)
        for codec in Codec:
            _produce(told, 9, topic, told.batch(3, codec=codec))
        _produce(told, 6, topic, told.batch(codec=Codec.ZSTD))
        for version in (7, 8, 10):
            _produce(told, version, topic, told.batch(2, at_ms=-2 * _HOUR_MS))
            _produce(told, version, topic, told.batch(2, at_ms=2 * _HOUR_MS))
            _produce(told, version, topic, told.batch(1, size_bytes=600))
            _produce(told, version, topic, told.batch(1, size_bytes=600, codec=Codec.GZIP))
            _produce(told, version, topic, bytes(build_batch([(told.now_ms, None, b"v", ())])))
            _produce(told, version, topic, bytes(build_batch([(-1, b"k", None, ())])))
            _produce(told, version, topic, told.batch(control=True))
        _read(told, topic)


def produce_bad_batches(told: DataSession) -> None:
    """Every case of `produce_cases` that Kafka answers with a code of its own, in the versions before and after 8."""
    from tests.records.produce_cases import CASES, MAX_MESSAGE_BYTES, TOPICS

    for topic, configs in TOPICS.items():
        told.create(topic, configs={"max.message.bytes": str(MAX_MESSAGE_BYTES), **configs})
    for case in CASES:
        if case.ours is not None or case.name in _FOUND_BY_KAFKA_ALONE:
            continue
        for version in (case.version,) if case.version < 7 else (7, 9, 13):
            told.note(case.name, "")
            _produce(told, version, case.topic, case.make(told.now_ms))


def produce_min_insync_replicas(told: DataSession) -> None:
    told.create("p", configs={"min.insync.replicas": "2"})
    for version in (3, 10):
        for acks in (-1, 1):
            _produce(told, version, "p", told.batch(), acks=acks)
    _read(told, "p")


# --- idempotent producers -----------------------------------------------------------------------------------------


def _producer_id(told: DataSession, version: int = 4) -> int:
    for _ in told.until(10):  # Kafka's first answer is that its first block of ids is on its way
        if told.ask(ApiKey.INIT_PRODUCER_ID, 4, {"transactional_id": None}).error_code != 14:
            break
    answer = told.tell(ApiKey.INIT_PRODUCER_ID, version, {"transactional_id": None, "transaction_timeout": 60_000})
    return int(answer.producer_id)


def idempotent_sequences(told: DataSession) -> None:
    told.create("i", 3)
    producer = _producer_id(told)

    def send(sequence: int, count: int = 1, epoch: int = 0, version: int = 9, index: int = 0, **more: Any) -> None:
        records = told.batch(count, producer_id=producer, producer_epoch=epoch, base_sequence=sequence, **more)
        _produce(told, version, "i", records, index)

    send(5, index=1)  # of a producer that the log does not know any sequence is taken
    send(0)
    for sequence in range(1, 8):
        send(sequence, count=1)
    for sequence in range(8):
        send(sequence)  # the last five are duplicates, what is older is out of order
    for version in (3, 7, 8, 13):
        send(7, version=version)
        send(2, version=version)
        send(20, version=version)
    send(8, count=4)
    send(8, count=3)
    send(9, count=3)
    send(8, count=5)
    send(8, count=4)
    send(13)
    send(12, epoch=1)  # a new epoch begins at 0
    send(0, epoch=1)
    send(12, epoch=0)
    send(0, epoch=0)
    send(1, epoch=3)
    send(0, epoch=3)
    send(1, epoch=2)
    send(0, index=1)
    send(3, index=2)
    send(2**31 - 1, index=2, epoch=1)
    told.tell(ApiKey.DESCRIBE_PRODUCERS, 0, {"topics": [{"name": told.name("i"), "partition_indexes": [0, 1, 2]}]})
    for index in range(3):
        _read(told, "i", index)


def idempotent_wrap(told: DataSession) -> None:
    """Sequences go on at 0 after 2^31 - 1."""
    told.create("i")
    producer = _producer_id(told)
    for sequence, count in ((0, 1), (1, 1)):
        records = told.batch(count, producer_id=producer, producer_epoch=0, base_sequence=sequence)
        _produce(told, 9, "i", records)
    records = told.batch(4, producer_id=producer, producer_epoch=1, base_sequence=2**31 - 2)
    _produce(told, 9, "i", records)
    told.tell(ApiKey.DESCRIBE_PRODUCERS, 0, {"topics": [{"name": told.name("i"), "partition_indexes": [0]}]})


def idempotent_by_hand(told: DataSession) -> None:
    """Ids and epochs that no coordinator gave out, compressed duplicates, two batches' worth of state."""
    told.create("i")
    for producer, epoch, sequence in ((123456, 5, 0), (123456, 5, 0), (123457, 5, 0), (123456, 4, 1), (123456, -1, 0)):
        records = told.batch(2, producer_id=producer, producer_epoch=epoch, base_sequence=sequence)
        _produce(told, 9, "i", records)
    for codec in Codec:
        records = told.batch(2, producer_id=123457, producer_epoch=5, base_sequence=2, codec=codec)
        _produce(told, 9, "i", records)
    _produce(told, 9, "i", told.batch(producer_id=123457, producer_epoch=5, base_sequence=-1))
    _produce(told, 9, "i", told.batch(producer_id=-1, producer_epoch=5, base_sequence=0))
    told.tell(ApiKey.DESCRIBE_PRODUCERS, 0, {"topics": [{"name": told.name("i"), "partition_indexes": [0]}]})
    _read(told, "i")


def init_producer_id(told: DataSession) -> None:
    for version in range(6):
        _producer_id(told, version)
    for version in (3, 4, 5):
        for producer, epoch in ((5, 0), (5, -1), (-1, 3), (5, 32767), (2**40, 7)):
            fields = {"transaction_timeout": 60_000, "producer_id": producer, "producer_epoch": epoch}
            told.tell(ApiKey.INIT_PRODUCER_ID, version, {"transactional_id": None, **fields})
    for version in range(6):
        told.tell(ApiKey.INIT_PRODUCER_ID, version, {"transactional_id": "", "transaction_timeout": 60_000})
    told.tell(ApiKey.INIT_PRODUCER_ID, 4, {"transactional_id": None, "transaction_timeout": 0})
    told.tell(ApiKey.INIT_PRODUCER_ID, 4, {"transactional_id": None, "transaction_timeout": -1})


def describe_producers(told: DataSession) -> None:
    told.create("d", 2)
    told.produced("d")
    rows = [
        {"name": told.name("d"), "partition_indexes": [0, 1, 2, -1]},
        {"name": told.name("nowhere"), "partition_indexes": [0]},
        {"name": "no/topic", "partition_indexes": [0]},
    ]
    for topics in (rows, rows[1:], []):
        told.tell(ApiKey.DESCRIBE_PRODUCERS, 0, {"topics": topics})


# --- offsets ------------------------------------------------------------------------------------------------------


def _list(told: DataSession, version: int, *asked: tuple[str, int, int], epoch: int = -1, **more: Any) -> None:
    topics = [
        {
            "name": told.name(topic),
            "partitions": [
                {"partition_index": index, "current_leader_epoch": epoch, "timestamp": timestamp}
                for _, index, timestamp in rows
            ],
        }
        for topic, rows in groupby(asked, key=lambda row: row[0])
    ]
    told.tell(ApiKey.LIST_OFFSETS, version, {"replica_id": -1, "timeout": 5000, "topics": topics, **more})


def _some_times(told: DataSession, topic: str) -> None:
    """Three batches whose times are not in order; the latest record stands in the middle of the second."""
    for at in ((-5000, -4000, -3000), (-4500, -100, -2000), (-2500, -1500)):
        rows = [(told.now_ms + each, b"k", b"v", ()) for each in at]
        told.produced(topic, 0, bytes(build_batch(rows)))


def list_offsets(told: DataSession) -> None:
    told.create("l", 2)
    _some_times(told, "l")
    now = told.now_ms
    times = (0, now - 5000, now - 4999, now - 4200, now - 3500, now - 2200, now - 100, now - 99, now + 9, 2**62)
    for version in LIST_OFFSETS_VERSIONS:
        for timestamp in (-1, -2, -3, -4, -5, -6, -7, -1000):
            _list(told, version, ("l", 0, timestamp), ("l", 1, timestamp))
        for timestamp in times:
            _list(told, version, ("l", 0, timestamp))
        _list(told, version, ("l", 1, 0), ("l", 5, -1), ("l", -1, -2), ("l", 0, -99), ("nowhere", 0, -1))


def list_offsets_codecs(told: DataSession) -> None:
    """Records within compressed batches are found, too; after log append time a batch has one time."""
    for codec in Codec:
        topic = f"l-{codec.name.lower()}"
        told.create(topic)
        for first in (-5000, -3000):
            rows = [(told.now_ms + first + step, b"k", b"v", ()) for step in (0, 900, 500)]
            told.produced(topic, 0, bytes(build_batch(rows, codec=codec)))
        for at in (-5000, -4600, -4000, -2600, -2000):
            _list(told, 7, (topic, 0, told.now_ms + at))
        _list(told, 7, (topic, 0, -3))
    told.create("l-stamped", configs={"message.timestamp.type": "LogAppendTime"})
    told.produced("l-stamped", 0, told.batch(3, at_ms=-9000))
    told.tell(
        ApiKey.LIST_OFFSETS,
        7,
        {"replica_id": -1, "topics": [{"name": told.name("l-stamped"), "partitions": [{"timestamp": 2**62}]}]},
    )


def list_offsets_checks(told: DataSession) -> None:
    told.create("l", 2)
    told.produced("l", 0, told.batch(5))
    for version in (1, 2, 4, 5, 6, 11):
        for isolation in (0, 1):
            _list(told, version, ("l", 0, -1), isolation_level=isolation)
        for replica in (-2, 1, 0, 7):
            for timestamp in (-1, -2, 0):
                _list(told, version, ("l", 0, timestamp), replica_id=replica)
        for epoch in (0, 1, -1, 99, -5):
            for timestamp in (-1, -2, 0):
                _list(told, version, ("l", 0, timestamp), epoch=epoch)
                _list(told, version, ("l", 9, timestamp), epoch=epoch)
        same = [{"partition_index": index, "timestamp": at} for index, at in ((0, -1), (0, -2), (1, -1), (0, -77))]
        told.tell(
            ApiKey.LIST_OFFSETS, version, {"replica_id": -1, "topics": [{"name": told.name("l"), "partitions": same}]}
        )
        told.tell(ApiKey.LIST_OFFSETS, version, {"replica_id": -1, "topics": []})


def offset_for_leader_epoch(told: DataSession) -> None:
    told.create("o", 2)
    told.produced("o", 0, told.batch(4))
    for version in (2, 3, 4):
        for current in (-1, 0, 1, 7):
            for epoch in (-1, 0, 1, -2, 5):
                rows = [
                    {"partition": index, "current_leader_epoch": current, "leader_epoch": epoch} for index in (0, 1, 2)
                ]
                topics = [{"topic": told.name(name), "partitions": rows} for name in ("o", "nowhere")]
                told.tell(ApiKey.OFFSET_FOR_LEADER_EPOCH, version, {"replica_id": -1, "topics": topics})
        told.tell(ApiKey.OFFSET_FOR_LEADER_EPOCH, version, {"replica_id": -2, "topics": []})


def delete_records(told: DataSession) -> None:
    _need_offsets_topic(told)
    told.create("x", 3)
    told.create("kept", configs={"cleanup.policy": "compact"})
    told.create("both", configs={"cleanup.policy": "compact,delete"})
    told.create("tiny")

    def delete(version: int, *asked: tuple[str, int, int]) -> None:
        topics = [
            {
                "name": told.name(topic),
                "partitions": [{"partition_index": index, "offset": offset} for _, index, offset in rows],
            }
            for topic, rows in groupby(asked, key=lambda row: row[0])
        ]
        told.tell(ApiKey.DELETE_RECORDS, version, {"topics": topics, "timeout": 10_000})

    for topic in ("x", "kept", "both"):
        for _ in range(4):
            told.produced(topic, 0, told.batch(5))
    for version in (0, 1, 2):
        delete(version, ("x", 0, 3 + version))
        delete(version, ("x", 0, 2))
        delete(version, ("x", 0, 0))
        delete(version, ("x", 0, 21))
        delete(version, ("x", 0, -2))
        delete(version, ("x", 1, 0), ("x", 9, 0), ("nowhere", 0, 0), ("kept", 0, 1), ("__consumer_offsets", 0, 0))
        delete(version, ("both", 0, 7 + version))
        delete(version, ("x", 1, -1))
        delete(version)
        _list(told, 7, ("x", 0, -2), ("x", 0 + 1, -2))
    _read(told, "x", offset=3)
    _read(told, "x", offset=5)
    _read(told, "x", offset=7)
    for timestamp in (-1, -2, 0):
        _list(told, 11, ("x", 0, timestamp))
    delete(2, ("x", 0, -1))
    for timestamp in (-1, -2, -4, 0):
        _list(told, 11, ("x", 0, timestamp))
    rows = [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}]
    told.tell(
        ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, {"replica_id": -1, "topics": [{"topic": told.name("x"), "partitions": rows}]}
    )
    _produce(told, 9, "x", told.batch(2))
    _read(told, "x", offset=20)
    for timestamp in (-1, -2, 0):
        _list(told, 11, ("x", 0, timestamp))


SCRIPTS: Final[dict[str, Script]] = {
    script.__name__: script
    for script in (
        produce_every_version,
        produce_without_answer,
        produce_versions_refused,
        produce_same_partition_twice,
        produce_to_internal_topics,
        produce_times_and_codecs,
        produce_bad_batches,
        produce_min_insync_replicas,
        idempotent_sequences,
        idempotent_wrap,
        idempotent_by_hand,
        init_producer_id,
        describe_producers,
        list_offsets,
        list_offsets_codecs,
        list_offsets_checks,
        offset_for_leader_epoch,
        delete_records,
    )
}
