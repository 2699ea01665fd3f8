"""The cases of `produce_cases.py` sent to Apache Kafka, to check that the expected codes are Kafka's."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from fenceline.testing.apache_kafka import ApacheKafka, small_kafka
from tests.records.produce_cases import CASES, MAX_MESSAGE_BYTES, TOPICS, Case
from tests.records.raw_produce import RawProducer

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def broker() -> Iterator[ApacheKafka]:
    with small_kafka() as kafka:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        topics = [
            NewTopic(name, 1, 1, config={**config, "max.message.bytes": str(MAX_MESSAGE_BYTES)})
            for name, config in TOPICS.items()
        ]
        for created in admin.create_topics(topics).values():
            created.result(60)
        yield kafka


@pytest.fixture(scope="module")
def producer(broker: ApacheKafka) -> Iterator[RawProducer]:
    connection = RawProducer("127.0.0.1", broker.port)
    yield connection
    connection.close()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_kafka_gives_the_expected_result(producer: RawProducer, case: Case) -> None:
    deadline = time.monotonic() + 60
    while True:
        answer = producer.produce(case.topic, case.make(int(time.time() * 1000)), case.version)
        if answer.code not in (3, 6) or time.monotonic() > deadline:  # the controller knows the topic before the broker
            break
    assert (answer.code, answer.record_indexes) == (case.code, case.record_indexes), answer
