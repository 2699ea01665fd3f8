"""One partition of `__consumer_offsets`: its groups, their offsets, and the writes that are under way.

Owns the order of writes and answers, timers, and groups as a whole (lists, deletion). Members are `membership`'s,
offsets `offset_requests`'s. Never appends by itself: it asks for it with `messages.Append` and is told how it went.

Invariants: a change that a client was told of is in the log; a write that the log refused leaves no trace in the
offsets; an answer that depends on a write goes out when that write is settled, never before. Who has waited too long
is told to try again (`late`), and the write stays under way: whether it is committed is the log's to say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Final, TypeAlias
from uuid import UUID

from fenceline.errors import ErrorCode, PeerError
from fenceline.groups import records
from fenceline.groups.clock import Now
from fenceline.groups.consumer_groups import ConsumerGroups
from fenceline.groups.consumer_model import ConsumerGroup
from fenceline.groups.consumer_topics import TopicHashes
from fenceline.groups.expiry import expired, expired_of_consumers
from fenceline.groups.membership import Membership
from fenceline.groups.messages import (
    Answer,
    Append,
    DeleteGroupsAnswer,
    DescribedGroup,
    Duty,
    KeyValue,
    ListedGroup,
    Outcome,
    Ticket,
)
from fenceline.groups.model import Group
from fenceline.groups.offset_requests import OffsetRequests
from fenceline.groups.offsets import OffsetSlot, OffsetStore
from fenceline.groups.rebalance import Rebalance
from fenceline.groups.replay import Replay, replay_record
from fenceline.groups.settings import GroupSettings
from fenceline.groups.states import GroupState, Step
from fenceline.groups.timers import TimerKey, TimerKind, Timers
from fenceline.rng import Rng

if TYPE_CHECKING:
    from fenceline.metadata.image import MetadataImage

Settled: TypeAlias = Callable[[ErrorCode, Now], None]
"""Called once when a write is committed (NONE) or refused; for who waits for an answer also when it takes too long."""
Quiet: TypeAlias = Callable[[ErrorCode], None]
"""Called once when no write is under way any more, or with the error when that can not be waited for."""

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

_MOST_TOMBSTONES: Final = 5_000
"""In one batch, which the log would refuse were it larger than the topic's max.message.bytes."""
_OFFSETS_A_LOOK: Final = 5_000
_LOOK_AGAIN_MS: Final = 20
"""Retention is looked at for so many offsets, and then others have their turn for so long."""


def _nobody(error: ErrorCode, now: Now) -> None:
    """Waits for a write."""


@dataclass(slots=True)
class _Write:
    """What waits for one append."""

    settled: list[Settled]
    """Who waits for an answer."""
    decided: Settled | None = None
    """What has to follow from the log's decision, however long that takes."""
    quiet: list[Quiet] = field(default_factory=list)


