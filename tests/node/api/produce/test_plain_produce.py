"""The fast path of Produce against `ProduceHandler` alone: same responses and logs; nothing changed if it declines."""

from __future__ import annotations

import asyncio
import errno
from random import Random
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from fenceline.errors import ErrorCode
from fenceline.ids import TopicPartition
from fenceline.log.core.config import LogConfig
from fenceline.log.core.open_files import OpenFiles
from fenceline.log.core.producer_state import Origin
from fenceline.log.directories.log_dirs import LogDirs
from fenceline.log.partition.partition_log import PartitionLog
from fenceline.metadata.image import EMPTY_IMAGE
from fenceline.node.api.leader_hints import LeaderHints
from fenceline.node.api.produce import producing
from fenceline.node.api.produce.producing import ProduceHandler
from fenceline.node.api.produce.transactional import TransactionalProduce, VerificationLimits
from fenceline.node.context import RequestContext
from fenceline.node.metrics import NodeMetrics
from fenceline.node.net.connection import PendingAnswer
from fenceline.node.replication.replica import Replica
from fenceline.node.replication.replicas import Replicas
from fenceline.records.build import build_batch
from fenceline.records.markers import end_marker
from fenceline.replica.leader import LeaderState
from fenceline.testing.sim_disk import SimDisk
from fenceline.wire.errors import MalformedRequest
from fenceline.wire.produce import PartitionRecords, ProduceRequest, encode_request, parse_response
from tests.node.desk import FakeVerifier, turns
from tests.node.replication_helpers import ALONE, NoRoles

NOW = 1_700_000_000_000
RAIN, SNOW, HIDDEN = UUID(int=11), UUID(int=12), UUID(int=13)
NAMES = {RAIN: "rain", SNOW: "snow", HIDDEN: "__consumer_offsets"}


class Hints(LeaderHints):
    """Broker 2 leads every partition, in epoch 6."""

    def leader(self, topic: str | None, topic_id: bytes | None, index: int) -> tuple[int, int] | None:
        return 2, 6


class FullDisk(SimDisk):
    """Writes a part of the next write and then has no space left, when armed."""

    room: int | None = None

    def write(self, fd: int, content: Any, /) -> int:
        if self.room is None:
            return super().write(fd, content)
        room, self.room = self.room, None
        if room:
            super().write(fd, memoryview(content)[:room])
        raise OSError(errno.ENOSPC, "No space left on device")


class PendingConnection:
    """A connection that waits for its response."""

    answer: bytes | None = None
    lets_follow = True
    """Whether the next request could be appended meanwhile."""

    def answer_pending(self, pending: PendingAnswer, buffers: Any, let_go: Any = None) -> None:
        assert self.answer is None, "answered twice"
        self.lets_follow = pending.lets_follow
        self.answer = b"".join(buffers)

    def fail_pending(self, pending: PendingAnswer, reason: str) -> None:
        self.answer = reason.encode()


