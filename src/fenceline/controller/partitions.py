"""Requested and periodic elections.

Owns which partitions a request or a timer concerns; `controller.elections` computes each change. Only partitions of an
index are visited: those without a leader, and those not led by the preferred replica.

Rules: controller.md C29, C30; recovery.md V12, V13; since_4_0.md K21; gaps.md G45.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final
from uuid import UUID

from fenceline.controller.elections import Election
from fenceline.controller.outcome import SUCCESS, RequestOutcome
from fenceline.controller.partition_changes import PartitionChanges
from fenceline.controller.partition_requests import (
    ElectedPartition,
    ElectionPassAnswer,
    ElectionType,
    ElectLeaders,
    ElectLeadersAnswer,
)
from fenceline.controller.partition_visits import VisitCause
from fenceline.controller.requests import EmptyAnswer
from fenceline.controller.state import (
    MAX_RECORDS,
    UNCLEAN_ELECTION,
    ControllerState,
    Decision,
    refuse_large_batch,
)
from fenceline.errors import ErrorCode, PeerError
from fenceline.ids import NO_EPOCH, NO_LEADER
from fenceline.metadata.image import TopicImage
from fenceline.metadata.records import ConfigRecord, MetadataRecord

MAX_ELECTIONS_PER_PASS: Final = 1000

_NOT_NEEDED: Final = RequestOutcome(ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition.")
_NO_PREFERRED: Final = RequestOutcome(
    ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, "The preferred leader was not available."
)
_NO_ELIGIBLE: Final = RequestOutcome(
    ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "Eligible topic partition leaders are not available."
)


def elect_leaders(state: ControllerState, request: ElectLeaders) -> Decision:
    """C29. Raises PeerError: INVALID_REQUEST for an unknown type, POLICY_VIOLATION for more than 10,000 changes."""
    try:
        election_type = ElectionType(request.election_type)
    except ValueError:
        raise PeerError(ErrorCode.INVALID_REQUEST, f"Unknown election type {request.election_type}") from None
    changes = PartitionChanges(state)
    if request.topic_partitions is None:
        answers = _elect_all(state, changes, election_type)
    else:
        topics = state.image.topics_by_name
        answers = [
            (
                name,
                tuple(
                    ElectedPartition(i, _elect_named(changes, name, topics.get(name), i, election_type)) for i in all
                ),
            )
            for name, all in request.topic_partitions
        ]
    check_size(changes.records)
    return Decision(changes.records, ElectLeadersAnswer(tuple(answers)), atomic=False)


def check_size(records: Sequence[MetadataRecord]) -> None:
    """C3. Raises PeerError(POLICY_VIOLATION) if a user's request leads to too many records."""
    refuse_large_batch(len(records), 0)


def _elect_all(
    state: ControllerState, changes: PartitionChanges, election_type: ElectionType
) -> list[tuple[str, tuple[ElectedPartition, ...]]]:
    """The response contains every topic, with the partitions that need an election."""
    due = _imbalanced(state) if election_type is ElectionType.PREFERRED else state.index.leaderless()
    outcomes: dict[UUID, list[ElectedPartition]] = {}
    for topic_id, index in due:
        topic = state.image.topics_by_id[topic_id]
        outcome = _elect(changes, topic, index, election_type)
        outcomes.setdefault(topic_id, []).append(ElectedPartition(index, outcome))
    return [
        (name, tuple(sorted(outcomes.get(topic.id, ()), key=lambda each: each.index)))
        for name, topic in state.image.topics_by_name.items()
    ]


def _imbalanced(state: ControllerState) -> Iterable[tuple[UUID, int]]:
    for broker in state.index.imbalanced():
        yield from state.index.imbalanced_of(broker)