class Shard:
    def __init__(
        self,
        partition: int,
        epoch: int,
        settings: GroupSettings,
        timers: Timers,
        rng: Rng,
        take_write_id: Callable[[], int],
        epoch_end: Callable[[str, int, int], int],
        image: Callable[[], MetadataImage],
        hashes: TopicHashes,
    ) -> None:
        self.partition = partition
        self.epoch = epoch
        self.settings = settings
        self.groups: dict[str, Group] = {}
        self.offsets = OffsetStore()
        self.duties: list[Duty] = []
        self.write_count = 0
        self.skipped_record_count = 0
        """Records of kinds that this coordinator does not serve (share and streams groups)."""
        self.foreign_groups: set[str] = set()
        """Share and streams groups in the log: they exist, but not for consumers."""
        self.rebalance: Final = Rebalance(self)
        self.membership: Final = Membership(self, self.rebalance)
        self.offset_requests: Final = OffsetRequests(self)
        self.consumers: Final = ConsumerGroups(self, image, hashes)
        self._timers = timers
        self._rng = rng
        self._take_write_id = take_write_id
        self._epoch_end = epoch_end
        self._writes: dict[int, _Write] = {}
        """Under way, oldest first."""
        self._deleted_meanwhile: list[tuple[str, int]] = []
        self._to_look_at: list[str] = []
        """Groups whose retention is still to be looked at in this round, the next one last."""

    # --- duties, timers, ids ----------------------------------------

    def answer(self, ticket: Ticket, outcome: Outcome) -> None:
        self.duties.append(Answer(ticket, outcome))

    def arm(self, kind: TimerKind, group_id: str, member_id: str, deadline_ms: int) -> None:
        self._timers.arm(TimerKey(self.partition, kind, group_id, member_id), deadline_ms)

    def disarm(self, kind: TimerKind, group_id: str, member_id: str = "") -> None:
        self._timers.disarm(TimerKey(self.partition, kind, group_id, member_id))

    def is_armed(self, kind: TimerKind, group_id: str, member_id: str = "") -> bool:
        return self._timers.deadline_ms(TimerKey(self.partition, kind, group_id, member_id)) is not None

    def random_bits(self, count: int) -> int:
        return self._rng.getrandbits(count)

    def has_group(self, group_id: str) -> bool:
        """Of any kind."""
        return group_id in self.groups or group_id in self.consumers.groups or group_id in self.foreign_groups

    def new_member_id(self, prefix: str) -> str:
        return f"{prefix}-{UUID(int=self._rng.getrandbits(128), version=4)}"

    def epoch_end(self, slot: OffsetSlot, leader_epoch: int) -> int:
        """Where the log of the slot's partition has this epoch end now; -1 where that is not known here."""
        return self._epoch_end(slot.topic, slot.partition, leader_epoch)

    def create_group(self, group_id: str, now: Now) -> Group:
        if group_id in self.foreign_groups:
            raise PeerError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        group = self.groups[group_id] = Group(group_id, now.wall_ms)
        return group

    # --- writes ----------------------------------------

    def write(self, batch: Sequence[KeyValue], settled: Settled, decided: Settled | None = None) -> int:
        """Ask for one append; `settled` answers whoever waits for it, `decided` hears the log's word. The write id."""
        write_id = self._take_write_id()
        self._writes[write_id] = _Write([settled], decided)
        self.write_count += 1
        self.duties.append(Append(self.partition, self.epoch, write_id, tuple(batch)))
        return write_id

    def write_group(
        self,
        group: Group,
        now: Now,
        settled: Settled = _nobody,
        assignments: Mapping[str, bytes] | None = None,
    ) -> None:
        """Store a group. `assignments` are those to store when they are not the members' own yet."""
        self.write((records.group_record(group, assignments),), settled)

    def write_new_group(self, group: Group) -> None:
        """Store that the group exists; nobody waits for it."""
        self.write((records.new_group_record(group),), _nobody)

    def answer_with_last_write(self, ticket: Ticket, outcome: Outcome, refusal: Callable[[ErrorCode], Outcome]) -> None:
        """Answer when the newest write is settled; with `refusal` when the log refuses it."""
        self._newest_write().settled.append(
            lambda error, now: self.answer(ticket, refusal(error) if error else outcome)
        )

    def appended(self, write_id: int, now: Now) -> None:
        """The write is committed. A write that this shard does not know is an old one: ignored."""
        self._settle(write_id, ErrorCode.NONE, now)

    def append_failed(self, write_id: int, code: ErrorCode, now: Now) -> None:
        """The log refused the write with this code."""
        self._settle(write_id, _ANSWER_TO_REFUSAL.get(code, code), now)

    def late(self, write_id: int, now: Now) -> None:
        """The write is in the log and not committed for too long: who waits for it may ask again."""
        write = self._writes.get(write_id)
        if write is None:
            return
        error = _ANSWER_TO_REFUSAL[ErrorCode.REQUEST_TIMED_OUT]
        settled, write.settled = write.settled, []
        quiet, write.quiet = write.quiet, []
        for each in settled:
            each(error, now)
        for waiter in quiet:
            waiter(error)

    def _newest_write(self) -> _Write:
        return self._writes[next(reversed(self._writes))]

    def _settle(self, write_id: int, error: ErrorCode, now: Now) -> None:
        write = self._writes.pop(write_id, None)
        if write is None:
            return
        if error is ErrorCode.NONE:
            self.offsets.settle(write_id)
        else:
            self.offsets.undo(write_id)
        if write.decided is not None:
            write.decided(error, now)
        for settled in write.settled:
            settled(error, now)
        self._settle_quiet(write)

    def when_all_is_settled(self, quiet: Quiet) -> bool:
        """Call `quiet` when the writes under way are settled; False, and nothing is called, when there are none."""
        if not self._writes:
            return False
        self._newest_write().quiet.append(quiet)
        return True

    def _settle_quiet(self, write: _Write) -> None:
        if self._writes and write.quiet:
            # Writes settle in the order of the log; should one before still be open, its end is what to wait for.
            self._newest_write().quiet.extend(write.quiet)
            return
        for quiet in write.quiet:
            quiet(ErrorCode.NONE)

    # --- removal ----------------------------------------

    def write_tombstones(self, slots: Sequence[OffsetSlot], groups: Sequence[Group], settled: Settled) -> None:
        """Remove offsets, and then whole groups, in one batch where it is not too many; `settled` hears of the last
        one. What the log refuses comes back."""

        def decided(error: ErrorCode, now: Now) -> None:
            for group in groups:
                if error is ErrorCode.NONE:
                    group.take(Step.REMOVED, now.wall_ms)
                elif not self.has_group(group.group_id):
                    self.groups[group.group_id] = group

        while len(slots) > _MOST_TOMBSTONES:
            some, slots = slots[:_MOST_TOMBSTONES], slots[_MOST_TOMBSTONES:]
            self._drop_slots(some, self.write([records.offset_tombstone(slot) for slot in some], _nobody))
        batch = [records.offset_tombstone(slot) for slot in slots]
        batch.extend(records.group_tombstone(group.group_id) for group in groups)
        self._drop_slots(slots, self.write(batch, settled, decided))
        for group in groups:
            del self.groups[group.group_id]

    def _drop_slots(self, slots: Sequence[OffsetSlot], write_id: int) -> None:
        for slot in slots:
            self.offsets.put(slot, None, write_id)

    # --- groups as a whole ----------------------------------------

    def list_groups(self, states: frozenset[str], types: frozenset[str]) -> list[ListedGroup]:
        """`states` and `types` in lower case; an empty filter lets everything through."""
        return [
            listed
            for listed in chain((group.listed() for group in self.groups.values()), self.consumers.listed())
            if (not states or listed.state.lower() in states) and (not types or listed.group_type.lower() in types)
        ]

    def describe(self, group_id: str) -> DescribedGroup:
        """Raises PeerError GROUP_ID_NOT_FOUND."""
        group = self.groups.get(group_id)
        if group is None:
            why = "is not a classic group" if self.has_group(group_id) else "not found"
            raise PeerError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} {why}.")
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
        going: list[ConsumerGroup] = []
        for group_id in group_ids:
            group = self.groups.get(group_id)
            consumer_group = self.consumers.groups.get(group_id)
            if consumer_group is not None and not consumer_group.is_empty:
                results.append((group_id, ErrorCode.NON_EMPTY_GROUP))
            elif consumer_group is not None:
                results.append((group_id, ErrorCode.NONE))
                going.append(consumer_group)
            elif group is None or group.state is GroupState.DEAD:
                results.append((group_id, ErrorCode.GROUP_ID_NOT_FOUND))
            elif group.state is not GroupState.EMPTY:
                results.append((group_id, ErrorCode.NON_EMPTY_GROUP))
            else:
                results.append((group_id, ErrorCode.NONE))
                doomed.append(group)
        if not doomed and not going:
            self.answer(ticket, DeleteGroupsAnswer(tuple(results)))
            return

        def settled(error: ErrorCode, now: Now) -> None:
            self.answer(ticket, DeleteGroupsAnswer(tuple((name, error or code) for name, code in results)))

        names = [*(each.group_id for each in doomed), *(each.group_id for each in going)]
        slots = [slot for name in names for slot in self._all_slots(name)]
        if not going:
            self.write_tombstones(slots, doomed, settled)
            return
        if slots or doomed:
            self.write_tombstones(slots, doomed, _nobody)
        for consumer_group in going:
            self.consumers.remove(consumer_group, now)
        self.consumers.answer_settled(ticket, DeleteGroupsAnswer(tuple(results)), names)

    def _all_slots(self, group_id: str) -> list[OffsetSlot]:
        return sorted({slot for slot, _ in self.offsets.slots(group_id)} | self.offsets.open_slots(group_id))

    # --- time ----------------------------------------

    def on_timer(self, key: TimerKey, now: Now) -> None:
        if key.group_id in self.consumers.groups:
            self.consumers.on_timer(key, now)
            return
        match key.kind:
            case TimerKind.SESSION:
                self.membership.on_session_timeout(key.group_id, key.member_id, now)
            case TimerKind.JOIN:
                self.rebalance.on_join_timeout(key.group_id, now)
            case TimerKind.SYNC:
                self.rebalance.on_sync_timeout(key.group_id, now)
            case TimerKind.EXPIRY:
                self._expire_some(now)

    def arm_expiry(self, now: Now) -> None:
        interval_ms = self.settings.offsets_retention_check_interval_ms
        self.arm(TimerKind.EXPIRY, "", "", now.monotonic_ms + interval_ms)

    def _expire_some(self, now: Now) -> None:
        """Remove what is past its retention (KIP-211), of so many groups that nobody has to wait for it."""
        if not self._to_look_at:
            self._to_look_at = [*self.consumers.groups, *reversed(self.groups)]
        some: list[Group] = []
        consumers: list[ConsumerGroup] = []
        left = _OFFSETS_A_LOOK
        while self._to_look_at and left > 0:
            group_id = self._to_look_at.pop()
            group, consumer_group = self.groups.get(group_id), self.consumers.groups.get(group_id)
            if group is not None:
                some.append(group)
            elif consumer_group is not None:
                consumers.append(consumer_group)
            left -= 1 + self.offsets.count(group_id)
        slots, doomed = expired(some, self.offsets, self.settings.offsets_retention_ms, now)
        consumer_slots, going = expired_of_consumers(consumers, self.offsets, self.settings.offsets_retention_ms, now)
        slots.extend(consumer_slots)
        if slots or doomed:
            self.write_tombstones(slots, doomed, _nobody)
        for consumer_group in going:
            self.consumers.remove(consumer_group, now)
        if self._to_look_at:
            self.arm(TimerKind.EXPIRY, "", "", now.monotonic_ms + _LOOK_AGAIN_MS)
        else:
            self.arm_expiry(now)

    # --- replay ----------------------------------------

    def replaying(self) -> Replay:
        """What applies the log, batch by batch."""
        return Replay(self)

    def replay(self, key: bytes | None, value: bytes | None, now: Now, transaction_of: int | None = None) -> None:
        """Apply one record of the log (`replay.replay_record`). Raises InternalError on one that can not be read."""
        replay_record(self, key, value, now, transaction_of)

    def deleted_meanwhile(self, partitions: Sequence[tuple[str, int]]) -> None:
        """Topic partitions went while this is loaded: their offsets go when it is."""
        self._deleted_meanwhile.extend(partitions)

    def replay_marker(self, producer_id: int, *, committed: bool) -> None:
        """Apply a transaction's end."""
        self.offsets.end_transaction(producer_id, committed=committed)

    def take_deleted_meanwhile(self) -> list[tuple[str, int]]:
        deleted, self._deleted_meanwhile = self._deleted_meanwhile, []
        return deleted

    def resume(self, now: Now) -> None:
        """Replay is done: from here on time counts."""
        for group in self.groups.values():
            self.membership.resume(group, now)
        self.consumers.resume(now)
        self.arm_expiry(now)
        if deleted := self.take_deleted_meanwhile():
            self.offset_requests.on_partitions_deleted(deleted, now)

    def give_up(self, now: Now) -> None:
        """Another broker coordinates this partition: everybody who waits is sent there; late writes change nothing."""
        for group in self.groups.values():
            self.membership.give_up(group, now)
        writes, self._writes = self._writes, {}
        for write in writes.values():
            for settled in write.settled:
                settled(ErrorCode.NOT_COORDINATOR, now)
            for quiet in write.quiet:
                quiet(ErrorCode.NOT_COORDINATOR)
        self.groups.clear()
        self.consumers.give_up()
        self._timers.disarm_partition(self.partition)
