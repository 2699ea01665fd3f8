"""Ties the group coordinator to this broker: its log, its clock, its event loop.

Owns how duties are carried out: appends, answers, one timer for all groups, loading in slices. Never decides anything:
the rules are in `fenceline.groups`. Everything runs on the event loop.

A request comes back as a `Reply`: either answered already (most are: a commit on a single node is one append) or
awaitable. An append may answer with the offset at once or with an awaitable of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from random import Random, SystemRandom
from typing import Final, TypeAlias, TypeVar, cast

from fenceline.errors import ErrorCode, FencelineError, InternalError, PeerError
from fenceline.groups import messages
from fenceline.groups.clock import Now
from fenceline.groups.coordinator import GroupCoordinator
from fenceline.groups.messages import Answer, Append, Duty
from fenceline.groups.records import transaction_end
from fenceline.groups.settings import DEFAULT_PARTITION_COUNT, GroupSettings
from fenceline.groups.shard import Shard
from fenceline.ids import CONSUMER_OFFSETS_TOPIC, TopicPartition
from fenceline.log.errors import StorageError
from fenceline.node.clock import Clock
from fenceline.node.logs import Logger
from fenceline.node.replies import Reply
from fenceline.records.batch import BatchHeader
from fenceline.records.build import Record

AppendRecords: TypeAlias = Callable[[TopicPartition, list[tuple[bytes | None, bytes | None]]], "Awaitable[int] | int"]
"""Appends one batch and gives its base offset once it is committed. Raises PeerError when the log refuses it."""
Batches: TypeAlias = Iterable[tuple[BatchHeader, list[Record]]]
"""What `records.decode.decode_all` gives, from the log's start to its end."""

LOAD_SLICE_RECORDS: Final = 2_000
"""Records replayed before the event loop gets its turn again."""

_T = TypeVar("_T")
log: Final = Logger("groups")


