"""Compacts the logs of a broker in the background (`cleanup.policy=compact`).

Owns when a log is looked at, how many compactions run at once and how fast, and what errors mean to them. What is to be
compacted is `log.compaction_plan`'s to say, how it is done `log.compaction`'s.

A log is looked at when a segment of it has been sealed, when it is opened, or when its settings change, and then again
for as long as part of it waits for something: to be committed, to be safe on the disk, to be old enough. Logs in which
nothing happens cost nothing; where no log waits there is no timer. Work is done in disk threads, piece by piece;
between two pieces it gives way to who cuts, moves or deletes the log, and waits where the rate is used up.

A log that can not be compacted is left alone from then on, and the operator told; everything else goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from fenceline.config.effective import effective_broker_config
from fenceline.log import compaction, compaction_swap
from fenceline.log.compaction import Compaction, Limits, Uncleanable
from fenceline.log.compaction_plan import Due, LogFacts, NotDue, Verdict, dirtiest, judge
from fenceline.log.compaction_survey import segment_facts
from fenceline.log.compaction_swap import Replacement
from fenceline.log.errors import StorageError, passes
from fenceline.log.scan import BadBatch
from fenceline.node.cleaning import Cleaning
from fenceline.node.logs import Logger
from fenceline.replica.throttle import NO_RATE, ReplicationQuota

if TYPE_CHECKING:
    from fenceline.ids import TopicPartition
    from fenceline.log.log_dir import LogDir
    from fenceline.log.partition_log import PartitionLog
    from fenceline.node.broker import Broker
    from fenceline.node.replica import Replica

log = Logger("log cleaner")

ENABLE: Final = "log.cleaner.enable"
THREADS: Final = "log.cleaner.threads"
RATE: Final = "log.cleaner.io.max.bytes.per.second"
MEMORY: Final = "log.cleaner.dedupe.buffer.size"
LOAD_FACTOR: Final = "log.cleaner.io.buffer.load.factor"
BUFFER: Final = "log.cleaner.io.buffer.size"
BACKOFF: Final = "log.cleaner.backoff.ms"

_PIECE_BYTES: Final = 4 << 20
"""In one visit of a thread, where no rate holds it back."""
_LONGEST_PAUSE_S: Final = 1.0
_LEAST_LOAD: Final = 0.01
_BEING_JUDGED: Final = -1
"""In the place of the time of a log that waits."""
_ADVICE: Final = (
    "It is served as before, but not compacted, and grows. If its bytes are damaged, restore the partition from another"
    " replica (delete this one's directory while the node is down); then restart the node, which tries again."
)


@dataclass(slots=True)
class Figures:
    """Of all compactions since the start."""

    runs: int = 0
    bytes_read: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    records_removed: int = 0
    longest_s: float = 0.0
    recopied: float = 0.0
    """Of the last one, bytes after over bytes before."""
    fullest_map: float = 0.0
    dirtiest_ratio: float = 0.0
    """When logs were looked at last."""
    overdue_ms: int = 0
    """By `max.compaction.lag.ms`, the worst log then."""


class LogCleaner:
    """One broker's. Everything belongs to the loop."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._waiting: dict[Replica, int] = {}
        """Logs that may have something to compact, with when to look at them."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ms = 0
        self._pass: asyncio.Task[None] | None = None
        self._quota = ReplicationQuota()
        self._is_running = False
        self.uncleanable: dict[TopicPartition, tuple[Replica, str]] = {}
        """Logs that could not be compacted, and why."""
        self.figures = Figures()

    def start(self) -> None:
        """Logs that were opened before are looked at from now on."""
        self._is_running = self._broker.config.get_bool(ENABLE)
        if self._waiting:
            self._look_at(self._broker.clock.now_ms() + self._backoff_ms())

    async def close(self) -> None:
        """Stop; what is under way ends at its next piece."""
        self._is_running = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for replica in self._broker.partitions:
            if replica.cleaning is not None:
                replica.cleaning.ask_to_stop()
        if self._pass is not None:
            await asyncio.gather(self._pass, return_exceptions=True)

    def mark(self, replica: Replica) -> None:
        """Something of the log may be there to compact."""
        if replica.config.compacted and len(replica.log.segments) > 1:
            self._waiting[replica] = 0
            if self._is_running:
                self._look_at(self._broker.clock.now_ms() + self._backoff_ms())

    # -- when --------------------------------------------------------------------------------------------------------

    def _setting(self, name: str) -> str:
        text = effective_broker_config(self._broker.image.configs, self._broker.config, name)
        assert text is not None, f"{name} has a default"
        return text

    def _backoff_ms(self) -> int:
        return int(self._setting(BACKOFF))

    def _look_at(self, at_ms: int) -> None:
        """Not before; an earlier time that was set stays."""
        if self._pass is not None or (self._timer is not None and self._timer_at_ms <= at_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at_ms = at_ms
        delay_s = max(0, at_ms - self._broker.clock.now_ms()) / 1000
        self._timer = asyncio.get_running_loop().call_later(min(delay_s, 3600.0), self._begin_pass)

    def _begin_pass(self) -> None:
        self._timer = None
        if self._is_running and self._pass is None:
            self._pass = asyncio.ensure_future(self._run_pass())

    async def _run_pass(self) -> None:
        try:
            while self._is_running and (due := await self._judge_all()):
                threads = max(1, int(self._setting(THREADS)))
                await asyncio.gather(*(self._clean(replica, what, threads) for replica, what in due[:threads]))
        except Exception:
            # Our bug; the next pass may well do its work.
            log.exception("logs not compacted")
        finally:
            self._pass = None
            if self._is_running and self._waiting:
                now_ms = self._broker.clock.now_ms()
                self._look_at(max(now_ms + self._backoff_ms(), min(self._waiting.values())))

    async def _judge_all(self) -> list[tuple[Replica, Due]]:
        """Those that are due, the dirtiest first; the others are told when to be looked at again."""
        now_ms = self._broker.clock.now_ms()
        self.uncleanable = {
            where: (replica, reason)
            for where, (replica, reason) in self.uncleanable.items()
            if self._broker.partitions.holds(replica)
        }
        due: list[tuple[Replica, Due]] = []
        figures = self.figures
        figures.dirtiest_ratio, figures.overdue_ms = 0.0, 0
        for replica in [each for each, at_ms in self._waiting.items() if at_ms <= now_ms]:
            held = self._broker.partitions.holds(replica)
            if not held or not replica.config.compacted or replica.topic_partition in self.uncleanable:
                self._waiting.pop(replica, None)
                continue
            if not self._may_go_on(replica):
                self._waiting[replica] = now_ms + self._backoff_ms()
                continue
            self._waiting[replica] = _BEING_JUDGED
            verdict = await self._judge(replica, now_ms)
            is_marked = self._waiting.get(replica, _BEING_JUDGED) != _BEING_JUDGED
            match verdict:
                case Due():
                    self._waiting[replica] = now_ms
                    due.append((replica, verdict))
                    figures.dirtiest_ratio = max(figures.dirtiest_ratio, verdict.ratio)
                    figures.overdue_ms = max(figures.overdue_ms, verdict.overdue_ms)
                case NotDue(at_ms, ratio):
                    figures.dirtiest_ratio = max(figures.dirtiest_ratio, ratio)
                    if is_marked:
                        continue  # a segment was sealed meanwhile
                    if at_ms is None:
                        self._waiting.pop(replica, None)
                    else:
                        self._waiting[replica] = max(at_ms, now_ms + 1)
        return [due[position] for position in dirtiest([verdict for _, verdict in due])]

    async def _judge(self, replica: Replica, now_ms: int) -> Verdict:
        partition_log, config, where = replica.log, replica.config, replica.topic_partition
        log_dir = self._broker.log_dirs.holder(where)
        if log_dir is None:
            return NotDue(None)
        segments = tuple(partition_log.segments)
        work = partial(segment_facts, segments, config)
        try:
            # Timestamps may have to be read.
            has_lag = config.min_compaction_lag_ms > 0 or config.max_compaction_lag_ms < NO_RATE
            facts = await self._broker.loop.run_in_executor(self._broker.disk_threads, work) if has_lag else work()
        except (OSError, BadBatch) as error:
            self._failed(replica, error)
            return NotDue(None)
        checkpoint = log_dir.offsets.cleaned.get(where)
        ends = partition_log.log_start_offset, partition_log.log_end_offset
        return judge(LogFacts(facts, *ends, _limit(partition_log, log_dir), checkpoint), config, now_ms)

    def _holds_still(self, replica: Replica, due: Due) -> bool:
        """Other logs were judged since: this one may have been cut and have grown again."""
        log_dir = self._broker.log_dirs.holder(replica.topic_partition)
        bases = [segment.base_offset for segment in replica.log.segments]
        return log_dir is not None and due.end in bases and due.end <= _limit(replica.log, log_dir)

    def _may_go_on(self, replica: Replica) -> bool:
        """Whether nobody else is at the log, and it is to be compacted."""
        where = replica.topic_partition
        return (
            self._is_running
            and self._broker.partitions.holds(replica)
            and replica.config.compacted
            and not replica.is_being_cut
            and not replica.is_leaving
            and replica.log.offline is None
            and replica.log.unfinished is None
            and where not in self._broker.moves.in_progress
            and where not in self.uncleanable
        )

    # -- one log -----------------------------------------------------------------------------------------------------

    async def _clean(self, replica: Replica, due: Due, threads: int) -> None:
        if not self._may_go_on(replica) or replica.cleaning is not None:
            return
        if not self._holds_still(replica, due):
            self._waiting[replica] = self._broker.clock.now_ms() + self._backoff_ms()
            return
        limits = Limits(
            memory_bytes=int(self._setting(MEMORY)) // threads,
            load_factor=min(1.0, max(_LEAST_LOAD, float(self._setting(LOAD_FACTOR)))),
            buffer_bytes=int(self._setting(BUFFER)),
            secret=self._broker.rng.randbytes(16),
        )
        clock = self._broker.clock
        started_ms = clock.monotonic_ms()
        work = compaction.begin(replica.log, due, now_ms=clock.now_ms(), limits=limits)
        cleaning = replica.cleaning = Cleaning()
        try:
            if await self._run(replica, work, cleaning):
                await self._done(replica, work, (clock.monotonic_ms() - started_ms) / 1000)
            elif replica in self._waiting:
                self._waiting[replica] = clock.now_ms() + self._backoff_ms()
        except StorageError as error:
            self._waiting.pop(replica, None)
            self._broker.partitions.storage_failed(replica, error)
        except Exception as error:
            self._failed(replica, error)
        finally:
            replica.cleaning = None
            cleaning.ended()
            self._broker.partitions.thread_ended(replica)

    async def _run(self, replica: Replica, work: Compaction, cleaning: Cleaning) -> bool:
        """Whether it came to its end."""
        loop, threads = self._broker.loop, self._broker.disk_threads
        steps, partition_log = work.steps(), replica.log
        rate = float(self._setting(RATE))
        self._quota.set_rate(NO_RATE if rate >= NO_RATE else int(rate), self._broker.clock.monotonic_ms())
        piece_bytes = _PIECE_BYTES if self._quota.rate >= NO_RATE else 1
        try:
            while True:
                size_bytes, step = await loop.run_in_executor(threads, _advance, steps, piece_bytes, cleaning)
                self._quota.passed(size_bytes, self._broker.clock.monotonic_ms())
                if cleaning.is_stopped or not self._may_go_on(replica) or replica.log is not partition_log:
                    return False
                if isinstance(step, Replacement):
                    if not compaction_swap.commit(partition_log, step):
                        return False
                    replacement = step
                    delete = partial(compaction_swap.delete_old, work.disk, replacement)
                    self._broker.delete_later(delete, replica.config.file_delete_delay_ms)
                elif not step:
                    return True
                while (pause_ms := self._quota.pause_ms(self._broker.clock.monotonic_ms())) and not cleaning.is_stopped:
                    await cleaning.pause(min(pause_ms / 1000, _LONGEST_PAUSE_S))
        finally:
            await loop.run_in_executor(threads, steps.close)

    async def _done(self, replica: Replica, work: Compaction, took_s: float) -> None:
        log_dir = self._broker.log_dirs.holder(replica.topic_partition)
        if log_dir is not None:
            log_dir.offsets.cleaned[replica.topic_partition] = work.end
        stats, figures = work.stats, self.figures
        figures.runs += 1
        figures.bytes_read += stats.bytes_read
        figures.bytes_before += stats.bytes_before
        figures.bytes_after += stats.bytes_after
        figures.records_removed += stats.records_before - stats.records_after
        figures.longest_s = max(figures.longest_s, took_s)
        figures.recopied = stats.bytes_after / stats.bytes_before if stats.bytes_before else 1.0
        figures.fullest_map = max(figures.fullest_map, stats.map_use)
        log.info(
            "log compacted",
            partition=str(replica.topic_partition),
            dirty_from=work.due.first_dirty,
            up_to=work.end,
            bytes_before=stats.bytes_before,
            bytes_after=stats.bytes_after,
            records_before=stats.records_before,
            records_after=stats.records_after,
            seconds=round(took_s, 3),
        )
        await self._broker.checkpoint()

    def _failed(self, replica: Replica, error: Exception) -> None:
        """The disk refused something, or what lies there can not be read."""
        if not self._broker.partitions.holds(replica):
            self._waiting.pop(replica, None)
            return
        where = replica.topic_partition
        # A segment that is not there was taken out by retention meanwhile.
        if isinstance(error, FileNotFoundError) or (isinstance(error, OSError) and passes(error.errno)):
            log.warning("compaction put off", partition=str(where), reason=error.strerror)
            self._waiting[replica] = self._broker.clock.now_ms() + self._backoff_ms()
            return
        self._waiting.pop(replica, None)
        self.uncleanable[where] = (replica, str(error))
        if isinstance(error, (OSError, Uncleanable, BadBatch)):
            log.error("log can not be compacted", partition=str(where), reason=str(error), advice=_ADVICE)
        else:
            log.exception("log can not be compacted", partition=str(where))
        if isinstance(error, OSError):
            self._broker.partitions.suspect_directory_of(where, StorageError.of(f"compacting {where}", error))


def _limit(partition_log: PartitionLog, log_dir: LogDir) -> int:
    """Below it everything is committed, stable and safe on the disk."""
    sealed, active = partition_log.segments[:-1], partition_log.active_segment_base
    # The flush that saves a segment's indexes can come after the one that saved its batches.
    unsaved = next((segment.base_offset for segment in sealed if not segment.indexes_saved), active)
    safe = log_dir.offsets.safe_recovery_point(partition_log.topic_partition)
    return min(partition_log.last_stable_offset, safe, unsaved)


def _advance(
    steps: Generator[int | Replacement], piece_bytes: int, cleaning: Cleaning
) -> tuple[int, Replacement | bool]:
    """In a thread: some bytes further; what is to be exchanged now, or whether there is more."""
    total = 0
    while True:
        step = next(steps, None)
        if step is None:
            return total, False
        if not isinstance(step, int):
            return total, step
        total += step
        if total >= piece_bytes or cleaning.is_stopped:
            return total, True
