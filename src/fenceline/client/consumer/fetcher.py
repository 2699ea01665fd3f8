"""Prefetching for a consumer: one Fetch in flight per broker and a bounded buffer; validates and resets positions.

Owns the task that keeps the buffer filled and handles the responses: records, a new leader, a preferred read replica,
an offset out of range, a divergence. Errors never end the task: they wait in `next_error`, or in the partition's
state, until the next poll raises them.

Memory: responses of which pieces are held and requests in flight together use at most `queued.max.bytes`
(`fetch_memory.py`). A piece that `next_piece` returned is held until `release`.

Rules: `epochs.md` E46-E52, E55, E59.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from fenceline.client.consumer.position_requests import PositionRequests
from fenceline.client.consumer.positions import Position, PositionPhase, Positions, PositionState
from fenceline.client.core.cluster import Cluster, Purpose
from fenceline.client.core.config import ClientConfig
from fenceline.client.core.deadline import backoff_ms, wait_at_most
from fenceline.client.core.epoch_history import can_follow
from fenceline.client.core.errors import (
    RETRIABLE,
    STALE_METADATA,
    ClientError,
    ConnectionLost,
    NoOffsetError,
    OffsetOutOfRangeError,
    TimedOut,
    UnknownEpochError,
    broker_error,
    error_code,
)
from fenceline.client.core.fetch_memory import FetchMemory
from fenceline.client.core.fetch_session import IncrementalFetch, PartitionFetch
from fenceline.client.core.fetch_wire import (
    diverging_end,
    fetch_error,
    fetch_once,
    is_permanent,
    scan_answer,
)
from fenceline.client.core.fetched import Fetched
from fenceline.client.core.metadata import LeaderAndEpoch
from fenceline.client.core.offsets import reset_spec
from fenceline.client.core.surroundings import surroundings
from fenceline.errors import ErrorCode, PeerError
from fenceline.ids import TopicPartition

if TYPE_CHECKING:
    from fenceline.wire.fetch import FetchedPartition

_log = logging.getLogger("fenceline.client")
_NO_NODE: Final = -1


class FetchedPiece(NamedTuple):
    """A buffered part of a response; invalid once the partition's serial has changed."""

    tp: TopicPartition
    serial: int
    fetched: Fetched


class PendingError(NamedTuple):
    """An error for the next poll to raise; dropped if the partition is repositioned before."""

    error: Exception
    tp: TopicPartition | None
    serial: int


