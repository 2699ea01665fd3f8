"""Members of one group of the consumer protocol, by bare requests: many of them, and every answer is seen.

Owns what a member has to do: give up partitions that it is no longer assigned, and report them. Judges no answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final
from uuid import UUID

from fenceline.errors import ErrorCode
from fenceline.testing.waiting import eventually
from fenceline.wire.apis import ApiKey
from tests.support.committed_offsets import NOT_NOW
from tests.support.raw import RawConnection, plain

LONG_MS: Final = 600_000


class BareMember:
    """One member and what it uses."""

    def __init__(self, group: str, member_id: str, topic: str) -> None:
        self.member_id = member_id
        self.epoch = 0
        self.owned: dict[UUID, frozenset[int]] = {}
        self._group, self._topic = group, topic
        self._has_to_say = False
        """It uses other partitions than it has told the coordinator."""

    def beat(self, connection: RawConnection) -> ErrorCode:
        """One heartbeat; what it is told is taken up."""
        is_joining = self.epoch == 0
        says = is_joining or self._has_to_say
        fields = {
            "group_id": self._group,
            "member_id": self.member_id,
            "member_epoch": self.epoch,
            "instance_id": None,
            "rack_id": None,
            "rebalance_timeout": LONG_MS if is_joining else -1,
            "subscribed_topic_names": [self._topic] if is_joining else None,
            "subscribed_topic_regex": None,
            "server_assignor": None,
            "topic_partitions": self._told() if says else None,
        }
        answer = connection.call(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, fields)
        code = ErrorCode(answer.error_code)
        if code is ErrorCode.NONE:
            self.epoch = answer.member_epoch
            self._has_to_say = False
            if answer.assignment is not None:
                given = {each.topic_id: frozenset(each.partitions) for each in answer.assignment.topic_partitions}
                self._has_to_say = given != self.owned
                self.owned = given
        return code

    def _told(self) -> list[dict[str, Any]]:
        return [{"topic_id": topic_id, "partitions": sorted(owned)} for topic_id, owned in self.owned.items()]

    @property
    def uses(self) -> Iterator[int]:
        for partitions in self.owned.values():
            yield from partitions


def settle(connection: RawConnection, group: str, members: Iterable[BareMember], wait_s: float = 200) -> Any:
    """Everybody beats until the group is stable; the group as it is described then."""

    def beat_all() -> Any:
        for member in members:
            eventually(lambda member=member: _is_heard(member, connection), f"{member.member_id} is heard")  # type: ignore[misc]
        found = describe(connection, group)
        return found if isinstance(found, dict) and found["group_state"] == "Stable" else None

    return eventually(beat_all, f"{group} is stable", wait_s=wait_s)


def _is_heard(member: BareMember, connection: RawConnection) -> bool:
    code = member.beat(connection)
    if code in NOT_NOW:
        return False
    assert code is ErrorCode.NONE, (member.member_id, code)
    return True


def describe(connection: RawConnection, group: str) -> dict[str, Any] | ErrorCode:
    """All that ConsumerGroupDescribe tells, members by their ids; or its error."""
    fields = {"group_ids": [group], "include_authorized_operations": False}
    (found,) = connection.call(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, fields).groups
    if found.error_code:
        return ErrorCode(found.error_code)
    reported: dict[str, Any] = plain(found)
    reported["members"] = {each["member_id"]: each for each in reported["members"]}
    return reported
