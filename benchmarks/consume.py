"""Consume throughput and the broker's CPU, data in the page cache: one consumer, ten at once, three replicas; and the
time of one whole answer, from the request's first byte to the answer's last, to a client that decodes nothing.

`BENCH_ROWS` selects the rows (keys of `ROWS`, comma-separated; default: all). The sides alternate, and each pair of
runs also gives a ratio of its own: on a shared machine the median of these says more than the ratio of the medians.
"""

from __future__ import annotations

import socket
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.clusters import ClusterUnderTest
from benchmarks.harness import SIDES, Figures, both, cpu_seconds, run_rows, scratch
from benchmarks.replication_probe import create_replicated
from benchmarks.workloads import (
    confluent_consume,
    confluent_produce,
    consumer_performance,
    create_topic,
    percentile,
)
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import write_request
from fenceline.wire.frame import encode_request_frame

PARTITIONS = 6
WARM_UPS = 2
RECORDS = {100: 4_000_000, 1000: 1_000_000}
CONSUMERS_AT_ONCE = 10
ANSWERS = 60
"""In one run, with a pause between them: the broker is idle when the request arrives."""
ANSWER_PAUSE_S = 0.001
RECEIVE_BUFFER_BYTES = 2 << 20
"""That of ConsumerPerformance."""
TOPIC = "consume"


class Place(NamedTuple):
    """Where records are consumed."""

    bootstrap: str
    pids: tuple[int, ...]

    def cpu_seconds(self) -> float:
        return sum(map(cpu_seconds, self.pids))


def run(figures: Figures, repeats: int) -> None:
    run_rows(figures, {name: partial(row, figures, repeats) for name, row in ROWS.items()})


def one_broker(figures: Figures, repeats: int, *, size_bytes: int) -> None:
    with both() as subjects:
        places = {side: Place(each.bootstrap, (each.pid,)) for side, each in subjects.items()}
        for place in places.values():
            create_topic(place.bootstrap, TOPIC, PARTITIONS)
            confluent_produce(place.bootstrap, TOPIC, RECORDS[size_bytes], size_bytes)
        for client, consume in CLIENTS.items():
            label = f"{client}, {size_bytes} B"
            in_pairs(figures, repeats, label, places, partial(consume, records=RECORDS[size_bytes]))


def ten_at_once(figures: Figures, repeats: int) -> None:
    """Every consumer reads all records; the rate is that of all together."""
    records = RECORDS[1000] // CONSUMERS_AT_ONCE * 2
    with both() as subjects:
        places = {side: Place(each.bootstrap, (each.pid,)) for side, each in subjects.items()}
        for place in places.values():
            create_topic(place.bootstrap, TOPIC, PARTITIONS)
            confluent_produce(place.bootstrap, TOPIC, records, 1000)
        label = f"{CONSUMERS_AT_ONCE} consumers at once, 1000 B"
        in_pairs(figures, repeats, label, places, partial(_ten, records=records))


def three_replicas(figures: Figures, repeats: int) -> None:
    with scratch() as root, _clusters(root) as clusters:
        places = {}
        for side, cluster in clusters.items():
            bootstrap = ",".join(node.bootstrap for node in cluster.nodes)
            places[side] = Place(bootstrap, tuple(node.pid for node in cluster.nodes))
            create_replicated(bootstrap, TOPIC, partitions=PARTITIONS)
            confluent_produce(bootstrap, TOPIC, RECORDS[1000], 1000)
        for client, consume in CLIENTS.items():
            label = f"three replicas, {client}, 1000 B"
            in_pairs(figures, repeats, label, places, partial(consume, records=RECORDS[1000]))


