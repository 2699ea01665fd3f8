"""Metadata transactions (controller.md C6, C8): held back until they end, aborted if their writer died."""

from __future__ import annotations

import asyncio

import pytest

from fenceline.errors import InternalError
from fenceline.log.core.disk import Disk
from fenceline.metadata.records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    MetadataRecord,
    NoOpRecord,
    TopicRecord,
    decode_record,
    encode_record,
)
from fenceline.node.metadata.batches import record_batch
from fenceline.node.metadata.metadata_log import MetadataLog
from fenceline.node.metadata.replay import MetadataTransactions
from fenceline.records.decode import decode_all
from fenceline.testing.sim_disk import SimDisk
from tests.node.controller_helpers import driver, prepare

D = "/data"
BEGIN, END, ABORT = BeginTransactionRecord("t"), EndTransactionRecord(), AbortTransactionRecord("r")
FIRST, SECOND = TopicRecord("first"), TopicRecord("second")


def _seen(*records: MetadataRecord) -> list[MetadataRecord]:
    transactions, seen = MetadataTransactions(), []
    for record in records:
        transactions.apply(encode_record(record, 30), lambda value: seen.append(decode_record(value)))
    return seen


def test_records_of_a_transaction_apply_at_its_end() -> None:
    assert _seen(FIRST, BEGIN, SECOND) == [FIRST]
    assert _seen(FIRST, BEGIN, SECOND, END, NoOpRecord()) == [FIRST, SECOND, NoOpRecord()]
    assert _seen(BEGIN, FIRST, ABORT, SECOND) == [SECOND]


@pytest.mark.parametrize("records", [(BEGIN, FIRST, BEGIN), (END,), (ABORT,), (BEGIN, END, END)])
def test_misplaced_markers_are_an_internal_error(records: tuple[MetadataRecord, ...]) -> None:
    with pytest.raises(InternalError):
        _seen(*records)


def _write(disk: Disk, *records: MetadataRecord) -> None:
    """Append as an earlier process of the controller."""
    log = MetadataLog.open(disk, D, now_ms=0)
    log.append(record_batch(records, 30, 0), 1, 0)
    assert log.flush() is None
    log.close()


def _records(disk: Disk) -> list[MetadataRecord]:
    log = MetadataLog.open(disk, D, now_ms=0)
    read = log.partition_log.read(0, 1 << 20, end_offset_exclusive=log.end_offset)
    content = bytes(read.records if read.resident else read.load())
    log.close()
    return [
        decode_record(bytes(record.value))
        for header, records in decode_all(content)
        if not header.is_control
        for record in records
    ]


def test_interrupted_bootstrap_is_written_again() -> None:
    """C6: the unfinished transaction is aborted first."""
    disk = SimDisk(0)
    disk.mkdir(D)
    prepare(disk, D)
    _write(disk, BeginTransactionRecord("Bootstrap records"), FeatureLevelRecord("metadata.version", 7))

    async def story() -> None:
        controller = driver(disk, D)
        await controller.start()
        assert controller.image.metadata_version == 30
        await controller.stop()

    asyncio.run(story())
    kinds = [type(record) for record in _records(disk) if not isinstance(record, FeatureLevelRecord)]
    assert kinds[:3] == [BeginTransactionRecord, AbortTransactionRecord, BeginTransactionRecord]
    assert kinds[-1] is EndTransactionRecord


def test_unfinished_transaction_is_aborted_by_the_next_controller() -> None:
    """C6, C8: earlier records are kept."""
    disk = SimDisk(0)
    disk.mkdir(D)
    prepare(disk, D)

    async def story(expected: set[str]) -> None:
        controller = driver(disk, D)
        await controller.start()
        assert set(controller.image.topics_by_name) == expected
        await controller.stop()

    asyncio.run(story(set()))
    _write(disk, TopicRecord("kept"))
    _write(disk, BEGIN, TopicRecord("lost"))
    asyncio.run(story({"kept"}))
    assert isinstance(_records(disk)[-1], AbortTransactionRecord)
    asyncio.run(story({"kept"}))
