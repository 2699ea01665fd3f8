"""The fast paths for followers and consumers against `FetchHandler` alone: same responses, same state afterwards."""

from __future__ import annotations

import errno
from collections.abc import Callable
from random import Random
from typing import Any, Final

import pytest

from fenceline.errors import ErrorCode
from fenceline.node.api.fetch import fetching
from fenceline.node.api.fetch.reads import FetchReads
from fenceline.records.batch import iter_headers
from fenceline.replica.throttle import NO_RATE
from fenceline.wire.fetch import FetchPartition, FetchRequest, encode_request
from tests.node.desk import OTHERS, TOPIC, Answer, Desk, run_story, state, turns

PARTITIONS: Final = 3
FIELDS: Final[dict[str, Any]] = {
    "cluster_id": None,
    "max_wait_ms": 60_000,
    "min_bytes": 1,
    "max_bytes": 50 << 20,
    "isolation_level": 0,
    "forgotten": [],
    "rack_id": "",
}


CONSUMER: Final = -1


class Follower:
    """Another broker, which appends what it is sent, or a consumer; sometimes its requests are invalid."""

    def __init__(self, desk: Desk, number: int) -> None:
        self.desk, self.number = desk, number
        self.ends = [0] * PARTITIONS
        self.epochs = [-1] * PARTITIONS
        self.changed = set(range(PARTITIONS))
        self.session = (0, 0)
        self.answer: Answer | None = None
        self.version = 17
        self.max_bytes = 1 << 20
        """Of a partition."""
        self.reported: list[Any] = []

    def wanted(self, index: int, **fields: Any) -> FetchPartition:
        given = {
            "fetch_offset": self.ends[index],
            "max_bytes": self.max_bytes,
            "current_leader_epoch": state(self.desk.image, index).leader_epoch,
            "last_fetched_epoch": self.epochs[index],
            "log_start_offset": 0,
        }
        return FetchPartition(None, self.desk.topic_id.bytes, index, **given | fields)

    def ask(self, version: int, indexes: list[int], mangle: Callable[[bytes], bytes] = bytes, **fields: Any) -> None:
        """`fields` of a partition apply to all of `indexes`, other fields to the request."""
        own = {
            name: fields.pop(name) for name in tuple(fields) if name in FetchPartition._fields and name != "max_bytes"
        }
        given = {"replica_id": self.number, "replica_epoch": 100 + self.number if self.number > 0 else -1, **FIELDS}
        given |= {"session_id": self.session[0], "session_epoch": self.session[1], **fields}
        request = FetchRequest(partitions=[self.wanted(index, **own) for index in indexes], **given)
        body = mangle(b"".join(bytes(part) for part in encode_request(version, request)))
        self.version, self.changed = version, set()
        try:
            outcome = self.desk.fetching.handle(self.desk.context(version), memoryview(body))
        except Exception as error:
            self.reported.append((type(error), str(error)))
            self.begin_anew()
            return
        self.answer = Answer(version, outcome)

    def begin_anew(self) -> None:
        if self.answer is not None and self.answer.is_pending:
            self.answer.abandon()
        self.answer, self.session, self.changed = None, (0, 0), set(range(PARTITIONS))

    @property
    def is_waiting(self) -> bool:
        return self.answer is not None and self.answer.is_pending

    def listen(self) -> None:
        """Process the responses since the last call."""
        if self.answer is None or self.answer.is_pending:
            return
        parts, response = self.answer._parts, self.answer.response
        self.answer = None
        self.reported.append(b"".join(bytes(part) for part in parts))
        if response.error_code or response.session_id == 0:
            self.begin_anew()
        else:
            self.session = response.session_id, self.session[1] + 1
        for each in response.partitions:
            if each.topic_id != self.desk.topic_id.bytes or each.index not in range(PARTITIONS):
                continue
            self.changed.add(each.index)
            if each.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                replica = self.desk.partitions.open_by_name.get((TOPIC, each.index))
                start = 0 if replica is None else replica.log.log_start_offset  # its disk may have failed since
                self.ends[each.index], self.epochs[each.index] = start, -1
            elif each.diverging_epoch is not None:
                self.epochs[each.index], self.ends[each.index] = each.diverging_epoch
            elif each.records:
                for header in iter_headers(memoryview(each.records)):
                    self.ends[each.index], self.epochs[each.index] = header.next_offset, header.leader_epoch


