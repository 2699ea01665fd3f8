"""The log cleaner of a node: what it compacts and when, which operations interrupt it, and how it handles errors.

Real replicas and handlers on a simulated disk; the test acts as the controller.
"""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final

import pytest

from fenceline.errors import ErrorCode
from fenceline.ids import TopicPartition
from fenceline.log.compaction.kernel import SLOT_BYTES
from fenceline.log.compaction.plan import Due, NotDue, Verdict
from fenceline.log.core.checkpoints import read_offsets
from fenceline.log.core.producer_state import Origin
from fenceline.node.replication.replica import Replica
from fenceline.node.storage import log_cleaner
from fenceline.node.storage.log_cleaner import CleanerCollector, LogCleaner
from fenceline.records.build import build_batch
from fenceline.records.decode import decode_all
from tests.node.desk import TOPIC, Desk, turns

COMPACT: Final = {"cleanup.policy": "compact", "segment.bytes": "500", "file.delete.delay.ms": "0"}
WHERE: Final = TopicPartition(TOPIC, 0)
DIRECTORY: Final = f"/data/{TOPIC}-0"
CHECKPOINT: Final = "/data/cleaner-offset-checkpoint"


class CleaningDesk(Desk):
    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.cleaner = self.plane.cleaner
        self.topic_settings.update(COMPACT)

    async def close(self) -> None:
        await self.cleaner.close()
        await super().close()

    def write(self, key: bytes, value: bytes | None) -> None:
        replica = self.replica()
        made = memoryview(build_batch([(self.clock.ms, key, value, ())]))
        replica.log.append_as_leader(made, leader_epoch=replica.leader_epoch, now_ms=self.clock.ms)
        replica.appended()

    async def save(self) -> None:
        """Flush everything and write the checkpoints."""
        await self.flushes.flush(self.replica())
        self.log_dirs.first.checkpoint_work()()

    async def grow(self, rounds: int = 40) -> Replica:
        """Write three keys repeatedly, all of it committed and flushed."""
        replica = self.replica()
        for number in range(rounds):
            for key in (b"a", b"b", b"c"):
                self.write(key, b"%d" % number)
        await self.save()
        assert len(replica.log.segments) > 2
        return replica

    def names(self, *suffixes: str) -> list[str]:
        return [name for name in self.disk.listdir(DIRECTORY) if name.endswith(suffixes)]

    def read(self) -> list[tuple[int, bytes | None, bytes | None]]:
        """Every record, as a consumer gets them."""
        log, offset, found = self.replica().log, 0, []
        while offset < log.log_end_offset:
            records = log.read(offset, 1 << 20, end_offset_exclusive=log.log_end_offset).load()
            for header, decoded in decode_all(records):
                found += [(each.offset, each.key, each.value) for each in decoded]
                offset = header.next_offset
        return found


def cleaned(story: Callable[[CleaningDesk], Coroutine[Any, Any, None]], **settings: str) -> None:
    given = {"log.cleaner.backoff.ms": "1", **{name.replace("_", "."): text for name, text in settings.items()}}

    async def whole() -> None:
        desk = CleaningDesk(settings=given)
        try:
            desk.lead(1)
            desk.cleaner.start()
            await story(desk)
        finally:
            await desk.close()

    asyncio.run(asyncio.wait_for(whole(), 60))


async def until(desk: CleaningDesk, condition: Callable[[], Any]) -> None:
    """Let time pass, and run the threads."""
    while not condition():
        desk.clock.ms += 20
        await turns(1)


async def looked_at(desk: CleaningDesk, replica: Replica) -> None:
    """The cleaner has examined the log in its current state: it compacted it or left it unchanged."""
    cleaner, after_ms = desk.cleaner, desk.clock.ms + 20
    await until(
        desk,
        lambda: cleaner.stats.runs or (cleaner._pass is None and cleaner._waiting.get(replica, 0) > after_ms),
    )


def test_old_records_of_a_key_are_removed_and_offsets_stay() -> None:
    async def story(desk: CleaningDesk) -> None:
        replica = await desk.grow()
        log = replica.log
        before = (log.log_start_offset, log.log_end_offset, log.high_watermark, log.epochs.entries)
        active = log.segments[-1].base_offset
        await until(desk, lambda: desk.cleaner.stats.runs == 1 and replica.cleaning is None)
        assert before == (log.log_start_offset, log.log_end_offset, log.high_watermark, log.epochs.entries)
        sealed = [each for each in desk.read() if each[0] < active]
        assert len({key for _, key, _ in sealed}) == len(sealed) <= 4
        assert {key: value for _, key, value in desk.read()} == dict.fromkeys((b"a", b"b", b"c"), b"39")
        assert read_offsets(desk.disk, CHECKPOINT) == {WHERE: active}
        assert desk.deleted
        for delete, _ in desk.deleted:
            delete()
        assert not desk.names(".deleted", ".swap", ".cleaned")
        assert len(desk.names(".log")) == len(log.segments)
        bases = {segment.base_offset for segment in log.segments}
        assert {int(name.split(".")[0]) for name in desk.names("index", ".snapshot")} <= bases
        assert log.size_bytes == sum(len(desk.disk.peek(segment.path) or b"") for segment in log.segments)

    cleaned(story)


