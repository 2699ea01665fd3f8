"""Metadata snapshots: when to write one, writing it in the background, and deletion of old ones.

Owns the two limits of Kafka (bytes and time since the last snapshot), the changed ratio of KIP-630 if it is set, and
one more: after a start that replayed many records, a snapshot is written a little later, so that the next start is
quick. One snapshot at a time, in a thread, from an immutable image; a failure is logged and the snapshot retried at the
next limit.

With `metadata.snapshot.min.changed_records.ratio` set, the byte limit alone writes no snapshot: this ratio of the
newest snapshot's records must also have been deleted or modified (`metadata.changed_records`). The time limit still
writes one. Kafka has no such key (N13).

Old snapshots are deleted once a minute and after each new one: while log and snapshots exceed
`metadata.max.retention.bytes`, or the oldest is older than `metadata.max.retention.ms`. The newest always stays. Files
are deleted a minute after they were renamed, so that readers can finish. A leader keeps records that a live replica is
still fetching, and a follower keeps what its leader keeps, until the next snapshot is
`metadata.start.offset.lag.time.max.ms` old or the size exceeds twice the limit (KIP-630 "When to Increase the
LogStartOffset"; Kafka has neither the key nor the rule, N13, N22).

Rules: snapshots.md N11, N12, N14-N16, N18-N20 (the newest stays: N19), N21, N22; gaps.md G23, G30, G32. Simulations
verify by checksums that snapshots of one id are equal on all nodes (G33, `testing.simulation.checks`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import TYPE_CHECKING, Final

from fenceline.config.node import NodeConfig
from fenceline.errors import OperatorError
from fenceline.log.core.errors import StorageError
from fenceline.metadata.changed_records import ChangedRecords, RecordKey, changed_records, record_count
from fenceline.metadata.changes import Delta, difference
from fenceline.metadata.image import MetadataImage
from fenceline.node.clock import Clock
from fenceline.node.logs import Logger
from fenceline.node.metadata.batches import SnapshotBatches
from fenceline.node.metric_families import Durations
from fenceline.quorum.log_view import SnapshotId
from fenceline.quorum.quorum import Quorum

if TYPE_CHECKING:
    from fenceline.node.metadata.metadata_log import MetadataLog

log = Logger("metadata")

_REPLAYED_RECORDS: Final = 50_000
"""`docs/decisions/007-controller-of-one.md`."""
_QUIET_S: Final = 10.0
"""Delay after a node's start."""
_CLEANING_S: Final = 60.0
"""N18."""
_RATIO: Final = "metadata.snapshot.min.changed_records.ratio"
_LAG: Final = "metadata.start.offset.lag.time.max.ms"
_NO_LIMIT: Final = 1 << 62
"""Until the number of records in the newest snapshot is known."""


@dataclass(frozen=True, slots=True)
class _Written:
    record_count: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class _File:
    """A snapshot file: size in bytes, and the time of its last record, None if that cannot be read."""

    size_bytes: int
    timestamp_ms: int | None


