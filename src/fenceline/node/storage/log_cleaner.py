"""Compacts the logs of a broker in the background (`cleanup.policy=compact`).

Owns when a log is checked, how many compactions run at once and at what rate, and the handling of errors. What to
compact is decided by `log.compaction.plan`, how by `log.compaction.compaction`.

A log is checked when one of its segments has been sealed, when it is opened, or when its settings change, and again as
long as part of it is not ready: not committed, not flushed, or not old enough. Idle logs cost nothing; if no log is
waiting there is no timer. Compaction runs in disk threads, piece by piece; between two pieces it stops if the log is to
be truncated, moved or deleted, and pauses if the rate limit is reached.

A log that cannot be compacted is left alone from then on, and an error is logged; all other logs are compacted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Container, Generator, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from fenceline.config.effective import effective_broker_config
from fenceline.log.compaction import compaction
from fenceline.log.compaction import swap as compaction_swap
from fenceline.log.compaction.compaction import Compaction, Limits, Uncleanable, segment_facts
from fenceline.log.compaction.plan import Due, LogFacts, NotDue, Verdict, dirtiest, judge
from fenceline.log.compaction.swap import Replacement
from fenceline.log.core.errors import StorageError, is_transient
from fenceline.log.core.scan import BadBatch
from fenceline.node.logs import Logger
from fenceline.node.metric_families import counters, gauges
from fenceline.node.replication.replica import Cleaning
from fenceline.replica.throttle import NO_RATE, ReplicationQuota

if TYPE_CHECKING:
    from random import Random

    from fenceline.config.node import NodeConfig
    from fenceline.ids import TopicPartition
    from fenceline.log.directories.log_dir import LogDir
    from fenceline.log.directories.log_dirs import LogDirs
    from fenceline.log.partition.partition_log import PartitionLog
    from fenceline.metadata.image import MetadataImage
    from fenceline.node.clock import Clock
    from fenceline.node.replication.open_replicas import OpenReplicas
    from fenceline.node.replication.replica import Replica

log = Logger("log cleaner")

ENABLE: Final = "log.cleaner.enable"
THREADS: Final = "log.cleaner.threads"
RATE: Final = "log.cleaner.io.max.bytes.per.second"
MEMORY: Final = "log.cleaner.dedupe.buffer.size"
LOAD_FACTOR: Final = "log.cleaner.io.buffer.load.factor"
BUFFER: Final = "log.cleaner.io.buffer.size"
BACKOFF: Final = "log.cleaner.backoff.ms"

_PIECE_BYTES: Final = 4 << 20
"""Bytes compacted per call of a thread if there is no rate limit."""
_LONGEST_PAUSE_S: Final = 1.0
_LEAST_LOAD: Final = 0.01
_BEING_JUDGED: Final = -1
"""Marks a waiting log that is being judged, in place of its time."""
_ADVICE: Final = (
    "The log is still served, but not compacted, so it grows. If it is damaged, restore the partition from another"
    " replica (delete its directory while the node is down). Then restart the node to retry."
)


@dataclass(slots=True)
class CleanerStats:
    """Statistics of all compactions since the start."""

    runs: int = 0
    bytes_read: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    records_removed: int = 0
    longest_s: float = 0.0
    recopied: float = 0.0
    """Bytes after over bytes before, in the last compaction."""
    fullest_map: float = 0.0
    dirtiest_ratio: float = 0.0
    """As of the last check."""
    overdue_ms: int = 0
    """Of the log most overdue by `max.compaction.lag.ms`, as of the last check."""


class LogCleaner:
    """The log cleaner of one broker. All methods run on the event loop."""

    def __init__(
        self,
        config: NodeConfig,
        in_service: OpenReplicas,
        log_dirs: LogDirs,
        image: Callable[[], MetadataImage],
        *,
        clock: Clock,
        rng: Random,
        executor: Executor,
        moving: Container[TopicPartition],
        checkpoint: Callable[[], Awaitable[None]],
        delete_later: Callable[[Callable[[], None], int], None],
        suspect_directory_of: Callable[[TopicPartition, StorageError], None],
    ) -> None:
        """`moving`: replicas that move to another directory; their logs are not compacted. `checkpoint` writes the
        offset checkpoints; raises StorageError. `delete_later` deletes files in a thread, after a delay in
        milliseconds. `suspect_directory_of` is called for disk errors of a partition."""
        self._config = config
        self._in_service = in_service
        self._log_dirs = log_dirs
        self._image = image
        self._clock = clock
        self._rng = rng
        self._executor = executor
        self._moving = moving
        self._checkpoint = checkpoint
        self._delete_later = delete_later
        self._suspect_directory_of = suspect_directory_of
        self._waiting: dict[Replica, int] = {}
        """Logs that may have something to compact, and when to check them."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ms = 0
        self._pass: asyncio.Task[None] | None = None
        self._quota = ReplicationQuota()
        self._is_running = False
        self.uncleanable: dict[TopicPartition, tuple[Replica, str]] = {}
        """Logs that could not be compacted, and the reason."""
        self.stats = CleanerStats()
        in_service.dirty.listen(self.mark)

    def start(self) -> None:
        """Start checking logs, including those that were opened before."""
        self._is_running = self._config.get_bool(ENABLE)
        if self._waiting:
            self._schedule(self._clock.now_ms() + self._backoff_ms())

    async def close(self) -> None:
        """Stop; compactions in progress end at their next piece."""
        self._is_running = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for replica in self._in_service:
            if replica.cleaning is not None:
                replica.cleaning.ask_to_stop()
        if self._pass is not None:
            await asyncio.gather(self._pass, return_exceptions=True)

    def mark(self, replica: Replica) -> None:
        """The log may have something to compact."""
        if replica.config.compacted and len(replica.log.segments) > 1:
            self._waiting[replica] = 0
            if self._is_running:
                self._schedule(self._clock.now_ms() + self._backoff_ms())

    # -- when --------------------------------------------------------------------------------------------------------

    def _setting(self, name: str) -> str:
        text = effective_broker_config(self._image().configs, self._config, name)
        assert text is not None, f"{name} has a default"
        return text

    def _backoff_ms(self) -> int:
        return int(self._setting(BACKOFF))

    def _schedule(self, at_ms: int) -> None:
        """Start a pass at this time; an earlier time that was set stays."""
        if self._pass is not None or (self._timer is not None and self._timer_at_ms <= at_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at_ms = at_ms
        delay_s = max(0, at_ms - self._clock.now_ms()) / 1000
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
            # Our bug; the next pass may well succeed.
            log.exception("log cleaner pass failed")
        finally:
            self._pass = None
            if self._is_running and self._waiting:
                now_ms = self._clock.now_ms()
                self._schedule(max(now_ms + self._backoff_ms(), min(self._waiting.values())))

    async def _judge_all(self) -> list[tuple[Replica, Due]]:
        """The logs that are due, the dirtiest first; the others get a time for their next check."""
        now_ms = self._clock.now_ms()
        self.uncleanable = {
            where: (replica, reason)
            for where, (replica, reason) in self.uncleanable.items()
            if self._in_service.holds(replica)
        }
        due: list[tuple[Replica, Due]] = []
        totals = self.stats
        totals.dirtiest_ratio, totals.overdue_ms = 0.0, 0
        for replica in [each for each, at_ms in self._waiting.items() if at_ms <= now_ms]:
            held = self._in_service.holds(replica)
            if not held or not replica.config.compacted or replica.topic_partition in self.uncleanable:
                self._waiting.pop(replica, None)
                continue
            if not self._may_continue(replica):
                self._waiting[replica] = now_ms + self._backoff_ms()
                continue
            self._waiting[replica] = _BEING_JUDGED
            verdict = await self._judge(replica, now_ms)
            is_marked = self._waiting.get(replica, _BEING_JUDGED) != _BEING_JUDGED
            match verdict:
                case Due():
                    self._waiting[replica] = now_ms
                    due.append((replica, verdict))
                    totals.dirtiest_ratio = max(totals.dirtiest_ratio, verdict.ratio)
                    totals.overdue_ms = max(totals.overdue_ms, verdict.overdue_ms)
                case NotDue(at_ms, ratio):
                    totals.dirtiest_ratio = max(totals.dirtiest_ratio, ratio)
                    if is_marked:
                        continue  # a segment has been sealed meanwhile
                    if at_ms is None:
                        self._waiting.pop(replica, None)
                    else:
                        self._waiting[replica] = max(at_ms, now_ms + 1)
        return [due[position] for position in dirtiest([verdict for _, verdict in due])]

    async def _judge(self, replica: Replica, now_ms: int) -> Verdict:
        partition_log, config, where = replica.log, replica.config, replica.topic_partition
        log_dir = self._log_dirs.holder(where)
        if log_dir is None:
            return NotDue(None)
        segments = tuple(partition_log.segments)
        work = partial(segment_facts, segments, config)
        try:
            # Reading timestamps may need the disk.
            has_lag = config.min_compaction_lag_ms > 0 or config.max_compaction_lag_ms < NO_RATE
            facts = await asyncio.get_running_loop().run_in_executor(self._executor, work) if has_lag else work()
        except (OSError, BadBatch) as error:
            self._failed(replica, error)
            return NotDue(None)
        checkpoint = log_dir.offsets.cleaned.get(where)
        ends = partition_log.log_start_offset, partition_log.log_end_offset
        return judge(LogFacts(facts, *ends, _limit(partition_log, log_dir), checkpoint), config, now_ms)

    def _is_unchanged(self, replica: Replica, due: Due) -> bool:
        """Whether the log is still as it was judged: it may have been truncated and have grown again."""
        log_dir = self._log_dirs.holder(replica.topic_partition)
        bases = [segment.base_offset for segment in replica.log.segments]
        return log_dir is not None and due.end in bases and due.end <= _limit(replica.log, log_dir)

    def _may_continue(self, replica: Replica) -> bool:
        """Whether the log is to be compacted and no other operation uses it."""
        where = replica.topic_partition
        return (
            self._is_running
            and self._in_service.holds(replica)
            and replica.config.compacted
            and not replica.is_being_cut
            and not replica.is_leaving
            and replica.log.offline is None
            and replica.log.unfinished is None
            and where not in self._moving
            and where not in self.uncleanable
        )

    # -- one log -----------------------------------------------------------------------------------------------------

    async def _clean(self, replica: Replica, due: Due, threads: int) -> None:
        if not self._may_continue(replica) or replica.cleaning is not None:
            return
        if not self._is_unchanged(replica, due):
            self._waiting[replica] = self._clock.now_ms() + self._backoff_ms()
            return
        limits = Limits(
            memory_bytes=int(self._setting(MEMORY)) // threads,
            load_factor=min(1.0, max(_LEAST_LOAD, float(self._setting(LOAD_FACTOR)))),
            buffer_bytes=int(self._setting(BUFFER)),
            secret=self._rng.randbytes(16),
        )
        clock = self._clock
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
            self._in_service.storage_failed(replica, error)
        except Exception as error:
            self._failed(replica, error)
        finally:
            replica.cleaning = None
            cleaning.ended()
            self._in_service.thread_ended(replica)

    async def _run(self, replica: Replica, work: Compaction, cleaning: Cleaning) -> bool:
        """Whether the compaction was completed."""
        loop, threads = asyncio.get_running_loop(), self._executor
        steps, partition_log = work.steps(), replica.log
        rate = float(self._setting(RATE))
        self._quota.set_rate(NO_RATE if rate >= NO_RATE else int(rate), self._clock.monotonic_ms())
        piece_bytes = _PIECE_BYTES if self._quota.rate >= NO_RATE else 1
        try:
            while True:
                size_bytes, step = await loop.run_in_executor(threads, _advance, steps, piece_bytes, cleaning)
                self._quota.passed(size_bytes, self._clock.monotonic_ms())
                if cleaning.is_stopped or not self._may_continue(replica) or replica.log is not partition_log:
                    return False
                if isinstance(step, Replacement):
                    if not compaction_swap.commit(partition_log, step):
                        return False
                    replacement = step
                    delete = partial(compaction_swap.delete_old, work.disk, replacement)
                    self._delete_later(delete, replica.config.file_delete_delay_ms)
                elif not step:
                    return True
                while (pause_ms := self._quota.pause_ms(self._clock.monotonic_ms())) and not cleaning.is_stopped:
                    await cleaning.pause(min(pause_ms / 1000, _LONGEST_PAUSE_S))
        finally:
            await loop.run_in_executor(threads, steps.close)

    async def _done(self, replica: Replica, work: Compaction, took_s: float) -> None:
        log_dir = self._log_dirs.holder(replica.topic_partition)
        if log_dir is not None:
            log_dir.offsets.cleaned[replica.topic_partition] = work.end
        stats, totals = work.stats, self.stats
        totals.runs += 1
        totals.bytes_read += stats.bytes_read
        totals.bytes_before += stats.bytes_before
        totals.bytes_after += stats.bytes_after
        totals.records_removed += stats.records_before - stats.records_after
        totals.longest_s = max(totals.longest_s, took_s)
        totals.recopied = stats.bytes_after / stats.bytes_before if stats.bytes_before else 1.0
        totals.fullest_map = max(totals.fullest_map, stats.map_use)
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
        await self._checkpoint()

    def _failed(self, replica: Replica, error: Exception) -> None:
        """A disk operation failed, or the log cannot be read."""
        if not self._in_service.holds(replica):
            self._waiting.pop(replica, None)
            return
        where = replica.topic_partition
        # A missing segment has been deleted by retention.
        if isinstance(error, FileNotFoundError) or (isinstance(error, OSError) and is_transient(error.errno)):
            log.warning("compaction postponed", partition=str(where), reason=error.strerror)
            self._waiting[replica] = self._clock.now_ms() + self._backoff_ms()
            return
        self._waiting.pop(replica, None)
        self.uncleanable[where] = (replica, str(error))
        if isinstance(error, (OSError, Uncleanable, BadBatch)):
            log.error("log cannot be compacted", partition=str(where), reason=str(error), advice=_ADVICE)
        else:
            log.exception("log cannot be compacted", partition=str(where))
        if isinstance(error, OSError):
            self._suspect_directory_of(where, StorageError.of(f"compacting {where}", error))


class CleanerCollector:
    """Yields the metrics of compaction to prometheus-client. Runs in the scraper's thread, and changes nothing."""

    def __init__(self, cleaner: LogCleaner) -> None:
        self._cleaner = cleaner

    def collect(self) -> Iterator[Any]:
        totals = self._cleaner.stats
        uncleanable = [replica for replica, _ in tuple(self._cleaner.uncleanable.values())]
        stuck_bytes = sum(segment.size_bytes for replica in uncleanable for segment in tuple(replica.log.segments)[:-1])
        yield from counters(
            ("fenceline_cleaner_runs", "Compactions of a log", totals.runs),
            ("fenceline_cleaner_read_bytes", "Bytes that compaction has read, in both passes", totals.bytes_read),
            (
                "fenceline_cleaner_removed_bytes",
                "Bytes that compaction has freed",
                max(0, totals.bytes_before - totals.bytes_after),
            ),
            ("fenceline_cleaner_removed_records", "Records that compaction has removed", totals.records_removed),
        )
        yield from gauges(
            ("fenceline_cleaner_max_dirty_percent", "Percent of the dirtiest log", 100 * totals.dirtiest_ratio),
            ("fenceline_cleaner_overdue_seconds", "Most behind max.compaction.lag.ms", totals.overdue_ms / 1000),
            ("fenceline_cleaner_max_clean_seconds", "Duration of the longest compaction", totals.longest_s),
            ("fenceline_cleaner_recopy_percent", "Bytes kept by the last compaction", 100 * totals.recopied),
            ("fenceline_cleaner_max_buffer_percent", "Highest use of the memory for keys", 100 * totals.fullest_map),
            ("fenceline_cleaner_uncleanable_partitions", "Partitions with a failed compaction", len(uncleanable)),
            ("fenceline_cleaner_uncleanable_bytes", "Bytes of their sealed segments", stuck_bytes),
        )


def _limit(partition_log: PartitionLog, log_dir: LogDir) -> int:
    """The offset below which everything is committed, stable and flushed."""
    sealed, active = partition_log.segments[:-1], partition_log.active_segment_base
    # A segment's indexes may be flushed later than its batches.
    unsaved = next((segment.base_offset for segment in sealed if not segment.indexes_saved), active)
    safe = log_dir.offsets.safe_recovery_point(partition_log.topic_partition)
    return min(partition_log.last_stable_offset, safe, unsaved)


def _advance(
    steps: Generator[int | Replacement], piece_bytes: int, cleaning: Cleaning
) -> tuple[int, Replacement | bool]:
    """In a thread: compact some bytes. Returns their number and a replacement to commit, or whether there is more."""
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