def whole_answers(figures: Figures, repeats: int) -> None:
    """The first megabyte of each of six partitions, again and again."""
    request = _fetch_request()
    with both() as subjects:
        for subject in subjects.values():
            create_topic(subject.bootstrap, TOPIC, PARTITIONS)
            confluent_produce(subject.bootstrap, TOPIC, RECORDS[100] // 4, 100)
        with ExitStack() as stack:
            connections = {side: stack.enter_context(_connect(each.bootstrap)) for side, each in subjects.items()}
            for attempt in range(2 * WARM_UPS + repeats):
                for side, subject in subjects.items():
                    before = cpu_seconds(subject.pid)
                    taken_ms = sorted(_answer_ms(connections[side], request) for _ in range(ANSWERS))
                    cpu_ms = (cpu_seconds(subject.pid) - before) / ANSWERS * 1000
                    if attempt >= 2 * WARM_UPS:
                        for name, fraction in (("p50", 0.5), ("p90", 0.9)):
                            figures.add(f"one answer: {name}", side, percentile(taken_ms, fraction), "ms")
                        figures.add("one answer: broker CPU", side, cpu_ms, "ms")


def _fetch_request() -> bytes:
    rows = [{"partition": index, "fetch_offset": 0, "partition_max_bytes": 1 << 20} for index in range(PARTITIONS)]
    topics = [{"topic": TOPIC, "partitions": rows}]
    fields = {"replica_id": -1, "max_wait": 500, "min_bytes": 1, "max_bytes": 50 << 20, "topics": topics}
    return b"".join(encode_request_frame(ApiKey.FETCH, 11, 1, "bench", write_request(ApiKey.FETCH, 11, fields)))


def _connect(bootstrap: str) -> socket.socket:
    host, _, port = bootstrap.rpartition(":")
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
    connection.connect((host, int(port)))
    return connection


_BUFFER: Final = memoryview(bytearray((PARTITIONS + 1) << 20))


def _answer_ms(connection: socket.socket, request: bytes) -> float:
    time.sleep(ANSWER_PAUSE_S)
    started = time.perf_counter()
    connection.sendall(request)
    got, size = 0, 4
    while got < size:
        received = connection.recv_into(_BUFFER[got:])
        if not received:
            raise RuntimeError("the broker closed the connection")
        got += received
        if size == 4 <= got:
            size += int.from_bytes(_BUFFER[:4], "big")
    if size < PARTITIONS << 19:
        raise RuntimeError(f"the answer has {size} bytes: it is not full")
    return (time.perf_counter() - started) * 1000


def in_pairs(
    figures: Figures, repeats: int, label: str, places: Mapping[str, Place], consume: Callable[[str], float]
) -> None:
    found: dict[str, list[tuple[float, float]]] = {side: [] for side in places}
    for attempt in range(WARM_UPS + repeats):
        for side, place in places.items():
            before = place.cpu_seconds()
            rate = consume(place.bootstrap)
            cpu = place.cpu_seconds() - before
            if attempt >= WARM_UPS:
                figures.add(f"{label}: records/s", side, rate, "records/s")
                figures.add(f"{label}: broker CPU", side, cpu, "s")
                found[side].append((rate, cpu))
    ours, theirs = (found[side] for side in SIDES)
    for number, name in enumerate(("records/s", "broker CPU")):
        ratios = sorted(our[number] / their[number] for our, their in zip(ours, theirs, strict=True))
        figures.note(
            f"{label}, {name} in pairs: {ratios[0]:.2f} to {ratios[-1]:.2f}, median {statistics.median(ratios):.2f}"
        )


def _confluent(bootstrap: str, *, records: int) -> float:
    return confluent_consume(bootstrap, TOPIC, PARTITIONS, records)


def _consumer_performance(bootstrap: str, *, records: int) -> float:
    return consumer_performance(bootstrap, TOPIC, records)


def _ten(bootstrap: str, *, records: int) -> float:
    with ThreadPoolExecutor(CONSUMERS_AT_ONCE) as threads:
        return sum(threads.map(partial(_confluent, records=records), [bootstrap] * CONSUMERS_AT_ONCE))


CLIENTS: Final[dict[str, Callable[..., float]]] = {
    "confluent-kafka": _confluent,
    "ConsumerPerformance": _consumer_performance,
}


@contextmanager
def _clusters(root: Path) -> Iterator[dict[str, ClusterUnderTest]]:
    with ExitStack() as stack:
        clusters: dict[str, ClusterUnderTest] = {}
        for side in SIDES:
            clusters[side] = stack.enter_context(ClusterUnderTest(side, root / side))
            clusters[side].start_voters()
        yield clusters


ROWS: Final[dict[str, Callable[[Figures, int], None]]] = {
    "100": partial(one_broker, size_bytes=100),
    "1000": partial(one_broker, size_bytes=1000),
    "ten": ten_at_once,
    "answers": whole_answers,
    "replicas": three_replicas,
}
