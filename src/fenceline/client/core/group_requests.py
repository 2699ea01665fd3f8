"""Requests to a group's coordinator that admin and consumer share: committed offsets, read and written.

Owns the lookup of the coordinator and what its errors mean for the cached one. Knows no membership: a consumer passes
its own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple

from fenceline.client.core.cluster import Cluster, Purpose
from fenceline.client.core.deadline import Deadline
from fenceline.client.core.errors import COORDINATOR_MOVED, ConnectionLost, TimedOut, broker_error, error_code
from fenceline.client.core.offsets import CommittedOffset
from fenceline.errors import ErrorCode
from fenceline.ids import NO_EPOCH, TopicPartition
from fenceline.wire.apis import ApiKey


class CommitMembership(NamedTuple):
    """The member that commits: (-1, "", None) without membership. `joined`: how often it has joined the group, where
    the generation does not show that (KIP-848: a member that joins again may have the same epoch).
    """

    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None
    joined: int = 0


NO_MEMBER: Final = CommitMembership()


class ConsumerGroupMetadata(NamedTuple):
    """A group, and the member that commits for it in a transaction: the group rejects offsets of a former member
    (KIP-447). With the defaults, offsets are committed without membership.
    """

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


async def ask_coordinator(
    cluster: Cluster,
    group_id: str,
    api_key: ApiKey,
    fields: dict[str, Any],
    deadline: Deadline,
    *,
    purpose: Purpose = Purpose.CONTROL,
    extra_ms: float = 0,
    min_version: int = 0,
) -> Any:
    """One request to the group's coordinator. After a connection error the cached coordinator is dropped; the caller
    retries."""
    node_id = await cluster.coordinator(group_id, deadline)
    try:
        return await cluster.call(
            node_id,
            api_key,
            fields,
            deadline=deadline,
            purpose=purpose,
            extra_ms=extra_ms,
            min_version=min_version,
        )
    except (ConnectionLost, TimedOut):
        cluster.forget_coordinator(group_id)
        raise


def raise_group_error(
    cluster: Cluster, group_id: str, code: ErrorCode, subject: str, message: str | None = None
) -> None:
    """Raise for any code but NONE; drops the cached coordinator if it has moved."""
    if code is ErrorCode.NONE:
        return
    if code in COORDINATOR_MOVED:
        cluster.forget_coordinator(group_id)
    raise broker_error(code, subject, message)


async def fetch_committed(
    cluster: Cluster,
    group_id: str,
    partitions: Collection[TopicPartition] | None,
    deadline: Deadline,
) -> dict[TopicPartition, CommittedOffset]:
    """Committed offsets (None: of all partitions of the group); partitions without one are left out."""
    topics = None if partitions is None else indexes_by_topic(partitions)
    # Only members of the consumer protocol (KIP-848) send member id and epoch. From a classic member, a group that has
    # switched to that protocol would reject them.
    group = {"group_id": group_id, "member_id": None, "member_epoch": -1, "topics": topics}
    # Old versions have one group at the top level, new ones a list: the encoder drops fields that a version lacks.
    fields = {"groups": [group], "group_id": group_id, "topics": topics, "require_stable": True}

    async def attempt() -> dict[TopicPartition, CommittedOffset]:
        response = await ask_coordinator(cluster, group_id, ApiKey.OFFSET_FETCH, fields, deadline)
        answer = response.groups[0] if hasattr(response, "groups") else response
        code = error_code(getattr(answer, "error_code", 0))
        raise_group_error(cluster, group_id, code, f"committed offsets of group {group_id}")
        found: dict[TopicPartition, CommittedOffset] = {}
        for topic in answer.topics:
            for partition in topic.partitions:
                tp = TopicPartition(str(topic.name), int(partition.partition_index))
                raise_group_error(
                    cluster, group_id, error_code(partition.error_code), f"committed offset of {tp} in group {group_id}"
                )
                if int(partition.committed_offset) >= 0:
                    epoch = int(getattr(partition, "committed_leader_epoch", NO_EPOCH))
                    found[tp] = CommittedOffset(int(partition.committed_offset), epoch, partition.metadata or "")
        return found

    return await cluster.retrying(deadline, attempt)


async def commit(
    cluster: Cluster, group_id: str, offsets: Mapping[TopicPartition, CommittedOffset], deadline: Deadline
) -> None:
    """Commit without membership, with retries. Raises PeerError for the first error."""
    await cluster.retrying(deadline, lambda: commit_once(cluster, group_id, offsets, deadline))


async def commit_once(
    cluster: Cluster,
    group_id: str,
    offsets: Mapping[TopicPartition, CommittedOffset],
    deadline: Deadline,
    *,
    membership: CommitMembership = NO_MEMBER,
    purpose: Purpose = Purpose.CONTROL,
) -> None:
    """One attempt of a commit. Raises PeerError for the first error."""
    by_topic: dict[str, list[dict[str, Any]]] = {}
    for tp, offset in offsets.items():
        by_topic.setdefault(tp.topic, []).append(
            {
                "partition_index": tp.partition,
                "committed_offset": offset.offset,
                "committed_leader_epoch": offset.leader_epoch,
                "committed_metadata": offset.metadata,
            }
        )
    fields = {
        "group_id": group_id,
        "generation_id_or_member_epoch": membership.generation_id,
        "generation_id": membership.generation_id,
        "member_id": membership.member_id,
        "group_instance_id": membership.group_instance_id,
        "retention_time_ms": -1,
        "retention_time": -1,
        "topics": [{"name": name, "partitions": listed} for name, listed in by_topic.items()],
    }
    response = await ask_coordinator(cluster, group_id, ApiKey.OFFSET_COMMIT, fields, deadline, purpose=purpose)
    for topic in response.topics:
        for partition in topic.partitions:
            raise_group_error(
                cluster,
                group_id,
                error_code(partition.error_code),
                f"committing {topic.name}-{partition.partition_index} for group {group_id}",
            )


def indexes_by_topic(partitions: Collection[TopicPartition]) -> list[dict[str, Any]]:
    """The partitions as requests to a coordinator list them."""
    grouped: dict[str, list[int]] = {}
    for topic, partition in partitions:
        grouped.setdefault(topic, []).append(partition)
    return [{"name": name, "partition_indexes": indexes} for name, indexes in grouped.items()]
