"""The same requests to Apache Kafka and to Fenceline: each script is a coroutine over a `Session`.

A script uses its own groups, named after it. Topics `t` and `u` have three partitions. Initial rebalance delay is 0.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

from fenceline.errors import ErrorCode
from fenceline.wire.apis import ApiKey
from tests.groups.helpers import subscription
from tests.groups.peers import Session

Script = Callable[[Session], Awaitable[None]]
SCRIPTS: dict[str, Script] = {}

JOIN, SYNC, BEAT, LEAVE = ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.HEARTBEAT, ApiKey.LEAVE_GROUP
COMMIT, FETCH, DELETE_OFFSETS = ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH, ApiKey.OFFSET_DELETE
LIST, DESCRIBE, DELETE, FIND = ApiKey.LIST_GROUPS, ApiKey.DESCRIBE_GROUPS, ApiKey.DELETE_GROUPS, ApiKey.FIND_COORDINATOR


def script(run: Script) -> Script:
    SCRIPTS[run.__name__] = run
    return run


def joining(group: str, member_id: str = "", **changes: Any) -> dict[str, Any]:
    return {
        "group_id": group,
        "session_timeout": 10_000,
        "rebalance_timeout": 30_000,
        "member_id": member_id,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": subscription("t")}],
        **changes,
    }


def syncing(group: str, member_id: str, generation: int, assignments: dict[str, bytes] | None = None) -> dict[str, Any]:
    return {
        "group_id": group,
        "generation_id": generation,
        "member_id": member_id,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "assignments": [{"member_id": name, "assignment": value} for name, value in (assignments or {}).items()],
    }


def beating(group: str, member_id: str, generation: int, **more: Any) -> dict[str, Any]:
    return {"group_id": group, "generation_id": generation, "member_id": member_id, **more}


def committing(
    s: Session, group: str, version: int, member_id: str = "", generation: int = -1, topic: str = "t", **more: Any
) -> dict[str, Any]:
    partition = {
        "partition_index": more.pop("partition", 0),
        "committed_offset": more.pop("offset", 5),
        "committed_leader_epoch": 3,
        "committed_metadata": more.pop("metadata", "note"),
    }
    named = {"topic_id": s.peer.topic_ids.get(topic, UUID(int=99))} if version >= 10 else {"name": topic}
    return {
        "group_id": group,
        "generation_id_or_member_epoch": generation,
        "member_id": member_id,
        "topics": [{**named, "partitions": [partition]}],
        **more,
    }


def fetching(s: Session, group: str, version: int, topics: list[str] | None, **more: Any) -> dict[str, Any]:
    wanted = None
    if topics is not None:
        wanted = [
            {
                **({"topic_id": s.peer.topic_ids.get(name, UUID(int=99))} if version >= 10 else {"name": name}),
                "partition_indexes": [0, 1, 7],
            }
            for name in topics
        ]
    asked = {"group_id": group, "topics": wanted}
    return {**more, **(asked if version < 8 else {"groups": [{**asked, "member_id": None, "member_epoch": -1}]})}


async def joined(s: Session, group: str, version: int = 9, client: str = "c", **changes: Any) -> Any:
    """Join a group that does not exist, in the steps that the version needs."""
    answer = await s.ask(JOIN, version, client=client, **joining(group, **changes))
    if answer.error_code:
        answer = await s.ask(JOIN, version, client=client, **joining(group, answer.member_id, **changes))
    return answer


async def stable(s: Session, group: str, version: int = 9, **changes: Any) -> str:
    """A stable group of one member. Returns its member id."""
    member = await joined(s, group, version, **changes)
    member_id: str = member.member_id
    await s.ask(SYNC, 5, **syncing(group, member_id, member.generation_id, {member_id: b"mine"}))
    return member_id


async def gathering(s: Session, group: str) -> None:
    """Wait until a pending request has moved the group to PreparingRebalance."""
    for _ in range(1_000):
        described = await s.peer.call("watcher", DESCRIBE, 5, {"groups": [group]})
        if described.groups[0].group_state == "PreparingRebalance":
            return
        await asyncio.sleep(0.005)
    raise AssertionError(f"{group} does not gather its members")


async def stable_pair(s: Session, group: str, **changes: Any) -> tuple[str, str]:
    """A stable group of a leader (client `c`) and a follower (client `d`)."""
    leader = await stable(s, group, **changes)
    reported = await s.ask(JOIN, 9, client="d", **joining(group, **changes))
    waiting = s.start(JOIN, 9, client="d", **joining(group, reported.member_id, **changes))
    await gathering(s, group)
    rejoined = await s.ask(JOIN, 9, **joining(group, leader, **changes))
    follower = await s.result(waiting, "the follower is in")
    syncs = s.start(SYNC, 5, client="d", **syncing(group, follower.member_id, follower.generation_id))
    given = {leader: b"1", follower.member_id: b"2"}
    await s.ask(SYNC, 5, **syncing(group, leader, rejoined.generation_id, given))
    await s.result(syncs, "the follower has its assignment")
    return leader, follower.member_id


def lifecycle(version: int) -> Script:
    """Every group API in (about) one version: join, sync, beat, commit, fetch, describe, list, leave, delete."""

    async def run(s: Session) -> None:
        group = f"life-{version}"
        commit_v, fetch_v = min(version + 2, 10), min(version + 1, 10)
        member = await joined(s, group, min(version, 9))
        member_id, generation = member.member_id, member.generation_id
        await s.ask(DESCRIBE, min(version, 6), groups=[group], note="completing")
        given = syncing(group, member_id, generation, {member_id: b"mine"})
        await s.ask(SYNC, min(version, 5), **given)
        await s.ask(BEAT, min(version, 4), **beating(group, member_id, generation))
        await s.ask(COMMIT, commit_v, **committing(s, group, commit_v, member_id, generation))
        await s.ask(FETCH, fetch_v, **fetching(s, group, fetch_v, ["t"]))
        await s.ask(DESCRIBE, min(version, 6), groups=[group], include_authorized_operations=True)
        listed = await s.peer.call("c", LIST, min(version, 5), {})
        s.seen.append(("listed", [s.plain(each) for each in listed.groups if each.group_id == group]))
        leaving = {"group_id": group, "member_id": member_id, "members": [{"member_id": member_id}]}
        await s.ask(LEAVE, min(version, 5), **leaving)
        await s.ask(LEAVE, min(version, 5), **leaving, note="again")
        await s.ask(DESCRIBE, min(version, 6), groups=[group, "no-such-group"], include_authorized_operations=True)
        await s.ask(DELETE, min(version, 2), groups_names=[group, "no-such-group", group])
        await s.ask(DESCRIBE, min(version, 6), groups=[group])
        await s.ask(FETCH, fetch_v, **fetching(s, group, fetch_v, ["t"]))

    return run


for _version in range(11):
    SCRIPTS[f"lifecycle_{_version}"] = lifecycle(_version)


@script
async def join_errors(s: Session) -> None:
    for version in range(10):
        group = f"join-errors-{version}"
        await s.ask(JOIN, version, **joining(""))
        await s.ask(JOIN, version, **joining(group, session_timeout=5_999))
        await s.ask(JOIN, version, **joining(group, session_timeout=1_800_001))
        await s.ask(JOIN, version, **joining(group, "stranger"))
        await s.ask(DESCRIBE, 6, groups=[group], note="there is no group yet")
        await s.ask(JOIN, version, **joining(group, protocols=[]))
        await s.ask(JOIN, version, **joining(group, protocol_type=""))
        member_id = await stable(s, group)
        await s.ask(JOIN, version, **joining(group, "stranger"))
        await s.ask(JOIN, version, **joining(group, protocol_type="connect"))
        await s.ask(JOIN, version, **joining(group, protocols=[{"name": "other", "metadata": b""}]))
        await s.ask(JOIN, version, **joining(group, member_id, protocols=[{"name": "other", "metadata": b""}]))
        if version >= 5:
            await s.ask(JOIN, version, **joining(group, member_id, group_instance_id="i"))


@script
async def empty_group_after_failed_join(s: Session) -> None:
    await s.ask(JOIN, 9, **joining("failed", protocols=[]))
    await s.ask(DESCRIBE, 6, groups=["failed"])
    await s.ask(JOIN, 9, **joining("pending"))
    await s.ask(DESCRIBE, 6, groups=["pending"])
    listed = await s.peer.call("c", LIST, 5, {})
    s.seen.append(s.plain([each for each in listed.groups if each.group_id in ("failed", "pending")]))
    await s.ask(DELETE, 2, groups_names=["failed", "pending"])


@script
async def sync_errors(s: Session) -> None:
    group = "sync-errors"
    member_id = await stable(s, group)
    for version in range(6):
        good = syncing(group, member_id, 1)
        await s.ask(SYNC, version, **good)
        await s.ask(SYNC, version, **{**good, "group_id": ""})
        await s.ask(SYNC, version, **{**good, "group_id": "no-such-group"})
        await s.ask(SYNC, version, **{**good, "member_id": "stranger"})
        await s.ask(SYNC, version, **{**good, "generation_id": 2})
        await s.ask(SYNC, version, **{**good, "member_id": "stranger", "generation_id": 2})
        if version >= 3:
            await s.ask(SYNC, version, **{**good, "group_instance_id": "i"})
        if version >= 5:
            await s.ask(SYNC, version, **{**good, "protocol_type": None})
            await s.ask(SYNC, version, **{**good, "protocol_name": None, "group_id": ""})
            await s.ask(SYNC, version, **{**good, "protocol_type": "connect"})
            await s.ask(SYNC, version, **{**good, "protocol_name": "other"})
            await s.ask(SYNC, version, **{**good, "protocol_name": "other", "generation_id": 2})


@script
async def heartbeat_errors(s: Session) -> None:
    group = "heartbeat-errors"
    member_id = await stable(s, group)
    for version in range(5):
        await s.ask(BEAT, version, **beating(group, member_id, 1))
        await s.ask(BEAT, version, **beating("", member_id, 1))
        await s.ask(BEAT, version, **beating("no-such-group", member_id, 1))
        await s.ask(BEAT, version, **beating(group, "stranger", 1))
        await s.ask(BEAT, version, **beating(group, "", 1))
        await s.ask(BEAT, version, **beating(group, member_id, 2))
        await s.ask(BEAT, version, **beating(group, member_id, -1))
        if version >= 3:
            await s.ask(BEAT, version, **beating(group, member_id, 1, group_instance_id="i"))


@script
async def leave_errors(s: Session) -> None:
    for version in range(6):
        group = f"leave-errors-{version}"
        member_id = await stable(s, group)

        async def leave(name: str, *members: tuple[str, str | None]) -> None:
            await s.ask(
                LEAVE,
                version,  # noqa: B023
                group_id=name,
                member_id=members[0][0] if members else "",
                members=[{"member_id": one, "group_instance_id": two} for one, two in members],
            )

        await leave("", (member_id, None))
        await leave("no-such-group", (member_id, None))
        await leave(group, ("stranger", None))
        await leave(group, ("", None))
        if version >= 3:
            await leave(group)
            await leave(group, ("", "i"), ("stranger", "i"), (member_id, "i"))
            pending = await s.ask(JOIN, 9, **joining(group))
            await leave(group, (pending.member_id, None), ("stranger", None))
        await leave(group, (member_id, None))
        await s.ask(DESCRIBE, 6, groups=[group])


@script
async def commit_errors(s: Session) -> None:
    for version in range(2, 11):
        group = f"commit-errors-{version}"
        member_id = await stable(s, group)

        async def commit(*, to: str = group, **more: Any) -> None:
            await s.ask(COMMIT, version, **committing(s, to, version, **more))  # noqa: B023

        await commit(member_id=member_id, generation=1)
        await commit(member_id=member_id, generation=2)
        await commit(member_id=member_id, generation=-1)
        await commit(member_id="stranger", generation=1)
        await commit()
        await commit(generation=1)
        await commit(to="no-such-group", member_id="m", generation=1)
        await commit(to="no-such-group", generation=0)
        await commit(to=f"simple-{version}")
        await commit(to=f"simple-{version}", member_id="m")
        await commit(to=f"simple-{version}", member_id="m", generation=0)
        await commit(to=f"simple-{version}", metadata="x" * 4_096)
        await commit(to=f"simple-{version}", metadata="x" * 4_097)
        await commit(to=f"simple-{version}", metadata="ä" * 4_096)
        await commit(to=f"simple-{version}", metadata=None)
        await commit(to=f"simple-{version}", offset=-5)
        await commit(to=f"simple-{version}", topic="no-such-topic")
        await commit(to=f"simple-{version}", partition=3)
        await commit(to=f"simple-{version}", partition=-1)
        await commit(to="")
        if version >= 7:
            await commit(member_id=member_id, generation=1, group_instance_id="i")
            await commit(to=f"simple-{version}", group_instance_id="i")
        await s.ask(COMMIT, version, **{**committing(s, group, version), "topics": []})
        await s.ask(DESCRIBE, 6, groups=[f"simple-{version}", "no-such-group"])
        await s.ask(FETCH, 8, **fetching(s, f"simple-{version}", 8, None))
        listed = await s.peer.call("c", LIST, 5, {})
        s.seen.append([s.plain(each) for each in listed.groups if each.group_id == f"simple-{version}"])
        await s.ask(DELETE, 2, groups_names=[""])


@script
async def commit_while_rebalancing(s: Session) -> None:
    group = "commit-rebalancing"
    leader, follower = await stable_pair(s, group)
    waiting = s.start(JOIN, 9, **joining(group, leader))
    await gathering(s, group)
    await s.ask(COMMIT, 8, client="d", **committing(s, group, 8, follower, 2), note="preparing")
    await s.ask(COMMIT, 8, client="d", **committing(s, group, 8, follower, 1), note="preparing, old generation")
    await s.ask(COMMIT, 8, client="d", **committing(s, group, 8), note="preparing, simple")
    await s.ask(BEAT, 4, client="d", **beating(group, follower, 2), note="preparing")
    await s.ask(SYNC, 5, client="d", **syncing(group, follower, 2), note="preparing")
    await s.ask(DESCRIBE, 6, client="d", groups=[group], note="preparing")
    await s.ask(DELETE, 2, client="d", groups_names=[group], note="preparing")
    await s.ask(DELETE_OFFSETS, 0, client="d", group_id=group, topics=[_all_of("t"), _all_of("u")], note="preparing")
    await s.ask(JOIN, 9, client="d", **joining(group, follower))
    await s.result(waiting, "both are in")
    await s.ask(COMMIT, 8, client="d", **committing(s, group, 8, follower, 3), note="completing")
    await s.ask(BEAT, 4, client="d", **beating(group, follower, 3), note="completing")
    await s.ask(JOIN, 9, client="d", **joining(group, follower), note="again")
    await s.ask(JOIN, 9, **joining(group, leader), note="again")
    await s.ask(DESCRIBE, 6, client="d", groups=[group], note="completing")


def _all_of(topic: str) -> dict[str, Any]:
    return {"name": topic, "partitions": [{"partition_index": index} for index in (0, 1, 2, 3, -1)]}


@script
async def fetch_offsets(s: Session) -> None:
    group = "fetch"
    await s.ask(COMMIT, 8, **committing(s, group, 8, offset=5))
    await s.ask(COMMIT, 10, **committing(s, group, 10, offset=6, partition=1))
    await s.ask(COMMIT, 4, **committing(s, group, 4, offset=7, topic="u", retention_time=100_000))
    for version in range(1, 11):
        await s.ask(FETCH, version, **fetching(s, group, version, ["t", "u"]))
        await s.ask(FETCH, version, **fetching(s, group, version, ["t", "no-such-topic"]))
        await s.ask(FETCH, version, **fetching(s, group, version, []))
        await s.ask(FETCH, version, **fetching(s, "no-such-group", version, ["t"]))
        await s.ask(FETCH, version, **fetching(s, "", version, ["t"]))
        if version >= 2:
            await s.ask(FETCH, version, **fetching(s, group, version, None))
            await s.ask(FETCH, version, **fetching(s, "no-such-group", version, None))
        if version >= 7:
            await s.ask(FETCH, version, **fetching(s, group, version, ["t"], require_stable=True))
        if version >= 8:
            two = [fetching(s, name, version, ["t"])["groups"][0] for name in (group, "no-such-group", group)]
            await s.ask(FETCH, version, groups=two)
            await s.ask(FETCH, version, groups=[])
        if version >= 9:
            asked = {**fetching(s, group, version, ["t"])["groups"][0], "member_id": "m", "member_epoch": 3}
            await s.ask(FETCH, version, groups=[asked])


@script
async def delete_offsets(s: Session) -> None:
    group = "delete-offsets"
    everything = [_all_of("t"), _all_of("u"), _all_of("no-such-topic")]
    await s.ask(DELETE_OFFSETS, 0, group_id="", topics=everything)
    await s.ask(DELETE_OFFSETS, 0, group_id="no-such-group", topics=everything)
    member_id = await stable(s, group)
    for topic in ("t", "u"):
        await s.ask(COMMIT, 8, **committing(s, group, 8, member_id, 1, topic=topic))
    await s.ask(DELETE_OFFSETS, 0, group_id=group, topics=everything)
    await s.ask(FETCH, 8, **fetching(s, group, 8, None))
    await s.ask(DELETE, 2, groups_names=[group])
    await s.ask(LEAVE, 5, group_id=group, members=[{"member_id": member_id}])
    await s.ask(DELETE_OFFSETS, 0, group_id=group, topics=everything)
    await s.ask(DELETE_OFFSETS, 0, group_id=group, topics=[])
    await s.ask(FETCH, 8, **fetching(s, group, 8, None))
    other = await stable(s, "delete-connect", protocol_type="connect")
    await s.ask(DELETE_OFFSETS, 0, group_id="delete-connect", topics=everything)
    await s.ask(DELETE_OFFSETS, 0, group_id="delete-connect", topics=[])
    await s.ask(DELETE, 2, groups_names=["delete-connect", "", "no-such-group"])
    await s.ask(LEAVE, 5, group_id="delete-connect", members=[{"member_id": other}])
    for version in range(3):
        await s.ask(DELETE, version, groups_names=[group, "delete-connect", "", "no-such-group"])


@script
async def list_groups(s: Session) -> None:
    await stable(s, "list-stable")
    await stable(s, "list-connect", protocol_type="connect")
    await s.ask(COMMIT, 8, **committing(s, "list-simple", 8))
    filters: list[dict[str, Any]] = [
        {},
        {"states_filter": ["Stable"]},
        {"states_filter": ["stable ", "EMPTY"]},
        {"states_filter": ["no-such-state"]},
        {"states_filter": ["Dead"]},
        {"types_filter": ["classic"]},
        {"types_filter": ["Classic"]},
        {"types_filter": [" classic"]},
        {"types_filter": ["consumer"]},
        {"types_filter": ["no-such-type"]},
        {"types_filter": ["unknown"]},
        {"types_filter": ["no-such-type", "classic"]},
        {"types_filter": ["classic"], "states_filter": ["Empty"]},
    ]
    for version in range(6):
        for wanted in filters:
            fields = wanted if version >= 5 else {name: wanted[name] for name in wanted if name == "states_filter"}
            listed = await s.peer.call("c", LIST, version, fields if version >= 4 else {})
            shown = [s.plain(each) for each in listed.groups if each.group_id.startswith("list-")]
            s.seen.append((version, wanted, s.plain(listed.error_code), sorted(shown, key=repr)))


@script
async def describe_groups(s: Session) -> None:
    await stable(s, "describe-static", group_instance_id="i")
    await s.ask(COMMIT, 8, **committing(s, "describe-simple", 8))
    names = ["describe-static", "describe-simple", "no-such-group", "", "describe-simple"]
    for version in range(7):
        await s.ask(DESCRIBE, version, groups=names)
        await s.ask(DESCRIBE, version, groups=[])
        if version >= 3:
            await s.ask(DESCRIBE, version, groups=names, include_authorized_operations=True)


@script
async def static_members(s: Session) -> None:
    group = "static"
    first = await joined(s, group, group_instance_id="i")
    await s.ask(SYNC, 5, **{**syncing(group, first.member_id, 1, {first.member_id: b"1"}), "group_instance_id": "i"})
    for version in (5, 6, 7, 8, 9):
        await s.ask(JOIN, version, **joining(group, group_instance_id="i"), note="comes back")
    await s.ask(BEAT, 4, **beating(group, first.member_id, 1, group_instance_id="i"), note="fenced")
    await s.ask(BEAT, 4, **beating(group, first.member_id, 1), note="unknown")
    await s.ask(JOIN, 9, **joining(group, first.member_id, group_instance_id="i"), note="fenced")
    fenced = {**syncing(group, first.member_id, 1), "group_instance_id": "i"}
    await s.ask(SYNC, 5, **fenced)
    await s.ask(COMMIT, 8, **committing(s, group, 8, first.member_id, 1, group_instance_id="i"))
    await s.ask(LEAVE, 5, group_id=group, members=[{"member_id": first.member_id, "group_instance_id": "i"}])
    now = await s.ask(JOIN, 9, **joining(group, group_instance_id="i"))
    await s.ask(SYNC, 5, **{**syncing(group, now.member_id, 1), "group_instance_id": "i"}, note="keeps its assignment")
    await s.ask(DESCRIBE, 6, groups=[group])
    other = [{"name": "other", "metadata": b""}]
    await s.ask(JOIN, 9, **joining(group, group_instance_id="i", protocols=other), note="another protocol")
    await s.ask(LEAVE, 5, group_id=group, members=[{"member_id": "", "group_instance_id": "i"}], note="by an admin")
    await s.ask(DESCRIBE, 6, groups=[group])


@script
async def static_member_fences_a_parked_one(s: Session) -> None:
    await s.until(lambda number: _fences_a_parked_one(s, f"static-parked-{number}"))


async def _fences_a_parked_one(s: Session, group: str) -> bool:
    """Whether the SyncGroup was parked when another connection's JoinGroup arrived: no response shows it earlier."""
    first = await joined(s, group, group_instance_id="i")
    await s.ask(SYNC, 5, **syncing(group, first.member_id, 1, {first.member_id: b"1"}))
    parked = s.start(JOIN, 9, client="d", **joining(group, group_instance_id="j"))
    await gathering(s, group)
    again = s.start(JOIN, 9, client="e", **joining(group, group_instance_id="j"))
    await s.result(parked, "fenced")
    await s.ask(BEAT, 4, **beating(group, first.member_id, 1, group_instance_id="i"))
    leader = await s.ask(JOIN, 9, **joining(group, first.member_id, group_instance_id="i"))
    second = await s.result(again, "in")
    waiting = s.start(SYNC, 5, client="e", **syncing(group, second.member_id, 2))
    back = s.start(JOIN, 9, client="d", **joining(group, group_instance_id="j"))
    fenced = await s.result(waiting, "fenced while it waited for its assignment")
    await s.ask(SYNC, 5, **syncing(group, leader.member_id, 2, {}), note="too late")
    await s.ask(JOIN, 9, **joining(group, first.member_id, group_instance_id="i"))
    await s.result(back, "in again")
    return bool(fenced.error_code == ErrorCode.FENCED_INSTANCE_ID)


