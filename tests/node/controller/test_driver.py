"""The driver: order of append, flush, publication and answer; crashes; disks that refuse (C1-C3, G35, N11-N16)."""

from __future__ import annotations

import asyncio
import copy
import errno
import math
import os
from collections.abc import Coroutine
from pathlib import Path
from random import Random
from typing import Any, Literal
from uuid import UUID

import pytest

from fenceline.controller.requests import (
    BrokerHeartbeat,
    CreateTopics,
    DeleteTopics,
    FenceStaleBroker,
    RegisterBroker,
    TopicReference,
    TopicToCreate,
    WriteNoOp,
)
from fenceline.controller.state import ControllerState
from fenceline.errors import ErrorCode, OperatorError, PeerError
from fenceline.log.core.disk import Disk, OsDisk
from fenceline.metadata.changes import Delta
from fenceline.metadata.features import SUPPORTED
from fenceline.metadata.image import MetadataImage
from fenceline.node.controller import active_controller, group_commit
from fenceline.node.controller.driver import ControllerDriver
from fenceline.node.logs import Logger
from fenceline.node.metadata.metadata_log import MetadataLog
from fenceline.node.quorum import log_work as quorum_log_work
from fenceline.node.storage.storage_trouble import StorageTrouble
from fenceline.testing.sim_disk import SimDisk
from tests.node.controller_helpers import CLUSTER, ENDPOINTS, Held, StillClock, driver, join, joined, prepare

D = "/data"


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


def sim(seed: int = 0) -> SimDisk:
    disk = SimDisk(seed)
    disk.mkdir(D)
    prepare(disk, D)
    return disk


@pytest.fixture
def log_events(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """The logged events: (event, fields)."""
    lines: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.setattr(Logger, "_write", lambda self, level, event, fields: lines.append((event, fields)))
    return lines


async def _turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_nothing_is_published_before_the_flush() -> None:
    """G35: neither the answer, nor the image, nor the high watermark."""

    async def story() -> None:
        disk, held = sim(), Held(holds=False)
        controller = await joined(disk, D, executor=held)
        held.holds = True
        heard: list[MetadataImage] = []
        controller.subscribe(lambda image, delta: heard.append(image))
        mark = controller.high_watermark
        answer = controller.submit(CreateTopics((TopicToCreate("t", 1, 1),)))
        refused = controller.submit(CreateTopics((TopicToCreate("t", 1, 1),)))
        await _turns()
        assert not answer.done()
        assert not refused.done(), "it depends on an uncommitted record"
        assert not heard
        assert controller.high_watermark == mark
        assert "t" not in controller.image.topics_by_name
        held.let_go()
        await _turns()
        assert not answer.result().topics[0].outcome.failed
        assert refused.result().topics[0].outcome.code is ErrorCode.TOPIC_ALREADY_EXISTS
        assert "t" in heard[0].topics_by_name
        assert controller.high_watermark == mark + 2

    run(story())


def test_requests_during_a_flush_share_the_next_flush() -> None:
    async def story() -> None:
        disk, held = sim(), Held(holds=False)
        controller = await joined(disk, D, executor=held)
        held.holds = True
        first = controller.submit(CreateTopics((TopicToCreate("first", 1, 1),)))
        await _turns()
        end = controller.log.end_offset
        rest = [controller.submit(CreateTopics((TopicToCreate(f"t{number}", 1, 1),))) for number in range(20)]
        await _turns()
        assert len(held.waiting) == 1
        assert controller.log.end_offset == end
        held.let_go()
        await _turns()
        assert first.done()
        assert len(held.waiting) == 1
        held.let_go()
        await _turns()
        assert all(each.done() for each in rest)

    run(story())


def _creations(controller: ControllerDriver, *names: str) -> list[asyncio.Future[Any]]:
    return [controller.submit(CreateTopics((TopicToCreate(name, 1, 1),))) for name in names]


@pytest.fixture
def _one_request_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_commit, "_ENOUGH_RECORDS", 1)


