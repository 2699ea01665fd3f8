"""Consumer, asynchronous core: assignment or subscription, poll as records or as Arrow, positions, commits.

Owns the caller's half of consuming; fetching is the fetcher's, membership the group's, the rules of positions are in
`positions`. Everything runs on one loop; poll is where rebalances, errors and position changes reach the caller.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from fenceline.client.admin_groups import commit as commit_outside
from fenceline.client.admin_groups import fetch_committed
from fenceline.client.cluster import Cluster, Deadline
from fenceline.client.config import ClientConfig
from fenceline.client.errors import NoOffsetError, TimedOut
from fenceline.client.fetched import ConsumerRecord, Fetched, to_arrow, to_records
from fenceline.client.fetcher import Fetcher, Piece
from fenceline.client.group import Group
from fenceline.client.offsets import (
    EARLIEST,
    LATEST,
    CommittedOffset,
    OffsetAndEpoch,
    OffsetSpec,
    list_offsets,
)
from fenceline.client.positions import Phase, Positions
from fenceline.errors import OperatorError, PeerError
from fenceline.ids import INTERNAL_TOPICS, NO_EPOCH, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger("fenceline.client")
Listener = Callable[[list[TopicPartition]], Awaitable[None] | None]
_ARROW_BATCH_BYTES = 8 * 1024 * 1024
"""About how much one `poll_arrow` decodes at most: large enough to be cheap a row, small enough for a cache."""


class AsyncConsumer:
    """Make it inside a running loop; close it with `await close()` or use it as an async context manager.

    Not for concurrent polls: one task polls, others may ask for positions, pause and commit.
    """

    def __init__(self, bootstrap: str | Sequence[str] | Mapping[str, Any] | None = None, **config: Any) -> None:
        self.config = ClientConfig.parse("consumer", bootstrap, config)
        self.cluster = Cluster(self.config)
        self.positions = Positions()
        self._fetcher = Fetcher(self.cluster, self.positions, self.config)
        self._group: Group | None = None
        if self.config["group.id"]:
            self._group = Group(self.cluster, self.config, self)
            self._group.on_news = self._fetcher.announce
        self._subscribed = False
        self._pattern: re.Pattern[str] | None = None
        self._listeners: dict[str, Listener | None] = {}
        self._held: tuple[Piece, list[ConsumerRecord], int] | None = None
        self._next_commit_s = 0.0
        self._background: set[asyncio.Task[Any]] = set()
        self._is_closed = False
        self.cluster.on_update.append(self._metadata_changed)

    # -- assignment and subscription

    def assign(self, partitions: Collection[TopicPartition]) -> None:
        """Read exactly these partitions, without a group's membership (commits still need group.id)."""
        if self._subscribed:
            raise OperatorError("This consumer is subscribed", "Call unsubscribe before assign.")
        self.positions.assign(partitions)
        self._track({TopicPartition(*tp).topic for tp in partitions})
        self._drop_held()
        self._fetcher.changed()

    def subscribe(
        self,
        topics: Collection[str] = (),
        *,
        pattern: str | None = None,
        on_assigned: Listener | None = None,
        on_revoked: Listener | None = None,
        on_lost: Listener | None = None,
    ) -> None:
        """Read these topics (or those whose whole name matches `pattern`) together with the other members of group.id.

        The listeners run inside poll: `on_revoked` before partitions go to others (commit there), `on_lost` when they
        have gone already (without it, `on_revoked` is called).
        """
        if self._group is None:
            raise OperatorError("subscribe needs a group", "Set group.id, or use assign.")
        if isinstance(topics, str):
            raise OperatorError("subscribe takes several topics", f"Write subscribe([{topics!r}]).")
        if bool(topics) == (pattern is not None):
            raise OperatorError("subscribe takes topics or a pattern", "Give one of the two.")
        if not self._subscribed and list(self.positions):
            raise OperatorError("This consumer has assigned partitions", "Call unsubscribe before subscribe.")
        self._subscribed = True
        self._listeners = {"assigned": on_assigned, "revoked": on_revoked, "lost": on_lost}
        if pattern is not None:
            self._pattern = re.compile(pattern.removeprefix("^"))
            self.cluster.tracked = None
            self.cluster.request_refresh()
            self._metadata_changed()
        else:
            self._pattern = None
            self._track(set(topics))
            self._group.subscribe(topics)

    async def unsubscribe(self) -> None:
        """Leave the group, or drop the assignment."""
        if self._subscribed and self._group is not None:
            await self._commit_before_giving_up()
            await self._tell("revoked", list(self._group.assignment))
            await self._group.leave(self._deadline(None), "the consumer unsubscribed")
            self._group.assignment = ()
            self._group.topics = frozenset()
        self._subscribed, self._pattern = False, None
        self.positions.assign(())
        self._drop_held()

    def assignment(self) -> list[TopicPartition]:
        return sorted(self.positions)

    def subscription(self) -> frozenset[str]:
        return self._group.topics if self._group is not None and self._subscribed else frozenset()

    # -- poll

    async def poll(self, timeout_ms: float = 0, *, max_records: int | None = None) -> list[ConsumerRecord]:
        """Records that came next, at most `max.poll.records` (or `max_records`), waiting at most `timeout_ms` for any.

        Raises LogTruncationError, OffsetOutOfRangeError, NoOffsetError and what brokers refuse for good. A refusal is
        raised once; polling again goes on, or raises anew while its reason lasts.
        """
        limit = self.config["max.poll.records"] if max_records is None else max_records
        deadline = Deadline(timeout_ms)
        while True:
            await self._prepare_poll(deadline)
            records = self._take_records(limit)
            if records:
                return records
            if not await self._wait(deadline):
                return []

    async def poll_pieces(self, timeout_ms: float = 0, *, max_bytes: int = _ARROW_BATCH_BYTES) -> list[Fetched]:
        """What `poll_arrow` decodes: pieces of Fetch answers, which count as handed out."""
        deadline = Deadline(timeout_ms)
        while True:
            await self._prepare_poll(deadline)
            pieces = self._take_pieces(max_bytes)
            if pieces:
                return pieces
            if not await self._wait(deadline):
                return []

    async def poll_arrow(
        self, timeout_ms: float = 0, *, max_bytes: int = _ARROW_BATCH_BYTES, **options: Any
    ) -> pa.RecordBatch:
        """What came next as one pyarrow.RecordBatch, empty when nothing did within `timeout_ms`.

        Columns topic, partition, offset, timestamp, timestamp_type, leader_epoch, key, value, headers; `options` as in
        `fenceline.records.arrow.ArrowDecoder`. `max_bytes` bounds the fetched bytes decoded at once. Raises as `poll`.
        """
        return to_arrow(await self.poll_pieces(timeout_ms, max_bytes=max_bytes), **options)

    async def _prepare_poll(self, deadline: Deadline) -> None:
        if self._is_closed:
            raise OperatorError("The consumer is closed", "Make a new one.")
        if self._subscribed:
            assert self._group is not None
            if self._pattern is not None and self.cluster.metadata.update_version == 0:
                await self.cluster.refresh()
            await self._group.poll_group(deadline)
            self._commit_when_due()
        elif not list(self.positions):
            raise OperatorError("The consumer has nothing to read", "Call assign or subscribe first.")
        else:
            self._commit_when_due()
        if self._fetcher.trouble:
            raise self._fetcher.trouble.popleft()
        await self._start_positions()
        for state in self.positions.states():
            if state.truncation is not None:
                raise state.truncation

    async def _wait(self, deadline: Deadline) -> bool:
        """Wait for news; False when the time is over."""
        if deadline.is_over:
            return False
        left_s = deadline.left_ms / 1000
        if self._group is not None and self._subscribed and self._group.needs_join:
            left_s = min(left_s, 0.05)
        await self._fetcher.wait_for_arrival(left_s)
        return True

    def _take_records(self, limit: int) -> list[ConsumerRecord]:
        found: list[ConsumerRecord] = []
        while len(found) < limit:
            if self._held is None:
                piece = self._fetcher.take()
                if piece is None:
                    break
                self._held = piece, to_records(piece.fetched), 0
            piece, records, index = self._held
            state = self.positions.get(piece.tp)
            if state is None or state.serial != piece.serial:
                self._held = None
                continue
            taken = records[index : index + limit - len(found)]
            found += taken
            index += len(taken)
            if index == len(records):
                self._held = None
                self.positions.consumed(piece.tp, piece.fetched.next_offset, piece.fetched.last_epoch)
            else:
                self._held = piece, records, index
                self.positions.consumed(piece.tp, taken[-1].offset + 1, taken[-1].leader_epoch)
        return found

    def _take_pieces(self, max_bytes: int) -> list[Fetched]:
        pieces: list[Fetched] = []
        size_bytes = 0
        if self._held is not None:
            piece, records, index = self._held
            self._held = None
            state = self.positions.get(piece.tp)
            if state is not None and state.serial == piece.serial:
                # A poll for records took the first part of this piece: hand out the rest.
                rest_from = records[index].offset
                runs = tuple(
                    run._replace(start_offset=max(run.start_offset, rest_from))
                    for run in piece.fetched.runs
                    if run.end_offset_exclusive > rest_from
                )
                pieces.append(piece.fetched._replace(runs=runs, start_offset=rest_from))
                self.positions.consumed(piece.tp, piece.fetched.next_offset, piece.fetched.last_epoch)
        while size_bytes < max_bytes:
            taken = self._fetcher.take()
            if taken is None:
                break
            self.positions.consumed(taken.tp, taken.fetched.next_offset, taken.fetched.last_epoch)
            if taken.fetched.runs:
                pieces.append(taken.fetched)
                size_bytes += taken.fetched.size_bytes
        return pieces

    async def _start_positions(self) -> None:
        """Give every partition without a position one: committed, or by policy."""
        fresh = [tp for tp, state in self.positions.items() if state.phase is Phase.INITIALIZING]
        if not fresh:
            return
        found: dict[TopicPartition, CommittedOffset] = {}
        if self.config["group.id"]:
            patience = Deadline(self.config["default.api.timeout.ms"])
            found = await fetch_committed(
                self.cluster,
                self.config["group.id"],
                fresh,
                patience,
                membership=self._group.membership if self._group is not None and self._subscribed else None,
            )
        for tp in fresh:
            state = self.positions.get(tp)
            if state is None or state.phase is not Phase.INITIALIZING:
                continue
            offset = found.get(tp)
            if offset is not None:
                if self.cluster.metadata.note_epoch(tp, offset.leader_epoch):
                    self.cluster.request_refresh()
                self.positions.seek(tp, offset.offset, offset.leader_epoch)
            elif self.config["auto.offset.reset"] == "none":
                raise NoOffsetError(tp.topic, tp.partition)
            else:
                self.positions.await_reset(tp, self.config["auto.offset.reset"])
        self._fetcher.changed()

    # -- positions

    def seek(self, tp: TopicPartition, offset: int, leader_epoch: int = NO_EPOCH) -> None:
        """Read on from `offset`. With the epoch of the record before it, the log is checked against it first (E53)."""
        self.positions.seek(TopicPartition(*tp), offset, leader_epoch)
        if self.cluster.metadata.note_epoch(TopicPartition(*tp), leader_epoch):
            self.cluster.request_refresh()
        self._fetcher.changed()

    def seek_to_beginning(self, partitions: Collection[TopicPartition] = ()) -> None:
        self._reset(partitions, EARLIEST)

    def seek_to_end(self, partitions: Collection[TopicPartition] = ()) -> None:
        self._reset(partitions, LATEST)

    def _reset(self, partitions: Collection[TopicPartition], to: int) -> None:
        for tp in partitions or self.assignment():
            self.positions.await_reset(TopicPartition(*tp), to)
        self._fetcher.changed()

    async def position(self, tp: TopicPartition, *, timeout_ms: float | None = None) -> int:
        """The offset of the next record that poll hands out."""
        return (await self.position_and_epoch(tp, timeout_ms=timeout_ms)).offset

    async def position_and_epoch(self, tp: TopicPartition, *, timeout_ms: float | None = None) -> CommittedOffset:
        """`position`, and the leader epoch of the last record before it (-1 unknown), as commits carry them."""
        tp = TopicPartition(*tp)
        deadline = self._deadline(timeout_ms)
        self.positions.of(tp)
        while True:
            await self._start_positions()
            state = self.positions.of(tp)
            if state.truncation is not None:
                raise state.truncation
            if state.position is not None:
                return CommittedOffset(state.position.offset, state.position.epoch)
            if self._fetcher.trouble:
                raise self._fetcher.trouble.popleft()
            if deadline.is_over:
                raise TimedOut(f"no position for {tp} within {deadline.timeout_ms:.0f} ms: are its brokers up?")
            await self._fetcher.wait_for_arrival(min(0.02, deadline.left_ms / 1000))
            # Data that is already buffered does not count as arriving: give the look-up its turn.
            await asyncio.sleep(0.001)

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Hand out nothing of these until `resume`; the membership goes on."""
        for tp in partitions:
            state = self.positions.of(TopicPartition(*tp))
            if not state.is_paused:
                state.is_paused = True
                self.positions.rewind(TopicPartition(*tp))

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        for tp in partitions:
            self.positions.of(TopicPartition(*tp)).is_paused = False
        self._fetcher.changed()

    def paused(self) -> list[TopicPartition]:
        return sorted(tp for tp, state in self.positions.items() if state.is_paused)

    def lag(self, tp: TopicPartition) -> int | None:
        """Records between the position and the end a reader may see, as of the last fetch; None before the first."""
        state = self.positions.of(TopicPartition(*tp))
        committed = self.config["isolation.level"] == "read_committed"
        end = state.last_stable_offset if committed else state.high_watermark
        return None if end < 0 or state.position is None else max(0, end - state.position.offset)

    # -- offsets

    async def committed(
        self, partitions: Collection[TopicPartition], *, timeout_ms: float | None = None
    ) -> dict[TopicPartition, CommittedOffset | None]:
        """The group's committed offsets; None where there is none."""
        group_id = self._require_group()
        found = await fetch_committed(self.cluster, group_id, partitions, self._deadline(timeout_ms))
        return {TopicPartition(*tp): found.get(TopicPartition(*tp)) for tp in partitions}

    async def commit(
        self,
        offsets: Mapping[TopicPartition, CommittedOffset | int] | None = None,
        *,
        timeout_ms: float | None = None,
    ) -> None:
        """Commit positions (None: of all that was handed out), with their leader epochs (E61).

        Raises CommitFailedError when the group has moved on.
        """
        group_id = self._require_group()
        if offsets is None:
            values = self.commitable()
        else:
            values = {
                TopicPartition(*tp): CommittedOffset(value) if isinstance(value, int) else CommittedOffset(*value)
                for tp, value in offsets.items()
            }
        if not values:
            return
        deadline = self._deadline(timeout_ms)
        if self._subscribed and self._group is not None:
            await self._group.commit(values, deadline)
        else:
            await self.cluster.retrying(deadline, lambda: commit_outside(self.cluster, group_id, values, deadline))

    def commitable(self) -> dict[TopicPartition, CommittedOffset]:
        """Positions up to which records were handed out."""
        return {
            tp: CommittedOffset(state.position.offset, state.position.epoch)
            for tp, state in self.positions.items()
            if state.position is not None and state.truncation is None
        }

    async def beginning_offsets(
        self, partitions: Collection[TopicPartition], *, timeout_ms: float | None = None
    ) -> dict[TopicPartition, int]:
        return {tp: found.offset for tp, found in (await self._look_up(partitions, EARLIEST, timeout_ms)).items()}

    async def end_offsets(
        self, partitions: Collection[TopicPartition], *, timeout_ms: float | None = None
    ) -> dict[TopicPartition, int]:
        """High watermarks, or last stable offsets with isolation.level=read_committed."""
        return {tp: found.offset for tp, found in (await self._look_up(partitions, LATEST, timeout_ms)).items()}

    async def offsets_for_times(
        self, timestamps_ms: Mapping[TopicPartition, int], *, timeout_ms: float | None = None
    ) -> dict[TopicPartition, OffsetAndEpoch | None]:
        """The first record at or after each time; None where there is none."""
        wanted = {TopicPartition(*tp): at for tp, at in timestamps_ms.items()}
        found = await self._list(wanted, timeout_ms)
        return {tp: None if answer.offset < 0 else answer for tp, answer in found.items()}

    async def partitions_for(self, topic: str, *, timeout_ms: float | None = None) -> list[int]:
        answer = await self.cluster.fetch_metadata([topic], self._deadline(timeout_ms))
        known = answer.topics.get(topic)
        return [] if known is None else sorted(known.partitions)

    async def _look_up(
        self, partitions: Collection[TopicPartition], spec: int, timeout_ms: float | None
    ) -> dict[TopicPartition, OffsetAndEpoch]:
        return await self._list({TopicPartition(*tp): spec for tp in partitions}, timeout_ms)

    async def _list(
        self, wanted: Mapping[TopicPartition, OffsetSpec], timeout_ms: float | None
    ) -> dict[TopicPartition, OffsetAndEpoch]:
        isolation = int(self.config["isolation.level"] == "read_committed")
        deadline = self._deadline(timeout_ms)
        return await list_offsets(self.cluster, wanted, deadline=deadline, isolation_level=isolation)

    # -- closing

    async def close(self, timeout_ms: float = 30_000) -> None:
        """Commit (with enable.auto.commit), leave the group and end."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if self._subscribed and self._group is not None:
                await self._commit_before_giving_up()
                try:
                    await self._tell("revoked", list(self._group.assignment))
                finally:
                    await self._group.leave(Deadline(timeout_ms), "the consumer was closed")
            elif self.config["group.id"] and self.config["enable.auto.commit"]:
                await self._commit_before_giving_up()
        finally:
            if self._group is not None:
                await self._group.close()
            for task in self._background:
                task.cancel()
            await self._fetcher.close()
            await self.cluster.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # -- the group's side

    async def partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        await self._commit_before_giving_up()
        await self._tell("revoked", partitions)
        kept = [tp for tp in self.positions if tp not in set(partitions)]
        self.positions.assign(kept)
        self._drop_held()

    async def partitions_lost(self, partitions: list[TopicPartition]) -> None:
        await self._tell("lost" if self._listeners.get("lost") is not None else "revoked", partitions)
        self.positions.assign([tp for tp in self.positions if tp not in set(partitions)])
        self._drop_held()

    async def partitions_assigned(self, assignment: list[TopicPartition], added: list[TopicPartition]) -> None:
        self.positions.assign(assignment)
        self._drop_held()
        self._next_commit_s = time.monotonic() + self.config["auto.commit.interval.ms"] / 1000
        await self._tell("assigned", added)
        self._fetcher.changed()

    async def _tell(self, what: str, partitions: list[TopicPartition]) -> None:
        listener = self._listeners.get(what)
        if listener is not None and (partitions or what == "assigned"):
            outcome = listener(partitions)
            if inspect.isawaitable(outcome):
                await outcome

    # -- inside

    def _commit_when_due(self) -> None:
        if not (self.config["enable.auto.commit"] and self.config["group.id"]):
            return
        now_s = time.monotonic()
        if self._next_commit_s == 0.0:
            self._next_commit_s = now_s + self.config["auto.commit.interval.ms"] / 1000
        if now_s < self._next_commit_s:
            return
        self._next_commit_s = now_s + self.config["auto.commit.interval.ms"] / 1000
        task = asyncio.ensure_future(self._commit_quietly(self.commitable()))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _commit_before_giving_up(self) -> None:
        if self.config["enable.auto.commit"] and self.config["group.id"]:
            await self._commit_quietly(self.commitable(), timeout_ms=5_000)

    async def _commit_quietly(
        self, offsets: dict[TopicPartition, CommittedOffset], *, timeout_ms: float | None = None
    ) -> None:
        try:
            await self.commit(offsets, timeout_ms=timeout_ms)
        except (PeerError, OperatorError) as error:
            _log.warning("group %s: auto commit failed: %s", self.config["group.id"], error)

    def _metadata_changed(self) -> None:
        if self._pattern is not None and self._group is not None:
            pattern, hidden = self._pattern, INTERNAL_TOPICS if self.config["exclude.internal.topics"] else frozenset()
            self._group.subscribe([t for t in self.cluster.metadata.topics if pattern.fullmatch(t) and t not in hidden])
        if self._group is not None and self._subscribed:
            self._group.metadata_changed()
        self._fetcher.changed()

    def _track(self, topics: set[str]) -> None:
        self.cluster.tracked = set(topics)
        if topics - self.cluster.metadata.topics.keys():
            self.cluster.request_refresh()
        self.cluster.keep_fresh()

    def _drop_held(self) -> None:
        """Forget a piece that is partly handed out, when its partition is not ours any more."""
        if self._held is not None and self._held[0].tp not in self.positions:
            self._held = None

    def _require_group(self) -> str:
        group_id: str | None = self.config["group.id"]
        if not group_id:
            raise OperatorError("Committed offsets belong to a group", "Set group.id.")
        return group_id

    def _deadline(self, timeout_ms: float | None) -> Deadline:
        return Deadline(self.config["default.api.timeout.ms"] if timeout_ms is None else timeout_ms)
