"""Fetching ahead for a consumer: one request in flight a broker, a bounded buffer, positions validated and reset on
the way.

Owns the task that keeps the buffer filled and turns what brokers answer into state: data, another leader, an offset
that is out of range, a divergence. Never raises into the void: what the caller must know waits in `trouble` or in the
partition's state for the next poll.

Rules: `epochs.md` E46-E52, E55, E59.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Collection, Coroutine
from typing import TYPE_CHECKING, Any, NamedTuple

from fenceline.client.cluster import Cluster, Purpose
from fenceline.client.config import ClientConfig
from fenceline.client.deadline import Deadline, backoff_ms
from fenceline.client.errors import (
    RETRIABLE,
    STALE_METADATA,
    ConnectionLost,
    NoOffsetError,
    OffsetOutOfRangeError,
    TimedOut,
    broker_error,
    error_code,
)
from fenceline.client.fetch_wire import PartitionFetch, fetch_once
from fenceline.client.fetched import Fetched, scan
from fenceline.client.offsets import EpochEnd, list_offsets, offsets_for_leader_epoch
from fenceline.client.positions import PartitionState, Phase, Position, Positions
from fenceline.errors import ErrorCode, PeerError
from fenceline.ids import TopicPartition
from fenceline.records.aborted import AbortedTransactions
from fenceline.wire.apis import ApiKey

if TYPE_CHECKING:
    from fenceline.wire.fetch import FetchedPartition

_log = logging.getLogger("fenceline.client")
_VALIDATING_VERSION = 3
"""OffsetForLeaderEpoch before this version is not for consumers (E22, E46)."""


class Piece(NamedTuple):
    """A buffered part of an answer; of no use once the partition's serial moved on."""

    tp: TopicPartition
    serial: int
    fetched: Fetched


