"""Cost and completeness of session fetches: idle partitions are not read, and every change is reported."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from fenceline.errors import ErrorCode
from tests.node.desk import RECOVERING, Desk, run_story, turns

FOLLOWER: dict[str, Any] = {"replica_id": 2, "replica_epoch": 102}
CONSUMER: dict[str, Any] = {}
MANY = 50


class Session:
    """One reader of partitions 0 to `count`."""

    def __init__(self, desk: Desk, count: int, reader: dict[str, Any]) -> None:
        self.desk, self.reader = desk, reader
        self.reads: list[int] = []
        read = desk.fetching.reads.read

        def counted(request: Any, answer: Any, reader: Any, **others: Any) -> Any:
            self.reads += [wanted.asked.index for wanted in answer.to_read()]
            return read(request, answer, reader, **others)

        desk.fetching.reads.read = counted  # type: ignore[method-assign]
        wanted = [desk.wanted(index=index, log_start_offset=0) for index in range(count)]
        self.id = desk.fetch(*wanted, session_epoch=0, **reader).response.session_id
        self.epoch = 0

    def next_fetch(self, *wanted: Any, **fields: Any) -> Any:
        self.reads.clear()
        self.epoch += 1
        return self.desk.fetch(*wanted, session_id=self.id, session_epoch=self.epoch, **self.reader, **fields)


def _idle(desk: Desk, reader: dict[str, Any], count: int = MANY) -> Session:
    for index in range(count):
        desk.lead(1, isr=(1, 2), index=index)
    session = Session(desk, count, reader)
    session.next_fetch()
    assert len(session.reads) == count, "the second fetch finds every partition reported"
    return session


@pytest.mark.parametrize("reader", [CONSUMER, FOLLOWER])
def test_idle_partitions_are_not_read(reader: dict[str, Any]) -> None:
    async def story(desk: Desk) -> None:
        session = _idle(desk, reader)
        assert session.next_fetch().response.partitions == []
        assert session.reads == []
        parked = session.next_fetch(max_wait_ms=60_000)
        assert parked.is_pending
        desk.append(index=7)
        desk.follower_fetched(2, 1, index=7)
        answered = await parked.later()
        assert [each.index for each in answered.partitions] == [7]
        assert set(session.reads) == {7}

    run_story(story, partitions=MANY)


@pytest.mark.parametrize("reader", [CONSUMER, FOLLOWER])
def test_session_without_changes_waits(reader: dict[str, Any]) -> None:
    async def story(desk: Desk) -> None:
        session = _idle(desk, reader, 3)
        parked = session.next_fetch(max_wait_ms=60_000)
        await turns()
        assert parked.is_pending
        parked.abandon()

    run_story(story, partitions=3)


@pytest.mark.parametrize("reader", [CONSUMER, FOLLOWER])
def test_a_partition_unknown_here_ends_the_wait_of_a_follower_only(reader: dict[str, Any]) -> None:
    """A broker hears of a new partition before its leader does, and a producer waits for both."""

    async def story(desk: Desk) -> None:
        session = _idle(desk, reader, 3)
        answer = session.next_fetch(desk.wanted(index=3, log_start_offset=0), max_wait_ms=60_000)
        if reader is CONSUMER:
            await turns()
            assert answer.is_pending
            answer.abandon()
        else:
            (refused,) = answer.response.partitions
            assert (refused.index, refused.error_code) == (3, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    run_story(story, partitions=3)


def test_disconnected_reader_leaves_no_waiters() -> None:
    async def story(desk: Desk) -> None:
        session = _idle(desk, CONSUMER, 3)
        parked = session.next_fetch(max_wait_ms=60_000)
        assert desk.metrics.parked_fetches == 1
        parked.abandon()
        assert desk.metrics.parked_fetches == 0
        session.desk.fetch(session_id=session.id, session_epoch=-1)
        assert all(not desk.replica(index).waiters for index in range(3))

    run_story(story, partitions=3)


@pytest.mark.parametrize(
    "news", ["high watermark", "log start", "epoch", "role", "recovering", "offline", "deleted", "moved away"]
)
def test_every_change_is_reported(news: str) -> None:
    """To consumers whose partitions were all idle."""

    async def story(desk: Desk) -> None:
        session = _idle(desk, CONSUMER, 3)
        session.next_fetch()
        replica = desk.replica(1)
        expected: Any = 0
        match news:
            case "high watermark":
                desk.append(2, index=1)
                desk.follower_fetched(2, 1, index=1)
            case "log start":
                desk.append(2, index=1)
                desk.follower_fetched(2, 2, index=1)
                session.next_fetch(desk.wanted(2, index=1))
                session.next_fetch()
                await desk.delete_records(1, index=1, timeout_ms=0)
            case "epoch":
                expected = None  # the fetch has no epoch, so none is checked
                desk.lead(2, isr=(1, 2), index=1)
            case "role":
                expected = None
                desk.follow(2, index=1)
            case "recovering":
                expected = ErrorCode.NOT_LEADER_OR_FOLLOWER
                desk.lead(2, index=1, leader_recovery_state=RECOVERING)
            case "offline":
                expected = ErrorCode.KAFKA_STORAGE_ERROR
                desk.partitions.set_offline(replica.topic_partition, "its disk is gone")
            case "deleted":
                expected = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                desk.delete_topic()
            case _:
                expected = ErrorCode.NOT_LEADER_OR_FOLLOWER
                desk.tell(1, replicas=(2, 3), isr=(2, 3), leader=2, leader_epoch=2)
        answered = session.next_fetch().response.partitions
        assert 1 in session.reads or news in ("offline", "deleted", "moved away", "recovering")
        assert [each.error_code for each in answered if each.index == 1] == ([] if expected is None else [expected])

    run_story(story, partitions=3)


def test_out_of_sync_replica_is_checked_until_it_is_proposed() -> None:
    """It may join the ISR at any time: E35 checks with each fetch. While the controller decides, nothing can change."""

    async def story(desk: Desk) -> None:
        for index in range(3):
            desk.lead(1, isr=(1,) if index == 1 else (1, 2), index=index)
        leader = desk.replica(1).leader
        assert leader is not None
        session = Session(desk, 3, FOLLOWER)
        session.next_fetch()
        session.next_fetch()
        session.next_fetch()
        assert session.reads == []
        assert leader.proposal is not None
        leader.on_rejected(leader.proposal, ErrorCode.INELIGIBLE_REPLICA)
        session.next_fetch()
        assert leader.proposal is None, "it is not known yet that the controller has rejected it"
        desk.replica(1).wake()
        session.next_fetch()
        assert leader.proposal is not None
        desk.tell(1, isr=(1, 2))
        session.next_fetch()
        session.next_fetch()
        assert session.reads == []

    run_story(story, partitions=3)


def test_idle_follower_stays_in_sync() -> None:
    """E34: when the first record after an hour arrives it is caught up, because its session kept fetching."""

    async def story(desk: Desk) -> None:
        session = _idle(desk, FOLLOWER, 1)
        for _ in range(60):
            desk.clock.ms += 60_000
            session.next_fetch()
        desk.append()
        desk.clock.ms += 20_000
        desk.replication.shrink_isrs()
        leader = desk.replica().leader
        assert leader is not None
        assert leader.proposal is None
        desk.clock.ms += 20_000
        desk.replication.shrink_isrs()
        assert leader.proposal is not None, "40 s behind"

    run_story(story)


def test_follower_that_stopped_fetching_falls_out_of_sync() -> None:
    async def story(desk: Desk) -> None:
        _idle(desk, FOLLOWER, 1)
        desk.clock.ms += 60_000
        desk.append()
        desk.replication.shrink_isrs()
        leader = desk.replica().leader
        assert leader is not None
        assert leader.proposal is not None

    run_story(story)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("reader", [CONSUMER, FOLLOWER])
def test_session_matches_full_fetches(seed: int, reader: dict[str, Any]) -> None:
    """After each step of a random sequence, a session reader knows the same as a reader without a session."""

    async def story(desk: Desk) -> None:
        rng = Random(seed)
        count = 4
        epochs = dict.fromkeys(range(count), 1)
        for index in range(count):
            desk.lead(1, isr=(1, 2), index=index)
        session = Session(desk, count, reader)
        known: dict[int, tuple[int, int, int]] = dict.fromkeys(range(count), (0, 0, 0))
        for _ in range(40):
            index = rng.randrange(count)
            match rng.choice(("append", "commit", "delete", "elect", "follow", "wait", "in sync")):
                case "append" if desk.replica(index).is_leader:
                    desk.append(rng.randint(1, 3), index=index)
                case "commit" if desk.replica(index).is_leader:
                    log = desk.replica(index).log
                    at = rng.randint(log.high_watermark, log.log_end_offset)
                    desk.follower_fetched(2, at, index=index, log_start_offset=log.log_start_offset)
                case "delete" if desk.replica(index).is_leader:
                    await desk.delete_records(desk.replica(index).high_watermark, index=index, timeout_ms=0)
                case "elect":
                    epochs[index] += 1
                    desk.lead(epochs[index], isr=(1, 2), index=index)
                case "follow":
                    epochs[index] += 1
                    desk.follow(epochs[index], index=index)
                case "in sync" if desk.replica(index).is_leader:
                    desk.tell(index, isr=rng.choice(((1,), (1, 2))))
                case "wait":
                    parked = session.next_fetch(max_wait_ms=60_000)
                    if parked.is_pending:
                        parked.abandon()
            answer = session.next_fetch().response
            for each in answer.partitions:
                known[each.index] = (each.error_code, each.high_watermark, each.log_start_offset)
            for number in range(count):
                whole = desk.fetch(desk.wanted(index=number, log_start_offset=0), **CONSUMER).response.partitions[0]
                if not reader:
                    assert known[number] == (whole.error_code, whole.high_watermark, whole.log_start_offset)
                elif desk.replica(number).is_leader:
                    assert known[number][1:] in (
                        (whole.high_watermark, whole.log_start_offset),
                        (-1, -1) if known[number][0] else (whole.high_watermark, whole.log_start_offset),
                    )

    run_story(story, partitions=4)
