"""Executes a follower's duties on its logs: append, truncate, ask where the leader's log and epochs end.

Owns the execution of what `fenceline.replica.follower` decides, for the partitions of one link: appends on the event
loop, flushes and truncations in threads, questions over the link's connection. A failure affects one partition only.
Decides nothing about the protocol, and neither opens nor closes a connection.

Rules: `epochs.md E25-E29`; `gaps.md G10`, `G11`, `G14b`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final, Protocol

from fenceline.errors import FencelineError
from fenceline.log.core.compaction_bound import CompleteFrom
from fenceline.log.core.errors import EpochStartUnknown, StorageError, TruncationPending
from fenceline.log.partition.write_behind import WriteBehind
from fenceline.node.logs import Logger
from fenceline.records.errors import RecordsError, corrupt
from fenceline.replica.follower import (
    Append,
    ApplyOffsets,
    AskEnd,
    AskEpochEnd,
    AskStart,
    CutTo,
    Duty,
    FollowerState,
    Phase,
    Question,
    RestartAt,
)
from fenceline.wire.apis import ApiKey

if TYPE_CHECKING:
    from fenceline.log.partition.partition_log import PartitionLog
    from fenceline.node.net.peer_connection import AnswerTooLarge, PeerConnection
    from fenceline.node.replication.replica import Replica
    from fenceline.node.replication.replica_fetchers import ReplicaFetchers
    from fenceline.replica.fetcher import Fetcher, Key

log = Logger("replication")

_LATEST: Final = -1
_EARLIEST_LOCAL: Final = -4
_ROOM_PAUSE_S: Final = 0.5
"""Pause between two attempts to write to a full disk."""


class Link(Protocol):
    """What `Duties` needs of its link."""

    fetcher: Fetcher

    @property
    def is_for_far_behind(self) -> bool: ...
    def replica_of(self, state: FollowerState) -> Replica | None:
        """The replica of this state; None if it is followed in a new epoch, elsewhere, or not at all."""

    def sort(self, replica: Replica, state: FollowerState) -> None:
        """The high watermark or the log end has changed: choose the connection to fetch the partition over."""

    def interrupt(self) -> None: ...
    def reschedule(self) -> None:
        """A partition is backing off: recompute how long the link may sleep."""


class Duties:
    """The duties of one link. `under_way`: truncations and flushes, which continue when the link is closed."""

    def __init__(
        self, link: Link, fetchers: ReplicaFetchers, leader_id: int, under_way: set[asyncio.Task[None]]
    ) -> None:
        self._link = link
        self._fetchers = fetchers
        self._host = fetchers.host
        self._clock = fetchers.clock
        self._leader_id = leader_id
        self._fetcher = link.fetcher
        self.under_way = under_way
        self._written: dict[Key, WriteBehind] = {}
        """Write-behind of partitions that are far behind."""
        self._writing_behind: asyncio.Future[None] | None = None

    def forget(self, key: Key) -> None:
        """The partition is no longer fetched over this link."""
        self._written.pop(key, None)

    def execute(self, duty: Duty, questions: list[Question]) -> None:
        """Questions are added to `questions` for `ask`, which waits for the leader."""
        state = duty.state
        replica = self._link.replica_of(state)
        if replica is None:
            return
        try:
            self._execute(replica, state, duty, questions)
        except StorageError as error:
            self._storage_failed(replica, state, error)
        except Exception:
            self._failed(replica, state)

    def _execute(self, replica: Replica, state: FollowerState, duty: Duty, questions: list[Question]) -> None:
        match duty:
            case Append():
                self._append(replica, duty, questions)
            case ApplyOffsets():
                replica.apply_leader_offsets(duty.high_watermark, duty.log_start_offset)
                if not replica.may_lead:
                    state.on_ineligible(duty.log_start_offset)
                self._link.sort(replica, state)
            case CutTo() | RestartAt():
                self._begin(replica, state, self.cut(replica, duty))
            case AskEnd() | AskStart() | AskEpochEnd():
                questions.append(duty)

    def _append(self, replica: Replica, duty: Append, questions: list[Question]) -> None:
        state = duty.state
        try:
            appended = replica.log.append_as_follower(
                duty.records,
                leader_epoch=state.leader_epoch,
                now_ms=self._clock.now_ms(),
                epoch_starts=state.epoch_starts,
            )
            if appended.base_offset < 0:
                raise corrupt(f"{len(duty.records)} bytes without a complete batch")
            self._fetchers.appended_bytes += len(duty.records)
        except StorageError as error:
            self._storage_failed(replica, state, error)
            return
        except EpochStartUnknown as unknown:
            self._follow_up(state, state.on_unknown_epoch(unknown.epoch, unknown.first_offset), questions)
            return
        except (RecordsError, FencelineError) as error:
            self._reject(replica, state, str(error))
            return
        if appended.base_offset < duty.high_watermark and replica.config.compacted:
            replica.log.raise_complete_from(duty.high_watermark, state.leader_epoch)
        replica.apply_leader_offsets(duty.high_watermark, duty.log_start_offset)
        quota = self._fetchers.quota
        if quota.is_active and quota.covers(state.topic, state.index):
            quota.passed(appended.size_bytes, self._clock.monotonic_ms())
        if not self.flush_first(replica, state):
            self._appended(replica, state)

    def flush_first(self, replica: Replica, state: FollowerState) -> bool:
        """Flush if `flush.messages` requires it: the next fetch acknowledges everything up to the log end. Returns
        whether a flush was started; the partition is fetched again after it.
        """
        if replica.log.unflushed_messages < replica.config.flush_messages:
            return False
        state.phase = Phase.FLUSHING
        self._begin(replica, state, self._flush(replica, state))
        return True

    async def _flush(self, replica: Replica, state: FollowerState) -> None:
        while await self._host.flushed(replica, replica.log.log_end_offset) is not None:
            # The disk is full, or the log is being truncated. A partition that cannot continue is no longer followed.
            await asyncio.sleep(_ROOM_PAUSE_S)
            if self._fetchers.is_closed or self._link.replica_of(state) is None:
                return
        if self._link.replica_of(state) is None:
            return
        self._appended(replica, state)
        self._link.interrupt()

    def _begin(self, replica: Replica, state: FollowerState, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(self._run_guarded(replica, state, work))
        self.under_way.add(task)
        task.add_done_callback(self.under_way.discard)

    async def _run_guarded(self, replica: Replica, state: FollowerState, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception:
            self._failed(replica, state)
            self._link.reschedule()

    def _failed(self, replica: Replica, state: FollowerState) -> None:
        """A bug of ours; neither this partition nor the leader's other partitions must stop because of it."""
        log.exception("replication of a partition failed", partition=str(replica.topic_partition))
        self._fetcher.failed(state, self._clock.monotonic_ms())

    def _appended(self, replica: Replica, state: FollowerState) -> None:
        self._fetcher.done(state)
        if self._link.is_for_far_behind:
            self._write_behind(replica, (state.topic_id, state.index))
        self._link.sort(replica, state)

    def _write_behind(self, replica: Replica, key: Key) -> None:
        """A partition that is far behind receives gigabytes that will not be read soon: write them back early."""
        written = self._written.get(key)
        if written is None:
            self._written[key] = WriteBehind(replica.log)
        elif self._writing_behind is None or self._writing_behind.done():
            # A disk slower than the leader gets larger writes, and the other threads stay free.
            work = written.due()
            if work is not None:
                loop = asyncio.get_running_loop()
                self._writing_behind = loop.run_in_executor(self._fetchers.executor(), work)

    def answer_too_large(self, state: FollowerState, error: AnswerTooLarge) -> None:
        """The leader has a batch that exceeds this broker's limits. Logged at the same intervals as `_reject`."""
        replica = self._link.replica_of(state)
        if replica is None:
            return
        if _is_power_of_two(state.failures + 1):
            log.warning(
                "batch too large to be replicated",
                partition=str(replica.topic_partition),
                leader=self._leader_id,
                offset=state.log.log_end_offset,
                answer_bytes=error.size_bytes,
                largest_bytes=error.largest_bytes,
                times=state.failures + 1,
                advice="Raise socket.request.max.bytes of this broker to the leader's value, at least by "
                f"{error.size_bytes - error.largest_bytes}, and restart it. Until then this replica is not in sync; "
                "other partitions are replicated.",
            )
        self._fetcher.answer_too_large(state, self._clock.monotonic_ms())

    def _reject(self, replica: Replica, state: FollowerState, reason: str) -> None:
        """The leader sent invalid records. Logged the 1st, 2nd, 4th, 8th time and so on."""
        if _is_power_of_two(state.failures + 1):
            log.error(
                "records from the leader rejected",
                partition=str(replica.topic_partition),
                leader=self._leader_id,
                offset=state.log.log_end_offset,
                times=state.failures + 1,
                reason=reason,
                advice="They are fetched again. If this continues, check the leader's disk: its copy may be damaged.",
            )
        self._fetcher.failed(state, self._clock.monotonic_ms())

    async def cut(self, replica: Replica, duty: CutTo | RestartAt) -> None:
        """Truncate in a thread; meanwhile the log is neither read nor maintained."""
        state = duty.state
        before = _ends(replica.log)
        replica.is_being_cut = True
        try:
            if replica.cleaning is not None:
                await replica.cleaning.stop()
            await self._cut_with_retries(replica, duty)
            if self._link.replica_of(state) is replica and (rest := state.on_cut(duty)) is not None:
                await self._cut_with_retries(replica, rest)
            # With a recovery point above the new end, records appended now and torn by a crash would count as damage.
            await self._host.checkpoint()
        except StorageError as error:
            self._storage_failed(replica, state, error)
            self._link.reschedule()
            return
        finally:
            replica.is_being_cut = False
            self._host.cut_ended(replica)
        if _ends(replica.log) == before:
            self._reject(replica, state, f"{duty.cause.value}, but this log has no records there")
            self._link.reschedule()
            return
        self._fetcher.done(state)
        self._link.interrupt()

    async def _cut_with_retries(self, replica: Replica, duty: CutTo | RestartAt) -> None:
        """If a full disk has no room for the receipt, retry until it has, even if the leader changes. Raises
        StorageError."""
        loop, executor = asyncio.get_running_loop(), self._fetchers.executor()
        if isinstance(duty, RestartAt) and duty.leader_has_all:
            # There will be no receipt that explains to the next start why the log ends there.
            await loop.run_in_executor(executor, replica.log.lower_recovery_point)
            await self._host.checkpoint()
        while True:
            try:
                await loop.run_in_executor(executor, self._host.cut_log, replica, duty, self._leader_id)
            except TruncationPending as error:
                if self._fetchers.is_closed or replica.is_leaving:
                    raise
                self._host.storage_failed(replica, error)
                await asyncio.sleep(_ROOM_PAUSE_S)
            else:
                return

    def _storage_failed(self, replica: Replica, state: FollowerState, error: StorageError) -> None:
        """A disk operation failed."""
        self._fetcher.failed(state, self._clock.monotonic_ms())
        self._host.storage_failed(replica, error)

    def _follow_up(self, state: FollowerState, duty: Duty | None, questions: list[Question]) -> None:
        if duty is None:
            self._fetcher.done(state)
        else:
            self.execute(duty, questions)

    async def ask_all(self, connection: PeerConnection, questions: list[Question]) -> None:
        """Run `ask` for each question. If the connection is lost, unanswered questions are asked again later."""
        waiting = deque(questions)
        try:
            while waiting:
                await self.ask(connection, waiting[0])
                waiting.popleft()
        finally:
            for question in waiting:
                self._fetcher.failed(question.state, self._clock.monotonic_ms())

    async def ask(self, connection: PeerConnection, question: Question) -> None:
        """Ask as a replica, fenced by the leader epoch (E13, E28), until no question follows. Raises one of the link's
        _TROUBLE errors.
        """
        state: FollowerState = question.state
        following: Duty | None = question
        while isinstance(following, AskEnd | AskStart | AskEpochEnd):
            if isinstance(following, AskEpochEnd):
                found: tuple[int, ...] | None = await self._epoch_end_of_leader(connection, following)
            else:
                found = await self._end_of_leader(connection, following)
            if self._link.replica_of(state) is None:
                return
            if found is None:
                self._fetcher.failed(state, self._clock.monotonic_ms())
                return
            match following:
                case AskEnd():
                    following = state.on_leader_end(*found)
                case AskStart():
                    following = state.on_leader_start(*found)
                case AskEpochEnd():
                    following = state.on_epoch_end(*found)
        self._follow_up(state, following, [])

    async def _end_of_leader(self, connection: PeerConnection, question: AskEnd | AskStart) -> tuple[int] | None:
        """ListOffsets. None: the leader returned an error."""
        state = question.state
        row = {
            "partition_index": state.index,
            "current_leader_epoch": state.leader_epoch,
            "timestamp": _LATEST if isinstance(question, AskEnd) else _EARLIEST_LOCAL,
        }
        fields = {
            "replica_id": self._host.node_id,
            "isolation_level": 0,
            "topics": [{"name": state.topic, "partitions": [row]}],
        }
        version = connection.version_for(ApiKey.LIST_OFFSETS, 8, 10)
        answer = await connection.call(ApiKey.LIST_OFFSETS, version, fields, self._fetchers.answer_timeout_s)
        for topic in answer.topics:
            for partition in topic.partitions:
                if (topic.name, partition.partition_index) == (state.topic, state.index):
                    refused = partition.error_code or partition.offset < 0
                    return None if refused else (int(partition.offset),)
        return None

    async def _epoch_end_of_leader(self, connection: PeerConnection, question: AskEpochEnd) -> tuple[int, int] | None:
        """OffsetForLeaderEpoch: (epoch, end). None: the leader returned an error."""
        state = question.state
        row = {
            "partition": state.index,
            "current_leader_epoch": state.leader_epoch,
            "leader_epoch": question.epoch,
        }
        fields = {"replica_id": self._host.node_id, "topics": [{"topic": state.topic, "partitions": [row]}]}
        key = ApiKey.OFFSET_FOR_LEADER_EPOCH
        version = connection.version_for(key, 3, 4)
        answer = await connection.call(key, version, fields, self._fetchers.answer_timeout_s)
        for topic in answer.topics:
            for partition in topic.partitions:
                if (topic.topic, partition.partition) == (state.topic, state.index):
                    refused = bool(partition.error_code)
                    return None if refused else (int(partition.leader_epoch), int(partition.end_offset))
        return None


def _is_power_of_two(number: int) -> bool:
    return not number & (number - 1)


def _ends(followed: PartitionLog) -> tuple[int, int, CompleteFrom]:
    """At least one of these changes when a truncation removes records."""
    return followed.log_end_offset, followed.latest_epoch, followed.complete_from
