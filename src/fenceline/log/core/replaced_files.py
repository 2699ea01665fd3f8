"""Many files that are replaced at once: each is complete or as before, for one wait for the disk.

Owns the order: all contents are on the disk before the first file has its name. `disk.replace_file` does the same for
one file, and waits for the disk twice for each.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from fenceline.log.core.disk import TEMPORARY_SUFFIX, Disk, write_all

if TYPE_CHECKING:
    from typing_extensions import Buffer


class ReplacedFiles:
    """Files of one directory. For a thread. All methods raise OSError."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self._written: list[tuple[str, Callable[[], bool]]] = []

    def write(self, path: str, content: Buffer, *, is_void: Callable[[], bool] = lambda: False) -> None:
        """The content that `path` will have after `install`, unless it `is_void` then."""
        temporary = path + TEMPORARY_SUFFIX
        with contextlib.suppress(FileNotFoundError):
            self._disk.unlink(temporary)
        assert os.path.dirname(path) == self._directory, f"{path} is not in {self._directory}"
        fd = self._disk.open_append(temporary)
        self._written.append((path, is_void))
        try:
            write_all(self._disk, fd, content)
        finally:
            self._disk.close(fd)

    def install(self) -> None:
        """Durable on return."""
        self._disk.sync_all(self._directory)
        while self._written:
            path, is_void = self._written[-1]
            if is_void():
                self._disk.unlink(path + TEMPORARY_SUFFIX)
            else:
                self._disk.rename(path + TEMPORARY_SUFFIX, path)
            self._written.pop()
        self._disk.fsync_dir(self._directory)

    def discard(self) -> None:
        """Remove what was written and not installed, as far as that is possible."""
        while self._written:
            path, _ = self._written.pop()
            with contextlib.suppress(OSError):
                self._disk.unlink(path + TEMPORARY_SUFFIX)
