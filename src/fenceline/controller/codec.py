"""Conversion of a broker's requests to the active controller between `fenceline.controller` and Kafka's APIs.

Owns the table from a request of `fenceline.controller` to fields, and from the response entity back. Pure.

Rules: controller.md C11-C20, C21, C36, C41, C47 (the caller repeats the request for items that a response lacks);
recovery.md V4, V16-V25, V30; since_4_0.md K4, K22-K25, K27.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from fenceline.controller.partition_requests import (
    AlteredPartition,
    AlterPartition,
    AlterPartitionAnswer,
    AssignedReplica,
    AssignReplicasToDirs,
    AssignReplicasToDirsAnswer,
    IsrChange,
)
from fenceline.controller.requests import (
    AllocateProducerIds,
    AlterConfigs,
    AlterConfigsAnswer,
    AlteredResource,
    BrokerHeartbeat,
    BrokerHeartbeatAnswer,
    CreateTopicResult,
    CreateTopics,
    CreateTopicsAnswer,
    EmptyAnswer,
    IncrementalAlterConfigs,
    ProducerIdBlock,
    RegisterBroker,
    RegisterBrokerAnswer,
    RegisterController,
    RequestOutcome,
)
from fenceline.errors import ErrorCode, PeerError
from fenceline.ids import ZERO_UUID
from fenceline.metadata.features import Levels
from fenceline.metadata.image import Endpoint, LeaderRecoveryState
from fenceline.wire.apis import ApiKey

Fields = dict[str, Any]
_OF_THE_TOPIC: Final = 1
"""`config_source` of configs given with the topic."""
_RECOVERY_STATES: Final = frozenset(map(int, LeaderRecoveryState))


class RemoteRequest(NamedTuple):
    """One request: its API and versions, its connection's purpose, how long to wait for a leader, the conversions."""

    key: ApiKey
    low: int
    high: int
    purpose: str
    patience_s: float
    fields: Callable[[Any, int], Fields]
    answer: Callable[[Any, Any], Any]


def _check(entity: Any) -> None:
    if entity.error_code:
        raise _error(entity)


def _error(entity: Any) -> PeerError:
    known = _known(entity.error_code)
    message = getattr(entity, "error_message", None)
    return PeerError(known, message or f"The controller returned {known.name}.")


def _known(code: Any) -> ErrorCode:
    return code if isinstance(code, ErrorCode) else ErrorCode.UNKNOWN_SERVER_ERROR


def _listeners(endpoints: Sequence[Endpoint]) -> list[Fields]:
    return [
        {"name": each.name, "host": each.host, "port": each.port, "security_protocol": each.security_protocol}
        for each in endpoints
    ]


def _features(features: Mapping[str, Levels]) -> list[Fields]:
    return [
        {"name": name, "min_supported_version": levels.minimum, "max_supported_version": levels.maximum}
        for name, levels in features.items()
    ]


def _register_broker(request: RegisterBroker, version: int) -> Fields:
    return {
        "broker_id": request.broker_id,
        "cluster_id": request.cluster_id,
        "incarnation_id": request.incarnation_id,
        "listeners": _listeners(request.endpoints),
        "features": _features(request.features),
        "rack": request.rack,
        "is_migrating_zk_broker": False,
        "log_dirs": list(request.log_dirs),
        "previous_broker_epoch": request.previous_broker_epoch,
    }


def _registered(request: RegisterBroker, entity: Any) -> RegisterBrokerAnswer:
    _check(entity)
    return RegisterBrokerAnswer(entity.broker_epoch)


def _heartbeat(request: BrokerHeartbeat, version: int) -> Fields:
    fields: Fields = {
        "broker_id": request.broker_id,
        "broker_epoch": request.broker_epoch,
        "current_metadata_offset": request.current_metadata_offset,
        "want_fence": request.want_fence,
        "want_shut_down": request.want_shut_down,
        "offline_log_dirs": list(request.offline_log_dirs),
    }
    if request.cordoned_log_dirs is not None:
        fields["cordoned_log_dirs"] = list(request.cordoned_log_dirs)
    if request.silent_brokers:
        fields["silent_brokers"] = [each._asdict() for each in request.silent_brokers]
    return fields


