"""Finds a batch that a producer sends again, when a restarted node knows only that it lies before the last one.

Owns the search in the log. A producer snapshot holds the last batch of each producer only, while the producer may have
had five in flight. Kafka then answers 45 (OUT_OF_ORDER_SEQUENCE_NUMBER) for the four before it, and clients that start
a new epoch write them twice. Here the log is searched instead.

It is searched from the newest to the oldest batch, in steps, for at most `MAX_SEARCH_BYTES`, and once for each producer
whose batch is not found: an error stays cheap. It reads on the loop: this happens only after restarts, and the end of a
log is in the page cache.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fenceline.log.core.tail import BATCHES_KEPT, BatchSeen
from fenceline.records.batch import iter_headers
from fenceline.records.sequences import is_after

if TYPE_CHECKING:
    from fenceline.log.partition.partition_log import PartitionLog
    from fenceline.records.batch import BatchHeader

MAX_SEARCH_BYTES: Final = 16 << 20
_STEPS: Final = (1_000, 10_000, 100_000)
"""How many offsets before the oldest known batch to search."""
_READ_BYTES: Final = 1 << 20


def find_earlier(log: PartitionLog, header: BatchHeader) -> BatchSeen | None:
    """The batch of the log with the producer, epoch and sequences of `header`; None if there is none, or if five newer
    ones are known (a producer has at most five in flight). Raises StorageError."""
    producer = log.producers.get(header.producer_id)
    if producer is None or producer.epoch != header.producer_epoch or header.base_sequence < 0:
        return None
    known = producer.batches
    if not 0 < len(known) < BATCHES_KEPT or producer.producer_id in log.producers.without_earlier:
        return None
    if not is_after(known[0].first_sequence, header.base_sequence):
        return None
    end, left_bytes = known[0].first_offset, MAX_SEARCH_BYTES
    for step in _STEPS:
        start = max(log.log_start_offset, known[0].first_offset - step)
        offset = start
        while offset < end and left_bytes > 0:
            records = log.read(offset, _READ_BYTES, end_offset_exclusive=end).load()
            left_bytes -= len(records)
            before = offset
            for each in iter_headers(records):
                offset = each.next_offset
                if (
                    each.producer_id == header.producer_id
                    and each.producer_epoch == header.producer_epoch
                    and each.base_sequence == header.base_sequence
                    and each.last_sequence == header.last_sequence
                    and not each.is_control
                ):
                    last = each.base_offset + each.last_offset_delta
                    return BatchSeen(each.base_sequence, each.last_sequence, each.base_offset, last, each.max_timestamp)
            if offset == before:
                break
        end = start
        if left_bytes <= 0 or end <= log.log_start_offset:
            break
    log.producers.without_earlier.add(producer.producer_id)
    return None
