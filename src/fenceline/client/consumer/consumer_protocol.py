"""The member's side of the consumer group protocol (KIP-848) as a state machine: heartbeats in, heartbeats out. Pure.

Owns member id and epoch, what the coordinator was told and what it assigned. The coordinator decides the assignment;
the member gives up what it lost, takes what it got, and reports what it owns. Never sends anything and never calls
back.

| phase | heartbeat | next phase |
|---|---|---|
| UNSUBSCRIBED | none | JOINING (a subscription) |
| JOINING | epoch 0, complete | STABLE, RECONCILING (an answer) |
| STABLE | changes | RECONCILING (an assignment), FENCED |
| RECONCILING | changes | ACKNOWLEDGING (given up and taken), FENCED |
| ACKNOWLEDGING | what it owns | STABLE, RECONCILING (an answer), FENCED |
| FENCED | none | JOINING (the caller has dropped its partitions) |

After a heartbeat without an answer the next one is complete again, because the coordinator may not have it.
"""

from __future__ import annotations

import base64
from collections.abc import Collection, Iterable, Mapping
from enum import Enum
from typing import Any, Final
from uuid import UUID

LEAVE: Final = -1
LEAVE_STATIC: Final = -2
"""The epoch of a static member that leaves: its partitions stay its own until the session ends."""
NOT_CHANGED: Final = -1


class ProtocolPhase(Enum):
    UNSUBSCRIBED = "unsubscribed"
    JOINING = "joining"
    STABLE = "stable"
    RECONCILING = "reconciling"
    ACKNOWLEDGING = "acknowledging"
    FENCED = "fenced"


TopicPartitionIds = frozenset[tuple[UUID, int]]


def new_member_id(random_bytes: bytes) -> str:
    """A member id of Kafka's form: a UUID as base64url without padding."""
    return base64.urlsafe_b64encode(random_bytes).rstrip(b"=").decode()


