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


def _produce(session: DataSession, version: int, topic: str, records: bytes | None, index: int = 0, **more: Any) -> Any:
    return session.tell(ApiKey.PRODUCE, version, session.produce(topic, index, records, **more))


def _read(session: DataSession, topic: str, index: int = 0, offset: int = 0) -> None:
    session.tell(ApiKey.FETCH, 12, session.fetch([(topic, index, offset)]))


# --- produce ------------------------------------------------------------------------------------------------------


def produce_every_version(session: DataSession) -> None:
    session.create("p", 2)
    for version in PRODUCE_VERSIONS:
        for acks in (-1, 1):
            _produce(session, version, "p", session.batch(2), acks=acks)
        for acks in (2, -2, 32767):
            _produce(session, version, "p", session.batch(), acks=acks)
        _produce(session, version, "nowhere", session.batch())
        for index in (2, -1):
            _produce(session, version, "p", session.batch(), index)
        _produce(session, version, "p", b"")
        _produce(session, version, "p", session.batch()[:-1])
        parts = [
            ("p", 0, session.batch()),
            ("p", 7, session.batch()),
            ("p", 1, session.batch(3)),
            ("nowhere", 0, session.batch()),
        ]
        session.tell(ApiKey.PRODUCE, version, session.produce_all(parts))
        session.tell(ApiKey.PRODUCE, version, session.produce_all([]))
    _read(session, "p")
    _read(session, "p", 1)


def produce_without_answer(session: DataSession) -> None:
    """acks=0: nothing comes back; an error closes the connection."""
    session.create("p")
    for version in (3, 9, 12, 13):
        session.send_only(ApiKey.PRODUCE, version, session.produce("p", 0, session.batch(), acks=0))
        _read(session, "p", offset=0)
        _produce(session, version, "p", session.batch()[:-1], acks=0)
        _produce(session, version, "nowhere", session.batch(), acks=0)
    _read(session, "p")


def produce_versions_refused(session: DataSession) -> None:
    for version in (2, 14):
        session.note(f"v{version}", _refused(session, ApiKey.PRODUCE, version))
    for version in (3, 19):
        session.note(f"v{version}", _refused(session, ApiKey.FETCH, version))
    for api, version in ((ApiKey.LIST_OFFSETS, 0), (ApiKey.LIST_OFFSETS, 12), (ApiKey.OFFSET_FOR_LEADER_EPOCH, 1)):
        session.note(f"{api.name} v{version}", _refused(session, api, version))


def _refused(session: DataSession, api: ApiKey, version: int) -> str:
    from tests.support.raw import ConnectionClosed, RawConnection

    with RawConnection(session.port) as connection:
        try:
            connection.exchange(api, version, bytes(64))
        except (ConnectionClosed, ConnectionResetError):
            return "closed"
    return "answered"


def produce_same_partition_twice(session: DataSession) -> None:
    session.create("p")
    for version in (3, 9, 13):
        session.tell(
            ApiKey.PRODUCE, version, session.produce_all([("p", 0, session.batch()), ("p", 0, session.batch(2))])
        )
        _read(session, "p")


def _need_offsets_topic(session: DataSession) -> None:
    session.ask(ApiKey.FIND_COORDINATOR, 3, {"key": "g", "key_type": 0})
    for _ in session.until(10):
        partition = [{"partition_index": 0, "timestamp": -1}]
        topics = [{"name": "__consumer_offsets", "partitions": partition}]
        found = session.ask(ApiKey.LIST_OFFSETS, 5, {"replica_id": -1, "topics": topics})
        if found.topics[0].partitions[0].error_code == 0:
            break


def produce_to_internal_topics(session: DataSession) -> None:
    _need_offsets_topic(session)
    for version in (3, 7, 8, 12):
        _produce(session, version, "__consumer_offsets", session.batch())