def test_a_follower_at_a_removed_offset_continues_without_divergence() -> None:
    async def story(desk: CleaningDesk) -> None:
        replica = await desk.grow()
        desk.lead(5, isr=(1,))
        for number in range(30):
            desk.write(b"a", b"later %d" % number)
        await desk.save()
        await until(desk, lambda: desk.cleaner.stats.runs >= 1 and not desk.cleaner._waiting)
        first = next(offset for offset, _, _ in desk.read())
        assert first > 20
        for epoch in (1, 5):
            answer = desk.follower_fetched(2, 10, last_fetched_epoch=1)
            assert answer.error_code == 0, epoch
            assert answer.diverging_epoch is None
            header, _ = next(decode_all(memoryview(bytes(answer.records or b"")), allow_partial_tail=True))
            assert header.last_offset >= first
        assert replica.log.end_offset_for_epoch(1) == (1, 120)

    cleaned(story)


def test_an_idle_log_schedules_no_timer() -> None:
    async def story(desk: CleaningDesk) -> None:
        replica = desk.replica()
        desk.write(b"a", b"1")
        assert desk.cleaner._timer is None
        await desk.grow()
        await until(desk, lambda: desk.cleaner.stats.runs >= 1 and not desk.cleaner._waiting)
        await until(desk, lambda: desk.cleaner._pass is None)
        assert desk.cleaner._timer is None
        runs = desk.cleaner.stats.runs
        replica.log.roll(desk.clock.ms)
        assert desk.cleaner._timer is not None
        await desk.save()
        await until(desk, lambda: not desk.cleaner._waiting or desk.cleaner.stats.runs > runs)

    cleaned(story)


def test_unflushed_records_are_not_compacted() -> None:
    async def story(desk: CleaningDesk) -> None:
        replica = desk.replica()
        for number in range(100):
            desk.write(b"a", b"%d" % number)
        await looked_at(desk, replica)
        assert desk.cleaner.stats.runs == 0
        await desk.save()
        await until(desk, lambda: desk.cleaner.stats.runs == 1)

    cleaned(story)


def test_a_segment_with_unflushed_indexes_is_not_compacted() -> None:
    async def story(desk: CleaningDesk) -> None:
        desk.topic_settings["min.cleanable.dirty.ratio"] = "0.0"
        desk.partitions.reload_config()
        replica = await desk.grow()
        replica.log.roll(desk.clock.ms)
        unsaved = replica.log.segments[-2].base_offset
        desk.write(b"a", b"last")
        assert replica.log.segments[-1].base_offset == replica.log.recovery_point
        await until(desk, lambda: desk.cleaner.stats.runs == 1 and desk.cleaner._pass is None)
        assert read_offsets(desk.disk, CHECKPOINT) == {WHERE: unsaved}
        await desk.save()
        await until(desk, lambda: desk.cleaner.stats.runs == 2 and replica.cleaning is None)
        assert read_offsets(desk.disk, CHECKPOINT) == {WHERE: replica.log.segments[-1].base_offset}

    cleaned(story)


def test_uncommitted_records_are_not_compacted() -> None:
    async def story(desk: CleaningDesk) -> None:
        replica = desk.lead(2, isr=(1, 2))
        for number in range(100):
            desk.write(b"a", b"%d" % number)
        await desk.save()
        await looked_at(desk, replica)
        assert desk.cleaner.stats.runs == 0
        assert replica.log.high_watermark == 0
        desk.follower_fetched(2, replica.log.log_end_offset)
        await until(desk, lambda: desk.cleaner.stats.runs == 1)

    cleaned(story)


def test_records_of_open_transactions_are_not_compacted() -> None:
    async def story(desk: CleaningDesk) -> None:
        replica = desk.replica()
        row = (desk.clock.ms, b"a", b"open", ())
        opened = memoryview(build_batch([row], producer_id=7, producer_epoch=0, base_sequence=0, transactional=True))
        replica.log.append_as_leader(opened, leader_epoch=replica.leader_epoch, now_ms=desk.clock.ms)
        for number in range(100):
            desk.write(b"a", b"%d" % number)
        await desk.save()
        assert replica.log.last_stable_offset == 0 < replica.log.high_watermark
        await looked_at(desk, replica)
        assert desk.cleaner.stats.runs == 0
        row = (desk.clock.ms, bytes((0, 0, 0, 1)), bytes(6), ())
        decided = memoryview(build_batch([row], producer_id=7, producer_epoch=0, transactional=True, control=True))
        origin = Origin.COORDINATOR
        replica.log.append_as_leader(decided, leader_epoch=replica.leader_epoch, now_ms=desk.clock.ms, origin=origin)
        replica.appended()
        await desk.save()
        await until(desk, lambda: desk.cleaner.stats.runs == 1)

    cleaned(story)