def _elect_named(
    changes: PartitionChanges, name: str, topic: TopicImage | None, index: int, election_type: ElectionType
) -> RequestOutcome:
    if topic is None:
        return RequestOutcome(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {name}")
    if changes.partition(topic, index) is None:
        return RequestOutcome(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {name}-{index}")
    return _elect(changes, topic, index, election_type)


def _elect(changes: PartitionChanges, topic: TopicImage, index: int, election_type: ElectionType) -> RequestOutcome:
    partition = changes.partition(topic, index)
    assert partition is not None, "callers check that the partition exists"
    preferred = election_type is ElectionType.PREFERRED
    if partition.leader == partition.preferred_leader if preferred else partition.leader != NO_LEADER:
        return _NOT_NEEDED
    record = changes.change(topic, index, election=Election.PREFERRED if preferred else Election.UNCLEAN)
    if record is None:
        return _NO_PREFERRED if preferred else _NO_ELIGIBLE
    return SUCCESS


# -- timers ------------------------------------------------------------------------------------------------------------


def balance_leaders(state: ControllerState) -> Decision:
    """C30: move leadership to preferred replicas that are in sync and active, at most 1000 in a pass.

    Only for brokers above `leader.imbalance.per.broker.percentage`, which Kafka no longer honours without ZooKeeper
    (G45). Each move costs the leader's clients a metadata refresh; a small imbalance costs them nothing.
    """
    changes = PartitionChanges(state)
    limit = state.settings.leader_imbalance_percentage
    for broker in state.index.imbalanced():
        if not state.image.is_active(broker) or state.index.imbalance_of(broker) <= limit:
            continue
        for topic_id, index in state.index.imbalanced_of(broker):
            topic = state.image.topics_by_id[topic_id]
            if broker in topic.partitions[index].isr:
                changes.change(topic, index, election=Election.PREFERRED)
                if len(changes.records) >= MAX_ELECTIONS_PER_PASS:
                    return Decision(changes.records, ElectionPassAnswer(more=True), atomic=False)
    return Decision(changes.records, ElectionPassAnswer(more=False), atomic=False)


def elect_unclean_leaders(state: ControllerState) -> Decision:
    """V12: elect leaders of leaderless partitions whose topic allows unclean elections, at most 1000 in a pass."""
    changes = PartitionChanges(state)
    _elect_uncleanly(state, changes, state.index.leaderless(), MAX_ELECTIONS_PER_PASS)
    return Decision(
        changes.records, ElectionPassAnswer(more=len(changes.records) >= MAX_ELECTIONS_PER_PASS), atomic=False
    )


def elect_leaderless(state: ControllerState) -> Decision:
    """Elect leaders of leaderless partitions that have an eligible replica on an active broker: an earlier controller
    may have unfenced the broker and stopped before it had elected all of them (C16)."""
    changes = PartitionChanges(state)
    some, more = state.visits.next(
        VisitCause.LEADERLESS, NO_LEADER, NO_EPOCH, state.index.leaderless, state.visits_in_a_step
    )
    changes.elect(some)
    return Decision(changes.records, EmptyAnswer(), atomic=False, more=more)


def elections_after_configs(state: ControllerState, records: Sequence[MetadataRecord]) -> list[MetadataRecord]:
    """G45: if `records` enable unclean elections, leaders are elected at once and not in the next pass.

    Elections that do not fit into the decision are left to that pass.
    """
    changed = [r for r in records if isinstance(r, ConfigRecord) and r.name == UNCLEAN_ELECTION]
    if not changed:
        return []
    after = state.with_records(records)
    changes = PartitionChanges(after)
    _elect_uncleanly(after, changes, state.index.leaderless(), min(MAX_ELECTIONS_PER_PASS, MAX_RECORDS - len(records)))
    return changes.records


def _elect_uncleanly(
    state: ControllerState, changes: PartitionChanges, partitions: Iterable[tuple[UUID, int]], limit: int
) -> None:
    for topic_id, index in partitions:
        if len(changes.records) >= limit:
            return
        topic = state.image.topics_by_id[topic_id]
        if changes.is_unclean_allowed(topic):
            changes.change(topic, index, election=Election.UNCLEAN)
