"""Group calls of Admin: list, describe and delete groups and their committed offsets.

Owns requests to group coordinators without membership, and the two offset requests that the consumer shares.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from fenceline.client.consumer.group_protocol import decode_assignment
from fenceline.client.core.cluster import Cluster, Purpose
from fenceline.client.core.config import ClientConfig
from fenceline.client.core.deadline import Deadline
from fenceline.client.core.errors import COORDINATOR_MOVED, ConnectionLost, TimedOut, broker_error, error_code
from fenceline.client.core.offsets import CommittedOffset
from fenceline.errors import ErrorCode, PeerError
from fenceline.ids import NO_EPOCH, TopicPartition
from fenceline.wire.apis import ApiKey


class GroupListing(NamedTuple):
    """state and group_type are empty if the broker is too old to return them."""

    group_id: str
    protocol_type: str
    state: str
    group_type: str


class MemberDescription(NamedTuple):
    """`assignment` is empty if the group is not of consumers, or if it cannot be decoded."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    assignment: tuple[TopicPartition, ...]


class GroupDescription(NamedTuple):
    group_id: str
    state: str
    protocol_type: str
    protocol: str
    members: tuple[MemberDescription, ...]


class Membership(NamedTuple):
    """The member that commits: (-1, "", None) without membership."""

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
) -> Any:
    """One request to the group's coordinator. After a connection error the cached coordinator is dropped; the caller
    retries."""
    node_id = await cluster.coordinator(group_id, deadline)
    try:
        return await cluster.call(node_id, api_key, fields, deadline=deadline, purpose=purpose, extra_ms=extra_ms)
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
    topics = None if partitions is None else _by_topic(partitions)
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
    cluster: Cluster,
    group_id: str,
    offsets: Mapping[TopicPartition, CommittedOffset],
    deadline: Deadline,
    *,
    membership: Membership | None = None,
    purpose: Purpose = Purpose.CONTROL,
) -> None:
    """Commit once, without retries. Raises PeerError for the first error."""
    member = membership or Membership()
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
        "generation_id_or_member_epoch": member.generation_id,
        "generation_id": member.generation_id,
        "member_id": member.member_id,
        "group_instance_id": member.group_instance_id,
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


def _by_topic(partitions: Collection[TopicPartition]) -> list[dict[str, Any]]:
    grouped: dict[str, list[int]] = {}
    for topic, partition in partitions:
        grouped.setdefault(topic, []).append(partition)
    return [{"name": name, "partition_indexes": indexes} for name, indexes in grouped.items()]


def _assigned(content: bytes) -> tuple[TopicPartition, ...]:
    """The group's leader encodes assignments and the coordinator does not validate them: () if undecodable."""
    try:
        return decode_assignment(content)
    except PeerError:
        return ()


