"""Creation and deletion of topics, and addition of partitions.

Owns the checks and the records of these requests. Error messages are Kafka's, because tools show them.

Rules: controller.md C3, C21-C25; recovery.md V5; security.md A61; since_4_0.md K25, K27.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar
from uuid import UUID

from fenceline.config.topic import validate_topic_configs
from fenceline.controller.assignments import ItemRejected, check_assignment
from fenceline.controller.placement import place_replicas
from fenceline.controller.requests import (
    SUCCESS,
    CreatePartitions,
    CreatePartitionsAnswer,
    CreateTopicResult,
    CreateTopics,
    CreateTopicsAnswer,
    DeletedTopic,
    DeleteTopics,
    DeleteTopicsAnswer,
    NamedOutcome,
    NewPartitions,
    PartitionMutations,
    RequestOutcome,
    TopicReference,
    TopicToCreate,
)
from fenceline.controller.state import MAX_RECORDS, ControllerState, Decision, refuse_large_batch
from fenceline.controller.topic_names import name_fault
from fenceline.errors import ErrorCode, PeerError
from fenceline.ids import METADATA_TOPIC, ZERO_UUID, random_id
from fenceline.metadata.features import MV_DIRECTORIES
from fenceline.metadata.image import ConfigResourceType, TopicImage
from fenceline.metadata.records import (
    ConfigRecord,
    MetadataRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from fenceline.rng import Rng

T = TypeVar("T")

_UNKNOWN_TOPIC = "This server does not host this topic-partition."
_UNKNOWN_TOPIC_ID = "This server does not host this topic ID."


def check_partition_count(counts: Iterable[tuple[int, int]], default_count: int) -> None:
    """Raises PeerError(POLICY_VIOLATION) if the topics of one request would have too many partitions, before anything
    else about them is looked at. `counts`: for each topic the requested number and that of assigned partitions."""
    total = 0
    for requested, assigned in counts:
        total += assigned or (default_count if requested == -1 else max(requested, 0))
        if total > MAX_RECORDS:
            raise PeerError(ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request.")


def create_topics(state: ControllerState, request: CreateTopics, rng: Rng) -> Decision:
    """C21, C22. Valid topics are created in one atomic batch; each other one gets its own error."""
    counts = ((topic.num_partitions, len(topic.assignments)) for topic in request.topics)
    check_partition_count(counts, state.settings.default_partition_count)
    records: list[MetadataRecord] = []
    results: list[CreateTopicResult] = []
    repeated = _repeated(topic.name for topic in request.topics)
    for topic in {each.name: each for each in request.topics}.values():  # one result for each name
        try:
            if topic.name in repeated:
                raise ItemRejected(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            results.append(_create_topic(state, topic, request.mutations, records, rng))
        except ItemRejected as refused:
            results.append(CreateTopicResult(topic.name, refused.outcome))
    if not request.validate_only:
        refuse_large_batch(len(records), 0)
    return Decision(() if request.validate_only else records, CreateTopicsAnswer(tuple(results)))


def _create_topic(
    state: ControllerState,
    topic: TopicToCreate,
    mutations: PartitionMutations | None,
    records: list[MetadataRecord],
    rng: Rng,
) -> CreateTopicResult:
    name = topic.name
    if name == METADATA_TOPIC:
        raise ItemRejected(ErrorCode.INVALID_REQUEST, f"Creation of internal topic {name} is prohibited.")
    if name in state.image.topics_by_name:
        raise ItemRejected(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    fault = name_fault(name)
    if fault is not None:
        raise ItemRejected(ErrorCode.INVALID_TOPIC_EXCEPTION, fault)
    colliding = state.names.colliding(name)
    if colliding is not None:
        raise ItemRejected(
            ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with existing topic: {colliding}"
        )
    configs = _checked_configs(topic)
    replicas, isrs = _assignments(state, topic, rng)
    _count(mutations, len(replicas))
    topic_id = random_id(rng)
    records.append(TopicRecord(name, topic_id))
    records.extend(ConfigRecord(ConfigResourceType.TOPIC, name, key, value) for key, value in configs.items())
    records.extend(_partition_records(state, topic_id, replicas, isrs))
    return CreateTopicResult(name, SUCCESS, topic_id, len(replicas), len(replicas[0]), configs)


def _checked_configs(topic: TopicToCreate) -> dict[str, str]:
    if not topic.configs:
        return {}
    configs = dict(topic.configs)
    try:
        validate_topic_configs(configs)
    except PeerError as error:
        raise ItemRejected(error.code, error.message) from None
    return {key: value for key, value in configs.items() if value is not None}


def _assignments(
    state: ControllerState, topic: TopicToCreate, rng: Rng
) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """Replicas and ISR of each partition."""
    if topic.assignments:
        return _manual_assignments(state, topic)
    if topic.replication_factor < -1 or topic.replication_factor == 0:
        raise ItemRejected(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    if topic.num_partitions < -1 or topic.num_partitions == 0:
        raise ItemRejected(
            ErrorCode.INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value."
        )
    settings = state.settings
    count = settings.default_partition_count if topic.num_partitions == -1 else topic.num_partitions
    factor = settings.default_replication_factor if topic.replication_factor == -1 else topic.replication_factor
    return _place(state, count, factor, rng)


def _place(
    state: ControllerState, count: int, factor: int, rng: Rng
) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    try:
        replicas = place_replicas(
            state.placeable_brokers, count, factor, rng, distinct_racks=state.settings.distinct_racks
        )
    except PeerError as error:
        raise ItemRejected(error.code, f"Unable to replicate the partition {factor} time(s): {error.message}") from None
    isrs = _in_sync(state, replicas)
    if not all(isrs):
        raise ItemRejected(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {factor} time(s): "
            "All brokers are currently fenced or in controlled shutdown.",
        )
    return replicas, isrs


def _manual_assignments(
    state: ControllerState, topic: TopicToCreate
) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    if topic.replication_factor != -1:
        raise ItemRejected(
            ErrorCode.INVALID_REQUEST,
            "A manual partition assignment was specified, but replication factor was not set to -1.",
        )
    if topic.num_partitions != -1:
        raise ItemRejected(
            ErrorCode.INVALID_REQUEST,
            "A manual partition assignment was specified, but numPartitions was not set to -1.",
        )
    assigned: dict[int, tuple[int, ...]] = {}
    factor: int | None = None
    for index, replicas in topic.assignments:
        if index in assigned:
            raise ItemRejected(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Found multiple manual partition assignments for partition {index}",
            )
        check_assignment(state, replicas, factor)
        factor = len(replicas)
        _require_active(state, index, replicas)
        assigned[index] = replicas
    if any(index not in assigned for index in range(len(assigned))):
        raise ItemRejected(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, "partitions should be a consecutive 0-based integer sequence"
        )
    ordered = [assigned[index] for index in range(len(assigned))]
    return ordered, _in_sync(state, ordered)


def _require_active(state: ControllerState, index: int, replicas: tuple[int, ...]) -> None:
    if not _active(state, replicas):
        raise ItemRejected(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"All brokers specified in the manual partition assignment for partition {index} "
            "are fenced or in controlled shutdown.",
        )


def _in_sync(state: ControllerState, replicas: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """The in-sync set of each new partition. Many have the same replicas."""
    active = {assigned: _active(state, assigned) for assigned in set(replicas)}
    return [active[assigned] for assigned in replicas]


def _active(state: ControllerState, replicas: tuple[int, ...]) -> tuple[int, ...]:
    active = tuple(broker for broker in replicas if state.image.is_active(broker))
    return replicas if active == replicas else active


def _partition_records(
    state: ControllerState,
    topic_id: UUID,
    replicas: Sequence[tuple[int, ...]],
    isrs: Sequence[tuple[int, ...]],
    *,
    first: int = 0,
) -> Iterator[PartitionRecord]:
    """C22, V5: the first in-sync replica leads, in state RECOVERED; all epochs start at 0."""
    directories: dict[tuple[int, ...], tuple[UUID, ...]] = dict.fromkeys(replicas, ())
    if state.image.metadata_version >= MV_DIRECTORIES:
        directories = {assigned: tuple(map(state.default_directory, assigned)) for assigned in directories}
    for index, (assigned, isr) in enumerate(zip(replicas, isrs, strict=True), start=first):
        yield PartitionRecord(
            partition_id=index,
            topic_id=topic_id,
            replicas=assigned,
            isr=isr,
            leader=isr[0],
            leader_epoch=0,
            partition_epoch=0,
            directories=directories[assigned],
        )


def delete_topics(state: ControllerState, request: DeleteTopics) -> Decision:
    """C25. Each topic is given by name or by id, once."""
    if not state.settings.delete_topics_enabled:
        outcome = RequestOutcome(ErrorCode.TOPIC_DELETION_DISABLED, "Topic deletion is disabled.")
        return Decision((), DeleteTopicsAnswer(tuple(DeletedTopic(t.name, t.id, outcome) for t in request.topics)))
    image = state.image
    repeated_names = _repeated(topic.name for topic in request.topics if topic.name is not None)
    repeated_ids = _repeated(topic.id for topic in request.topics if topic.id != ZERO_UUID)
    records: list[MetadataRecord] = []
    results: list[DeletedTopic] = []
    done: set[UUID] = set()
    for reference in dict.fromkeys(request.topics):  # one result for each name or id
        try:
            topic = _referenced(state, reference, repeated_names, repeated_ids)
            if topic.id in done:
                raise ItemRejected(
                    ErrorCode.INVALID_REQUEST, "The provided topic name maps to an ID that was already supplied."
                )
            if len(records) >= MAX_RECORDS:
                raise PeerError(ErrorCode.POLICY_VIOLATION, "Excessively large number of topics per request.")
            _count(request.mutations, len(topic.partitions))
            done.add(topic.id)
            records.append(RemoveTopicRecord(topic.id))
            results.append(DeletedTopic(topic.name, topic.id, SUCCESS))
        except ItemRejected as refused:
            known = image.topics_by_id.get(reference.id)
            name = reference.name if reference.name is not None else known.name if known is not None else None
            results.append(DeletedTopic(name, reference.id, refused.outcome))
    return Decision(records, DeleteTopicsAnswer(tuple(results)))


def _referenced(
    state: ControllerState, reference: TopicReference, repeated_names: set[str], repeated_ids: set[UUID]
) -> TopicImage:
    if reference.name is not None:
        if reference.id != ZERO_UUID:
            raise ItemRejected(ErrorCode.INVALID_REQUEST, "You may not specify both topic name and topic id.")
        if reference.name in repeated_names:
            raise ItemRejected(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
        topic = state.image.topics_by_name.get(reference.name)
        if topic is None:
            raise ItemRejected(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, _UNKNOWN_TOPIC)
        return topic
    if reference.id == ZERO_UUID:
        raise ItemRejected(ErrorCode.INVALID_REQUEST, "Neither topic name nor id were specified.")
    if reference.id in repeated_ids:
        raise ItemRejected(ErrorCode.INVALID_REQUEST, "Duplicate topic id.")
    topic = state.image.topics_by_id.get(reference.id)
    if topic is None:
        raise ItemRejected(ErrorCode.UNKNOWN_TOPIC_ID, _UNKNOWN_TOPIC_ID)
    return topic


def create_partitions(state: ControllerState, request: CreatePartitions, rng: Rng) -> Decision:
    """C24."""
    records: list[MetadataRecord] = []
    results: list[NamedOutcome] = []
    repeated = _repeated(topic.name for topic in request.topics)
    for topic in {each.name: each for each in request.topics}.values():
        try:
            if topic.name in repeated:
                raise ItemRejected(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            _create_partitions(state, topic, request.mutations, records, rng)
            results.append(NamedOutcome(topic.name, SUCCESS))
        except ItemRejected as refused:
            results.append(NamedOutcome(topic.name, refused.outcome))
    return Decision(() if request.validate_only else records, CreatePartitionsAnswer(tuple(results)))


def _create_partitions(
    state: ControllerState,
    requested: NewPartitions,
    mutations: PartitionMutations | None,
    records: list[MetadataRecord],
    rng: Rng,
) -> None:
    topic = state.image.topics_by_name.get(requested.name)
    if topic is None:
        raise ItemRejected(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None)
    count = len(topic.partitions)
    if requested.count == count:
        raise ItemRejected(ErrorCode.INVALID_PARTITIONS, f"Topic already has {count} partition(s).")
    if requested.count < count:
        raise ItemRejected(
            ErrorCode.INVALID_PARTITIONS,
            f"The topic {requested.name} currently has {count} partition(s); {requested.count} would not be an"
            " increase.",
        )
    additional = requested.count - count
    if len(records) + additional > MAX_RECORDS:
        raise PeerError(ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request.")
    factor = len(topic.partitions[0].replicas)
    if requested.assignments is None:
        replicas, isrs = _place(state, additional, factor, rng)
    else:
        if len(requested.assignments) != additional:
            raise ItemRejected(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Attempted to add {additional} additional partition(s), but only {len(requested.assignments)} "
                "assignment(s) were specified.",
            )
        for index, assigned in enumerate(requested.assignments, start=count):
            check_assignment(state, assigned, factor)
            _require_active(state, index, assigned)
        replicas = list(requested.assignments)
        isrs = _in_sync(state, replicas)
    _count(mutations, additional)
    records.extend(_partition_records(state, topic.id, replicas, isrs, first=count))


def _count(mutations: PartitionMutations | None, partitions: int) -> None:
    """Raises ItemRejected."""
    if mutations is not None and not mutations.takes(partitions):
        raise ItemRejected(ErrorCode.THROTTLING_QUOTA_EXCEEDED, "The throttling quota has been exceeded.")


def _repeated(values: Iterable[T]) -> set[T]:
    return {value for value, count in Counter(values).items() if count > 1}
