"""Prefetching: bounded across all brokers, and no fetched batch is skipped silently."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from fenceline.client.consumer import async_consumer, fetch_buffer
from fenceline.client.consumer import consumer as consumer_module
from fenceline.client.consumer.consumer import Consumer
from fenceline.client.reader.reader import RangeReader
from fenceline.errors import ErrorCode, PeerError
from fenceline.ids import TopicPartition
from fenceline.records.batch import BATCH_OVERHEAD, Codec, assign_in_place, read_header
from fenceline.records.build import build_batch
from fenceline.records.crc import crc32c
from fenceline.records.errors import RecordsError
from fenceline.wire.apis import ApiKey
from tests.client.scripted_cluster import REFUSE, SILENT, ScriptedCluster

_QUICK = {"retry.backoff.ms": 1, "retry.backoff.max.ms": 5, "reconnect.backoff.ms": 1, "fetch.max.wait.ms": 10}
_LENGTH_AT, _CRC_AT, _CRC_FROM = 8, 17, 21


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with ScriptedCluster(nodes=3) as scripted:
        yield scripted


def _until(done: Callable[[], object]) -> None:
    end_s = time.monotonic() + 60
    while not done():
        assert time.monotonic() < end_s, "it did not come to that"


def _spread(cluster: ScriptedCluster) -> list[TopicPartition]:
    tps = cluster.add_topic("t", 6)
    for tp in tps:
        cluster.logs[tp].leader = 1 + tp.partition % 3
    return tps


def test_requests_to_all_brokers_together_fit_the_buffer(cluster: ScriptedCluster) -> None:
    tps = _spread(cluster)
    cluster.node_rule = lambda node, key: SILENT if key is ApiKey.FETCH else None
    with Consumer(cluster.bootstrap, **_QUICK, **{"queued.max.bytes": 100_000}) as consumer:
        consumer.assign(tps)
        # Concurrently: the first request alone would get the whole budget.
        consumer._on_loop(lambda: [consumer._async.seek(tp, 0) for tp in tps])
        _until(lambda: consumer.poll(10) or {node for node, _, _ in list(cluster.fetches)} == {1, 2, 3})
        asked = [request.max_bytes for _, _, request in cluster.fetches]
    assert len(asked) == 3
    assert sum(asked) <= 100_000
    assert min(asked) >= 100_000 // 4


def test_request_size_is_limited_by_its_partitions(cluster: ScriptedCluster) -> None:
    tps = _spread(cluster)
    with Consumer(cluster.bootstrap, **_QUICK, **{"max.partition.fetch.bytes": 1000}) as consumer:
        consumer.assign(tps)
        for tp in tps:
            consumer.seek(tp, 0)
        _until(lambda: consumer.poll(10) or len(cluster.fetches) >= 6)
        asked = [request for _, _, request in list(cluster.fetches)]
    assert all(request.max_bytes == 1000 * len(request.partitions) for request in asked)


def _batch(base_offset: int, value: bytes, *, codec: Codec = Codec.NONE, count: int = 1) -> bytes:
    raw = bytearray(build_batch([(1_000, None, value, ())] * count, codec=codec))
    assign_in_place(raw, 0, base_offset, 0)
    return bytes(raw)


def _poisoned(batch: bytes) -> bytes:
    """A batch whose records cannot be decoded although its checksum is valid."""
    raw = bytearray(batch)
    raw[BATCH_OVERHEAD : BATCH_OVERHEAD + 2] = b"\x7f\x7f"
    raw[_CRC_AT:_CRC_FROM] = crc32c(bytes(raw[_CRC_FROM:])).to_bytes(4, "big")
    return bytes(raw)


@pytest.mark.parametrize("arrow", [False, True])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_undecodable_batch_is_not_skipped(cluster: ScriptedCluster, arrow: bool, codec: Codec) -> None:
    (tp,) = cluster.add_topic("t")
    noise = bytes(range(256)) * 4
    first = _batch(0, noise, codec=codec)
    second = _poisoned(_batch(1, noise * 100, codec=codec))
    third = _batch(2, b"third", codec=codec)
    cluster.logs[tp].batches = [first, second, third]
    assert read_header(third).base_offset == 2
    # One batch per response, so that the first one is returned.
    with Consumer(cluster.bootstrap, **_QUICK, **{"max.partition.fetch.bytes": 1}) as consumer:
        consumer.assign([tp])
        consumer.seek(tp, 0)

        def offsets() -> list[int]:
            if arrow:
                return list(consumer.poll_arrow(50, max_bytes=1).column("offset").to_pylist())
            return [record.offset for record in consumer.poll(50)]

        found: list[int] = []
        refusals: list[RecordsError] = []

        def poll() -> bool:
            try:
                found.extend(offsets())
            except RecordsError as error:
                refusals.append(error)
            return len(refusals) >= 3

        _until(poll)
        assert {error.code for error in refusals} == {ErrorCode.CORRUPT_MESSAGE}
        assert found == [0]
        assert consumer.position(tp) == 1
        consumer.seek(tp, 2)
        _until(lambda: found.extend(offsets()) or len(found) >= 2)
        assert found == [0, 2]


def _damaged(batch: bytes, at: int) -> bytes:
    return batch[:at] + bytes([batch[at] ^ 1]) + batch[at + 1 :]


@pytest.mark.parametrize("arrow", [False, True])
@pytest.mark.parametrize("at", [_CRC_FROM, 16], ids=["checksum", "magic"])
def test_records_before_and_after_a_corrupt_batch_are_read(cluster: ScriptedCluster, arrow: bool, at: int) -> None:
    """In the same response, and so are other partitions. Every poll raises the error until a seek."""
    bad, good = cluster.add_topic("t", 2)
    cluster.logs[bad].batches = [_batch(offset, b"%d" % offset) for offset in range(6)]
    cluster.logs[bad].sent = lambda raw: _damaged(raw, at) if read_header(raw).base_offset == 3 else raw
    cluster.logs[good].batches = [_batch(offset, b"%d" % offset) for offset in range(3)]
    found: dict[int, list[int]] = {0: [], 1: []}
    refusals: list[PeerError] = []
    with Consumer(cluster.bootstrap, **_QUICK, **{"auto.offset.reset": "none"}) as consumer:
        consumer.assign([bad, good])
        consumer.seek(bad, 0)
        consumer.seek(good, 0)

        def poll() -> None:
            try:
                if arrow:
                    columns = consumer.poll_arrow(20).select(["partition", "offset"]).to_pydict()
                    rows = list(zip(columns["partition"], columns["offset"], strict=True))
                else:
                    rows = [(record.partition, record.offset) for record in consumer.poll(20)]
                for partition, offset in rows:
                    found[partition].append(offset)
            except PeerError as error:
                refusals.append(error)

        _until(lambda: poll() or len(refusals) >= 3)
        assert found[0] == [0, 1, 2]
        assert {error.code for error in refusals} == {ErrorCode.CORRUPT_MESSAGE}
        assert all("t-0" in str(error) and "offset 3" in str(error) for error in refusals)
        _until(lambda: poll() or len(found[1]) >= 3)
        with cluster.lock:
            cluster.logs[good].batches.append(_batch(3, b"3"))
        _until(lambda: poll() or len(found[1]) >= 4)
        assert found == {0: [0, 1, 2], 1: [0, 1, 2, 3]}

        consumer.seek(bad, 4)
        del refusals[:]
        _until(lambda: poll() or len(found[0]) >= 5)
        assert found[0] == [0, 1, 2, 4, 5]
        assert refusals == []


def _emptied(batch: bytes) -> bytes:
    """The last batch of a producer as compaction leaves it: a header without records."""
    raw = bytearray(batch[:BATCH_OVERHEAD])
    raw[_LENGTH_AT : _LENGTH_AT + 4] = (BATCH_OVERHEAD - _LENGTH_AT - 4).to_bytes(4, "big")
    raw[BATCH_OVERHEAD - 4 :] = bytes(4)
    raw[_CRC_AT:_CRC_FROM] = crc32c(bytes(raw[_CRC_FROM:])).to_bytes(4, "big")
    return bytes(raw)


@pytest.mark.parametrize("arrow", [False, True])
def test_empty_batches_do_not_satisfy_a_waiting_poll(cluster: ScriptedCluster, arrow: bool) -> None:
    (tp,) = cluster.add_topic("t")
    batches = [_batch(offset, b"%d" % offset) for offset in range(5)]
    cluster.logs[tp].batches = [batches[0], *map(_emptied, batches[1:3]), *batches[3:]]
    limits = {"max.partition.fetch.bytes": 1}
    with Consumer(cluster.bootstrap, **_QUICK, **limits) as consumer:
        consumer.assign([tp])
        consumer.seek(tp, 0)
        for offset in (0, 3, 4):
            if arrow:
                assert consumer.poll_arrow(60_000, max_bytes=1).column("offset").to_pylist() == [offset]
            else:
                assert [record.offset for record in consumer.poll(60_000, max_records=1)] == [offset]
        assert consumer.position(tp) == 5
    with RangeReader(cluster.bootstrap, **_QUICK, **limits) as reader:
        pieces = list(reader.read({tp: (0, 5)}, arrow=arrow))
    assert all(piece.num_rows if arrow else piece for piece in pieces)
    assert sum(piece.num_rows if arrow else len(piece) for piece in pieces) == 3


def test_repeated_fetch_error_is_raised_by_one_poll(cluster: ScriptedCluster) -> None:
    (tp,) = cluster.add_topic("t")
    cluster.logs[tp].batches = [_batch(0, b"value")]

    def await_fetches(count: int) -> None:
        asked = len(cluster.fetches)
        _until(lambda: len(cluster.fetches) >= asked + count)

    def refuse(times: int) -> None:
        """Returns once the error has been processed, that is, the next request has arrived."""
        cluster.fault_rule = lambda key: ErrorCode.CORRUPT_MESSAGE if key is ApiKey.FETCH else None
        await_fetches(times)
        with cluster.lock:
            cluster.fault_rule = None
        await_fetches(2)

    with Consumer(cluster.bootstrap, **_QUICK, **{"auto.offset.reset": "none"}) as consumer:
        consumer.assign([tp])
        consumer.seek(tp, 1)
        assert consumer.poll(100) == []
        refuse(5)
        with pytest.raises(PeerError, match="CORRUPT_MESSAGE"):
            consumer.poll(10_000)
        assert consumer.poll(100) == []
        refuse(5)
        # An error at the previous position is not raised after a seek.
        consumer.seek(tp, 0)
        assert [record.value for record in consumer.poll(10_000)] == [b"value"]


@pytest.mark.parametrize("begun", [False, True])
def test_poll_waits_while_all_brokers_are_down(cluster: ScriptedCluster, begun: bool) -> None:
    """Polls return and raise nothing meanwhile; then the consumer continues from its position."""
    (tp,) = cluster.add_topic("t")
    cluster.logs[tp].batches = [_batch(offset, b"%d" % offset) for offset in range(3)]
    found: list[int] = []
    with Consumer(cluster.bootstrap, **_QUICK, **{"reconnect.backoff.max.ms": 5}) as consumer:
        consumer.assign([tp])
        consumer.seek(tp, 0)

        def poll() -> None:
            found.extend(record.offset for record in consumer.poll(5))

        if begun:
            _until(lambda: poll() or len(found) == 3)
        with cluster.lock:
            cluster.fault_rule = lambda key: REFUSE
            tried = cluster.seen[ApiKey.API_VERSIONS]
        cluster.hang_up()
        _until(lambda: poll() or cluster.seen[ApiKey.API_VERSIONS] >= tried + 20)
        with cluster.lock:
            cluster.fault_rule = None
            cluster.logs[tp].batches.append(_batch(3, b"3"))
        _until(lambda: poll() or len(found) >= 4)
        assert found == [0, 1, 2, 3]
        assert consumer.truncations() == []


def test_large_compressed_batch_is_read_in_parts(cluster: ScriptedCluster) -> None:
    """Decoded by a thread, returned a few records at a time."""
    (tp,) = cluster.add_topic("t")
    words = b"".join(b"%x" % (number * 2654435761 % 2**32) for number in range(200))
    cluster.logs[tp].batches = [_batch(0, words, codec=Codec.SNAPPY, count=2_000)]
    with Consumer(cluster.bootstrap, **_QUICK, **{"max.poll.records": 300}) as consumer:
        consumer.assign([tp])
        consumer.seek(tp, 0)
        found: list[int] = []
        _until(lambda: found.extend(r.offset for r in consumer.poll(50)) or len(found) >= 2_000)
        assert found == list(range(2_000))
        assert consumer.position_and_epoch(tp)[:2] == (2_000, 0)


_LOOP = "fenceline-consumer"


@pytest.fixture
def decoders(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The threads that decoded something, in order."""
    found: list[str] = []

    def observe(decode: Callable[..., object]) -> Callable[..., object]:
        def noted(*given: object, **options: object) -> object:
            if given[0]:  # Nothing arrived, so there is nothing to decode.
                found.append(threading.current_thread().name)
            return decode(*given, **options)

        return noted

    monkeypatch.setattr(fetch_buffer, "to_records", observe(fetch_buffer.to_records))
    for module in (consumer_module, async_consumer):
        monkeypatch.setattr(module, "to_arrow", observe(module.to_arrow))
    return found


