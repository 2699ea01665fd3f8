"""When to write a snapshot of the image, and writing it beside the running node.

Owns the two limits of Kafka (bytes since the last one, time since the last one) and one of its own: after a start that
had to replay many records, one is written a little later, so that the next start is quick. One snapshot at a time, in a
thread, from an immutable image; a failed one is told to the operator and tried again at the next limit. The oldest go
when log and snapshots outgrow `metadata.max.retention.bytes`.

Rules: snapshots.md N11, N12, N14-N16, N18.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Final

from fenceline.config.node import NodeConfig
from fenceline.log.errors import StorageError
from fenceline.metadata.image import MetadataImage
from fenceline.node.clock import Clock
from fenceline.node.logs import Logger
from fenceline.node.metadata_batches import image_batches
from fenceline.quorum.log_view import SnapshotId
from fenceline.quorum.quorum import Quorum

if TYPE_CHECKING:
    from fenceline.node.metadata_log import MetadataLog

log = Logger("metadata")

_REPLAYED_RECORDS: Final = 50_000
"""`docs/decisions/007-controller-of-one.md`."""
_QUIET_S: Final = 10.0
"""How long a node is left alone after its start."""


class Snapshots:
    """Watches what is committed and writes snapshots of it."""

    def __init__(self, log: MetadataLog, config: NodeConfig, clock: Clock, executor: Executor | None) -> None:
        self._log = log
        self._clock = clock
        self._executor = executor
        self._limit_bytes = config.get_int("metadata.log.max.record.bytes.between.snapshots")
        self._interval_ms = config.get_int("metadata.log.max.snapshot.interval.ms")
        self._retention_bytes = config.get_int("metadata.max.retention.bytes")
        self._bytes = 0
        self._since_ms = clock.monotonic_ms()
        self._running: asyncio.Future[dict[SnapshotId, int]] | None = None
        self._deleting: asyncio.Future[None] | None = None
        self._later: asyncio.TimerHandle | None = None

    def replayed(self, log_record_count: int, current: Callable[[], MetadataImage], quorum: Quorum) -> None:
        """The node has started and had to read this many records from the log. `current` gives the committed image."""
        if log_record_count > _REPLAYED_RECORDS:
            loop = asyncio.get_running_loop()
            self._later = loop.call_later(_QUIET_S, lambda: self._begin(current(), quorum))

    def committed(self, size_bytes: int, image: MetadataImage, quorum: Quorum) -> None:
        """`size_bytes` more of the log are committed; they end with `image`, at the end of a batch."""
        self._bytes += size_bytes
        late = 0 < self._interval_ms <= self._clock.monotonic_ms() - self._since_ms
        if self._bytes >= self._limit_bytes or late:
            self._begin(image, quorum)

    async def finish(self) -> None:
        """Begin no other, wait for the one that is being written and for what is being deleted."""
        if self._later is not None:
            self._later.cancel()
        if self._running is not None:
            await asyncio.wait([self._running])
        if self._deleting is not None:
            await asyncio.wait([self._deleting])

    def _begin(self, image: MetadataImage, quorum: Quorum) -> None:
        snapshot = SnapshotId(image.offset + 1, image.epoch)
        if self._running is not None or snapshot in self._log.snapshots:
            return
        self._bytes = 0
        self._since_ms = self._clock.monotonic_ms()
        now_ms = self._clock.now_ms()
        kraft_version, voters = quorum.kraft_version, quorum.voters

        kept = [*self._log.snapshots, snapshot]

        def write() -> dict[SnapshotId, int]:
            batches = image_batches(
                image, now_ms=now_ms, last_log_timestamp_ms=now_ms, kraft_version=kraft_version, voters=voters
            )
            self._log.write_snapshot(snapshot, batches)
            return self._log.snapshot_sizes(kept)

        def written(done: asyncio.Future[dict[SnapshotId, int]]) -> None:
            self._running = None
            error = done.exception()
            if error is None:
                self._log.snapshot_written(snapshot)
                self._forget_oldest(done.result(), now_ms)
            elif isinstance(error, OSError):
                log.warning(
                    "metadata snapshot not written",
                    path=f"{self._log.directory}/{snapshot.file_name}",
                    reason=error.strerror or str(error),
                    advice="Nothing is lost: the log holds everything, and it is tried again. Starts take longer until"
                    " then. Check that the disk has room and is healthy.",
                )
            else:
                log.error("metadata snapshot not written", exc_info=error)

        self._running = asyncio.get_running_loop().run_in_executor(self._executor, write)
        self._running.add_done_callback(written)

    def _forget_oldest(self, sizes: dict[SnapshotId, int], now_ms: int) -> None:
        """`sizes` of all snapshots, in bytes."""

        def told(done: asyncio.Future[None]) -> None:
            self._deleting = None
            if (error := done.exception()) is not None:
                log.warning("old metadata not deleted", reason=str(error), advice="Its files may be deleted by hand.")

        try:
            deletions = self._log.forget_oldest(sizes, self._retention_bytes, now_ms)
        except StorageError as error:
            log.warning("old metadata not deleted", reason=error.message, advice="It is tried again. Check the disk.")
            return
        if deletions:
            self._deleting = asyncio.get_running_loop().run_in_executor(self._executor, _do_all, deletions)
            self._deleting.add_done_callback(told)


def _do_all(deletions: Sequence[Callable[[], None]]) -> None:
    for delete in deletions:
        delete()
