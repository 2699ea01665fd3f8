"""Assignments are complete, exclusive, balanced and sticky for any members."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fenceline.client.consumer.assignors import (
    ASSIGNORS,
    Assignments,
    assignors_of,
    cooperative_sticky_assign,
    range_assign,
    roundrobin_assign,
    sticky_assign,
)
from fenceline.client.core.group_protocol import ClassicSubscription, encode_owned
from fenceline.errors import OperatorError
from fenceline.ids import TopicPartition

_TOPICS = ("a", "b", "c")


@st.composite
def _groups(draw: st.DrawFn) -> tuple[dict[str, ClassicSubscription], dict[str, int]]:
    counts = {topic: draw(st.integers(0, 7)) for topic in _TOPICS}
    names = draw(st.lists(st.sampled_from("mnopqr"), min_size=1, max_size=6, unique=True))
    every = [TopicPartition(topic, i) for topic, count in counts.items() for i in range(count + 1)]
    members = {}
    for name in names:
        topics = tuple(draw(st.lists(st.sampled_from(_TOPICS), min_size=1, unique=True)))
        owned = tuple(draw(st.lists(st.sampled_from(every), max_size=8, unique=True)))
        members[name] = ClassicSubscription(topics, owned, draw(st.integers(-1, 2)))
    return members, counts


def _check_valid(
    assigned: Assignments, members: dict[str, ClassicSubscription], counts: dict[str, int]
) -> set[TopicPartition]:
    given_out = [tp for owned in assigned.values() for tp in owned]
    assert len(given_out) == len(set(given_out)), "a partition has two owners"
    assert assigned.keys() == members.keys()
    for member, owned in assigned.items():
        assert all(tp.topic in members[member].topics and tp.partition < counts[tp.topic] for tp in owned)
    return set(given_out)


def _wanted(members: dict[str, ClassicSubscription], counts: dict[str, int]) -> set[TopicPartition]:
    topics = {topic for s in members.values() for topic in s.topics}
    return {TopicPartition(topic, i) for topic in topics for i in range(counts[topic])}


@pytest.mark.parametrize("assign", [range_assign, roundrobin_assign, sticky_assign])
@given(group=_groups())
def test_each_subscribed_partition_is_assigned_to_exactly_one_subscriber(
    assign: object, group: tuple[dict[str, ClassicSubscription], dict[str, int]]
) -> None:
    members, counts = group
    assert callable(assign)
    assert _check_valid(assign(members, counts), members, counts) == _wanted(members, counts)


@given(group=_groups())
def test_sticky_is_balanced_as_far_as_subscriptions_allow(
    group: tuple[dict[str, ClassicSubscription], dict[str, int]],
) -> None:
    members, counts = group
    assigned = sticky_assign(members, counts)
    for giver, owned in assigned.items():
        for tp in owned:
            for taker, subscription in members.items():
                if tp.topic in subscription.topics:
                    assert len(assigned[giver]) - len(assigned[taker]) <= 1


@given(group=_groups())
def test_cooperative_never_assigns_a_partition_that_is_still_owned(
    group: tuple[dict[str, ClassicSubscription], dict[str, int]],
) -> None:
    members, counts = group
    assigned = cooperative_sticky_assign(members, counts)
    _check_valid(assigned, members, counts)
    newest: dict[TopicPartition, int] = {}
    for s in members.values():
        for tp in s.owned:
            if tp.topic in s.topics:
                newest[tp] = max(newest.get(tp, -2), s.generation_id)
    for member, owned in assigned.items():
        for tp in owned:
            holders = [
                m
                for m, s in members.items()
                if tp in s.owned and tp.topic in s.topics and s.generation_id == newest[tp]
            ]
            assert len(holders) != 1 or holders == [member]


@given(group=_groups())
def test_cooperative_converges_and_moves_no_partition_twice(
    group: tuple[dict[str, ClassicSubscription], dict[str, int]],
) -> None:
    members, counts = group
    for generation in range(3, 6):
        assigned = cooperative_sticky_assign(members, counts)
        members = {m: ClassicSubscription(s.topics, tuple(assigned[m]), generation) for m, s in members.items()}
    assert _check_valid(assigned, members, counts) == _wanted(members, counts)
    assert cooperative_sticky_assign(members, counts) == assigned


def test_sticky_moves_only_the_partitions_for_a_new_member() -> None:
    counts = {"a": 6}
    before = sticky_assign({m: ClassicSubscription(("a",)) for m in "mn"}, counts)
    members = {m: ClassicSubscription(("a",), tuple(before[m]), 1) for m in "mn"} | {"o": ClassicSubscription(("a",))}
    after = sticky_assign(members, counts)
    assert sorted(map(len, after.values())) == [2, 2, 2]
    assert all(set(after[m]) <= set(before[m]) for m in "mn")


def test_sticky_reads_the_previous_assignment_from_user_data() -> None:
    held = (TopicPartition("a", 3),)
    members = {
        "m": ClassicSubscription(("a",)),
        "n": ClassicSubscription(("a",), user_data=encode_owned(held, 5)),
    }
    assert held[0] in sticky_assign(members, {"a": 4})["n"]


def test_range_assignor_matches_kafka() -> None:
    members = {m: ClassicSubscription(("a", "b")) for m in ("m", "n")}
    assigned = range_assign(members, {"a": 3, "b": 3})
    assert assigned["m"] == [TopicPartition(t, p) for t in "ab" for p in (0, 1)]
    assert assigned["n"] == [TopicPartition(t, 2) for t in "ab"]


def test_roundrobin_assignor_matches_kafka() -> None:
    members = {m: ClassicSubscription(("a", "b")) for m in ("m", "n")}
    assigned = roundrobin_assign(members, {"a": 3, "b": 3})
    assert assigned["m"] == [TopicPartition("a", 0), TopicPartition("a", 2), TopicPartition("b", 1)]


def test_assignors_by_name_and_by_java_class_name() -> None:
    found = assignors_of(["range", "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"])
    assert found == (ASSIGNORS["range"], ASSIGNORS["cooperative-sticky"])
    with pytest.raises(OperatorError, match="cooperative-sticky"):
        assignors_of(["best"])
