"""What fetches of a session cost and miss: idle partitions are not read, and nothing that changes goes untold."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from fenceline.errors import ErrorCode
from tests.node.desk import RECOVERING, Desk, told, turns

FOLLOWER: dict[str, Any] = {"replica_id": 2, "replica_epoch": 102}
CONSUMER: dict[str, Any] = {}
MANY = 50


class Session:
    """One reader of partitions 0 to `count`."""

    def __init__(self, desk: Desk, count: int, reader: dict[str, Any]) -> None:
        self.desk, self.reader = desk, reader
        self.reads: list[int] = []
        read_partition = desk.fetching.reads._read_partition

        def counted(request: Any, wanted: Any, *others: Any) -> None:
            self.reads.append(wanted.asked.index)
            read_partition(request, wanted, *others)

        desk.fetching.reads._read_partition = counted  # type: ignore[method-assign, assignment]
        wanted = [desk.wanted(index=index, log_start_offset=0) for index in range(count)]
        self.id = desk.fetch(*wanted, session_epoch=0, **reader).response.session_id
        self.epoch = 0

    def go_on(self, *wanted: Any, **fields: Any) -> Any:
        self.reads.clear()
        self.epoch += 1
        return self.desk.fetch(*wanted, session_id=self.id, session_epoch=self.epoch, **self.reader, **fields)


def _idle(desk: Desk, reader: dict[str, Any], count: int = MANY) -> Session:
    for index in range(count):
        desk.lead(1, isr=(1, 2), index=index)
    session = Session(desk, count, reader)
    session.go_on()
    assert len(session.reads) == count, "the second fetch finds that the first has told all"
    return session


@pytest.mark.parametrize("reader", [CONSUMER, FOLLOWER])
def test_idle_partitions_are_not_read(reader: dict[str, Any]) -> None:
    async def story(desk: Desk) -> None:
        session = _idle(desk, reader)
        assert session.go_on().response.partitions == []
        assert session.reads == []
        parked = session.go_on(max_wait_ms=60_000)
        assert parked.is_pending
        desk.append(index=7)
        desk.follower_fetched(2, 1, index=7)
        answered = await parked.later()
        assert [each.index for each in answered.partitions] == [7]
        assert set(session.reads) == {7}

    told(story, partitions=MANY)


@pytest.mark.parametrize("reader", [CONSUMER, FOLLOWER])
def test_a_session_without_news_waits(reader: dict[str, Any]) -> None:
    async def story(desk: Desk) -> None:
        session = _idle(desk, reader, 3)
        parked = session.go_on(max_wait_ms=60_000)
        await turns()
        assert parked.is_pending
        parked.abandon()

    told(story, partitions=3)


def test_a_reader_that_goes_away_leaves_nothing_at_its_partitions_but_its_session() -> None:
    async def story(desk: Desk) -> None:
        session = _idle(desk, CONSUMER, 3)
        parked = session.go_on(max_wait_ms=60_000)
        assert desk.metrics.parked_fetches == 1
        parked.abandon()
        assert desk.metrics.parked_fetches == 0
        session.desk.fetch(session_id=session.id, session_epoch=-1)
        assert all(not desk.replica(index).waiters for index in range(3))

    told(story, partitions=3)


@pytest.mark.parametrize(
    "news", ["high watermark", "log start", "epoch", "role", "recovering", "offline", "deleted", "moved away"]
)
def test_whatever_changes_is_told(news: str) -> None:
    """To consumers whose partitions had all settled."""

    async def story(desk: Desk) -> None:
        session = _idle(desk, CONSUMER, 3)
        session.go_on()
        replica = desk.replica(1)
        expected: Any = 0
        match news:
            case "high watermark":
                desk.append(2, index=1)
                desk.follower_fetched(2, 1, index=1)
            case "log start":
                desk.append(2, index=1)
                desk.follower_fetched(2, 2, index=1)
                session.go_on(desk.wanted(2, index=1))
                session.go_on()
                await desk.delete_records(1, index=1, timeout_ms=0)
            case "epoch":
                expected = None  # asked without an epoch, it does not care
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
        answered = session.go_on().response.partitions
        assert 1 in session.reads or news in ("offline", "deleted", "moved away", "recovering")
        assert [each.error_code for each in answered if each.index == 1] == ([] if expected is None else [expected])

    told(story, partitions=3)


def test_a_replica_out_of_sync_is_looked_at_with_every_fetch() -> None:
    """It may be let in at any time: E35 asks with each fetch."""

    async def story(desk: Desk) -> None:
        for index in range(3):
            desk.lead(1, isr=(1,) if index == 1 else (1, 2), index=index)
        session = Session(desk, 3, FOLLOWER)
        session.go_on()
        session.go_on()
        assert session.reads == [1]
        desk.tell(1, isr=(1, 2))
        session.go_on()
        session.go_on()
        assert session.reads == []

    told(story, partitions=3)


def test_an_idle_follower_keeps_its_place_in_sync() -> None:
    """E34: the first record after an hour finds it caught up, because its session fetched all the time."""

    async def story(desk: Desk) -> None:
        session = _idle(desk, FOLLOWER, 1)
        for _ in range(60):
            desk.clock.ms += 60_000
            session.go_on()
        desk.append()
        desk.clock.ms += 20_000
        desk.replication.shrink_isrs()
        leader = desk.replica().leader
        assert leader is not None
        assert leader.proposal is None
        desk.clock.ms += 20_000
        desk.replication.shrink_isrs()
        assert leader.proposal is not None, "40 s behind"

    told(story)


def test_a_follower_that_stopped_to_fetch_was_last_there_when_it_fetched_last() -> None:
    async def story(desk: Desk) -> None:
        _idle(desk, FOLLOWER, 1)
        desk.clock.ms += 60_000
        desk.append()
        desk.replication.shrink_isrs()
        leader = desk.replica().leader
        assert leader is not None
        assert leader.proposal is not None

    told(story)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("reader", [CONSUMER, FOLLOWER])
def test_a_session_tells_what_a_full_fetch_would(seed: int, reader: dict[str, Any]) -> None:
    """Whatever happens in whatever order: after each step the reader of a session knows what one without sees."""

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
                    parked = session.go_on(max_wait_ms=60_000)
                    if parked.is_pending:
                        parked.abandon()
            answer = session.go_on().response
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

    told(story, partitions=4)