@script
async def members_come_and_go(s: Session) -> None:
    group = "come-and-go"
    leader, follower = await stable_pair(s, group)
    await s.ask(JOIN, 9, client="d", **joining(group, follower), note="nothing new")
    changed = [{"name": "range", "metadata": subscription("u")}]
    waiting = s.start(JOIN, 9, client="d", **joining(group, follower, protocols=changed))
    await gathering(s, group)
    await s.ask(BEAT, 4, **beating(group, leader, 2))
    await s.ask(LEAVE, 5, group_id=group, members=[{"member_id": leader}])
    await s.result(waiting, "alone now")
    await s.ask(DESCRIBE, 6, client="d", groups=[group])
    await s.ask(SYNC, 5, client="d", **syncing(group, follower, 3, {follower: b"all"}))
    await s.ask(LEAVE, 5, client="d", group_id=group, members=[{"member_id": follower}])
    await s.ask(JOIN, 9, **joining(group, follower), note="gone")
    await s.ask(COMMIT, 8, **committing(s, group, 8, follower, 4), note="gone")
    await s.ask(COMMIT, 8, **committing(s, group, 8, follower, -1), note="gone")
    await stable(s, group, protocol_type="other")
    await s.ask(DESCRIBE, 6, groups=[group])


@script
async def a_leaving_member_ends_its_parked_join(s: Session) -> None:
    group = "parked-leaver"
    leader, follower = await stable_pair(s, group)
    parked = s.start(JOIN, 9, **joining(group, leader))
    await gathering(s, group)
    await s.ask(LEAVE, 5, client="d", group_id=group, members=[{"member_id": leader}])
    await s.result(parked, "left while it waited")
    await s.ask(DESCRIBE, 6, client="d", groups=[group])
    await s.ask(JOIN, 9, client="d", **joining(group, follower))