class Fetcher:
    """Runs on the consumer's loop. `changed()` tells it that assignment, positions or room have changed."""

    def __init__(self, cluster: Cluster, positions: Positions, config: ClientConfig) -> None:
        self._cluster = cluster
        self._positions = positions
        self._config = config
        self._buffer: deque[Piece] = deque()
        self._buffered_bytes = 0
        self._buffered_by_tp: dict[TopicPartition, int] = {}
        self._limit_bytes = config["queued.max.bytes"]
        self._isolation = int(config["isolation.level"] == "read_committed")
        self._in_flight: dict[int, asyncio.Task[None]] = {}
        self._resetting: asyncio.Task[None] | None = None
        self._validating: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._arrived = asyncio.Event()
        self._failures = 0
        self._turn = 0
        self._seen_version = -1
        self.trouble: deque[Exception] = deque()
        self._task = asyncio.ensure_future(self._run())

    def changed(self) -> None:
        self._wake.set()

    async def close(self) -> None:
        tasks = [t for t in (self._task, self._resetting, self._validating, *self._in_flight.values()) if t is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- what poll takes

    def take(self) -> Piece | None:
        """The oldest piece that still counts, None when there is none."""
        while self._buffer:
            piece = self._buffer.popleft()
            self._buffered_bytes -= piece.fetched.size_bytes
            left = self._buffered_by_tp[piece.tp] - 1
            if left:
                self._buffered_by_tp[piece.tp] = left
            else:
                del self._buffered_by_tp[piece.tp]
            self._wake.set()
            state = self._positions.get(piece.tp)
            if state is not None and state.serial == piece.serial and not state.is_paused:
                return piece
        return None

    async def wait_for_arrival(self, timeout_s: float) -> None:
        """Wait until something new is there to take or to raise, at most `timeout_s`."""
        if self._buffer or self.trouble:
            return
        self._arrived.clear()
        try:
            async with asyncio.timeout(timeout_s):
                await self._arrived.wait()
        except TimeoutError:
            pass

    def announce(self) -> None:
        """Make a waiting poll look again."""
        self._arrived.set()

    # -- the loop

    async def _run(self) -> None:
        while True:
            pause_s: float | None
            try:
                pause_s = self._step()
            except Exception as error:
                _log.exception("the fetcher failed")
                self._tell(error)
                pause_s = 1.0
            try:
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()

    def _step(self) -> float | None:
        """Start whatever can be started; seconds until another look is due (None: not before a change)."""
        now_s = asyncio.get_running_loop().time()
        metadata = self._cluster.metadata
        if metadata.update_version != self._seen_version:
            self._seen_version = metadata.update_version
        due_s = float("inf")
        by_node: dict[int, list[TopicPartition]] = {}
        to_reset: list[TopicPartition] = []
        to_validate: list[TopicPartition] = []
        unknown_leader = False
        for tp, state in self._positions.items():
            leader = metadata.leader(tp)
            self._positions.check_leader(tp, leader)
            if state.phase is Phase.INITIALIZING or state.truncation is not None:
                continue
            if now_s < state.retry_at_s:
                due_s = min(due_s, state.retry_at_s)
                continue
            if leader.leader < 0:
                unknown_leader = True
            elif state.phase is Phase.AWAIT_RESET:
                to_reset.append(tp)
            elif state.phase is Phase.AWAIT_VALIDATION:
                to_validate.append(tp)
            elif self._positions.is_fetchable(tp, now_s):
                by_node.setdefault(leader.leader, []).append(tp)
        if to_reset and (self._resetting is None or self._resetting.done()):
            self._resetting = self._start(self._reset(to_reset))
        if to_validate and (self._validating is None or self._validating.done()):
            self._validating = self._start(self._validate(to_validate))
        if self._buffered_bytes < self._limit_bytes:
            self._turn += 1
            for node_id, partitions in by_node.items():
                if node_id not in self._in_flight:
                    self._in_flight[node_id] = self._start(self._fetch(node_id, partitions))
        if unknown_leader:
            self._cluster.request_refresh()
            due_s = min(due_s, now_s + self._config["retry.backoff.ms"] / 1000)
        return None if due_s == float("inf") else max(0.001, due_s - now_s)

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        task.add_done_callback(lambda _: self._wake.set())
        return task

    # -- fetching

    async def _fetch(self, node_id: int, partitions: list[TopicPartition]) -> None:
        try:
            asked: dict[TopicPartition, tuple[int, Position]] = {}
            # Those with nothing buffered go first, and the order turns, so that full answers starve nobody.
            turn = self._turn % len(partitions)
            order = sorted(partitions[turn:] + partitions[:turn], key=lambda tp: self._buffered_by_tp.get(tp, 0))
            wanted = []
            for tp in order:
                state = self._positions.get(tp)
                if state is None or state.fetch_position is None:
                    continue
                position = state.fetch_position
                asked[tp] = state.serial, position
                wanted.append(
                    PartitionFetch(
                        tp,
                        position.offset,
                        position.epoch,
                        self._cluster.metadata.leader(tp).epoch,
                        self._config["max.partition.fetch.bytes"],
                    )
                )
            if not wanted:
                return
            connection = await self._cluster.link(node_id, Purpose.FETCH).connection()
            answers = await fetch_once(self._cluster, connection, wanted, self._config)
            self._failures = 0
            for tp, answer in answers.items():
                state = self._positions.get(tp)
                if tp in asked and state is not None:
                    serial, position = asked[tp]
                    if state.serial == serial and state.fetch_position == position:
                        self._take_answer(tp, state, position, answer)
        except (ConnectionLost, TimedOut) as error:
            self._failures += 1
            _log.info("fetch failed: %s", error)
            self._cluster.request_refresh()
            self._delay(partitions)
        except PeerError as error:
            if error.code not in RETRIABLE:
                self._tell(error)
            self._delay(partitions)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self._tell(error)
            self._delay(partitions)
        finally:
            self._in_flight.pop(node_id, None)

    def _take_answer(
        self, tp: TopicPartition, state: PartitionState, position: Position, answer: FetchedPartition
    ) -> None:
        code = error_code(answer.error_code)
        if code is ErrorCode.OFFSET_OUT_OF_RANGE:
            # With a known epoch first find out whether the log was cut below us; without one only the policy is left.
            if not self._positions.demand_validation(tp):
                self._out_of_range(tp, state, position)
            return
        if code is not ErrorCode.NONE:
            if code in STALE_METADATA:
                self._cluster.request_refresh()
            elif code not in RETRIABLE:
                self._tell(broker_error(code, f"reading {tp} at offset {position.offset}"))
            self._delay([tp])
            return
        state.high_watermark = answer.high_watermark
        state.last_stable_offset = answer.last_stable_offset
        state.log_start_offset = answer.log_start_offset
        if answer.diverging_epoch is not None and answer.diverging_epoch[1] >= 0:
            epoch, end_offset = answer.diverging_epoch
            self._positions.diverged(tp, EpochEnd(epoch, end_offset))
            self._arrived.set()
            return
        if not answer.records:
            return
        fetched, _ = scan(
            tp,
            memoryview(answer.records),
            position.offset,
            position.epoch,
            aborted=AbortedTransactions(answer.aborted_transactions or ()) if self._isolation else None,
            check_crcs=self._config["check.crcs"],
        )
        if fetched.next_offset == position.offset:
            return
        if self._cluster.metadata.note_epoch(tp, fetched.last_epoch):
            self._cluster.request_refresh()
        state.fetch_position = Position(fetched.next_offset, fetched.last_epoch, position.leader)
        self._buffer.append(Piece(tp, state.serial, fetched))
        self._buffered_bytes += fetched.size_bytes
        self._buffered_by_tp[tp] = self._buffered_by_tp.get(tp, 0) + 1
        self._arrived.set()

    def _out_of_range(self, tp: TopicPartition, state: PartitionState, position: Position) -> None:
        if state.position is not None and state.position.offset != position.offset:
            # Records fetched before are still to be handed out: first things first.
            self._delay([tp])
            return
        policy = self._config["auto.offset.reset"]
        if policy == "none":
            self._tell(
                OffsetOutOfRangeError(
                    tp.topic,
                    tp.partition,
                    position.offset,
                    leader_epoch=position.epoch,
                    log_start_offset=state.log_start_offset,
                    log_end_offset=state.high_watermark,
                )
            )
            self._delay([tp])
            return
        _log.warning("%s: offset %d is out of range, going to %s", tp, position.offset, policy)
        self._positions.await_reset(tp, policy)

    # -- resets and validation

    async def _reset(self, partitions: list[TopicPartition]) -> None:
        wanted: dict[TopicPartition, str | int] = {}
        serials: dict[TopicPartition, int] = {}
        for tp in partitions:
            state = self._positions.get(tp)
            if state is None or state.phase is not Phase.AWAIT_RESET:
                continue
            if state.reset_to is None or state.reset_to == "none":
                self._tell(NoOffsetError(tp.topic, tp.partition))
                self._delay([tp])
                continue
            wanted[tp], serials[tp] = state.reset_to, state.serial
        if not wanted:
            return
        try:
            deadline = Deadline(self._config["request.timeout.ms"])
            found = await list_offsets(self._cluster, wanted, deadline=deadline, isolation_level=self._isolation)
        except TimedOut as error:
            _log.warning("no offsets to start from: %s", error)
            self._delay(list(wanted))
        except Exception as error:
            self._tell(error)
            self._delay(list(wanted))
        else:
            for tp, answer in found.items():
                if answer.offset < 0:
                    # A timestamp beyond the last record: the end of the log is where such records will come.
                    self._positions.of(tp).reset_to = "latest"
                else:
                    self._positions.complete_reset(tp, serials[tp], answer.offset)
            self._arrived.set()

    async def _validate(self, partitions: list[TopicPartition]) -> None:
        checked: dict[TopicPartition, Position] = {}
        for tp in partitions:
            state = self._positions.get(tp)
            if state is not None and state.phase is Phase.AWAIT_VALIDATION and state.fetch_position is not None:
                checked[tp] = state.fetch_position
        if not checked:
            return
        try:
            deadline = Deadline(self._config["request.timeout.ms"])
            connection = await self._cluster.any_connection(deadline)
            if connection.max_version(ApiKey.OFFSET_FOR_LEADER_EPOCH) < _VALIDATING_VERSION:
                ends = {tp: EpochEnd(position.epoch, position.offset) for tp, position in checked.items()}
            else:
                asked = {tp: (position.epoch, -1) for tp, position in checked.items()}
                ends = await offsets_for_leader_epoch(self._cluster, asked, deadline=deadline)
        except TimedOut as error:
            _log.warning("positions could not be validated: %s", error)
            self._delay(list(checked))
        except Exception as error:
            self._tell(error)
            self._delay(list(checked))
        else:
            for tp, end in ends.items():
                state = self._positions.get(tp)
                if (
                    self._positions.complete_validation(tp, checked[tp], end)
                    and state is not None
                    and state.out_of_range
                ):
                    state.out_of_range = False
                    self._out_of_range(tp, state, checked[tp])
            self._arrived.set()

    # -- inside

    def _delay(self, partitions: Collection[TopicPartition]) -> None:
        pause_ms = backoff_ms(
            max(1, self._failures), self._config["retry.backoff.ms"], self._config["retry.backoff.max.ms"]
        )
        until_s = asyncio.get_running_loop().time() + pause_ms / 1000
        for tp in partitions:
            state = self._positions.get(tp)
            if state is not None:
                state.retry_at_s = until_s

    def _tell(self, error: Exception) -> None:
        self.trouble.append(error)
        self._arrived.set()
