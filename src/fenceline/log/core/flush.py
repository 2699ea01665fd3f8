"""A flush as an object: created on the loop, run in a thread, completed on the loop.

Owns what must be safe on the disk before a recovery point may advance, and the order: batches, then the files derived
from them (indexes and producer snapshots of sealed segments, the epoch checkpoint), then the directories. Never touches
the log while it runs: everything it needs was copied or is sealed.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from fenceline.log.core import producer_snapshots
from fenceline.log.core.disk import Disk, replace_file
from fenceline.log.core.errors import StorageError
from fenceline.log.core.replaced_files import ReplacedFiles
from fenceline.log.core.segment import Segment

TOGETHER_FROM: Final = 32
"""From so many segments on, the file system is synced as a whole: each fsync waits for a commit of its journal."""
_AT_ONCE: Final = 256
"""Sealed segments whose files are written before one wait for the disk."""


@dataclass(slots=True)
class FlushWork:
    """Call it in a thread, then `complete()` on the loop; if it raised StorageError, `fail(error)` on the loop."""

    disk: Disk
    directory: str
    up_to_offset: int
    descriptors: list[int]
    """Duplicates of those of the newest segments; the run closes them."""
    older: list[Segment]
    """The segments before them. The run opens one at a time: there may be more than the process may open."""
    sealed: list[Segment]
    snapshots: list[tuple[int, bytes]]
    files: list[tuple[str, bytes]]
    directories: list[str]
    on_complete: Callable[[FlushWork], None]
    on_failed: Callable[[FlushWork, StorageError], None]
    includes_epochs: bool = False
    includes_topic_id: bool = False
    drop_below: int | None = None
    """Producer snapshots below this offset go: they describe nothing that could be replayed. None: no look for them,
    the directory may have 100,000 files."""
    dropped_below: int | None = None
    """The same once they have gone."""
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
        self._abandoned = True  # a run in progress ends early
        with self._running:
            while self.descriptors:
                self.disk.close(self.descriptors.pop())

    def _write(self) -> None:
        try:
            self._sync_batches()
            if self._abandoned:
                return
            self.batches_safe = True
            self._save_sealed()
            for path, content in self.files:
                replace_file(self.disk, path, content)
            for directory in self.directories:
                self.disk.fsync_dir(directory)
            self._drop_old_snapshots()
        except OSError as error:
            raise StorageError.of(f"flushing up to offset {self.up_to_offset}", error) from error
        finally:
            while self.descriptors:
                self.disk.close(self.descriptors.pop())

    def _sync_batches(self) -> None:
        sync = self.disk.fsync
        if len(self.older) + len(self.descriptors) >= TOGETHER_FROM:
            self.disk.sync_all(self.directory)
            sync = self.disk.check_writeback
        for segment in self.older:
            if self._abandoned:
                return
            try:
                fd = self.disk.open_read(segment.path)
            except FileNotFoundError:
                if not segment.is_retired:
                    raise
                continue
            try:
                sync(fd)
            finally:
                self.disk.close(fd)
        while self.descriptors:
            fd = self.descriptors[-1]
            try:
                sync(fd)
            finally:
                self.descriptors.pop()
                self.disk.close(fd)

    def _save_sealed(self) -> None:
        """Index files and producer snapshots of sealed segments."""
        # Compaction may have replaced a segment whose indexes are saved: these files belong to its successor.
        sealed = [segment for segment in self.sealed if not segment.indexes_saved]
        if len(sealed) < TOGETHER_FROM:
            for segment in sealed:
                segment.save_indexes(durable=True)
            for offset, content in self.snapshots:
                replace_file(self.disk, producer_snapshots.path_of(self.directory, offset), content)
            return
        for first in range(0, max(len(sealed), len(self.snapshots)), _AT_ONCE):
            if self._abandoned:
                return
            self._save_some(sealed[first : first + _AT_ONCE], self.snapshots[first : first + _AT_ONCE])

    def _save_some(self, sealed: list[Segment], snapshots: list[tuple[int, bytes]]) -> None:
        files = ReplacedFiles(self.disk, self.directory)
        try:
            for segment in sealed:
                segment.write_indexes(partial(files.write, is_void=partial(getattr, segment, "is_retired")))
            for offset, content in snapshots:
                files.write(producer_snapshots.path_of(self.directory, offset), content)
            files.install()
        finally:
            files.discard()
        for segment in sealed:
            segment.indexes_are_saved()

    def _drop_old_snapshots(self) -> None:
        below = self.drop_below
        if below is None:
            return
        with contextlib.suppress(OSError):
            names = self.disk.listdir(self.directory)
            producer_snapshots.drop(self.disk, self.directory, names, lambda at: at < below)
            self.dropped_below = below

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
