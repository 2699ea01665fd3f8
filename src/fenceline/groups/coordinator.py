"""The entry point of the group coordinator: requests, timers and results of appends for the groups of this broker.

Owns which partitions of `__consumer_offsets` are coordinated here and in what phase (loading, active, failed), the one
heap of deadlines, and the conversion of `PeerError` into each API's response. Sans-I/O: every call returns duties.

| phase of the partition | response to a request                                                  |
|------------------------|------------------------------------------------------------------------|
| not ours, failed       | NOT_COORDINATOR (16)                                                   |
| loading                | COORDINATOR_LOAD_IN_PROGRESS (14); a heartbeat succeeds (0)            |
| active                 | the result of `Shard`                                                  |
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final
from uuid import UUID

from fenceline.coordination import DUE_AT_ONCE, partition_for
from fenceline.deadlines import DeadlinesByPartition, PartitionDeadlines
from fenceline.errors import ErrorCode, PeerError
from fenceline.groups import messages
from fenceline.groups.consumer.checks import check_request
from fenceline.groups.consumer.model import DescribedConsumerGroup
from fenceline.groups.consumer.topics import TopicHashes
from fenceline.groups.deleted_topics import LOOKS
from fenceline.groups.messages import ConsumerHeartbeatRequest, ConsumerHeartbeatResponse, Duty, GroupAnswer, Now
from fenceline.groups.names import can_be_stored
from fenceline.groups.offsets.offsets import OffsetSlot, StoredOffset
from fenceline.groups.removals import RetentionRounds
from fenceline.groups.settings import DEFAULT_PARTITION_COUNT, GroupSettings
from fenceline.groups.shard import Shard
from fenceline.groups.timers import TimerKey, TimerKind
from fenceline.metadata.image import EMPTY_IMAGE, MetadataImage
from fenceline.rng import Rng

_ALL_PARTITIONS: Final = -1
_DELETED_TOPICS: Final = TimerKey(TimerKind.DELETED_TOPICS)
"""Of all partitions, so that no two of them take their turns at once."""
_PAUSE_MS: Final = 5
"""Between two looks for offsets of deleted topics, so that others can run."""


class GroupCoordinator:
    def __init__(
        self,
        settings: GroupSettings,
        rng: Rng,
        partition_count: int = DEFAULT_PARTITION_COUNT,
        epoch_end: Callable[[str, int, int], int] = lambda *_: -1,
        image: Callable[[], MetadataImage] = lambda: EMPTY_IMAGE,
    ) -> None:
        """`epoch_end`: the end offset of a leader epoch in a topic partition, -1 if unknown. `image`: the newest
        metadata, for groups with server-side assignment."""
        self.settings = settings
        self.partition_count = partition_count
        """Of `__consumer_offsets`; fixed once a group exists."""
        self._rng = rng
        self._epoch_end = epoch_end
        self._image = image
        self._hashes = TopicHashes()
        self._retention_rounds = RetentionRounds()
        self._timers: DeadlinesByPartition[TimerKey] = DeadlinesByPartition()
        self._own_timers: PartitionDeadlines[TimerKey] = PartitionDeadlines(_ALL_PARTITIONS)
        self._timers.attach(_ALL_PARTITIONS, self._own_timers)
        self._active: dict[int, Shard] = {}
        self._loading: dict[int, Shard] = {}
        self._last_write_id = 0
        self._new_topics_at = -1
        self._next_look_ms = 0
        """Monotonic time of the earliest next look for offsets of deleted topics."""

    # --- which partitions ----------------------------------------

    def partition_of(self, group_id: str) -> int:
        return partition_for(group_id, self.partition_count)

    @property
    def active_partitions(self) -> frozenset[int]:
        return frozenset(self._active)

    @property
    def loading_partitions(self) -> frozenset[int]:
        return frozenset(self._loading)

    def begin_load(self, partition: int, epoch: int, now: Now) -> tuple[Shard | None, list[Duty]]:
        """This broker leads the partition from `epoch` on. Returns the shard to replay into; None for an old epoch."""
        for known in (self._active.get(partition), self._loading.get(partition)):
            if known is not None and known.epoch >= epoch:
                return None, []
        duties = self.resign(partition, now)
        return self._new_shard(partition, epoch), duties

    def restart_load(self, shard: Shard) -> Shard:
        """The log could not be read to its end: restart with an empty shard. `is_current` holds."""
        new_shard = self._new_shard(shard.partition, shard.epoch)
        new_shard.on_deleted_while_loading(shard.pop_deleted_while_loading())
        return new_shard

    def _new_shard(self, partition: int, epoch: int) -> Shard:
        shard = self._loading[partition] = Shard(
            partition,
            epoch,
            self.settings,
            self._rng,
            self._next_write_id,
            self._epoch_end,
            self._image,
            self._hashes,
            self._retention_rounds,
        )
        return shard

    def is_current(self, shard: Shard) -> bool:
        """Whether this shard's load is still current; False once it was superseded or resigned."""
        return self._loading.get(shard.partition) is shard

    def resume_some(self, shard: Shard, now: Now) -> bool:
        """Replay is complete: prepare some of what is loaded for `finish_load`, which otherwise prepares all of it.
        Whether there may be more. `is_current` holds."""
        return shard.resume_some(now)

    def finish_load(self, shard: Shard, now: Now) -> list[Duty]:
        """Replay is complete: requests are served from now on."""
        if not self.is_current(shard):
            return []
        del self._loading[shard.partition]
        self._active[shard.partition] = shard
        shard.subscriptions.on_topics_created(self._new_topics_at)
        shard.resume(now)
        self._timers.attach(shard.partition, shard.timers.deadlines)
        return [*shard.pop_duties(), *self._look_for_deleted(now)]

    def fail_load(self, shard: Shard) -> None:
        """The partition cannot be read: it has no coordinator until it gets a new leader epoch."""
        if self.is_current(shard):
            del self._loading[shard.partition]

    def resign(self, partition: int, now: Now) -> list[Duty]:
        """Another broker leads the partition. All waiting requests get an error."""
        self._loading.pop(partition, None)
        shard = self._active.pop(partition, None)
        if shard is None:
            return []
        self._timers.detach(partition)
        shard.unload(now)
        return shard.pop_duties()

    # --- requests that are answered by a duty ----------------------------------------

    def join(self, ticket: messages.Ticket, request: messages.JoinRequest, now: Now) -> list[Duty]:
        def rejected(code: ErrorCode) -> messages.JoinResponse:
            return messages.JoinResponse(code, request.member_id)

        if not request.group_id:
            return [GroupAnswer(ticket, rejected(ErrorCode.INVALID_GROUP_ID))]
        if (
            not self.settings.min_session_timeout_ms
            <= request.session_timeout_ms
            <= self.settings.max_session_timeout_ms
        ):
            return [GroupAnswer(ticket, rejected(ErrorCode.INVALID_SESSION_TIMEOUT))]
        if not _names_can_be_stored(request):
            return [GroupAnswer(ticket, messages.JoinResponse(ErrorCode.INVALID_REQUEST))]
        try:
            shard = self._shard(request.group_id)
        except PeerError as error:
            return [GroupAnswer(ticket, messages.JoinResponse(error.code))]
        try:
            shard.join(ticket, request, now)
        except PeerError as error:
            shard.writes.answer(ticket, rejected(error.code))
        return shard.pop_duties()

    def sync(self, ticket: messages.Ticket, request: messages.SyncRequest, now: Now) -> list[Duty]:
        try:
            shard = self._named_shard(request.group_id)
        except PeerError as error:
            return [GroupAnswer(ticket, messages.SyncResponse(error.code))]
        try:
            shard.sync(ticket, request, now)
        except PeerError as error:
            shard.writes.answer(ticket, messages.SyncResponse(error.code))
        return shard.pop_duties()

    def heartbeat(self, ticket: messages.Ticket, request: messages.ClassicHeartbeat, now: Now) -> list[Duty]:
        try:
            shard = self._named_shard(request.group_id)
            return [GroupAnswer(ticket, shard.heartbeat(request, now))]
        except PeerError as error:
            # While the group is loading its members are unknown: let the member continue.
            calm = error.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            return [GroupAnswer(ticket, messages.HeartbeatResponse(ErrorCode.NONE if calm else error.code))]

    def leave(self, ticket: messages.Ticket, request: messages.LeaveRequest, now: Now) -> list[Duty]:
        try:
            shard = self._named_shard(request.group_id)
        except PeerError as error:
            return [GroupAnswer(ticket, messages.LeaveResponse(error.code))]
        try:
            writes_before = shard.writes.count
            outcome = shard.leave(request, now)
            if shard.writes.count == writes_before:
                shard.writes.answer(ticket, outcome)
            else:
                # The last member left: the empty generation is stored first.
                shard.writes.respond_after_newest(ticket, outcome, messages.LeaveResponse)
        except PeerError as error:
            shard.writes.answer(ticket, messages.LeaveResponse(error.code))
        return shard.pop_duties()

    def consumer_heartbeat(self, ticket: messages.Ticket, request: ConsumerHeartbeatRequest, now: Now) -> list[Duty]:
        """Of a member of the consumer protocol (KIP-848)."""
        try:
            check_request(request, self.settings.consumer)
            shard = self._named_shard(request.group_id)
        except PeerError as error:
            return [GroupAnswer(ticket, ConsumerHeartbeatResponse(error.code, error.message or None))]
        try:
            shard.consumer_membership.heartbeat(ticket, request, now)
        except PeerError as error:
            shard.writes.answer(ticket, ConsumerHeartbeatResponse(error.code, error.message or None))
        return shard.pop_duties()

    def commit(self, ticket: messages.Ticket, request: messages.CommitRequest, now: Now) -> list[Duty]:
        def rejected(code: ErrorCode) -> GroupAnswer:
            return GroupAnswer(ticket, messages.CommitResponse((code,) * len(request.offsets)))

        try:
            shard = self._shard(request.group_id)
        except PeerError as error:
            return [rejected(error.code)]
        try:
            shard.offset_requests.commit(ticket, request, now)
        except PeerError as error:
            return [*shard.pop_duties(), rejected(error.code)]
        return shard.pop_duties()

    def commit_in_transaction(
        self, ticket: messages.Ticket, request: messages.TransactionalCommit, now: Now
    ) -> list[Duty]:
        """The offsets of a group in a producer's transaction (KIP-447)."""

        def rejected(code: ErrorCode) -> GroupAnswer:
            return GroupAnswer(ticket, messages.CommitResponse((code,) * len(request.offsets)))

        try:
            shard = self._named_shard(request.group_id)
        except PeerError as error:
            return [rejected(error.code)]
        try:
            shard.offset_requests.commit_in_transaction(ticket, request, now)
        except PeerError as error:
            return [*shard.pop_duties(), rejected(error.code)]
        return shard.pop_duties()

    def end_transaction(self, ticket: messages.Ticket, end: messages.EndOfTransaction) -> list[Duty]:
        """The end of a producer's transaction, for all groups of one partition."""
        shard = self._active.get(end.partition)
        if shard is None:
            is_loading = end.partition in self._loading
            code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if is_loading else ErrorCode.NOT_COORDINATOR
            return [GroupAnswer(ticket, messages.TransactionEndedInGroup(code))]
        shard.offset_requests.end_transaction(ticket, end)
        return shard.pop_duties()

    def leader_epoch_of(self, group_id: str) -> int:
        """The epoch in which the group is coordinated here. Raises PeerError."""
        return self._named_shard(group_id).epoch

    def active_epoch(self, partition: int) -> int | None:
        """The epoch in which the partition's groups are coordinated here; None if they are not, or not yet."""
        shard = self._active.get(partition)
        return shard.epoch if shard is not None else None

    def fetch_offsets(self, ticket: messages.Ticket, request: messages.FetchOffsetsRequest) -> list[Duty]:
        try:
            shard = self._shard(request.group_id)
        except PeerError as error:
            return [GroupAnswer(ticket, messages.FetchOffsetsResponse(error.code))]
        try:
            shard.offset_requests.fetch(ticket, request)
        except PeerError as error:
            shard.writes.answer(ticket, messages.FetchOffsetsResponse(error.code))
        return shard.pop_duties()

    def delete_offsets(self, ticket: messages.Ticket, request: messages.DeleteOffsetsRequest, now: Now) -> list[Duty]:
        try:
            shard = self._named_shard(request.group_id)
            shard.removals.delete_offsets(ticket, request, now)
        except PeerError as error:
            return [GroupAnswer(ticket, messages.DeleteOffsetsResponse(error.code))]
        return shard.pop_duties()

    def delete_groups(self, ticket: messages.Ticket, group_ids: Sequence[str], now: Now) -> list[Duty]:
        """All of them must belong to one partition: see `by_partition`."""
        try:
            shard = self._shard(group_ids[0])
        except PeerError as error:
            return [GroupAnswer(ticket, messages.DeleteGroupsResponse(tuple((name, error.code) for name in group_ids)))]
        shard.removals.delete_groups(ticket, group_ids, now)
        return shard.pop_duties()

    def by_partition(self, group_ids: Iterable[str]) -> Mapping[int, list[str]]:
        """The distinct groups, by the partition that coordinates them."""
        found: dict[int, list[str]] = {}
        for group_id in dict.fromkeys(group_ids):
            found.setdefault(self.partition_of(group_id), []).append(group_id)
        return found

    # --- requests that are answered at once ----------------------------------------

    def list_groups(self, states: frozenset[str], types: frozenset[str]) -> list[messages.ListedGroup]:
        """Every group coordinated here. Raises PeerError while any of its partitions is loading."""
        if self._loading:
            raise PeerError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return [listed for shard in self._active.values() for listed in shard.list_groups(states, types)]

    def committed(self, topics: Collection[str] | None = None) -> Iterator[list[tuple[OffsetSlot, StoredOffset]]]:
        """Every offset stored for groups coordinated here, of these topics if given. Yields group by group, so that
        others can run in between. Concurrent changes may or may not be included."""
        for partition in list(self._active):
            shard = self._active.get(partition)
            for group_id in shard.state.offsets.group_ids if shard is not None else ():
                if self._active.get(partition) is not shard:
                    break
                assert shard is not None, "the group has offsets, so it has a slot"
                found = list(shard.state.offsets.slots(group_id, topics))
                if found:
                    yield found

    def committed_topics(self) -> set[str]:
        """Topics for which a group coordinated here has an offset."""
        return {topic for shard in self._active.values() for topic in shard.state.offsets.topics}

    def describe(self, group_id: str) -> messages.DescribedGroup:
        """Raises PeerError: not coordinated here, loading, or GROUP_ID_NOT_FOUND."""
        return self._shard(group_id).describe(group_id)

    def describe_consumer_group(self, group_id: str) -> DescribedConsumerGroup:
        """Raises PeerError: not coordinated here, loading, or GROUP_ID_NOT_FOUND."""
        return self._shard(group_id).describe_consumer_group(group_id)

    # --- the log, the metadata, time ----------------------------------------

    def on_topics_created(self, version: int) -> None:
        """The metadata of this version has new topics that regular expressions may match."""
        self._new_topics_at = version
        for shard in self._active.values():
            shard.subscriptions.on_topics_created(version)

    def appended(self, partition: int, write_id: int, now: Now) -> list[Duty]:
        return self._complete(partition, lambda shard: shard.writes.committed(write_id, now))

    def append_failed(self, partition: int, write_id: int, code: ErrorCode, now: Now) -> list[Duty]:
        return self._complete(partition, lambda shard: shard.writes.rejected(write_id, code, now))

    def append_is_late(self, partition: int, write_id: int, now: Now) -> list[Duty]:
        """It is not known yet whether the write will be committed: waiting requests get an error, the write stays
        pending."""
        return self._complete(partition, lambda shard: shard.writes.late(write_id, now))

    def on_topics_deleted(self, topics: Sequence[tuple[str, UUID]], now: Now) -> list[Duty]:
        """Topics, by name and id, were deleted: delete their committed offsets, too. If there are many, only some at
        once, and the others in `on_time`; none of them is returned from now on."""
        for shard in self._loading.values():
            shard.on_deleted_while_loading(topics)
        for shard in self._active.values():
            shard.deleted_topics.deleted(topics)
        return self._look_for_deleted(now)

    def next_deadline_ms(self) -> int | None:
        """Monotonic time of the next deadline for `on_time`."""
        return self._timers.next_deadline_ms()

    def on_time(self, now: Now) -> list[Duty]:
        """Run some of what is due; `next_deadline_ms` is still due if there is more."""
        duties: list[Duty] = []
        for partition, key in self._timers.pop_some(now.monotonic_ms, DUE_AT_ONCE):
            if partition == _ALL_PARTITIONS:
                duties.extend(self._look_for_deleted(now))
            else:
                shard = self._active[partition]
                shard.on_timer(key, now)
                duties.extend(shard.pop_duties())
        return duties

    def check(self) -> None:
        """Assert the invariants of all groups and offsets coordinated here: for tests and the simulation."""
        for shard in self._active.values():
            shard.check()

    # --- small parts ----------------------------------------

    def _look_for_deleted(self, now: Now) -> list[Duty]:
        """Delete some offsets of deleted topics, unless that was done just now."""
        duties: list[Duty] = []
        if now.monotonic_ms >= self._next_look_ms:
            left = LOOKS
            for shard in self._active.values():
                left = shard.deleted_topics.look(left, now)
                duties.extend(shard.pop_duties())
                if left <= 0:
                    break
            if left < LOOKS:
                self._next_look_ms = now.monotonic_ms + _PAUSE_MS
        self._arm_look()
        return duties

    def _arm_look(self) -> None:
        due = [at_ms for each in self._active.values() if (at_ms := each.deleted_topics.due_ms()) is not None]
        if due:
            self._own_timers.arm(_DELETED_TOPICS, max(self._next_look_ms, min(due)))

    def _complete(self, partition: int, complete: Callable[[Shard], None]) -> list[Duty]:
        shard = self._active.get(partition)
        if shard is None:
            return []
        complete(shard)
        if shard.deleted_topics.due_ms() is not None:
            self._arm_look()
        return shard.pop_duties()

    def _named_shard(self, group_id: str) -> Shard:
        if not group_id:
            raise PeerError(ErrorCode.INVALID_GROUP_ID)
        return self._shard(group_id)

    def _shard(self, group_id: str) -> Shard:
        if not can_be_stored(group_id):
            raise PeerError(ErrorCode.INVALID_GROUP_ID)
        partition = self.partition_of(group_id)
        shard = self._active.get(partition)
        if shard is not None:
            return shard
        if partition in self._loading:
            raise PeerError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        raise PeerError(ErrorCode.NOT_COORDINATOR)

    def _next_write_id(self) -> int:
        self._last_write_id += 1
        return self._last_write_id


def _names_can_be_stored(request: messages.JoinRequest) -> bool:
    is_static = request.group_instance_id is not None
    return (
        can_be_stored(request.group_instance_id if is_static else request.client_id, becomes_id=True)
        and can_be_stored(request.member_id)
        and can_be_stored(request.protocol_type)
        and all(can_be_stored(name) for name, _ in request.protocols)
    )