class Fetcher:
    """Runs on the consumer's loop. Call `wake()` after a change of assignment, positions or free memory."""

    def __init__(self, cluster: Cluster, positions: Positions, config: ClientConfig) -> None:
        self._cluster = cluster
        self._positions = positions
        self._config = config
        self._buffer: deque[FetchedPiece] = deque()
        self._buffered_by_tp: dict[TopicPartition, int] = {}
        self._memory = FetchMemory(config["queued.max.bytes"])
        self._is_full = False
        self._in_flight: dict[int, asyncio.Task[None]] = {}
        self._sessions: defaultdict[int, IncrementalFetch] = defaultdict(IncrementalFetch)
        self._requests = PositionRequests(
            cluster, positions, config, on_answers=self._requests_answered, delay=self._delay, report=self._report
        )
        self._wake = asyncio.Event()
        self._arrived = asyncio.Event()
        self._rotation = 0
        self._checked_version = -1
        """The `update_version` of the metadata that all positions were last checked against."""
        self._errors: deque[PendingError] = deque()
        self._task = asyncio.ensure_future(self._run())

    def wake(self) -> None:
        self._wake.set()

    async def close(self) -> None:
        tasks = [self._task, *self._in_flight.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._requests.close()

    # -- for poll

    def next_piece(self) -> FetchedPiece | None:
        """Remove and return the oldest piece that is valid and readable now, None if there is none. See `release`."""
        kept: list[FetchedPiece] = []
        found: FetchedPiece | None = None
        while self._buffer and found is None:
            piece = self._buffer.popleft()
            state = self._positions.get(piece.tp)
            if state is None or state.serial != piece.serial or state.is_paused:
                self._drop(piece)
            elif self.is_valid(piece):
                self._uncount(piece)
                found = piece
            else:
                kept.append(piece)
        self._buffer.extendleft(reversed(kept))
        return found

    def is_valid(self, piece: FetchedPiece) -> bool:
        """Whether the piece may be returned now. Checks the newest metadata first, which the loop may not have handled
        yet: it can have another leader, or another topic of that name.
        """
        state = self._positions.get(piece.tp)
        if state is None or state.serial != piece.serial:
            return False
        if self._checked_version != self._cluster.metadata.update_version:
            self._check_metadata(piece.tp)
        return state.serial == piece.serial and state.is_readable

    def release(self, pieces: Iterable[Fetched]) -> None:
        """Release pieces that `next_piece` returned."""
        self._memory.release(pieces)
        if self._is_full and self._memory.has_room:
            self._wake.set()

    def next_error(self) -> Exception | None:
        """Remove and return the oldest error that was not raised yet."""
        while self._errors:
            error, tp, serial = self._errors.popleft()
            state = None if tp is None else self._positions.get(tp)
            if tp is None or (state is not None and state.serial == serial):
                return error
        return None

    def _drop(self, piece: FetchedPiece) -> None:
        self._uncount(piece)
        self.release([piece.fetched])

    def _uncount(self, piece: FetchedPiece) -> None:
        left = self._buffered_by_tp[piece.tp] - 1
        if left:
            self._buffered_by_tp[piece.tp] = left
        else:
            del self._buffered_by_tp[piece.tp]

    def _has_readable(self) -> bool:
        for piece in self._buffer:
            state = self._positions.get(piece.tp)
            if state is not None and state.serial == piece.serial and state.is_readable:
                return True
        return False

    async def wait_for_arrival(self, timeout_s: float) -> None:
        """Wait until there is a piece or an error for poll, at most `timeout_s`."""
        if not (self._errors or self._has_readable() or self._positions.lost()):
            await self.wait_for_change(timeout_s)

    async def wait_for_change(self, timeout_s: float) -> None:
        """Wait until a piece or an error arrives, a request about positions is answered, or `wake_poll` is called, at
        most `timeout_s`."""
        self._arrived.clear()
        await wait_at_most(self._arrived, timeout_s)

    def wake_poll(self) -> None:
        """Wake a waiting poll."""
        self._arrived.set()

    # -- the loop

    async def _run(self) -> None:
        while True:
            pause_s: float | None
            try:
                pause_s = self._step()
            except Exception as error:
                _log.exception("unexpected error in the fetcher")
                self._report(error)
                pause_s = 1.0
            await wait_at_most(self._wake, pause_s)
            self._wake.clear()

    def _step(self) -> float | None:
        """Start all requests that are possible; returns the seconds until the next step (None: after a change)."""
        now_s = asyncio.get_running_loop().time()
        metadata = self._cluster.metadata
        due_s = float("inf")
        to_fetch: dict[int, list[TopicPartition]] = {}
        to_reset: dict[int, list[TopicPartition]] = {}
        to_validate: dict[int, list[TopicPartition]] = {}
        to_learn: dict[int, list[TopicPartition]] = {}
        is_behind = False
        self._checked_version = metadata.update_version
        for tp, state in self._positions.items():
            known = metadata.leader(tp)
            leader = self._check_metadata(tp)
            if state.phase is PositionPhase.INITIALIZING or state.is_lost:
                continue
            if known.leader < 0:
                is_behind = True
                continue
            if now_s < state.retry_at_s:
                due_s = min(due_s, state.retry_at_s)
            elif state.phase is PositionPhase.AWAIT_RESET:
                if state.reset_to in (None, "none"):
                    self._report(NoOffsetError(tp.topic, tp.partition), tp)
                    self._delay([tp])
                else:
                    to_reset.setdefault(known.leader, []).append(tp)
            elif leader is None:
                to_learn.setdefault(known.leader, []).append(tp)
            elif state.phase is PositionPhase.AWAIT_VALIDATION:
                if self._positions.validation_query(tp) is not None:
                    to_validate.setdefault(leader.leader, []).append(tp)
                else:
                    is_behind = True
                    self._wait_for_epoch(tp, state, leader.epoch, now_s)
                    if known.epoch < 0:
                        self._requests.epochs.forget(tp)
                        self._delay([tp])
            elif not state.is_paused:
                to_fetch.setdefault(self._node_to_read(state, leader.leader, now_s), []).append(tp)
        for node_id, partitions in to_reset.items():
            self._requests.reset(node_id, partitions)
        for node_id, partitions in to_validate.items():
            self._requests.validate(node_id, partitions)
        for node_id, partitions in to_learn.items():
            self._requests.learn_epochs(node_id, partitions)
        self._fetch_from({n: tps for n, tps in to_fetch.items() if n not in self._in_flight})
        if is_behind:
            self._cluster.request_refresh()
            due_s = min(due_s, now_s + self._config["retry.backoff.ms"] / 1000)
        return None if due_s == float("inf") else max(0.001, due_s - now_s)

    def _check_metadata(self, tp: TopicPartition) -> LeaderAndEpoch | None:
        """Check the position against metadata: a new leader, epoch or topic makes buffered pieces invalid. Returns the
        leader, None if its epoch must be learned first."""
        metadata = self._cluster.metadata
        leader = self._requests.epochs.of(tp, metadata.leader(tp))
        if self._positions.check_topic(tp, metadata.topic_id(tp.topic)):
            self._arrived.set()
        if leader is not None and self._positions.check_leader(tp, leader):
            self._cluster.reconnect_now(leader.leader)
            self._wake.set()
        return leader

    def _wait_for_epoch(self, tp: TopicPartition, state: PositionState, known_epoch: int, now_s: float) -> None:
        """No known leader can validate the position (E54): wait for one, and report an error if there is none."""
        position = state.fetch_position
        if state.waits_for_epoch_since_s is None or position is None:
            state.waits_for_epoch_since_s = now_s
        elif (now_s - state.waits_for_epoch_since_s) * 1000 >= self._config["default.api.timeout.ms"]:
            state.waits_for_epoch_since_s = now_s
            self._report(UnknownEpochError(tp.topic, tp.partition, position.offset, position.epoch, known_epoch), tp)

    # -- fetching

    def _node_to_read(self, state: PositionState, leader: int, now_s: float) -> int:
        """The preferred read replica, else the leader."""
        if state.read_replica != _NO_NODE and (
            now_s >= state.read_replica_until_s or state.read_replica not in self._cluster.metadata.brokers
        ):
            state.read_replica = _NO_NODE
        return leader if state.read_replica == _NO_NODE else state.read_replica

    def _fetch_from(self, by_node: dict[int, list[TopicPartition]]) -> None:
        """Send one Fetch to each node, limited by the free memory."""
        self._is_full = False
        if by_node and not self._memory.has_room:
            self._make_room()
        for number, (node_id, partitions) in enumerate(by_node.items()):
            if not self._memory.has_room:
                self._is_full = True
                return
            requested_bytes = min(
                self._config["fetch.max.bytes"], len(partitions) * self._config["max.partition.fetch.bytes"]
            )
            max_bytes = self._memory.reserve(requested_bytes, len(by_node) - number)
            self._rotation += 1
            task = self._in_flight[node_id] = asyncio.ensure_future(self._fetch(node_id, partitions, max_bytes))
            task.add_done_callback(lambda _: self._wake.set())

    def _make_room(self) -> None:
        """If all memory is held by partitions in validation whose leaders do not answer, drop their pieces, to be
        fetched again later: other partitions must not wait for them."""
        if self._in_flight or self._has_readable():
            return
        for tp, state in self._positions.items():
            if state.phase is PositionPhase.AWAIT_VALIDATION and not state.is_lost:
                self._positions.rewind(tp)
        kept: deque[FetchedPiece] = deque()
        for piece in self._buffer:
            at_hand = self._positions.get(piece.tp)
            if at_hand is not None and at_hand.serial == piece.serial:
                kept.append(piece)
            else:
                self._drop(piece)
        self._buffer = kept

    async def _fetch(self, node_id: int, partitions: list[TopicPartition], max_bytes: int) -> None:
        try:
            asked: dict[TopicPartition, tuple[int, Position]] = {}
            # Partitions with nothing buffered come first, and the order rotates, so that full responses starve none.
            rotation = self._rotation % len(partitions)
            order = sorted(
                partitions[rotation:] + partitions[:rotation], key=lambda tp: self._buffered_by_tp.get(tp, 0)
            )
            wanted = []
            session = self._sessions[node_id]
            for tp in order:
                state = self._positions.get(tp)
                if state is None or state.fetch_position is None or state.phase is not PositionPhase.FETCHING:
                    continue
                position = state.fetch_position
                asked[tp] = state.serial, position
                if state.high_watermark < 0 and tp in session:
                    # The broker would leave out a partition without news, but its ends are not known here any more.
                    session.end()
                wanted.append(
                    PartitionFetch(
                        tp,
                        position.offset,
                        position.record_epoch,
                        position.leader.epoch,
                        self._config["max.partition.fetch.bytes"],
                    )
                )
            if not wanted:
                return
            connection = await self._cluster.link(node_id, Purpose.FETCH).connection()
            answers = await fetch_once(
                self._cluster,
                connection,
                wanted,
                self._config,
                max_bytes=max_bytes,
                rack_id=self._config["client.rack"],
                session=session,
            )
            for tp, answer in answers.items():
                state = self._positions.get(tp)
                if tp in asked and state is not None:
                    state.unanswered = 0
                    serial, position = asked[tp]
                    if state.serial == serial and state.fetch_position == position:
                        self._handle_partition(tp, state, position, answer, node_id)
        except (ConnectionLost, TimedOut) as error:
            _log.info("fetch failed: %s", error)
            self._cluster.request_refresh()
            self._delay(partitions, is_answered=False, leaves=node_id)
        except PeerError as error:
            if error.code not in RETRIABLE:
                self._report(error)
            self._delay(partitions, leaves=node_id)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self._report(error)
            self._delay(partitions)
        finally:
            self._memory.release_reservation(max_bytes)
            self._in_flight.pop(node_id, None)

    def _handle_partition(
        self, tp: TopicPartition, state: PositionState, position: Position, answer: FetchedPartition, node_id: int
    ) -> None:
        """A damaged batch must not affect the other partitions of the response. It is fetched again: another replica
        may have an intact copy, or it was damaged in transit."""
        try:
            self._handle_response(tp, state, position, answer, node_id)
        except PeerError as error:
            is_client_error = isinstance(error, ClientError)
            where = f"reading {tp} at offset {position.offset}"
            self._report(error if is_client_error else broker_error(error.code, where, str(error)), tp)
            self._delay([tp])

    def _handle_response(
        self, tp: TopicPartition, state: PositionState, position: Position, answer: FetchedPartition, node_id: int
    ) -> None:
        code = error_code(answer.error_code)
        if code is not ErrorCode.NONE:
            self._handle_error(tp, state, position, code, node_id)
            return
        if answer.preferred_read_replica >= 0 and answer.preferred_read_replica != node_id:
            self._use_read_replica(tp, state, answer.preferred_read_replica)
        state.high_watermark = answer.high_watermark
        state.last_stable_offset = answer.last_stable_offset
        state.log_start_offset = answer.log_start_offset
        if (end := diverging_end(answer)) is not None:
            if node_id != position.leader.leader and self._positions.request_validation(tp):
                # A follower may have lost records that the leader still has.
                state.read_replica = _NO_NODE
                self._delay([tp])
                return
            self._positions.diverged(tp, end)
            if state.truncation is not None:
                _log.warning("%s", state.truncation)
            self._arrived.set()
            return
        if not answer.records:
            return
        fetched, _ = scan_answer(self._config, tp, answer, position.offset, position.record_epoch)
        if fetched.next_offset == position.offset:
            return
        if position.leader.epoch < 0 and not can_follow(fetched.epoch_starts, position.record_epoch):
            # No broker can validate the position, but the records' epochs show that the log was rewritten.
            self._positions.rewritten(tp)
            self._arrived.set()
            return
        if self._cluster.metadata.note_epoch(tp, fetched.last_epoch):
            self._cluster.request_refresh()
        state.fetch_position = Position(fetched.next_offset, fetched.last_epoch, position.leader)
        self._buffer.append(FetchedPiece(tp, state.serial, fetched))
        self._memory.hold(fetched)
        self._buffered_by_tp[tp] = self._buffered_by_tp.get(tp, 0) + 1
        self._arrived.set()

    def _use_read_replica(self, tp: TopicPartition, state: PositionState, replica: int) -> None:
        """Read from the replica that the leader named, until metadata expires (KIP-392)."""
        if replica not in self._cluster.metadata.brokers:
            self._cluster.request_refresh()
            self._delay([tp])
            return
        state.read_replica = replica
        lease_s = self._config["metadata.max.age.ms"] / 1000
        state.read_replica_until_s = asyncio.get_running_loop().time() + lease_s

    def _handle_error(
        self, tp: TopicPartition, state: PositionState, position: Position, code: ErrorCode, node_id: int
    ) -> None:
        if node_id != position.leader.leader:
            # A follower that is behind, or no longer a replica: ask the leader (E52).
            state.read_replica = _NO_NODE
            if code is ErrorCode.OFFSET_OUT_OF_RANGE:
                self._delay([tp])
                return
        if code is ErrorCode.OFFSET_OUT_OF_RANGE:
            # With a known epoch, validate first: the log may be truncated. Without one, apply auto.offset.reset.
            if self._positions.request_validation(tp):
                state.out_of_range = True
            else:
                self._out_of_range(tp, state, position)
            return
        if code in STALE_METADATA:
            self._cluster.request_refresh()
            self._requests.epochs.forget(tp)
            known = self._cluster.metadata.leader(tp)
            if known.epoch >= 0 and known.leader >= 0 and known != position.leader:
                return  # The response named the new leader (KIP-951).
            if known.epoch < 0 and code is ErrorCode.FENCED_LEADER_EPOCH:
                return  # The next step learns the leader's epoch.
        elif is_permanent(code):
            self._report(fetch_error(code, tp, position.offset), tp)
        self._delay([tp])

    def _out_of_range(self, tp: TopicPartition, state: PositionState, position: Position) -> None:
        if state.position is not None and state.position.offset != position.offset:
            # Records fetched before must be returned first.
            self._delay([tp])
            return
        policy = self._config["auto.offset.reset"]
        if policy == "none":
            self._report(
                OffsetOutOfRangeError(
                    tp.topic,
                    tp.partition,
                    position.offset,
                    leader_epoch=position.record_epoch,
                    log_start_offset=state.log_start_offset,
                    log_end_offset=state.high_watermark,
                ),
                tp,
            )
            self._delay([tp])
            return
        to = reset_spec(policy, surroundings().wall_ms())
        _log.warning("%s: offset %d is out of range, resetting to %s", tp, position.offset, to)
        self._positions.await_reset(tp, to)

    # -- inside

    def _requests_answered(self, partitions: Collection[TopicPartition]) -> None:
        """Requests about these positions were answered. A valid position that is out of range follows
        `auto.offset.reset`."""
        for tp in partitions:
            state = self._positions.get(tp)
            if state is None:
                continue
            state.waits_for_epoch_since_s, state.unanswered = None, 0
            if state.out_of_range and state.phase is PositionPhase.FETCHING and state.fetch_position is not None:
                state.out_of_range = False
                self._out_of_range(tp, state, state.fetch_position)
        self._wake.set()
        if partitions:
            self._arrived.set()

    def _delay(
        self, partitions: Collection[TopicPartition], *, is_answered: bool = True, leaves: int = _NO_NODE
    ) -> None:
        """Retry these after a backoff, which grows while the node does not answer. `leaves`: a node that is no longer
        used as their preferred read replica."""
        states = [state for tp in partitions if (state := self._positions.get(tp)) is not None]
        for state in states:
            state.unanswered = 0 if is_answered else state.unanswered + 1
        attempt = max((state.unanswered for state in states), default=0)
        pause_ms = backoff_ms(max(1, attempt), self._config["retry.backoff.ms"], self._config["retry.backoff.max.ms"])
        until_s = asyncio.get_running_loop().time() + pause_ms / 1000
        for state in states:
            if leaves != _NO_NODE and state.read_replica == leaves:
                state.read_replica = _NO_NODE
            else:
                state.retry_at_s = until_s

    def _report(self, error: Exception, tp: TopicPartition | None = None) -> None:
        """Keep an error for the next poll; a repeated one is kept once."""
        state = None if tp is None else self._positions.get(tp)
        pending = PendingError(error, tp, -1 if state is None else state.serial)
        if not any((t.tp, t.serial, str(t.error)) == (tp, pending.serial, str(error)) for t in self._errors):
            self._errors.append(pending)
        self._arrived.set()