@script
async def protocols_are_voted_for(s: Session) -> None:
    group = "votes"
    both = [{"name": "a", "metadata": b"1"}, {"name": "b", "metadata": b"2"}]
    member = await joined(s, group, protocols=both)
    await s.ask(SYNC, 5, **{**syncing(group, member.member_id, 1), "protocol_name": "a"})
    reported = await s.ask(JOIN, 9, client="d", **joining(group, protocols=both[1:]))
    waiting = s.start(JOIN, 9, client="d", **joining(group, reported.member_id, protocols=both[1:]))
    await gathering(s, group)
    await s.ask(JOIN, 9, **joining(group, member.member_id, protocols=both))
    await s.result(waiting, "in")


@script
async def rebalance_timeout_of_version_0(s: Session) -> None:
    group = "version-0"
    member = await joined(s, group, 0, session_timeout=6_000)
    await s.ask(SYNC, 0, **syncing(group, member.member_id, 1, {member.member_id: b"1"}))
    await s.ask(DESCRIBE, 6, groups=[group])


@script
async def sessions_end(s: Session) -> None:
    group = "silent"
    leader, follower = await stable_pair(s, group, session_timeout=6_000)
    for _ in range(1_000):
        beat = await s.peer.call("d", BEAT, 4, beating(group, follower, 2))
        if beat.error_code:
            break
        await asyncio.sleep(0.02)
    s.seen.append(s.plain(beat))
    await s.ask(JOIN, 9, client="d", **joining(group, follower, session_timeout=6_000), note="leads now")
    await s.ask(BEAT, 4, **beating(group, leader, 2))