class Side:
    """A Produce handler with three topics on a disk of its own."""

    def __init__(self, configs: dict[UUID, LogConfig], isr: set[int]) -> None:
        """Partition 2 of each topic has three replicas, with `isr` in sync."""
        self.disk = FullDisk()
        self.disk.mkdir("/data")
        self.refusals: list[Any] = []
        self.timers: list[Any] = []
        self.soon: list[Any] = []
        self.now_s = 0.0
        self.later: list[PendingConnection] = []
        image: Any = SimpleNamespace(topics_by_id={}, topics_by_name={})
        clock: Any = SimpleNamespace(now_ms=lambda: NOW, monotonic_ms=lambda: NOW)
        self.replicas = Replicas(
            1,
            LogDirs([]),
            lambda: image,
            lambda topic: {},
            clock,
            lambda work, delay: None,
            roles=NoRoles(),
            rules=ALONE,
            broker_epoch=lambda: 1,
        )
        files = OpenFiles(self.disk)
        for topic_id, name in NAMES.items():
            for index in range(3):
                where = TopicPartition(name, index)
                log = PartitionLog(
                    self.disk,
                    f"/data/{name}-{index}",
                    topic_partition=where,
                    topic_id=topic_id,
                    config=configs[topic_id],
                    files=files,
                )
                log.assign_epoch(5)
                replica = Replica(where, topic_id, log, configs[topic_id], clock)
                replica.leader = LeaderState(
                    node_id=1,
                    broker_epoch=1,
                    leader_epoch=5,
                    partition_epoch=0,
                    replicas=(1,) if index < 2 else (1, 2, 3),
                    isr=frozenset(isr if index == 2 else {1}),
                    epoch_start_offset=0,
                    rules=ALONE,
                )
                replica.leader_epoch = 5
                self.replicas.open_by_name[name, index] = replica
                self.replicas.open_by_id[topic_id.bytes, index] = replica
        self.metrics = NodeMetrics()
        loop: Any = SimpleNamespace(
            call_soon=lambda work, *args: self.soon.append((work, args)),
            time=lambda: self.now_s,
            call_later=lambda delay, work, *args: self.timers.append((delay, work, args)),
        )
        flush_up_to: Any = None
        self.producing = ProduceHandler(
            self.replicas,
            loop=loop,
            clock=clock,
            metrics=self.metrics,
            hints=Hints(lambda: EMPTY_IMAGE),
            flush_up_to=flush_up_to,
            rejected=lambda *reported: self.refusals.append((str(reported[0]), reported[1])),
            transactions=TransactionalProduce(
                self.replicas, FakeVerifier(), clock, VerificationLimits(1, 1), is_verification_on=lambda: True
            ),
            name_of=lambda topic_id: None,
        )

    def handle(self, version: int, body: bytes) -> Any:
        context: Any = RequestContext(version, 77, "test", "peer", "host", "listener")  # type: ignore[arg-type]
        try:
            outcome = self.producing.handle(context, memoryview(bytearray(body)))
        except MalformedRequest as error:
            return str(error)
        if isinstance(outcome, PendingAnswer):
            self.later.append(PendingConnection())
            outcome.attach(self.later[-1])  # type: ignore[arg-type]
            self.run_soon()
            return "pending"
        return outcome if outcome is None else b"".join(outcome)

    def run_soon(self) -> None:
        """One iteration of the loop."""
        soon, self.soon = self.soon, []
        for work, args in soon:
            work(*args)

    def time_out(self, now_s: float, number: int = -1) -> None:
        """A timer expires."""
        self.now_s = now_s
        _, work, args = self.timers[number]
        work(*args)
        self.run_soon()

    def replicate(self, topic: UUID, index: int, follower: int, offset: int) -> None:
        """A follower has all records below the offset."""
        replica = self.replicas.open_by_id[topic.bytes, index]
        leader = replica.leader
        assert leader is not None
        if leader.on_fetch(
            follower,
            min(offset, replica.log.log_end_offset),
            log_start_offset=0,
            broker_epoch=1,
            min_insync_replicas=replica.config.min_insync_replicas,
            now_ms=NOW,
        ):
            replica.commit()
        self.run_soon()

    def state(self) -> list[Any]:
        return [
            [later.answer for later in self.later],
            self.refusals,
            (self.metrics.produced_bytes, self.metrics.produced_partitions, self.metrics.failed_produce_partitions),
            *(
                (
                    str(replica.topic_partition),
                    replica.log.log_end_offset,
                    replica.high_watermark,
                    replica.log.producers.encode(),
                    [(s.base_offset, s.size_bytes, s.max_timestamp_ms) for s in replica.log.segments],
                    replica.log.read(0, 1 << 24, end_offset_exclusive=replica.log.log_end_offset).load(),
                )
                for replica in self.replicas.in_service
            ),
        ]


class Both:
    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        configs: dict[UUID, LogConfig] | None = None,
        isr: set[int] | None = None,
    ) -> None:
        chosen = dict.fromkeys(NAMES, LogConfig()) | (configs or {})
        self.sides = [Side(chosen, isr or {1}), Side(chosen, isr or {1})]
        self._monkeypatch = monkeypatch

    def handle(self, version: int, body: bytes) -> Any:
        quick = self.sides[0].handle(version, body)
        with self._monkeypatch.context() as patch:
            patch.setattr(producing, "_answer_plain", None)
            slow = self.sides[1].handle(version, body)
        assert quick == slow
        return quick

    def check(self) -> None:
        assert self.sides[0].state() == self.sides[1].state()


def batch(count: int = 2, *, size: int = 20, **fields: Any) -> memoryview:
    return memoryview(build_batch([(NOW - 5, b"k", b"v" * size, ()) for _ in range(count)], **fields))


def body(version: int, records: list[tuple[UUID, int, memoryview | None]], acks: int = -1, **fields: Any) -> bytes:
    partitions = [
        PartitionRecords(
            NAMES.get(topic, "unknown") if version < 13 else None,
            topic.bytes if version >= 13 else None,
            index,
            content,
        )
        for topic, index, content in records
    ]
    request = ProduceRequest(fields.get("transactional_id"), acks, 1000, partitions)
    return b"".join(bytes(part) for part in encode_request(version, request))


