"""The driver: duties in order, synchronous and asynchronous appends, loading in slices, one timer."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from random import Random

import pytest

from fenceline.coordination import Now
from fenceline.errors import ErrorCode, PeerError
from fenceline.groups.messages import CommitRequest, FetchOffsetsRequest, JoinRequest, OffsetToCommit, TopicToFetch
from fenceline.groups.offsets.offsets import OffsetSlot, StoredOffset
from fenceline.groups.offsets.records import offset_record
from fenceline.groups.settings import GroupSettings
from fenceline.groups.shard import _RESUMED_AT_ONCE
from fenceline.ids import ZERO_UUID, TopicPartition
from fenceline.log.partition.reading import LogRead
from fenceline.node.coordination.loading import FIRST_SLICE_RECORDS, LOAD_SLICE_RECORDS, SLICE_MS, Batches
from fenceline.node.groups.driver import GroupsDriver
from fenceline.records.batch import BatchHeader
from fenceline.records.build import Record, build_batch
from fenceline.records.decode import decode_all
from tests.groups.consumer_world import ConsumerWorld

_Pairs = list[tuple[bytes | None, bytes | None]]
GROUP = "g"


def on_loop(test: Callable[..., Coroutine[None, None, None]]) -> Callable[..., None]:
    """Run a test in an event loop of its own."""

    @functools.wraps(test)
    def run(*arguments: object, **named: object) -> None:
        asyncio.run(test(*arguments, **named))

    return run


class _Clock:
    def __init__(self) -> None:
        self.at_ms = 0

    def now_ms(self) -> int:
        return 1_700_000_000_000 + self.at_ms

    def monotonic_ms(self) -> int:
        return self.at_ms


class _Log:
    """The log that a driver reads and writes."""

    def __init__(
        self, append: Callable[[TopicPartition, _Pairs], Awaitable[int] | int], batches: Callable[[], Batches]
    ) -> None:
        self._append, self._batches = append, batches
        self.epochs: list[int] = []
        self.settling: asyncio.Future[None] | None = None

    def append(self, topic_partition: TopicPartition, leader_epoch: int, records: _Pairs) -> Awaitable[int] | int:
        self.epochs.append(leader_epoch)
        return self._append(topic_partition, records)

    def read(self, topic_partition: TopicPartition, leader_epoch: int) -> Batches:
        return self._batches()

    def when_committed(self, topic_partition: TopicPartition, leader_epoch: int) -> asyncio.Future[None] | None:
        return self.settling


def _driver(
    append: Callable[[TopicPartition, _Pairs], Awaitable[int] | int],
    batches: Callable[[], Batches] = lambda: (),
    clock: _Clock | None = None,
    *,
    commit_timeout_ms: int = 60_000,
) -> GroupsDriver:
    return _driver_of(_Log(append, batches), clock, commit_timeout_ms=commit_timeout_ms)


def _driver_of(log: _Log, clock: _Clock | None = None, *, commit_timeout_ms: int = 60_000) -> GroupsDriver:
    return GroupsDriver(
        log,
        clock or _Clock(),
        settings=GroupSettings(initial_rebalance_delay_ms=0, commit_timeout_ms=commit_timeout_ms),
        rng=Random(1),
    )


def _commit(offset: int) -> CommitRequest:
    return CommitRequest(GROUP, -1, "", None, (OffsetToCommit("t", 0, offset),))


def _partition(driver: GroupsDriver) -> int:
    return driver.coordinator.partition_of(GROUP)


def _is_loading(driver: GroupsDriver) -> bool:
    try:
        driver.list_groups(frozenset(), frozenset())
    except PeerError as error:
        return error.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    return False


async def _loaded(driver: GroupsDriver, sleep_s: float = 0) -> None:
    for _ in range(6_000):
        if not _is_loading(driver):
            return
        await asyncio.sleep(sleep_s)
    raise AssertionError("the load does not end")


def _offset(driver: GroupsDriver) -> int:
    outcome = driver.fetch_offsets(FetchOffsetsRequest(GROUP, (TopicToFetch("t", (0,)),))).outcome
    assert outcome is not None
    return outcome.topics[0][1][0].offset


def _join(session_timeout_ms: int = 10_000) -> JoinRequest:
    return JoinRequest(GROUP, "", None, "consumer", (("range", b""),), session_timeout_ms, 60_000, "c", "/h", False)


def _batch(pairs: Iterable[tuple[bytes | None, bytes | None]], **more: object) -> tuple[BatchHeader, list[Record]]:
    built = build_batch([(0, key, value, ()) for key, value in pairs], **more)  # type: ignore[arg-type]
    return next(iter(decode_all(built)))


def _pair(offset: int) -> tuple[bytes | None, bytes | None]:
    return offset_record(OffsetSlot(GROUP, "t", 0), StoredOffset(offset, -1, "", 1))


@on_loop
async def test_synchronous_append_completes_the_commit_at_once() -> None:
    appended: list[tuple[TopicPartition, _Pairs]] = []

    def append(topic_partition: TopicPartition, pairs: _Pairs) -> int:
        appended.append((topic_partition, pairs))
        return 0

    driver = _driver(append)
    driver.on_leader(_partition(driver), 0)
    reply = driver.commit(_commit(5))
    assert reply.outcome is not None
    assert reply.outcome.errors == (ErrorCode.NONE,)
    assert [(str(where), len(pairs)) for where, pairs in appended] == [(f"__consumer_offsets-{_partition(driver)}", 1)]
    driver.close()


class _Confirmations:
    """What is asked before stable offsets are read, and not answered yet."""

    def __init__(self) -> None:
        self.asked: list[tuple[TopicPartition, int]] = []
        self.answers: list[Callable[[ErrorCode], None]] = []

    def confirm(self, where: TopicPartition, leader_epoch: int, confirmed: Callable[[ErrorCode], None]) -> None:
        self.asked.append((where, leader_epoch))
        self.answers.append(confirmed)


@pytest.mark.parametrize("group", [GROUP, ""])
@on_loop
async def test_stable_offsets_are_read_after_the_leadership_is_confirmed(group: str) -> None:
    confirmations = _Confirmations()
    driver = GroupsDriver(_Log(lambda where, pairs: 0, lambda: ()), _Clock(), confirm_leadership=confirmations.confirm)
    partition = driver.coordinator.partition_of(group)
    driver.on_leader(partition, 3)
    driver.on_leader(_partition(driver), 3)
    request = FetchOffsetsRequest(group, (TopicToFetch("t", (0,)),), require_stable=True)
    replies = [driver.fetch_offsets(request) for _ in range(2)]
    assert confirmations.asked == [(TopicPartition("__consumer_offsets", partition), 3)] * 2
    assert [reply.outcome for reply in replies] == [None, None]
    assert driver.commit(_commit(5)).outcome is not None
    confirmations.answers[0](ErrorCode.NONE)
    confirmations.answers[1](ErrorCode.NOT_COORDINATOR)
    first, second = [await reply.wait() for reply in replies]
    assert (first.error, first.topics[0][1][0].offset) == (ErrorCode.NONE, 5 if group else -1)
    assert (second.error, second.topics) == (ErrorCode.NOT_COORDINATOR, ())
    driver.close()


@on_loop
async def test_a_confirmation_that_comes_after_the_resignation_reads_nothing() -> None:
    confirmations = _Confirmations()
    driver = GroupsDriver(
        _Log(lambda where, pairs: 0, lambda: [_batch([_pair(7)])]), _Clock(), confirm_leadership=confirmations.confirm
    )
    driver.on_leader(_partition(driver), 3)
    reply = driver.fetch_offsets(FetchOffsetsRequest(GROUP, (TopicToFetch("t", (0,)),), require_stable=True))
    driver.on_resigned(_partition(driver))
    confirmations.answers[0](ErrorCode.NONE)
    assert (await reply.wait()).error is ErrorCode.NOT_COORDINATOR
    driver.close()


@on_loop
async def test_only_a_coordinator_that_reads_stable_offsets_is_confirmed() -> None:
    confirmations = _Confirmations()
    driver = GroupsDriver(_Log(lambda where, pairs: 0, lambda: ()), _Clock(), confirm_leadership=confirmations.confirm)
    stable = driver.fetch_offsets(FetchOffsetsRequest(GROUP, None, require_stable=True)).outcome
    assert stable is not None
    assert stable.error is ErrorCode.NOT_COORDINATOR
    driver.on_leader(_partition(driver), 3)
    assert _offset(driver) == -1
    assert confirmations.asked == []
    driver.close()


@on_loop
async def test_slow_appends_reach_the_log_in_order() -> None:
    order: list[bytes | None] = []
    gate = asyncio.Event()

    async def append(topic_partition: TopicPartition, pairs: _Pairs) -> int:
        order.append(pairs[0][1])
        await gate.wait()
        return 0

    driver = _driver(append)
    driver.on_leader(_partition(driver), 0)
    replies = [driver.commit(_commit(offset)) for offset in range(5)]
    assert all(reply.outcome is None for reply in replies)
    await asyncio.sleep(0)
    assert [value[2:10] for value in order if value is not None] == [offset.to_bytes(8) for offset in range(5)]
    assert _offset(driver) == -1
    gate.set()
    assert [(await reply.wait()).errors for reply in replies] == [(ErrorCode.NONE,)] * 5
    assert _offset(driver) == 4
    driver.close()


@pytest.mark.parametrize("when", ["at once", "later"])
@on_loop
async def test_rejected_append_fails_the_commit(when: str) -> None:
    def refuse(topic_partition: TopicPartition, pairs: _Pairs) -> int:
        raise PeerError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    async def refuse_later(topic_partition: TopicPartition, pairs: _Pairs) -> int:
        return refuse(topic_partition, pairs)

    driver = _driver(refuse if when == "at once" else refuse_later)
    driver.on_leader(_partition(driver), 0)
    assert (await driver.commit(_commit(5)).wait()).errors == (ErrorCode.NOT_COORDINATOR,)
    assert _offset(driver) == -1
    driver.close()


@on_loop
async def test_a_short_log_is_loaded_before_on_leader_returns() -> None:
    driver = _driver(lambda where, pairs: 0, lambda: [_batch([_pair(7)])])
    driver.on_leader(_partition(driver), 0)
    assert _offset(driver) == 7
    driver.close()


@on_loop
async def test_long_log_is_loaded_in_slices() -> None:
    batches = [_batch([_pair(number)] * LOAD_SLICE_RECORDS) for number in range(4)]
    driver = _driver(lambda where, pairs: 0, lambda: batches)
    driver.on_leader(_partition(driver), 0)
    loading = driver.commit(_commit(1)).outcome
    assert loading is not None
    assert loading.errors == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,)
    assert _is_loading(driver)
    await _loaded(driver)
    assert _offset(driver) == 3
    driver.close()


class _ClockOfSlowWork(_Clock):
    """Each look at it takes as long as a slow record."""

    def monotonic_ms(self) -> int:
        self.at_ms += 1
        return self.at_ms


@on_loop
async def test_slices_of_records_that_take_long_are_short() -> None:
    """Others must be served while groups are loaded, whatever their records cost."""
    batches = [_batch([_pair(number)]) for number in range(50)]
    driver = _driver(lambda where, pairs: 0, lambda: batches, _ClockOfSlowWork())
    driver.on_leader(_partition(driver), 0)
    turns = 0
    while _is_loading(driver):
        turns += 1
        await asyncio.sleep(0)
    assert turns >= len(batches) // SLICE_MS
    assert _offset(driver) == 49
    driver.close()


@on_loop
async def test_the_first_slices_of_many_partitions_are_short_together() -> None:
    clock = _ClockOfSlowWork()
    driver = _driver(lambda where, pairs: 0, lambda: [_batch([_pair(7)])], clock)
    for partition in range(20):
        driver.on_leader(partition, 0)
    assert 0 < len(driver.coordinator.active_partitions) < 10
    await _loaded(driver)
    assert driver.coordinator.active_partitions == set(range(20))
    clock.at_ms += 1_000
    driver.on_leader(20, 0)
    assert 20 in driver.coordinator.active_partitions, "one that comes later is loaded at once"
    driver.close()


@on_loop
async def test_all_partitions_without_records_are_loaded_at_once() -> None:
    """Those of a new topic: its first clients need not try again."""
    driver = _driver(lambda where, pairs: 0, clock=_ClockOfSlowWork())
    for partition in range(50):
        driver.on_leader(partition, 0)
    assert driver.coordinator.active_partitions == set(range(50))
    driver.close()


def _log_of_many_members() -> list[tuple[BatchHeader, list[Record]]]:
    world = ConsumerWorld()
    for number in range(3 * _RESUMED_AT_ONCE // 2):
        world.enter(f"m{number:04}", "t")
    records = world.log[world.partition()]
    assert len(records) < FIRST_SLICE_RECORDS, "they are read at once"
    return [_batch(records)]


@on_loop
async def test_members_that_are_loaded_get_their_sessions_in_slices() -> None:
    batches, clock = _log_of_many_members(), _Clock()
    driver = _driver(lambda where, pairs: 0, lambda: batches, clock)
    driver.on_leader(_partition(driver), 0)
    assert _is_loading(driver)
    clock.at_ms += 1_000_000
    assert driver.coordinator.on_time(Now(clock.now_ms(), clock.at_ms)) == [], "nothing is due while they are loaded"
    await _loaded(driver)
    driver.coordinator.check()
    first_ms = driver.coordinator.next_deadline_ms()
    assert first_ms is not None
    assert first_ms <= clock.at_ms, "some sessions began before so much time passed"
    for _ in range(4 * _RESUMED_AT_ONCE):
        driver.coordinator.on_time(Now(clock.now_ms(), clock.at_ms))
    assert len(driver.describe_consumer_group(GROUP).members) == _RESUMED_AT_ONCE // 2
    driver.close()


@pytest.mark.parametrize("what", ["resigns", "closes"])
@on_loop
async def test_a_coordinator_that_ends_while_members_get_their_sessions(what: str) -> None:
    batches = _log_of_many_members()
    driver = _driver(lambda where, pairs: 0, lambda: batches)
    driver.on_leader(_partition(driver), 0)
    assert _is_loading(driver)
    if what == "resigns":
        driver.on_resigned(_partition(driver))
    else:
        driver.close()
    for _ in range(5):
        await asyncio.sleep(0)
    assert not driver.coordinator.active_partitions
    assert driver.coordinator.next_deadline_ms() is None
    driver.close()


@on_loop
async def test_superseded_load_is_dropped() -> None:
    batches = [_batch([_pair(number)] * LOAD_SLICE_RECORDS) for number in range(4)]
    read: list[int] = []

    def counted() -> Batches:
        for number, batch in enumerate(batches):
            read.append(number)
            yield batch

    driver = _driver(lambda where, pairs: 0, counted)
    partition = _partition(driver)
    driver.on_leader(partition, 0)
    driver.on_resigned(partition)
    for _ in range(10):
        await asyncio.sleep(0)
    assert read == [0], "a dropped load reads nothing more"
    outcome = driver.commit(_commit(1)).outcome
    assert outcome is not None
    assert outcome.errors == (ErrorCode.NOT_COORDINATOR,)
    driver.on_leader(partition, 2)
    driver.on_leader(partition, 1)
    await _loaded(driver)
    assert _offset(driver) == 3
    driver.close()


@on_loop
async def test_unreadable_log_does_not_affect_other_groups() -> None:
    def batches() -> Batches:
        raise PeerError(ErrorCode.KAFKA_STORAGE_ERROR, "unreadable")

    driver = _driver(lambda where, pairs: 0, batches)
    driver.on_leader(_partition(driver), 0)
    outcome = driver.commit(_commit(1)).outcome
    assert outcome is not None
    assert outcome.errors == (ErrorCode.NOT_COORDINATOR,)
    assert driver.list_groups(frozenset(), frozenset()) == []
    driver.close()


@on_loop
async def test_transactions_of_the_log_are_replayed() -> None:
    marker = ((b"\x00\x00\x00\x01", b"\x00\x00\x00\x00\x00\x00"),)
    batches = [
        _batch([_pair(7)], producer_id=9, producer_epoch=0, base_sequence=0, transactional=True),
        _batch(marker, producer_id=9, producer_epoch=0, transactional=True, control=True),
    ]
    for count, expected in ((1, -1), (2, 7)):
        driver = _driver(lambda where, pairs: 0, lambda count=count: batches[:count])  # type: ignore[misc]
        driver.on_leader(_partition(driver), 0)
        assert _offset(driver) == expected
        driver.close()


@on_loop
async def test_batches_emptied_by_compaction_are_skipped() -> None:
    marker = ((b"\x00\x00\x00\x01", b"\x00\x00\x00\x00\x00\x00"),)
    control, _ = _batch(marker, producer_id=9, producer_epoch=0, transactional=True, control=True)
    data, _ = _batch([_pair(3)], producer_id=9, producer_epoch=0, base_sequence=0, transactional=True)
    batches: list[tuple[BatchHeader, list[Record]]] = [(control, []), (data, []), _batch([_pair(7)]), (control, [])]
    driver = _driver(lambda where, pairs: 0, lambda: batches)
    driver.on_leader(_partition(driver), 0)
    assert _offset(driver) == 7
    driver.close()


@on_loop
async def test_one_timer_serves_all_groups() -> None:
    clock = _Clock()
    driver = _driver(lambda where, pairs: 0, clock=clock)
    driver.on_leader(_partition(driver), 0)
    reply = driver.join(_join())
    assert reply.outcome is None
    joined = await asyncio.wait_for(reply.wait(), 60)
    assert joined.generation == 1
    assert len(asyncio.all_tasks()) == 1, "no task per group"
    clock.at_ms += 10_000
    driver._timer._fire()
    assert driver.list_groups(frozenset({"empty"}), frozenset()) != []
    driver.close()


@on_loop
async def test_close_answers_pending_requests() -> None:
    driver = _driver(lambda where, pairs: 0)
    driver.on_leader(_partition(driver), 0)
    reply = driver.join(_join())
    driver.close()
    assert (await reply.wait()).error is ErrorCode.NOT_COORDINATOR


@on_loop
async def test_appends_use_the_loaded_epoch() -> None:
    log = _Log(lambda where, pairs: 0, lambda: ())
    driver = _driver_of(log)
    for epoch in (3, 5):
        driver.on_leader(_partition(driver), epoch)
        driver.commit(_commit(1))
    assert log.epochs == [3, 5]
    driver.close()


@on_loop
async def test_commit_timeout_returns_a_retriable_error() -> None:
    """The write stays pending: the log decides its outcome."""
    reported: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    driver = _driver(lambda where, pairs: reported, commit_timeout_ms=1)
    driver.on_leader(_partition(driver), 0)
    reply = driver.commit(_commit(5))
    assert (await asyncio.wait_for(reply.wait(), 60)).errors == (ErrorCode.COORDINATOR_NOT_AVAILABLE,)
    assert _offset(driver) == -1
    reported.set_result(0)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert _offset(driver) == 5
    driver.close()


@on_loop
async def test_load_waits_until_the_log_is_committed() -> None:
    log = _Log(lambda where, pairs: 0, lambda: [_batch([_pair(7)])])
    log.settling = asyncio.get_running_loop().create_future()
    driver = _driver_of(log)
    driver.on_leader(_partition(driver), 0)
    assert _fetch_error(driver) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    log.settling.set_result(None)
    await _loaded(driver)
    assert _offset(driver) == 7
    driver.close()


@on_loop
async def test_load_committed_after_resignation_is_dropped() -> None:
    log = _Log(lambda where, pairs: 0, lambda: [_batch([_pair(7)])])
    log.settling = asyncio.get_running_loop().create_future()
    driver = _driver_of(log)
    driver.on_leader(_partition(driver), 0)
    driver.on_resigned(_partition(driver))
    log.settling.set_result(None)
    for _ in range(5):
        await asyncio.sleep(0)
    assert _fetch_error(driver) is ErrorCode.NOT_COORDINATOR
    driver.close()


@pytest.mark.parametrize("how", ["by time", "when told"])
@on_loop
async def test_load_of_an_unready_log_is_retried(how: str) -> None:
    """As while a thread truncates it, or while its leader recovers: the groups must still be loaded later."""
    is_ready = False

    def batches() -> Batches:
        yield _batch([_pair(6)])
        if not is_ready:
            raise PeerError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        yield _batch([_pair(7)])

    driver = _driver(lambda where, pairs: 0, batches)
    partition = _partition(driver)
    driver.on_leader(partition, 4)
    assert _fetch_error(driver) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    is_ready = True
    if how == "when told":
        driver.on_leader(partition, 4)
    else:
        await _loaded(driver, sleep_s=0.01)
    assert _offset(driver) == 7
    driver.close()


@on_loop
async def test_topic_deleted_during_a_load_retry_leaves_no_offsets() -> None:
    is_ready = False

    def batches() -> Batches:
        yield _batch([_pair(6)])
        if not is_ready:
            raise PeerError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    driver = _driver(lambda where, pairs: 0, batches)
    driver.on_leader(_partition(driver), 4)
    driver.on_topics_deleted([("t", ZERO_UUID)])
    is_ready = True
    driver.on_leader(_partition(driver), 4)
    assert _offset(driver) == -1
    driver.close()


@on_loop
async def test_repeated_leadership_in_the_same_epoch_changes_nothing() -> None:
    """Another property of the partition changed, such as its in-sync set: pending requests keep waiting."""
    reads = 0

    def batches() -> Batches:
        nonlocal reads
        reads += 1
        return ()

    driver = _driver(lambda where, pairs: 0, batches)
    driver.on_leader(_partition(driver), 4)
    reply = driver.join(_join())
    driver.on_leader(_partition(driver), 4)
    joined = await asyncio.wait_for(reply.wait(), 60)
    assert (joined.error, joined.generation, reads) == (ErrorCode.NONE, 1, 1)
    driver.close()


@on_loop
async def test_cold_reads_of_a_load_run_in_a_thread() -> None:
    threads: list[int] = []

    class Cold(LogRead):
        def load(self) -> memoryview:
            threads.append(threading.get_ident())
            return memoryview(b"")

    def batches() -> Batches:
        yield _batch([_pair(6)])
        yield Cold(0)
        yield _batch([_pair(7)])

    driver = _driver(lambda where, pairs: 0, batches)
    driver.on_leader(_partition(driver), 4)
    assert _fetch_error(driver) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    await _loaded(driver, sleep_s=0.01)
    assert len(threads) == 1
    assert threads[0] != threading.get_ident()
    assert _offset(driver) == 7
    driver.close()


@on_loop
async def test_many_loads_do_not_block_the_event_loop() -> None:
    """One slice per turn of the loop, however many partitions load at once."""
    batches = [_batch([_pair(number)] * FIRST_SLICE_RECORDS) for number in range(30)]
    driver = _driver(lambda where, pairs: 0, lambda: batches)
    seen: list[int] = []
    for partition in range(10):
        driver.on_leader(partition, 0)
    while _is_loading(driver):
        seen.append(sum(shard.state.offsets.has_any(GROUP) for shard in driver.coordinator._loading.values()))
        await asyncio.sleep(0)
    turns_each = (30 * FIRST_SLICE_RECORDS - FIRST_SLICE_RECORDS) // LOAD_SLICE_RECORDS
    assert len(seen) >= 10 * turns_each
    driver.close()


@on_loop
async def test_topic_deleted_during_a_load_leaves_no_offsets() -> None:
    appended: list[_Pairs] = []

    def append(where: TopicPartition, pairs: _Pairs) -> int:
        appended.append(pairs)
        return 0

    batches = [_batch([_pair(number)] * FIRST_SLICE_RECORDS) for number in range(3)]
    driver = _driver(append, lambda: batches)
    driver.on_leader(_partition(driver), 0)
    driver.on_topics_deleted([("t", ZERO_UUID)])
    await _loaded(driver)
    assert _offset(driver) == -1
    assert [pair[1] for pairs in appended for pair in pairs] == [None]
    driver.close()


def _fetch_error(driver: GroupsDriver) -> ErrorCode:
    outcome = driver.fetch_offsets(FetchOffsetsRequest(GROUP, (TopicToFetch("t", (0,)),))).outcome
    assert outcome is not None
    return outcome.error


@on_loop
async def test_invalid_record_in_a_short_log_does_not_raise() -> None:
    reported: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, about: reported.append(str(about.get("exception"))))
    driver = _driver(lambda where, pairs: 0, lambda: [_batch([_pair(1), (b"\x00\x01", b"")])])
    driver.on_leader(_partition(driver), 0)
    assert _fetch_error(driver) is ErrorCode.NOT_COORDINATOR
    assert ["cannot be read" in each for each in reported] == [True]
    driver.close()


@on_loop
async def test_invalid_record_does_not_affect_other_loads() -> None:
    """An unexpected error: the traceback is logged, and the groups of this partition have no coordinator."""
    reported: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, about: reported.append(str(about.get("exception"))))
    reads = 0

    def batches() -> Batches:
        nonlocal reads
        reads += 1
        is_first = reads == 1
        for number in range(3):
            yield _batch([_pair(number)] * FIRST_SLICE_RECORDS)
        if is_first:
            yield _batch([(b"\x00\x01", b"")])

    driver = _driver(lambda where, pairs: 0, batches)
    partition = _partition(driver)
    other = (partition + 1) % driver.coordinator.partition_count
    driver.on_leader(partition, 0)
    driver.on_leader(other, 0)
    await _loaded(driver)
    assert driver.coordinator.active_partitions == {other}
    driver.close()
    assert any("cannot be read" in each for each in reported)