@pytest.mark.usefixtures("_one_request_a_step")
def test_the_next_step_is_decided_during_a_flush() -> None:
    """But only one; nothing is published before its own flush (G35)."""

    async def story() -> None:
        held = Held(holds=False)
        controller = await joined(sim(), D, executor=held)
        held.holds = True
        heard: list[list[str]] = []
        controller.subscribe(lambda image, delta: heard.append([topic.name for topic in delta.created_topics]))
        end = controller.log.end_offset
        answers = _creations(controller, "a", "b", "c")
        check = controller.submit(CreateTopics((TopicToCreate("d", 1, 1),), validate_only=True))
        await _turns()
        assert controller.log.end_offset == end + 4, "a topic and a partition for each of two"
        assert controller.active.waiting_count == 4
        assert not heard
        held.let_go()
        await _turns()
        assert [each.done() for each in answers] == [True, False, False]
        assert controller.log.end_offset == end + 6
        assert heard == [["a"]]
        held.let_go()
        await _turns()
        assert not check.done(), "it was decided after the last one"
        held.let_go()
        await _turns()
        assert all(each.done() for each in (*answers, check))
        assert heard == [["a"], ["b"], ["c"]]

    run(story())


@pytest.mark.usefixtures("_one_request_a_step")
def test_a_step_that_is_committed_while_another_is_published_waits() -> None:
    """Each listener receives the changes in order."""

    async def story() -> None:
        held = Held(holds=False)
        controller = await joined(sim(), D, executor=held)
        held.holds = True
        heard: list[list[str]] = []
        controller.subscribe(lambda image, delta: controller.active.committed(controller.log.end_offset))
        controller.subscribe(lambda image, delta: heard.append([topic.name for topic in delta.created_topics]))
        answers = _creations(controller, "a", "b")
        await _turns()
        held.let_go()
        await _turns()
        assert all(each.done() for each in answers)
        assert heard == [["a"], ["b"]]

    run(story())


@pytest.mark.usefixtures("_one_request_a_step")
def test_a_disk_that_is_full_at_the_second_step_discards_only_that_one() -> None:
    """C2: the first one is in the log, and later decisions are based on it."""

    async def story() -> None:
        disk, held = sim(), Held(holds=False)
        controller = await joined(disk, D, executor=held)
        held.holds = True
        first, second, third = _creations(controller, "a", "b", "c")
        await asyncio.sleep(0)
        disk.fail("write", ".log", errno.ENOSPC)
        await _turns()
        for answer in (second, third):
            with pytest.raises(PeerError) as error:
                await answer
            assert error.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        disk.heal()
        again = _creations(controller, "a", "b")
        await _turns()
        held.holds = False
        held.let_go()
        await _turns()
        assert not first.result().topics[0].outcome.failed
        codes = [(await each).topics[0].outcome.code for each in again]
        assert codes == [ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.NONE]
        assert sorted(controller.image.topics_by_name) == ["a", "b"]
        await controller.stop()
        assert sorted(MetadataLog.open(disk, D, now_ms=0).replay().image.topics_by_name) == ["a", "b"]

    run(story())