def produce_times_and_codecs(session: DataSession) -> None:
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
        session.create(topic, configs=configs)
        for codec in Codec:
            _produce(session, 9, topic, session.batch(3, codec=codec))
        _produce(session, 6, topic, session.batch(codec=Codec.ZSTD))
        for version in (7, 8, 10):
            _produce(session, version, topic, session.batch(2, at_ms=-2 * _HOUR_MS))
            _produce(session, version, topic, session.batch(2, at_ms=2 * _HOUR_MS))
            _produce(session, version, topic, session.batch(1, size_bytes=600))
            _produce(session, version, topic, session.batch(1, size_bytes=600, codec=Codec.GZIP))
            _produce(session, version, topic, bytes(build_batch([(session.now_ms, None, b"v", ())])))
            _produce(session, version, topic, bytes(build_batch([(-1, b"k", None, ())])))
            _produce(session, version, topic, session.batch(control=True))
        _read(session, topic)


def produce_bad_batches(session: DataSession) -> None:
    """Every case of `produce_cases` that Kafka answers with a code of its own, in the versions before and after 8."""
    from tests.records.produce_cases import CASES, MAX_MESSAGE_BYTES, TOPICS

    for topic, configs in TOPICS.items():
        session.create(topic, configs={"max.message.bytes": str(MAX_MESSAGE_BYTES), **configs})
    for case in CASES:
        if case.ours is not None or case.name in _FOUND_BY_KAFKA_ALONE:
            continue
        for version in (case.version,) if case.version < 7 else (7, 9, 13):
            session.note(case.name, "")
            _produce(session, version, case.topic, case.make(session.now_ms))


def produce_min_insync_replicas(session: DataSession) -> None:
    session.create("p", configs={"min.insync.replicas": "2"})
    for version in (3, 10):
        for acks in (-1, 1):
            _produce(session, version, "p", session.batch(), acks=acks)
    _read(session, "p")


# --- idempotent producers -----------------------------------------------------------------------------------------


def _producer_id(session: DataSession, version: int = 4) -> int:
    for _ in session.until(10):  # Kafka's first answer is that its first block of ids is on its way
        if session.ask(ApiKey.INIT_PRODUCER_ID, 4, {"transactional_id": None}).error_code != 14:
            break
    answer = session.tell(ApiKey.INIT_PRODUCER_ID, version, {"transactional_id": None, "transaction_timeout": 60_000})
    return int(answer.producer_id)


def idempotent_sequences(session: DataSession) -> None:
    session.create("i", 3)
    producer = _producer_id(session)

    def send(sequence: int, count: int = 1, epoch: int = 0, version: int = 9, index: int = 0, **more: Any) -> None:
        records = session.batch(count, producer_id=producer, producer_epoch=epoch, base_sequence=sequence, **more)
        _produce(session, version, "i", records, index)

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
    session.tell(
        ApiKey.DESCRIBE_PRODUCERS, 0, {"topics": [{"name": session.name("i"), "partition_indexes": [0, 1, 2]}]}
    )
    for index in range(3):
        _read(session, "i", index)


def idempotent_wrap(session: DataSession) -> None:
    """Sequences go on at 0 after 2^31 - 1."""
    session.create("i")
    producer = _producer_id(session)
    for sequence, count in ((0, 1), (1, 1)):
        records = session.batch(count, producer_id=producer, producer_epoch=0, base_sequence=sequence)
        _produce(session, 9, "i", records)
    records = session.batch(4, producer_id=producer, producer_epoch=1, base_sequence=2**31 - 2)
    _produce(session, 9, "i", records)
    session.tell(ApiKey.DESCRIBE_PRODUCERS, 0, {"topics": [{"name": session.name("i"), "partition_indexes": [0]}]})


def idempotent_by_hand(session: DataSession) -> None:
    """Ids and epochs that no coordinator gave out, compressed duplicates, two batches' worth of state."""
    session.create("i")
    for producer, epoch, sequence in ((123456, 5, 0), (123456, 5, 0), (123457, 5, 0), (123456, 4, 1), (123456, -1, 0)):
        records = session.batch(2, producer_id=producer, producer_epoch=epoch, base_sequence=sequence)
        _produce(session, 9, "i", records)
    for codec in Codec:
        records = session.batch(2, producer_id=123457, producer_epoch=5, base_sequence=2, codec=codec)
        _produce(session, 9, "i", records)
    _produce(session, 9, "i", session.batch(producer_id=123457, producer_epoch=5, base_sequence=-1))
    _produce(session, 9, "i", session.batch(producer_id=-1, producer_epoch=5, base_sequence=0))
    session.tell(ApiKey.DESCRIBE_PRODUCERS, 0, {"topics": [{"name": session.name("i"), "partition_indexes": [0]}]})
    _read(session, "i")


