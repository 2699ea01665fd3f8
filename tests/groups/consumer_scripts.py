"""Scripts of the consumer protocol, run against Apache Kafka and Fenceline: coroutines over a `Session`.

Each uses its own groups. Topics `t` and `u` have three partitions; a target is computed at once for every change.
Member names follow the order in which Kafka iterates over members, so that both sides assign equally.
"""

from __future__ import annotations

import struct
from typing import Any

from fenceline.wire.apis import ApiKey
from tests.groups.peers import Session
from tests.groups.scripts import Script, beating, committing, fetching, joining, syncing

CONSUMER_SCRIPTS: dict[str, Script] = {}
HEARTBEAT, DESCRIBE = ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.CONSUMER_GROUP_DESCRIBE
SESSION_MS = 600_000
"""Equal to the rebalance timeout, so that results do not depend on the speed of the machine."""


def script(run: Script) -> Script:
    CONSUMER_SCRIPTS[run.__name__] = run
    return run


def owned(s: Session, *partitions: int, topic: str = "t") -> list[dict[str, Any]]:
    return [{"topic_id": s.peer.topic_ids[topic], "partitions": list(partitions)}] if partitions else []


async def beat(s: Session, group: str, member_id: str, epoch: int, *, version: int = 1, **fields: Any) -> Any:
    asked: dict[str, Any] = {
        "group_id": group,
        "member_id": member_id,
        "member_epoch": epoch,
        "instance_id": None,
        "rack_id": None,
        "rebalance_timeout": -1,
        "subscribed_topic_names": None,
        "server_assignor": None,
        "topic_partitions": None,
        **({"subscribed_topic_regex": None} if version >= 1 else {}),
        **fields,
    }
    return await s.ask(HEARTBEAT, version, note=f"{member_id} at {epoch}", **asked)


async def enter(s: Session, group: str, member_id: str, *topics: str, **fields: Any) -> Any:
    asked = {"rebalance_timeout": SESSION_MS, "subscribed_topic_names": list(topics), "topic_partitions": [], **fields}
    return await beat(s, group, member_id, 0, **asked)


async def describe(s: Session, *groups: str, version: int = 1, **fields: Any) -> Any:
    return await s.ask(DESCRIBE, version, group_ids=list(groups), include_authorized_operations=False, **fields)


def given(answer: Any) -> list[int]:
    return [index for each in answer.assignment.topic_partitions for index in each.partitions]


@script
async def one_member_lives_and_leaves(s: Session) -> None:
    group = "k-one"
    await enter(s, group, "a", "t")
    await beat(s, group, "a", 2)
    await beat(s, group, "a", 2, topic_partitions=owned(s, 0, 1, 2))
    await beat(
        s, group, "a", 2, rebalance_timeout=SESSION_MS, subscribed_topic_names=["t"], topic_partitions=owned(s, 0, 1, 2)
    )
    await describe(s, group, version=0)
    await describe(s, group)
    await beat(s, group, "a", -1)
    await describe(s, group)
    await beat(s, group, "a", 2)
    await enter(s, group, "a", "t")


@script
async def a_partition_changes_hands(s: Session) -> None:
    await hands_over(s, "k-hands")


async def hands_over(s: Session, group: str) -> None:
    await enter(s, group, "a", "t")
    await enter(s, group, "b", "t")
    await describe(s, group)
    asked = await beat(s, group, "a", 2, topic_partitions=owned(s, 0, 1, 2))
    await describe(s, group)
    await beat(s, group, "b", 3, topic_partitions=[])
    await beat(s, group, "a", 2, topic_partitions=owned(s, 0, 1, 2))
    await beat(s, group, "a", 2, topic_partitions=owned(s, *given(asked)))
    await beat(s, group, "b", 3, topic_partitions=[])
    await describe(s, group)
    await beat(s, group, "a", -1)
    await beat(s, group, "b", 3)
    await beat(s, group, "b", 5)
    await describe(s, group)