class Story:
    """The events of one leader. The same seed gives the same events, as long as the responses are equal."""

    def __init__(self, desk: Desk, seed: int, consumers: int = 0) -> None:
        self.desk, self.rng = desk, Random(seed)
        self.epoch = 1
        for index in range(PARTITIONS):
            desk.lead(1, isr=(1, 2, 3), index=index)
        self.followers = [Follower(desk, number) for number in [*OTHERS, *[CONSUMER] * consumers]]
        self.failing = False
        self.mend: list[Callable[[], None]] = []
        self.seen: list[Any] = []
        """The sessions, and the listeners of each partition, after each step."""
        read = desk.disk.pread_resident

        def pread_resident(fd: int, size_bytes: int, position: int) -> Any:
            if self.failing:
                raise OSError(errno.EIO, "Input/output error")
            return read(fd, size_bytes, position)

        desk.disk.pread_resident = pread_resident  # type: ignore[method-assign]

    async def goes_on(self, steps: int) -> None:
        for number in range(steps):
            self.step(is_late=number > 0.8 * steps)
            await turns()
            for follower in self.followers:
                follower.listen()
                self.ask(follower)
            await turns()
            self.seen.append((self.sessions(), self.followed()))

    def followed(self) -> list[Any]:
        return [
            (
                len(replica.waiters),
                len(replica.follower_waiters),
                repr(replica.leader.followers) if replica.leader is not None else None,
            )
            for replica in self.desk.partitions.in_service
        ]

    def ask(self, follower: Follower) -> None:
        rng = self.rng
        if follower.is_waiting:
            if rng.random() < 0.02:
                follower.begin_anew()
            return
        indexes = sorted(follower.changed)
        if follower.number == CONSUMER and rng.random() < 0.9:
            self.consume(follower, indexes)
            return
        if rng.random() < 0.85:
            follower.ask(17, indexes)
            return
        strange: list[dict[str, Any]] = [
            {"session_epoch": follower.session[1] + 1},
            {"session_id": 12345},
            {"current_leader_epoch": rng.choice([self.epoch - 1, self.epoch + 1])},
            {"current_leader_epoch": -1},
            {"last_fetched_epoch": rng.choice([-1, 0, self.epoch + 1])},
            {"fetch_offset": rng.randint(0, 30)},
            {"log_start_offset": -1},
            {"replica_epoch": rng.choice([-1, 100, 200])},
            {"replica_id": rng.choice([-1, -2, 7])},
            {"isolation_level": rng.choice([1, 2])},
            {"min_bytes": rng.choice([-1, 0, 200])},
            {"max_wait_ms": rng.choice([-1, 0])},
            {"max_bytes": rng.choice([0, 10])},
            {"rack_id": "a"},
            {"forgotten": [(None, self.desk.topic_id.bytes, [rng.randrange(PARTITIONS)])]},
            {"cluster_id": "x"},
        ]
        kind = rng.choice([0, 1, 2, 3, 3, 3, 3])
        if kind == 0:
            follower.ask(rng.randint(13, 18), indexes)
        elif kind == 1:
            follower.ask(17, [rng.randrange(PARTITIONS)] if rng.random() < 0.7 else [])
        elif kind == 2:
            at, bit = rng.randrange(160), 1 << rng.randrange(8)
            follower.ask(17, indexes, lambda body: bytes(byte ^ (bit if i == at else 0) for i, byte in enumerate(body)))
        else:
            follower.ask(17, indexes, **rng.choice(strange))

    def consume(self, consumer: Follower, indexes: list[int]) -> None:
        """With or without a session, some bytes at a time or all."""
        rng = self.rng
        consumer.max_bytes = rng.choice([1 << 20, 1 << 20, 0, 100, 300])
        fields: dict[str, Any] = {
            "max_bytes": rng.choice([50 << 20, 50 << 20, 0, 200]),
            "max_wait_ms": rng.choice([0, 60_000]),
            "min_bytes": rng.choice([1, 1, 400]),
            "isolation_level": rng.choice([0, 0, 0, 1]),
        }
        if rng.random() < 0.4:
            indexes = rng.sample(range(PARTITIONS), PARTITIONS)
            fields |= {"session_id": 0, "session_epoch": -1, "max_wait_ms": 0}
        if rng.random() < 0.2:
            fields["fetch_offset"] = rng.randint(0, 30)
        if rng.random() < 0.3:
            fields["last_fetched_epoch"] = -1
        consumer.ask(rng.choice([17, 17, 13, 18]), indexes, **fields)

    def step(self, is_late: bool) -> None:
        """Mostly a few records for some partitions; faults are repaired soon, except failed disks."""
        desk, rng = self.desk, self.rng
        index = rng.randrange(PARTITIONS) if rng.random() < 0.3 else 0
        desk.clock.ms += rng.choice([0, 1, 10])
        replica = desk.partitions.open_by_name.get((TOPIC, index))
        if replica is None:
            return  # its disk has failed
        if self.mend and rng.random() < 0.5:
            self.mend.pop()()
            return
        leader = replica.leader
        if leader is not None and rng.random() < 0.9:
            for each in {index, *rng.choice([[], [], [0], [1], [0, 1, 2]])}:
                other = desk.partitions.open_by_name.get((TOPIC, each))
                if other is not None and other.leader is not None and not other.is_being_cut:
                    desk.append(rng.choice([1, 1, 1, 1, 1, 2, 3]), index=each)
            return
        kind = rng.randrange(11)
        if kind == 0 or leader is None:
            self.epoch += 1
            desk.lead(self.epoch, isr=(1, 2, 3), index=index)
        elif kind == 1:
            self.epoch += 1
            desk.follow(self.epoch, index=index)
        elif kind == 2:
            desk.tell(index, isr=rng.choice([(1, 2), (1, 3), (1, 2, 3), (1,)]))
        elif kind == 3:
            number = rng.choice(OTHERS)
            desk.tell_broker(number, fenced=rng.random() < 0.3, epoch=rng.choice([100 + number, 200]))
            self.mend.append(lambda: desk.tell_broker(number, fenced=False, epoch=100 + number))
        elif kind == 4:
            quota = desk.replication.throttles.leader
            quota.set_rate(rng.choice([0, 100, 10_000]), desk.clock.ms)
            quota.set_partitions(TOPIC, "*", 1)
            self.mend.append(lambda: quota.set_rate(NO_RATE, desk.clock.ms))
        elif kind == 5:
            replica.log.advance_log_start(rng.randint(0, replica.high_watermark))
            replica.wake()
        elif kind == 6:
            replica.is_being_cut = True
            self.mend.append(lambda: setattr(replica, "is_being_cut", False))
        elif kind == 7:
            leader.is_recovering = True
            self.mend.append(lambda: setattr(leader, "is_recovering", False))
        elif kind == 8:
            replica.wake()
        elif kind == 9 and is_late:
            self.failing = True
        else:
            rng.choice(self.followers).begin_anew()

    def sessions(self) -> list[Any]:
        return [
            (
                session.session_id,
                session.next_epoch,
                session.last_used_ms,
                session.replica_epoch,
                list(session.changed),
                len(session.listeners),
                [(w.asked, w.sent, w.place, w.is_known, w._waiters is None) for w in session.partitions.values()],
            )
            for session in self.desk.fetching.sessions.by_id.values()
        ]

    def state(self) -> list[Any]:
        desk = self.desk
        return [
            [follower.reported for follower in self.followers],
            [(follower.is_waiting, follower.session) for follower in self.followers],
            desk.replication.throttles.leader._level_bytes,
            [
                getattr(desk.metrics, name)
                for name in ("fetched_bytes", "fetched_partitions", "parked_fetches", "woken_fetches")
            ],
            self.seen,
            [
                (
                    replica.log.log_end_offset,
                    replica.high_watermark,
                    len(replica.waiters),
                    len(replica.follower_waiters),
                    list(replica.log.hints),
                    repr(replica.leader.followers) if replica.leader is not None else None,
                )
                for replica in desk.partitions.in_service
            ],
        ]