def test_a_log_truncated_after_it_was_selected_is_not_compacted() -> None:
    async def story(desk: CleaningDesk) -> None:
        replica = await desk.grow()
        cleaner = desk.cleaner
        verdict = await cleaner._judge(replica, desk.clock.ms)
        assert isinstance(verdict, Due)
        replica.log.truncate_to(7)
        await desk.checkpoint()
        for number in range(200):
            made = memoryview(build_batch([(desk.clock.ms, b"a", b"not committed %d" % number, ())]))
            replica.log.append_as_leader(made, leader_epoch=replica.leader_epoch, now_ms=desk.clock.ms)
        await desk.save()
        before = list(replica.log.segments)
        assert replica.log.log_end_offset > verdict.end > replica.log.high_watermark
        cleaner._waiting[replica] = 0
        await cleaner._clean(replica, verdict, 1)
        assert replica.log.segments == before
        assert cleaner._waiting[replica] > desk.clock.ms
        assert cleaner.stats.runs == 0

    cleaned(story, log_cleaner_backoff_ms="1000000")


def test_a_segment_sealed_during_the_selection_is_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(desk: CleaningDesk) -> None:
        grown = sealed = False

        async def meanwhile(cleaner: LogCleaner, replica: Replica, now_ms: int) -> Verdict:
            nonlocal sealed
            if sealed:
                return await judged(cleaner, replica, now_ms)
            if not grown:
                return NotDue(now_ms)
            sealed = True
            cleaner.mark(replica)
            return NotDue(None)

        monkeypatch.setattr(LogCleaner, "_judge", meanwhile)
        await desk.grow()
        grown = True
        await until(desk, lambda: desk.cleaner.stats.runs == 1)

    judged = LogCleaner._judge
    cleaned(story)


def test_compaction_can_be_enabled_for_an_existing_topic() -> None:
    async def story(desk: CleaningDesk) -> None:
        desk.topic_settings["cleanup.policy"] = "delete"
        desk.partitions.reload_config()
        await desk.grow()
        assert not desk.cleaner._waiting
        desk.topic_settings["cleanup.policy"] = "compact,delete"
        desk.partitions.reload_config()
        await until(desk, lambda: desk.cleaner.stats.runs == 1)

    cleaned(story)


def test_log_cleaner_enable_false_disables_compaction() -> None:
    async def story(desk: CleaningDesk) -> None:
        await desk.grow()
        assert desk.cleaner._timer is None
        assert desk.cleaner.stats.runs == 0

    cleaned(story, log_cleaner_enable="false")


SLOW: Final = {"log_cleaner_io_max_bytes_per_second": "1.0", "log_cleaner_io_buffer_size": "61"}


@pytest.fixture
def small_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_cleaner, "_LONGEST_PAUSE_S", 0.001)


def slow(story: Callable[[CleaningDesk, Replica], Coroutine[Any, Any, None]]) -> None:
    """Run the story while a compaction is in progress: the clock stands still, so its rate stays exhausted."""

    async def whole(desk: CleaningDesk) -> None:
        replica = await desk.grow()
        while replica.cleaning is None or not desk.names(".cleaned"):
            desk.clock.ms += 1_000_000
            await turns(1)
        await story(desk, replica)

    cleaned(whole, **SLOW)


@pytest.mark.usefixtures("small_pause")
def test_truncation_cancels_the_compaction_and_waits_for_it() -> None:
    async def story(desk: CleaningDesk, replica: Replica) -> None:
        assert replica.cleaning is not None
        replica.is_being_cut = True
        await replica.cleaning.stop()
        assert replica.cleaning is None
        assert not desk.names(".cleaned", ".swap")
        replica.log.truncate_to(7)
        replica.is_being_cut = False
        desk.partitions.cut_ended(replica)
        desk.log_dirs.first.offsets.cleaned[WHERE] = 90
        desk.log_dirs.first.checkpoint_work()()
        assert read_offsets(desk.disk, CHECKPOINT) == {WHERE: 7}

    slow(story)


@pytest.mark.usefixtures("small_pause")
def test_a_topic_deleted_during_compaction_is_removed_after_the_thread_ends() -> None:
    async def story(desk: CleaningDesk, replica: Replica) -> None:
        desk.delete_topic()
        assert desk.disk.stat(DIRECTORY) is not None
        while desk.disk.stat(DIRECTORY) is not None:
            await turns(1)
        assert replica.cleaning is None
        assert not desk.cleaner.uncleanable

    slow(story)


