"""The input is sent once, every flight to the partition of its carrier."""

from __future__ import annotations

from typing import ClassVar

import pyarrow as pa
import pytest

from fenceline.client.producer.partitioner import partition_of_key
from fenceline.demo import feed as feeds
from fenceline.demo.feed import Feed
from fenceline.demo.flights import Flights


@pytest.fixture(scope="module")
def january() -> Flights:
    return Flights(months=1)


def test_every_flight_is_sent_to_the_partition_of_its_carrier(january: Flights) -> None:
    (records,) = january.months(4)
    assert records.num_rows == len(january) == january.expected().flights == 27_004
    pairs = set(zip(records["key"].to_pylist(), records["partition"].to_pylist(), strict=True))
    assert pairs == {(key, partition_of_key(key, 4)) for key, _ in pairs}
    counts = records["partition"].value_counts().to_pylist()
    busiest = max(counts, key=lambda each: each["counts"])
    assert january.busiest_partition(4) == busiest["values"]


class FakeProducer:
    """A fake producer that records its calls."""

    batches: ClassVar[list[tuple[dict[str, object], object, int]]] = []

    def __init__(self, bootstrap: str, **settings: object) -> None:
        self._settings = settings

    def __enter__(self) -> FakeProducer:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def send_arrow(self, records: pa.Table, topic: str, *, key: str, value: str, partition: object) -> FakeProducer:
        FakeProducer.batches.append((self._settings, partition, records.num_rows))
        return self

    def result(self) -> None:
        pass


def test_only_the_busy_partition_is_sent_with_acks_1(january: Flights, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "Producer", FakeProducer)
    FakeProducer.batches.clear()
    busy = january.busiest_partition(4)
    feed = Feed("nowhere:1", "flights", january.months(4), busy)
    alone = feed.send_month_acks_one()
    (theirs, _, count), (others, _, rest) = FakeProducer.batches
    assert (theirs["acks"], "acks" in others) == ("1", False)
    assert (count, count + rest) == (alone, 27_004)
    assert feed.produced == 27_004
    assert (feed.send_month(), feed.send_month_acks_one()) == (None, 0)
    lost = pa.table({"key": pa.array([b"UA"]), "value": pa.array([b"{}"])})
    assert feed.resend(lost) == 1
    settings, *sent = FakeProducer.batches[-1]
    assert sent == [busy, 1]
    assert "acks" not in settings
