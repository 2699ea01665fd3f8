"""What a broker learns of past transactions from the coordinators' logs: of a Fenceline node and of Apache Kafka."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fenceline.client import Admin, NewTopic, Producer
from fenceline.ids import TRANSACTION_STATE_TOPIC
from fenceline.metadata.image import MetadataImage
from fenceline.node.net.peer_connection import open_peer
from fenceline.node.transactions.past_transactions import PastTransactions
from fenceline.testing.apache_kafka import ApacheKafka
from fenceline.testing.node import EmbeddedNode
from fenceline.transactions.history import TransactionHistory
from tests.node.api.handlers.fakes import image_of, partition, topic_image

pytestmark = [pytest.mark.timeout(120)]


@pytest.fixture(params=["fenceline", pytest.param("kafka", marks=pytest.mark.kafka)])
def bootstrap(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "fenceline":
        with EmbeddedNode(data_dir=tmp_path) as node:
            yield node.bootstrap
    else:
        broker: ApacheKafka = request.getfixturevalue("apache_kafka")
        yield broker.bootstrap


def history_at(bootstrap: str, *producer_ids: int) -> TransactionHistory:
    with Admin(bootstrap) as admin:
        count = len(admin.metadata([TRANSACTION_STATE_TOPIC]).topics[TRANSACTION_STATE_TOPIC].partitions)
    state = topic_image(TRANSACTION_STATE_TOPIC, *[partition((7,)) for _ in range(count)])
    image: MetadataImage = image_of([state])
    host, port = bootstrap.rsplit(":", 1)

    class Peers:
        async def open(self, node_id: int, client_id: str) -> Any:
            return await open_peer(host, int(port), client_id=client_id)

    async def ask() -> TransactionHistory | None:
        asked = PastTransactions(1, lambda: image, Peers(), request_timeout_ms=30_000)
        return await asked.of(producer_ids)

    found = asyncio.run(ask())
    assert found is not None
    return found


def test_outcomes_and_partitions_of_past_transactions(bootstrap: str) -> None:
    """transactions.md X26, X61: the coordinator's state has no partitions any more, its log has."""
    here, other = ("past", 0), ("past", 1)
    with Admin(bootstrap) as admin:
        admin.create_topics([NewTopic("past", 2)])
    with Producer(bootstrap, transactional_id="till") as producer:
        producer.init_transactions()
        for number, commit in enumerate((True, False, True)):
            producer.begin_transaction()
            for topic, index in (here, other)[: 1 + number % 2]:
                producer.send(topic, b"v", partition=index).result()
            (producer.commit_transaction if commit else producer.abort_transaction)()
        producer.begin_transaction()
        producer.send("past", b"open", partition=0).result()
        with Admin(bootstrap) as admin:
            (described,) = admin.describe_transactions(["till"]).values()
        history = history_at(bootstrap, described.producer_id)
        producer.abort_transaction()
    last = described.producer_epoch
    found = [history.of(described.producer_id, last - back, here, 0) for back in (3, 2, 1, 0)]
    assert [(past.commit, past.partitions) for past in found if past is not None] == [
        (True, {here}),
        (False, {here, other}),
        (True, {here}),
        (None, {here}),
    ]
    assert {past.transactional_id for past in found if past is not None} == {"till"}
    assert history.of(described.producer_id, last - 3, other, 0) is None
