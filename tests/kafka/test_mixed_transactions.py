"""Transactions whose coordinator alternates between a Kafka and a Fenceline broker, and whose partitions both lead.

Rules: transactions.md X21, X23, X26: each coordinator continues from the records that the other wrote.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fenceline.client import Admin, NewTopic, Producer
from fenceline.ids import TRANSACTION_STATE_TOPIC
from fenceline.testing.mixed_cluster import MixedNode
from fenceline.testing.waiting import eventually
from tests.scheduling import CLUSTERS
from tests.support.leaders import order_replicas
from tests.support.mixed_stage import SETTINGS, MixedStage

pytestmark = [pytest.mark.kafka, pytest.mark.long, pytest.mark.together(CLUSTERS), pytest.mark.timeout(600)]
TOPIC = "t"
TURNS = 6
ONGOING = {"ours": "Ongoing", "theirs": "Ongoing"}


class _Stage(MixedStage):
    def __init__(self, root: Path) -> None:
        kinds = ["broker,controller", "kafka:broker", "kafka:broker"]
        settings = {**SETTINGS, "transaction.state.log.replication.factor": "3"}
        super().__init__(root, kinds, ours=1, theirs=2, settings=settings)

    def move(self, topic: str, node: MixedNode) -> None:
        order_replicas(self.third.port, topic, {0: self._first(node)})
        eventually(lambda: self.partition(topic, 0).replicas[0] == node.node_id, "the order is changed", wait_s=60)
        self._in_sync(topic, 0, self.ids)
        self._elect(topic, node)


def _states(admin: Admin) -> dict[str, str]:
    """By transactional id. Nothing is listed while the former coordinator has resigned and the new one, which writes
    its leader epoch to the disk first, does not coordinate yet: on a slow disk that takes seconds."""
    return {each.transactional_id: each.state for each in admin.list_transactions()}


def test_coordinators_of_both_kinds(tmp_path: Path) -> None:
    stage = _Stage(tmp_path)
    with stage.cluster:
        stage._begin()
        with Admin(stage.bootstrap) as admin:
            admin.create_topics([NewTopic(TOPIC, 1, 3)])
            stage._in_sync(TOPIC, 0, stage.ids)
            librdkafka = stage._transactional("theirs")
            own = Producer(stage.bootstrap, transactional_id="ours", transaction_timeout_ms=600_000)
            own.init_transactions()
            expected = []
            for turn in range(TURNS):
                nodes = [stage.ours, stage.theirs]
                coordinator, leader = nodes[turn % 2], nodes[turn // 2 % 2]
                own.begin_transaction()
                librdkafka.begin_transaction()
                own.send(TOPIC, f"own {turn} a".encode(), partition=0).result()
                librdkafka.produce(TOPIC, f"rd {turn} a".encode(), partition=0)
                librdkafka.flush(60)
                stage.move(TRANSACTION_STATE_TOPIC, coordinator)
                stage.move(TOPIC, leader)
                eventually(lambda: _states(admin) == ONGOING, f"{coordinator.kind} lists both", wait_s=120)
                own.send(TOPIC, f"own {turn} b".encode(), partition=0).result()
                librdkafka.produce(TOPIC, f"rd {turn} b".encode(), partition=0)
                if turn % 3 == 2:
                    own.abort_transaction()
                    librdkafka.abort_transaction(60)
                    continue
                own.commit_transaction()
                librdkafka.commit_transaction(60)
                expected += [f"{name} {turn} {part}" for part in "ab" for name in ("own", "rd")]
            own.close()
        values = {value.decode() for value in stage._read_committed(TOPIC, len(expected))}
        assert values == set(expected)
        stage._equal(TOPIC, 0, stage.cluster.nodes)
        stage._stop()
