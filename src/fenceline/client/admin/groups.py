"""Group calls of Admin: list, describe and delete groups and their committed offsets.

Owns requests to group coordinators without membership.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

from fenceline.client.admin.admin_requests import AdminRequests
from fenceline.client.core.deadline import Deadline
from fenceline.client.core.errors import broker_error, error_code
from fenceline.client.core.group_protocol import decode_assignment
from fenceline.client.core.group_requests import (
    ask_coordinator,
    commit,
    fetch_committed,
    indexes_by_topic,
    raise_group_error,
)
from fenceline.client.core.offsets import CommittedOffset
from fenceline.errors import ErrorCode, PeerError
from fenceline.ids import TopicPartition
from fenceline.wire.apis import ApiKey

_FIRST_THAT_LISTS_MEMBERS: Final = 3
"""Version of LeaveGroup."""
_LEAVES: Final = -1
"""The member epoch of a member that leaves."""


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


def _assigned(content: bytes) -> tuple[TopicPartition, ...]:
    """The group's leader encodes assignments and the coordinator does not validate them: () if undecodable."""
    try:
        return decode_assignment(content)
    except PeerError:
        return ()


class GroupsAdmin(AdminRequests):
    """Part of `AsyncAdmin`."""

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
        values = {
            TopicPartition(*tp): CommittedOffset(value) if isinstance(value, int) else value
            for tp, value in offsets.items()
        }
        await commit(self.cluster, group_id, values, self._deadline(timeout_ms))

    async def delete_group_offsets(
        self, group_id: str, partitions: Collection[TopicPartition], *, timeout_ms: float | None = None
    ) -> None:
        """Delete committed offsets of partitions that no member is subscribed to."""
        deadline = self._deadline(timeout_ms)
        topics = [
            {"name": t["name"], "partitions": [{"partition_index": i} for i in t["partition_indexes"]]}
            for t in indexes_by_topic(partitions)
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

    async def remove_members(
        self, group_id: str, member_ids: Collection[str] | None = None, *, timeout_ms: float | None = None
    ) -> list[str]:
        """Remove members (None: all) from a group of either protocol, as if they had left; the removed ones.

        A removed member finds out with its next request, and may join again. Raises PeerError (UNKNOWN_MEMBER_ID)."""
        deadline = self._deadline(timeout_ms)
        group = (await self.describe_groups([group_id], timeout_ms=deadline.left_ms))[group_id]
        known = [member.member_id for member in group.members]
        wanted = known if member_ids is None else list(member_ids)
        if group.state in ("Dead", "Empty") or not wanted:
            return []
        remove = (
            self._remove_classic if await self._is_classic(group_id, deadline) else self._remove_of_consumer_protocol
        )
        await remove(group_id, wanted, deadline)
        return wanted

    async def _is_classic(self, group_id: str, deadline: Deadline) -> bool:
        found = {group.group_id: group.group_type for group in await self.list_groups(timeout_ms=deadline.left_ms)}
        return found.get(group_id, "").lower() != "consumer"

    async def _remove_classic(self, group_id: str, member_ids: Sequence[str], deadline: Deadline) -> None:
        async def attempt() -> None:
            fields = {
                "group_id": group_id,
                "members": [{"member_id": each, "group_instance_id": None, "reason": "removed"} for each in member_ids],
            }
            response = await ask_coordinator(
                self.cluster, group_id, ApiKey.LEAVE_GROUP, fields, deadline, min_version=_FIRST_THAT_LISTS_MEMBERS
            )
            code = error_code(response.error_code)
            raise_group_error(self.cluster, group_id, code, f"removing members of group {group_id}")
            for member in response.members:
                code = error_code(member.error_code)
                if code is not ErrorCode.NONE:
                    raise PeerError(code, f"member {member.member_id} of group {group_id}: {code.name}")

        await self.cluster.retrying(deadline, attempt)

    async def _remove_of_consumer_protocol(self, group_id: str, member_ids: Sequence[str], deadline: Deadline) -> None:
        for member_id in member_ids:

            async def attempt(member_id: str = member_id) -> None:
                fields = {"group_id": group_id, "member_id": member_id, "member_epoch": _LEAVES}
                response = await ask_coordinator(
                    self.cluster, group_id, ApiKey.CONSUMER_GROUP_HEARTBEAT, fields, deadline
                )
                code = error_code(response.error_code)
                raise_group_error(self.cluster, group_id, code, f"removing member {member_id}", response.error_message)

            await self.cluster.retrying(deadline, attempt)
