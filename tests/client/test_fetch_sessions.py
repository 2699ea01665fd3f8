"""The consumer's incremental fetch sessions (KIP-227) on real brokers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from fenceline.client import Admin, Consumer, NewTopic, Producer
from fenceline.client.core import fetch_wire
from fenceline.client.core.fetch_session import IncrementalFetch
from fenceline.ids import TopicPartition
from fenceline.testing.waiting import eventually
from fenceline.wire import fetch

PARTITIONS = 20


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[fetch.FetchRequest]:
    """Every Fetch that is sent."""
    sent: list[fetch.FetchRequest] = []

    def record(version: int, request: fetch.FetchRequest) -> object:
        sent.append(request)
        return fetch.encode_request(version, request)

    class Recording:
        encode_request = staticmethod(record)

        def __getattr__(self, name: str) -> object:
            return getattr(fetch, name)

    monkeypatch.setattr(fetch_wire, "fetch", Recording())
    return sent


@pytest.fixture
def topic(make_topic: Callable[..., str]) -> str:
    return make_topic(PARTITIONS)


@pytest.fixture
def consumer(bootstrap: str, topic: str) -> Iterator[Consumer]:
    config = {"auto.offset.reset": "earliest", "fetch.max.wait.ms": 50}
    with Consumer(bootstrap, **config) as made:
        made.assign([TopicPartition(topic, index) for index in range(PARTITIONS)])
        yield made


def _session(consumer: Consumer) -> IncrementalFetch:
    (session,) = consumer._async._fetcher._sessions.values()
    return session


def _values(consumer: Consumer, count: int) -> list[bytes | None]:
    found: list[bytes | None] = []
    eventually(lambda: found.extend(r.value for r in consumer.poll(100)) or len(found) >= count, f"{count} records")
    return sorted(found)


def test_requests_name_changed_partitions_only(
    bootstrap: str, topic: str, consumer: Consumer, requests: list[fetch.FetchRequest]
) -> None:
    with Producer(bootstrap) as producer:
        for partition in range(PARTITIONS):
            producer.send(topic, b"%02d" % partition, partition=partition)
        producer.flush()
        assert _values(consumer, PARTITIONS) == [b"%02d" % partition for partition in range(PARTITIONS)]

        def is_quiet() -> bool:
            consumer.poll(50)
            return bool(requests and requests[-1].session_epoch > 0 and not requests[-1].partitions)

        eventually(is_quiet, "a request that names no partition")
        before = len(requests)
        producer.send(topic, b"more", partition=3).result(60)
        assert _values(consumer, 1) == [b"more"]
        consumer.pause([TopicPartition(topic, 5)])

        def forgotten() -> list[list[int]]:
            assert consumer.poll(50) == []
            return [indexes for request in requests[before:] for _, _, indexes in request.forgotten]

        assert eventually(forgotten, "a request after the pause") == [[5]]
    assert {each.index for request in requests[before:] for each in request.partitions} <= {3}
    assert consumer.lag(TopicPartition(topic, 3)) == 0


@pytest.mark.parametrize("damage", ["id", "epoch"])
def test_a_session_that_the_broker_does_not_know_is_opened_again(
    bootstrap: str, topic: str, consumer: Consumer, requests: list[fetch.FetchRequest], damage: str
) -> None:
    eventually(
        lambda: (
            consumer.poll(50) == []
            and consumer._async._fetcher._sessions
            and all(tp in _session(consumer) for tp in consumer.assignment())
        ),
        "a session",
    )
    if damage == "id":
        _session(consumer)._id += 1
    else:
        _session(consumer)._epoch += 5
    before = len(requests)
    with Producer(bootstrap) as producer:
        for partition in (0, 7):
            producer.send(topic, b"after", partition=partition)
    assert _values(consumer, 2) == [b"after"] * 2

    def fulls() -> list[fetch.FetchRequest]:
        assert consumer.poll(50) == []
        return [request for request in requests[before:] if request.session_epoch == 0]

    (full,) = eventually(fulls, "a full request")
    assert len(full.partitions) == PARTITIONS
    eventually(lambda: consumer.poll(50) == [] and requests[-1].session_epoch > 1, "another session")


def test_a_new_assignment_learns_the_ends_again(topic: str, consumer: Consumer) -> None:
    """The broker leaves out partitions whose ends it has sent before."""
    tp = TopicPartition(topic, 0)
    eventually(lambda: consumer.poll(50) == [] and consumer.lag(tp) == 0, "the lag")
    consumer.assign([])
    consumer.assign([tp])
    eventually(lambda: consumer.poll(50) == [] and consumer.lag(tp) == 0, "the lag of the new assignment")


def test_a_topic_that_is_created_again_is_read(bootstrap: str, admin: Admin, unique: Callable[[str], str]) -> None:
    stays, goes = unique("stays"), unique("goes")
    admin.create_topics([NewTopic(stays, 1, 1, {}), NewTopic(goes, 1, 1, {})])
    config = {"auto.offset.reset": "earliest", "fetch.max.wait.ms": 50, "allow.auto.create.topics": False}
    tps = [TopicPartition(stays, 0), TopicPartition(goes, 0)]
    with Consumer(bootstrap, **config) as consumer, Producer(bootstrap) as producer:
        consumer.assign(tps)
        eventually(lambda: consumer.poll(50) == [] and consumer.lag(tps[1]) == 0, "a session")
        admin.delete_topics([goes])
        eventually(lambda: admin.create_topics([NewTopic(goes, 1, 1, {})]) or True, "the topic created again")

        def write() -> bool:
            with Producer(bootstrap) as fresh:
                return fresh.send(goes, b"new", partition=0).result(10).offset >= 0

        eventually(write, "a record")
        producer.send(stays, b"kept", partition=0).result(60)
        found: set[bytes | None] = set()

        def read() -> bool:
            try:
                found.update(record.value for record in consumer.poll(50))
            except Exception:
                consumer.seek(tps[1], 0)
                raise
            return found == {b"kept", b"new"}

        eventually(read, "records of both topics")
