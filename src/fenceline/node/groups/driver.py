"""Connects the group coordinator to this broker: its log, its clock, its event loop.

Owns the execution of duties. Decides nothing: the rules are in `fenceline.groups`; loads, appends and the timer are in
`node.coordination`. Everything runs on the event loop.

A request returns a `Reply` that is complete already (the usual case: a commit on a single node is one append) or
awaitable.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from random import Random, SystemRandom
from typing import Final, Protocol, TypeAlias, TypeVar
from uuid import UUID

from fenceline.coordination import append_error
from fenceline.errors import ErrorCode, PeerError
from fenceline.groups import messages
from fenceline.groups.consumer.model import DescribedConsumerGroup
from fenceline.groups.coordinator import GroupCoordinator
from fenceline.groups.messages import (
    AppendGroupMarker,
    AppendGroupRecords,
    CommittedPosition,
    ConsumerHeartbeatRequest,
    ConsumerHeartbeatResponse,
    Duty,
    GroupAnswer,
    Now,
    OffsetRewound,
    PositionsDropped,
)
from fenceline.groups.records import transaction_end
from fenceline.groups.settings import DEFAULT_PARTITION_COUNT, GroupSettings
from fenceline.groups.shard import Shard
from fenceline.ids import CONSUMER_OFFSETS_TOPIC, TopicPartition
from fenceline.log.core.guards import WITHOUT_VERIFICATION, VerificationGuard
from fenceline.metadata.changes import Delta
from fenceline.metadata.image import EMPTY_IMAGE, MetadataImage
from fenceline.node.clock import Clock
from fenceline.node.coordination.appends import CoordinatorAppends, CoordinatorLog, CoordinatorTimer, KeyValue
from fenceline.node.coordination.loading import LoadedTopic, Loading, Replay
from fenceline.node.coordination.read_barriers import ConfirmLeadership, confirm_at_once
from fenceline.node.coordination.replies import Reply
from fenceline.node.coordination.topic_log import BatchProducer, MarkerBatch
from fenceline.node.logs import Logger
from fenceline.records.batch import BatchHeader
from fenceline.records.build import Record

_T = TypeVar("_T")
log: Final = Logger("groups")
_FIRST_WITH_ABORTABLE: Final = 4
"""Of TxnOffsetCommit; `transactions.md X30`, `X33`."""
_FIRST_THAT_ADDS: Final = 5


VerifyOffsets: TypeAlias = Callable[[str, tuple[int, int], int, bool], Awaitable[ErrorCode]]
"""(transactional id, (producer id, epoch), partition of `__consumer_offsets`, whether to add it) -> code"""

_AS_CLIENTS_OF_GROUPS_KNOW_IT: Final[Mapping[ErrorCode, ErrorCode]] = {
    ErrorCode.NETWORK_EXCEPTION: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
}
"""Answers of a transaction's coordinator (`transactions.md X47`)."""


class GroupsLog(CoordinatorLog, Protocol):
    """The partitions of `__consumer_offsets` that this broker leads, with transactions."""

    def begin_verification(
        self, topic_partition: TopicPartition, leader_epoch: int, producer: BatchProducer, *, adds_partition: bool
    ) -> VerificationGuard | None:
        """None if the producer's transaction is open in the partition."""

    def append(
        self,
        topic_partition: TopicPartition,
        leader_epoch: int,
        records: list[KeyValue],
        producer: BatchProducer | None = None,
    ) -> Awaitable[int] | int: ...
    def append_marker(
        self, topic_partition: TopicPartition, leader_epoch: int, marker: MarkerBatch
    ) -> Awaitable[int] | int: ...


