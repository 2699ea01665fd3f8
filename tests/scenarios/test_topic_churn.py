"""Topics are created, extended and deleted while producers and consumers use them."""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import KafkaError, Message, Producer

from fenceline.testing.node import EmbeddedNode
from fenceline.testing.waiting import eventually
from fenceline.wire.apis import ApiKey
from fenceline.wire.frame import encode_request_frame
from tests.scenarios.faults import connection_to, create, delete, fetch, fetch_body, produce, receive_exactly, values
from tests.scenarios.test_hostile_clients import many_sockets

pytestmark = pytest.mark.long

EXPECTED = {0, 3, 6, 100}
"""Error codes for clients of a topic that is deleted and created: none, unknown, not leader, unknown id."""


@contextmanager
def in_background(node: EmbeddedNode, step: Callable[[object], int]) -> Iterator[set[int]]:
    """Repeat `step` on its own connection; yields the error codes that it returned."""
    seen: set[int] = set()
    failures: list[BaseException] = []
    stop = threading.Event()

    def run() -> None:
        try:
            with connection_to(node) as connection:
                while not stop.is_set():
                    seen.add(step(connection))
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield seen
    finally:
        stop.set()
        thread.join()
    assert not failures, failures


def test_a_topic_is_deleted_and_created_again_under_load() -> None:
    value = os.urandom(300_000)  # large enough that responses are slices of mapped files
    with (
        EmbeddedNode(overrides={"log.flush.scheduler.interval.ms": "20"}) as node,
        connection_to(node) as connection,
        in_background(node, lambda c: produce(c, "t", value).error_code) as produced,  # type: ignore[arg-type]
        in_background(node, lambda c: fetch(c, "t", {0: 0}, max_bytes=4 << 20)[0][0]) as fetched,  # type: ignore[arg-type]
        in_background(node, lambda c: fetch(c, "t", {0: 0}, wait_ms=50)[0][0]) as waited,  # type: ignore[arg-type]
    ):
        for life in range(25):
            assert create(connection, "t", flush_messages="1") == 0
            for _ in range(3):
                assert produce(connection, "t", value).error_code == 0
            if not life:
                eventually(lambda: 0 in produced and 0 in fetched)
            assert delete(connection, "t") == 0
            if not life:
                eventually(lambda: 3 in produced)
        assert create(connection, "t") == 0
        assert produce(connection, "t", value).error_code == 0
        assert produced <= EXPECTED, produced
        assert fetched | waited <= {*EXPECTED, 1}, (fetched, waited)
        assert "partition offline" not in node.errors
        assert "Traceback" not in node.errors
        assert node.errors == ""


def test_records_of_a_deleted_topic_stay_readable_while_they_are_sent() -> None:
    """The response is slices of mapped files: deletion must not unmap them while they are sent."""
    content = os.urandom(900_000)
    with EmbeddedNode() as node, connection_to(node) as connection, many_sockets(node, 1) as (slow,):
        create(connection, "t", partitions=8, file_delete_delay_ms="0")
        for partition in range(8):
            for _ in range(6):
                assert produce(connection, "t", content, partition=partition).error_code == 0
        # More than the socket buffers hold: most of it is queued in the node while the topic is deleted.
        body = fetch_body("t", dict.fromkeys(range(8), 0), 50 << 20, 0)
        slow.sendall(b"".join(encode_request_frame(ApiKey.FETCH, 12, 1, "slow", body)))
        (size,) = struct.unpack(">i", receive_exactly(slow, 4))
        assert size > 20 << 20
        assert delete(connection, "t") == 0
        assert create(connection, "t") == 0
        assert produce(connection, "t", b"new").error_code == 0
        eventually(lambda: not any("-delete" in each.name for each in node.log_dir.iterdir()))
        received = receive_exactly(slow, size)
        assert received.count(content) == size // len(content)
    assert node.errors == ""


def test_partitions_are_added_under_load() -> None:
    with EmbeddedNode() as node, connection_to(node) as connection:
        create(connection, "t")
        failed: list[str] = []

        def on_delivery_report(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                failed.append(str(error))

        producer = Producer(
            {
                "bootstrap.servers": node.bootstrap,
                "enable.idempotence": True,
                "log_level": 0,
                "topic.metadata.refresh.interval.ms": 50,
            }
        )
        sent = 0
        for count in range(2, 12):
            for _ in range(200):
                producer.produce("t", b"%d" % sent, key=b"%d" % sent, on_delivery=on_delivery_report)
                sent += 1
            topic = {"name": "t", "count": count}
            answer = connection.call(ApiKey.CREATE_PARTITIONS, 3, {"topics": [topic], "timeout_ms": 60_000})
            assert answer.results[0].error_code == 0
            producer.poll(0.05)
        assert producer.flush(60) == 0
        assert not failed
        found = [int(value) for partition in range(11) for value in values(node, "t", partition)]
        assert sorted(found) == list(range(sent))
        assert node.errors == ""
