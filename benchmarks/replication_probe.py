"""Observes a cluster while it loses a broker: a producer's acknowledgements, leaders in the metadata, serving leaders.

Owns the clocks and the connections of the observer. Changes nothing in the cluster but test topics, and keeps no
figures.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import pairwise
from types import TracebackType
from typing import Any, Final, Self

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from fenceline.client.consumer.consumer import Consumer
from fenceline.client.core.config import ClientConfig
from fenceline.client.core.connection import Connection, open_connection
from fenceline.errors import FencelineError
from fenceline.ids import LOSSES_TOPIC, TopicPartition
from fenceline.losses.receipt import Receipt, decode
from fenceline.testing.mixed_cluster import MixedNode
from fenceline.testing.waiting import eventually
from fenceline.wire.apis import ApiKey

REQUEST_TIMEOUT_MS: Final = 20_000
TIMEOUT_S: Final = 120.0
POLL_S: Final = 0.005
SEND_S: Final = 0.005
_LATEST: Final = -1
_TWO_IN_SYNC: Final = {"min.insync.replicas": "2"}


def create_replicated(
    bootstrap: str,
    topic: str,
    *,
    partitions: int = 1,
    first: int | None = None,
    brokers: Collection[int] = (1, 2, 3),
    config: Mapping[str, str] = _TWO_IN_SYNC,
) -> None:
    """Create a topic on all of `brokers`, led by `first` if given, and wait until every replica is in sync."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    if first is None:
        wanted = NewTopic(topic, partitions, len(brokers), config=dict(config))
    else:
        others = [each for each in brokers if each != first]
        assignment = [[first, *(others[(n + i) % len(others)] for i in range(len(others)))] for n in range(partitions)]
        wanted = NewTopic(topic, partitions, replica_assignment=assignment, config=dict(config))
    for future in admin.create_topics([wanted], operation_timeout=60).values():
        future.result()

    def is_in_sync() -> bool:
        found = admin.list_topics(topic, timeout=10).topics[topic].partitions.values()
        return len(found) == partitions and all(p.leader >= 0 and len(p.isrs) == len(brokers) for p in found)

    eventually(is_in_sync, f"{topic} is in sync", wait_s=TIMEOUT_S)


