"""Leadership of many partitions at once: a broker leaves, comes back, or is asked to lead again.

Owns which partitions an event concerns; what happens to each is `controller.elections`.

Rules: controller.md C16, C19, C20, C27-C30; since_4_0.md K21-K23.
"""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from fenceline.controller.elections import Election, change_partition
from fenceline.controller.requests import (
    SUCCESS,
    Done,
    ElectedPartition,
    ElectionType,
    ElectLeaders,
    ElectLeadersAnswer,
    Outcome,
)
from fenceline.controller.state import MAX_RECORDS, ControllerState, Decision
from fenceline.errors import ErrorCode, PeerError
from fenceline.ids import NO_LEADER
from fenceline.metadata.image import TopicImage
from fenceline.metadata.records import MetadataRecord

MAX_ELECTIONS_PER_PASS = 1000

_NOT_NEEDED = Outcome(ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition.")
_NO_PREFERRED = Outcome(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, "The preferred leader was not available.")
_NO_ELIGIBLE = Outcome(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "Eligible topic partition leaders are not available.")


def update_partitions(
    state: ControllerState,
    partitions: Iterable[tuple[UUID, int]],
    *,
    leaving: int = NO_LEADER,
    arriving: int = NO_LEADER,
    unclean: int = NO_LEADER,
) -> list[MetadataRecord]:
    """Take `leaving` and `unclean` out of the ISR of `partitions` and elect leaders where one is missing.

    `arriving` may lead although the image still shows it fenced; `unclean` came back without a clean stop and loses
    its place among the eligible leader replicas too.
    """
    image = state.image
    elr_enabled = image.elr_enabled
    gone = {leaving, unclean} - {NO_LEADER}
    records: list[MetadataRecord] = []
    topic: TopicImage | None = None
    min_isr = 1
    election = Election.ONLINE
    for topic_id, index in partitions:
        if topic is None or topic.id != topic_id:
            topic = image.topics_by_id[topic_id]
            min_isr = state.min_isr(topic)
            election = Election.UNCLEAN if state.unclean_election(topic.name) else Election.ONLINE
        partition = topic.partitions[index]

        def may_lead(broker: int) -> bool:
            return (
                broker not in gone
                and (broker == arriving or image.is_active(broker))
                and state.replica_is_online(broker, partition)  # noqa: B023 - used before the next turn
            )

        record = change_partition(
            partition,
            topic_id,
            index,
            may_lead=may_lead,
            min_isr=min_isr,
            elr_enabled=elr_enabled,
            election=election,
            target_isr=tuple(broker for broker in partition.isr if broker not in gone) if gone else None,
            unclean_shutdown=unclean,
        )
        if record is not None:
            records.append(record)
    return records


def elect_leaders(state: ControllerState, request: ElectLeaders) -> Decision:
    """C29. Raises PeerError(INVALID_REQUEST) for an unknown type of election."""
    try:
        election_type = ElectionType(request.election_type)
    except ValueError:
        raise PeerError(ErrorCode.INVALID_REQUEST, f"Unknown election type {request.election_type}") from None
    records: list[MetadataRecord] = []
    answers: list[tuple[str, tuple[ElectedPartition, ...]]] = []
    if request.topic_partitions is None:
        for name, topic in state.image.topics_by_name.items():
            outcomes = [
                ElectedPartition(index, _elect(state, topic, index, election_type, records))
                for index in range(len(topic.partitions))
            ]
            answers.append((name, tuple(o for o in outcomes if o.outcome.code != ErrorCode.ELECTION_NOT_NEEDED)))
    else:
        for name, indexes in request.topic_partitions:
            found = state.image.topics_by_name.get(name)
            answers.append(
                (
                    name,
                    tuple(
                        ElectedPartition(i, _elect_named(state, name, found, i, election_type, records))
                        for i in indexes
                    ),
                )
            )
    return Decision(records, ElectLeadersAnswer(tuple(answers)), atomic=False)


def _elect_named(
    state: ControllerState,
    name: str,
    topic: TopicImage | None,
    index: int,
    election_type: ElectionType,
    records: list[MetadataRecord],
) -> Outcome:
    if topic is None:
        return Outcome(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {name}")
    if not 0 <= index < len(topic.partitions):
        return Outcome(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {name}-{index}")
    return _elect(state, topic, index, election_type, records)


def _elect(
    state: ControllerState,
    topic: TopicImage,
    index: int,
    election_type: ElectionType,
    records: list[MetadataRecord],
) -> Outcome:
    partition = topic.partitions[index]
    preferred = election_type is ElectionType.PREFERRED
    if partition.leader == partition.preferred_leader if preferred else partition.leader != NO_LEADER:
        return _NOT_NEEDED
    record = change_partition(
        partition,
        topic.id,
        index,
        may_lead=lambda broker: state.image.is_active(broker) and state.replica_is_online(broker, partition),
        min_isr=state.min_isr(topic),
        elr_enabled=state.image.elr_enabled,
        election=Election.PREFERRED if preferred else Election.UNCLEAN,
    )
    if record is None:
        return _NO_PREFERRED if preferred else _NO_ELIGIBLE
    records.append(record)
    return SUCCESS


def balance_leaders(state: ControllerState) -> Decision:
    """C30: leadership goes back to preferred replicas that are in sync and active, at most 1000 a pass."""
    records: list[MetadataRecord] = []
    for topic in state.image.topics_by_id.values():
        for index, partition in enumerate(topic.partitions):
            preferred = partition.preferred_leader
            if partition.leader != preferred and preferred in partition.isr and state.image.is_active(preferred):
                _elect(state, topic, index, ElectionType.PREFERRED, records)
                if len(records) >= min(MAX_ELECTIONS_PER_PASS, MAX_RECORDS):
                    return Decision(records, Done(), atomic=False)
    return Decision(records, Done(), atomic=False)
