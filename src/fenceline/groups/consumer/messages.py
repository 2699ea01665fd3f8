"""Requests to and responses of the coordinator for the consumer protocol. Data only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from fenceline.errors import ErrorCode

if TYPE_CHECKING:
    from fenceline.groups.consumer.model import ConsumerMember, Partitions


@dataclass(frozen=True, slots=True)
class ConsumerHeartbeatRequest:
    """A member's heartbeat, join (epoch 0) or leave (-1; -2 for a static one that will return). None means unchanged;
    for `owned`, not reported."""

    group_id: str
    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    subscribed_names: tuple[str, ...] | None = None
    subscribed_regex: str | None = None
    server_assignor: str | None = None
    owned: Partitions | None = None
    client_id: str = ""
    client_host: str = ""
    must_bring_member_id: bool = True
    """From version 1 on the client generates its id (KIP-1082)."""

    @property
    def is_full(self) -> bool:
        """All fields are set, as after an error: the response must be complete, too."""
        return (
            self.rebalance_timeout_ms != -1
            and (self.subscribed_names is not None or self.subscribed_regex is not None)
            and self.owned is not None
        )


@dataclass(frozen=True, slots=True)
class ConsumerHeartbeatResponse:
    """The member's epoch, and its assignment if that has changed."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: tuple[tuple[UUID, tuple[int, ...]], ...] | None = None
    """None: unchanged."""


class DescribedConsumerMember(NamedTuple):
    member: ConsumerMember
    target: Partitions


@dataclass(frozen=True, slots=True)
class DescribedConsumerGroup:
    """The fields of ConsumerGroupDescribe."""

    group_id: str
    state: str
    epoch: int
    assignment_epoch: int
    assignor: str
    members: tuple[DescribedConsumerMember, ...]
