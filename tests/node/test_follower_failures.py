"""A failure of one followed partition stays isolated: the other partitions of the same leader continue.

The cases of Kafka's AbstractFetcherThreadTest that end in a failure. Rules: `epochs.md E26-E28`; gaps.md G3, G11.
There is no connection: the test supplies the leader's answers.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, Final
from uuid import UUID

import pytest

from fenceline.errors import ErrorCode
from fenceline.ids import TopicPartition
from fenceline.log.core.compaction_bound import CompleteFrom
from fenceline.log.core.config import LogConfig
from fenceline.log.core.errors import StorageError, TruncationPending
from fenceline.log.partition.partition_log import PartitionLog
from fenceline.losses.cutting import LogCut
from fenceline.node.net.peer_connection import PeerConnectionLost
from fenceline.node.replication import follower_truncation
from fenceline.node.replication.replica import Replica
from fenceline.node.replication.replica_fetchers import ReplicaFetchers
from fenceline.replica.fetcher import FetchLimits
from fenceline.replica.follower import AskEnd, AskEpochEnd, FollowerPhase, FollowerState
from fenceline.testing.sim_disk import SimDisk
from fenceline.wire.fetch import FetchedPartition, FetchResponse
from tests.log.helpers import batch
from tests.node.controller_helpers import StillClock

TOPIC_ID: Final = UUID(int=7)
LEADER, EPOCH = 2, 5
LIMITS = FetchLimits(max_wait_ms=500, min_bytes=1, max_bytes=10_000, partition_max_bytes=1_000, backoff_ms=1_000)


class Host:
    """A broker whose leader is not registered: it gets only the answers that the test supplies."""

    node_id, broker_epoch = 1, 100

    def __init__(self) -> None:
        self.cut: list[tuple[int, Any, bool]] = []
        """(partition, offset, whether the log was nobody else's meanwhile)."""
        self.failed: list[tuple[int, StorageError]] = []
        self.ended = 0
        self.disk_fails = False
        self.lacks_room = 0
        """So many cuts find no room for their receipts."""

    def replication_endpoint(self, node_id: int) -> None:
        return None

    def storage_failed(self, replica: Any, error: StorageError) -> None:
        self.failed.append((replica.topic_partition.partition, error))

    def cut_log(self, replica: Any, cut: LogCut) -> None:
        self.cut.append((replica.topic_partition.partition, cut.offset, replica.is_being_cut))
        if self.lacks_room:
            self.lacks_room -= 1
            replica.log.truncate_to(cut.offset)
            raise TruncationPending.of("writing the receipt", OSError(errno.ENOSPC, "full"))
        if self.disk_fails:
            raise StorageError.of("truncating", OSError(errno.EIO, "broken"))
        if not cut.truncates_fully:
            replica.log.truncate_to(cut.offset)
        else:
            replica.log.truncate_fully_and_start_at(cut.offset)

    async def checkpoint(self) -> None:
        pass

    def cut_ended(self, replica: Any) -> None:
        self.ended += 1


class Stage:
    """Two partitions of one leader; each log has three records of epoch 3 and two of epoch 4."""

    def __init__(self, threads: ThreadPoolExecutor, host: Host | None = None) -> None:
        self.host, self.clock, self.disk = host or Host(), StillClock(), SimDisk(0)
        self.fetchers = ReplicaFetchers(self.host, self.clock, threads, LIMITS, answer_timeout_ms=1000)
        self.replicas = [self._replica(index) for index in (0, 1)]
        for replica in self.replicas:
            self.fetchers.follow(replica, LEADER, EPOCH)
        self.link = self.fetchers._links[LEADER]
        self.link._task.cancel()
        self.ask()

    def _replica(self, index: int) -> Replica:
        where = TopicPartition("topic", index)
        self.disk.mkdir("/data") if index == 0 else None
        log = PartitionLog.open(
            self.disk, f"/data/topic-{index}", topic_partition=where, topic_id=TOPIC_ID, config=LogConfig(), now_ms=0
        )
        for offset, epoch in enumerate((3, 3, 3, 4, 4)):
            log.append_as_follower(batch(base_offset=offset, leader_epoch=epoch))
        return Replica(where, TOPIC_ID, log, LogConfig(), self.clock)

    def state(self, index: int = 0) -> FollowerState:
        return self.link.fetcher.states[TOPIC_ID.bytes, index]

    def ask(self) -> list[tuple[int, int]]:
        """The next fetch: (partition, offset) of new or changed partitions."""
        request = self.link.fetcher.next_request(self.clock.ms)
        return [] if request is None else [(each.index, each.fetch_offset) for each in request.partitions]

    async def answer(self, *fetched: FetchedPartition) -> list[Any]:
        """Answer the fetch; the lookups that follow."""
        questions: list[Any] = []
        for duty in self.link.fetcher.on_answer(FetchResponse(list(fetched), session_id=9), self.clock.ms):
            self.link.duties.execute(duty, questions)
        await self.run_truncations()
        return questions

    async def run_truncations(self) -> None:
        await asyncio.gather(*self.link.under_way)


def run_story(story: Callable[[Stage], Awaitable[None]]) -> None:
    async def whole() -> None:
        with ThreadPoolExecutor(1) as threads:
            stage = Stage(threads)
            try:
                await story(stage)
            finally:
                await stage.fetchers.close()

    asyncio.run(asyncio.wait_for(whole(), 60))


def fetched(index: int, **fields: Any) -> FetchedPartition:
    return FetchedPartition(None, TOPIC_ID.bytes, index, **fields)


def _spoilt(records: memoryview) -> bytes:
    content = bytearray(records)
    content[-3] ^= 1
    return bytes(content)


# -- appending ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "records",
    [
        _spoilt(batch(base_offset=5, leader_epoch=5)),
        bytes(batch(base_offset=5, leader_epoch=5)) + _spoilt(batch(base_offset=6, leader_epoch=5)),
        bytes(batch(base_offset=4, leader_epoch=5)),
        bytes(batch(base_offset=5, leader_epoch=6)),
        bytes(batch(base_offset=5, leader_epoch=3)),
    ],
    ids=["damaged", "damaged after a valid one", "wrong offset", "future epoch", "older epoch"],
)
def test_invalid_records_are_fetched_again(records: bytes) -> None:
    """testCorruptMessage, testFetcherThreadHandlingPartitionFailureDuringAppending; E26, G11."""

    async def story(stage: Stage) -> None:
        await stage.answer(
            fetched(0, records=records, high_watermark=9),
            fetched(1, records=bytes(batch(base_offset=5, leader_epoch=5)), high_watermark=6),
        )
        assert [each.log.log_end_offset for each in stage.replicas] == [5, 6]
        assert [each.high_watermark for each in stage.replicas] == [0, 6]
        assert (stage.state(0).phase, stage.state(1).phase) == (FollowerPhase.WAITING, FollowerPhase.FETCHING)
        assert stage.host.failed == []
        assert stage.ask() == [(1, 6)], "the failed partition waits, the other continues"
        stage.link.fetcher.on_connection_lost()
        stage.clock.ms = stage.state(0).ready_at_ms
        assert stage.ask() == [(0, 5), (1, 6)]
        await stage.answer(fetched(0, records=bytes(batch(base_offset=5, leader_epoch=5)), high_watermark=6))
        assert stage.replicas[0].log.log_end_offset == 6
        assert stage.state(0).failures == 0

    run_story(story)