def _plays(seed: int, steps: int = 160, consumers: int = 0) -> list[Any]:
    heard: list[Any] = []

    async def story(desk: Desk) -> None:
        one = Story(desk, seed, consumers)
        await one.goes_on(steps)
        heard.extend(one.state())
        for follower in one.followers:
            follower.begin_anew()

    run_story(story, partitions=PARTITIONS)
    return heard


@pytest.mark.parametrize("seed", range(60))
def test_any_fetches_are_answered_equally(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = _plays(seed)
    monkeypatch.setattr(fetching, "_handle_plain", None)
    monkeypatch.setattr(fetching, "_answer_plain", None)
    slow = _plays(seed)
    assert quick == slow


@pytest.mark.parametrize("seed", range(60))
def test_any_consumers_are_answered_equally(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = _plays(seed, consumers=2)
    monkeypatch.setattr(fetching, "_read_plain", None)
    slow = _plays(seed, consumers=2)
    assert quick == slow


@pytest.mark.compiled
@pytest.mark.parametrize("count", [1, 2, PARTITIONS])
def test_a_caught_up_follower_uses_the_fast_path(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(desk: Desk) -> None:
        for index in range(count):
            desk.lead(1, isr=(1, 2, 3), index=index)
            desk.append(index=index)
        followers = [Follower(desk, number) for number in OTHERS]
        for follower in followers:
            follower.changed = set(range(count))
            while not follower.is_waiting:
                follower.listen()
                follower.ask(17, sorted(follower.changed))

        def refuse(*_: Any, **__: Any) -> Any:
            raise AssertionError("left to the slow way")

        async def comes(batches: int) -> None:
            """For all partitions, while both followers wait; then for the first one again, before they fetch."""
            for index in range(count):
                desk.append(batches, index=index)
            await turns()
            desk.append()
            for follower in followers:
                follower.listen()
                follower.ask(17, sorted(follower.changed))
                assert not follower.is_waiting, "there were records to read"
                follower.listen()
                follower.ask(17, sorted(follower.changed))
                assert follower.is_waiting
            assert [follower.ends for follower in followers] == [
                [desk.replica(index).log.log_end_offset for index in range(count)] + [0] * (PARTITIONS - count)
            ] * len(followers)
            for index in range(count):
                assert desk.replica(index).high_watermark == desk.replica(index).log.log_end_offset

        await comes(1)
        monkeypatch.setattr(FetchReads, "read", refuse)
        for batches in (1, 2, 1, 3, 1):
            await comes(batches)
        for follower in followers:
            follower.begin_anew()

    run_story(story, partitions=PARTITIONS)