def _beaten(request: BrokerHeartbeat, entity: Any) -> BrokerHeartbeatAnswer:
    _check(entity)
    return BrokerHeartbeatAnswer(entity.is_caught_up, entity.is_fenced, entity.should_shut_down)


def _register_controller(request: RegisterController, version: int) -> Fields:
    return {
        "controller_id": request.controller_id,
        "incarnation_id": request.incarnation_id,
        "zk_migration_ready": request.zk_migration_ready,
        "listeners": _listeners(request.endpoints),
        "features": _features(request.features),
    }


def _controller_registered(request: RegisterController, entity: Any) -> EmptyAnswer:
    _check(entity)
    return EmptyAnswer()


def _allocate(request: AllocateProducerIds, version: int) -> Fields:
    return {"broker_id": request.broker_id, "broker_epoch": request.broker_epoch}


def _allocated(request: AllocateProducerIds, entity: Any) -> ProducerIdBlock:
    _check(entity)
    return ProducerIdBlock(entity.producer_id_start, entity.producer_id_len)


def _alter_partition(request: AlterPartition, version: int) -> Fields:
    """Fields for both versions: v3 has the members' broker epochs (KIP-903)."""

    def change(each: IsrChange) -> Fields:
        return {
            "partition_index": each.index,
            "leader_epoch": each.leader_epoch,
            "new_isr": [member.broker_id for member in each.new_isr],
            "new_isr_with_epochs": [member._asdict() for member in each.new_isr],
            "leader_recovery_state": each.leader_recovery_state,
            "partition_epoch": each.partition_epoch,
        }

    return {
        "broker_id": request.broker_id,
        "broker_epoch": request.broker_epoch,
        "topics": [{"topic_id": topic, "partitions": [change(each) for each in all]} for topic, all in request.topics],
    }


def _altered_partitions(request: AlterPartition, entity: Any) -> AlterPartitionAnswer:
    """In the controller's order; a partition that it omits is also missing here (C47)."""
    _check(entity)
    return AlterPartitionAnswer(
        tuple(
            (topic.topic_id or ZERO_UUID, tuple(_altered_partition(each) for each in topic.partitions))
            for topic in entity.topics
        )
    )


def _altered_partition(each: Any) -> AlteredPartition:
    code = _known(each.error_code)
    if not code and each.leader_recovery_state not in _RECOVERY_STATES:
        code = ErrorCode.UNKNOWN_SERVER_ERROR  # V30
    if code:
        return AlteredPartition(each.partition_index, code)
    return AlteredPartition(
        each.partition_index,
        ErrorCode.NONE,
        each.leader_id,
        each.leader_epoch,
        tuple(each.isr),
        each.leader_recovery_state,
        each.partition_epoch,
    )


def _assign(request: AssignReplicasToDirs, version: int) -> Fields:
    return {
        "broker_id": request.broker_id,
        "broker_epoch": request.broker_epoch,
        "directories": [
            {
                "id_": directory,
                "topics": [
                    {"topic_id": topic, "partitions": [{"partition_index": index} for index in indexes]}
                    for topic, indexes in topics
                ],
            }
            for directory, topics in request.directories
        ],
    }


def _assigned(request: AssignReplicasToDirs, entity: Any) -> AssignReplicasToDirsAnswer:
    _check(entity)
    return AssignReplicasToDirsAnswer(
        tuple(
            (
                directory.id_ or ZERO_UUID,
                tuple(
                    (
                        topic.topic_id or ZERO_UUID,
                        tuple(
                            AssignedReplica(each.partition_index, _known(each.error_code)) for each in topic.partitions
                        ),
                    )
                    for topic in directory.topics
                ),
            )
            for directory in entity.directories
        )
    )


