"""The leader's rules, case by case; `test_validate_kafka.py` sends the same cases to Apache Kafka."""

from __future__ import annotations

import pytest

from fenceline.errors import ErrorCode
from fenceline.records.batch import Codec, TimestampType, crc_is_valid, read_header
from fenceline.records.build import build_batch
from fenceline.records.decode import decode_batch
from fenceline.records.errors import RecordsError
from fenceline.records.validate import NO_LIMIT_MS, Validated, validate_produced
from tests.records.produce_cases import CASES, HOUR_MS, MAX_MESSAGE_BYTES, TOPICS, Case, deltas, raw_batch, rows

pytestmark = pytest.mark.usefixtures("twin")
NOW = 1_700_000_000_000


def validate(
    records: bytes, topic: str = "plain", *, version: int = 9, check_compressed: bool = True, from_client: bool = True
) -> Validated:
    config = TOPICS[topic]
    target = config.get("compression.type")
    return validate_produced(
        memoryview(bytearray(records)),
        version=version,
        max_message_bytes=MAX_MESSAGE_BYTES,
        timestamp_type=TimestampType.LOG_APPEND_TIME if topic == "stamped" else TimestampType.CREATE_TIME,
        target_codec=None if target is None else Codec.from_name(target),
        now_ms=NOW,
        timestamp_before_max_ms=int(config.get("message.timestamp.before.max.ms", NO_LIMIT_MS)),
        timestamp_after_max_ms=HOUR_MS,
        compacted="cleanup.policy" in config,
        check_compressed=check_compressed,
        from_client=from_client,
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_result_is_the_one_of_kafka(case: Case) -> None:
    expected = case.code if case.ours is None else case.ours
    if expected == ErrorCode.NONE:
        done = validate(case.make(NOW), case.topic, version=case.version)
        assert crc_is_valid(done.records, done.header)
        assert done.header == read_header(done.records)
        assert done.records.nbytes == done.header.size_bytes
        assert [r.offset for r in decode_batch(done.records, done.header)] == list(range(done.header.record_count))
        return
    with pytest.raises(RecordsError) as refused:
        validate(case.make(NOW), case.topic, version=case.version)
    assert refused.value.code == expected
    assert tuple(index for index, _ in refused.value.record_errors) == case.record_indexes


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("topic", ["to-zstd", "to-lz4", "to-gzip", "to-snappy", "to-none", "plain"])
def test_recompression_keeps_the_records(codec: Codec, topic: str) -> None:
    batch = build_batch(
        rows(NOW, 50), codec=codec, producer_id=7, producer_epoch=2, base_sequence=5, transactional=True
    )
    done = validate(bytes(batch), topic)
    before = read_header(batch)
    assert decode_batch(done.records, done.header) == decode_batch(batch, before)
    assert done.header.codec == (codec if topic == "plain" else Codec.from_name(topic.removeprefix("to-")))
    for name in ("producer_id", "producer_epoch", "base_sequence", "is_transactional", "max_timestamp", "record_count"):
        assert getattr(done.header, name) == getattr(before, name)


def test_plain_batch_is_accepted_unchanged() -> None:
    batch = memoryview(bytearray(build_batch(rows(NOW, 50))))
    done = validate_produced(
        batch, version=9, max_message_bytes=MAX_MESSAGE_BYTES, timestamp_type=TimestampType.CREATE_TIME,
        target_codec=None, now_ms=NOW,
    )  # fmt: skip
    done.records[0:8] = (5).to_bytes(8, "big")
    assert read_header(batch).base_offset == 5, "no copy"
    assert not done.rebuilt
    assert done.log_append_time_ms == -1


def test_read_only_bytes_are_copied() -> None:
    records = memoryview(bytes(build_batch(rows(NOW))))
    done = validate_produced(
        records, version=9, max_message_bytes=MAX_MESSAGE_BYTES, timestamp_type=TimestampType.CREATE_TIME,
        target_codec=None, now_ms=NOW,
    )  # fmt: skip
    assert not done.records.readonly


def test_log_append_time_is_set_under_a_new_crc() -> None:
    done = validate(bytes(build_batch(rows(NOW - 9 * HOUR_MS))), "stamped")
    assert done.log_append_time_ms == NOW
    assert done.header.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert crc_is_valid(done.records, done.header)
    assert {r.timestamp for r in decode_batch(done.records, done.header)} == {NOW}


def test_a_wrong_maximum_is_corrected() -> None:
    case = next(c for c in CASES if c.name == "header's maximum wrong")
    assert validate(case.make(NOW)).header.max_timestamp == NOW - 1


def test_log_append_time_of_a_producer_becomes_create_time() -> None:
    case = next(c for c in CASES if c.name == "log append time set, in range")
    assert validate(case.make(NOW)).header.timestamp_type is TimestampType.CREATE_TIME


def test_compressed_records_are_not_decompressed_by_default() -> None:
    batch = raw_batch(NOW, deltas(0, 1, 2), count=2, codec=Codec.LZ4)
    validate(batch, check_compressed=False)
    with pytest.raises(RecordsError):
        validate(batch, check_compressed=True)
    with pytest.raises(RecordsError):
        validate(batch, "compacted", check_compressed=False)
    with pytest.raises(RecordsError):
        validate(batch, "to-zstd", check_compressed=False)


def test_a_coordinator_may_write_control_records() -> None:
    batch = bytes(
        build_batch([(NOW, b"\0\0\0\1", b"", ())], control=True, base_offset=7, producer_id=1, producer_epoch=0)
    )
    assert validate(batch, "to-lz4", from_client=False).header.codec is Codec.NONE
    with pytest.raises(RecordsError):
        validate(batch, "to-lz4")