@pytest.mark.usefixtures("small_pause")
def test_a_stopping_node_leaves_no_partial_compaction() -> None:
    async def story(desk: CleaningDesk, replica: Replica) -> None:
        await desk.cleaner.close()
        assert replica.cleaning is None
        assert not desk.names(".cleaned", ".swap")

    slow(story)


def test_a_damaged_log_is_skipped_and_reported() -> None:
    async def story(desk: CleaningDesk) -> None:
        replica = desk.replica()
        for number in range(60):
            desk.write(b"a", b"%d" % number)
        path = replica.log.segments[1].path
        desk.disk._file(path).content[80] ^= 1
        await desk.save()
        await until(desk, lambda: WHERE in desk.cleaner.uncleanable)
        assert "checksum" in desk.cleaner.uncleanable[WHERE][1]
        assert desk.plane.in_service.holds(replica)
        assert not desk.names(".cleaned", ".swap")
        figures = {family.name: family.samples[0].value for family in CleanerCollector(desk.cleaner).collect()}
        assert figures["fenceline_cleaner_uncleanable_partitions"] == 1
        assert figures["fenceline_cleaner_uncleanable_bytes"] > 0
        assert figures["fenceline_cleaner_runs"] == 0
        replica.log.roll(desk.clock.ms)
        await until(desk, lambda: desk.cleaner._pass is None)
        assert desk.cleaner.stats.runs == 0

    cleaned(story)


def test_a_full_disk_postpones_the_compaction() -> None:
    async def story(desk: CleaningDesk) -> None:
        desk.disk.fail("write", ".cleaned", errno.ENOSPC)
        replica = await desk.grow()
        await until(desk, lambda: desk.cleaner._pass is None and desk.cleaner._waiting.get(replica, 0) > 0)
        assert not desk.cleaner.uncleanable
        assert not desk.names(".cleaned")
        desk.disk.heal()
        await until(desk, lambda: desk.cleaner.stats.runs == 1)

    cleaned(story)


def test_a_small_offset_map_needs_several_passes() -> None:
    async def story(desk: CleaningDesk) -> None:
        replica = await desk.grow()
        active = replica.log.segments[-1].base_offset
        await until(desk, lambda: not desk.cleaner._waiting and desk.cleaner.stats.runs > 1)
        assert {key: value for _, key, value in desk.read()} == dict.fromkeys((b"a", b"b", b"c"), b"39")
        assert read_offsets(desk.disk, CHECKPOINT) == {WHERE: active}

    cleaned(story, log_cleaner_dedupe_buffer_size=str(3 * SLOT_BYTES))


def test_a_record_without_a_key_is_rejected() -> None:
    async def story(desk: CleaningDesk) -> None:
        with pytest.raises(Exception, match="key") as refused:
            desk.write(None, b"x")  # type: ignore[arg-type]
        assert getattr(refused.value, "code", None) is ErrorCode.INVALID_RECORD

    cleaned(story)


@pytest.mark.usefixtures("small_pause")
def test_compaction_stays_within_its_rate() -> None:
    rate = 2_000

    async def story(desk: CleaningDesk) -> None:
        await desk.grow()
        began_ms = desk.clock.ms
        while not desk.cleaner.stats.runs:
            desk.clock.ms += 1
            await turns(1)
        needed_ms = 1_000 * desk.cleaner.stats.bytes_read / rate
        assert needed_ms > 5_000
        # Bytes that were read first count against the next seconds, one second's worth at most.
        assert desk.clock.ms - began_ms >= needed_ms - 1_000

    cleaned(story, log_cleaner_io_max_bytes_per_second=f"{rate}.0", log_cleaner_io_buffer_size="61")


def test_threads_do_all_work_except_renames(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop never reads, writes or syncs for a compaction; it only renames finished files."""
    at_loop: list[str] = []

    async def story(desk: CleaningDesk) -> None:
        replica, loop_thread = desk.replica(), threading.get_ident()

        def watched(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
            def run(*given: Any, **named: Any) -> Any:
                if replica.cleaning is not None and threading.get_ident() == loop_thread:
                    at_loop.append(name)
                return call(*given, **named)

            return run

        for name in ("open_append", "open_read", "write", "pread", "fsync", "fsync_dir", "rename", "unlink"):
            monkeypatch.setattr(desk.disk, name, watched(name, getattr(desk.disk, name)))
        await desk.grow()
        await until(desk, lambda: desk.cleaner.stats.runs == 1 and replica.cleaning is None)
        assert desk.deleted

    cleaned(story)
    assert set(at_loop) <= {"rename"}