def init_producer_id(session: DataSession) -> None:
    for version in range(6):
        _producer_id(session, version)
    for version in (3, 4, 5):
        for producer, epoch in ((5, 0), (5, -1), (-1, 3), (5, 32767), (2**40, 7)):
            fields = {"transaction_timeout": 60_000, "producer_id": producer, "producer_epoch": epoch}
            session.tell(ApiKey.INIT_PRODUCER_ID, version, {"transactional_id": None, **fields})
    for version in range(6):
        session.tell(ApiKey.INIT_PRODUCER_ID, version, {"transactional_id": "", "transaction_timeout": 60_000})
    session.tell(ApiKey.INIT_PRODUCER_ID, 4, {"transactional_id": None, "transaction_timeout": 0})
    session.tell(ApiKey.INIT_PRODUCER_ID, 4, {"transactional_id": None, "transaction_timeout": -1})


def describe_producers(session: DataSession) -> None:
    session.create("d", 2)
    session.produced("d")
    rows = [
        {"name": session.name("d"), "partition_indexes": [0, 1, 2, -1]},
        {"name": session.name("nowhere"), "partition_indexes": [0]},
        {"name": "no/topic", "partition_indexes": [0]},
    ]
    for topics in (rows, rows[1:], []):
        session.tell(ApiKey.DESCRIBE_PRODUCERS, 0, {"topics": topics})


# --- offsets ------------------------------------------------------------------------------------------------------


def _list(session: DataSession, version: int, *asked: tuple[str, int, int], epoch: int = -1, **more: Any) -> None:
    topics = [
        {
            "name": session.name(topic),
            "partitions": [
                {"partition_index": index, "current_leader_epoch": epoch, "timestamp": timestamp}
                for _, index, timestamp in rows
            ],
        }
        for topic, rows in groupby(asked, key=lambda row: row[0])
    ]
    session.tell(ApiKey.LIST_OFFSETS, version, {"replica_id": -1, "timeout": 5000, "topics": topics, **more})


def _some_times(session: DataSession, topic: str) -> None:
    """Three batches whose times are not in order; the latest record stands in the middle of the second."""
    for at in ((-5000, -4000, -3000), (-4500, -100, -2000), (-2500, -1500)):
        rows = [(session.now_ms + each, b"k", b"v", ()) for each in at]
        session.produced(topic, 0, bytes(build_batch(rows)))


def list_offsets(session: DataSession) -> None:
    session.create("l", 2)
    _some_times(session, "l")
    now = session.now_ms
    times = (0, now - 5000, now - 4999, now - 4200, now - 3500, now - 2200, now - 100, now - 99, now + 9, 2**62)
    for version in LIST_OFFSETS_VERSIONS:
        for timestamp in (-1, -2, -3, -4, -5, -6, -7, -1000):
            _list(session, version, ("l", 0, timestamp), ("l", 1, timestamp))
        for timestamp in times:
            _list(session, version, ("l", 0, timestamp))
        _list(session, version, ("l", 1, 0), ("l", 5, -1), ("l", -1, -2), ("l", 0, -99), ("nowhere", 0, -1))


