"""Offset requests: commit and fetch, by members, by standalone consumers, by administrators.

Owns the checks of each request and its response; `offsets.OffsetStore` keeps the values, `writes` the order of
writes and responses.

Invariants: an offset that a client saw is in the log; a commit that the log rejected leaves no trace.

Rules: since_4_0.md K5, K32; epochs.md E61; KIP-447 (stable offsets).
"""

from __future__ import annotations

from collections.abc import Callable

from fenceline.errors import ErrorCode, PeerError
from fenceline.groups.classic.model import ClassicGroup
from fenceline.groups.classic.rebalance import Rebalance
from fenceline.groups.classic.states import GroupState
from fenceline.groups.consumer.checks import check_commit, check_fetch
from fenceline.groups.messages import (
    CommitRequest,
    CommitResponse,
    CommittedRewind,
    EndOfTransaction,
    FetchedOffset,
    FetchOffsetsRequest,
    FetchOffsetsResponse,
    KeyValue,
    Now,
    OffsetRewound,
    Ticket,
    TransactionalCommit,
    TransactionEndedInGroup,
)
from fenceline.groups.offsets.offsets import OffsetSlot, StoredOffset
from fenceline.groups.offsets.records import offset_record
from fenceline.groups.offsets.rewinds import is_at_epoch_end
from fenceline.groups.state import ShardState
from fenceline.groups.writes import Writes