@script
async def epochs_that_do_not_fit(s: Session) -> None:
    group = "k-epochs"
    await beat(s, group, "a", 1)
    await beat(s, group, "a", -1)
    await enter(s, group, "a", "t")
    await beat(s, group, "a", 1)
    await beat(s, group, "a", 7)
    await beat(s, group, "b", 2)
    await beat(s, group, "b", -1)
    await enter(s, group, "b", "t")
    kept = await beat(s, group, "a", 2)
    mine = owned(s, *given(kept))
    await beat(s, group, "a", 2, topic_partitions=mine)
    await beat(s, group, "a", 2, topic_partitions=mine)
    await beat(s, group, "a", 2)
    await beat(s, group, "a", 2, topic_partitions=owned(s, 0, 1, 2))
    await enter(s, group, "a", "t")


@script
async def requests_that_make_no_sense(s: Session) -> None:
    group = "k-nonsense"
    await enter(s, group, "", "t")
    await enter(s, group, " ", "t")
    await enter(s, " ", "a", "t")
    await enter(s, group, "a", "t", instance_id="")
    await enter(s, group, "a", "t", rack_id=" ")
    await enter(s, group, "a", "t", rebalance_timeout=-1)
    await enter(s, group, "a", "t", topic_partitions=None)
    await enter(s, group, "a", "t", topic_partitions=owned(s, 1))
    await enter(s, group, "a", "t", subscribed_topic_names=None)
    await enter(s, group, "a", "t", server_assignor="nobody")
    await beat(s, group, "a", -2)
    await beat(s, group, "a", -3)
    await enter(s, group, "a", subscribed_topic_regex="(", subscribed_topic_names=None)
    await enter(s, group, "a", subscribed_topic_regex="a**", subscribed_topic_names=None)
    await enter(s, group, "a", subscribed_topic_regex="[b-a]", subscribed_topic_names=None)
    await enter(s, group, "a", subscribed_topic_regex="(?=a)", subscribed_topic_names=None)
    await enter(s, group, "a", subscribed_topic_regex="\\y", subscribed_topic_names=None)
    await enter(s, group, "a", subscribed_topic_regex="*", subscribed_topic_names=None)
    await enter(s, group, "a", subscribed_topic_regex="[a", subscribed_topic_names=None)
    await describe(s, group, "")


@script
async def subscriptions_change(s: Session) -> None:
    group = "k-change"
    await enter(s, group, "a", "t")
    await beat(s, group, "a", 2, subscribed_topic_names=["u"])
    await beat(s, group, "a", 2, topic_partitions=[])
    await describe(s, group)
    await beat(s, group, "a", 3, subscribed_topic_names=["u", "nowhere"])
    await beat(s, group, "a", 4, topic_partitions=owned(s, 0, 1, 2, topic="u"))
    await beat(s, group, "a", 4, subscribed_topic_names=[], topic_partitions=owned(s, 0, 1, 2, topic="u"))
    await beat(s, group, "a", 4, topic_partitions=[])
    await describe(s, group)


@script
async def static_members_come_back(s: Session) -> None:
    await comes_back(s, "k-static")


async def comes_back(s: Session, group: str) -> None:
    await enter(s, group, "a", "t", instance_id="i")
    await enter(s, group, "b", "t", instance_id="i")
    await beat(s, group, "a", -2, instance_id="i")
    await describe(s, group)
    await enter(s, group, "b", "t", instance_id="i")
    await beat(s, group, "a", 2, instance_id="i")
    await beat(s, group, "b", 2, instance_id="j")
    await beat(s, group, "b", 2, instance_id="i")
    await describe(s, group)
    await beat(s, group, "x", -1, instance_id="i")
    await beat(s, group, "b", -1, instance_id="i")
    await describe(s, group)


@script
async def range_for_two(s: Session) -> None:
    group = "k-range"
    await enter(s, group, "a", "t", server_assignor="range")
    await enter(s, group, "b", "t", server_assignor="range")
    kept = await beat(s, group, "a", 2, topic_partitions=owned(s, 0, 1, 2))
    await beat(s, group, "a", 2, topic_partitions=owned(s, *given(kept)))
    await beat(s, group, "b", 3, topic_partitions=[])
    await describe(s, group)