def list_offsets_codecs(session: DataSession) -> None:
    """Records within compressed batches are found, too; after log append time a batch has one time."""
    for codec in Codec:
        topic = f"l-{codec.name.lower()}"
        session.create(topic)
        for first in (-5000, -3000):
            rows = [(session.now_ms + first + step, b"k", b"v", ()) for step in (0, 900, 500)]
            session.produced(topic, 0, bytes(build_batch(rows, codec=codec)))
        for at in (-5000, -4600, -4000, -2600, -2000):
            _list(session, 7, (topic, 0, session.now_ms + at))
        _list(session, 7, (topic, 0, -3))
    session.create("l-stamped", configs={"message.timestamp.type": "LogAppendTime"})
    session.produced("l-stamped", 0, session.batch(3, at_ms=-9000))
    session.tell(
        ApiKey.LIST_OFFSETS,
        7,
        {"replica_id": -1, "topics": [{"name": session.name("l-stamped"), "partitions": [{"timestamp": 2**62}]}]},
    )


def list_offsets_checks(session: DataSession) -> None:
    session.create("l", 2)
    session.produced("l", 0, session.batch(5))
    for version in (1, 2, 4, 5, 6, 11):
        for isolation in (0, 1):
            _list(session, version, ("l", 0, -1), isolation_level=isolation)
        for replica in (-2, 1, 0, 7):
            for timestamp in (-1, -2, 0):
                _list(session, version, ("l", 0, timestamp), replica_id=replica)
        for epoch in (0, 1, -1, 99, -5):
            for timestamp in (-1, -2, 0):
                _list(session, version, ("l", 0, timestamp), epoch=epoch)
                _list(session, version, ("l", 9, timestamp), epoch=epoch)
        same = [{"partition_index": index, "timestamp": at} for index, at in ((0, -1), (0, -2), (1, -1), (0, -77))]
        session.tell(
            ApiKey.LIST_OFFSETS,
            version,
            {"replica_id": -1, "topics": [{"name": session.name("l"), "partitions": same}]},
        )
        session.tell(ApiKey.LIST_OFFSETS, version, {"replica_id": -1, "topics": []})


def offset_for_leader_epoch(session: DataSession) -> None:
    session.create("o", 2)
    session.produced("o", 0, session.batch(4))
    for version in (2, 3, 4):
        for current in (-1, 0, 1, 7):
            for epoch in (-1, 0, 1, -2, 5):
                rows = [
                    {"partition": index, "current_leader_epoch": current, "leader_epoch": epoch} for index in (0, 1, 2)
                ]
                topics = [{"topic": session.name(name), "partitions": rows} for name in ("o", "nowhere")]
                session.tell(ApiKey.OFFSET_FOR_LEADER_EPOCH, version, {"replica_id": -1, "topics": topics})
        session.tell(ApiKey.OFFSET_FOR_LEADER_EPOCH, version, {"replica_id": -2, "topics": []})


def delete_records(session: DataSession) -> None:
    _need_offsets_topic(session)
    session.create("x", 3)
    session.create("kept", configs={"cleanup.policy": "compact"})
    session.create("both", configs={"cleanup.policy": "compact,delete"})
    session.create("tiny")

    def delete(version: int, *asked: tuple[str, int, int]) -> None:
        topics = [
            {
                "name": session.name(topic),
                "partitions": [{"partition_index": index, "offset": offset} for _, index, offset in rows],
            }
            for topic, rows in groupby(asked, key=lambda row: row[0])
        ]
        session.tell(ApiKey.DELETE_RECORDS, version, {"topics": topics, "timeout": 10_000})

    for topic in ("x", "kept", "both"):
        for _ in range(4):
            session.produced(topic, 0, session.batch(5))
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
        _list(session, 7, ("x", 0, -2), ("x", 0 + 1, -2))
    _read(session, "x", offset=3)
    _read(session, "x", offset=5)
    _read(session, "x", offset=7)
    for timestamp in (-1, -2, 0):
        _list(session, 11, ("x", 0, timestamp))
    delete(2, ("x", 0, -1))
    for timestamp in (-1, -2, -4, 0):
        _list(session, 11, ("x", 0, timestamp))
    rows = [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}]
    session.tell(
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        4,
        {"replica_id": -1, "topics": [{"topic": session.name("x"), "partitions": rows}]},
    )
    _produce(session, 9, "x", session.batch(2))
    _read(session, "x", offset=20)
    for timestamp in (-1, -2, 0):
        _list(session, 11, ("x", 0, timestamp))


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