class GroupsDriver:
    def __init__(
        self,
        append: AppendRecords,
        read_partition: Callable[[TopicPartition], Batches],
        clock: Clock,
        *,
        settings: GroupSettings | None = None,
        partition_count: int = DEFAULT_PARTITION_COUNT,
        rng: Random | None = None,
    ) -> None:
        self._append = append
        self._read_partition = read_partition
        self._clock = clock
        self.coordinator: Final = GroupCoordinator(settings or GroupSettings(), rng or SystemRandom(), partition_count)
        self._tasks: set[asyncio.Future[object]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ms = 0
        self._is_closed = False

    # --- the life of the broker ----------------------------------------

    def on_leader(self, partition: int, epoch: int) -> None:
        """This broker leads `__consumer_offsets-<partition>` from this epoch on: load it and coordinate its groups.

        A short log is loaded before this returns; a long one goes on in slices.
        """
        shard, duties = self.coordinator.begin_load(partition, epoch, self._now())
        self._carry_out(duties)
        if shard is None:
            return
        try:
            steps = self._replay(shard, iter(self._read_partition(TopicPartition(CONSUMER_OFFSETS_TOPIC, partition))))
            if next(steps, None) is None:
                self._carry_out(self.coordinator.finish_load(shard, self._now()))
                return
        except Exception as error:
            self._load_failed(shard, error)
            return
        self._keep(asyncio.get_running_loop().create_task(self._load(shard, steps)))

    def on_resigned(self, partition: int) -> None:
        """Another broker leads the partition now, or nobody does."""
        self._carry_out(self.coordinator.resign(partition, self._now()))

    def on_partitions_deleted(self, partitions: Sequence[tuple[str, int]]) -> None:
        """Topic partitions were deleted: drop the offsets committed for them."""
        self._carry_out(self.coordinator.on_partitions_deleted(partitions, self._now()))

    def set_partition_count(self, count: int) -> None:
        """The number of partitions of `__consumer_offsets` as it was created."""
        self.coordinator.partition_count = count

    def close(self) -> None:
        """Stop all timers and loads; everybody who waits is told to look for another coordinator."""
        self._is_closed = True
        for partition in self.coordinator.active_partitions:
            self._carry_out(self.coordinator.resign(partition, self._now()))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for task in self._tasks:
            task.cancel()

    # --- requests ----------------------------------------

    def join(self, request: messages.JoinRequest) -> Reply[messages.JoinAnswer]:
        return self._submit(lambda ticket, now: self.coordinator.join(ticket, request, now))

    def sync(self, request: messages.SyncRequest) -> Reply[messages.SyncAnswer]:
        return self._submit(lambda ticket, now: self.coordinator.sync(ticket, request, now))

    def heartbeat(self, request: messages.HeartbeatRequest) -> Reply[messages.HeartbeatAnswer]:
        return self._submit(lambda ticket, now: self.coordinator.heartbeat(ticket, request, now))

    def leave(self, request: messages.LeaveRequest) -> Reply[messages.LeaveAnswer]:
        return self._submit(lambda ticket, now: self.coordinator.leave(ticket, request, now))

    def commit(self, request: messages.CommitRequest) -> Reply[messages.CommitAnswer]:
        return self._submit(lambda ticket, now: self.coordinator.commit(ticket, request, now))

    def fetch_offsets(self, request: messages.FetchOffsetsRequest) -> Reply[messages.FetchOffsetsAnswer]:
        return self._submit(lambda ticket, now: self.coordinator.fetch_offsets(ticket, request))

    def delete_offsets(self, request: messages.DeleteOffsetsRequest) -> Reply[messages.DeleteOffsetsAnswer]:
        return self._submit(lambda ticket, now: self.coordinator.delete_offsets(ticket, request, now))

    def delete_groups(self, group_ids: Iterable[str]) -> list[Reply[messages.DeleteGroupsAnswer]]:
        """One reply for each partition that is concerned."""
        return [self._delete_of_one_partition(names) for names in self.coordinator.by_partition(group_ids).values()]

    def _delete_of_one_partition(self, group_ids: Sequence[str]) -> Reply[messages.DeleteGroupsAnswer]:
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
        """Do the duties in their order, and those that follow from them."""
        queue = duties
        position = 0
        while position < len(queue):
            duty = queue[position]
            position += 1
            match duty:
                case Answer(ticket, outcome):
                    cast("Reply[messages.Outcome]", ticket).put(outcome)
                case Append():
                    queue.extend(self._start_append(duty))
        self._arm_timer()

    def _start_append(self, duty: Append) -> list[Duty]:
        topic_partition = TopicPartition(CONSUMER_OFFSETS_TOPIC, duty.partition)
        try:
            result = self._append(topic_partition, list(duty.records))
        except PeerError as error:
            return self._refused(duty, error)
        if isinstance(result, int):
            return self.coordinator.appended(duty.partition, duty.write_id, self._now())
        # Tasks start in the order in which they are made, so batches reach the log in the order of their duties.
        task = asyncio.ensure_future(result)
        task.add_done_callback(lambda done: self._append_done(duty, done))
        self._keep(task)
        return []

    def _append_done(self, duty: Append, done: asyncio.Future[int]) -> None:
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

    def _refused(self, duty: Append, error: PeerError) -> list[Duty]:
        if not isinstance(error, StorageError):  # which is told once a minute, not with each attempt of each group
            log.warning("write refused", partition=duty.partition, records=len(duty.records), error=str(error))
        return self.coordinator.append_failed(duty.partition, duty.write_id, error.code, self._now())

    # --- loading ----------------------------------------

    def _replay(self, shard: Shard, batches: Iterator[tuple[BatchHeader, list[Record]]]) -> Iterator[int]:
        """Replay everything; yields after each slice."""
        count = 0
        for header, records in batches:
            if header.is_control:
                committed = transaction_end(records[0].key)
                if committed is not None:
                    shard.replay_marker(header.producer_id, committed=committed)
                continue
            transaction_of = header.producer_id if header.is_transactional else None
            now = self._now()
            for record in records:
                shard.replay(record.key, record.value, now, transaction_of)
            count += len(records)
            if count >= LOAD_SLICE_RECORDS:
                yield count
                count = 0

    async def _load(self, shard: Shard, steps: Iterator[int]) -> None:
        try:
            for _ in steps:
                await asyncio.sleep(0)
                if not self.coordinator.is_current(shard):
                    return
        except Exception as error:
            self._load_failed(shard, error)
            return
        self._carry_out(self.coordinator.finish_load(shard, self._now()))

    def _load_failed(self, shard: Shard, error: Exception) -> None:
        """Groups of this partition stay without coordinator, others are served; our own bugs go on their way."""
        self.coordinator.fail_load(shard)
        log.error(
            "groups can not be loaded",
            partition=shard.partition,
            error=str(error),
            advice=f"{CONSUMER_OFFSETS_TOPIC}-{shard.partition} has records that can not be read: look at them with"
            " `fenceline log dump`, restore the partition or delete its directory (its groups start anew)",
        )
        if not isinstance(error, FencelineError | OSError) or isinstance(error, InternalError):
            raise error

    # --- time ----------------------------------------

    def _now(self) -> Now:
        return Now(self._clock.now_ms(), self._clock.monotonic_ms())

    def _arm_timer(self) -> None:
        """One timer for all groups. It may fire early, when what it was for has moved; then it is only armed again."""
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
        self._carry_out(self.coordinator.on_time(self._now()))

    def _keep(self, task: asyncio.Future[object] | asyncio.Task[None] | asyncio.Future[int]) -> None:
        kept = cast("asyncio.Future[object]", task)
        self._tasks.add(kept)
        kept.add_done_callback(self._tasks.discard)