def _create_topics(request: CreateTopics, version: int) -> Fields:
    return {
        "topics": [
            {
                "name": topic.name,
                "num_partitions": topic.num_partitions,
                "replication_factor": topic.replication_factor,
                "assignments": [
                    {"partition_index": index, "broker_ids": list(replicas)} for index, replicas in topic.assignments
                ],
                "configs": [{"name": name, "value": value} for name, value in topic.configs],
            }
            for topic in request.topics
        ],
        "timeout": 30_000,
        "validate_only": request.validate_only,
    }


def _created(request: CreateTopics, entity: Any) -> CreateTopicsAnswer:
    found = {topic.name: topic for topic in entity.topics}
    answers = []
    for wanted in request.topics:
        topic = found[wanted.name]
        outcome = RequestOutcome(topic.error_code, topic.error_message)
        if outcome.code is ErrorCode.NOT_CONTROLLER:
            raise PeerError(ErrorCode.NOT_CONTROLLER)
        answers.append(
            CreateTopicResult(
                topic.name,
                outcome,
                getattr(topic, "topic_id", None) or ZERO_UUID,  # none before version 7
                topic.num_partitions,
                topic.replication_factor,
                {each.name: each.value for each in topic.configs or () if each.config_source == _OF_THE_TOPIC},
            )
        )
    return CreateTopicsAnswer(tuple(answers))


def _incremental(request: IncrementalAlterConfigs, version: int) -> Fields:
    return {
        "resources": [
            {
                "resource_type": int(resource.type),
                "resource_name": resource.name,
                "configs": [
                    {"name": change.name, "config_operation": int(change.operation), "value": change.value}
                    for change in changes
                ],
            }
            for resource, changes in request.resources
        ],
        "validate_only": request.validate_only,
    }


def _legacy(request: AlterConfigs, version: int) -> Fields:
    return {
        "resources": [
            {
                "resource_type": int(resource.type),
                "resource_name": resource.name,
                "configs": [{"name": name, "value": value} for name, value in values],
            }
            for resource, values in request.resources
        ],
        "validate_only": request.validate_only,
    }


def _altered(request: IncrementalAlterConfigs | AlterConfigs, entity: Any) -> AlterConfigsAnswer:
    found = {(int(each.resource_type), each.resource_name): each for each in entity.responses}
    answers = []
    for resource, _ in request.resources:
        each = found[int(resource.type), resource.name]
        answers.append(AlteredResource(resource, RequestOutcome(each.error_code, each.error_message)))
    return AlterConfigsAnswer(tuple(answers))


MAPPINGS: Final[Mapping[type[Any], RemoteRequest]] = {
    RegisterBroker: RemoteRequest(ApiKey.BROKER_REGISTRATION, 0, 4, "life", 5.0, _register_broker, _registered),
    BrokerHeartbeat: RemoteRequest(ApiKey.BROKER_HEARTBEAT, 0, 2, "life", 5.0, _heartbeat, _beaten),
    RegisterController: RemoteRequest(
        ApiKey.CONTROLLER_REGISTRATION, 0, 0, "registration", 5.0, _register_controller, _controller_registered
    ),
    AllocateProducerIds: RemoteRequest(ApiKey.ALLOCATE_PRODUCER_IDS, 0, 0, "ids", 10.0, _allocate, _allocated),
    AlterPartition: RemoteRequest(ApiKey.ALTER_PARTITION, 2, 3, "isr", 10.0, _alter_partition, _altered_partitions),
    AssignReplicasToDirs: RemoteRequest(ApiKey.ASSIGN_REPLICAS_TO_DIRS, 0, 0, "directories", 10.0, _assign, _assigned),
    CreateTopics: RemoteRequest(ApiKey.CREATE_TOPICS, 5, 7, "clients", 30.0, _create_topics, _created),
    IncrementalAlterConfigs: RemoteRequest(
        ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, 1, "clients", 30.0, _incremental, _altered
    ),
    AlterConfigs: RemoteRequest(ApiKey.ALTER_CONFIGS, 2, 2, "clients", 30.0, _legacy, _altered),
}
"""By request type."""
