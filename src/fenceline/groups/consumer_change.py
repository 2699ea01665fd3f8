"""One change to a group of the consumer protocol, as it is put together before it is written.

Owns the order of its records, and what is said to who waits for a change that the log refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from fenceline.errors import ErrorCode, InternalError
from fenceline.groups import consumer_records as records
from fenceline.groups.clock import Now
from fenceline.groups.consumer_messages import ConsumerHeartbeatAnswer
from fenceline.groups.consumer_model import ConsumerGroup
from fenceline.groups.consumer_replay import applied
from fenceline.groups.messages import (
    DeleteGroupsAnswer,
    JoinAnswer,
    KeyValue,
    LeaveAnswer,
    Outcome,
    SyncAnswer,
)
from fenceline.groups.model import Group

Refused: TypeAlias = Callable[[Now], None]
"""Called when the log refused a change, once it is taken back."""


@dataclass(slots=True)
class Change:
    """What one event does to one group."""

    group: ConsumerGroup
    """As it is after what was gathered."""
    meanings: list[records.ConsumerMeaning] = field(default_factory=list)
    first: list[KeyValue] = field(default_factory=list)
    """Records of the classic group in its place, before the meanings."""
    last: list[KeyValue] = field(default_factory=list)
    """Records of the classic group that takes its place, behind them."""
    replaces: Group | None = None
    """The classic group that this one takes the place of."""
    becomes: Group | None = None
    """The classic group that takes its place."""
    refused: Refused | None = None
    looked_at: object | None = None
    """The topics for which the metadata hash was looked at."""

    def add(self, meaning: records.ConsumerMeaning) -> None:
        """One record more."""
        self.meanings.append(meaning)
        after = applied(self.group, meaning)
        # A group that is gone is told by `becomes`, or by its tombstones alone.
        self.group = self.group if after is None else after

    @property
    def batch(self) -> list[KeyValue]:
        return [*self.first, *(records.encode(meaning) for meaning in self.meanings), *self.last]


def refusal(outcome: Outcome, error: ErrorCode) -> Outcome:
    """What is said in place of an outcome when the log refused the change behind it."""
    match outcome:
        case ConsumerHeartbeatAnswer():
            return ConsumerHeartbeatAnswer(error)
        case JoinAnswer():
            return JoinAnswer(error)
        case SyncAnswer():
            return SyncAnswer(error)
        case LeaveAnswer():
            return LeaveAnswer(error)
        case DeleteGroupsAnswer(errors):
            return DeleteGroupsAnswer(tuple((name, error or code) for name, code in errors))
    raise InternalError(f"nobody waits with {outcome!r} for a change of a group")


def tombstones(group: ConsumerGroup) -> list[records.ConsumerMeaning]:
    """All that the log has of a group goes, in an order in which each step leaves a group that can be."""
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