class Stream:
    """Sends a record every few milliseconds to a topic's first partition, acks=all, from a thread.

    Use as a context manager; the first record is acknowledged on entry.
    """

    def __init__(
        self, bootstrap: str, topic: str, *, is_idempotent: bool = False, socket_timeout_ms: int = 60_000
    ) -> None:
        """`socket_timeout_ms`: librdkafka finds no new leader before the request to a silent one has timed out (its
        default is a minute)."""
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": "all",
                "enable.idempotence": is_idempotent,
                "socket.timeout.ms": socket_timeout_ms,
            }
        )
        self._topic = topic
        self._acknowledged: list[tuple[float, float]] = []
        """Times of sending and acknowledgement."""
        self.errors: list[str] = []
        self._stop_requested = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._began = 0.0

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        self._thread.start()
        eventually(lambda: self._acknowledged, f"a first record of {self._topic}", wait_s=TIMEOUT_S, step_s=POLL_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop_requested.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop_requested.is_set():
            self._producer.produce(self._topic, b"x" * 100, partition=0, on_delivery=self._delivered(time.monotonic()))
            self._producer.poll(SEND_S)
        if self._producer.flush(TIMEOUT_S):
            self.errors.append("not all records were delivered")

    def _delivered(self, sent: float) -> Callable[[Any, Any], None]:
        def delivered(error: Any, _: Any) -> None:
            if error is None:
                self._acknowledged.append((sent, time.monotonic()))
            else:
                self.errors.append(str(error))

        return delivered

    def wait_until_s(self, age_s: float) -> None:
        """Sleep until `age_s` seconds after the start of the producer."""
        time.sleep(max(0.0, self._began + age_s - time.monotonic()))

    def next_acknowledged_s(self, moment: float) -> float:
        """Wait for the acknowledgement of a record sent after `moment`. Returns the seconds since `moment`."""

        def first_acknowledged() -> float | None:
            return next((acked for sent, acked in reversed(self._acknowledged) if sent > moment), None)

        eventually(first_acknowledged, "an acknowledgement", wait_s=TIMEOUT_S, step_s=POLL_S)
        return min(acked for sent, acked in self._acknowledged if sent > moment) - moment

    def longest_gap_s(self, since: float) -> float:
        """The longest time without an acknowledgement."""
        moments = [since, *(acked for _, acked in self._acknowledged if acked > since)]
        return max(after - before for before, after in pairwise(moments))


_LOAD: Final = """
import sys, time
from confluent_kafka import Producer
bootstrap, topic, size_bytes, per_s = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 5, "batch.size": 1_000_000})
payload, count, printed = b"x" * size_bytes, 0, 0.0
def delivered(error, message):
    global count
    count += 100 * (error is None)
number, began = 0, time.monotonic()
while True:
    number += 1
    if per_s and number % 100 == 0:
        time.sleep(max(0.0, began + number / per_s - time.monotonic()))
    try:
        producer.produce(topic, payload, on_delivery=delivered if number % 100 == 0 else None)
    except BufferError:
        producer.poll(0.01)
    if number % 1000 == 0:
        producer.poll(0)
        if time.monotonic() - printed > 0.05:
            printed = time.monotonic()
            print(printed, count, flush=True)
"""


class Load:
    """A process that produces with acks=all, and prints the number of acknowledged records over time."""

    def __init__(self, bootstrap: str, topic: str, size_bytes: int, per_s: int = 0) -> None:
        """`per_s`: records per second; 0: unlimited."""
        self._process = subprocess.Popen(
            [sys.executable, "-c", _LOAD, bootstrap, topic, str(size_bytes), str(per_s)], stdout=subprocess.PIPE
        )
        self._counts: list[tuple[float, int]] = []
        self._thread = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        self._thread.join()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            moment, count = line.split()
            self._counts.append((float(moment), int(count)))

    def runs_for(self, seconds: float) -> None:
        """Wait until it has produced for `seconds`."""
        eventually(
            lambda: self._counts and self._counts[-1][0] - self._counts[0][0] > seconds, "a load", wait_s=TIMEOUT_S
        )

    def rate(self, since: float, until: float) -> float:
        """Acknowledged records per second between two times of `time.monotonic`, from the printed counts."""
        eventually(lambda: self._counts[-1][0] > until, "newer counts of the load", wait_s=TIMEOUT_S)
        first_s, first = max(each for each in self._counts if each[0] <= since)
        last_s, last = min(each for each in self._counts if each[0] >= until)
        return (last - first) / (last_s - first_s)


def wait_left_in_sync(bootstrap: str, topic: str, replicas: int) -> None:
    """Wait until the largest ISR of the topic has `replicas` members."""

    def is_left() -> bool:
        admin = AdminClient({"bootstrap.servers": bootstrap})
        partitions = admin.list_topics(topic, timeout=10).topics[topic].partitions.values()
        return max(len(each.isrs) for each in partitions) == replicas

    eventually(is_left, f"{replicas} of {topic} left in sync", wait_s=TIMEOUT_S)


class Watch:
    """Polls another node's metadata of one topic, and whether its leaders serve."""

    def __init__(self, through: MixedNode, topic: str) -> None:
        self._through = through
        self._topic = topic

    def until_led_by_others(self, lost_id: int) -> float:
        """The time (monotonic seconds) at which all partitions have a leader other than `lost_id`."""

        async def poll() -> float:
            connection = await _connected(self._through)
            try:
                while True:
                    leaders = await _leaders(connection, self._topic)
                    if leaders and lost_id not in leaders.values() and -1 not in leaders.values():
                        return time.monotonic()
                    await asyncio.sleep(POLL_S)
            finally:
                connection.close()

        return asyncio.run(asyncio.wait_for(poll(), TIMEOUT_S))

    def until_served(self, nodes: Iterable[MixedNode]) -> float:
        """The time at which every leader returns its log end offset (after KIP-207 it is committed then)."""

        async def poll() -> float:
            connections = {node.node_id: await _connected(node) for node in nodes}
            try:
                first = next(iter(connections.values()))
                pending = set((await _leaders(first, self._topic)).items())
                while pending:
                    for node_id, connection in connections.items():
                        mine = [index for index, leader in pending if leader == node_id]
                        served = await _served(connection, self._topic, mine) if mine else set()
                        pending -= {(index, node_id) for index in served}
                    if pending:
                        await asyncio.sleep(POLL_S)
                        leaders = await _leaders(first, self._topic)
                        pending = {(index, leaders[index]) for index, _ in pending}
                return time.monotonic()
            finally:
                for connection in connections.values():
                    connection.close()

        return asyncio.run(asyncio.wait_for(poll(), TIMEOUT_S))

    def until_in_sync(self, replicas: int) -> float:
        """The time at which every partition has `replicas` replicas in sync."""

        async def poll() -> float:
            connection = await _connected(self._through)
            try:
                while True:
                    partitions = await _partitions(connection, self._topic)
                    if partitions and all(len(each.isr_nodes) >= replicas for each in partitions):
                        return time.monotonic()
                    await asyncio.sleep(10 * POLL_S)
            finally:
                connection.close()

        return asyncio.run(poll())


def receipt_of(bootstrap: str, topic: str) -> Receipt:
    """Wait for the first receipt of a topic in the ledger."""
    ledger = TopicPartition(LOSSES_TOPIC, 0)
    with Consumer(bootstrap) as consumer:
        consumer.assign([ledger])
        consumer.seek_to_beginning([ledger])

        def next_receipt() -> Receipt | None:
            found = (decode(record.value) for record in consumer.poll(timeout_ms=100) if record.value is not None)
            return next((receipt for receipt in found if receipt.topic == topic), None)

        return eventually(next_receipt, f"a receipt of {topic}", wait_s=TIMEOUT_S, step_s=POLL_S)


async def _connected(node: MixedNode) -> Connection:
    config = ClientConfig.parse("admin", node.bootstrap, {"request.timeout.ms": REQUEST_TIMEOUT_MS})
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            return await open_connection("127.0.0.1", node.port, config, None)
        except FencelineError:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(POLL_S)


async def _partitions(connection: Connection, topic: str) -> list[Any]:
    fields = {"topics": [{"name": topic}], "allow_auto_topic_creation": False}
    answer = await connection.call(ApiKey.METADATA, 9, fields, timeout_ms=REQUEST_TIMEOUT_MS)
    return list(answer.topics[0].partitions)


async def _leaders(connection: Connection, topic: str) -> dict[int, int]:
    return {int(each.partition_index): int(each.leader_id) for each in await _partitions(connection, topic)}


async def _served(connection: Connection, topic: str, indexes: Iterable[int]) -> set[int]:
    """The partitions whose leader returns the log end offset."""
    partitions = [{"partition_index": index, "current_leader_epoch": -1, "timestamp": _LATEST} for index in indexes]
    fields = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": topic, "partitions": partitions}]}
    answer = await connection.call(ApiKey.LIST_OFFSETS, 6, fields, timeout_ms=REQUEST_TIMEOUT_MS)
    return {int(each.partition_index) for each in answer.topics[0].partitions if not each.error_code}