def test_partitions_are_indexed_in_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A million of them take seconds, in which other nodes must not miss this one. Requests wait meanwhile."""
    monkeypatch.setattr(active_controller, "INDEXED_IN_A_TURN", 10)
    prepare_index = ControllerState.prepare
    turns, passes = 0, []

    def prepared(state: ControllerState, partitions: float = math.inf) -> bool:
        is_complete = prepare_index(state, partitions)
        passes.append((is_complete, turns))
        return is_complete

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def story() -> None:
        disk = sim()
        before = await joined(disk, D)
        await before.submit(CreateTopics(tuple(TopicToCreate(f"t{number}", 5, 1) for number in range(7))))
        await before.stop()
        monkeypatch.setattr(ControllerState, "prepare", prepared)
        counting = asyncio.get_running_loop().create_task(count_turns())
        after = await joined(disk, D)
        counting.cancel()
        assert [is_complete for is_complete, _ in passes[:4]] == [False, False, False, True]
        assert len({turn for _, turn in passes[:4]}) == 4
        await after.submit(DeleteTopics((TopicReference("t3"),)))
        assert after.partition_count == 30
        await after.stop()

    run(story())


def test_listeners_receive_changes_in_order() -> None:
    async def story() -> None:
        controller = driver(sim(), D)
        heard: list[tuple[int, Delta]] = []
        await controller.start()
        await join(controller)
        controller.subscribe(lambda image, delta: heard.append((image.offset, delta)))
        wanted = [controller.submit(CreateTopics((TopicToCreate(f"t{number}", 2, 1),))) for number in range(5)]
        await asyncio.gather(*wanted)
        await controller.submit(DeleteTopics((TopicReference("t3"),)))
        assert [offset for offset, _ in heard] == sorted({offset for offset, _ in heard})
        assert [delta.created_topics[0].name for _, delta in heard[:5]] == [f"t{number}" for number in range(5)]
        assert heard[5][1].deleted_topics[0].name == "t3"
        assert controller.partition_count == 8

    run(story())


def test_a_failed_request_fails_alone() -> None:
    async def story() -> None:
        controller = await joined(sim(), D)
        bad = controller.submit(CreateTopics((TopicToCreate("big", 10_001, 1),)))
        good = controller.submit(CreateTopics((TopicToCreate("good", 1, 1),)))
        with pytest.raises(PeerError):
            await bad
        assert not (await good).topics[0].outcome.failed

    run(story())


def test_full_disk_rejects_requests_until_space_is_freed() -> None:
    """C2: records that were decided but never written are discarded."""

    async def story() -> None:
        disk = sim()
        controller = await joined(disk, D)
        disk.fail("write", ".log", errno.ENOSPC)
        answers = [controller.submit(CreateTopics((TopicToCreate(name, 1, 1),))) for name in ("a", "b")]
        for answer in answers:
            with pytest.raises(PeerError) as error:
                await answer
            assert error.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        disk.heal()
        again = await controller.submit(CreateTopics((TopicToCreate("a", 1, 1),)))
        assert not again.topics[0].outcome.failed
        assert list(controller.image.topics_by_name) == ["a"]
        await controller.stop()
        assert list(MetadataLog.open(disk, D, now_ms=0).replay().image.topics_by_name) == ["a"]

    run(story())


@pytest.mark.parametrize(
    ("call", "refused"), [("open", ".index.tmp"), ("write", ".timeindex.tmp"), ("write", ".snapshot.tmp")]
)
def test_full_disk_at_segment_roll_defers_derived_files(
    call: Literal["open", "write"], refused: str, log_events: list[tuple[str, dict[str, Any]]]
) -> None:
    """The batches and the entry of the new segment are durable: the requests succeed, and a crash loses nothing."""

    async def story() -> None:
        disk, clock = sim(), StillClock()
        controller = await joined(disk, D, clock=clock, overrides={"metadata.log.segment.ms": "100"})
        disk.fail(call, refused, errno.ENOSPC)
        for number in range(3):
            clock.ms += 1000
            answer = await controller.submit(CreateTopics((TopicToCreate(f"t{number}", 1, 1),)))
            assert not answer.topics[0].outcome.failed
        assert len(controller.log.partition_log.segments) == 4
        assert [event for event, _ in log_events] == ["could not write indexes of the metadata log"], "reported once"
        for seed in range(20):
            crashed = copy.deepcopy(disk)
            crashed.rng = Random(seed)
            crashed.heal()
            crashed.crash()
            assert set(MetadataLog.open(crashed, D, now_ms=0).replay().image.topics_by_name) == {"t0", "t1", "t2"}
        disk.heal()
        await controller.submit(CreateTopics((TopicToCreate("t3", 1, 1),)))
        assert all(each.indexes_saved for each in controller.log.partition_log.segments[:-1])
        await controller.stop()
        assert set(MetadataLog.open(disk, D, now_ms=0).replay().image.topics_by_name) == {"t0", "t1", "t2", "t3"}

    run(story())


def test_full_disk_at_segment_creation_rejects_requests(log_events: list[tuple[str, dict[str, Any]]]) -> None:
    async def story() -> None:
        disk, clock = sim(), StillClock()
        trouble = StorageTrouble(clock)
        overrides = {"metadata.log.segment.ms": "100"}
        controller = await joined(disk, D, clock=clock, overrides=overrides, trouble=trouble)
        clock.ms += 1000
        disk.fail("open", ".log", errno.ENOSPC)
        for _ in range(3):
            with pytest.raises(PeerError) as error:
                await controller.submit(CreateTopics((TopicToCreate("t", 1, 1),)))
            assert error.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        ((event, fields),) = log_events
        assert (event, fields["partition"]) == ("records rejected", "__cluster_metadata-0")
        assert "topics, configs and brokers cannot be changed" in fields["advice"]
        disk.heal()
        await controller.submit(CreateTopics((TopicToCreate("t", 1, 1),)))
        trouble.log_recovered(lambda _: controller.log.end_offset)
        assert log_events[1:] == [("records accepted again", {"partition": "__cluster_metadata-0", "refused": 3})]
        await controller.stop()
        assert set(MetadataLog.open(disk, D, now_ms=0).replay().image.topics_by_name) == {"t"}

    run(story())


def test_flush_that_cannot_start_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quorum_log_work, "_RETRY_S", 0.0)

    async def story() -> None:
        disk = sim()
        controller = await joined(disk, D)

        def refuse(fd: int) -> int:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        monkeypatch.setattr(disk, "duplicate", refuse)
        answer = controller.submit(CreateTopics((TopicToCreate("t", 1, 1),)))
        await _turns(20)
        assert not answer.done()
        assert "t" not in controller.image.topics_by_name
        monkeypatch.undo()
        assert not (await answer).topics[0].outcome.failed
        await controller.stop()

    run(story())


def test_a_failed_flush_stops_the_controller() -> None:
    async def story() -> None:
        disk = sim()
        controller = await joined(disk, D)
        failed = controller.failed()
        disk.fail("fsync", ".log")
        with pytest.raises(PeerError) as error:
            await controller.submit(CreateTopics((TopicToCreate("a", 1, 1),)))
        assert error.value.code is ErrorCode.NOT_CONTROLLER
        with pytest.raises(OperatorError):
            await failed
        with pytest.raises(PeerError):
            await controller.submit(WriteNoOp())
        await controller.stop()

    run(story())


def test_each_start_has_a_new_epoch_and_the_same_state() -> None:
    async def story() -> None:
        disk = sim()
        before = None
        epoch = -1
        for life in range(1, 4):
            controller = driver(disk, D, seed=life)
            await controller.start()
            assert controller.epoch == life
            if before is not None:
                assert controller.image.topics_by_id == before.topics_by_id
            epoch = await join(controller, incarnation=life, previous=epoch)
            await controller.submit(CreateTopics((TopicToCreate(f"t{life}", 1, 1),)))
            before = controller.image
            await controller.stop()

    run(story())


def test_requests_without_records_are_answered_without_a_flush() -> None:
    async def story() -> None:
        held = Held(holds=False)
        controller = await joined(sim(), D, executor=held)
        held.holds = True
        answer = await controller.submit(CreateTopics((TopicToCreate("t", 1, 1),), validate_only=True))
        assert not answer.topics[0].outcome.failed

    run(story())


def test_stop_answers_pending_requests() -> None:
    async def story() -> None:
        controller = await joined(sim(), D)
        answer = controller.submit(CreateTopics((TopicToCreate("t", 1, 1),)))
        await controller.stop()
        assert answer.done()
        with pytest.raises(PeerError):
            await controller.submit(WriteNoOp())

    run(story())


def test_snapshots_replace_the_log() -> None:
    async def story() -> None:
        disk = sim()
        overrides = {"metadata.log.max.record.bytes.between.snapshots": "2000"}
        controller = driver(disk, D, overrides=overrides)
        await controller.start()
        epoch = await join(controller)
        for number in range(60):
            await controller.submit(CreateTopics((TopicToCreate(f"t{number}", 1, 1),)))
        await controller.stop()
        image = controller.image
        log = MetadataLog.open(disk, D, now_ms=0)
        assert len(log.snapshots) > 2
        replayed = log.replay()
        assert replayed.snapshot == log.snapshots[-1]
        assert replayed.log_record_count < 40
        assert replayed.image == image
        assert replayed.voters == controller.quorum.voters
        again = driver(disk, D, seed=2, overrides=overrides)
        await again.start()
        assert again.image.topics_by_id == image.topics_by_id
        await join(again, incarnation=2, previous=epoch)
        await again.stop()

    run(story())


def test_truncated_snapshot_is_not_loaded() -> None:
    """G24: Kafka would load it. An older snapshot and the log give the same image."""

    async def story() -> None:
        disk = sim()
        controller = await joined(disk, D, overrides={"metadata.log.max.record.bytes.between.snapshots": "1"})
        await controller.stop()
        log = MetadataLog.open(disk, D, now_ms=0)
        path = f"{log.directory}/{log.snapshots[-1].file_name}"
        fd = disk.open_append(path)
        disk.truncate(fd, disk.stat(path).size_bytes - 75)  # type: ignore[union-attr]
        disk.close(fd)
        again = MetadataLog.open(disk, D, now_ms=0)
        replayed = again.replay()
        assert replayed.image.topics_by_id == controller.image.topics_by_id
        assert replayed.image.brokers == controller.image.brokers
        assert replayed.snapshot == log.snapshots[-2] == again.snapshots[-1]
        assert disk.stat(path) is None
        assert disk.stat(path + ".damaged") is not None

    run(story())


def test_no_op_records_are_written_only_if_configured(tmp_path: Path) -> None:
    """C7; followers learn the high watermark at once (K12), so none are needed by default."""

    async def story(overrides: dict[str, str]) -> int:
        directory = tmp_path / str(len(overrides))
        directory.mkdir()
        prepare(OsDisk(), str(directory))
        controller = driver(OsDisk(), str(directory), overrides=overrides)
        await controller.start()
        before = controller.high_watermark
        if overrides:
            heard = asyncio.Event()
            controller.subscribe(lambda image, delta: heard.set())
            await asyncio.wait_for(heard.wait(), 60)
        grown = controller.high_watermark - before
        await controller.stop()
        return grown

    assert run(story({"metadata.max.idle.interval.ms": "20"})) > 0
    assert run(story({})) == 0


# -- crashes -----------------------------------------------------------------------------------------------------


class PowerLoss(BaseException):
    """The machine lost power."""


class FailingDisk:
    """Forwards calls to the disk until the given number is used up."""

    def __init__(self, disk: SimDisk, calls: int) -> None:
        self._disk = disk
        self.left = calls
        self.is_off = False
        self.went_off = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._disk, name)
        if name not in _WRITING:
            return call

        def counted(*arguments: Any, **named: Any) -> Any:
            if self.left <= 0:
                self.is_off = True
                self.went_off.set()
                raise PowerLoss
            self.left -= 1
            return call(*arguments, **named)

        return counted


_WRITING = {"open_append", "write", "truncate", "fsync", "fsync_dir", "rename", "unlink", "mkdir", "link"}


async def _live(disk: Disk, off: FailingDisk, seed: int, answered: set[str]) -> None:
    """Start, join, create and delete topics until the power fails; `answered` has the acknowledged topics."""
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    overrides = {"metadata.log.max.record.bytes.between.snapshots": "700"}
    controller = driver(disk, D, seed=seed, overrides=overrides)
    await controller.start()
    work = asyncio.ensure_future(_create(controller, seed, answered))
    await asyncio.wait([work, asyncio.ensure_future(off.went_off.wait())], return_when=asyncio.FIRST_COMPLETED)
    work.cancel()
    await asyncio.wait([work])
    if not off.is_off:
        work.result()
        await controller.stop()


async def _create(controller: ControllerDriver, seed: int, answered: set[str]) -> None:
    await join(controller, incarnation=seed + 1)
    for number in range(6):
        names = [f"s{seed}-{number}-{each}" for each in range(2)]
        answers = [controller.submit(CreateTopics((TopicToCreate(name, 1, 1),))) for name in names]
        for name, answer in zip(names, answers, strict=True):
            if not (await answer).topics[0].outcome.failed:
                answered.add(name)


def _calls_of_one_life() -> int:
    off = FailingDisk(sim(), 1_000_000)
    run(_live(off, off, 1, set()))  # type: ignore[arg-type]
    return 1_000_000 - off.left


def test_a_crash_between_any_two_disk_operations_loses_no_answered_creation() -> None:
    total = _calls_of_one_life()
    assert total > 60
    for calls in range(total):
        disk = sim(calls)
        answered: set[str] = set()
        for life in (1, 2):
            off = FailingDisk(disk, calls if life == 1 else Random(calls).randrange(total))
            try:
                run(_live(off, off, life, answered))  # type: ignore[arg-type]
            except PowerLoss:
                assert off.is_off
            disk.crash()
            log = MetadataLog.open(disk, D, now_ms=0)
            replayed = log.replay()
            lost = answered - set(replayed.image.topics_by_name)
            assert not lost, f"crash after {calls} calls of life {life}: {sorted(lost)}"
            assert not replayed.open_transaction
            election = log.read_election()
            assert (election.epoch if election is not None else 0) >= log.end.epoch, (
                "an epoch started before it was persisted (Q2)"
            )
            log.partition_log.close(clean=False)


def test_sessions_expire_by_the_monotonic_clock() -> None:
    """Sessions expire by the node's monotonic clock alone."""

    async def story() -> None:
        clock = StillClock()
        controller = driver(sim(), D, clock=clock)
        await controller.start()
        controller.active.own_broker_epoch = await join(controller)
        clock.ms += 1_000_000
        controller.active.timers.check_sessions()
        await _turns()
        assert not controller.image.brokers[1].fenced, "the broker of this process is alive while the driver runs"

    run(story())