async def _no_coordinator(
    transactional_id: str, identity: tuple[int, int], partition: int, adds_partition: bool
) -> ErrorCode:
    return ErrorCode.COORDINATOR_NOT_AVAILABLE


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
        verify: VerifyOffsets = _no_coordinator,
        is_verification_on: Callable[[], bool] = lambda: True,
        confirm_leadership: ConfirmLeadership = confirm_at_once,
        positions_dropped: Callable[[Sequence[CommittedPosition]], None] = lambda _: None,
    ) -> None:
        """`threads` read from the disk; None uses the loop's own. `epoch_end`, `image`: see `GroupCoordinator`.
        `verify`: asks the coordinator of a transaction about a partition of `__consumer_offsets`.
        `is_verification_on`: `transaction.partition.verification.enable`. `confirm_leadership` is called before stable
        offsets are read. `positions_dropped` gets the offsets of deleted topics when they are removed."""
        self._log = offsets_log
        self._clock = clock
        self._verify = verify
        self._is_verification_on = is_verification_on
        self._confirm = confirm_leadership
        self._positions_dropped = positions_dropped
        self.coordinator: Final = GroupCoordinator(
            settings or GroupSettings(), rng or SystemRandom(), partition_count, epoch_end, image
        )
        self._appends = CoordinatorAppends(CONSUMER_OFFSETS_TOPIC)
        self._timer = CoordinatorTimer(
            clock,
            self.coordinator.next_deadline_ms,
            lambda: self._carry_out(self.coordinator.on_time(self._now())),
        )
        self._loading = Loading(
            LoadedTopic(
                CONSUMER_OFFSETS_TOPIC,
                self.coordinator,
                _replaying,
                lambda shard, now: self._carry_out(self.coordinator.finish_load(shard, now)),
                lambda shard: {"groups": len(shard.state.classic) + len(shard.state.consumer)},
                consequence="its groups lose their offsets",
            ),
            offsets_log,
            clock,
            threads,
        )
        self._queue: deque[Duty] = deque()
        self._is_busy = False
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

    def on_topics_deleted(self, topics: Sequence[tuple[str, UUID]]) -> None:
        """Topics, by name and id, were deleted: delete the offsets committed for them. Many are deleted in slices."""
        self._carry_out(self.coordinator.on_topics_deleted(topics, self._now()))

    def on_topics_created(self, version: int) -> None:
        """Topics were created in the metadata of this version."""
        self.coordinator.on_topics_created(version)

    def follow(self, image: MetadataImage, delta: Delta) -> None:
        """Apply a metadata change, apart from who leads: topics are created and deleted."""
        if delta.deleted_topics:
            self.on_topics_deleted([(topic.name, topic.id) for topic in delta.deleted_topics])
        if delta.created_topics:
            self.on_topics_created(image.offset)

    def set_partition_count(self, count: int) -> None:
        """The number of partitions of `__consumer_offsets` as it was created."""
        self.coordinator.partition_count = count

    def close(self) -> None:
        """Stop all timers and loads; waiting requests are answered with NOT_COORDINATOR."""
        self._timer.close()
        self._loading.close()
        for partition in self.coordinator.active_partitions:
            self._carry_out(self.coordinator.resign(partition, self._now()))
        self._appends.close()

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

    async def commit_in_transaction(
        self, transactional_id: str, request: messages.TransactionalCommit, *, version: int
    ) -> messages.CommitResponse:
        """TxnOffsetCommit: the transaction's coordinator is asked about the partition before the offsets are written
        (`transactions.md X33`, `X47`)."""
        try:
            guard = await self._guard(transactional_id, request, version)
        except PeerError as error:
            return messages.CommitResponse((error.code,) * len(request.offsets))
        verified = replace(request, producer=request.producer._replace(guard=guard))
        reply: Reply[messages.CommitResponse] = self._submit(
            lambda ticket, now: self.coordinator.commit_in_transaction(ticket, verified, now)
        )
        return await reply.wait()

    async def _guard(
        self, transactional_id: str, request: messages.TransactionalCommit, version: int
    ) -> VerificationGuard | None:
        """The guard of a batch that opens the transaction in its partition. Raises PeerError."""
        adds = version >= _FIRST_THAT_ADDS
        if not adds and not self._is_verification_on():
            return WITHOUT_VERIFICATION
        epoch = self.coordinator.leader_epoch_of(request.group_id)
        partition = self.coordinator.partition_of(request.group_id)
        identity = (request.producer.producer_id, request.producer.epoch)
        where = TopicPartition(CONSUMER_OFFSETS_TOPIC, partition)
        try:
            guard = self._log.begin_verification(where, epoch, BatchProducer(*identity), adds_partition=adds)
        except PeerError as error:
            raise PeerError(append_error(error.code)) from None
        if guard is None:
            return None
        code = await self._verify(transactional_id, identity, partition, adds)
        if code is ErrorCode.TRANSACTION_ABORTABLE and version < _FIRST_WITH_ABORTABLE:
            code = ErrorCode.INVALID_TXN_STATE
        if code is not ErrorCode.NONE:
            raise PeerError(_AS_CLIENTS_OF_GROUPS_KNOW_IT.get(code, code))
        return guard

    async def end_transaction(
        self,
        partition: int,
        identity: tuple[int, int],
        coordinator_epoch: int,
        commit: bool,
        transaction_version: int,
    ) -> ErrorCode:
        """WriteTxnMarkers for a partition of `__consumer_offsets`; answered once its offsets are visible or dropped."""
        end = messages.EndOfTransaction(partition, *identity, coordinator_epoch, commit, transaction_version)
        reply: Reply[messages.TransactionEndedInGroup] = self._submit(
            lambda ticket, now: self.coordinator.end_transaction(ticket, end)
        )
        return (await reply.wait()).error

    def fetch_offsets(self, request: messages.FetchOffsetsRequest) -> Reply[messages.FetchOffsetsResponse]:
        """Stable offsets are read once it is certain that no other broker coordinated the group when the request
        arrived: a transaction must not be repeated because a coordinator does not know that it was replaced."""
        partition = self.coordinator.partition_of(request.group_id)
        epoch = self.coordinator.active_epoch(partition) if request.require_stable else None
        if epoch is None:
            return self._submit(lambda ticket, now: self.coordinator.fetch_offsets(ticket, request))
        reply: Reply[messages.FetchOffsetsResponse] = Reply()

        def confirmed(code: ErrorCode) -> None:
            if code is ErrorCode.NONE:
                self._carry_out(self.coordinator.fetch_offsets(reply, request))
            else:
                reply.put(messages.FetchOffsetsResponse(code))

        self._confirm(TopicPartition(CONSUMER_OFFSETS_TOPIC, partition), epoch, confirmed)
        return reply

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
        """Execute the duties in order, and then the duties that follow from them."""
        self._queue.extend(duties)
        if self._is_busy:
            return
        self._is_busy = True
        try:
            while self._queue:
                duty = self._queue.popleft()
                match duty:
                    case GroupAnswer(ticket, outcome):
                        assert isinstance(ticket, Reply), "each request is submitted with a Reply"
                        ticket.put(outcome)
                    case OffsetRewound():
                        self._log_rewind(duty)
                    case PositionsDropped(positions):
                        self._positions_dropped(positions)
                    case AppendGroupRecords():
                        self._append_records(duty)
                    case AppendGroupMarker():
                        self._append_marker(duty)
        finally:
            self._is_busy = False
        self._timer.arm()

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

    def _append_records(self, duty: AppendGroupRecords) -> None:
        producer = None
        if duty.producer is not None:
            guard = duty.producer.guard
            assert guard is None or isinstance(guard, VerificationGuard)
            producer = BatchProducer(duty.producer.producer_id, duty.producer.epoch, guard)

        def append(where: TopicPartition) -> Awaitable[int] | int:
            if producer is None:
                return self._log.append(where, duty.leader_epoch, list(duty.records))
            return self._log.append(where, duty.leader_epoch, list(duty.records), producer)

        self._start(duty.partition, duty.write_id, append)

    def _append_marker(self, duty: AppendGroupMarker) -> None:
        end = duty.end
        marker = MarkerBatch(
            end.producer_id, end.producer_epoch, end.coordinator_epoch, end.commit, end.transaction_version
        )
        self._start(
            end.partition, duty.write_id, lambda where: self._log.append_marker(where, duty.leader_epoch, marker)
        )

    def _start(self, partition: int, write_id: int, append: Callable[[TopicPartition], Awaitable[int] | int]) -> None:
        def completed(error: PeerError | None) -> None:
            now = self._now()
            if error is None:
                self._carry_out(self.coordinator.appended(partition, write_id, now))
            else:
                self._carry_out(self.coordinator.append_failed(partition, write_id, error.code, now))

        def late() -> None:
            self._carry_out(self.coordinator.append_is_late(partition, write_id, self._now()))

        self._appends.start(partition, append, self.coordinator.settings.commit_timeout_ms, completed, late)

    def _now(self) -> Now:
        return Now(self._clock.now_ms(), self._clock.monotonic_ms())


def _replaying(shard: Shard) -> Replay:
    replay = shard.replaying()

    def batch(header: BatchHeader, records: list[Record], now: Now) -> None:
        if not header.is_control:
            replay.batch(records, now, header.producer_id if header.is_transactional else None)
            return
        # Compaction leaves batches without records.
        committed = transaction_end(records[0].key) if records else None
        if committed is not None:
            shard.replay_marker(header.producer_id, committed=committed)

    return batch
