"""A coordinator with an in-memory log and a clock that tests advance. No I/O."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from fenceline.errors import ErrorCode
from fenceline.groups.classic.model import ClassicGroup
from fenceline.groups.coordinator import GroupCoordinator
from fenceline.groups.messages import (
    AppendGroupMarker,
    AppendGroupRecords,
    ClassicHeartbeat,
    CommitRequest,
    CommittedPosition,
    DeleteOffsetsRequest,
    Duty,
    FetchOffsetsRequest,
    GroupAnswer,
    JoinRequest,
    KeyValue,
    LeaveRequest,
    LeavingMember,
    Now,
    OffsetRewound,
    OffsetToCommit,
    PositionsDropped,
    SyncRequest,
    TopicToFetch,
)
from fenceline.groups.settings import GroupSettings
from fenceline.groups.shard import Shard
from fenceline.metadata.image import EMPTY_IMAGE, MetadataImage

START_MS = 1_700_000_000_000
GROUP = "g"


def subscription(*topics: str) -> bytes:
    """A consumer's JoinGroup metadata, version 0."""
    body = struct.pack(">hi", 0, len(topics))
    for topic in topics:
        body += struct.pack(">h", len(topic)) + topic.encode()
    return body + struct.pack(">i", -1)


class Ticket:
    """Represents one parked request; `outcome` is None until its only response."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.outcome: Any = None

    def __repr__(self) -> str:
        return f"{self.name}: {self.outcome}"


class World:
    """One coordinator of every partition. With `hold_appends` writes stay pending until `release`."""

    def __init__(
        self,
        settings: GroupSettings | None = None,
        *,
        partitions: Sequence[int] | None = None,
        epoch_end: Callable[[str, int, int], int] = lambda *_: -1,
        image: MetadataImage = EMPTY_IMAGE,
    ) -> None:
        self._epoch_end = epoch_end
        self.image = image
        self.settings = settings or GroupSettings(initial_rebalance_delay_ms=0)
        self.now = Now(START_MS, 0)
        self.rng = Random(7)
        self.log: dict[int, list[KeyValue]] = {}
        self.held: list[AppendGroupRecords | AppendGroupMarker] = []
        self.hold_appends = False
        self.batches: list[tuple[KeyValue, ...]] = []
        self.reported: list[OffsetRewound] = []
        self.dropped: list[CommittedPosition] = []
        self.coordinator = self._new_coordinator()
        self._load(range(self.coordinator.partition_count) if partitions is None else partitions)

    def _new_coordinator(self) -> GroupCoordinator:
        return GroupCoordinator(self.settings, self.rng, epoch_end=self._epoch_end, image=lambda: self.image)

    def _load(self, partitions: Sequence[int] | range) -> None:
        for partition in partitions:
            shard, duties = self.coordinator.begin_load(partition, 0, self.now)
            assert shard is not None
            for key, value in self.log.get(partition, []):
                shard.replay(key, value, self.now)
            self.do(duties)
            self.do(self.coordinator.finish_load(shard, self.now))

    def reload(self) -> None:
        """A crash: the state in memory is lost, and the log is loaded again."""
        self.held.clear()
        self.coordinator = self._new_coordinator()
        self._load(range(self.coordinator.partition_count))

    def compact(self, share: float = 1.0, *, drops_tombstones: bool) -> None:
        """Compact the first part of each log: only the last record of each key remains; optionally no tombstones."""
        for partition, log in self.log.items():
            end = round(len(log) * share)
            last = {key: position for position, (key, _) in enumerate(log[:end])}
            kept = [
                record
                for position, record in enumerate(log[:end])
                if last[record[0]] == position and not (drops_tombstones and record[1] is None)
            ]
            self.log[partition] = kept + log[end:]

    def shard(self, group_id: str = GROUP) -> Shard:
        return self.coordinator._active[self.coordinator.partition_of(group_id)]

    def group(self, group_id: str = GROUP) -> ClassicGroup:
        return self.shard(group_id).state.classic[group_id]

    # --- duties ----------------------------------------

    def do(self, duties: list[Duty]) -> None:
        for duty in duties:
            match duty:
                case GroupAnswer(ticket, outcome):
                    assert isinstance(ticket, Ticket)
                    assert ticket.outcome is None, f"answered twice: {ticket}, then {outcome}"
                    ticket.outcome = outcome
                case OffsetRewound():
                    self.reported.append(duty)
                case PositionsDropped(positions):
                    self.dropped.extend(positions)
                case AppendGroupRecords() | AppendGroupMarker() if self.hold_appends or self.held:
                    # A log keeps the order: later writes are held, too.
                    self.held.append(duty)
                case AppendGroupRecords() | AppendGroupMarker():
                    self._append(duty)
        self.coordinator.check()

    def _append(self, duty: AppendGroupRecords | AppendGroupMarker) -> None:
        assert isinstance(duty, AppendGroupRecords), "this world has no transactions: see test_transactional_offsets.py"
        self.log.setdefault(duty.partition, []).extend(duty.records)
        self.batches.append(duty.records)
        self.do(self.coordinator.appended(duty.partition, duty.write_id, self.now))

    def release(self, error: ErrorCode = ErrorCode.NONE) -> None:
        """Commit the oldest pending write, or reject it with this code."""
        duty = self.held.pop(0)
        if error is ErrorCode.NONE:
            self._append(duty)
        else:
            partition = duty.partition if isinstance(duty, AppendGroupRecords) else duty.end.partition
            self.do(self.coordinator.append_failed(partition, duty.write_id, error, self.now))

    def advance(self, ms: int) -> None:
        """Advance the clock; timers fire at their deadlines."""
        end_ms = self.now.monotonic_ms + ms
        while (at_ms := self.coordinator.next_deadline_ms()) is not None and at_ms <= end_ms:
            self._move_to(max(at_ms, self.now.monotonic_ms))
            self.do(self.coordinator.on_time(self.now))
        self._move_to(end_ms)

    def _move_to(self, monotonic_ms: int) -> None:
        self.now = Now(START_MS + monotonic_ms, monotonic_ms)

    # --- requests ----------------------------------------

    def join(self, member_id: str = "", *, group: str = GROUP, instance: str | None = None, **changes: Any) -> Ticket:
        ticket = Ticket(f"join {member_id or instance or 'new'}")
        fields: dict[str, Any] = {
            "group_id": group,
            "member_id": member_id,
            "group_instance_id": instance,
            "protocol_type": "consumer",
            "protocols": (("range", subscription("t")),),
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 60_000,
            "client_id": "c",
            "client_host": "/127.0.0.1",
            "must_know_member_id": False,
            **changes,
        }
        self.do(self.coordinator.join(ticket, JoinRequest(**fields), self.now))
        return ticket

    def sync(self, member_id: str, generation: int, assignments: dict[str, bytes] | None = None, **more: Any) -> Ticket:
        ticket = Ticket(f"sync {member_id}")
        group = more.pop("group", GROUP)
        request = SyncRequest(group, generation, member_id, assignments=tuple((assignments or {}).items()), **more)
        self.do(self.coordinator.sync(ticket, request, self.now))
        return ticket

    def heartbeat(self, member_id: str, generation: int, *, group: str = GROUP, instance: str | None = None) -> Any:
        ticket = Ticket("heartbeat")
        request = ClassicHeartbeat(group, generation, member_id, instance)
        self.do(self.coordinator.heartbeat(ticket, request, self.now))
        return ticket.outcome.error

    def leave(self, *members: tuple[str, str | None], group: str = GROUP) -> Ticket:
        ticket = Ticket("leave")
        request = LeaveRequest(group, tuple(LeavingMember(*each) for each in members))
        self.do(self.coordinator.leave(ticket, request, self.now))
        return ticket

    def commit(
        self,
        offset: int = 1,
        *,
        group: str = GROUP,
        member_id: str = "",
        generation: int = -1,
        instance: str | None = None,
        topic: str = "t",
        partition: int = 0,
        offsets: tuple[OffsetToCommit, ...] | None = None,
        **more: Any,
    ) -> Ticket:
        ticket = Ticket("commit")
        wanted = offsets if offsets is not None else (OffsetToCommit(topic, partition, offset),)
        request = CommitRequest(group, generation, member_id, instance, wanted, **more)
        self.do(self.coordinator.commit(ticket, request, self.now))
        return ticket

    def commit_all(self, offsets: Mapping[tuple[str, int], tuple[int, int]]) -> Ticket:
        """(Topic, partition) to (offset, leader epoch), in one request."""
        return self.commit(offsets=tuple(OffsetToCommit(*where, *at) for where, at in offsets.items()))

    def fetch(
        self, *topics: TopicToFetch, group: str = GROUP, everything: bool = False, require_stable: bool = False
    ) -> Ticket:
        ticket = Ticket("fetch")
        wanted = None if everything else topics or (TopicToFetch("t", (0,)),)
        self.do(self.coordinator.fetch_offsets(ticket, FetchOffsetsRequest(group, wanted, require_stable)))
        return ticket

    def offset(self, topic: str = "t", partition: int = 0, group: str = GROUP) -> int:
        """The offset that a plain OffsetFetch returns."""
        answer = self.fetch(TopicToFetch(topic, (partition,)), group=group).outcome
        offset: int = answer.topics[0][1][0].offset
        return offset

    def delete_offsets(self, *partitions: tuple[str, int], group: str = GROUP) -> Ticket:
        ticket = Ticket("delete offsets")
        request = DeleteOffsetsRequest(group, partitions)
        self.do(self.coordinator.delete_offsets(ticket, request, self.now))
        return ticket

    def delete_groups(self, *groups: str) -> dict[str, ErrorCode]:
        found: dict[str, ErrorCode] = {}
        for names in self.coordinator.by_partition(groups).values():
            ticket = Ticket("delete groups")
            self.do(self.coordinator.delete_groups(ticket, names, self.now))
            found.update(ticket.outcome.errors)
        return found

    # --- setting up a state ---------------------------------------

    def stable(self, *clients: str, group: str = GROUP, **changes: Any) -> dict[str, str]:
        """A stable group with these dynamic members; maps client names to member ids. The first one leads."""
        joins = {name: self.join(group=group, client_id=name, **changes) for name in clients}
        self.advance(self.settings.initial_rebalance_delay_ms)
        members = {name: ticket.outcome.member_id for name, ticket in joins.items()}
        leader = next(ticket.outcome for ticket in joins.values() if ticket.outcome.members)
        assignment = {member.member_id: member.member_id.encode() for member in leader.members}
        for member_id in members.values():
            if member_id != leader.member_id:
                self.sync(member_id, leader.generation, group=group)
        self.sync(leader.member_id, leader.generation, assignment, group=group)
        return members
