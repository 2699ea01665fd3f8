"""A disk in memory that can crash, fill up and fail: the `Disk` interface for simulation and tests.

Owns the model of what a machine may lose. Never touches the real disk. What survives a crash is drawn from the given
random source, so one seed determines one run:

- The bytes of a file are durable up to its last fsync. Of the bytes written after it, a crash keeps a prefix of any
  length (torn writes), and some 512-byte sectors of that prefix may be zeros (their pages were never written back).
- The entries of a directory are durable up to its last fsync. Of the creations, renames and removals after it, a crash
  keeps a prefix for each directory, as a journal would; a rename between two directories is kept in both or in neither.
- A truncation without a later fsync may be kept or not.

`fail` injects errors (EIO) by kind of call and path, `capacity_bytes` makes writes fail with ENOSPC when it is reached.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Final, Literal

from fenceline.log.core.disk import FileSlice, FileStat, Mapping, StoredFile

if TYPE_CHECKING:
    from typing_extensions import Buffer

SECTOR_BYTES: Final = 512
Call = Literal["open", "write", "read", "fsync", "rename", "unlink", "truncate"]


@dataclass(eq=False, slots=True)
class _File:
    content: bytearray = field(default_factory=bytearray)
    durable: bytes = b""
    durable_sizes: list[int] = field(default_factory=list)
    """Sizes after truncations since the last fsync: a crash may restore the size before any of them."""
    modified_ms: int = 0
    locked_by: int = -1


@dataclass(slots=True)
class _Change:
    """A change of directory entries that is not durable yet: (directory, name, file or None) each."""

    entries: list[tuple[str, str, _File | None]]


class SimMapping:
    """A mapping whose slices are copies, so that they never change."""

    __slots__ = ("_file", "_position", "size_bytes")

    def __init__(self, file: _File, position: int, size_bytes: int) -> None:
        self._file = file
        self._position = position
        self.size_bytes = size_bytes

    def slice(self, start: int, end: int) -> memoryview:
        assert self._position + end <= len(self._file.content), (
            "a slice past the end of the file: SIGBUS on a real disk"
        )
        return memoryview(bytes(self._file.content[self._position + start : self._position + end]))

    def file_slice(self, file: StoredFile, start: int, end: int) -> FileSlice:
        raise AssertionError("there are no stored files")

    def is_resident(self, start: int, end: int) -> bool:
        return True


class SimDisk:
    """See the module. `now_ms` gives modification times."""

    def __init__(
        self,
        seed: int = 0,
        *,
        capacity_bytes: int | None = None,
        now_ms: Callable[[], int] = lambda: 0,
        resident: Callable[[], bool] = lambda: True,
    ) -> None:
        self.rng = Random(seed)
        self.capacity_bytes = capacity_bytes
        self.resident = resident
        """Whether the next `pread_resident` finds its bytes in the page cache."""
        self._now_ms = now_ms
        self._entries: dict[str, dict[str, _File]] = {"/": {}}
        self._durable_entries: dict[str, dict[str, _File]] = {"/": {}}
        self.durable_version = 0
        """Changes when the set of durable files may have changed."""
        self._directories: set[str] = {"/"}
        self._below: dict[str, frozenset[str]] = {}
        """By directory, a cache: names of its subdirectories."""
        self._changes: list[_Change] = []
        self._descriptors: dict[int, _File] = {}
        self._next_fd = 3
        self._faults: list[tuple[Call, Callable[[str], bool], int]] = []
        self._paths: dict[int, str] = {}
        self.calls: dict[str, int] = {}
        self.power_losses = 0

    # -- faults -------------------------------------------------------------------------------------------------

    def fail(self, call: Call, suffix: str = "", number: int = errno.EIO, *, under: str = "") -> None:
        """Every such call on a path that ends in `suffix`, and is `under` this path, fails from now on, until
        `heal`."""
        self._faults.append((call, lambda path: path.endswith(suffix) and path.startswith(under), number))

    def fail_later(self, call: Call, count: int, number: int = errno.EIO) -> None:
        """Such calls fail after the next `count` of them, until `heal`."""
        last = self.calls.get(call, 0) + count
        self._faults.append((call, lambda path: self.calls[call] > last, number))

    def lose(self, directory: str) -> Callable[[], None]:
        """Every call under a directory fails with EIO, until the returned function is called."""
        kinds: tuple[Call, ...] = ("open", "write", "read", "fsync", "rename", "unlink", "truncate")

        def is_there(path: str) -> bool:
            return path == directory or path.startswith(directory + "/")

        faults: list[tuple[Call, Callable[[str], bool], int]] = [(kind, is_there, errno.EIO) for kind in kinds]
        self._faults += faults

        def restore() -> None:
            self._faults = [each for each in self._faults if each not in faults]

        return restore

    def heal(self) -> None:
        self._faults.clear()
        self.capacity_bytes = None

    def _check_faults(self, call: Call, path: str) -> None:
        self.calls[call] = self.calls.get(call, 0) + 1
        for kind, matches, number in self._faults:
            if kind == call and matches(path):
                raise OSError(number, os.strerror(number), path)

    def peek(self, path: str, start: int = 0, end: int | None = None) -> bytes | None:
        """The current content of a file for the checks, regardless of faults. None if there is no file."""
        directory, name = path.rsplit("/", 1)
        file = self._entries.get(directory or "/", {}).get(name)
        return bytes(memoryview(file.content)[start:end]) if file is not None else None

    def unsynced(self) -> list[tuple[str, int]]:
        """Files with bytes appended since their last sync: path, and where these bytes begin. Regardless of faults."""
        return [
            (f"{directory.rstrip('/')}/{name}", len(file.durable))
            for directory, names in self._entries.items()
            for name, file in names.items()
            if len(file.content) > len(file.durable) and file.content.startswith(file.durable)
        ]

    def folder(self, directory: str) -> Collection[str] | None:
        """Names of the files in a directory, regardless of faults; None if it does not exist. The same object as long
        as it is the same directory and power lasts."""
        return self._entries.get(directory)

    def folders(self) -> Sequence[str]:
        """All directories, sorted, regardless of faults."""
        return sorted(self._directories)

    def flip(self, path: str, position: int) -> None:
        """Change one byte in place, regardless of faults; the same call again restores it."""
        directory, name = path.rsplit("/", 1)
        self._entries[directory or "/"][name].content[position] ^= 0x55

    def durable(self, directory: str) -> dict[str, bytes]:
        """By name, the durable bytes of the files of a directory."""
        return {name: self.durable_content(directory, name) for name in self.durable_names(directory)}

    def durable_names(self, directory: str) -> Iterable[str]:
        """The durable files of a directory."""
        return self._durable_entries.get(directory, {})

    def durable_content(self, directory: str, name: str) -> bytes:
        """The durable bytes of one of them."""
        file = self._durable_entries[directory][name]
        return file.durable[: min(file.durable_sizes)] if file.durable_sizes else file.durable

    def crash(self) -> None:
        """Power off and on: descriptors are invalid, unsynced data is kept or lost by chance."""
        self.power_losses += 1
        for descriptor in self._descriptors.values():
            descriptor.locked_by = -1
        self._descriptors.clear()
        self._paths.clear()
        entries = {directory: dict(names) for directory, names in self._durable_entries.items()}
        stopped: set[str] = set()
        for change in self._changes:
            involved = {directory for directory, _, _ in change.entries}
            if involved & stopped or self.rng.random() < 0.3:
                stopped |= involved
                continue
            _apply(entries, change)
        self._entries = {directory: dict(entries.get(directory, {})) for directory in sorted(self._directories)}
        self._durable_entries = {directory: dict(names) for directory, names in self._entries.items()}
        self.durable_version += 1
        self._changes.clear()
        seen: set[int] = set()
        for names in self._entries.values():
            for file in names.values():
                if id(file) not in seen:
                    seen.add(id(file))
                    self._lose(file)

    def _lose(self, file: _File) -> None:
        durable, now = file.durable, file.content
        floor = min([len(durable), len(now), *file.durable_sizes])
        if bytes(now[:floor]) != durable[:floor]:
            floor = 0
        if len(durable) > len(now) and self.rng.random() < 0.5:
            file.content = bytearray(durable)  # the truncation was lost
        else:
            kept = bytearray(now[: self.rng.randint(floor, len(now))] if len(now) > floor else now)
            for start in range(floor - floor % SECTOR_BYTES, len(kept), SECTOR_BYTES):
                if self.rng.random() < 0.05:
                    low, high = max(start, floor), min(start + SECTOR_BYTES, len(kept))
                    kept[low:high] = bytes(high - low)
            file.content = kept
        file.durable = bytes(file.content)
        file.durable_sizes.clear()

    # -- files --------------------------------------------------------------------------------------------------

    def open_append(self, path: str) -> int:
        self._check_faults("open", path)
        directory, name = self._split(path)
        file = self._entries[directory].get(name)
        if file is None:
            file = _File(modified_ms=self._now_ms())
            self._change([(directory, name, file)])
        return self._descriptor(file, path)

    def open_read(self, path: str) -> int:
        self._check_faults("open", path)
        return self._descriptor(self._file(path), path)

    def duplicate(self, fd: int) -> int:
        return self._descriptor(self._descriptors[fd], self._paths[fd])

    def close(self, fd: int) -> None:
        file = self._descriptors.pop(fd, None)
        if file is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        self._paths.pop(fd)
        if file.locked_by == fd:
            file.locked_by = -1

    def write(self, fd: int, content: Buffer, /) -> int:
        file, path = self._descriptors[fd], self._paths[fd]
        self._check_faults("write", path)
        piece = bytes(content)
        if self.capacity_bytes is not None:
            room = self.capacity_bytes - self.used_bytes
            if room <= 0 and piece:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
            piece = piece[:room]
        file.content += piece
        file.modified_ms = self._now_ms()
        return len(piece)

    @property
    def used_bytes(self) -> int:
        files = {id(file): file for names in self._entries.values() for file in names.values()}
        return sum(len(file.content) for file in files.values())

    def pread(self, fd: int, size_bytes: int, position: int, /) -> bytes:
        self._check_faults("read", self._paths[fd])
        return bytes(memoryview(self._descriptors[fd].content)[position : position + size_bytes])

    def pread_resident(self, fd: int, size_bytes: int, position: int) -> bytes | bytearray | None:
        if not self.resident():
            return None
        return self.pread(fd, size_bytes, position)

    def stored_file(self, fd: int) -> None:
        return None

    def file_to_load(self, fd: int) -> None:
        return None

    def map(self, fd: int, position: int, size_bytes: int) -> Mapping | None:
        return SimMapping(self._descriptors[fd], position, size_bytes) if self.resident() else None

    def truncate(self, fd: int, size_bytes: int) -> None:
        self._check_faults("truncate", self._paths[fd])
        file = self._descriptors[fd]
        del file.content[size_bytes:]
        file.durable_sizes.append(size_bytes)

    def fsync(self, fd: int) -> None:
        self._check_faults("fsync", self._paths[fd])
        file = self._descriptors[fd]
        file.durable = bytes(file.content)
        file.durable_sizes.clear()

    # -- directories --------------------------------------------------------------------------------------------

    def start_writeback(self, fd: int, position: int, size_bytes: int) -> None:
        """Nothing is safer for it."""

    def fsync_dir(self, path: str) -> None:
        self._check_faults("fsync", path)
        directory = path.rstrip("/") or "/"
        # A journal is one sequence: all changes before the last one of this directory are durable with it.
        last = max(
            (
                at
                for at, change in enumerate(self._changes)
                if any(where == directory for where, _, _ in change.entries)
            ),
            default=-1,
        )
        self.durable_version += 1
        for change in self._changes[: last + 1]:
            _apply(self._durable_entries, change)
        del self._changes[: last + 1]

    def sync_all(self, path: str) -> None:
        self._check_faults("fsync", path)
        self.durable_version += 1
        for change in self._changes:
            _apply(self._durable_entries, change)
        self._changes.clear()
        for names in self._entries.values():
            for file in names.values():
                file.durable = bytes(file.content)
                file.durable_sizes.clear()

    def file_limit(self) -> int:
        return sys.maxsize

    def check_writeback(self, fd: int) -> None:
        self._check_faults("fsync", self._paths[fd])

    def rename(self, source: str, target: str) -> None:
        self._check_faults("rename", source)
        if source in self._directories:
            self._rename_directory(source, target)
            return
        file = self._file(source)
        source_directory, source_name = self._split(source)
        target_directory, target_name = self._split(target)
        self._change([(source_directory, source_name, None), (target_directory, target_name, file)])

    def _rename_directory(self, source: str, target: str) -> None:
        """Kept by every crash: what a lost rename of a directory does is covered by the one before it."""
        self.durable_version += 1
        self._below.clear()
        for directory in sorted(self._directories):
            if directory == source or directory.startswith(source + "/"):
                moved = target + directory[len(source) :]
                self._directories.add(moved)
                self._directories.discard(directory)
                self._entries[moved] = self._entries.pop(directory)
                self._durable_entries[moved] = self._durable_entries.pop(directory, {})
                for change in self._changes:
                    change.entries = [(moved if d == directory else d, n, f) for d, n, f in change.entries]

    def link(self, source: str, target: str) -> None:
        file = self._file(source)
        directory, name = self._split(target)
        if name in self._entries[directory]:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)
        self._change([(directory, name, file)])

    def unlink(self, path: str) -> None:
        self._check_faults("unlink", path)
        self._file(path)
        directory, name = self._split(path)
        self._change([(directory, name, None)])

    def listdir(self, path: str) -> Sequence[str]:
        directory = path.rstrip("/") or "/"
        if directory not in self._directories:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        below = self._below.get(directory)
        if below is None:
            prefix = directory.rstrip("/") + "/"
            below = self._below[directory] = frozenset(
                d[len(prefix) :].split("/")[0] for d in self._directories if d.startswith(prefix) and d != "/"
            )
        return sorted({*self._entries[directory], *below})

    def mkdir(self, path: str) -> None:
        """Directories are durable at once; only the names of files in them can be lost."""
        parts = path.strip("/").split("/")
        self._below.clear()
        for depth in range(1, len(parts) + 1):
            directory = "/" + "/".join(parts[:depth])
            self._directories.add(directory)
            self._entries.setdefault(directory, {})
            self._durable_entries.setdefault(directory, {})

    def rmdir(self, path: str) -> None:
        if self.listdir(path):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
        self._directories.discard(path)
        self._below.clear()
        self.durable_version += 1
        self._entries.pop(path, None)
        self._durable_entries.pop(path, None)

    def stat(self, path: str) -> FileStat | None:
        if path in self._directories:
            return FileStat(0, 0, True)
        directory, name = path.rsplit("/", 1)
        file = self._entries.get(directory or "/", {}).get(name)
        return FileStat(len(file.content), file.modified_ms, False) if file is not None else None

    def lock(self, path: str, holder: str) -> int | None:
        fd = self.open_append(path)
        file = self._descriptors[fd]
        if file.locked_by >= 0:
            self.close(fd)
            return None
        file.locked_by = fd
        # A fixed process id: sizes of files are part of what a seed replays.
        file.content[:] = f"{holder}, process 10000\n".encode()
        return fd

    # -- inside -------------------------------------------------------------------------------------------------

    def _split(self, path: str) -> tuple[str, str]:
        directory, name = path.rsplit("/", 1)
        directory = directory or "/"
        if directory not in self._directories:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return directory, name

    def _file(self, path: str) -> _File:
        directory, name = self._split(path)
        file = self._entries[directory].get(name)
        if file is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return file

    def _descriptor(self, file: _File, path: str) -> int:
        fd = self._next_fd
        self._next_fd += 1
        self._descriptors[fd] = file
        self._paths[fd] = path
        return fd

    @property
    def open_descriptors(self) -> int:
        return len(self._descriptors)

    def _change(self, entries: list[tuple[str, str, _File | None]]) -> None:
        change = _Change(entries)
        _apply(self._entries, change)
        self._changes.append(change)


def _apply(entries: dict[str, dict[str, _File]], change: _Change) -> None:
    for directory, name, file in change.entries:
        names = entries.setdefault(directory, {})
        if file is None:
            names.pop(name, None)
        else:
            names[name] = file
