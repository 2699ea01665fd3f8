"""The size limit of a Fetch follows what its range is expected to hold."""

from __future__ import annotations

from itertools import accumulate, product

from fenceline.client.core.epoch_history import EpochStart
from fenceline.client.core.fetched import scan
from fenceline.client.reader.ranges import ExpectedSizes, OffsetRange, RangeCursor, first_epoch_mismatch
from fenceline.ids import TopicPartition
from fenceline.records.build import build_batch

TP, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)
LIMIT = 1_000_000


def cursor(start: int, end: int, tp: TopicPartition = TP) -> RangeCursor:
    return RangeCursor(tp, OffsetRange(start, end))


def read(sizes: ExpectedSizes, *, records: int) -> int:
    """Note one batch of `records` records of 100 bytes; its size."""
    batch = build_batch([(0, None, b"x" * 100, ())] * records, leader_epoch=0)
    piece, _ = scan(TP, memoryview(bytes(batch)), 0, 0)
    sizes.note(piece)
    return len(batch)


def test_a_topic_that_was_never_read_gets_the_configured_limit() -> None:
    assert ExpectedSizes(LIMIT).limit_of(cursor(0, 5)) == LIMIT


def test_a_short_range_of_any_partition_gets_its_records_and_one_batch() -> None:
    sizes = ExpectedSizes(LIMIT)
    size = read(sizes, records=50)
    for one in (cursor(50, 150), cursor(0, 100, OTHER)):
        assert 2 * size + size <= sizes.limit_of(one) <= 3 * size + size
    assert sizes.limit_of(cursor(149, 150)) >= size


def test_the_largest_batch_counts_although_the_last_one_was_small() -> None:
    sizes = ExpectedSizes(LIMIT)
    size = read(sizes, records=500)
    read(sizes, records=1)
    assert sizes.limit_of(cursor(0, 1)) >= size


def test_a_long_range_gets_the_configured_limit() -> None:
    sizes = ExpectedSizes(LIMIT)
    read(sizes, records=50)
    assert sizes.limit_of(cursor(0, 10_000_000)) == LIMIT


def test_a_response_without_a_complete_batch_lifts_the_limit() -> None:
    sizes = ExpectedSizes(LIMIT)
    read(sizes, records=1)
    starved = cursor(1, 2)
    starved.needs_more_bytes = True
    assert sizes.limit_of(starved) == LIMIT


def test_the_first_record_with_another_epoch_than_planned_is_found() -> None:
    """Each sequence of three batches of two records each, in epochs 3 to 5, compared with each plan."""
    plans = [[], [(3, 0)], [(4, 0)], [(4, 12)], [(3, 0), (4, 12)], [(3, 0), (4, 10), (5, 14)], [(3, 0), (5, 20)]]
    for before, *steps in product((3, 4), (0, 1), (0, 1), (0, 1)):
        epochs = list(accumulate([before, *steps]))[1:]
        log = b"".join(
            bytes(build_batch([(0, None, b"v", ())] * 2, base_offset=10 + 2 * number, leader_epoch=epoch))
            for number, epoch in enumerate(epochs)
        )
        piece, _ = scan(TP, memoryview(log), 10, before)
        for plan in plans:
            planned = [EpochStart(epoch, offset) for epoch, offset in plan]
            expected = None
            for number, epoch in enumerate(epochs):
                offset = 10 + 2 * number
                known = [start.epoch for start in planned if start.offset <= offset]
                if known and known[-1] != epoch:
                    expected = EpochStart(epoch, offset)
                    break
            assert first_epoch_mismatch(planned, before, piece) == expected, (before, epochs, plan)