class OffsetRequests:
    """The requests of one shard. They raise PeerError before anything has changed."""

    def __init__(
        self,
        state: ShardState,
        metadata_max_chars: int,
        rebalance: Rebalance,
        writes: Writes,
        epoch_end: Callable[[str, int, int], int],
    ) -> None:
        """`epoch_end`: where a leader epoch ends now in the log of a topic partition; -1 if unknown here."""
        self._state = state
        self._metadata_max_chars = metadata_max_chars
        self._rebalance = rebalance
        self._writes = writes
        self._epoch_end = epoch_end

    def commit(self, ticket: Ticket, request: CommitRequest, now: Now) -> None:
        """One batch for all offsets of the request; the response is sent once it is committed."""
        group = self._group_for_commit(request, now)
        if group is not None and group.state in (GroupState.STABLE, GroupState.PREPARING_REBALANCE):
            self._rebalance.keep_alive(group, group.members[request.member_id], now)
        expire_ms = -1 if request.retention_ms == -1 else now.wall_ms + request.retention_ms
        errors: list[ErrorCode] = []
        batch: list[KeyValue] = []
        values: list[tuple[OffsetSlot, StoredOffset]] = []
        offsets = self._state.offsets
        for each in request.offsets:
            metadata = each.metadata or ""
            if metadata and self._is_too_large(metadata):
                errors.append(ErrorCode.OFFSET_METADATA_TOO_LARGE)
                continue
            errors.append(ErrorCode.NONE)
            slot = OffsetSlot(request.group_id, each.topic, each.partition)
            order = offsets.assign_order()
            value = StoredOffset(each.offset, each.leader_epoch, metadata, now.wall_ms, expire_ms, each.topic_id, order)
            values.append((slot, value))
            batch.append(offset_record(slot, value))
        if not batch:
            self._writes.answer(ticket, CommitResponse(tuple(errors)))
            return
        went_back: list[OffsetRewound] = []

        def on_complete(error: ErrorCode, now: Now) -> None:
            if error is ErrorCode.NONE:
                self._writes.answer(ticket, CommitResponse(tuple(errors)))
                self._writes.report(went_back)
            else:
                self._writes.answer(ticket, CommitResponse((error,) * len(errors)))
                self._remove_if_bare(request.group_id)

        write_id = self._writes.begin(batch, on_complete)
        for slot, value in values:
            rewound = offsets.put(slot, value, write_id, marked=self._with_rewind_mark)
            if rewound is not None:
                went_back.append(OffsetRewound(*slot, rewound))

    def commit_in_transaction(self, ticket: Ticket, request: TransactionalCommit, now: Now) -> None:
        """One transactional batch for all offsets of the request; they are pending until the transaction ends
        (`transactions.md X47` to `X50`)."""
        self._check_transactional(request, now)
        errors: list[ErrorCode] = []
        values: list[tuple[OffsetSlot, StoredOffset]] = []
        for each in request.offsets:
            metadata = each.metadata or ""
            if self._is_too_large(metadata):
                errors.append(ErrorCode.OFFSET_METADATA_TOO_LARGE)
                continue
            errors.append(ErrorCode.NONE)
            slot = OffsetSlot(request.group_id, each.topic, each.partition)
            values.append(
                (slot, StoredOffset(each.offset, each.leader_epoch, metadata, now.wall_ms, topic_id=each.topic_id))
            )
        if not values:
            self._writes.answer(ticket, CommitResponse(tuple(errors)))
            self._remove_if_bare(request.group_id)
            return

        def on_complete(error: ErrorCode, now: Now) -> None:
            if error is ErrorCode.NONE:
                self._writes.answer(ticket, CommitResponse(tuple(errors)))
            else:
                self._writes.answer(ticket, CommitResponse((error,) * len(errors)))
                self._remove_if_bare(request.group_id)

        batch = [offset_record(slot, value) for slot, value in values]
        write_id = self._writes.begin(batch, on_complete, producer=request.producer)
        for slot, value in values:
            self._state.offsets.put_open(request.producer.producer_id, slot, value, write_id)

    def end_transaction(self, ticket: Ticket, end: EndOfTransaction) -> None:
        """Write the marker; the response is sent once it is committed, when the offsets are visible or dropped
        (`transactions.md X52`, KAFKA-17507)."""
        rewinds: list[tuple[OffsetSlot, CommittedRewind]] = []

        def on_complete(error: ErrorCode, now: Now) -> None:
            self._writes.answer(ticket, TransactionEndedInGroup(error))
            if error is ErrorCode.NONE:
                self._writes.report([OffsetRewound(*slot, rewind) for slot, rewind in rewinds])

        write_id = self._writes.begin_marker(end, on_complete)
        rewinds += self._state.offsets.end_transaction(
            end.producer_id, committed=end.commit, write_id=write_id, marked=self._with_rewind_mark
        )

    def _check_transactional(self, request: TransactionalCommit, now: Now) -> None:
        """The group may be a new simple one. Raises PeerError (`transactions.md X48`, `X49`)."""
        is_outside = request.generation < 0 and not request.member_id and request.group_instance_id is None
        consumer_group = self._state.consumer.get(request.group_id)
        if consumer_group is not None:
            if not is_outside:
                partitions = [(each.topic_id, each.partition) for each in request.offsets]
                try:
                    check_commit(consumer_group, request.member_id, request.generation, partitions, may_be_member=True)
                except PeerError as error:
                    if error.code is ErrorCode.STALE_MEMBER_EPOCH:
                        raise PeerError(ErrorCode.ILLEGAL_GENERATION) from None
                    raise
            return
        if request.group_id in self._state.foreign:
            raise PeerError(ErrorCode.UNKNOWN_MEMBER_ID)
        group = self._state.classic.get(request.group_id)
        if group is None:
            if request.generation >= 0:
                raise PeerError(ErrorCode.ILLEGAL_GENERATION)
            self._state.classic[request.group_id] = ClassicGroup(request.group_id, now.wall_ms)
            return
        if group.state is GroupState.DEAD:
            raise PeerError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if is_outside:
            return
        group.require_member(request.member_id, request.group_instance_id)
        if request.generation != group.generation:
            raise PeerError(ErrorCode.ILLEGAL_GENERATION)

    def _with_rewind_mark(self, slot: OffsetSlot, before: StoredOffset | None, value: StoredOffset) -> StoredOffset:
        """The offset with its rewind mark, if it moves back to exactly where the log was truncated."""
        step = value.step_from(before)
        if step is None or not is_at_epoch_end(step, self._epoch_end(slot.topic, slot.partition, step.from_epoch)):
            return value
        return value._replace(rewound=step)

    def _group_for_commit(self, request: CommitRequest, now: Now) -> ClassicGroup | None:
        """The group, or a new simple one; None for one of the consumer protocol. Raises PeerError in Kafka's order of
        checks."""
        consumer_group = self._state.consumer.get(request.group_id)
        if consumer_group is not None:
            partitions = [(each.topic_id, each.partition) for each in request.offsets]
            check_commit(
                consumer_group,
                request.member_id,
                request.generation,
                partitions,
                may_be_member=request.knows_group_not_found,
            )
            return None
        group = self._state.classic.get(request.group_id)
        has_generation = request.generation >= 0
        if request.group_id in self._state.foreign:
            # The error of a group of another kind for a client that is not its member.
            raise PeerError(ErrorCode.UNKNOWN_MEMBER_ID)
        if group is None:
            if not has_generation:
                # A consumer that manages its partitions itself, or an administrator: a simple group is enough.
                group = self._state.classic[request.group_id] = ClassicGroup(request.group_id, now.wall_ms)
                return group
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
        limit = self._metadata_max_chars
        # Kafka counts UTF-16 code units; only characters outside the basic plane have two.
        return len(metadata) > limit or (
            2 * len(metadata) > limit and len(metadata.encode("utf-16-le", "surrogatepass")) // 2 > limit
        )

    def fetch(self, ticket: Ticket, request: FetchOffsetsRequest) -> None:
        """`require_stable` waits for pending writes and returns offsets in open transactions as unstable."""
        consumer_group = self._state.consumer.get(request.group_id)
        if consumer_group is not None:
            check_fetch(consumer_group, request.member_id, request.member_epoch)

        def answer_now(error: ErrorCode) -> None:
            if error is ErrorCode.COORDINATOR_NOT_AVAILABLE:
                error = ErrorCode.NOT_COORDINATOR  # as Kafka: Java clients before 3.9 do not retry the former
            self._writes.answer(ticket, FetchOffsetsResponse(error) if error else self._read(request))

        if not (request.require_stable and self._writes.when_idle(answer_now)):
            self._writes.answer(ticket, self._read(request))

    def _read(self, request: FetchOffsetsRequest) -> FetchOffsetsResponse:
        group_id = request.group_id
        topics: dict[str, list[FetchedOffset]] = {}
        if request.topics is None:
            for slot, value in self._state.offsets.committed_slots(group_id):
                topics.setdefault(slot.topic, []).append(self._fetched(slot, value, request.require_stable))
            return FetchOffsetsResponse(topics=tuple((topic, tuple(found)) for topic, found in topics.items()))
        answer: list[tuple[str, tuple[FetchedOffset, ...]]] = []
        for topic in request.topics:
            found = []
            for partition in topic.partitions:
                slot = OffsetSlot(group_id, topic.topic, partition)
                stored = self._state.offsets.committed(slot)
                if stored is not None and not stored.belongs_to(topic.topic_id):
                    stored = None
                found.append(self._fetched(slot, stored, request.require_stable))
            answer.append((topic.topic, tuple(found)))
        return FetchOffsetsResponse(topics=tuple(answer))

    def _fetched(self, slot: OffsetSlot, value: StoredOffset | None, require_stable: bool) -> FetchedOffset:
        if require_stable and self._state.offsets.is_unstable(slot):
            return FetchedOffset(slot.partition, error=ErrorCode.UNSTABLE_OFFSET_COMMIT)
        if value is None:
            return FetchedOffset(slot.partition)
        return FetchedOffset(slot.partition, value.offset, value.leader_epoch, value.metadata)

    def _remove_if_bare(self, group_id: str) -> None:
        """Remove a simple group that only existed for a commit which the log rejected."""
        group = self._state.classic.get(group_id)
        if (
            group is not None
            and group.state is GroupState.EMPTY
            and group.protocol_type is None
            and group.generation == 0
            and not group.pending_joins
            and not self._state.offsets.has_any(group_id)
            and not self._state.offsets.has_open_transaction(group_id)
        ):
            del self._state.classic[group_id]
