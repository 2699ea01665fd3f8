"""A disk that is full, fails, is slow, or loses the end of a write with the power.

Owns the faults of one process's disk. What is already written stays, except for a torn write: the page cache survives
the process, so that a test sees the files as a power failure would have left them only where it asks for it.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from fenceline.log.core.disk import FileStat, OsDisk
from fenceline.testing.lab.fault_state import DiskFault

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from fenceline.log.core.disk import Mapping


class FaultyDisk(OsDisk):
    """`tore` is called before the process dies of a torn write, with the path and the bytes that were written."""

    def __init__(self, tore: Callable[[str, int], None] = lambda path, size_bytes: None) -> None:
        super().__init__()
        self.fault = DiskFault()
        self._left_bytes = -1
        self._tore = tore
        self._paths: dict[int, str] = {}
        """Of the open descriptors."""

    def set(self, fault: DiskFault) -> None:
        """Replace the faults."""
        self._left_bytes = fault.torn_after_bytes
        self.fault = fault

    # --- writes ---------------------------------------------------------------------------------------------------

    def write(self, fd: int, content: Buffer, /) -> int:
        fault = self.fault
        if fault.slower_s:
            time.sleep(fault.slower_s)
        if fault.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if fault.fails_writes:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if self._left_bytes >= 0 and fault.path in self._paths.get(fd, ""):
            return self._write_until_torn(fd, memoryview(content).cast("B"))
        return os.write(fd, content)

    def _write_until_torn(self, fd: int, content: memoryview) -> int:
        if len(content) <= self._left_bytes:
            self._left_bytes -= len(content)
            return os.write(fd, content)
        written = os.write(fd, content[: self._left_bytes]) if self._left_bytes else 0
        self._tore(self._paths.get(fd, ""), written)
        os.kill(os.getpid(), signal.SIGKILL)
        return written

    def truncate(self, fd: int, size_bytes: int) -> None:
        self._refuse_change()
        os.ftruncate(fd, size_bytes)

    def fsync(self, fd: int) -> None:  # type: ignore[override]
        if self.fault.slower_s:
            time.sleep(self.fault.slower_s)
        self._refuse_change()
        os.fsync(fd)

    def fsync_dir(self, path: str) -> None:
        self._refuse_change()
        super().fsync_dir(path)

    def sync_all(self, path: str) -> None:
        self._refuse_change()
        super().sync_all(path)

    def check_writeback(self, fd: int) -> None:
        self._refuse_change()
        super().check_writeback(fd)

    def rename(self, source: str, target: str) -> None:  # type: ignore[override]
        self._refuse_change()
        os.rename(source, target)

    def link(self, source: str, target: str) -> None:  # type: ignore[override]
        self._refuse_change()
        os.link(source, target)

    def unlink(self, path: str) -> None:  # type: ignore[override]
        self._refuse_change()
        os.unlink(path)

    def mkdir(self, path: str) -> None:
        self._refuse_growth()
        super().mkdir(path)

    def rmdir(self, path: str) -> None:  # type: ignore[override]
        self._refuse_change()
        os.rmdir(path)

    # --- descriptors ----------------------------------------------------------------------------------------------

    def open_append(self, path: str) -> int:
        if not os.path.exists(path):
            self._refuse_growth()
        self._refuse_change()
        fd = super().open_append(path)
        self._paths[fd] = path
        return fd

    def duplicate(self, fd: int) -> int:
        same = os.dup(fd)
        if fd in self._paths:
            self._paths[same] = self._paths[fd]
        return same

    def close(self, fd: int) -> None:
        self._paths.pop(fd, None)
        os.close(fd)

    # --- reads ----------------------------------------------------------------------------------------------------

    def open_read(self, path: str) -> int:
        self._refuse_read()
        return super().open_read(path)

    def pread(self, fd: int, size_bytes: int, position: int, /) -> bytes:
        self._refuse_read()
        return os.pread(fd, size_bytes, position)

    def pread_resident(self, fd: int, size_bytes: int, position: int) -> bytes | bytearray | None:
        self._refuse_read()
        return super().pread_resident(fd, size_bytes, position)

    def stored_file(self, fd: int) -> None:
        return None  # every read must pass here

    def file_to_load(self, fd: int) -> None:
        return None  # so cold records are copies of 64 KiB

    def map(self, fd: int, position: int, size_bytes: int) -> Mapping | None:
        self._refuse_read()
        return super().map(fd, position, size_bytes)

    def stat(self, path: str) -> FileStat | None:
        self._refuse_read()
        return super().stat(path)

    # --- inside ---------------------------------------------------------------------------------------------------

    def _refuse_growth(self) -> None:
        if self.fault.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._refuse_change()

    def _refuse_change(self) -> None:
        if self.fault.fails_writes:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def _refuse_read(self) -> None:
        if self.fault.fails_reads:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
