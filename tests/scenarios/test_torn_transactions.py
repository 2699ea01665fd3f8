"""No transaction is torn unnoticed: after an unclean election the receipt names every transaction of which it cut a
part, with its id, all its partitions and what became of each. Rules: transactions.md X61-X63.

Three brokers: the first is never away, coordinates, and leads the other half of each transaction.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from fenceline.client import Admin, Consumer, NewTopic, Producer, TopicPartition
from fenceline.client.producer.transaction_errors import ProducerFenced
from fenceline.ids import LOSSES_TOPIC, TRANSACTION_STATE_TOPIC
from fenceline.testing.mixed_cluster import MixedCluster
from fenceline.testing.waiting import eventually
from tests.support.read_to_end import read_to_end
from tests.support.unclean_story import FIRST, SECOND, UncleanStory, cluster_of

pytestmark = pytest.mark.timeout(300)
OTHER = TopicPartition("whole", 0)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MixedCluster]:
    with cluster_of("fenceline", tmp_path_factory.mktemp("torn")) as running:
        running.wait_ready()
        running.wait_complete()
        with Admin(running.node(1).bootstrap) as admin:
            state = NewTopic(
                TRANSACTION_STATE_TOPIC,
                configs={"cleanup.policy": "compact"},
                assignments={index: [1] for index in range(3)},
            )
            admin.create_topics([state, NewTopic(OTHER.topic, assignments={0: [1]})])
        yield running


@pytest.fixture
def story(cluster: MixedCluster) -> Iterator[UncleanStory]:
    made = UncleanStory(cluster)
    yield made
    made.mend()


def transacting(story: UncleanStory, name: str) -> Producer:
    producer = Producer(story.bootstrap, transactional_id=name)
    producer.init_transactions()
    return producer


def begin(story: UncleanStory, producer: Producer, value: bytes) -> None:
    """A transaction with a record in each of two partitions, both acknowledged."""
    producer.begin_transaction()
    for where in (story.tp, OTHER):
        producer.send(where.topic, value, partition=where.partition).result(60)


def transactions_of(story: UncleanStory, complete: int) -> dict[str, dict[str, Any]]:
    """By transactional id: those in the newest receipt of the partition, once so many have ended."""
    found: dict[str, dict[str, Any]] = {}
    with Consumer(story.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(LOSSES_TOPIC, 0)])

        def all_there() -> bool:
            for record in consumer.poll(500):
                receipt = json.loads(record.value or b"{}")
                if receipt["topic"] == story.tp.topic and not receipt["group"]:
                    for each in receipt["transactions"]:
                        found[each["transactional_id"]] = {**each, "class": receipt["class"]}
            return sum(each["outcome"] in ("committed", "aborted") for each in found.values()) >= complete

        eventually(all_there, "the receipt is complete", wait_s=60)
    return found


def committed_values(story: UncleanStory, where: TopicPartition) -> list[bytes | None]:
    return [record.value for record in read_to_end(story.bootstrap, [where])]


def test_committed_transaction_is_torn_and_open_one_is_aborted(story: UncleanStory) -> None:
    ended, open_one, whole = (transacting(story, f"{story.tp.topic} {name}") for name in ("ended", "open", "whole"))
    begin(story, whole, b"everywhere")
    story.cluster.node(SECOND).kill()
    story.await_partition(lambda it: it.isr == (FIRST,), "it leads alone")
    whole.commit_transaction()
    begin(story, ended, b"torn")
    ended.commit_transaction()
    begin(story, open_one, b"never")
    story.lead_uncleanly(SECOND, instead_of=FIRST)
    story.write(1, "after")  # the leader serves: what was open is fenced
    with pytest.raises(ProducerFenced):
        open_one.commit_transaction()
    story.restart(FIRST)
    found = transactions_of(story, 3)
    names = {name.rpartition(" ")[2]: each for name, each in found.items() if name}
    torn, aborted, marked = names["ended"], names["open"], names["whole"]
    assert (torn["outcome"], torn["torn"], torn["class"], torn["records"]) == ("committed", True, "torn", 1)
    assert {(each["topic"], each["records"]) for each in torn["partitions"]} == {
        (story.tp.topic, "cut"),
        (OTHER.topic, "committed"),
    }
    assert (aborted["outcome"], aborted["torn"]) == ("aborted", False)
    assert (marked["outcome"], marked["torn"], marked["records"]) == ("committed", False, 0), (
        "only its end marker is cut"
    )
    assert committed_values(story, story.tp) == [b"everywhere", b"after0"], "the new leader has committed it again"
    assert committed_values(story, OTHER)[-2:] == [b"everywhere", b"torn"], "which is what the receipt says"
    for producer in (ended, open_one, whole):
        producer.close()
