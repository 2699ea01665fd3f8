"""Built batches are read back, also by other clients' parsers, and Apache Kafka's own files are decoded."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiokafka.record import MemoryRecords as AioRecords
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record import MemoryRecords as KafkaPythonRecords

from fenceline.errors import ErrorCode
from fenceline.records.batch import Codec, TimestampType, check_crc, read_header
from fenceline.records.build import BatchBuilder, Record, build_batch
from fenceline.records.decode import decode_all, decode_batch
from fenceline.records.errors import RecordsError
from fenceline.testing.apache_kafka import ApacheKafka, run_tool, small_kafka
from tests.records.raw_produce import RawProducer

NOW = 1_700_000_000_000
CODECS = {codec.name.lower(): codec for codec in Codec}
ROWS = [
    (
        NOW + index * 7 - index % 3 * 50,
        None if index % 5 == 0 else b"key %d" % index,
        None if index % 7 == 0 else b"value" * (index % 40),
        (("h", b"x"), ("é", None), ("h", b"")) if index % 4 == 0 else (),
    )
    for index in range(3000)
]


@pytest.mark.usefixtures("twin")
@pytest.mark.parametrize("codec", list(Codec))
def test_round_trip(codec: Codec) -> None:
    batch = b"..." + build_batch(ROWS, base_offset=70, codec=codec)
    header = read_header(batch, 3)
    check_crc(batch, header)
    records = decode_batch(batch, header)
    assert all(type(record) is Record for record in records)
    assert [record[1:] for record in records] == ROWS
    assert [record.offset for record in records] == list(range(70, 70 + len(ROWS)))
    assert header.max_timestamp == max(row[0] for row in ROWS)


@pytest.mark.usefixtures("twin")
def test_log_append_time_replaces_every_timestamp() -> None:
    batch = build_batch(ROWS, timestamp_type=TimestampType.LOG_APPEND_TIME)
    assert {r.timestamp for r in decode_batch(batch, read_header(batch))} == {max(row[0] for row in ROWS)}


@pytest.mark.usefixtures("twin")
@pytest.mark.parametrize("codec", list(Codec))
def test_a_builder_builds_the_same(codec: Codec) -> None:
    builder = BatchBuilder(1 << 30)
    for _ in range(2):
        for row in ROWS:
            assert builder.try_append(*row)
        built = builder.build(codec=codec, producer_id=3, producer_epoch=1, base_sequence=9)
        assert builder.record_count == 0
        assert built == build_batch(ROWS, codec=codec, producer_id=3, producer_epoch=1, base_sequence=9)


@pytest.mark.usefixtures("twin")
def test_full_builder_is_unchanged() -> None:
    builder = BatchBuilder(200)
    assert builder.try_append(NOW, None, bytes(500)), "the first record is always accepted"
    assert not builder.try_append(NOW, None, b"")
    assert builder.record_count == 1
    assert len(builder.build()) > 500
    sizes = []
    while builder.try_append(NOW, b"k", b"v" * 10):
        sizes.append(builder.size_bytes)
    assert builder.size_bytes == sizes[-1] <= 200
    assert read_header(builder.build()).record_count == len(sizes)


@pytest.mark.usefixtures("twin")
def test_empty_batch_is_rejected() -> None:
    with pytest.raises(ValueError, match="at least one"):
        build_batch([])
    with pytest.raises(ValueError, match="at least one"):
        BatchBuilder(10).build()


@pytest.mark.usefixtures("twin")
def test_header_names_that_are_not_utf8_stay_readable() -> None:
    batch = build_batch([(NOW, None, b"v", (("ab", b"1"),))])
    batch[batch.index(b"ab")] = 0xFF
    assert decode_batch(batch, read_header(batch))[0].headers == (("�b", b"1"),)


@pytest.mark.usefixtures("twin")
@pytest.mark.parametrize("delta", [0x04, 0x01])
def test_offsets_outside_the_batch_are_corrupt(delta: int) -> None:
    batch = build_batch([(NOW, None, b"v", ())])
    batch[64] = delta  # length, attributes, timestamp delta, offset delta (zigzag)
    with pytest.raises(RecordsError) as refused:
        decode_batch(batch, read_header(batch))
    assert refused.value.code is ErrorCode.CORRUPT_MESSAGE


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, NOW),
            st.none() | st.binary(max_size=30),
            st.none() | st.binary(max_size=300),
            st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=9)), max_size=3).map(tuple),
        ),
        min_size=1,
        max_size=30,
    )
)
@pytest.mark.parametrize("parser", [AioRecords, KafkaPythonRecords])
def test_other_parsers_read_built_batches(
    parser: type, rows: list[tuple[int, bytes | None, bytes | None, tuple[()]]]
) -> None:
    """aiokafka reads every codec; kafka-python has no codec libraries of its own except gzip."""
    for codec in list(Codec) if parser is AioRecords else [Codec.NONE, Codec.GZIP]:
        parsed = parser(bytes(build_batch(rows, base_offset=5, codec=codec))).next_batch()
        assert parsed.validate_crc()
        found = [(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in parsed]
        assert found == [(5 + index, *row) for index, row in enumerate(rows)]


@pytest.fixture(scope="module")
def broker() -> Iterator[ApacheKafka]:
    with small_kafka() as kafka:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        names = [f"{side}-{name}" for side in ("theirs", "ours", "java") for name in CODECS]
        forever = {"retention.ms": "-1"}  # Kafka applies retention 30 s after its start
        for created in admin.create_topics([NewTopic(name, 1, 1, config=forever) for name in names]).values():
            created.result(60)
        yield kafka


def segment(kafka: ApacheKafka, topic: str) -> Path:
    return kafka.log_dir / f"{topic}-0" / "00000000000000000000.log"


@pytest.mark.kafka
@pytest.mark.parametrize("name", CODECS)
def test_batches_written_by_librdkafka_are_decoded(broker: ApacheKafka, name: str) -> None:
    # A short batch is sent uncompressed if compression makes it longer: all records wait for the flush.
    producer = Producer({"bootstrap.servers": broker.bootstrap, "compression.type": name, "linger.ms": 60_000})
    for timestamp, key, value, headers in ROWS:
        producer.produce(f"theirs-{name}", value, key, timestamp=timestamp, headers=list(headers))
        producer.poll(0)
    assert producer.flush(60) == 0
    decoded = list(decode_all(segment(broker, f"theirs-{name}").read_bytes()))
    assert {header.codec for header, _ in decoded} == {CODECS[name]}
    assert [record[1:] for _, records in decoded for record in records] == ROWS


@pytest.mark.kafka
@pytest.mark.parametrize("name", CODECS)
def test_batches_written_by_kafkas_producer_are_decoded(broker: ApacheKafka, name: str, tmp_path: Path) -> None:
    """ProducerPerformance: Java's codecs and framings."""
    settings_file = tmp_path / "producer.properties"
    settings_file.write_text(f"bootstrap.servers={broker.bootstrap}\ncompression.type={name}\nlinger.ms=20\n")
    payloads = tmp_path / "payloads"
    payloads.write_text("\n".join(f"line {index % 50} of many, many" for index in range(50)))
    run_tool(
        "org.apache.kafka.tools.ProducerPerformance", "--topic", f"java-{name}", "--num-records", "5000",
        "--payload-file", str(payloads), "--throughput", "-1", "--producer.config", str(settings_file),
    )  # fmt: skip
    decoded = list(decode_all(segment(broker, f"java-{name}").read_bytes()))
    assert {header.codec for header, _ in decoded} == {CODECS[name]}
    records = [record for _, records in decoded for record in records]
    assert [record.offset for record in records] == list(range(5000))
    assert {record.value for record in records} <= {line.encode() for line in payloads.read_text().split("\n")}


@pytest.mark.kafka
@pytest.mark.parametrize("name", CODECS)
def test_kafka_accepts_and_returns_built_batches(broker: ApacheKafka, name: str) -> None:
    """The broker decompresses every batch; librdkafka reads it, and Kafka's dump tool reports it valid."""
    topic = f"ours-{name}"
    raw = RawProducer("127.0.0.1", broker.port)
    deadline = time.monotonic() + 60
    while True:
        answer = raw.produce(topic, bytes(build_batch(ROWS, codec=CODECS[name])))
        if answer.code not in (3, 6) or time.monotonic() > deadline:
            break
    raw.close()
    assert answer.code == 0
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    messages = []
    while len(messages) < len(ROWS) and time.monotonic() < deadline:
        messages += consumer.consume(1000, 1)
    consumer.close()
    found = [(m.timestamp()[1], m.key(), m.value(), tuple(m.headers() or ())) for m in messages]
    assert found == ROWS
    dump = run_tool(
        "org.apache.kafka.tools.DumpLogSegments", "--deep-iteration", "--files", str(segment(broker, topic))
    )
    assert f"compresscodec: {name}" in dump
    assert "isvalid: true" in dump
    assert dump.count("| offset: ") == len(ROWS)