@script
async def offsets_of_members(s: Session) -> None:
    group = "k-offsets"
    await enter(s, group, "a", "t")
    for version in (8, 9, 10):
        await s.ask(ApiKey.OFFSET_COMMIT, version, **committing(s, group, version, "a", 2))
    await s.ask(ApiKey.OFFSET_COMMIT, 9, **committing(s, group, 9, "a", 3))
    await s.ask(ApiKey.OFFSET_COMMIT, 9, **committing(s, group, 9, "a", 1))
    await s.ask(ApiKey.OFFSET_COMMIT, 9, **committing(s, group, 9, "b", 2))
    await s.ask(ApiKey.OFFSET_COMMIT, 9, **committing(s, group, 9))
    await s.ask(ApiKey.OFFSET_FETCH, 9, **fetching(s, group, 9, ["t"]))
    for member_id, epoch in (("a", 2), ("a", 1), ("a", 3), ("b", 2)):
        asked = fetching(s, group, 9, ["t"])
        asked["groups"][0].update(member_id=member_id, member_epoch=epoch)
        await s.ask(ApiKey.OFFSET_FETCH, 9, **asked)
    topics = [{"name": name, "partitions": [{"partition_index": 0}]} for name in ("t", "u")]
    await s.ask(ApiKey.OFFSET_DELETE, 0, group_id=group, topics=topics)
    await s.ask(ApiKey.DELETE_GROUPS, 2, groups_names=[group])
    await beat(s, group, "a", -1)
    await s.ask(ApiKey.OFFSET_COMMIT, 9, **committing(s, group, 9))
    await s.ask(ApiKey.DELETE_GROUPS, 2, groups_names=[group])
    await describe(s, group)
    await s.ask(ApiKey.OFFSET_FETCH, 9, **fetching(s, group, 9, ["t"]))


@script
async def an_older_epoch_commits(s: Session) -> None:
    group = "k-older"
    await enter(s, group, "a", "t")
    await enter(s, group, "b", "t")
    kept = given(await beat(s, group, "a", 2))
    await beat(s, group, "a", 2, topic_partitions=owned(s, *kept))
    for partition in range(3):
        for epoch in (1, 2, 3):
            asked = committing(s, group, 9, "a", epoch, partition=partition)
            await s.ask(ApiKey.OFFSET_COMMIT, 9, **asked)


@script
async def groups_are_listed(s: Session) -> None:
    group = "k-listed"
    await enter(s, group, "a", "t")
    for states, types in (([], ["consumer"]), (["stable"], ["Consumer"]), (["assigning"], []), ([], ["classic"])):
        answer = await s.peer.call("c", ApiKey.LIST_GROUPS, 5, {"states_filter": states, "types_filter": types})
        mine = [each for each in answer.groups if each.group_id == group]
        s.seen.append(("listed", states, types, s.plain(mine)))
    await s.ask(ApiKey.DESCRIBE_GROUPS, 5, groups=[group])
    await s.ask(ApiKey.DESCRIBE_GROUPS, 6, groups=[group])
    await describe(s, "k-none", group)


def subscription_1(s: Session, *partitions: int) -> bytes:
    """A consumer's JoinGroup metadata, version 1: subscribed to t, with these owned partitions of t."""
    body = struct.pack(">hih", 1, 1, 1) + b"t" + struct.pack(">i", -1)
    if not partitions:
        return body + struct.pack(">i", 0)
    body += struct.pack(">ih", 1, 1) + b"t" + struct.pack(">i", len(partitions))
    return body + b"".join(struct.pack(">i", each) for each in partitions)


def assignment(*partitions: int) -> bytes:
    body = struct.pack(">hih", 1, 1, 1) + b"t" + struct.pack(">i", len(partitions))
    return body + b"".join(struct.pack(">i", each) for each in partitions) + struct.pack(">i", -1)


def joining_1(s: Session, group: str, member_id: str = "", *partitions: int, **more: Any) -> dict[str, Any]:
    protocols = [{"name": "range", "metadata": subscription_1(s, *partitions)}]
    times = {"session_timeout": SESSION_MS, "rebalance_timeout": SESSION_MS}
    return joining(group, member_id, protocols=protocols, **{**times, **more})


async def _classic_group(s: Session, group: str) -> str:
    """A stable classic group of one member with all of t. Returns its member id."""
    reported = await s.ask(ApiKey.JOIN_GROUP, 9, **joining_1(s, group))
    joined = await s.ask(ApiKey.JOIN_GROUP, 9, **joining_1(s, group, reported.member_id))
    member_id: str = joined.member_id
    share = {member_id: assignment(0, 1, 2)}
    await s.ask(ApiKey.SYNC_GROUP, 5, **syncing(group, member_id, joined.generation_id, share))
    return member_id


