"""The truncation of a follower: from a leader's answer that disagrees with this log, to the next fetch.

Owns the whole trip of one link's partitions, in the order of this file:

| step              | what happens                                                      | decided by                   |
|-------------------|-------------------------------------------------------------------|------------------------------|
| 1. the answer     | a Fetch response has a diverging epoch or OFFSET_OUT_OF_RANGE: a  | `replica.fetcher.on_answer`, |
|                   | question follows, or a cut (`CutTo`, `RestartAt`)                 | `replica.follower`           |
| 2. the search     | the leader is asked where its log or one of its epochs ends       | `replica.follower`,          |
|                   | (ListOffsets, OffsetForLeaderEpoch), until no question follows    | `replica.epoch_search`       |
| 3. the cut        | in a thread; the log is neither read nor maintained meanwhile     | `losses.cutting`             |
| 4. the receipt    | says what was lost; durable before the partition is fetched again | `cut_of`, `losses.cutting`   |
| 5. fetching again | recovery points on disk, then a fetch from the new log end        | `replica.fetcher`            |

If a step fails the partition backs off, and the next response begins again at step 1. A truncation that has begun
continues if the leader changes or the link is closed. Decides neither where the logs diverge nor what is lost.

Rules: `epochs.md E13`, `E25-E28`; `gaps.md G14b`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

from fenceline.log.core.compaction_bound import CompleteFrom
from fenceline.log.core.errors import StorageError, TruncationPending
from fenceline.losses.cutting import LogCut
from fenceline.losses.receipt import LossCause
from fenceline.node.replication.leader_queries import (
    EARLIEST_LOCAL,
    LATEST,
    LeaderEpochEnd,
    LeaderOffset,
    LeaderQueries,
)
from fenceline.node.replication.link_work import LinkWork
from fenceline.replica.follower import AskEnd, AskEpochEnd, AskStart, CutTo, Duty, FollowerState, Question, RestartAt

if TYPE_CHECKING:
    from fenceline.log.partition.partition_log import PartitionLog
    from fenceline.node.net.peer_connection import PeerConnection
    from fenceline.node.replication.replica import Replica

ROOM_PAUSE_S: Final = 0.5
"""Pause between two attempts to write to a full disk."""


class FollowerTruncation:
    """The truncations of one link's partitions."""

    def __init__(self, work: LinkWork) -> None:
        self._work = work
        self._link = work.link
        self._shared = work.shared

    # -- 1. the answer -------------------------------------------------------------------------------------------------

    def begin(self, replica: Replica, duty: CutTo | RestartAt) -> None:
        """The leader's answer is enough to know where to cut."""
        self._work.begin(replica, duty.state, self.cut(replica, duty))

    # -- 2. the search -------------------------------------------------------------------------------------------------

    async def ask_all(self, connection: PeerConnection, questions: list[Question]) -> None:
        """Run `ask` for each question. If the connection is lost, unanswered questions are asked again later."""
        waiting = deque(questions)
        try:
            while waiting:
                await self.ask(connection, waiting[0])
                waiting.popleft()
        finally:
            for question in waiting:
                self._work.back_off(question.state)

    async def ask(self, connection: PeerConnection, question: Question) -> None:
        """Ask as a replica, fenced by the leader epoch (E13, E28), until no question follows. Raises one of the link's
        _TROUBLE errors.
        """
        state: FollowerState = question.state
        shared = self._shared
        leader = LeaderQueries(
            connection, shared.host.node_id, state.topic, state.index, state.leader_epoch, shared.answer_timeout_s
        )
        following: Duty | None = question
        while isinstance(following, AskEnd | AskStart | AskEpochEnd):
            match following:
                case AskEnd():
                    found: LeaderOffset | LeaderEpochEnd | None = await leader.offset(LATEST, first_version=8)
                case AskStart():
                    found = await leader.offset(EARLIEST_LOCAL, first_version=8)
                case AskEpochEnd(_, epoch):
                    found = await leader.epoch_end(epoch)
            replica = self._link.replica_of(state)
            if replica is None:
                return
            match following, found:
                case AskEnd(), LeaderOffset(0, offset) if offset >= 0:
                    following = state.on_leader_end(offset)
                case AskStart(), LeaderOffset(0, offset) if offset >= 0:
                    following = state.on_leader_start(offset)
                case AskEpochEnd(), LeaderEpochEnd(0, epoch, end_offset):
                    following = state.on_epoch_end(epoch, end_offset)
                case _:
                    # The leader returned an error.
                    self._work.back_off(state)
                    return
            match following:
                case CutTo() | RestartAt():
                    self.begin(replica, following)
                case None:
                    self._link.fetcher.done(state)

    # -- 3. the cut ----------------------------------------------------------------------------------------------------

    async def cut(self, replica: Replica, duty: CutTo | RestartAt) -> None:
        """Truncate in a thread, then fetch again."""
        state, host = duty.state, self._shared.host
        before = _ends(replica.log)
        replica.is_being_cut = True
        try:
            if replica.cleaning is not None:
                await replica.cleaning.stop()
            await self._cut_with_retries(replica, duty)
            if self._link.replica_of(state) is replica and (rest := state.on_cut(duty)) is not None:
                await self._cut_with_retries(replica, rest)
            await self._save_recovery_point()
        except StorageError as error:
            self._work.storage_failed(replica, state, error)
            self._link.reschedule()
            return
        finally:
            replica.is_being_cut = False
            host.cut_ended(replica)
        if _ends(replica.log) == before:
            self._work.reject(replica, state, f"{duty.cause.value}, but this log has no records there")
            self._link.reschedule()
            return
        self._fetch_again(state)

    async def _cut_with_retries(self, replica: Replica, duty: CutTo | RestartAt) -> None:
        """If a full disk has no room for the receipt, retry until it has, even if the leader changes. Raises
        StorageError."""
        shared = self._shared
        loop, executor = asyncio.get_running_loop(), shared.executor
        if isinstance(duty, RestartAt) and duty.leader_has_all:
            # There will be no receipt that explains to the next start why the log ends there.
            await loop.run_in_executor(executor, replica.log.lower_recovery_point)
            await self._save_recovery_point()
        while True:
            try:
                await loop.run_in_executor(executor, self._cut_log, replica, duty)
            except TruncationPending as error:
                if shared.is_closed or replica.is_leaving:
                    raise
                shared.host.storage_failed(replica, error)
                await asyncio.sleep(ROOM_PAUSE_S)
            else:
                return

    def _cut_log(self, replica: Replica, duty: CutTo | RestartAt) -> None:
        """In a thread. Returns once the receipts of lost records are durable. Raises StorageError."""
        shared = self._shared
        node_id, now_ms = shared.host.node_id, shared.clock.now_ms()
        shared.host.cut_log(replica, cut_of(replica, duty, node_id, self._work.leader_id, now_ms))

    # -- 4. the receipt ------------------------------------------------------------------------------------------------

    # `cut_of`, below, is what it says beyond the records; `losses.cutting.cut_log` writes it.

    # -- 5. fetching again ---------------------------------------------------------------------------------------------

    async def _save_recovery_point(self) -> None:
        """With a recovery point above the new end, records appended now and torn by a crash would count as damage.
        Raises StorageError."""
        await self._shared.host.checkpoint()

    def _fetch_again(self, state: FollowerState) -> None:
        self._link.fetcher.done(state)
        self._link.interrupt()


def cut_of(replica: Replica, duty: CutTo | RestartAt, node_id: int, leader_id: int, now_ms: int) -> LogCut:
    """What the receipt must say about the lost records, besides the records themselves."""
    epoch = duty.state.leader_epoch
    refused_epoch, refused_ends = replica.refused
    return LogCut(
        duty.offset,
        isinstance(duty, RestartAt),
        LossCause(duty.cause.name.lower()),
        duty.cause.value,
        node_id,
        leader_id,
        epoch,
        now_ms,
        # A leader in between may have had the records and have acknowledged a producer's retry.
        refused_ends if refused_epoch == epoch - 1 else frozenset(),
        replica.clean_since,
        isinstance(duty, RestartAt) and duty.leader_has_all,
    )


def _ends(followed: PartitionLog) -> tuple[int, int, CompleteFrom]:
    """At least one of these changes when a truncation removes records."""
    return followed.log_end_offset, followed.latest_epoch, followed.complete_from
