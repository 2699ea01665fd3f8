"""AsyncConsumer: assignment or subscription, poll as records or as Arrow, positions, commits.

Owns the consumer's API: subscription, the order of the steps of a poll, the rebalance listeners. Fetching is in
`fetcher`, membership in `group`, the rules of positions in `positions`. Everything runs on one loop; rebalances, errors
and truncations reach the caller in poll.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fenceline.client.consumer.auto_commit import AutoCommit
from fenceline.client.consumer.consumer_offsets import ConsumerOffsets
from fenceline.client.consumer.fetch_buffer import FetchBuffer
from fenceline.client.consumer.fetcher import Fetcher
from fenceline.client.consumer.group import GroupMember
from fenceline.client.consumer.initial_positions import InitialPositions
from fenceline.client.consumer.positions import Positions
from fenceline.client.consumer.protocol_member import ConsumerProtocolMember
from fenceline.client.consumer.truncation import Decide, Truncations
from fenceline.client.core.client_base import AsyncClient
from fenceline.client.core.cluster import Cluster
from fenceline.client.core.config import ClientConfig
from fenceline.client.core.deadline import Deadline
from fenceline.client.core.errors import LogTruncationError, TimedOut
from fenceline.client.core.fetched import ConsumerRecords, Fetched, to_arrow
from fenceline.client.core.group_requests import NO_MEMBER, ConsumerGroupMetadata
from fenceline.client.core.loss_receipts import LossReceipt
from fenceline.client.core.offsets import EARLIEST, LATEST, CommittedOffset
from fenceline.errors import OperatorError
from fenceline.ids import INTERNAL_TOPICS, NO_EPOCH, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

Listener = Callable[[list[TopicPartition]], Awaitable[None] | None]
_LONG_BYTES = 256 * 1024
"""Pieces of at least this size are decoded in a thread, so that the loop is not blocked."""
_ARROW_BATCH_BYTES = 8 * 1024 * 1024
"""About how much one `poll_arrow` decodes at most: cheap per row, and still fits into a cache."""


class AsyncConsumer(ConsumerOffsets, AsyncClient):
    """Create it inside a running loop; close it with `await close()` or use it as an async context manager.

    Does not support concurrent polls: one task polls, others may query positions, pause and commit.
    """

    def __init__(self, bootstrap: str | Sequence[str] | Mapping[str, Any] | None = None, **config: Any) -> None:
        super().__init__()
        self.config = ClientConfig.parse("consumer", bootstrap, config)
        self.cluster = Cluster(self.config)
        self.positions = Positions()
        self._fetcher = Fetcher(self.cluster, self.positions, self.config)
        self._group: GroupMember | ConsumerProtocolMember | None = None
        if self.config["group.id"]:
            is_classic = self.config["group.protocol"] == "classic"
            member_type = GroupMember if is_classic else ConsumerProtocolMember
            self._group = member_type(self.cluster, self.config, self, self._fetcher.wake_poll)
        self._subscribed = False
        self._pattern: re.Pattern[str] | None = None
        self._listeners: dict[str, Listener | None] = {}
        self._fetch_buffer = FetchBuffer(self._fetcher, self.positions)
        self._initial_positions = InitialPositions(self.cluster, self.positions, self.config, self._fetcher.wake)
        self._truncations = Truncations(self.cluster, self.positions, self.config)
        self._auto_commit = AutoCommit(self.config, lambda: self._capture_commit(self.committable()), self._send_commit)
        self._is_closed = False
        self.cluster.on_update.append(self._metadata_changed)

    # -- assignment and subscription

    def assign(self, partitions: Collection[TopicPartition]) -> None:
        """Read exactly these partitions, without membership in a group (commits still need group.id)."""
        if self._subscribed:
            raise OperatorError("The consumer is subscribed", "Call unsubscribe before assign.")
        self._track({TopicPartition(*tp).topic for tp in partitions})
        self._set_assignment(partitions)

    def subscribe(
        self,
        topics: Collection[str] = (),
        *,
        pattern: str | None = None,
        on_assigned: Listener | None = None,
        on_revoked: Listener | None = None,
        on_lost: Listener | None = None,
    ) -> None:
        """Read these topics, or those whose full name matches `pattern`, as a member of group.id. With
        group.protocol=consumer the coordinator matches the pattern, an RE2 expression.

        The listeners run inside poll: `on_revoked` before partitions are revoked (commit there), `on_lost` if they
        were lost already (without it, `on_revoked` is called).
        """
        if self._group is None:
            raise OperatorError("subscribe requires a group", "Set group.id, or use assign.")
        if isinstance(topics, str):
            raise OperatorError("subscribe expects a list of topics", f"Write subscribe([{topics!r}]).")
        if bool(topics) == (pattern is not None):
            raise OperatorError("subscribe expects topics or a pattern", "Pass one of the two.")
        if not self._subscribed and list(self.positions):
            raise OperatorError("The consumer has assigned partitions", "Call unsubscribe before subscribe.")
        self._subscribed = True
        self._listeners = {"assigned": on_assigned, "revoked": on_revoked, "lost": on_lost}
        if pattern is not None:
            self.cluster.tracked = None
            if isinstance(self._group, ConsumerProtocolMember):
                self._pattern = None
                self._group.subscribe_pattern(pattern)
            else:
                self._pattern = re.compile(pattern.removeprefix("^"))
            self.cluster.request_refresh()
            self._metadata_changed()
        else:
            self._pattern = None
            self._track(set(topics))
            self._group.subscribe(topics)

    async def unsubscribe(self) -> None:
        """Leave the group, or drop the assignment."""
        if (member := self._member) is not None:
            await self._auto_commit.before_revocation()
            await self._notify_listener("revoked", list(member.assignment))
            await member.leave(self._deadline(None), "the consumer unsubscribed")
            member.assignment = ()
            member.topics = frozenset()
        self._subscribed, self._pattern = False, None
        self._set_assignment(())

    def assignment(self) -> list[TopicPartition]:
        return sorted(self.positions)

    def subscription(self) -> frozenset[str]:
        return frozenset() if self._member is None else self._member.topics

    def group_metadata(self) -> ConsumerGroupMetadata:
        """The group and this member, for `send_offsets_to_transaction` of a producer (KIP-447). Raises OperatorError
        without group.id."""
        group_id = self._require_group()
        return ConsumerGroupMetadata(
            group_id, *(self._member.membership if self._member is not None else NO_MEMBER)[:3]
        )

    # -- poll

    async def poll(self, timeout_ms: float = 0, *, max_records: int | None = None) -> ConsumerRecords:
        """The next records, at most `max.poll.records` (or `max_records`), waiting at most `timeout_ms` for any.

        No record that was fetched before a truncation is returned once the client knows of the truncation. Raises
        LogTruncationError (one for all truncated partitions) and TopicReplacedError until a seek. Raises
        OffsetOutOfRangeError, NoOffsetError, UnknownEpochError and errors of brokers that are not retriable once: the
        next poll continues, or raises them again while the cause persists.
        """
        limit = self.config["max.poll.records"] if max_records is None else max_records
        deadline = Deadline(timeout_ms)
        self._fetch_buffer.begin_poll()
        while True:
            await self._prepare_poll(deadline)
            records = await self._fetch_buffer.next_records(limit)
            if records or not await self._wait(deadline):
                return records

    async def poll_pieces(self, timeout_ms: float = 0, *, max_bytes: int = _ARROW_BATCH_BYTES) -> list[Fetched]:
        """The pieces of Fetch responses that `poll_arrow` decodes. They are held in memory, and count as returned only
        after `mark_pieces_returned` has returned True; a poll before that returns them again."""
        deadline = Deadline(timeout_ms)
        self._fetch_buffer.begin_poll()
        while True:
            await self._prepare_poll(deadline)
            pieces = self._fetch_buffer.next_pieces(max_bytes)
            if pieces:
                return pieces
            if not await self._wait(deadline):
                return []

    async def poll_arrow(
        self, timeout_ms: float = 0, *, max_bytes: int = _ARROW_BATCH_BYTES, **options: Any
    ) -> pa.RecordBatch:
        """The next records as one pyarrow.RecordBatch, empty if none arrived within `timeout_ms`.

        Columns topic, partition, offset, timestamp, timestamp_type, leader_epoch, key, value, headers; `options` as in
        `fenceline.records.arrow.ArrowDecoder`. `max_bytes` bounds the bytes decoded at once. Raises as `poll`.
        """
        deadline = Deadline(timeout_ms)
        while True:
            pieces = await self.poll_pieces(deadline.left_ms, max_bytes=max_bytes)
            try:
                if sum(piece.size_bytes for piece in pieces) >= _LONG_BYTES:
                    batch = await asyncio.to_thread(to_arrow, pieces, **options)
                else:
                    batch = to_arrow(pieces, **options)
            except BaseException:
                self.put_back_pieces()
                raise
            # Compaction leaves batches without records.
            if self.mark_pieces_returned() and (batch.num_rows or not pieces):
                return batch

    def put_back_pieces(self) -> None:
        """The pieces of the last `poll_pieces` could not be decoded: the next call returns them again."""
        self._fetch_buffer.put_back()
        self._fetcher.wake()

    def mark_pieces_returned(self) -> bool:
        """The pieces of the last `poll_pieces` are decoded: count them as returned. False if a truncation became
        possible meanwhile: they must not be used, and the next poll continues after a validation.
        """
        is_returned = self._fetch_buffer.mark_returned()
        if not is_returned:
            self._fetcher.wake()
        return is_returned

    def next_offsets(self) -> dict[TopicPartition, CommittedOffset]:
        """The next offsets after the last `poll` or `poll_arrow`: see `ConsumerRecords.next_offsets`."""
        return dict(self._fetch_buffer.next_offsets)

    async def _prepare_poll(self, deadline: Deadline) -> None:
        if self._is_closed:
            raise OperatorError("The consumer is closed", "Create a new one.")
        if (member := self._member) is not None:
            if self._pattern is not None and self.cluster.metadata.update_version == 0:
                await self.cluster.refresh()
            await member.poll_group(deadline)
        elif not list(self.positions):
            raise OperatorError("The consumer has no assignment", "Call assign or subscribe first.")
        self._auto_commit.commit_if_due()
        if (pending_error := self._fetcher.next_error()) is not None:
            raise pending_error
        await self._initial_positions.resolve(deadline)
        if lost := self.positions.lost():
            for _, state in lost:
                if state.replaced is not None:
                    raise state.replaced
            await self._truncations.handle(lost)
            self._fetcher.wake()

    async def _wait(self, deadline: Deadline) -> bool:
        """Wait for records or an error; False at the deadline."""
        if deadline.is_over:
            return False
        if self._member is None or not self._member.needs_join:
            await self._fetcher.wait_for_arrival(deadline.left_ms / 1000)
        return True

    # -- positions

    def seek(self, tp: TopicPartition, offset: int | CommittedOffset, leader_epoch: int = NO_EPOCH) -> None:
        """Continue at `offset`. With the epoch of the record before it (`leader_epoch`, or that of a CommittedOffset),
        the position is validated first (E53).
        """
        to = offset if isinstance(offset, CommittedOffset) else CommittedOffset(offset, leader_epoch)
        self.positions.seek(TopicPartition(*tp), to.offset, to.leader_epoch)
        self._repositioned()

    def seek_to_beginning(self, partitions: Collection[TopicPartition] = ()) -> None:
        self._reset(partitions, EARLIEST)

    def seek_to_end(self, partitions: Collection[TopicPartition] = ()) -> None:
        self._reset(partitions, LATEST)

    def _reset(self, partitions: Collection[TopicPartition], to: int) -> None:
        for tp in partitions or self.assignment():
            self.positions.await_reset(TopicPartition(*tp), to)
        self._repositioned()

    async def position(self, tp: TopicPartition, *, timeout_ms: float | None = None) -> int:
        """The offset of the next record that poll returns."""
        return (await self.position_and_epoch(tp, timeout_ms=timeout_ms)).offset

    async def position_and_epoch(self, tp: TopicPartition, *, timeout_ms: float | None = None) -> CommittedOffset:
        """`position`, and the leader epoch of the last record before it (-1 unknown), as commits carry them."""
        tp = TopicPartition(*tp)
        deadline = self._deadline(timeout_ms)
        self.positions.of(tp)
        while True:
            await self._initial_positions.resolve(deadline)
            state = self.positions.of(tp)
            if (error := state.replaced or state.truncation) is not None:
                raise error
            if state.position is not None:
                return CommittedOffset(state.position.offset, state.position.record_epoch)
            if (pending_error := self._fetcher.next_error()) is not None:
                raise pending_error
            if deadline.is_over:
                raise TimedOut(f"no position for {tp} within {deadline.timeout_ms:.0f} ms. Check its brokers.")
            await self._fetcher.wait_for_change(deadline.left_ms / 1000)

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Return no records of these until `resume`. They stay assigned."""
        for tp in partitions:
            state = self.positions.of(TopicPartition(*tp))
            if not state.is_paused:
                state.is_paused = True
                self.positions.rewind(TopicPartition(*tp))

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        for tp in partitions:
            self.positions.of(TopicPartition(*tp)).is_paused = False
        self._fetcher.wake()

    def paused(self) -> list[TopicPartition]:
        return sorted(tp for tp, state in self.positions.items() if state.is_paused)

    def lag(self, tp: TopicPartition) -> int | None:
        """Offsets between the position and the high watermark (read_committed: the last stable offset) of the last
        fetch; None before the first."""
        state = self.positions.of(TopicPartition(*tp))
        end = state.last_stable_offset if self.config.reads_committed else state.high_watermark
        return None if end < 0 or state.position is None else max(0, end - state.position.offset)

    # -- truncations

    def truncations(self) -> list[LogTruncationError]:
        """The truncations that this consumer has detected, oldest first, whatever `on.truncation` is."""
        return list(self._truncations.seen)

    def decide_truncations(self, decide: Decide) -> None:
        """Use `decide` as the function of `on.truncation`."""
        self._truncations.decide = decide

    async def loss_receipts(
        self, error: LogTruncationError, *, timeout_ms: float | None = None
    ) -> tuple[LossReceipt, ...]:
        """The loss receipts of a Fenceline cluster for the truncation in `error`, oldest first; () on other clusters.

        A replica writes its receipt when it truncates its log, so there may be more than in `error.evidence` by now.
        """
        return await self._truncations.receipts_of(error, self._deadline(timeout_ms))

    # -- closing

    async def close(self, timeout_ms: float = 30_000) -> None:
        """Commit (with enable.auto.commit), leave the group and close all connections."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if (member := self._member) is not None:
                await self._auto_commit.before_revocation()
                try:
                    await self._notify_listener("revoked", list(member.assignment))
                finally:
                    await member.leave(Deadline(timeout_ms), "the consumer was closed")
            else:
                await self._auto_commit.before_revocation()
        finally:
            if self._group is not None:
                await self._group.close()
            self._auto_commit.close()
            await self._initial_positions.close()
            await self._fetcher.close()
            await self.cluster.close()

    # -- callbacks of the group

    async def partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        await self._auto_commit.before_revocation()
        await self._notify_listener("revoked", partitions)
        self._set_assignment([tp for tp in self.positions if tp not in set(partitions)])

    async def partitions_lost(self, partitions: list[TopicPartition]) -> None:
        await self._notify_listener("lost" if self._listeners.get("lost") is not None else "revoked", partitions)
        self._set_assignment([tp for tp in self.positions if tp not in set(partitions)])

    async def partitions_assigned(self, assignment: list[TopicPartition], added: list[TopicPartition]) -> None:
        self._set_assignment(assignment)
        self._auto_commit.start_interval()
        await self._notify_listener("assigned", added)

    async def _notify_listener(self, what: str, partitions: list[TopicPartition]) -> None:
        listener = self._listeners.get(what)
        if listener is not None and (partitions or what == "assigned"):
            outcome = listener(partitions)
            if inspect.isawaitable(outcome):
                await outcome

    # -- inside

    @property
    def _member(self) -> GroupMember | ConsumerProtocolMember | None:
        return self._group if self._subscribed else None

    def _set_assignment(self, partitions: Collection[TopicPartition]) -> None:
        self.positions.assign(partitions)
        self._fetch_buffer.drop_unassigned()
        self._repositioned()

    def _repositioned(self) -> None:
        """The caller has changed positions: go on fetching, and let a call that waits for a position look again."""
        self._fetcher.wake()
        self._fetcher.wake_poll()

    def _metadata_changed(self) -> None:
        if self._pattern is not None and self._group is not None:
            pattern, hidden = self._pattern, INTERNAL_TOPICS if self.config["exclude.internal.topics"] else frozenset()
            self._group.subscribe([t for t in self.cluster.metadata.topics if pattern.fullmatch(t) and t not in hidden])
        if self._member is not None:
            self._member.metadata_changed()
        self._fetcher.wake()

    def _track(self, topics: set[str]) -> None:
        self.cluster.tracked = set(topics)
        if topics - self.cluster.metadata.topics.keys():
            self.cluster.request_refresh()
        self.cluster.keep_fresh()