@script
async def find_coordinator(s: Session) -> None:
    for version in range(7):
        fields = {"key": "g", "coordinator_keys": ["g", "h", ""]}
        await s.ask(FIND, version, **fields, key_type=0)
        if version >= 4:
            await s.ask(FIND, version, coordinator_keys=[], key_type=0)


async def what_is_stored(s: Session) -> None:
    """Compared by its records, not by its responses."""
    group = "stored-dynamic"
    leader, follower = await stable_pair(s, group)
    await s.ask(COMMIT, 3, **committing(s, group, 3, leader, 2, retention_time=86_400_000))
    await s.ask(COMMIT, 5, **committing(s, group, 5, leader, 2, partition=1, metadata=None))
    await s.ask(COMMIT, 10, **committing(s, group, 10, leader, 2, partition=2, topic="u"))
    await s.ask(LEAVE, 5, group_id=group, members=[{"member_id": leader}, {"member_id": follower}])
    await s.ask(DELETE_OFFSETS, 0, group_id=group, topics=[_all_of("t")])
    await s.ask(DELETE, 2, groups_names=[group])
    await s.ask(COMMIT, 8, **committing(s, "stored-simple", 8))
    first = await joined(s, "stored-static", group_instance_id="i")
    given = {first.member_id: b"mine"}
    await s.ask(SYNC, 5, **syncing("stored-static", first.member_id, 1, given))
    await s.ask(JOIN, 9, **joining("stored-static", group_instance_id="i"))
    await s.ask(JOIN, 9, **joining("stored-failed", protocols=[]))