@pytest.mark.compiled
def test_an_ordinary_request_uses_the_fast_path(monkeypatch: pytest.MonkeyPatch) -> None:
    both = Both(monkeypatch)
    for version in range(9, 14):
        for acks in (-1, 1):
            both.handle(version, body(version, [(RAIN, 0, batch()), (RAIN, 1, batch()), (SNOW, 0, batch())], acks))

    def refuse(*_: Any) -> Any:
        raise AssertionError("left to the slow way")

    monkeypatch.setattr(producing, "parse_request", refuse)
    monkeypatch.setattr(ProduceHandler, "append", refuse)
    answer = both.sides[0].handle(13, body(13, [(RAIN, 0, batch()), (SNOW, 0, batch())]))
    assert int.from_bytes(answer[:4], "big") == len(answer) - 4
    assert both.sides[0].replicas.open_by_name["rain", 0].high_watermark == 22


@pytest.mark.parametrize("seed", range(60))
def test_any_requests_are_answered_equally(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = Random(seed)
    both = Both(
        monkeypatch,
        {
            SNOW: LogConfig(
                segment_bytes=4_000,
                min_insync_replicas=rng.choice([1, 2]),
                flush_messages=rng.choice([LogConfig().flush_messages, 1 << 40]),
            )
        },
        isr=rng.choice([{1}, {1, 2}, {1, 2, 3}]),
    )
    sequences: dict[tuple[UUID, int], int] = {}
    topics = [RAIN, RAIN, SNOW, SNOW, HIDDEN, UUID(int=99)]
    for _ in range(60):
        version = rng.randint(3, 13)
        records: list[tuple[UUID, int, memoryview | None]] = []
        for _ in range(rng.choice([0, 1, 1, 2, 3, 6])):
            topic = topics[rng.randint(0, 3 if rng.random() < 0.9 else 5)]
            index = rng.randint(0, 2) if rng.random() < 0.95 else rng.choice([-1, 3, 1 << 30])
            count = rng.randint(1, 4)
            fields: dict[str, int] = {}
            if rng.random() < 0.5:
                first = sequences.get((topic, index), 0)
                fields = {"producer_id": 3, "producer_epoch": 0, "base_sequence": first}
                if rng.random() < 0.8:
                    sequences[topic, index] = first + count
            made = batch(count, size=rng.choice([1, 40, 900]), **fields)
            if rng.random() < 0.05:
                made[-1] ^= 1
            records.append((topic, index, None if rng.random() < 0.03 else made))
        if rng.random() < 0.7:
            records.sort(key=lambda record: (record[0], record[1]))
        acks = rng.choice([-1, -1, -1, 1, 0, 2])
        request = body(version, records, acks, transactional_id=rng.choice([None] * 20 + ["till"]))
        if rng.random() < 0.1:
            request = request[: rng.randint(0, len(request))]
        elif rng.random() < 0.1:
            at = rng.randrange(min(60, len(request)))
            request = request[:at] + bytes([rng.randrange(256)]) + request[at + 1 :]
        if rng.random() < 0.05:
            room = rng.choice([0, 7])
            for side in both.sides:
                side.disk.room = room
        both.handle(version, request)
        for side in both.sides:
            side.disk.room = None
        if rng.random() < 0.3:
            where = rng.choice([RAIN, SNOW]), 2, rng.choice([2, 3]), rng.randint(0, 200)
            for side in both.sides:
                side.replicate(*where)
    if rng.random() < 0.3:
        for side in both.sides:
            side.replicas.open_by_name["rain", 2].end_leadership()
            side.run_soon()
    for side in both.sides:
        for number in range(len(side.timers)):
            side.time_out(1000.0, number)
    both.check()
    assert all(later.answer is not None and later.lets_follow for later in both.sides[0].later)


@pytest.mark.compiled
def test_batches_of_open_transactions_use_the_fast_path(monkeypatch: pytest.MonkeyPatch) -> None:
    both = Both(monkeypatch)
    open_transaction(both, RAIN, 0)
    open_transaction(both, SNOW, 0)
    for version in range(9, 14):
        first = 2 * (version - 8)
        made = [transactional(first), transactional(first)]
        both.handle(version, body(version, [(RAIN, 0, made[0]), (SNOW, 0, made[1])], transactional_id="till"))
    both.check()

    def refuse(*_: Any) -> Any:
        raise AssertionError("left to the slow way")

    monkeypatch.setattr(producing, "parse_request", refuse)
    side = both.sides[0]
    side.handle(13, body(13, [(RAIN, 0, transactional(12)), (SNOW, 0, batch())], transactional_id="till"))
    assert side.replicas.open_by_name["rain", 0].log.log_end_offset == 14
    for refused in (
        body(13, [(RAIN, 0, transactional(14))]),
        body(13, [(RAIN, 0, transactional(14, producer_epoch=1))], transactional_id="till"),
        body(13, [(RAIN, 0, transactional(14)), (RAIN, 1, transactional(0))], transactional_id="till"),
        body(13, [(RAIN, 0, transactional(14)), (SNOW, 0, transactional(12, producer_id=8))], transactional_id="till"),
    ):
        with pytest.raises(AssertionError, match="slow way"):
            side.handle(13, refused)
    assert side.replicas.open_by_name["rain", 0].log.log_end_offset == 14


PRODUCER = 9


def transactional(first: int, count: int = 2, **fields: Any) -> memoryview:
    given = {"producer_id": PRODUCER, "producer_epoch": 0, "base_sequence": first, "transactional": True}
    return batch(count, **given | fields)


def open_transaction(both: Both, topic: UUID, index: int) -> None:
    for side in both.sides:
        replica = side.replicas.open_by_id[topic.bytes, index]
        replica.log.append_as_leader(transactional(0), leader_epoch=replica.leader_epoch, now_ms=NOW)
        replica.appended()


@pytest.mark.parametrize("seed", range(40))
def test_any_transactional_requests_are_answered_equally(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = Random(seed)

    async def story() -> None:
        both = Both(monkeypatch, isr=rng.choice([{1}, {1, 2}]))
        epoch = 0
        places = [(topic, index) for topic in (RAIN, SNOW) for index in range(3)]
        sequences = dict.fromkeys(places, 0)
        for _ in range(80):
            if rng.random() < 0.1:
                transaction_version = rng.choice([0, 2])
                epoch += transaction_version // 2
                if transaction_version:
                    sequences = dict.fromkeys(places, 0)
                for side in both.sides:
                    for topic, index in places:
                        replica = side.replicas.open_by_id[topic.bytes, index]
                        marker = memoryview(end_marker(True, PRODUCER, epoch, 0, NOW))
                        replica.log.append_as_leader(
                            marker,
                            leader_epoch=replica.leader_epoch,
                            now_ms=NOW,
                            origin=Origin.COORDINATOR,
                            transaction_version=transaction_version,
                        )
                        replica.appended()
            records: list[tuple[UUID, int, memoryview | None]] = []
            for place in rng.sample(places, rng.choice([1, 1, 2, 4])):
                count = rng.randint(1, 3)
                fields: dict[str, Any] = {"producer_epoch": epoch}
                if rng.random() < 0.04:
                    fields |= rng.choice(
                        [{"producer_epoch": max(0, epoch - 1)}, {"producer_id": 8}, {"base_sequence": 50}]
                    )
                if rng.random() < 0.1:
                    fields["transactional"] = False
                made = transactional(sequences[place], count, **fields)
                if rng.random() < 0.9:
                    sequences[place] += count
                records.append((*place, batch() if rng.random() < 0.1 else made))
            transactional_id = None if rng.random() < 0.03 else "till"
            version = rng.randint(9, 13)
            request = body(version, records, rng.choice([-1, 1]), transactional_id=transactional_id)
            if rng.random() < 0.1:
                at = rng.randrange(min(60, len(request)))
                request = request[:at] + bytes([rng.randrange(256)]) + request[at + 1 :]
            both.handle(version, request)
            await turns()
            for side in both.sides:
                side.run_soon()
                side.replicate(RAIN, 2, 2, 1 << 30)
                side.replicate(SNOW, 2, 2, 1 << 30)
        both.check()
        assert all(later.answer is not None for later in both.sides[0].later)

    asyncio.run(story())


def test_a_partition_named_twice_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    both = Both(monkeypatch)
    for version in (9, 13):
        both.handle(version, body(version, [(RAIN, 0, batch(1)), (SNOW, 0, batch(1)), (RAIN, 0, batch(3))]))
        both.handle(version, body(version, [(RAIN, 0, batch(1)), (RAIN, 0, batch(2))]))
    both.check()


def test_a_full_disk_is_reported_and_the_other_partitions_are_appended(monkeypatch: pytest.MonkeyPatch) -> None:
    both = Both(monkeypatch)
    both.handle(13, body(13, [(RAIN, 0, batch()), (RAIN, 1, batch())]))
    for side in both.sides:
        side.disk.room = 9
    both.handle(13, body(13, [(RAIN, 0, batch()), (RAIN, 1, batch())]))
    both.check()
    assert both.sides[0].refusals == [("rain-0", 2)]
    assert both.sides[0].replicas.open_by_name["rain", 1].log.log_end_offset == 4
    both.handle(13, body(13, [(RAIN, 0, batch()), (RAIN, 1, batch())]))
    both.check()


@pytest.mark.compiled
def test_a_request_that_waits_for_followers_used_the_fast_path(monkeypatch: pytest.MonkeyPatch) -> None:
    both = Both(monkeypatch, isr={1, 2, 3})
    for version in range(9, 14):
        assert (
            both.handle(version, body(version, [(RAIN, 2, batch()), (RAIN, 1, batch()), (SNOW, 2, batch())]))
            == "pending"
        )

    def refuse(*_: Any) -> Any:
        raise AssertionError("left to the slow way")

    monkeypatch.setattr(producing, "parse_request", refuse)
    monkeypatch.setattr(ProduceHandler, "append", refuse)
    side = both.sides[0]
    assert side.handle(13, body(13, [(RAIN, 2, batch()), (SNOW, 2, batch())])) == "pending"
    for topic in (RAIN, SNOW):
        for follower in (2, 3):
            assert side.later[-1].answer is None
            side.replicate(topic, 2, follower, 12)
    answer = side.later[-1].answer
    assert answer is not None
    assert int.from_bytes(answer[:4], "big") == len(answer) - 4
    results = parse_response(13, memoryview(answer)[9:]).results
    assert [(each.topic_id, each.error_code, each.base_offset) for each in results] == [
        (RAIN.bytes, 0, 10),
        (SNOW.bytes, 0, 10),
    ]


def test_one_timed_out_partition_is_reported_beside_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    both = Both(monkeypatch, isr={1, 2, 3})
    assert both.handle(12, body(12, [(RAIN, 0, batch()), (RAIN, 2, batch()), (SNOW, 2, batch())])) == "pending"
    for side in both.sides:
        for follower in (2, 3):
            side.replicate(RAIN, 2, follower, 2)
        assert [delay for delay, _, _ in side.timers] == [1]
        side.time_out(1.0)
        answer = side.later[0].answer
        assert answer is not None
        reported = [(r.topic, r.index, r.error_code) for r in parse_response(12, memoryview(answer)[9:]).results]
        assert reported == [("rain", 0, 0), ("rain", 2, 0), ("snow", 2, ErrorCode.REQUEST_TIMED_OUT)]
    both.check()


def test_responses_with_one_timeout_share_a_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    both = Both(monkeypatch, isr={1, 2, 3})
    for side in both.sides:
        for number in range(3):
            side.now_s = number / 4
            assert side.handle(13, body(13, [(RAIN, 2, batch())])) == "pending"
        side.replicate(RAIN, 2, 2, 2)
        side.replicate(RAIN, 2, 3, 2)
        side.time_out(1.25)
        assert [later.answer is None for later in side.later] == [False, False, True]
        assert side.timers[1][0] == pytest.approx(0.25)
        side.time_out(1.5)
        assert side.later[2].answer is not None
        assert len(side.timers) == 2
        side.handle(13, body(13, [(RAIN, 2, batch())]))
        assert len(side.timers) == 3, "after a pause it starts again"


def test_a_recovering_leader_rejects_records(monkeypatch: pytest.MonkeyPatch) -> None:
    both = Both(monkeypatch)
    for side in both.sides:
        leader = side.replicas.open_by_name["rain", 0].leader
        assert leader is not None
        leader.is_recovering = True
    for acks in (-1, 1):
        answer = both.handle(13, body(13, [(RAIN, 0, batch()), (RAIN, 1, batch())], acks))
        codes = [each.error_code for each in parse_response(13, memoryview(answer)[9:]).results]
        assert codes == [ErrorCode.NOT_LEADER_OR_FOLLOWER, 0]
    both.check()


def test_no_response_is_sent_while_a_fetch_is_being_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connection would continue at once, and append to a partition that the fetch has read as empty: the fetch
    would not be woken.
    """
    both = Both(monkeypatch, isr={1, 2})
    for side in both.sides:
        assert side.handle(13, body(13, [(RAIN, 2, batch())])) == "pending"
        replica = side.replicas.open_by_name["rain", 2]
        assert replica.leader is not None
        assert replica.leader.on_fetch(2, 2, log_start_offset=0, broker_epoch=1, min_insync_replicas=1, now_ms=NOW)
        replica.commit()
        assert side.later[0].answer is None
        side.run_soon()
        assert side.later[0].answer is not None