def test_gaps_of_a_leader_that_was_compacted_are_remembered() -> None:
    """The topic is not compacted any more: a gap is a loss unless the log says where it comes from (`operations`, seed
    1559)."""

    async def story(stage: Stage) -> None:
        await stage.answer(
            fetched(0, records=bytes(batch(base_offset=7, leader_epoch=4)), high_watermark=20),
            fetched(1, records=bytes(batch(base_offset=5, leader_epoch=4)), high_watermark=20),
        )
        assert [each.log.log_end_offset for each in stage.replicas] == [8, 6]
        assert [each.log.complete_from for each in stage.replicas] == [CompleteFrom(20, EPOCH), CompleteFrom()]

    run_story(story)


def test_disk_error_is_reported_and_other_partitions_continue() -> None:
    """testFetcherThreadHandlingPartitionFailureDuringAppending: the broker handles the partition."""

    async def story(stage: Stage) -> None:
        stage.disk.fail("write", "topic-0/00000000000000000000.log")
        records = bytes(batch(base_offset=5, leader_epoch=5))
        await stage.answer(fetched(0, records=records), fetched(1, records=records))
        assert [each.log.log_end_offset for each in stage.replicas] == [5, 6]
        assert [index for index, _ in stage.host.failed] == [0]
        assert stage.state(0).phase is FollowerPhase.WAITING

    run_story(story)


