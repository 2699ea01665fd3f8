"""What an answer of a leader makes a follower do with its logs: append, cut, ask where the leader's log and epochs end.

Owns the carrying out of what `fenceline.replica.follower` decides, for the partitions of one link: appends on the loop,
flushes and cuts in threads, questions over the link's connection. One partition's trouble is its own. Decides nothing
about the protocol, and neither opens nor closes a connection.

Rules: `epochs.md E25-E29`; `gaps.md G10`, `G11`, `G14b`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final, Protocol

from fenceline.errors import FencelineError
from fenceline.log.compaction_bound import CompleteFrom
from fenceline.log.errors import EpochStartUnknown, StorageError, TruncationPending
from fenceline.log.write_behind import WriteBehind
from fenceline.node.logs import Logger
from fenceline.records.errors import RecordsError, corrupt
from fenceline.replica.follower import (
    Append,
    AskEnd,
    AskEpochEnd,
    AskStart,
    BeginAnew,
    CutTo,
    Duty,
    FollowerState,
    Learn,
    Phase,
    Question,
)
from fenceline.wire.apis import ApiKey

if TYPE_CHECKING:
    from fenceline.log.partition_log import PartitionLog
    from fenceline.node.peer_connection import AnswerTooLarge, PeerConnection
    from fenceline.node.replica import Replica
    from fenceline.node.replica_fetchers import ReplicaFetchers
    from fenceline.replica.fetcher import Fetcher, Key

log = Logger("replication")

_LATEST: Final = -1
_EARLIEST_LOCAL: Final = -4
_ROOM_PAUSE_S: Final = 0.5
"""Between two attempts to write to a disk that is full."""


class Link(Protocol):
    """What the duties of one link need of it."""

    fetcher: Fetcher

    @property
    def is_for_far_behind(self) -> bool: ...
    def replica_of(self, state: FollowerState) -> Replica | None:
        """Whose state it is; None where it is followed anew, elsewhere or no more."""

    def sort(self, replica: Replica, state: FollowerState) -> None:
        """What is committed there and here is known anew: over which connection is it fetched from now on?"""

    def interrupt(self) -> None: ...
    def look_again(self) -> None:
        """A partition backs off; it may be all that this link has, which would rest until it is told."""


class Duties:
    """Of one link. `under_way`: cuts and flushes, which continue when the link is closed."""

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
        """Of what is far behind, while it is."""
        self._writing_behind: asyncio.Future[None] | None = None

    def forget(self, key: Key) -> None:
        """It is not fetched over this link any more."""
        self._written.pop(key, None)

    def do(self, duty: Duty, questions: list[Question]) -> None:
        """Questions are left for `ask`, which has to wait for the leader."""
        state = duty.state
        replica = self._link.replica_of(state)
        if replica is None:
            return
        try:
            self._do(replica, state, duty, questions)
        except StorageError as error:
            self._refused(replica, state, error)
        except Exception:
            self._failed(replica, state)

    def _do(self, replica: Replica, state: FollowerState, duty: Duty, questions: list[Question]) -> None:
        match duty:
            case Append():
                self._append(replica, duty, questions)
            case Learn():
                replica.learn(duty.high_watermark, duty.log_start_offset)
                if not replica.may_lead:
                    state.may_lead_no_more(duty.log_start_offset)
                self._link.sort(replica, state)
            case CutTo() | BeginAnew():
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
                raise corrupt(f"{len(duty.records)} bytes hold no whole batch")
            self._fetchers.appended_bytes += len(duty.records)
        except StorageError as error:
            self._refused(replica, state, error)
            return
        except EpochStartUnknown as unknown:
            self._follow_up(state, state.on_unknown_epoch(unknown.epoch, unknown.first_offset), questions)
            return
        except (RecordsError, FencelineError) as error:
            self._not_taken(replica, state, str(error))
            return
        if appended.base_offset < duty.high_watermark and replica.config.compacted:
            replica.log.raise_complete_from(duty.high_watermark, state.leader_epoch)
        replica.learn(duty.high_watermark, duty.log_start_offset)
        quota = self._fetchers.quota
        if quota.is_active and quota.covers(state.topic, state.index):
            quota.passed(appended.size_bytes, self._clock.monotonic_ms())
        if not self.flush_first(replica, state):
            self._appended(replica, state)

    def flush_first(self, replica: Replica, state: FollowerState) -> bool:
        """The next fetch acknowledges everything up to the log end, so `flush.messages` comes before it. Whether there
        is something to flush; the partition is fetched again when that is done.
        """
        if replica.log.unflushed_messages < replica.config.flush_messages:
            return False
        state.phase = Phase.FLUSHING
        self._begin(replica, state, self._flush(replica, state))
        return True

    async def _flush(self, replica: Replica, state: FollowerState) -> None:
        while await self._host.flushed(replica, replica.log.log_end_offset) is not None:
            # The disk is full, or the log is just being cut. A partition that cannot continue is followed no more.
            await asyncio.sleep(_ROOM_PAUSE_S)
            if self._fetchers.is_closed or self._link.replica_of(state) is None:
                return
        if self._link.replica_of(state) is None:
            return
        self._appended(replica, state)
        self._link.interrupt()

    def _begin(self, replica: Replica, state: FollowerState, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(self._carried_out(replica, state, work))
        self.under_way.add(task)
        task.add_done_callback(self.under_way.discard)

    async def _carried_out(self, replica: Replica, state: FollowerState, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception:
            self._failed(replica, state)
            self._link.look_again()

    def _failed(self, replica: Replica, state: FollowerState) -> None:
        """By an error of our own; neither this partition nor the leader's others must stand still because of it."""
        log.exception("replication of a partition failed", partition=str(replica.topic_partition))
        self._fetcher.failed(state, self._clock.monotonic_ms())

    def _appended(self, replica: Replica, state: FollowerState) -> None:
        self._fetcher.done(state)
        if self._link.is_for_far_behind:
            self._write_behind(replica, (state.topic_id, state.index))
        self._link.sort(replica, state)

    def _write_behind(self, replica: Replica, key: Key) -> None:
        """What is far behind comes by the gigabyte, and nobody reads it soon."""
        written = self._written.get(key)
        if written is None:
            self._written[key] = WriteBehind(replica.log)
        elif self._writing_behind is None or self._writing_behind.done():
            # A disk that is slower than the leader gets more at a time, and others have threads left.
            work = written.due()
            if work is not None:
                loop = asyncio.get_running_loop()
                self._writing_behind = loop.run_in_executor(self._fetchers.executor(), work)

    def answer_too_large(self, state: FollowerState, error: AnswerTooLarge) -> None:
        """The leader has a batch for a partition that this broker does not take. Logged as in `_not_taken`."""
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
                advice="Raise socket.request.max.bytes of this broker to that of the leader, at least by "
                f"{error.size_bytes - error.largest_bytes}, and start it again. Until then this replica is not in "
                "sync; the leader's other partitions are replicated.",
            )
        self._fetcher.answer_too_large(state, self._clock.monotonic_ms())

    def _not_taken(self, replica: Replica, state: FollowerState, reason: str) -> None:
        """The leader sent what cannot be. Logged the 1st, 2nd, 4th, 8th time and so on."""
        if _is_power_of_two(state.failures + 1):
            log.error(
                "records of the leader not taken",
                partition=str(replica.topic_partition),
                leader=self._leader_id,
                offset=state.log.log_end_offset,
                times=state.failures + 1,
                reason=reason,
                advice="They are fetched again. If it goes on, check the leader's disk: its copy may be damaged.",
            )
        self._fetcher.failed(state, self._clock.monotonic_ms())

    async def cut(self, replica: Replica, duty: CutTo | BeginAnew) -> None:
        """In a thread; meanwhile nobody reads or maintains this log."""
        state = duty.state
        before = _ends(replica.log)
        replica.is_being_cut = True
        try:
            if replica.cleaning is not None:
                await replica.cleaning.stop()
            await self._cut_and_settle(replica, duty)
            if self._link.replica_of(state) is replica and (rest := state.on_cut(duty)) is not None:
                await self._cut_and_settle(replica, rest)
            # A recovery point behind the cut would call what is appended now, and torn by a crash, a damaged log.
            await self._host.checkpoint()
        except StorageError as error:
            self._refused(replica, state, error)
            self._link.look_again()
            return
        finally:
            replica.is_being_cut = False
            self._host.cut_ended(replica)
        if _ends(replica.log) == before:
            self._not_taken(replica, state, f"{duty.cause.value}, yet nothing of this log lies there")
            self._link.look_again()
            return
        self._fetcher.done(state)
        self._link.interrupt()

    async def _cut_and_settle(self, replica: Replica, duty: CutTo | BeginAnew) -> None:
        """Where a full disk has no room for the receipt: again until it has, whoever leads meanwhile. Raises
        StorageError."""
        loop, executor = asyncio.get_running_loop(), self._fetchers.executor()
        if isinstance(duty, BeginAnew) and duty.is_whole:
            # No receipt will tell the next start why the log ends where it does.
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

    def _refused(self, replica: Replica, state: FollowerState, error: StorageError) -> None:
        """The disk did not do it."""
        self._fetcher.failed(state, self._clock.monotonic_ms())
        self._host.storage_failed(replica, error)

    def _follow_up(self, state: FollowerState, duty: Duty | None, questions: list[Question]) -> None:
        if duty is None:
            self._fetcher.done(state)
        else:
            self.do(duty, questions)

    async def ask_all(self, connection: PeerConnection, questions: list[Question]) -> None:
        """As `ask`. Who gets no answer since the connection is lost asks the leader for everything again."""
        waiting = deque(questions)
        try:
            while waiting:
                await self.ask(connection, waiting[0])
                waiting.popleft()
        finally:
            for question in waiting:
                self._fetcher.failed(question.state, self._clock.monotonic_ms())

    async def ask(self, connection: PeerConnection, question: Question) -> None:
        """As a replica, fenced by the leader epoch (E13, E28), until nothing follows that is to be asked. Raises one of
        the link's troubles.
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
        """ListOffsets. None: it refuses."""
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
        """OffsetForLeaderEpoch: (epoch, end). None: it refuses."""
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
    """Something of it differs once a cut has taken anything."""
    return followed.log_end_offset, followed.latest_epoch, followed.complete_from
