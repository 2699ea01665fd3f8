"""A flush as an object: created on the loop, run in a thread, completed on the loop.

Owns what must be safe on the disk before a recovery point may advance, and the order: batches, then the files derived
from them (indexes and producer snapshots of sealed segments, the epoch checkpoint), then the directories. Never touches
the log while it runs: everything it needs was copied or is sealed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from fenceline.log.core.disk import Disk, replace_file
from fenceline.log.core.errors import StorageError
from fenceline.log.core.segment import Segment


@dataclass(slots=True)
class FlushWork:
    """Call it in a thread, then `complete()` on the loop; if it raised StorageError, `fail(error)` on the loop."""

    disk: Disk
    up_to_offset: int
    descriptors: list[int]
    """Duplicates; the run closes them."""
    sealed: list[Segment]
    snapshots: list[tuple[int, bytes]]
    files: list[tuple[str, bytes]]
    directories: list[str]
    on_complete: Callable[[FlushWork], None]
    on_failed: Callable[[FlushWork, StorageError], None]
    includes_epochs: bool = False
    includes_topic_id: bool = False
    batches_safe: bool = False
    """Whether every batch is on the disk; the other files can be rebuilt from them."""
    _finished: bool = field(default=False)
    _abandoned: bool = field(default=False)
    _running: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self) -> None:
        """Blocks until everything is on the disk. Raises StorageError; the caller must then call `fail`."""
        with self._running:
            if not self._abandoned:
                self._write()

    def abandon(self) -> None:
        """The log takes the work back (truncation or close): waits for a run in progress, prevents a later one."""
        with self._running:
            self._abandoned = True
            while self.descriptors:
                self.disk.close(self.descriptors.pop())

    def _write(self) -> None:
        try:
            while self.descriptors:
                fd = self.descriptors[-1]
                try:
                    self.disk.fsync(fd)
                finally:
                    self.descriptors.pop()
                    self.disk.close(fd)
            self.batches_safe = True
            for segment in self.sealed:
                # Compaction may have replaced a segment whose indexes are saved: these files belong to its successor.
                if not segment.indexes_saved:
                    segment.save_indexes(durable=True)
            for path, content in self.files:
                replace_file(self.disk, path, content)
            for directory in self.directories:
                self.disk.fsync_dir(directory)
        except OSError as error:
            raise StorageError.of(f"flushing up to offset {self.up_to_offset}", error) from error
        finally:
            while self.descriptors:
                self.disk.close(self.descriptors.pop())

    def complete(self) -> None:
        """The recovery point advances to `up_to_offset`."""
        assert not self._finished, "a flush completes once"
        self._finished = True
        if not self._abandoned:
            self.on_complete(self)

    def fail(self, error: StorageError) -> None:
        """The log goes offline: after a failed fsync the content of the disk is unknown."""
        assert not self._finished, "a flush completes once"
        self._finished = True
        if not self._abandoned:
            self.on_failed(self, error)

    def run(self) -> None:
        """Run and complete it at once (blocks). Raises StorageError."""
        try:
            self()
        except StorageError as error:
            self.fail(error)
            raise
        self.complete()