class ConsumerProtocol:
    """One member of one group."""

    def __init__(
        self,
        group_id: str,
        member_id: str,
        *,
        instance_id: str | None = None,
        rack_id: str | None = None,
        rebalance_timeout_ms: int = 300_000,
        server_assignor: str | None = None,
    ) -> None:
        self.group_id = group_id
        self.member_id = member_id
        self.instance_id = instance_id
        self.phase = ProtocolPhase.UNSUBSCRIBED
        self.epoch = 0
        self.joined = 0
        """How often the member has joined: commits from before belong to a former membership."""
        self.owned: TopicPartitionIds = frozenset()
        self.target: TopicPartitionIds = frozenset()
        self._topics: frozenset[str] = frozenset()
        self._regex: str | None = None
        self._fixed = {
            "rack_id": rack_id or None,
            "rebalance_timeout": rebalance_timeout_ms,
            "server_assignor": server_assignor,
        }
        self._told: dict[str, Any] | None = None
        """What the coordinator has of this membership; None: not known."""
        self._sent: dict[str, Any] = {}

    # -- the caller

    def subscribe(self, topics: Collection[str] = (), regex: str | None = None) -> None:
        self._topics, self._regex = frozenset(topics), regex
        if self.phase is ProtocolPhase.UNSUBSCRIBED and (topics or regex):
            self._join()

    def reconciled(self, owned: Iterable[tuple[UUID, int]]) -> None:
        """The caller has given up and taken partitions, and now owns these."""
        if self.phase in (ProtocolPhase.FENCED, ProtocolPhase.UNSUBSCRIBED):
            return
        self.owned = frozenset(owned)
        self.phase = ProtocolPhase.ACKNOWLEDGING

    def dropped(self) -> None:
        """The caller has dropped the partitions of a membership that was fenced: join again."""
        assert self.phase is ProtocolPhase.FENCED, "only a fenced member drops its partitions"
        self._join()

    def leave(self) -> dict[str, Any]:
        """The last heartbeat; the member is unsubscribed then."""
        epoch = LEAVE if self.instance_id is None else LEAVE_STATIC
        fields = self._fields(epoch, {})
        self.phase, self.epoch = ProtocolPhase.UNSUBSCRIBED, 0
        self.owned = self.target = frozenset()
        self._topics, self._regex = frozenset(), None
        return fields

    # -- the coordinator

    @property
    def is_member(self) -> bool:
        return self.epoch > 0 and self.phase is not ProtocolPhase.FENCED

    @property
    def may_be_member(self) -> bool:
        """Whether the coordinator may have this member: it has been asked, even if it has not answered."""
        return self.is_member or (self.phase is ProtocolPhase.JOINING and bool(self._sent))

    @property
    def is_due(self) -> bool:
        """Whether a heartbeat should be sent now, before the interval is over."""
        if self.phase in (ProtocolPhase.JOINING, ProtocolPhase.ACKNOWLEDGING):
            return True
        return self.is_member and self._told is not None and self._subscription() != self._told_subscription()

    def heartbeat(self) -> dict[str, Any] | None:
        """The fields of the next heartbeat, None if there is none to send."""
        if self.phase in (ProtocolPhase.UNSUBSCRIBED, ProtocolPhase.FENCED):
            return None
        current = {**self._subscription(), **self._fixed, "topic_partitions": self.owned}
        told = self._told
        self._sent = current
        if told is None:
            return self._fields(self.epoch, current)
        return self._fields(self.epoch, {name: value for name, value in current.items() if told.get(name) != value})

    def answered(self, epoch: int, assignment: Mapping[UUID, Collection[int]] | None) -> None:
        """The answer to the last heartbeat. `assignment`: None if it has not changed."""
        if self.phase in (ProtocolPhase.UNSUBSCRIBED, ProtocolPhase.FENCED):
            return
        self._told = self._sent
        if self.epoch == 0:
            self.joined += 1
        self.epoch = epoch
        if assignment is not None:
            self.target = frozenset((topic_id, index) for topic_id, indexes in assignment.items() for index in indexes)
        if self.target != self.owned:
            self.phase = ProtocolPhase.RECONCILING
        elif self._told["topic_partitions"] == self.owned:
            self.phase = ProtocolPhase.STABLE
        else:
            self.phase = ProtocolPhase.ACKNOWLEDGING

    def unanswered(self) -> None:
        """The last heartbeat failed, or has no answer."""
        self._told = None

    def fenced(self) -> None:
        """The coordinator does not have this member, or not at this epoch: its partitions may have other owners."""
        if self.phase is not ProtocolPhase.UNSUBSCRIBED:
            self.phase, self.epoch, self._told = ProtocolPhase.FENCED, 0, None
            self.owned = self.target = frozenset()

    # -- inside

    def _join(self) -> None:
        self.phase, self.epoch, self._told, self._sent = ProtocolPhase.JOINING, 0, None, {}
        self.owned = self.target = frozenset()

    def _subscription(self) -> dict[str, Any]:
        # A regex is cleared by an empty one.
        return {"subscribed_topic_names": self._topics, "subscribed_topic_regex": self._regex or ""}

    def _told_subscription(self) -> dict[str, Any]:
        assert self._told is not None, "asked only if it is known"
        return {name: self._told[name] for name in ("subscribed_topic_names", "subscribed_topic_regex")}

    def _fields(self, epoch: int, changed: Mapping[str, Any]) -> dict[str, Any]:
        names, owned = changed.get("subscribed_topic_names"), changed.get("topic_partitions")
        by_topic: dict[UUID, list[int]] = {}
        for topic_id, index in sorted(owned or ()):
            by_topic.setdefault(topic_id, []).append(index)
        listed = [{"topic_id": topic_id, "partitions": indexes} for topic_id, indexes in by_topic.items()]
        return {
            "group_id": self.group_id,
            "member_id": self.member_id,
            "member_epoch": epoch,
            "instance_id": self.instance_id,
            "rack_id": changed.get("rack_id"),
            "rebalance_timeout": changed.get("rebalance_timeout", NOT_CHANGED),
            "subscribed_topic_names": None if names is None else sorted(names),
            "subscribed_topic_regex": changed.get("subscribed_topic_regex"),
            "server_assignor": changed.get("server_assignor"),
            "topic_partitions": None if owned is None else listed,
        }