class GroupsAdmin(ABC):
    """Mixin of `AsyncAdmin`."""

    config: ClientConfig
    cluster: Cluster

    @abstractmethod
    def _deadline(self, timeout_ms: float | None) -> Deadline:
        """The deadline of a call with `timeout_ms`."""

    async def list_groups(self, *, states: Sequence[str] = (), timeout_ms: float | None = None) -> list[GroupListing]:
        """Groups of all brokers, ordered by id; `states` filters ("Stable", "Empty", ...)."""
        deadline = self._deadline(timeout_ms)
        await self.cluster.fetch_metadata([], deadline)
        found: dict[str, GroupListing] = {}
        for node_id in sorted(self.cluster.metadata.brokers):

            async def attempt(node_id: int = node_id) -> Any:
                fields = {"states_filter": list(states), "types_filter": []}
                response = await self.cluster.call(node_id, ApiKey.LIST_GROUPS, fields, deadline=deadline)
                code = error_code(response.error_code)
                if code is not ErrorCode.NONE:
                    raise broker_error(code, f"listing the groups of broker {node_id}")
                return response

            for group in (await self.cluster.retrying(deadline, attempt)).groups:
                found[str(group.group_id)] = GroupListing(
                    str(group.group_id),
                    group.protocol_type,
                    getattr(group, "group_state", ""),
                    getattr(group, "group_type", ""),
                )
        return [found[name] for name in sorted(found)]

    async def describe_groups(
        self, group_ids: Sequence[str], *, timeout_ms: float | None = None
    ) -> dict[str, GroupDescription]:
        """Groups of either protocol with their members; for the consumer protocol, `protocol` is the assignor. A group
        that does not exist is described as Dead, or raises GROUP_ID_NOT_FOUND, depending on the broker.
        """
        deadline = self._deadline(timeout_ms)
        described = {}
        for group_id in group_ids:

            async def attempt(group_id: str = group_id) -> Any:
                fields = {"groups": [group_id], "include_authorized_operations": False}
                response = await ask_coordinator(self.cluster, group_id, ApiKey.DESCRIBE_GROUPS, fields, deadline)
                group = response.groups[0]
                code = error_code(group.error_code)
                # Before version 6 (Kafka 3.7 to 3.9) a group of the consumer protocol is described as Dead.
                if code is ErrorCode.GROUP_ID_NOT_FOUND or group.group_state == "Dead":
                    found = await self._of_consumer_protocol(group_id, deadline)
                    if found is not None:
                        return found
                message = getattr(group, "error_message", None)
                raise_group_error(self.cluster, group_id, code, f"describing group {group_id}", message)
                return group

            group = await self.cluster.retrying(deadline, attempt)
            if isinstance(group, GroupDescription):
                described[group_id] = group
                continue
            members = tuple(
                MemberDescription(
                    m.member_id,
                    getattr(m, "group_instance_id", None),
                    m.client_id,
                    m.client_host,
                    _assigned(bytes(m.member_assignment)) if group.protocol_type == "consumer" else (),
                )
                for m in group.members
            )
            described[group_id] = GroupDescription(
                group_id, group.group_state, group.protocol_type, group.protocol_data, members
            )
        return described

    async def _of_consumer_protocol(self, group_id: str, deadline: Deadline) -> GroupDescription | None:
        """ConsumerGroupDescribe for a group of the consumer protocol (KIP-848); None if it is not one."""
        fields = {"group_ids": [group_id], "include_authorized_operations": False}
        try:
            response = await ask_coordinator(self.cluster, group_id, ApiKey.CONSUMER_GROUP_DESCRIBE, fields, deadline)
        except PeerError as error:
            if error.code is ErrorCode.UNSUPPORTED_VERSION:
                return None
            raise
        group = response.groups[0]
        code = error_code(group.error_code)
        if code in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION):
            return None
        raise_group_error(self.cluster, group_id, code, f"describing group {group_id}", group.error_message)
        members = tuple(
            MemberDescription(
                m.member_id,
                m.instance_id,
                m.client_id,
                m.client_host,
                tuple(
                    TopicPartition(topic.topic_name, index)
                    for topic in m.assignment.topic_partitions
                    for index in topic.partitions
                ),
            )
            for m in group.members
        )
        return GroupDescription(group_id, group.group_state, "consumer", group.assignor_name, members)

    async def delete_groups(self, group_ids: Sequence[str], *, timeout_ms: float | None = None) -> None:
        """Delete groups without members. Raises PeerError (NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND)."""
        deadline = self._deadline(timeout_ms)
        for group_id in group_ids:

            async def attempt(group_id: str = group_id) -> None:
                fields = {"groups_names": [group_id]}
                response = await ask_coordinator(self.cluster, group_id, ApiKey.DELETE_GROUPS, fields, deadline)
                code = error_code(response.results[0].error_code)
                raise_group_error(self.cluster, group_id, code, f"deleting group {group_id}")

            await self.cluster.retrying(deadline, attempt)

    async def list_group_offsets(
        self,
        group_id: str,
        partitions: Collection[TopicPartition] | None = None,
        *,
        timeout_ms: float | None = None,
    ) -> dict[TopicPartition, CommittedOffset]:
        """A group's committed offsets with their leader epochs (None: of all partitions)."""
        return await fetch_committed(self.cluster, group_id, partitions, self._deadline(timeout_ms))

    async def alter_group_offsets(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, CommittedOffset | int],
        *,
        timeout_ms: float | None = None,
    ) -> None:
        """Set offsets of a group without active members. Raises PeerError (UNKNOWN_MEMBER_ID if it has any)."""
        deadline = self._deadline(timeout_ms)
        values = {
            TopicPartition(*tp): CommittedOffset(value) if isinstance(value, int) else value
            for tp, value in offsets.items()
        }
        await self.cluster.retrying(deadline, lambda: commit(self.cluster, group_id, values, deadline))

    async def delete_group_offsets(
        self, group_id: str, partitions: Collection[TopicPartition], *, timeout_ms: float | None = None
    ) -> None:
        """Delete committed offsets of partitions that no member is subscribed to."""
        deadline = self._deadline(timeout_ms)
        topics = [
            {"name": t["name"], "partitions": [{"partition_index": i} for i in t["partition_indexes"]]}
            for t in _by_topic(partitions)
        ]

        async def attempt() -> None:
            fields = {"group_id": group_id, "topics": topics}
            response = await ask_coordinator(self.cluster, group_id, ApiKey.OFFSET_DELETE, fields, deadline)
            code = error_code(response.error_code)
            raise_group_error(self.cluster, group_id, code, f"deleting offsets of group {group_id}")
            for topic in response.topics:
                for partition in topic.partitions:
                    code = error_code(partition.error_code)
                    if code is not ErrorCode.NONE:
                        raise PeerError(code, f"{topic.name}-{partition.partition_index}: {code.name}")

        await self.cluster.retrying(deadline, attempt)
