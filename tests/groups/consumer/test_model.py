"""Aggregates over all members of a group, as members join, change and leave."""

from __future__ import annotations

from dataclasses import replace

from immutables import Map

from fenceline.groups.consumer.model import ConsumerGroup, ConsumerMember, ResolvedRegex


def member(member_id: str, *names: str, regex: str = "") -> ConsumerMember:
    return ConsumerMember(member_id, subscribed_names=frozenset(names), subscribed_regex=regex)


def group(*members: ConsumerMember) -> ConsumerGroup:
    found = ConsumerGroup("g", regexes=Map({"x.*": ResolvedRegex(frozenset({"x1", "x2"}))}))
    for each in members:
        found = found.with_member(each)
    found.check()
    return found


def test_members_with_equal_subscriptions_are_homogeneous() -> None:
    assert group().is_homogeneous()
    assert group(member("a", "t", "u"), member("b", "u", "t")).is_homogeneous()
    assert not group(member("a", "t"), member("b", "u")).is_homogeneous()
    assert not group(member("a", "t"), member("b", "t", regex="x.*")).is_homogeneous()


def test_former_subscriptions_are_not_counted() -> None:
    mixed = group(member("a", "t"), member("b", "t"), member("c", "u"))
    assert mixed.without_member("c").is_homogeneous()
    assert not mixed.without_member("a").is_homogeneous()
    alike = mixed.with_member(member("c", "t"))
    alike.check()
    assert alike.is_homogeneous()
    assert alike.subscribed_topics() == {"t"}
    assert mixed.subscribed_topics() == {"t", "u"}
    assert group(member("a", "t")).without_member("a").subscribed_topics() == frozenset()


def test_epoch_change_keeps_the_subscription_counts() -> None:
    before = group(member("a", "t"))
    after = before.with_member(replace(before.members["a"], epoch=7))
    after.check()
    assert after.subscription_counts is before.subscription_counts


def test_subscribers_of_a_regex_are_counted() -> None:
    found = group(member("a", "t", regex="x.*"), member("b", regex="x.*"), member("c", regex="y"), member("d", "t"))
    found = found.with_member(member("e", regex="x.*"))
    assert [found.subscribers_of(regex) for regex in ("x.*", "y", "z", "")] == [3, 1, 0, 0]
    assert found.without_member("b").subscribers_of("x.*") == 2


def test_topics_matched_by_a_regex_are_subscribed() -> None:
    found = group(member("a", "t"), member("b", "u", regex="x.*"), member("c", regex="unknown"))
    assert found.subscribed_topics() == {"t", "u", "x1", "x2"}
    assert [found.is_subscribed_to(topic) for topic in ("t", "x2", "x3")] == [True, True, False]
    assert found.subscription_of(found.members["a"]) == {"t"}