def test_internal_error_affects_one_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(stage: Stage) -> None:
        def broken(*_: Any, **__: Any) -> None:
            raise AssertionError("an invariant of the log")

        monkeypatch.setattr(stage.replicas[0], "log", SimpleNamespace(append_as_follower=broken))
        records = bytes(batch(base_offset=5, leader_epoch=5))
        await stage.answer(fetched(0, records=records), fetched(1, records=records))
        assert stage.replicas[1].log.log_end_offset == 6
        assert (stage.state(0).phase, stage.state(1).phase) == (FollowerPhase.WAITING, FollowerPhase.FETCHING)

    run_story(story)


# -- truncating --------------------------------------------------------------------------------------------------------


def test_failed_truncation_is_reported_and_retried() -> None:
    """testFetcherThreadHandlingPartitionFailureDuringTruncation: nothing is fetched before the truncation."""

    async def story(stage: Stage) -> None:
        stage.host.disk_fails = True
        records = bytes(batch(base_offset=5, leader_epoch=5))
        await stage.answer(fetched(0, diverging_epoch=(3, 2)), fetched(1, records=records))
        assert stage.host.cut == [(0, 2, True)]
        assert [index for index, _ in stage.host.failed] == [0]
        assert not stage.replicas[0].is_being_cut
        assert stage.host.ended == 1
        assert (stage.state(0).phase, stage.replicas[1].log.log_end_offset) == (FollowerPhase.WAITING, 6)
        stage.host.disk_fails = False
        stage.link.fetcher.on_connection_lost()
        stage.clock.ms = stage.state(0).ready_at_ms
        assert stage.ask() == [(0, 5), (1, 6)]
        await stage.answer(fetched(0, diverging_epoch=(3, 2)))
        assert stage.replicas[0].log.log_end_offset == 2
        assert stage.state(0).phase is FollowerPhase.FETCHING

    run_story(story)


@pytest.mark.parametrize(("fails", "divergence"), [(True, (3, 2)), (False, (4, 5))])
def test_link_retries_after_a_truncation_without_effect(fails: bool, divergence: tuple[int, int]) -> None:
    """Brokers, seed 1073: the only partition of a leader was not fetched any more."""

    async def story(stage: Stage) -> None:
        stage.host.disk_fails = fails
        stage.link._wakeup.clear()
        resting = asyncio.ensure_future(stage.link._pause(None))
        await asyncio.sleep(0)
        await stage.answer(fetched(0, diverging_epoch=divergence))
        assert (len(stage.host.cut), stage.state(0).phase) == (1, FollowerPhase.WAITING)
        await resting

    run_story(story)


def test_records_below_leader_log_start_are_removed_before_next_fetch() -> None:
    """The fetch would count for the in-sync set, with records that the leader could not check."""

    async def story(stage: Stage) -> None:
        await stage.answer(fetched(0, diverging_epoch=(3, 3), log_start_offset=3))
        assert stage.host.cut == [(0, 3, True), (0, 3, True)]
        log = stage.replicas[0].log
        assert (log.log_start_offset, log.log_end_offset, stage.host.ended) == (3, 3, 1)
        stage.link.fetcher.on_connection_lost()
        assert stage.ask() == [(0, 3), (1, 5)]

    run_story(story)


