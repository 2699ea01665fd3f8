"""Requests of a broker on their way to the active controller and back: formats by version, answers per item."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from fenceline.controller.codec import MAPPINGS
from fenceline.controller.partition_requests import (
    AlteredPartition,
    AlterPartition,
    AlterPartitionAnswer,
    IsrChange,
    IsrMember,
)
from fenceline.controller.requests import CreateTopics, TopicToCreate
from fenceline.errors import ErrorCode, PeerError
from fenceline.metadata.image import MetadataImage
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import read_request, read_response, write_request, write_response
from tests.node.test_controller_nodes import eventually, join, run, three

TOPIC, OTHER = UUID(int=1), UUID(int=2)
CHANGE = IsrChange(3, 7, 9, (IsrMember(1, 11), IsrMember(2, 12)), 1)
REQUEST = AlterPartition(1, 11, ((TOPIC, (CHANGE, IsrChange(4, 0, 0, ()))), (OTHER, (IsrChange(0, 1, 2, ()),))))
MAPPING = MAPPINGS[AlterPartition]


@pytest.mark.parametrize("version", [2, 3])
def test_alter_partition_as_both_versions_carry_it(version: int) -> None:
    """recovery.md V4; since_4_0.md K27: broker epochs of members are sent from version 3 on."""
    assert (MAPPING.low, MAPPING.high) == (2, 3)
    entity = read_request(
        ApiKey.ALTER_PARTITION, version, write_request(MAPPING.key, version, MAPPING.fields(REQUEST, version))
    )
    assert (entity.broker_id, entity.broker_epoch) == (1, 11)
    assert [(each.topic_id, len(each.partitions)) for each in entity.topics] == [(TOPIC, 2), (OTHER, 1)]
    first = entity.topics[0].partitions[0]
    assert (first.partition_index, first.leader_epoch, first.partition_epoch) == (3, 7, 9)
    assert first.leader_recovery_state == 1
    if version == 2:
        assert first.new_isr == (1, 2)
    else:
        assert [(each.broker_id, each.broker_epoch) for each in first.new_isr_with_epochs] == [(1, 11), (2, 12)]


def _answered(version: int, fields: dict[str, Any]) -> AlterPartitionAnswer:
    body = write_response(ApiKey.ALTER_PARTITION, version, fields)
    answer: AlterPartitionAnswer = MAPPING.answer(REQUEST, read_response(ApiKey.ALTER_PARTITION, version, body))
    return answer


@pytest.mark.parametrize("version", [2, 3])
def test_each_partition_has_its_own_answer(version: int) -> None:
    """controller.md C47: no answer is invented for a missing partition. recovery.md V30: unknown states fail."""
    done = {"partition_index": 3, "leader_id": 1, "leader_epoch": 7, "isr": (1, 2), "partition_epoch": 10}
    refused = {"partition_index": 4, "error_code": ErrorCode.FENCED_LEADER_EPOCH}
    unknown = {"partition_index": 5, "error_code": 9999}
    strange = {**done, "partition_index": 6, "leader_recovery_state": 7}
    answer = _answered(version, {"topics": [{"topic_id": TOPIC, "partitions": [done, refused, unknown, strange]}]})
    assert answer.topics == (
        (
            TOPIC,
            (
                AlteredPartition(3, ErrorCode.NONE, 1, 7, (1, 2), 0, 10),
                AlteredPartition(4, ErrorCode.FENCED_LEADER_EPOCH),
                AlteredPartition(5, ErrorCode.UNKNOWN_SERVER_ERROR),
                AlteredPartition(6, ErrorCode.UNKNOWN_SERVER_ERROR),
            ),
        ),
    )


def test_top_level_error_fails_the_whole_request() -> None:
    """controller.md C13."""
    with pytest.raises(PeerError) as error:
        _answered(3, {"error_code": ErrorCode.STALE_BROKER_EPOCH})
    assert error.value.code is ErrorCode.STALE_BROKER_EPOCH


def test_isr_change_from_a_node_that_is_not_the_controller(tmp_path: Path) -> None:
    """Sent by a node that is not the active controller, to the controller listener of the one that is."""

    async def story() -> None:
        async with three(tmp_path) as cluster:
            leader = await cluster.leader()
            await join(leader)
            created = await leader.controller.submit(CreateTopics((TopicToCreate("t", 2, 1),)))
            topic_id = created.topics[0].topic_id
            other = next(node for node in cluster.running.values() if node is not leader)
            await eventually(lambda: "t" in other.controller.image.topics_by_name)
            image: MetadataImage = other.controller.image
            epoch = image.brokers[7].epoch
            member = (IsrMember(7, epoch),)
            right, late, wrong = IsrChange(0, 0, 0, member), IsrChange(1, 1, 0, member), IsrChange(9, 0, 0, member)
            wanted = ((topic_id, (right, late, wrong)), (OTHER, (right,)))
            answer = await other.controller.submit(AlterPartition(7, epoch, wanted))
            assert answer == AlterPartitionAnswer(
                (
                    (
                        topic_id,
                        (
                            AlteredPartition(0, ErrorCode.NONE, 7, 0, (7,), 0, 0),
                            AlteredPartition(1, ErrorCode.NOT_CONTROLLER),
                            AlteredPartition(9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
                        ),
                    ),
                    (OTHER, (AlteredPartition(0, ErrorCode.UNKNOWN_TOPIC_ID),)),
                )
            )
            assert answer == await leader.controller.submit(AlterPartition(7, epoch, wanted)), "as without the network"
            with pytest.raises(PeerError) as stale:
                await other.controller.submit(AlterPartition(7, epoch + 1, wanted))
            assert stale.value.code is ErrorCode.STALE_BROKER_EPOCH
            connection = await cluster.connect(other.node_id)
            refused = await connection.call(ApiKey.ALTER_PARTITION, 3, MAPPING.fields(REQUEST, 3), 10)
            assert refused.error_code is ErrorCode.NOT_CONTROLLER, "controllers do not forward requests"
            connection.close()

    run(story)
