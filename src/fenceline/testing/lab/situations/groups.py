"""Situations of consumer groups: coordinators that move, commits that are lost, members that come and go.

Owns the choreography of these. Rules: KIP-62, KIP-345, KIP-848.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from fenceline.client import Consumer, TopicPartition
from fenceline.client.admin.groups import GroupDescription
from fenceline.errors import ErrorCode, PeerError
from fenceline.ids import CONSUMER_OFFSETS_TOPIC
from fenceline.testing.lab.faults import ActiveFault
from fenceline.testing.lab.situations.common import LAB_CLIENT, WAIT_S, SituationBase, SituationImpossible
from fenceline.testing.waiting import eventually

_STRATEGIES: Final = {"range", "roundrobin", "sticky", "cooperative-sticky"}
_CLASSIC_WITHOUT_MEMBERS: Final = ("Empty", "Dead")
_SESSION_MS: Final = 1_500
_LOOKS_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class CoordinatorMoved:
    """The broker that coordinates the group, before and after."""

    group: str
    old: int
    new: int


@dataclass(frozen=True, slots=True)
class LostCommit:
    """The next commit of the group is lost. `handled`: the offsets are committed all the same, and only the answer is
    lost. `fault.wait_hits()` waits for it."""

    group: str
    handled: bool
    fault: ActiveFault


@dataclass(frozen=True, slots=True)
class RebalanceStorm:
    """How many members of the laboratory joined and left."""

    group: str
    joined: int


@dataclass(frozen=True, slots=True)
class ZombieMember:
    """A member that the group has removed, and that does not know; it does with its next request to the coordinator."""

    group: str
    member_id: str
    client_id: str
    fault: ActiveFault | None


class GroupSituations(SituationBase):
    """Part of `Situations`."""

    def coordinator_moved(self, group: str) -> CoordinatorMoved:
        """Another broker coordinates the group from now on. Needs two replicas of the topic of offsets."""
        partition = self._offsets_partition(group)
        before = self._partition(CONSUMER_OFFSETS_TOPIC, partition)
        others = [node for node in before.isr if node != before.leader]
        if not others:
            raise SituationImpossible(
                f"No other broker has the offsets of group {group}: the ISR is {list(before.isr)}",
                "Use a cluster of two brokers or more, and offsets.topic.replication.factor=2 or more.",
            )
        tp = TopicPartition(CONSUMER_OFFSETS_TOPIC, partition)
        order = [others[0], *(node for node in before.replicas if node != others[0])]
        self._order_replicas(tp, order)
        self._elect(tp)
        self._await_partition(CONSUMER_OFFSETS_TOPIC, partition, lambda it: it.leader == others[0], "it has moved")
        self._note("coordinator moved", group=group, old=before.leader, new=others[0])
        return CoordinatorMoved(group, before.leader, others[0])

    def lost_commit(self, group: str, *, handled: bool = False, times: int = 1) -> LostCommit:
        """The next commits of the group are lost: the requests, or with `handled` only the answers."""
        faults = self._cluster.faults
        lose = faults.lose_answers if handled else faults.lose_requests
        return LostCommit(group, handled, lose("OffsetCommit", group=group, times=times))

    def rebalance_storm(self, group: str, *, members: int = 2, rounds: int = 3) -> RebalanceStorm:
        """Members of the laboratory join the group and leave again, so many times. The group needs members that consume
        topics."""
        described = self._settled(group)
        topics = sorted({tp.topic for member in described.members for tp in member.assignment})
        if not topics:
            raise SituationImpossible(
                f"Group {group} has no partition assigned, so that nothing can be rebalanced",
                "Wait until it is stable: wait_for_group().",
            )
        settings = {
            **self._cluster.client_settings,
            "client.id": LAB_CLIENT,
            "group.id": group,
            "enable.auto.commit": False,
            **self._protocol_of(described),
        }
        self._note("rebalance storm", group=group, members=members, rounds=rounds)
        expected = len(described.members) + 1
        for _ in range(rounds):
            joining = [Consumer(settings) for _ in range(members)]
            try:
                for consumer in joining:
                    consumer.subscribe(topics)
                for consumer in joining:
                    # Joins in the background; records are never taken from the application's members by it.
                    consumer.poll(0, max_records=0)
                eventually(
                    lambda: self._member_count(group) >= expected, f"group {group} has more members", wait_s=WAIT_S
                )
            finally:
                for consumer in joining:
                    consumer.close()
        return RebalanceStorm(group, members * rounds)

    def zombie_member(self, group: str, *, client_id: str | None = None, unaware_s: float = 0.0) -> ZombieMember:
        """Remove a member from its group, as if its session had timed out: the first one, or one with this client id.
        For `unaware_s` seconds its heartbeats are held, so that it goes on as a zombie."""
        described = self._with_members(group)
        members = [member for member in described.members if client_id in (None, member.client_id)]
        if not members:
            raise SituationImpossible(
                f"Group {group} has no member with client id {client_id}",
                f"Its members are {', '.join(sorted({member.client_id for member in described.members}))}.",
            )
        member = members[0]
        fault = None
        if unaware_s > 0:
            faults = self._cluster.faults
            delayed = [
                faults.delay_requests(api, unaware_s, group=group, client_id=member.client_id)
                for api in ("Heartbeat", "ConsumerGroupHeartbeat")
            ]
            fault = delayed[0]
        self._cluster.admin.remove_members(group, [member.member_id])
        self._note("zombie member", group=group, member=member.member_id)
        return ZombieMember(group, member.member_id, member.client_id, fault)

    # --- inside ---------------------------------------------------------------------------------------------------

    def _with_members(self, group: str) -> GroupDescription:
        try:
            found = self._cluster.admin.describe_groups([group])[group]
        except PeerError as error:
            if error.code is not ErrorCode.GROUP_ID_NOT_FOUND:
                raise
            found = None
        if found is None or found.state in _CLASSIC_WITHOUT_MEMBERS or not found.members:
            raise SituationImpossible(f"Group {group} has no members", "Start a consumer of the group first.")
        return found

    def _settled(self, group: str) -> GroupDescription:
        """The group, once it is not between two generations, in which it has no assignor; as it is after a while."""
        ends_s = time.monotonic() + WAIT_S
        while True:
            found = self._with_members(group)
            if not found.state.endswith("Rebalance") or time.monotonic() > ends_s:
                return found
            time.sleep(_LOOKS_S)

    def _short_session(self) -> dict[str, int]:
        """Settings of a member that is soon gone also if its coordinator forgets that it has left, because the group
        was moved before its other members had joined again."""
        shortest_ms = self._config_of(("broker", str(self._cluster.nodes[0])), "group.min.session.timeout.ms")
        session_ms = max(_SESSION_MS, int(shortest_ms or 0))
        return {"session.timeout.ms": session_ms, "heartbeat.interval.ms": session_ms // 3}

    def _member_count(self, group: str) -> int:
        return len(self._cluster.admin.describe_groups([group])[group].members)

    def _protocol_of(self, described: GroupDescription) -> dict[str, str | int]:
        """The settings with which a consumer fits into the group."""
        types = {group.group_id: group.group_type.lower() for group in self._cluster.admin.list_groups()}
        if types.get(described.group_id) == "consumer":
            return {"group.protocol": "consumer"}
        if described.protocol not in _STRATEGIES:
            raise SituationImpossible(
                f"Group {described.group_id} uses the assignor {described.protocol!r}, which the laboratory lacks",
                f"Use one of {', '.join(sorted(_STRATEGIES))}.",
            )
        return {"partition.assignment.strategy": described.protocol, **self._short_session()}

    def _offsets_partition(self, group: str) -> int:
        """The partition of the topic of offsets that has the group's; the topic is created if it is missing."""
        found = self._cluster.admin.metadata([CONSUMER_OFFSETS_TOPIC]).topics.get(CONSUMER_OFFSETS_TOPIC)
        if found is None or not found.partitions:
            raise SituationImpossible(f"Group {group} does not exist yet", "Start a consumer of the group first.")
        return _java_hash(group) % len(found.partitions)


def _java_hash(text: str) -> int:
    """As Kafka: the absolute value of String.hashCode."""
    value = 0
    for unit in memoryview(text.encode("utf-16-le")).cast("H"):
        value = (31 * value + unit) & 0xFFFFFFFF
    signed = value - (1 << 32) if value >= 1 << 31 else value
    return 0 if signed == -(1 << 31) else abs(signed)
