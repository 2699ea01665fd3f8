"""Connects the group coordinator to this broker: its log, its clock, its event loop.

Owns the execution of duties: appends, answers, one timer for all groups. Decides nothing: the rules are in
`fenceline.groups`, loading is in `groups.loading`. Everything runs on the event loop.

A request returns a `Reply` that is complete already (the usual case: a commit on a single node is one append) or
awaitable. An append returns the offset at once or an awaitable of it; if that takes too long, the coordinator is
notified.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import Executor
from random import Random, SystemRandom
from typing import Final, Protocol, TypeVar

from fenceline.errors import ErrorCode, PeerError
from fenceline.groups import messages
from fenceline.groups.consumer.model import DescribedConsumerGroup
from fenceline.groups.coordinator import GroupCoordinator
from fenceline.groups.messages import (
    AppendGroupRecords,
    ConsumerHeartbeatRequest,
    ConsumerHeartbeatResponse,
    Duty,
    GroupAnswer,
    Now,
    OffsetRewound,
)
from fenceline.groups.settings import DEFAULT_PARTITION_COUNT, GroupSettings
from fenceline.ids import CONSUMER_OFFSETS_TOPIC, TopicPartition
from fenceline.log.core.errors import StorageError
from fenceline.metadata.image import EMPTY_IMAGE, MetadataImage
from fenceline.node.clock import Clock
from fenceline.node.groups.loading import GroupsLoading, OffsetsLog
from fenceline.node.groups.replies import Reply
from fenceline.node.logs import Logger

_T = TypeVar("_T")
log: Final = Logger("groups")


class GroupsLog(OffsetsLog, Protocol):
    """The partitions of `__consumer_offsets` that this broker leads."""

    def append(
        self, topic_partition: TopicPartition, leader_epoch: int, records: list[tuple[bytes | None, bytes | None]]
    ) -> Awaitable[int] | int:
        """Append one batch; returns its base offset once it is committed. Raises PeerError if the log rejects it or if
        this broker does not lead the partition in that epoch: then nothing was written."""


class GroupsDriver:
    def __init__(
        self,
        offsets_log: GroupsLog,
        clock: Clock,
        *,
        settings: GroupSettings | None = None,
        partition_count: int = DEFAULT_PARTITION_COUNT,
        rng: Random | None = None,
        threads: Executor | None = None,
        epoch_end: Callable[[str, int, int], int] = lambda *_: -1,
        image: Callable[[], MetadataImage] = lambda: EMPTY_IMAGE,
    ) -> None:
        """`threads` read from the disk; None uses the loop's own. `epoch_end`, `image`: see `GroupCoordinator`."""
        self._log = offsets_log
        self._clock = clock
        self.coordinator: Final = GroupCoordinator(
            settings or GroupSettings(), rng or SystemRandom(), partition_count, epoch_end, image
        )
        self._loading = GroupsLoading(self.coordinator, offsets_log, clock, self._carry_out, threads)
        self._tasks: set[asyncio.Future[int]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ms = 0
        self._is_closed = False
        self.rewinds = 0
        """Committed offsets that were reset because the log was truncated."""

    # --- leadership and lifecycle ----------------------------------------

    def on_leader(self, partition: int, epoch: int) -> None:
        """This broker leads `__consumer_offsets-<partition>` from this epoch on: load it and coordinate its groups.

        A short log is loaded before this returns. A repeated call in the same epoch means that something else about
        the partition has changed.
        """
        shard, duties = self.coordinator.begin_load(partition, epoch, self._now())
        self._carry_out(duties)
        if shard is None:
            self._loading.retry(partition)
        else:
            self._loading.begin(shard)

    def on_resigned(self, partition: int) -> None:
        """Another broker leads the partition now, or it has no leader."""
        self._carry_out(self.coordinator.resign(partition, self._now()))

    def on_partitions_deleted(self, partitions: Sequence[tuple[str, int]]) -> None:
        """Topic partitions were deleted: delete the offsets committed for them."""
        self._carry_out(self.coordinator.on_partitions_deleted(partitions, self._now()))

    def on_topics_created(self, version: int) -> None:
        """Topics were created in the metadata of this version."""
        self.coordinator.on_topics_created(version)

    def set_partition_count(self, count: int) -> None:
        """The number of partitions of `__consumer_offsets` as it was created."""
        self.coordinator.partition_count = count

    def close(self) -> None:
        """Stop all timers and loads; waiting requests are answered with NOT_COORDINATOR."""
        self._is_closed = True
        self._loading.close()
        for partition in self.coordinator.active_partitions:
            self._carry_out(self.coordinator.resign(partition, self._now()))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for task in self._tasks:
            task.cancel()

    # --- requests ----------------------------------------

    def join(self, request: messages.JoinRequest) -> Reply[messages.JoinResponse]:
        return self._submit(lambda ticket, now: self.coordinator.join(ticket, request, now))

    def sync(self, request: messages.SyncRequest) -> Reply[messages.SyncResponse]:
        return self._submit(lambda ticket, now: self.coordinator.sync(ticket, request, now))

    def heartbeat(self, request: messages.ClassicHeartbeat) -> Reply[messages.HeartbeatResponse]:
        return self._submit(lambda ticket, now: self.coordinator.heartbeat(ticket, request, now))

    def consumer_heartbeat(self, request: ConsumerHeartbeatRequest) -> Reply[ConsumerHeartbeatResponse]:
        return self._submit(lambda ticket, now: self.coordinator.consumer_heartbeat(ticket, request, now))

    def describe_consumer_group(self, group_id: str) -> DescribedConsumerGroup:
        """Raises PeerError."""
        return self.coordinator.describe_consumer_group(group_id)

    def leave(self, request: messages.LeaveRequest) -> Reply[messages.LeaveResponse]:
        return self._submit(lambda ticket, now: self.coordinator.leave(ticket, request, now))

    def commit(self, request: messages.CommitRequest) -> Reply[messages.CommitResponse]:
        return self._submit(lambda ticket, now: self.coordinator.commit(ticket, request, now))

    def fetch_offsets(self, request: messages.FetchOffsetsRequest) -> Reply[messages.FetchOffsetsResponse]:
        return self._submit(lambda ticket, now: self.coordinator.fetch_offsets(ticket, request))

    def delete_offsets(self, request: messages.DeleteOffsetsRequest) -> Reply[messages.DeleteOffsetsResponse]:
        return self._submit(lambda ticket, now: self.coordinator.delete_offsets(ticket, request, now))

    def delete_groups(self, group_ids: Iterable[str]) -> list[Reply[messages.DeleteGroupsResponse]]:
        """One reply for each partition of the offsets topic involved."""
        return [self._delete_of_one_partition(names) for names in self.coordinator.by_partition(group_ids).values()]

    def _delete_of_one_partition(self, group_ids: Sequence[str]) -> Reply[messages.DeleteGroupsResponse]:
        return self._submit(lambda ticket, now: self.coordinator.delete_groups(ticket, group_ids, now))

    def list_groups(self, states: frozenset[str], types: frozenset[str]) -> list[messages.ListedGroup]:
        """Filters in lower case, empty for all. Raises PeerError while loading."""
        return self.coordinator.list_groups(states, types)

    def describe(self, group_id: str) -> messages.DescribedGroup:
        """Raises PeerError."""
        return self.coordinator.describe(group_id)

    # --- duties ----------------------------------------

    def _submit(self, start: Callable[[Reply[_T], Now], list[Duty]]) -> Reply[_T]:
        reply: Reply[_T] = Reply()
        self._carry_out(start(reply, self._now()))
        return reply

    def _carry_out(self, duties: list[Duty]) -> None:
        """Execute the duties in order, and the duties that follow from them."""
        queue = duties
        position = 0
        while position < len(queue):
            duty = queue[position]
            position += 1
            match duty:
                case GroupAnswer(ticket, outcome):
                    assert isinstance(ticket, Reply), "each request is submitted with a Reply"
                    ticket.put(outcome)
                case OffsetRewound():
                    self._log_rewind(duty)
                case AppendGroupRecords():
                    queue.extend(self._start_append(duty))
        self._arm_timer()

    def _log_rewind(self, duty: OffsetRewound) -> None:
        self.rewinds += 1
        log.warning(
            "committed offset reset after log truncation",
            group=duty.group_id,
            partition=f"{duty.topic}-{duty.partition}",
            from_offset=duty.rewind.from_offset,
            from_epoch=duty.rewind.from_epoch,
            to_offset=duty.rewind.to_offset,
            to_epoch=duty.rewind.to_epoch,
            reason="the log was truncated below the group's committed offset",
            advice="List the lost records with: fenceline losses list",
        )

    def _start_append(self, duty: AppendGroupRecords) -> list[Duty]:
        topic_partition = TopicPartition(CONSUMER_OFFSETS_TOPIC, duty.partition)
        try:
            result = self._log.append(topic_partition, duty.leader_epoch, list(duty.records))
        except PeerError as error:
            return self._refused(duty, error)
        if isinstance(result, int):
            return self.coordinator.appended(duty.partition, duty.write_id, self._now())
        # Tasks start in creation order, so batches reach the log in the order of their duties.
        task = asyncio.ensure_future(result)
        timeout_s = self.coordinator.settings.commit_timeout_ms / 1000
        late = asyncio.get_running_loop().call_later(timeout_s, self._append_is_late, duty)
        task.add_done_callback(lambda done: self._append_done(duty, done, late))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return []

    def _append_is_late(self, duty: AppendGroupRecords) -> None:
        log.warning(
            "offset commit not replicated within offsets.commit.timeout.ms",
            partition=duty.partition,
            records=len(duty.records),
            advice="In-sync replicas do not fetch. Check them with: fenceline topics describe __consumer_offsets",
        )
        self._carry_out(self.coordinator.append_is_late(duty.partition, duty.write_id, self._now()))

    def _append_done(self, duty: AppendGroupRecords, done: asyncio.Future[int], late: asyncio.TimerHandle) -> None:
        late.cancel()
        if done.cancelled():
            return
        error = done.exception()
        if error is None:
            self._carry_out(self.coordinator.appended(duty.partition, duty.write_id, self._now()))
        elif isinstance(error, PeerError):
            self._carry_out(self._refused(duty, error))
        else:
            self._carry_out(self._refused(duty, PeerError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error))))
            raise error

    def _refused(self, duty: AppendGroupRecords, error: PeerError) -> list[Duty]:
        if not isinstance(error, StorageError):  # storage errors are logged once a minute elsewhere
            log.warning(
                "write to __consumer_offsets rejected",
                partition=duty.partition,
                records=len(duty.records),
                error=str(error),
            )
        return self.coordinator.append_failed(duty.partition, duty.write_id, error.code, self._now())

    # --- time ----------------------------------------

    def _now(self) -> Now:
        return Now(self._clock.now_ms(), self._clock.monotonic_ms())

    def _arm_timer(self) -> None:
        """One timer for all groups. It may fire early if its deadline has moved; then it is only armed again."""
        at_ms = self.coordinator.next_deadline_ms()
        if at_ms is None or self._is_closed or (self._timer is not None and self._timer_at_ms <= at_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        delay_ms = max(at_ms - self._clock.monotonic_ms(), 0)
        self._timer_at_ms = at_ms
        self._timer = asyncio.get_running_loop().call_later(delay_ms / 1000, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        try:
            self._carry_out(self.coordinator.on_time(self._now()))
        finally:
            # Also after a bug of ours: other groups have deadlines.
            self._arm_timer()
