"""The disk as one process sees it: the `Disk` given to a simulated node.

Owns what belongs to one process: its descriptors, its end, and faults between two calls. The files belong to the
`SimDisk` and outlive the process. After the end every call unwinds the caller with `ProcessEnded`, so that nothing of
an ended process reaches the disk.

A planned crash happens at the n-th call that changes something: before it, after it, or in the middle of a write; or in
the next write to a log of one directory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING
from zlib import crc32

from fenceline.log.core.disk import FileStat, Mapping
from fenceline.testing.sim_disk import SimDisk
from fenceline.testing.simulation.scheduler import ProcessEnded

if TYPE_CHECKING:
    from typing_extensions import Buffer


def _ignore(path: str) -> None:
    pass


class LifeDisk:
    """See the module. `log_event` receives each change of the disk, `end_process` ends the process, with or without a
    power failure."""

    def __init__(
        self, disk: SimDisk, rng: Random, *, log_event: Callable[[str], None], end_process: Callable[[], None]
    ) -> None:
        self._disk = disk
        self._rng = rng
        self._log_event = log_event
        self._end_process = end_process
        self._descriptors: dict[int, str] = {}
        self._calls_until_crash = -1
        self._torn_directory = ""
        """The next write to a log in this directory is torn."""
        self.has_ended = False
        self.flip_chance = 0.0
        """Chance that a read returns one wrong bit."""
        self.flips = 0
        self.changes = 0
        """Calls that changed something."""
        self.on_create: Callable[[str], None] = _ignore
        """Called with the path of a file that is about to be created."""
        self.on_rename: Callable[[str], None] = _ignore
        """Called with the new name of a file that is about to be renamed."""
        self.on_read: Callable[[str], None] = _ignore
        """Called with the path of a file that is about to be opened."""

    def crash_after(self, changes: int) -> None:
        """The process ends at the n-th call from now that changes something."""
        self._calls_until_crash = changes

    def crash_in_append(self, directory: str) -> None:
        """The process ends in the middle of the next write to a log in this directory."""
        self._torn_directory = directory

    def cancel_crash(self) -> None:
        """Cancel planned crashes."""
        self._calls_until_crash = -1
        self._torn_directory = ""

    def end(self) -> None:
        """The process has ended: its files are closed, written data stays."""
        if self.has_ended:
            return
        self.has_ended = True
        for fd in self._descriptors:
            self._disk.close(fd)
        self._descriptors.clear()

    def forget(self) -> None:
        """The machine lost power, and the descriptors are invalid."""
        self.has_ended = True
        self._descriptors.clear()

    # -- calls that change something -----------------------------------------------------------------------------------

    def _crash(self) -> None:
        self._log_event("the process ends at this call")
        self._end_process()
        raise ProcessEnded

    def _begin(self, what: str, path: str) -> bool:
        """Whether the process must end after this call."""
        if self.has_ended:
            raise ProcessEnded
        self.changes += 1
        self._log_event(f"{what} {path}")
        if self._calls_until_crash < 0:
            return False
        self._calls_until_crash -= 1
        if self._calls_until_crash >= 0:
            return False
        if self._rng.random() < 0.5:
            self._crash()
        return True

    def open_append(self, path: str) -> int:
        crashes = False
        if self._disk.stat(path) is None:
            self.on_create(path)
            crashes = self._begin("create", path)
        self._check()
        fd = self._disk.open_append(path)
        self._descriptors[fd] = path
        if crashes:
            self._crash()
        return fd

    def write(self, fd: int, content: Buffer, /) -> int:
        self._check()
        piece = bytes(content)
        path = self._descriptors[fd]
        tears = self._torn_directory and path.endswith(".log") and path.startswith(f"{self._torn_directory}/")
        if self._begin(f"write {len(piece)} {crc32(piece):08x}", path) or tears:
            self._disk.write(fd, piece[: self._rng.randint(0, len(piece))])
            self._crash()
        return self._disk.write(fd, piece)

    def truncate(self, fd: int, size_bytes: int) -> None:
        self._check()
        crashes = self._begin(f"truncate {size_bytes}", self._descriptors[fd])
        self._disk.truncate(fd, size_bytes)
        if crashes:
            self._crash()

    def fsync(self, fd: int) -> None:
        self._check()
        crashes = self._begin("fsync", self._descriptors[fd])
        self._disk.fsync(fd)
        if crashes:
            self._crash()

    def start_writeback(self, fd: int, position: int, size_bytes: int) -> None:
        self._check()

    def fsync_dir(self, path: str) -> None:
        crashes = self._begin("fsync", path)
        self._disk.fsync_dir(path)
        if crashes:
            self._crash()

    def sync_all(self, path: str) -> None:
        crashes = self._begin("sync", path)
        self._disk.sync_all(path)
        if crashes:
            self._crash()

    def file_limit(self) -> int:
        return self._disk.file_limit()

    def check_writeback(self, fd: int) -> None:
        self._check()
        self._disk.check_writeback(fd)

    def rename(self, source: str, target: str) -> None:
        self.on_rename(target)
        crashes = self._begin("rename", f"{source} {target}")
        self._disk.rename(source, target)
        if crashes:
            self._crash()

    def link(self, source: str, target: str) -> None:
        crashes = self._begin("link", f"{source} {target}")
        self._disk.link(source, target)
        if crashes:
            self._crash()

    def unlink(self, path: str) -> None:
        self._check()
        if self._disk.stat(path) is None:
            self._disk.unlink(path)  # raises FileNotFoundError
        crashes = self._begin("unlink", path)
        self._disk.unlink(path)
        if crashes:
            self._crash()

    def mkdir(self, path: str) -> None:
        crashes = self._begin("mkdir", path)
        self._disk.mkdir(path)
        if crashes:
            self._crash()

    def rmdir(self, path: str) -> None:
        crashes = self._begin("rmdir", path)
        self._disk.rmdir(path)
        if crashes:
            self._crash()

    # -- calls that only read ------------------------------------------------------------------------------------------

    def _check(self) -> None:
        if self.has_ended:
            raise ProcessEnded

    def _flipped(self, content: bytes) -> bytes:
        if not self.flip_chance or not content or self._rng.random() >= self.flip_chance:
            return content
        self.flips += 1
        position = self._rng.randrange(len(content))
        self._log_event(f"a read gives a wrong bit at {position} of {len(content)}")
        wrong = bytearray(content)
        wrong[position] ^= 1 << self._rng.randrange(8)
        return bytes(wrong)

    def open_read(self, path: str) -> int:
        self._check()
        self.on_read(path)
        fd = self._disk.open_read(path)
        self._descriptors[fd] = path
        return fd

    def duplicate(self, fd: int) -> int:
        self._check()
        copy = self._disk.duplicate(fd)
        self._descriptors[copy] = self._descriptors[fd]
        return copy

    def close(self, fd: int) -> None:
        """Calls after the end, for example by finalizers, do nothing."""
        if not self.has_ended:
            self._disk.close(fd)
            del self._descriptors[fd]

    def pread(self, fd: int, size_bytes: int, position: int, /) -> bytes:
        self._check()
        return self._flipped(self._disk.pread(fd, size_bytes, position))

    def pread_resident(self, fd: int, size_bytes: int, position: int) -> bytes | bytearray | None:
        self._check()
        found = self._disk.pread_resident(fd, size_bytes, position)
        return None if found is None else self._flipped(bytes(found))

    def stored_file(self, fd: int) -> None:
        return None

    def file_to_load(self, fd: int) -> None:
        return None

    def map(self, fd: int, position: int, size_bytes: int) -> Mapping | None:
        self._check()
        return None if self.flip_chance else self._disk.map(fd, position, size_bytes)

    def listdir(self, path: str) -> Sequence[str]:
        self._check()
        return self._disk.listdir(path)

    def stat(self, path: str) -> FileStat | None:
        self._check()
        return self._disk.stat(path)

    def lock(self, path: str, holder: str) -> int | None:
        self._check()
        fd = self._disk.lock(path, holder)
        if fd is not None:
            self._descriptors[fd] = path
        return fd