def _noise(codec: Codec, count: int) -> bytes:
    """One batch that does not compress."""
    rng = random.Random(1)
    raw = build_batch([(1_000, None, rng.randbytes(500), ()) for _ in range(count)], codec=codec)
    assign_in_place(raw, 0, 0, 0)
    return bytes(raw)


@pytest.mark.parametrize(
    ("codec", "count", "elsewhere"), [(Codec.ZSTD, 2_000, True), (Codec.ZSTD, 2, False), (Codec.NONE, 2_000, False)]
)
def test_slow_decompression_runs_outside_the_event_loop(
    cluster: ScriptedCluster, decoders: list[str], codec: Codec, count: int, elsewhere: bool
) -> None:
    """Small batches are not worth another thread, and creating objects holds the GIL."""
    (tp,) = cluster.add_topic("t")
    cluster.logs[tp].batches = [_noise(codec, count)]
    with Consumer(cluster.bootstrap, **_QUICK, **{"max.poll.records": count}) as consumer:
        consumer.assign([tp])
        consumer.seek(tp, 0)
        found: list[int] = []
        _until(lambda: found.extend(record.offset for record in consumer.poll(50)) or len(found) >= count)
    assert found == list(range(count))
    assert [name != _LOOP for name in decoders] == [elsewhere]


