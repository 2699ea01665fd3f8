"""One partition of `__consumer_offsets`: its groups, their offsets, and the writes that are under way.

Owns replay, the order of writes and answers, and everything that is not membership: offsets, lists, deletion, expiry.
Never appends by itself: it asks for it with `messages.Append` and is told how it went.

Invariants: a change that a client was told of is in the log; a write that the log refused leaves no trace in the
offsets; an answer that depends on a write goes out when that write is settled, never before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from fenceline.errors import ErrorCode, InternalError, PeerError
from fenceline.groups import records
from fenceline.groups.clock import Now
from fenceline.groups.membership import Membership
from fenceline.groups.messages import (
    Answer,
    Append,
    CommitAnswer,
    CommitRequest,
    DeleteGroupsAnswer,
    DeleteOffsetsAnswer,
    DeleteOffsetsRequest,
    DescribedGroup,
    Duty,
    FetchedOffset,
    FetchOffsetsAnswer,
    FetchOffsetsRequest,
    KeyValue,
    ListedGroup,
    Outcome,
    Ticket,
)
from fenceline.groups.model import Group, Member
from fenceline.groups.offsets import CommittedOffset, OffsetSlot, OffsetStore, is_expired
from fenceline.groups.settings import GroupSettings
from fenceline.groups.states import GroupState, Step
from fenceline.groups.timers import TimerKey, TimerKind, Timers
from fenceline.rng import Rng

Settled: TypeAlias = Callable[[ErrorCode, Now], None]
"""Called once when a write is committed (NONE) or refused."""

_ANSWER_TO_REFUSAL: Final[Mapping[ErrorCode, ErrorCode]] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.UNKNOWN_SERVER_ERROR,
}
"""Clients of coordinators do not expect a log's errors; this is what Kafka's coordinators say instead."""


class ReplayedRecord(NamedTuple):
    """What replay needs of a record of the log; `fenceline.records.build.Record` has the same names."""

    key: bytes | None
    value: bytes | None


@dataclass(slots=True)
class _Write:
    """What waits for one append."""

    settled: list[Settled]
    stable_fetches: list[tuple[Ticket, FetchOffsetsRequest]] = field(default_factory=list)


class Shard:
    def __init__(
        self,
        partition: int,
        epoch: int,
        settings: GroupSettings,
        timers: Timers,
        rng: Rng,
        take_write_id: Callable[[], int],
    ) -> None:
        self.partition = partition
        self.epoch = epoch
        self.settings = settings
        self.groups: dict[str, Group] = {}
        self.offsets = OffsetStore()
        self.duties: list[Duty] = []
        self.write_count = 0
        self.skipped_record_count = 0
        """Records of kinds that this coordinator does not serve (consumer, share and streams groups)."""
        self.foreign_groups: set[str] = set()
        """Groups of the newer consumer protocol in the log: they exist, but not for the classic protocol."""
        self.membership: Final = Membership(self)
        self._timers = timers
        self._rng = rng
        self._take_write_id = take_write_id
        self._writes: dict[int, _Write] = {}

    # --- duties, timers, ids ----------------------------------------

    def answer(self, ticket: Ticket, outcome: Outcome) -> None:
        self.duties.append(Answer(ticket, outcome))

    def arm(self, kind: TimerKind, group_id: str, member_id: str, deadline_ms: int) -> None:
        self._timers.arm(TimerKey(self.partition, kind, group_id, member_id), deadline_ms)

    def disarm(self, kind: TimerKind, group_id: str, member_id: str = "") -> None:
        self._timers.disarm(TimerKey(self.partition, kind, group_id, member_id))

    def new_member_id(self, prefix: str) -> str:
        return f"{prefix}-{UUID(int=self._rng.getrandbits(128), version=4)}"

    def create_group(self, group_id: str, now: Now) -> Group:
        if group_id in self.foreign_groups:
            raise PeerError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        group = self.groups[group_id] = Group(group_id, now.wall_ms)
        return group

    # --- writes ----------------------------------------

    def write(self, batch: Sequence[KeyValue], settled: Settled) -> int:
        """Ask for one append; `settled` hears how it went. Returns the write id."""
        write_id = self._take_write_id()
        self._writes[write_id] = _Write([settled])
        self.write_count += 1
        self.duties.append(Append(self.partition, write_id, tuple(batch)))
        return write_id

    def write_group(
        self,
        group: Group,
        now: Now,
        settled: Settled = lambda error, now: None,
        assignments: Mapping[str, bytes] | None = None,
    ) -> None:
        """Store a group. `assignments` are those to store when they are not the members' own yet."""
        self.write((records.group_record(group, assignments),), settled)

    def write_new_group(self, group: Group) -> None:
        """Store that the group exists; nobody waits for it."""
        self.write((records.new_group_record(group),), lambda error, now: None)

    def answer_with_last_write(self, ticket: Ticket, outcome: Outcome, refusal: Callable[[ErrorCode], Outcome]) -> None:
        """Answer when the newest write is settled; with `refusal` when the log refuses it."""
        write = self._writes[max(self._writes)]
        write.settled.append(lambda error, now: self.answer(ticket, refusal(error) if error else outcome))

    def appended(self, write_id: int, now: Now) -> None:
        """The write is committed. A write that this shard does not know is an old one: ignored."""
        self._settle(write_id, ErrorCode.NONE, now)

    def append_failed(self, write_id: int, code: ErrorCode, now: Now) -> None:
        """The log refused the write with this code."""
        self._settle(write_id, _ANSWER_TO_REFUSAL.get(code, code), now)

    def _settle(self, write_id: int, error: ErrorCode, now: Now) -> None:
        write = self._writes.pop(write_id, None)
        if write is None:
            return
        if error is ErrorCode.NONE:
            self.offsets.settle(write_id)
        else:
            self.offsets.undo(write_id)
        for settled in write.settled:
            settled(error, now)
        self._release_stable_fetches(write)

    def _release_stable_fetches(self, write: _Write) -> None:
        if not write.stable_fetches:
            return
        if self._writes:
            # Writes settle in the order of the log; should one before still be open, its end is what to wait for.
            last = self._writes[max(self._writes)]
            last.stable_fetches.extend(write.stable_fetches)
            return
        for ticket, request in write.stable_fetches:
            self.answer(ticket, self._read_offsets(request))

    # --- offsets ----------------------------------------

    def commit(self, ticket: Ticket, request: CommitRequest, now: Now) -> None:
        """One batch for all offsets of the request, answered when it is committed."""
        group = self._group_for_commit(request, now)
        if group.state in (GroupState.STABLE, GroupState.PREPARING_REBALANCE):
            self.membership.keep_alive(group, group.members[request.member_id], now)
        expire_ms = -1 if request.retention_ms == -1 else now.wall_ms + request.retention_ms
        errors: list[ErrorCode] = []
        batch: list[KeyValue] = []
        values: list[tuple[OffsetSlot, CommittedOffset]] = []
        for each in request.offsets:
            metadata = each.metadata or ""
            if self._is_too_large(metadata):
                errors.append(ErrorCode.OFFSET_METADATA_TOO_LARGE)
                continue
            errors.append(ErrorCode.NONE)
            slot = OffsetSlot(request.group_id, each.topic, each.partition)
            value = CommittedOffset(each.offset, each.leader_epoch, metadata, now.wall_ms, expire_ms, each.topic_id)
            values.append((slot, value))
            batch.append(records.offset_record(slot, value))
        if not batch:
            self.answer(ticket, CommitAnswer(tuple(errors)))
            return

        def settled(error: ErrorCode, now: Now) -> None:
            if error is ErrorCode.NONE:
                self.answer(ticket, CommitAnswer(tuple(errors)))
            else:
                self.answer(ticket, CommitAnswer((error,) * len(errors)))
                self._forget_if_bare(request.group_id)

        write_id = self.write(batch, settled)
        for slot, value in values:
            self.offsets.put(slot, value, write_id)

    def _group_for_commit(self, request: CommitRequest, now: Now) -> Group:
        """The group, or a new simple one. Raises PeerError in Kafka's order of checks."""
        group = self.groups.get(request.group_id)
        has_generation = request.generation >= 0
        if request.group_id in self.foreign_groups:
            # What a group of the newer protocol says to somebody who is none of its members.
            raise PeerError(ErrorCode.UNKNOWN_MEMBER_ID)
        if group is None:
            if not has_generation:
                # A consumer that manages its partitions itself, or an administrator: a simple group is enough.
                return self.create_group(request.group_id, now)
            if request.knows_group_not_found:
                raise PeerError(ErrorCode.GROUP_ID_NOT_FOUND)
            raise PeerError(ErrorCode.ILLEGAL_GENERATION)
        if group.state is GroupState.DEAD:
            raise PeerError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if not has_generation and group.state is GroupState.EMPTY:
            return group
        if has_generation or request.member_id or request.group_instance_id is not None:
            group.require_member(request.member_id, request.group_instance_id)
            if request.generation != group.generation:
                raise PeerError(ErrorCode.ILLEGAL_GENERATION)
        else:
            raise PeerError(ErrorCode.UNKNOWN_MEMBER_ID)
        if group.state is GroupState.COMPLETING_REBALANCE:
            raise PeerError(ErrorCode.REBALANCE_IN_PROGRESS)
        return group

    def _is_too_large(self, metadata: str) -> bool:
        limit = self.settings.offset_metadata_max_chars
        # Kafka counts UTF-16 code units; only characters outside the basic plane take two.
        return len(metadata) > limit or (
            2 * len(metadata) > limit and len(metadata.encode("utf-16-le", "surrogatepass")) // 2 > limit
        )

    def fetch_offsets(self, ticket: Ticket, request: FetchOffsetsRequest) -> None:
        """`require_stable` waits for the writes under way and shows what open transactions may change as unstable."""
        if request.require_stable and self._writes:
            self._writes[max(self._writes)].stable_fetches.append((ticket, request))
        else:
            self.answer(ticket, self._read_offsets(request))

    def _read_offsets(self, request: FetchOffsetsRequest) -> FetchOffsetsAnswer:
        group_id = request.group_id
        topics: dict[str, list[FetchedOffset]] = {}
        if request.topics is None:
            for slot, value in self.offsets.committed_slots(group_id):
                topics.setdefault(slot.topic, []).append(self._fetched(slot, value, request.require_stable))
            return FetchOffsetsAnswer(topics=tuple((topic, tuple(found)) for topic, found in topics.items()))
        answer: list[tuple[str, tuple[FetchedOffset, ...]]] = []
        for topic in request.topics:
            found = []
            for partition in topic.partitions:
                slot = OffsetSlot(group_id, topic.topic, partition)
                stored = self.offsets.committed(slot)
                if stored is not None and not stored.belongs_to(topic.topic_id):
                    stored = None
                found.append(self._fetched(slot, stored, request.require_stable))
            answer.append((topic.topic, tuple(found)))
        return FetchOffsetsAnswer(topics=tuple(answer))

    def _fetched(self, slot: OffsetSlot, value: CommittedOffset | None, require_stable: bool) -> FetchedOffset:
        if require_stable and self.offsets.is_unstable(slot):
            return FetchedOffset(slot.partition, error=ErrorCode.UNSTABLE_OFFSET_COMMIT)
        if value is None:
            return FetchedOffset(slot.partition)
        return FetchedOffset(slot.partition, value.offset, value.leader_epoch, value.metadata)

    def delete_offsets(self, ticket: Ticket, request: DeleteOffsetsRequest, now: Now) -> None:
        group = self.groups.get(request.group_id)
        if group is None or group.state is GroupState.DEAD:
            raise PeerError(ErrorCode.GROUP_ID_NOT_FOUND)
        if group.state is not GroupState.EMPTY and not group.is_consumer_group:
            raise PeerError(ErrorCode.NON_EMPTY_GROUP)
        errors = tuple(
            ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if group.is_subscribed_to(topic) else ErrorCode.NONE
            for topic, _ in request.partitions
        )
        slots = [
            slot
            for (topic, partition), error in zip(request.partitions, errors, strict=True)
            if error is ErrorCode.NONE
            for slot in (OffsetSlot(request.group_id, topic, partition),)
            if self.offsets.latest(slot) is not None or self.offsets.is_unstable(slot)
        ]
        if not slots:
            self.answer(ticket, DeleteOffsetsAnswer(errors=errors))
            return

        def settled(error: ErrorCode, now: Now) -> None:
            self.answer(ticket, DeleteOffsetsAnswer(error) if error else DeleteOffsetsAnswer(errors=errors))

        self._write_tombstones(slots, (), settled)

    def on_partitions_deleted(self, partitions: Iterable[tuple[str, int]], now: Now) -> None:
        """The topics are gone: nobody can go on from these offsets."""
        slots = self.offsets.on_partitions(set(partitions))
        if slots:
            self._write_tombstones(slots, (), lambda error, now: None)

    def _write_tombstones(self, slots: Sequence[OffsetSlot], groups: Sequence[Group], settled: Settled) -> None:
        """Remove offsets and whole groups in one batch; both come back when the log refuses."""

        def finished(error: ErrorCode, now: Now) -> None:
            for group in groups:
                if error is ErrorCode.NONE:
                    group.take(Step.REMOVED, now.wall_ms)
                else:
                    self.groups.setdefault(group.group_id, group)
            settled(error, now)

        batch = [records.offset_tombstone(slot) for slot in slots]
        batch.extend(records.group_tombstone(group.group_id) for group in groups)
        write_id = self.write(batch, finished)
        for slot in slots:
            self.offsets.put(slot, None, write_id)
        for group in groups:
            del self.groups[group.group_id]

    # --- groups as a whole ----------------------------------------

    def list_groups(self, states: frozenset[str], types: frozenset[str]) -> list[ListedGroup]:
        """`states` and `types` in lower case; an empty filter lets everything through."""
        return [
            listed
            for listed in (group.listed() for group in self.groups.values())
            if (not states or listed.state.lower() in states) and (not types or listed.group_type.lower() in types)
        ]

    def describe(self, group_id: str) -> DescribedGroup:
        """Raises PeerError GROUP_ID_NOT_FOUND."""
        group = self.groups.get(group_id)
        if group is None:
            raise PeerError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
        protocol_name = group.protocol_name if group.state is GroupState.STABLE else None
        return DescribedGroup(
            group_id,
            state=group.state.value,
            protocol_type=group.protocol_type or "",
            protocol_data=protocol_name or "",
            members=tuple(member.described(protocol_name) for member in group.members.values()),
        )

    def delete_groups(self, ticket: Ticket, group_ids: Sequence[str], now: Now) -> None:
        """All groups that can be deleted go in one batch, with all that they committed."""
        results: list[tuple[str, ErrorCode]] = []
        doomed: list[Group] = []
        for group_id in group_ids:
            group = self.groups.get(group_id)
            if group is None or group.state is GroupState.DEAD:
                results.append((group_id, ErrorCode.GROUP_ID_NOT_FOUND))
            elif group.state is not GroupState.EMPTY:
                results.append((group_id, ErrorCode.NON_EMPTY_GROUP))
            else:
                results.append((group_id, ErrorCode.NONE))
                doomed.append(group)
        if not doomed:
            self.answer(ticket, DeleteGroupsAnswer(tuple(results)))
            return

        def settled(error: ErrorCode, now: Now) -> None:
            self.answer(ticket, DeleteGroupsAnswer(tuple((name, error or code) for name, code in results)))

        slots = [slot for group in doomed for slot in self._all_slots(group.group_id)]
        self._write_tombstones(slots, doomed, settled)

    def _all_slots(self, group_id: str) -> list[OffsetSlot]:
        return sorted({slot for slot, _ in self.offsets.slots(group_id)} | self.offsets.open_slots(group_id))

    def _forget_if_bare(self, group_id: str) -> None:
        """A simple group that only existed for a commit which the log refused."""
        group = self.groups.get(group_id)
        if (
            group is not None
            and group.state is GroupState.EMPTY
            and group.protocol_type is None
            and group.generation == 0
            and not group.pending_joins
            and not self.offsets.has_any(group_id)
        ):
            del self.groups[group_id]

    # --- time ----------------------------------------

    def on_timer(self, key: TimerKey, now: Now) -> None:
        match key.kind:
            case TimerKind.SESSION:
                self.membership.on_session_timeout(key.group_id, key.member_id, now)
            case TimerKind.JOIN:
                self.membership.on_join_timeout(key.group_id, now)
            case TimerKind.SYNC:
                self.membership.on_sync_timeout(key.group_id, now)
            case TimerKind.EXPIRY:
                self.expire(now)
                self.arm_expiry(now)

    def arm_expiry(self, now: Now) -> None:
        interval_ms = self.settings.offsets_retention_check_interval_ms
        self.arm(TimerKind.EXPIRY, "", "", now.monotonic_ms + interval_ms)

    def expire(self, now: Now) -> None:
        """Remove offsets past their retention, and empty groups that have none left (KIP-211)."""
        slots: list[OffsetSlot] = []
        doomed: list[Group] = []
        for group in self.groups.values():
            if self.offsets.has_any(group.group_id):
                expired, keeps_some = self._expired_slots(group, now)
                slots.extend(expired)
                if keeps_some:
                    continue
            if group.state is GroupState.EMPTY and not self.offsets.has_open_transaction(group.group_id):
                doomed.append(group)
        if slots or doomed:
            self._write_tombstones(slots, doomed, lambda error, now: None)

    def _expired_slots(self, group: Group, now: Now) -> tuple[list[OffsetSlot], bool]:
        """The slots to remove, and whether any stays."""
        since_empty_ms = None
        if group.protocol_type is not None:
            if group.state is GroupState.EMPTY:
                since_empty_ms = group.state_since_ms if group.state_since_ms >= 0 else None
            elif not (
                group.state is GroupState.STABLE and group.is_consumer_group and group.subscribed_topics is not None
            ):
                return [], True
        expired, keeps_some = [], False
        for slot, value in self.offsets.slots(group.group_id):
            if (
                not group.is_subscribed_to(slot.topic)
                and not self.offsets.is_unstable(slot)
                and is_expired(
                    value,
                    base_timestamp_ms=value.commit_timestamp_ms if since_empty_ms is None else since_empty_ms,
                    now_ms=now.wall_ms,
                    retention_ms=self.settings.offsets_retention_ms,
                )
            ):
                expired.append(slot)
            else:
                keeps_some = True
        return expired, keeps_some

    # --- replay ----------------------------------------

    def replay(self, key: bytes | None, value: bytes | None, now: Now, transaction_of: int | None = None) -> None:
        """Apply one record of the log; `transaction_of` is the producer id of a transactional batch.

        Raises InternalError on a record that can not be read: the state behind it would be wrong.
        """
        match records.decode(key, value):
            case records.OffsetCommitted(slot, committed):
                if committed is None:
                    self.offsets.put(slot, None)
                    return
                if slot.group_id not in self.groups and slot.group_id not in self.foreign_groups:
                    self.groups[slot.group_id] = Group(slot.group_id, now.wall_ms)
                if transaction_of is None:
                    self.offsets.put(slot, committed)
                else:
                    self.offsets.put_open(transaction_of, slot, committed)
            case records.GroupStored(group_id, stored):
                if stored is None:
                    self.groups.pop(group_id, None)
                else:
                    self.groups[group_id] = self._restored(group_id, stored)
            case records.ForeignGroup(group_id, exists):
                self.skipped_record_count += 1
                if exists:
                    self.foreign_groups.add(group_id)
                    self.groups.pop(group_id, None)
                else:
                    self.foreign_groups.discard(group_id)
            case records.Unserved():
                self.skipped_record_count += 1

    def replay_marker(self, producer_id: int, *, committed: bool) -> None:
        """Apply a transaction's end."""
        self.offsets.end_transaction(producer_id, committed=committed)

    @staticmethod
    def _restored(group_id: str, stored: records.GroupMetadataValue) -> Group:
        group = Group(
            group_id,
            stored.current_state_timestamp,
            state=GroupState.STABLE if stored.members else GroupState.EMPTY,
            previous_state=GroupState.EMPTY,
            generation=stored.generation,
            protocol_type=stored.protocol_type or None,
            protocol_name=stored.protocol,
        )
        for each in stored.members:
            if stored.protocol is None:
                raise InternalError(f"group {group_id} was stored with members but without a protocol")
            group.add(
                Member(
                    each.member_id,
                    each.group_instance_id,
                    each.client_id,
                    each.client_host,
                    each.session_timeout if each.rebalance_timeout == -1 else each.rebalance_timeout,
                    each.session_timeout,
                    ((stored.protocol, each.subscription),),
                    each.assignment,
                )
            )
        group.leader_id = stored.leader
        group.subscribed_topics = group.read_subscriptions()
        return group

    def resume(self, now: Now) -> None:
        """Replay is done: from here on time counts."""
        for group in self.groups.values():
            self.membership.resume(group, now)
        self.arm_expiry(now)

    def give_up(self, now: Now) -> None:
        """Another broker coordinates this partition: everybody who waits is sent there; late writes change nothing."""
        for group in self.groups.values():
            self.membership.give_up(group, now)
        writes, self._writes = self._writes, {}
        for write in writes.values():
            for settled in write.settled:
                settled(ErrorCode.NOT_COORDINATOR, now)
            for ticket, _ in write.stable_fetches:
                self.answer(ticket, FetchOffsetsAnswer(ErrorCode.NOT_COORDINATOR))
        self.groups.clear()
        self._timers.disarm_partition(self.partition)
