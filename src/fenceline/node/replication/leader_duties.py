"""Executes a follower's duties on its logs: append, apply the leader's offsets, flush.

Owns the execution of what `fenceline.replica.follower` decides, for the partitions of one link: appends on the event
loop, flushes in threads. Truncations, and questions to the leader, are `follower_truncation`'s. A failure affects one
partition only. Decides nothing about the protocol, and neither opens nor closes a connection.

Rules: `epochs.md E26`, `E27`, `E29`; `gaps.md G10`, `G11`.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from fenceline.errors import FencelineError
from fenceline.log.core.errors import EpochStartUnknown, StorageError
from fenceline.log.partition.write_behind import WriteBehind
from fenceline.node.logs import Logger
from fenceline.node.replication.follower_truncation import ROOM_PAUSE_S, FollowerTruncation
from fenceline.node.replication.link_work import LinkWork, is_power_of_two
from fenceline.records.errors import RecordsError, corrupt
from fenceline.replica.follower import (
    AppendFetchedBatches,
    ApplyOffsets,
    AskEnd,
    AskEpochEnd,
    AskStart,
    CutTo,
    Duty,
    FollowerPhase,
    FollowerState,
    Question,
    RestartAt,
)

if TYPE_CHECKING:
    from fenceline.node.net.peer_connection import AnswerTooLarge
    from fenceline.node.replication.replica import Replica
    from fenceline.replica.fetcher import Key

log = Logger("replication")


class Duties:
    """The duties of one link."""

    def __init__(self, work: LinkWork, truncation: FollowerTruncation) -> None:
        self._work = work
        self._truncation = truncation
        self._link = work.link
        self._shared = work.shared
        self._clock = work.shared.clock
        self._fetcher = work.link.fetcher
        self._written: dict[Key, WriteBehind] = {}
        """Write-behind of partitions that are far behind."""
        self._writing_behind: asyncio.Future[None] | None = None

    def forget(self, key: Key) -> None:
        """The partition is no longer fetched over this link."""
        self._written.pop(key, None)

    def execute(self, duty: Duty, questions: list[Question]) -> None:
        """Questions are added to `questions` for `FollowerTruncation.ask`, which waits for the leader."""
        state = duty.state
        if state.is_unused:
            opened = self._opened(state)
            if opened is None:
                return
            state, duty = opened, replace(duty, state=opened)
        replica = self._link.replica_of(state)
        if replica is None:
            return
        try:
            self._execute(replica, state, duty, questions)
        except StorageError as error:
            self._work.storage_failed(replica, state, error)
        except Exception:
            self._work.failed(replica, state)

    def _opened(self, unused: FollowerState) -> FollowerState | None:
        """There is something to do for a replica without an object: open it. None if it is not followed in this leader
        epoch any more."""
        key = (unused.topic_id, unused.index)
        if self._fetcher.states.get(key) is not unused:
            return None
        try:
            self._shared.host.open_unused(unused.topic, unused.index)
        except Exception:
            log.exception("a replica could not be opened", topic=unused.topic, partition=unused.index)
        state = self._fetcher.states.get(key)
        if state is unused:
            self._work.back_off(unused)
        return (
            state if state is not None and not state.is_unused and state.leader_epoch == unused.leader_epoch else None
        )

    def _execute(self, replica: Replica, state: FollowerState, duty: Duty, questions: list[Question]) -> None:
        match duty:
            case AppendFetchedBatches():
                self._append(replica, duty, questions)
            case ApplyOffsets():
                replica.apply_leader_offsets(duty.high_watermark, duty.log_start_offset)
                if not replica.may_lead:
                    state.on_ineligible(duty.log_start_offset)
                self._link.sort(replica, state)
            case CutTo() | RestartAt():
                self._truncation.begin(replica, duty)
            case AskEnd() | AskStart() | AskEpochEnd():
                questions.append(duty)

    def _append(self, replica: Replica, duty: AppendFetchedBatches, questions: list[Question]) -> None:
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
            self._shared.appended_bytes += len(duty.records)
        except StorageError as error:
            self._work.storage_failed(replica, state, error)
            return
        except EpochStartUnknown as unknown:
            question = state.on_unknown_epoch(unknown.epoch, unknown.first_offset)
            if question is None:
                self._fetcher.done(state)
            else:
                questions.append(question)
            return
        except (RecordsError, FencelineError) as error:
            self._work.reject(replica, state, str(error))
            return
        # The policy may have changed since the leader compacted its log.
        if (appended.lacks_records or replica.config.compacted) and appended.base_offset < duty.high_watermark:
            replica.log.raise_complete_from(duty.high_watermark, state.leader_epoch)
        replica.apply_leader_offsets(duty.high_watermark, duty.log_start_offset)
        quota = self._shared.quota
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
        state.phase = FollowerPhase.FLUSHING
        self._work.begin(replica, state, self._flush(replica, state))
        return True

    async def _flush(self, replica: Replica, state: FollowerState) -> None:
        while await self._shared.host.flushed(replica, replica.log.log_end_offset) is not None:
            # The disk is full, or the log is being truncated. A partition that cannot continue is no longer followed.
            await asyncio.sleep(ROOM_PAUSE_S)
            if self._shared.is_closed or self._link.replica_of(state) is None:
                return
        if self._link.replica_of(state) is None:
            return
        self._appended(replica, state)
        self._link.interrupt()

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
                self._writing_behind = loop.run_in_executor(self._shared.executor, work)

    def answer_too_large(self, state: FollowerState, error: AnswerTooLarge) -> None:
        """The leader has a batch that exceeds this broker's limits. Logged at the intervals of `LinkWork.reject`."""
        opened = self._opened(state) if state.is_unused else state
        if opened is None:
            return
        state = opened
        replica = self._link.replica_of(state)
        if replica is None:
            return
        if is_power_of_two(state.failures + 1):
            log.warning(
                "batch too large to be replicated",
                partition=str(replica.topic_partition),
                leader=self._work.leader_id,
                offset=state.log.log_end_offset,
                answer_bytes=error.size_bytes,
                largest_bytes=error.largest_bytes,
                times=state.failures + 1,
                advice="Raise socket.request.max.bytes of this broker to the leader's value, at least by "
                f"{error.size_bytes - error.largest_bytes}, and restart it. Until then this replica is not in sync; "
                "other partitions are replicated.",
            )
        self._fetcher.answer_too_large(state, self._clock.monotonic_ms())