@script
async def a_classic_group_is_taken_along(s: Session) -> None:
    group = "k-up"
    old = await _classic_group(s, group)
    await beat(s, group, "n", 1)
    await enter(s, group, "n", "t")
    await s.ask(ApiKey.DESCRIBE_GROUPS, 6, groups=[group])
    await describe(s, group)
    await s.ask(ApiKey.HEARTBEAT, 4, **beating(group, old, 1))
    joined = await s.ask(ApiKey.JOIN_GROUP, 9, **joining_1(s, group, old, 0, 1, 2))
    await s.ask(ApiKey.SYNC_GROUP, 5, **syncing(group, old, joined.generation_id))
    await s.ask(ApiKey.HEARTBEAT, 4, **beating(group, old, joined.generation_id))
    await describe(s, group)


@script
async def a_group_becomes_classic_again(s: Session) -> None:
    group = "k-down"
    old = await _classic_group(s, group)
    await enter(s, group, "n", "t")
    await beat(s, group, "n", -1)
    await describe(s, group)
    await s.ask(ApiKey.HEARTBEAT, 4, **beating(group, old, 1))
    joined = await s.ask(ApiKey.JOIN_GROUP, 9, **joining_1(s, group, old, 0, 1, 2))
    await s.ask(ApiKey.SYNC_GROUP, 5, **syncing(group, old, joined.generation_id, {old: assignment(0, 1, 2)}))
    await s.ask(ApiKey.DESCRIBE_GROUPS, 6, groups=[group])


@script
async def a_classic_consumer_among_new_ones(s: Session) -> None:
    group = "k-among"
    await enter(s, group, "n", "t")
    await s.ask(ApiKey.JOIN_GROUP, 9, **joining_1(s, group, protocol_type="connect"))
    await s.ask(ApiKey.JOIN_GROUP, 9, **joining(group, "z", session_timeout=SESSION_MS))
    await s.ask(ApiKey.SYNC_GROUP, 5, **syncing(group, "z", 3))
    await s.ask(ApiKey.SYNC_GROUP, 5, **syncing(group, "z", 2))
    await s.ask(ApiKey.SYNC_GROUP, 5, **{**syncing(group, "z", 3), "protocol_name": "other"})
    await s.ask(ApiKey.HEARTBEAT, 4, **beating(group, "z", 3))
    await s.ask(ApiKey.HEARTBEAT, 4, **beating(group, "z", 9))
    await s.ask(ApiKey.HEARTBEAT, 4, **beating(group, "n", 2))
    await s.ask(ApiKey.OFFSET_COMMIT, 9, **committing(s, group, 9, "z", 9))
    await s.ask(ApiKey.OFFSET_COMMIT, 8, **committing(s, group, 8, "z", 3))
    members = [{"member_id": "z", "group_instance_id": None}, {"member_id": "x", "group_instance_id": None}]
    await s.ask(ApiKey.LEAVE_GROUP, 5, group_id=group, members=members)
    await describe(s, group)


@script
async def empty_groups_make_way(s: Session) -> None:
    group = "k-way"
    await enter(s, group, "n", "t")
    await beat(s, group, "n", -1)
    old = await _classic_group(s, group)
    await s.ask(ApiKey.LEAVE_GROUP, 5, group_id=group, members=[{"member_id": old, "group_instance_id": None}])
    await enter(s, group, "n", "t")
    await describe(s, group)


async def what_consumers_store(s: Session) -> None:
    """Its records are compared: members join, share and hand over partitions, leave, and one subscribes by regex."""
    group = "stored-new"
    await enter(s, group, "a", "t", rack_id="r")
    await enter(s, group, "b", "t", server_assignor="uniform", instance_id="i")
    kept = given(await beat(s, group, "a", 2))
    await beat(s, group, "a", 2, topic_partitions=owned(s, *kept))
    await beat(s, group, "b", 3, instance_id="i")
    await beat(s, group, "b", -2, instance_id="i")
    await enter(s, group, "c", "t", instance_id="i")
    await beat(s, group, "a", -1)
    await beat(s, group, "c", 3, instance_id="i")
    group = "stored-up"
    old = await _classic_group(s, group)
    await enter(s, group, "n", "t")
    await s.ask(ApiKey.JOIN_GROUP, 9, **joining_1(s, group, old, 0, 1, 2))
    await beat(s, group, "n", -1)