def test_truncation_waits_for_space_for_its_receipt(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log whose loss has no receipt yet is neither extended nor served."""
    monkeypatch.setattr(follower_truncation, "ROOM_PAUSE_S", 0.0)

    async def story(stage: Stage) -> None:
        stage.host.lacks_room = 2
        await stage.answer(fetched(0, diverging_epoch=(3, 2)))
        assert stage.host.cut == [(0, 2, True)] * 3
        assert [error.disk_full for _, error in stage.host.failed] == [True, True]
        assert (stage.host.ended, stage.replicas[0].is_being_cut) == (1, False)
        assert (stage.state(0).phase, stage.replicas[0].log.log_end_offset) == (FollowerPhase.FETCHING, 2)

    run_story(story)


def test_removed_replica_does_not_wait_for_space_for_its_receipt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its deletion may free the space, and continues with the receipt."""
    monkeypatch.setattr(follower_truncation, "ROOM_PAUSE_S", 0.0)

    async def story(stage: Stage) -> None:
        stage.host.lacks_room = 10**9
        stage.replicas[0].is_leaving = True
        await stage.answer(fetched(0, diverging_epoch=(3, 2)))
        assert stage.host.cut == [(0, 2, True)]
        assert (stage.host.ended, stage.replicas[0].is_being_cut) == (1, False)

    run_story(story)


def test_diverging_answer_only_truncates() -> None:
    """testTruncateOnFetchDoesNotProcessPartitionData, testTruncateOnFetchDoesNotUpdateHighWatermark; E25."""

    async def story(stage: Stage) -> None:
        stage.replicas[0].apply_leader_offsets(1, 0)
        records = bytes(batch(base_offset=5, leader_epoch=5))
        await stage.answer(fetched(0, diverging_epoch=(3, 2), high_watermark=99, log_start_offset=1, records=records))
        replica = stage.replicas[0]
        assert (replica.log.log_start_offset, replica.high_watermark, replica.log.log_end_offset) == (0, 1, 2)

    run_story(story)


def test_same_epoch_truncates_nothing() -> None:
    """testTruncationSkippedIfNoEpochChange, testTruncateOnFetch...: a log equal to the leader's is only appended."""

    async def story(stage: Stage) -> None:
        for offset in (5, 6):
            await stage.answer(fetched(0, records=bytes(batch(base_offset=offset, leader_epoch=5))))
            stage.ask()
        assert stage.host.cut == []
        assert stage.replicas[0].log.epochs.entries == ((3, 0), (4, 3), (5, 5))

    run_story(story)


# -- out of range ------------------------------------------------------------------------------------------------------


class Leader:
    """Answers ListOffsets with the given offset or error."""

    def __init__(self, *answers: int | ErrorCode, meanwhile: Callable[[], None] = lambda: None) -> None:
        self.answers = list(answers)
        self.meanwhile = meanwhile
        self.asked: list[tuple[int, int, int]] = []

    def version_for(self, *_: int) -> int:
        return 10

    async def call(self, key: int, version: int, fields: Any, timeout_s: float) -> Any:
        (row,) = fields["topics"][0]["partitions"]
        self.asked.append((fields["replica_id"], row["timestamp"], row["current_leader_epoch"]))
        self.meanwhile()
        answer = self.answers.pop(0)
        is_error = isinstance(answer, ErrorCode)
        code, offset = (answer, -1) if is_error else (0, answer)
        partition = SimpleNamespace(partition_index=row["partition_index"], error_code=code, offset=offset)
        name = fields["topics"][0]["name"]
        return SimpleNamespace(topics=[SimpleNamespace(name=name, partitions=[partition])])


@pytest.mark.parametrize(
    "answers",
    [
        (ErrorCode.FENCED_LEADER_EPOCH,),
        (ErrorCode.UNKNOWN_LEADER_EPOCH,),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER,),
        (9, ErrorCode.FENCED_LEADER_EPOCH),
        (9, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
def test_rejected_offset_lookup_truncates_nothing_and_is_retried(answers: tuple[int | ErrorCode, ...]) -> None:
    """testFencedOffsetResetAfterOutOfRange, testRetryAfterUnknownLeaderEpochInLatestOffsetFetch; E27, E28, G3."""

    async def story(stage: Stage) -> None:
        (question,) = await stage.answer(fetched(0, error_code=ErrorCode.OFFSET_OUT_OF_RANGE))
        assert isinstance(question, AskEnd)
        assert stage.ask() == [], "nothing is fetched while the leader is asked"
        leader: Any = Leader(*answers)
        await stage.link.truncation.ask(leader, question)
        assert leader.asked == [(1, -1, EPOCH), (1, -4, EPOCH)][: len(answers)]
        assert (stage.state(0).phase, stage.host.cut) == (FollowerPhase.WAITING, [])
        stage.link.fetcher.on_connection_lost()
        stage.clock.ms = stage.state(0).ready_at_ms
        assert (0, 5) in stage.ask()

    run_story(story)


@pytest.mark.parametrize(("answers", "cut"), [((2,), 2), ((40, 30), 30)])
def test_log_out_of_range_is_truncated_or_restarted(answers: tuple[int, ...], cut: int) -> None:
    """testFollowerFetchOutOfRangeHigh, testFollowerFetchOutOfRangeLow; E28."""

    async def story(stage: Stage) -> None:
        (question,) = await stage.answer(fetched(0, error_code=ErrorCode.OFFSET_OUT_OF_RANGE))
        leader: Any = Leader(*answers)
        await stage.link.truncation.ask(leader, question)
        await stage.run_truncations()
        assert stage.host.cut == [(0, cut, True)]
        log = stage.replicas[0].log
        assert (log.log_end_offset, stage.state(0).phase) == (cut, FollowerPhase.FETCHING)
        assert log.log_start_offset == (0 if cut < 5 else cut)

    run_story(story)


@pytest.mark.parametrize("answer", [2, ErrorCode.FENCED_LEADER_EPOCH])
def test_lookup_of_an_older_epoch_is_ignored(answer: int | ErrorCode) -> None:
    """testLeaderEpochChangeDuringSuccessfulFetchEpochsFromLeader; E26."""

    async def story(stage: Stage) -> None:
        (question,) = await stage.answer(fetched(0, error_code=ErrorCode.OFFSET_OUT_OF_RANGE))
        follow = stage.fetchers.follow
        leader: Any = Leader(answer, meanwhile=lambda: follow(stage.replicas[0], LEADER, EPOCH + 1))
        await stage.link.truncation.ask(leader, question)
        await stage.run_truncations()
        assert stage.host.cut == []
        assert (stage.state(0).leader_epoch, stage.state(0).phase) == (EPOCH + 1, FollowerPhase.FETCHING)

    run_story(story)


def test_unanswered_lookup_is_retried() -> None:
    """The connection is lost meanwhile, without a reason, and nothing else would wake the partition."""

    async def story(stage: Stage) -> None:
        questions = await stage.answer(
            fetched(0, error_code=ErrorCode.OFFSET_OUT_OF_RANGE), fetched(1, error_code=ErrorCode.OFFSET_OUT_OF_RANGE)
        )
        assert len(questions) == 2

        def lose() -> None:
            raise PeerConnectionLost("gone")

        leader: Any = Leader(meanwhile=lose)
        with pytest.raises(PeerConnectionLost):
            await stage.link.truncation.ask_all(leader, questions)
        stage.link.fetcher.on_connection_lost()
        assert [stage.state(index).phase for index in (0, 1)] == [FollowerPhase.WAITING] * 2
        stage.clock.ms = max(stage.state(index).ready_at_ms for index in (0, 1))
        assert stage.ask() == [(0, 5), (1, 5)]

    run_story(story)


# -- past a gap --------------------------------------------------------------------------------------------------------


class EpochsOfLeader:
    """Answers OffsetForLeaderEpoch with the given (epoch, end) or error."""

    def __init__(self, *answers: tuple[int, int] | ErrorCode) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[int, int, int]] = []

    def version_for(self, *_: int) -> int:
        return 4

    async def call(self, key: int, version: int, fields: Any, timeout_s: float) -> Any:
        (topic,) = fields["topics"]
        (row,) = topic["partitions"]
        self.asked.append((fields["replica_id"], row["leader_epoch"], row["current_leader_epoch"]))
        answer = self.answers.pop(0)
        code, (epoch, end) = (answer, (-1, -1)) if isinstance(answer, ErrorCode) else (0, answer)
        partition = SimpleNamespace(partition=row["partition"], error_code=code, leader_epoch=epoch, end_offset=end)
        return SimpleNamespace(topics=[SimpleNamespace(topic=topic["topic"], partitions=[partition])])


BEHIND = bytes(batch(base_offset=9, leader_epoch=EPOCH))
"""The log ends at 5."""


def test_start_of_an_epoch_past_a_gap_is_requested() -> None:
    """The first batch left by compaction does not show it; `epochs.md E13`, `E14`."""

    async def story(stage: Stage) -> None:
        before = bytes(batch(base_offset=5, leader_epoch=4))
        other = bytes(batch(base_offset=5, leader_epoch=EPOCH))
        questions = await stage.answer(
            fetched(0, records=before + BEHIND, high_watermark=6), fetched(1, records=other, high_watermark=6)
        )
        log = stage.replicas[0].log
        assert (questions, log.log_end_offset) == ([], 6), "the records before the gap are appended"
        assert stage.replicas[1].log.log_end_offset == 6
        stage.ask()
        questions = await stage.answer(fetched(0, records=BEHIND, high_watermark=10))
        assert questions == [AskEpochEnd(stage.state(), 4)]
        assert log.log_end_offset == 6
        assert all(index != 0 for index, _ in stage.ask()), "nothing is fetched while the leader is asked"
        leader: Any = EpochsOfLeader((4, 7))
        await stage.link.truncation.ask_all(leader, questions)
        assert leader.asked == [(1, 4, EPOCH)]
        stage.link.fetcher.on_connection_lost()
        assert (0, 6) in stage.ask()
        assert await stage.answer(fetched(0, records=BEHIND, high_watermark=10)) == []
        assert (log.log_end_offset, log.epochs.entries) == (10, ((3, 0), (4, 3), (EPOCH, 7)))
        assert stage.replicas[0].high_watermark == 10
        assert log.flush_due(0), "no batch would restore it after a crash"

    run_story(story)


@pytest.mark.parametrize("answer", [ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.NOT_LEADER_OR_FOLLOWER])
def test_rejected_epoch_lookup_is_retried(answer: ErrorCode) -> None:
    async def story(stage: Stage) -> None:
        questions = await stage.answer(fetched(0, records=BEHIND))
        refusing: Any = EpochsOfLeader(answer)
        await stage.link.truncation.ask_all(refusing, questions)
        assert (stage.state(0).phase, stage.replicas[0].log.log_end_offset) == (FollowerPhase.WAITING, 5)
        stage.link.fetcher.on_connection_lost()
        stage.clock.ms = stage.state(0).ready_at_ms
        assert (0, 5) in stage.ask()
        questions = await stage.answer(fetched(0, records=BEHIND))
        answering: Any = EpochsOfLeader((4, 8))
        await stage.link.truncation.ask_all(answering, questions)
        stage.link.fetcher.on_connection_lost()
        stage.ask()
        assert await stage.answer(fetched(0, records=BEHIND)) == []
        assert stage.replicas[0].log.epochs.entries == ((3, 0), (4, 3), (EPOCH, 8))

    run_story(story)


def test_old_leader_is_truncated_inside_a_compacted_gap() -> None:
    """The replica that fetched the compacted log leads. Records that only the old leader has lie in the gap: if the new
    leader reported a later end of the old epoch, they would stay, and the loss would not be detected.
    """

    async def story(stage: Stage) -> None:
        questions = await stage.answer(fetched(0, records=BEHIND, high_watermark=10))
        leader: Any = EpochsOfLeader((4, 6))
        await stage.link.truncation.ask_all(leader, questions)
        stage.link.fetcher.on_connection_lost()
        stage.ask()
        await stage.answer(fetched(0, records=BEHIND, high_watermark=10))
        new = stage.replicas[0].log
        old = stage.replicas[1].log
        for offset in (5, 6, 7):
            old.append_as_follower(batch(base_offset=offset, leader_epoch=4))
        fetch_offset, last_epoch = old.log_end_offset, old.latest_epoch
        told_epoch, told_end = new.end_offset_for_epoch(last_epoch)
        assert told_end < fetch_offset, "the leader reports the divergence (E8)"
        cut = FollowerState("topic", TOPIC_ID.bytes, 1, EPOCH + 1, old).on_divergence(told_epoch, told_end)
        assert cut.offset == 6

    run_story(story)
