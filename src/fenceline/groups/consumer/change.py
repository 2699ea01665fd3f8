"""One change to a group of the consumer protocol, collected before it is written.

Owns the order of its records, those that remove a member or a group, and the response to a client that waits for a
change that the log rejected.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from fenceline.errors import ErrorCode, InternalError
from fenceline.groups.classic.model import ClassicGroup
from fenceline.groups.consumer import records
from fenceline.groups.consumer.model import ConsumerGroup
from fenceline.groups.consumer.replay import applied
from fenceline.groups.messages import (
    ConsumerHeartbeatResponse,
    DeleteGroupsResponse,
    JoinResponse,
    KeyValue,
    LeaveResponse,
    Now,
    Outcome,
    SyncResponse,
)

OnRejected: TypeAlias = Callable[[Now], None]
"""Called when the log rejected a change, after it was undone."""


@dataclass(slots=True)
class GroupChange:
    """The changes of one event to one group."""

    group: ConsumerGroup
    """The group with the changes collected so far."""
    meanings: list[records.ConsumerMeaning] = field(default_factory=list)
    first: list[KeyValue] = field(default_factory=list)
    """Records of the classic group that is replaced, before the group's own."""
    last: list[KeyValue] = field(default_factory=list)
    """Records of the classic group that replaces it, after the group's own."""
    replaces: ClassicGroup | None = None
    """The classic group that this one replaces."""
    becomes: ClassicGroup | None = None
    """The classic group that replaces this one."""
    on_rejected: OnRejected | None = None
    checked_topics: object | None = None
    """The topics for which the metadata hash was checked."""

    def add(self, meaning: records.ConsumerMeaning) -> None:
        """Add one record."""
        self.meanings.append(meaning)
        after = applied(self.group, meaning)
        # A deleted group is represented by `becomes`, or by its tombstones alone.
        self.group = self.group if after is None else after

    @property
    def batch(self) -> list[KeyValue]:
        return [*self.first, *(records.encode(meaning) for meaning in self.meanings), *self.last]


def rejected_outcome(outcome: Outcome, error: ErrorCode) -> Outcome:
    """The response instead of `outcome` if the log rejected the change behind it."""
    match outcome:
        case ConsumerHeartbeatResponse():
            return ConsumerHeartbeatResponse(error)
        case JoinResponse():
            return JoinResponse(error)
        case SyncResponse():
            return SyncResponse(error)
        case LeaveResponse():
            return LeaveResponse(error)
        case DeleteGroupsResponse(errors):
            return DeleteGroupsResponse(tuple((name, error or code) for name, code in errors))
    raise InternalError(f"no request waits with {outcome!r} for a change of a group")


def tombstones(group: ConsumerGroup) -> list[records.ConsumerMeaning]:
    """Tombstones for all records of a group, in an order in which every step leaves a valid group."""
    group_id = group.group_id
    members = sorted(group.members)
    return [
        *(records.CurrentStored(group_id, member_id, None) for member_id in members),
        *(records.TargetStored(group_id, member_id, None) for member_id in members),
        records.TargetEpochStored(group_id, None),
        *(records.MemberStored(group_id, member_id, None) for member_id in members),
        *(records.RegexStored(group_id, regex, None) for regex in sorted(group.regexes)),
        records.OldMetadataStored(group_id, exists=False),
        records.EpochStored(group_id, None),
    ]


def removal_records(group_id: str, member_id: str) -> list[records.ConsumerMeaning]:
    """The records that remove a member, in order."""
    return [
        records.CurrentStored(group_id, member_id, None),
        records.TargetStored(group_id, member_id, None),
        records.MemberStored(group_id, member_id, None),
    ]
