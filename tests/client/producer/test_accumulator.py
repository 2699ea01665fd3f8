"""Waiting for buffer memory."""

from __future__ import annotations

import asyncio

import pytest

from fenceline.client.core.deadline import Deadline
from fenceline.client.core.errors import BufferFull
from fenceline.client.producer.accumulator import Accumulator, Batch
from fenceline.ids import TopicPartition
from fenceline.records.batch import Codec

TP = TopicPartition("t", 0)


def _full() -> tuple[Accumulator, Batch]:
    """A buffer with no room for another batch, and the batch that it holds."""
    accumulator = Accumulator(batch_size_bytes=1000, buffer_bytes=1000, codec=Codec.NONE, level=None)
    assert accumulator.append_encoded(TP, bytearray(1000), 1) is not None
    assert accumulator.append_encoded(TP, bytearray(1000), 1) is None
    (batch,) = accumulator.incomplete
    return accumulator, batch


def test_a_thread_does_not_wait_for_room_that_was_freed_before() -> None:
    accumulator, batch = _full()
    accumulator.release(batch)
    accumulator.wait_for_room(60)
    assert accumulator.append_encoded(TP, bytearray(1000), 1) is not None


def test_a_full_buffer_is_reported_after_the_timeout() -> None:
    accumulator, _ = _full()
    with pytest.raises(BufferFull, match=r"buffer\.memory=1000 was full for 1 ms"):
        accumulator.wait_for_room(0.001)


def test_coroutines_wait_for_freed_memory() -> None:
    async def story() -> None:
        accumulator, batch = _full()
        waiting = [asyncio.ensure_future(accumulator.freed(Deadline(60_000))) for _ in range(2)]
        await asyncio.sleep(0)
        assert accumulator.waiting_for_memory == 2
        accumulator.release(batch)
        await asyncio.gather(*waiting)
        assert accumulator.waiting_for_memory == 0
        assert accumulator.append_encoded(TP, bytearray(1000), 1) is not None
        with pytest.raises(BufferFull, match=r"buffer\.memory=1000 was full for 1 ms"):
            await accumulator.freed(Deadline(1))

    asyncio.run(story())