def test_tables_are_built_by_the_polling_thread(cluster: ScriptedCluster, decoders: list[str]) -> None:
    (tp,) = cluster.add_topic("t")
    cluster.logs[tp].batches = [_batch(0, bytes(100), codec=Codec.LZ4, count=10)]
    with Consumer(cluster.bootstrap, **_QUICK) as consumer:
        consumer.assign([tp])
        consumer.seek(tp, 0)
        assert consumer.poll_arrow(60_000).num_rows == 10
    assert decoders == [threading.current_thread().name]


@pytest.mark.parametrize(("count", "elsewhere"), [(1_000, True), (10, False)])
def test_large_tables_are_built_outside_the_callers_event_loop(
    cluster: ScriptedCluster, decoders: list[str], count: int, elsewhere: bool
) -> None:
    (tp,) = cluster.add_topic("t")
    cluster.logs[tp].batches = [_noise(Codec.GZIP, count)]

    async def rows() -> int:
        async with async_consumer.AsyncConsumer(cluster.bootstrap, **_QUICK) as consumer:
            consumer.assign([tp])
            consumer.seek(tp, 0)
            return (await consumer.poll_arrow(60_000)).num_rows

    assert asyncio.run(rows()) == count
    assert [name != threading.current_thread().name for name in decoders] == [elsewhere]
