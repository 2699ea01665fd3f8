"""Many members and committed offsets, made and asked for by bare requests, so that every answer of a coordinator is
seen.

Owns the requests. What an answer must say is for the tests to say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from fenceline.errors import ErrorCode
from fenceline.testing.waiting import eventually
from fenceline.wire.apis import ApiKey
from tests.support.raw import RawConnection

NOT_NOW: Final = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)
"""What a coordinator says that can not answer now."""


def coordinator_of(port: int, key: str, key_type: int = 0) -> int | None:
    """The node that coordinates a group (key type 1: a transactional id), as the broker behind the port knows it; None
    while it knows nobody."""
    with RawConnection(port) as connection:
        found = connection.call(ApiKey.FIND_COORDINATOR, 3, {"key": key, "key_type": key_type})
    return int(found.node_id) if not found.error_code else None


def commit(
    connection: RawConnection,
    group: str,
    topic: str,
    offsets: Mapping[int, int],
    leader_epoch: int = -1,
    *,
    generation: int = -1,
    member_id: str = "",
    instance: str | None = None,
) -> set[ErrorCode]:
    """The codes of an OffsetCommit, from outside of the group unless a member is named."""
    partitions = [
        {
            "partition_index": index,
            "committed_offset": offset,
            "committed_leader_epoch": leader_epoch,
            "committed_metadata": "",
        }
        for index, offset in offsets.items()
    ]
    fields = {
        "group_id": group,
        "generation_id_or_member_epoch": generation,
        "member_id": member_id,
        "group_instance_id": instance,
        "topics": [{"name": topic, "partitions": partitions}],
    }
    answer = connection.call(ApiKey.OFFSET_COMMIT, 8, fields)
    return {ErrorCode(each.error_code) for found in answer.topics for each in found.partitions}


def commit_many(port: int, groups: Iterable[str], topic: str, offsets: Mapping[int, int]) -> None:
    """The same offsets for each of the groups, whose coordinator is behind the port."""
    with RawConnection(port) as connection:
        for group in groups:
            eventually(
                lambda group=group: commit(connection, group, topic, offsets) == {ErrorCode.NONE},  # type: ignore[misc]
                f"{group} commits",
            )


def fetch(
    connection: RawConnection, group: str, topic: str, partitions: Iterable[int], *, require_stable: bool = False
) -> dict[int, tuple[int, int]] | ErrorCode:
    """Partition to (offset, leader epoch), or the error of the whole answer."""
    topics = [{"name": topic, "partition_indexes": list(partitions)}]
    fields = {"group_id": group, "topics": topics, "require_stable": require_stable}
    answer = connection.call(ApiKey.OFFSET_FETCH, 7, fields)
    if answer.error_code:
        return ErrorCode(answer.error_code)
    return {
        each.partition_index: (each.committed_offset, each.committed_leader_epoch)
        for found in answer.topics
        for each in found.partitions
    }


def join_alone(
    connection: RawConnection,
    group: str,
    session_ms: int,
    *,
    assignment: bytes = b"mine",
    instance: str | None = None,
) -> str:
    """A member that is a group of its own, assigned and stable; its id. Its generation is 1.

    With an instance id that a member has already, it takes that one's place, and keeps its assignment."""
    joining = {
        "group_id": group,
        "session_timeout": session_ms,
        "rebalance_timeout": session_ms,
        "member_id": "",
        "group_instance_id": instance,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b"\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff"}],
    }

    def join() -> str | None:
        joined = connection.call(ApiKey.JOIN_GROUP, 3 if instance is None else 5, joining)
        if joined.error_code:
            return None
        assert joined.generation_id == 1
        return str(joined.member_id)

    member_id = eventually(join, f"a member joins {group}", wait_s=120)
    assignments = [{"member_id": member_id, "assignment": assignment}]
    member = {"group_id": group, "generation_id": 1, "member_id": member_id, "group_instance_id": instance}
    synced = connection.call(ApiKey.SYNC_GROUP, 3, {**member, "assignments": assignments})
    assert not synced.error_code, ErrorCode(synced.error_code)
    assert bytes(synced.assignment) == assignment
    return member_id


def heartbeat(connection: RawConnection, group: str, member_id: str, instance: str | None = None) -> ErrorCode:
    fields = {"group_id": group, "generation_id": 1, "member_id": member_id, "group_instance_id": instance}
    return ErrorCode(connection.call(ApiKey.HEARTBEAT, 3, fields).error_code)
