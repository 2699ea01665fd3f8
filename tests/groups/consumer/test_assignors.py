"""The assignors `uniform` and `range`: every subscribed partition is assigned to a subscriber, evenly, and few move."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fenceline.groups.consumer.assignors import MemberSubscription, Target
from fenceline.groups.consumer.uniform import ASSIGNORS
from tests.groups.consumer_world import id_of, parts


def _wish(name: str, *topics: str, instance: str | None = None, **last: Sequence[int]) -> MemberSubscription:
    return MemberSubscription(name, instance, frozenset(map(id_of, topics)), parts(**last))


def _counts(**topics: int) -> dict[UUID, int]:
    return {id_of(name): count for name, count in topics.items()}


def _is_same(wishes: Sequence[MemberSubscription]) -> bool:
    return len({wish.topics for wish in wishes}) <= 1


def _assign(name: str, wishes: Sequence[MemberSubscription], counts: Mapping[UUID, int]) -> Target:
    return ASSIGNORS[name](wishes, counts, _is_same(wishes))


def _sizes(target: Target) -> Counter[str]:
    return Counter({name: sum(map(len, share.values())) for name, share in target.items()})


def test_range_assigns_the_same_partition_numbers_of_every_topic() -> None:
    target = _assign("range", [_wish("a", "t", "u"), _wish("b", "t", "u")], _counts(t=3, u=3))
    assert target == {"a": parts(t=[0, 1], u=[0, 1]), "b": parts(t=[2], u=[2])}


def test_range_puts_static_members_first_by_instance() -> None:
    wishes = [_wish("a", "t"), _wish("z", "t", instance="1"), _wish("y", "t", instance="2")]
    target = _assign("range", wishes, _counts(t=3))
    assert target == {"z": parts(t=[0]), "y": parts(t=[1]), "a": parts(t=[2])}


def test_range_with_more_members_than_partitions_leaves_some_idle() -> None:
    target = _assign("range", [_wish("a", "t"), _wish("b", "t")], _counts(t=1))
    assert target == {"a": parts(t=[0]), "b": {}}


def test_range_shares_each_topic_among_its_subscribers() -> None:
    wishes = [_wish("a", "t"), _wish("b", "t", "u"), _wish("c", "u")]
    target = _assign("range", wishes, _counts(t=4, u=3))
    assert target == {"a": parts(t=[0, 1]), "b": parts(t=[2, 3], u=[0, 1]), "c": parts(u=[2])}


def test_uniform_keeps_valid_partitions_and_moves_the_rest() -> None:
    wishes = [_wish("a", "t", t=[0, 1, 2, 3]), _wish("b", "t")]
    target = _assign("uniform", wishes, _counts(t=4))
    assert _sizes(target) == {"a": 2, "b": 2}
    assert target["a"][id_of("t")] == {0, 1}


def test_uniform_balances_different_subscriptions_over_topics() -> None:
    wishes = [_wish("a", "t", t=range(6)), _wish("b", "t", "u"), _wish("c", "u")]
    target = _assign("uniform", wishes, _counts(t=6, u=3))
    sizes = _sizes(target)
    assert abs(sizes["a"] - sizes["b"]) <= 1, "of t"
    assert abs(sizes["b"] - sizes["c"]) <= 1, "of u"
    assert target["a"][id_of("t")] <= frozenset(range(6))


def test_uniform_removes_unsubscribed_topics() -> None:
    wishes = [_wish("a", "u", t=[0], u=[0]), _wish("b", "u")]
    assert _assign("uniform", wishes, _counts(u=2)) == {"a": parts(u=[0]), "b": parts(u=[1])}


def test_no_members_and_no_topics() -> None:
    for name in ASSIGNORS:
        assert _assign(name, [], {}) == {}
        assert _assign(name, [_wish("a")], {}) == {"a": {}}


_TOPICS = "tuvw"


@st.composite
def _groups(draw: st.DrawFn) -> tuple[list[MemberSubscription], dict[UUID, int]]:
    counts = {id_of(name): draw(st.integers(1, 9)) for name in _TOPICS}
    same = draw(st.booleans())
    common = frozenset(draw(st.sets(st.sampled_from(_TOPICS), min_size=1)))
    free = [(topic, index) for topic, count in counts.items() for index in range(count)]
    wishes = []
    for number in range(draw(st.integers(1, 7))):
        wanted = common if same else frozenset(draw(st.sets(st.sampled_from(_TOPICS))))
        taken = draw(st.lists(st.sampled_from(free), unique=True, max_size=8)) if free else []
        free = [each for each in free if each not in taken]
        last: dict[UUID, set[int]] = {}
        for topic, index in taken:
            last.setdefault(topic, set()).add(index)
        instance = f"i{number}" if draw(st.booleans()) else None
        wishes.append(
            MemberSubscription(
                f"m{number}",
                instance,
                frozenset(map(id_of, wanted)),
                {topic: frozenset(indexes) for topic, indexes in last.items()},
            )
        )
    return wishes, counts


@pytest.mark.parametrize("name", list(ASSIGNORS))
@given(group=_groups())
def test_each_subscribed_partition_is_assigned_to_one_subscriber(
    name: str, group: tuple[list[MemberSubscription], dict[UUID, int]]
) -> None:
    wishes, counts = group
    target = _assign(name, wishes, counts)
    assert target.keys() == {wish.member_id for wish in wishes}
    given_out = Counter(
        (topic, index) for share in target.values() for topic, indexes in share.items() for index in indexes
    )
    wanted = {topic for wish in wishes for topic in wish.topics}
    assert given_out == Counter((topic, index) for topic in wanted for index in range(counts[topic]))
    for wish in wishes:
        assert target[wish.member_id].keys() <= wish.topics
        assert all(target[wish.member_id].values()), "no topic without partitions"
    assert _assign(name, list(reversed(wishes)), counts) == target, "the order of members does not matter"


@given(group=_groups())
def test_uniform_is_even_and_sticky(group: tuple[list[MemberSubscription], dict[UUID, int]]) -> None:
    wishes, counts = group
    target = _assign("uniform", wishes, counts)
    if _is_same(wishes) and wishes[0].topics:
        sizes = _sizes(target).values()
        assert max(sizes) - min(sizes) <= 1
    again = [
        MemberSubscription(wish.member_id, wish.instance_id, wish.topics, target[wish.member_id]) for wish in wishes
    ]
    assert _assign("uniform", again, counts) == target, "a balanced assignment does not move"