def test_pending_heartbeat_keeps_the_session_alive() -> None:
    """C18, K24: on a slow disk, a broker is not fenced if its heartbeat arrived in time."""

    async def story() -> None:
        disk, held, clock = sim(), Held(holds=False), StillClock()
        controller = driver(disk, D, clock=clock, executor=held)
        await controller.start()
        epochs = {}
        for broker in (2, 3):
            directories = (UUID(int=500 + broker),)
            request = RegisterBroker(broker, CLUSTER, UUID(int=broker), ENDPOINTS, SUPPORTED, log_dirs=directories)
            epochs[broker] = (await controller.submit(request)).broker_epoch
            await controller.submit(BrokerHeartbeat(broker, epochs[broker], controller.image.offset))
        held.holds = True
        slow = controller.submit(WriteNoOp())
        await _turns()
        clock.ms += 8_000
        beat = BrokerHeartbeat(2, epochs[2], controller.image.offset)
        checks = [controller.submit(FenceStaleBroker())]
        waiting = controller.submit(beat)
        stale = controller.submit(BrokerHeartbeat(3, epochs[3] + 1, controller.image.offset))
        clock.ms += 2_000
        held.holds = False
        held.let_go()
        for answer in (slow, *checks, waiting):
            await answer
        assert not waiting.result().is_fenced
        with pytest.raises(PeerError):
            await stale
        assert {broker.id: broker.fenced for broker in controller.image.brokers.values()} == {2: False, 3: True}
        assert controller.active.expired_session_count == 1
        await controller.stop()

    run(story())


def test_previous_broker_of_this_node_is_fenced_by_its_session() -> None:
    """A restarted node leads before its broker is registered: if only sessions count, the registration fails until the
    old broker is fenced."""

    async def story() -> None:
        clock = StillClock()
        controller = driver(sim(), D, clock=clock, overrides={"fenceline.broker.fencing.grace.ms": "-1"})
        await controller.start()
        earlier = await join(controller)
        with pytest.raises(PeerError, match="Another broker"):
            await join(controller, incarnation=2)
        clock.ms += 9_001
        controller.active.timers.check_sessions()
        await _turns()
        assert controller.image.brokers[1].fenced
        assert await join(controller, incarnation=2) > earlier

    run(story())


def test_previous_broker_with_same_directory_and_address_is_replaced() -> None:
    """No other process can have both while it lives, and it is not connected."""

    async def story() -> None:
        controller = driver(sim(), D)
        await controller.start()
        earlier = await join(controller)
        controller.broker_identified("CONTROLLER", "host:1", 1, earlier)  # on a connection that is closed already
        assert await join(controller, incarnation=2) > earlier
        await controller.stop()

    run(story())
