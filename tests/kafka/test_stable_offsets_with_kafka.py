"""A coordinator of Fenceline's reads stable offsets after Kafka's followers have confirmed that it is not replaced."""

from __future__ import annotations

from pathlib import Path

import pytest

from fenceline.client import Admin, NewTopic
from fenceline.errors import ErrorCode
from fenceline.ids import CONSUMER_OFFSETS_TOPIC
from fenceline.replica.read_barrier import OfficeAnswer, office_answer
from fenceline.testing.waiting import eventually
from fenceline.wire.apis import ApiKey
from tests.scheduling import CLUSTERS
from tests.support.committed_offsets import commit, coordinator_of, fetch
from tests.support.leaders import order_replicas
from tests.support.mixed_stage import SETTINGS, MixedStage
from tests.support.raw import RawConnection

pytestmark = [pytest.mark.kafka, pytest.mark.together(CLUSTERS), pytest.mark.timeout(600)]
GROUP, TOPIC, ELSEWHERE = "copier", "t", "elsewhere"


class _Stage(MixedStage):
    def __init__(self, root: Path) -> None:
        kinds = ["broker,controller", "kafka:broker", "kafka:broker"]
        settings = {**SETTINGS, "offsets.topic.num.partitions": "1", "offsets.topic.replication.factor": "3"}
        super().__init__(root, kinds, ours=1, theirs=2, settings=settings)

    def answer(self, topic: str, epoch: int, version: int) -> ErrorCode:
        """Of Kafka's broker, to a leader that asks about this epoch."""
        row = {"partition": 0, "current_leader_epoch": epoch, "leader_epoch": 0}
        fields = {"replica_id": self.ours.node_id, "topics": [{"topic": topic, "partitions": [row]}]}
        with RawConnection(self.theirs.port) as connection:
            answer = connection.call(ApiKey.OFFSET_FOR_LEADER_EPOCH, version, fields)
        return ErrorCode(answer.topics[0].partitions[0].error_code)

    def position(self) -> object:
        with RawConnection(self.ours.port) as connection:
            return fetch(connection, GROUP, TOPIC, [0], require_stable=True)


def test_followers_of_kafka_confirm_the_coordinator(tmp_path: Path) -> None:
    stage = _Stage(tmp_path)
    with stage.cluster:
        stage._begin()
        with Admin(stage.ours.bootstrap) as admin:
            admin.create_topics([NewTopic(TOPIC, 1, 3), NewTopic(ELSEWHERE, assignments={0: [stage.ours.node_id]})])
        eventually(lambda: coordinator_of(stage.ours.port, GROUP), "groups have a coordinator", wait_s=120)
        stage._in_sync(CONSUMER_OFFSETS_TOPIC, 0, stage.ids)
        order_replicas(stage.ours.port, CONSUMER_OFFSETS_TOPIC, {0: stage._first(stage.ours)})
        stage._elect(CONSUMER_OFFSETS_TOPIC, stage.ours)

        def committed() -> bool:
            with RawConnection(stage.ours.port) as connection:
                return commit(connection, GROUP, TOPIC, {0: 8}) == {ErrorCode.NONE}

        eventually(committed, "the group commits", wait_s=120)
        eventually(lambda: stage.position() == {0: (8, -1)}, "the stable offset is read", wait_s=120)

        epoch = stage.partition(CONSUMER_OFFSETS_TOPIC, 0).leader_epoch
        for version in (3, 4):
            assert [stage.answer(CONSUMER_OFFSETS_TOPIC, epoch + each, version) for each in (-1, 0, 1)] == [
                ErrorCode.FENCED_LEADER_EPOCH,
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                ErrorCode.UNKNOWN_LEADER_EPOCH,
            ]
            no_replica = stage.answer(ELSEWHERE, stage.partition(ELSEWHERE, 0).leader_epoch + 1, version)
            assert office_answer(no_replica) is OfficeAnswer.REPLACED

        stage.theirs.kill()
        eventually(lambda: stage.position() == {0: (8, -1)}, "a dead follower leaves the ISR", wait_s=120)