class Snapshots:
    """Tracks committed records and writes snapshots."""

    def __init__(
        self,
        log: MetadataLog,
        config: NodeConfig,
        clock: Clock,
        executor: Executor | None,
        *,
        log_begins: Callable[[int], object] = lambda start_offset: None,
    ) -> None:
        """`log_begins` is called with the new log start after old snapshots were deleted."""
        self._log_begins = log_begins
        self._log = log
        self._clock = clock
        self._executor = executor
        self._limit_bytes = config.get_int("metadata.log.max.record.bytes.between.snapshots")
        self._interval_ms = config.get_int("metadata.log.max.snapshot.interval.ms")
        self._changed_ratio = float(str(config.get(_RATIO)))
        self._retention_bytes = config.get_int("metadata.max.retention.bytes")
        self._retention_ms = config.get_int("metadata.max.retention.ms")
        self._max_lag_ms = config.get_int(_LAG)
        self._delete_delay_s = config.get_int("internal.metadata.delete.delay.millis") / 1000
        self._bytes = 0
        self._since_ms = clock.monotonic_ms()
        self._record_count = 0
        """Records in the newest snapshot; 0 if there is none, or it is unknown."""
        self._changed: ChangedRecords | None = None
        """Changed records since the newest snapshot; None if no ratio is set."""
        self._counting: asyncio.Future[tuple[int, set[RecordKey]]] | None = None
        self._running: asyncio.Future[_Written | None] | None = None
        self._looking: asyncio.Future[dict[SnapshotId, _File]] | None = None
        self._kept: dict[SnapshotId, _File | None] = {}
        """Sizes and times of the snapshots on disk; files never change."""
        self._deleting: set[asyncio.Future[None]] = set()
        self._marked: list[tuple[asyncio.TimerHandle, Sequence[Callable[[], None]]]] = []
        self._later: asyncio.TimerHandle | None = None
        self._cleaning: asyncio.TimerHandle | None = None
        self._is_finished = False
        self._quorum: Quorum | None = None
        self.generated_count = 0
        """Number of snapshots written since the start."""
        self.failed_count = 0
        """Number of failed snapshots (G32)."""
        self.generated = Durations()
        """Time from the decision to write one until it is frozen (KIP-630 GenSnapshotLatencyMs)."""
        self.loads = Durations()
        """Time from a snapshot file to its image in force (KIP-630 LoadSnapshotLatencyMs)."""

    @property
    def counts_changes(self) -> bool:
        """Whether `count_changes` and `follow` must be called."""
        return self._changed_ratio > 0

    def count_changes(self, image: MetadataImage) -> None:
        """From now on `follow` is called with every delta that follows `image`. Its difference to the newest snapshot
        is computed in a thread: until it is known, only the time limit applies. Records that were added after the
        snapshot and changed before a restart are unknown, and count when they change next."""
        changed = self._changed = ChangedRecords(image)
        snapshot, wanted = self._log.newest_snapshot, self._log
        if snapshot.end_offset == 0:
            return
        changed.restart(_NO_LIMIT)

        def count() -> tuple[int, set[RecordKey]]:
            before = wanted.read_snapshot(snapshot).image
            return record_count(before), set(changed_records(before, image, difference(before, image)))

        def counted(done: asyncio.Future[tuple[int, set[RecordKey]]]) -> None:
            self._counting = None
            if self._changed is not changed or changed.limit != _NO_LIMIT:
                return  # another snapshot is the newest one now
            if done.exception() is not None:  # a damaged file is reported when it is served or loaded
                changed.restart(0)
                return
            records, keys = done.result()
            changed.add(keys)
            self._expect_changes_of(records)

        self._counting = asyncio.get_running_loop().run_in_executor(self._executor, count)
        self._counting.add_done_callback(counted)

    def follow(self, image: MetadataImage, delta: Delta) -> None:
        """A delta of the committed image (a listener of `MetadataLoader`)."""
        if self._changed is not None:
            self._changed.apply_delta(image, delta)

    @property
    def is_running(self) -> bool:
        """Whether a snapshot is being written."""
        return self._running is not None

    def replayed(self, log_record_count: int, current: Callable[[], MetadataImage], quorum: Quorum) -> None:
        """The node has started and replayed this many records from the log. `current` returns the committed image."""
        self._quorum = quorum
        loop = asyncio.get_running_loop()
        if log_record_count > _REPLAYED_RECORDS:
            self._later = loop.call_later(_QUIET_S, lambda: self._begin(current(), quorum))
        self._cleaning = loop.call_later(_CLEANING_S, self._clean_periodically)

    def committed(self, size_bytes: int, image: MetadataImage, quorum: Quorum) -> None:
        """`size_bytes` more of the log are committed; they end with `image`, at the end of a batch and outside of any
        metadata transaction (N14)."""
        self._bytes += size_bytes
        late = 0 < self._interval_ms <= self._clock.monotonic_ms() - self._since_ms
        if late or (self._bytes >= self._limit_bytes and self._has_changed_enough()):
            self._begin(image, quorum)

    def loaded(self, image: MetadataImage) -> None:
        """The image was replaced by a snapshot from another node: counting restarts (N14)."""
        self._bytes = 0
        self._since_ms = self._clock.monotonic_ms()
        self._record_count = 0
        if self._changed is not None:
            self._changed = ChangedRecords(image)
            self._expect_changes_of(record_count(image))

    async def finish(self) -> None:
        """Start no more snapshots, and wait for writes and deletions in progress."""
        self._is_finished = True
        for timer in (self._later, self._cleaning):
            if timer is not None:
                timer.cancel()
        for running in (self._running, self._looking, self._counting):
            if running is not None:
                await asyncio.wait([running])
        marked, self._marked = self._marked, []
        for timer, deletions in marked:
            timer.cancel()
            self._delete(deletions)
        if self._deleting:
            await asyncio.wait(self._deleting)

    # -- writing -------------------------------------------------------------------------------------------------------

    def _has_changed_enough(self) -> bool:
        """G23: records of the newest snapshot that were deleted or modified since, divided by its record count."""
        changed = self._changed
        if changed is None:
            return True
        return self._counting is None and (not self._record_count or changed.count >= changed.limit)

    def _expect_changes_of(self, records: int) -> None:
        """Record the number of records in the newest snapshot."""
        self._record_count = records
        if self._changed is not None:
            self._changed.limit = ceil(self._changed_ratio * records)

    def _begin(self, image: MetadataImage, quorum: Quorum) -> None:
        snapshot = SnapshotId(image.offset + 1, image.epoch)
        if self._running is not None or self._is_finished or snapshot in self._log.snapshots or self._log.is_changing:
            return
        try:
            timestamp = self._log.timestamp_at_end_of(image.offset, image.epoch)
        except (OSError, StorageError) as error:
            self._failed(snapshot, error)
            return
        counted = self._bytes, self._since_ms
        self._bytes, self._since_ms = 0, self._clock.monotonic_ms()
        changed = self._changed
        keys = set() if changed is None else changed.restart(_NO_LIMIT)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        kraft_version, voters = quorum.voters_before(snapshot.end_offset)
        now_ms = self._clock.now_ms()
        unflushed = self._log.unflushed_before(snapshot.end_offset)

        def write() -> _Written | None:
            timestamp_ms = timestamp()
            if timestamp_ms is None:
                return None
            batches = SnapshotBatches(
                image,
                now_ms=now_ms,
                last_log_timestamp_ms=timestamp_ms,
                kraft_version=kraft_version,
                voters=voters,
            )
            for path in unflushed:
                self._log.sync_file(path)
            size_bytes = self._log.write_snapshot(snapshot, batches)
            return _Written(batches.record_count, size_bytes)

        def written(done: asyncio.Future[_Written | None]) -> None:
            self._running = None
            if (error := done.exception()) is not None:
                self._failed(snapshot, error)
                still_newest(keys)
                return
            found = done.result()
            if found is None:  # N14, N15: not the end of a committed batch; a later image will be
                self._bytes, self._since_ms = self._bytes + counted[0], counted[1]
                still_newest(keys)
                return
            if not self._log.snapshot_written(snapshot):  # a snapshot from the leader has overtaken it
                self._delete([partial(self._log.delete_snapshot, snapshot)])
                still_newest(keys)
                return
            self.generated_count += 1
            self.generated.observe(loop.time() - began_s)
            if self._changed is changed:
                self._expect_changes_of(found.record_count)
            self._clean()

        def still_newest(keys: set[RecordKey]) -> None:
            """The previous snapshot stays the newest one."""
            if changed is not None and self._changed is changed:
                changed.add(keys)
                self._expect_changes_of(self._record_count)

        self._running = loop.run_in_executor(self._executor, write)
        self._running.add_done_callback(written)

    def _failed(self, snapshot: SnapshotId, error: BaseException) -> None:
        self.failed_count += 1
        if isinstance(error, OSError | StorageError | OperatorError):
            reason = error.strerror or str(error) if isinstance(error, OSError) else error.message
            log.warning(
                "metadata snapshot not written",
                path=self._log.path_of(snapshot),
                reason=reason,
                advice="No data is lost: the log has everything, and the snapshot will be retried. Until then starts"
                " take longer. Check that the disk has free space and is healthy.",
            )
        else:
            log.error("metadata snapshot not written", exc_info=error)

    # -- cleaning ------------------------------------------------------------------------------------------------------

    def _clean_periodically(self) -> None:
        self._cleaning = asyncio.get_running_loop().call_later(_CLEANING_S, self._clean_periodically)
        self._clean()

    def _clean(self) -> None:
        """N18. The files' sizes and times are read in a thread."""
        if self._looking is not None or self._is_finished or len(self._log.snapshots) < 2:
            return
        kept = self._kept = {each: self._kept.get(each) for each in self._log.snapshots}
        unknown = tuple(each for each, file in kept.items() if file is None)

        def look() -> dict[SnapshotId, _File]:
            sizes, timestamps = self._log.snapshot_sizes(unknown), self._log.snapshot_timestamps(unknown)
            return {each: _File(size, timestamps.get(each)) for each, size in sizes.items()}

        def files_read(done: asyncio.Future[dict[SnapshotId, _File]]) -> None:
            self._looking = None
            if (error := done.exception()) is not None:
                _log_not_deleted(str(error))
            elif not self._is_finished and not self._log.is_changing:
                kept.update(done.result())
                self._forget_oldest({each: file for each, file in kept.items() if file is not None})

        self._looking = asyncio.get_running_loop().run_in_executor(self._executor, look)
        self._looking.add_done_callback(files_read)

    def _wanted_offset(self) -> int | None:
        """G30: the lowest offset that a live replica of this leader fetches next; on a follower, its leader's log
        start."""
        quorum = self._quorum
        if quorum is None:
            return None
        slowest = quorum.slowest_fetch_offset
        return quorum.leader_log_start_offset if slowest is None else slowest

    def _forget_oldest(self, kept: Mapping[SnapshotId, _File]) -> None:
        try:
            deletions = self._log.forget_oldest(
                {each: file.size_bytes for each, file in kept.items()},
                self._retention_bytes,
                self._clock.now_ms(),
                timestamps={each: file.timestamp_ms for each, file in kept.items() if file.timestamp_ms is not None},
                max_age_ms=self._retention_ms,
                wanted_offset=self._wanted_offset(),
                max_lag_ms=self._max_lag_ms,
            )
        except StorageError as error:
            _log_not_deleted(error.message)
            return
        self._log_begins(self._log.start_offset)
        if deletions:
            timer = asyncio.get_running_loop().call_later(self._delete_delay_s, self._delete_due)
            self._marked.append((timer, deletions))

    def _delete_due(self) -> None:
        _, deletions = self._marked.pop(0)
        self._delete(deletions)

    def _delete(self, deletions: Sequence[Callable[[], None]]) -> None:
        def deleted(done: asyncio.Future[None]) -> None:
            self._deleting.discard(done)
            if (error := done.exception()) is not None:
                _log_not_deleted(str(error))

        deleting = asyncio.get_running_loop().run_in_executor(self._executor, _run_all, deletions)
        self._deleting.add(deleting)
        deleting.add_done_callback(deleted)


def _run_all(deletions: Sequence[Callable[[], None]]) -> None:
    for delete in deletions:
        delete()


def _log_not_deleted(reason: str) -> None:
    log.warning(
        "could not delete old metadata",
        reason=reason,
        advice="The node retries, at the latest at the next start. Check the disk.",
    )
