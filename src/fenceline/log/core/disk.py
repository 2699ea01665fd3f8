"""The interface through which all disk access goes, and its implementation for the operating system.

Owns every write, fsync, rename, unlink and mapping of the log. Never decides what to write. The simulation replaces it
(`fenceline.testing.sim_disk`) and can crash the node between any two calls (docs/how-it-works.md "Durability").

Files are plain descriptors, so that the hot path is `os.write` itself. Mappings may reach past the end of their file:
only appended bytes are ever sliced from them. No file shrinks below bytes that were sliced (truncation writes a new
file), so a slice stays valid as long as it is referenced.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import resource
import stat as stat_module
import sys
import weakref
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from typing_extensions import Buffer

PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096

MAX_OPEN_SLICES: Final = 512
"""Descriptors that slices hold until the peer has read the response."""

TEMPORARY_SUFFIX: Final = ".tmp"
"""Of a file until it is complete; a start removes what a crash leaves."""

_BEGUN_BYTES: Final = 128 << 10
"""How much of a load is requested before it is its turn."""
_PROT_READ: Final = 1
_MAP_SHARED: Final = 1
_WAIT_FOR_ALL: Final = 7
"""Of sync_file_range: SYNC_FILE_RANGE_WAIT_BEFORE, _WRITE and _WAIT_AFTER."""
_MAP_FAILED: Final = ctypes.c_void_p(-1).value
_NOT_SUPPORTED: Final = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)


class FileStat(NamedTuple):
    size_bytes: int
    modified_ms: int
    is_directory: bool


class Mapping(Protocol):
    """A readable window of a file. Slices outlive the window: the memory is released with the last slice."""

    size_bytes: int

    def slice(self, start: int, end: int) -> memoryview: ...

    def file_slice(self, file: StoredFile, start: int, end: int) -> FileSlice:
        """The same bytes for `sendfile`. `file`: the mapped one."""
        ...

    def is_resident(self, start: int, end: int) -> bool:
        """Whether these bytes can be read without waiting for the disk."""
        ...


_open_slices: Final[set[int]] = set()


class StoredFile:
    """A descriptor of its own of a stored file, for slices of it: closed with the last one. At most `MAX_OPEN_SLICES`
    exist at a time."""

    __slots__ = ("fd", "reads_ahead")

    def __init__(self, fd: int, *, to_load: bool = False) -> None:
        self.fd = -1
        self.reads_ahead = False
        """Whether the system reads ahead of who reads through it."""
        again = _open_again(fd) if to_load else None
        if again is not None:
            self.fd, self.reads_ahead = again, True
        else:
            self.fd = os.dup(fd)
        _open_slices.add(self.fd)

    @classmethod
    def of(cls, fd: int, *, to_load: bool = False) -> StoredFile | None:
        """None if there are too many, or no descriptor is left. `to_load`: bytes are read ahead from the disk."""
        if len(_open_slices) >= MAX_OPEN_SLICES:
            return None
        try:
            return cls(fd, to_load=to_load)
        except OSError:
            return None

    def __del__(self) -> None:
        if self.fd >= 0:  # else no descriptor was available
            _open_slices.discard(self.fd)
            os.close(self.fd)


class FileSlice:
    """Bytes of a file that are sent without being read into this process. Keeps the file open as long as it exists.

    `start` and `end` count from the first byte of the slice.
    """

    __slots__ = ("_file", "_mapping", "fd", "position", "size_bytes")

    def __init__(self, file: StoredFile, position: int, size_bytes: int, mapping: OsMapping | None = None) -> None:
        """`mapping`: of these bytes, if some of them may be on their way from the disk; else they are found by
        counting pages."""
        self._file = file
        self._mapping = mapping
        self.fd = file.fd
        self.position = position
        self.size_bytes = size_bytes

    def __len__(self) -> int:
        return self.size_bytes

    def is_resident(self, start: int, end: int) -> bool:
        """Whether these bytes can be sent without waiting for the disk."""
        start, end = self.position + start, self.position + end
        mapping = self._mapping
        if mapping is not None:
            return mapping.has_resident(start, end)
        return _PageCounts.has_all(self.fd, start, end)

    def begin_load(self, through: StoredFile) -> None:
        """Request the first bytes without waiting for the disk, so that the disk works for several loads at once. For a
        thread. Pages that are requested like this are single ones, which cost more than those of the system's
        readahead; without it all are requested. Raises OSError."""
        size_bytes = min(self.size_bytes, _BEGUN_BYTES) if through.reads_ahead else self.size_bytes
        os.posix_fadvise(self.fd, self.position, size_bytes, os.POSIX_FADV_WILLNEED)

    def load(self, start: int, end: int, through: StoredFile | None = None) -> None:
        """Read bytes of the slice, or behind it, into the page cache and wait for them. For a thread. `through`: the
        file to load; else nothing is read ahead. Raises OSError."""
        fd = self.fd if through is None else through.fd
        position, left = self.position + start, end - start
        # Pages are passed on, not copied: their content is never touched here.
        while left > 0 and (passed := os.sendfile(_nowhere(), fd, position, left)):
            position += passed
            left -= passed


@cache
def _nowhere() -> int:
    """A descriptor of /dev/null, opened once. Raises OSError."""
    return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)


def _open_again(fd: int) -> int | None:
    """Open the file of a descriptor once more, also if it has no name any more: with a readahead of its own, for bytes
    in sequence. The descriptors of the loop have none (`OsDisk.open_append`). None if the system has no such names."""
    try:
        again = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    with contextlib.suppress(OSError):  # then the readahead is half as long
        os.posix_fadvise(again, 0, 0, os.POSIX_FADV_SEQUENTIAL)
    return again


class Disk(Protocol):
    """All calls may raise OSError. `fd` is from `open_append` or `open_read`. Paths are absolute."""

    def open_append(self, path: str) -> int:
        """Open for reading and appending; the file is created if it is missing."""
        ...

    def open_read(self, path: str) -> int: ...
    def duplicate(self, fd: int) -> int: ...
    def close(self, fd: int) -> None: ...
    def write(self, fd: int, content: Buffer, /) -> int:
        """Append; may write less than requested. Returns the number of bytes written."""
        ...

    def pread(self, fd: int, size_bytes: int, position: int, /) -> bytes: ...
    def pread_resident(self, fd: int, size_bytes: int, position: int) -> bytes | bytearray | None:
        """As `pread`, but None if it would have to wait for the disk."""
        ...

    def stored_file(self, fd: int) -> StoredFile | None:
        """The file for `FileSlice`s of bytes in the page cache; None if that is not supported: the caller maps it."""
        ...

    def file_to_load(self, fd: int) -> StoredFile | None:
        """The file through which bytes of `FileSlice`s are read from the disk, in sequence; None if that is not
        supported."""
        ...

    def map(self, fd: int, position: int, size_bytes: int) -> Mapping | None:
        """Map from a page boundary; None if mapping is not available (the caller reads instead)."""
        ...

    def truncate(self, fd: int, size_bytes: int) -> None: ...
    def fsync(self, fd: int) -> None: ...
    def start_writeback(self, fd: int, position: int, size_bytes: int) -> None:
        """Start to write these bytes to the disk; bytes that are already there are dropped from the page cache. A
        hint."""
        ...

    def fsync_dir(self, path: str) -> None: ...
    def sync_all(self, path: str) -> None:
        """Make everything on the file system of `path` durable. An error of an earlier write-back is that of its file:
        `check_writeback`."""
        ...

    def check_writeback(self, fd: int) -> None:
        """After `sync_all`: raise OSError if a byte of this file could not be written to the disk, as `fsync` would."""
        ...

    def rename(self, source: str, target: str) -> None: ...
    def link(self, source: str, target: str) -> None:
        """Create a second name for a file."""
        ...

    def unlink(self, path: str) -> None: ...
    def listdir(self, path: str) -> Sequence[str]: ...
    def mkdir(self, path: str) -> None: ...
    def rmdir(self, path: str) -> None: ...
    def stat(self, path: str) -> FileStat | None:
        """None if there is no such file."""
        ...

    def file_limit(self) -> int:
        """How many files the process may have open, sockets included."""
        ...

    def lock(self, path: str, holder: str) -> int | None:
        """Lock a file and write into it who holds it, with the process id; None if another process holds the lock."""
        ...


class OsDisk:
    """The operating system's disk."""

    close = staticmethod(os.close)
    duplicate = staticmethod(os.dup)
    write = staticmethod(os.write)
    pread = staticmethod(os.pread)
    truncate = staticmethod(os.ftruncate)
    fsync = staticmethod(os.fsync)
    rename = staticmethod(os.rename)
    link = staticmethod(os.link)
    unlink = staticmethod(os.unlink)
    listdir = staticmethod(os.listdir)
    rmdir = staticmethod(os.rmdir)

    def __init__(self) -> None:
        self._nowait = getattr(os, "RWF_NOWAIT", 0)

    def open_append(self, path: str) -> int:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        if hasattr(os, "posix_fadvise"):
            # The loop reads through this descriptor: the kernel's readahead of megabytes would delay it.
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        return fd

    def open_read(self, path: str) -> int:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def pread_resident(self, fd: int, size_bytes: int, position: int) -> bytes | bytearray | None:
        if not self._nowait:
            return os.pread(fd, size_bytes, position)
        buffer = bytearray(size_bytes)
        try:
            got = os.preadv(fd, (buffer,), position, self._nowait)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno not in _NOT_SUPPORTED:
                raise
            self._nowait = 0  # the file system does not support it: assume from now on that it is fast
            return os.pread(fd, size_bytes, position)
        if got == size_bytes:
            return buffer
        if position + got >= os.fstat(fd).st_size:
            del buffer[got:]
            return buffer
        return None

    def stored_file(self, fd: int) -> StoredFile | None:
        return StoredFile.of(fd) if _PageCounts.are_known(fd) else None

    def file_to_load(self, fd: int) -> StoredFile | None:
        return StoredFile.of(fd, to_load=True)

    def map(self, fd: int, position: int, size_bytes: int) -> Mapping | None:
        return OsMapping.make(fd, position, size_bytes)

    def start_writeback(self, fd: int, position: int, size_bytes: int) -> None:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(fd, position, size_bytes, os.POSIX_FADV_DONTNEED)

    def fsync_dir(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def sync_all(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _succeeds(_libc().syncfs(fd), path)
        finally:
            os.close(fd)

    def check_writeback(self, fd: int) -> None:
        # Nothing is left to write, so it only reports (and does not flush the disk's cache again, as fsync does).
        _succeeds(_libc().sync_file_range(fd, ctypes.c_int64(0), ctypes.c_int64(0), _WAIT_FOR_ALL))

    def mkdir(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def stat(self, path: str) -> FileStat | None:
        try:
            found = os.stat(path)
        except FileNotFoundError:
            return None
        return FileStat(found.st_size, found.st_mtime_ns // 1_000_000, stat_module.S_ISDIR(found.st_mode))

    def file_limit(self) -> int:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return soft if soft != resource.RLIM_INFINITY else sys.maxsize

    def lock(self, path: str, holder: str) -> int | None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            # Kafka locks with fcntl (java.nio), so both kinds are locked: each program detects the other.
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            return None
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{holder}, process {os.getpid()}\n".encode(), 0)
        return fd


@cache
def _libc() -> ctypes.CDLL:
    """The C library, looked up once."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int64,
    )
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)
    return libc


def _succeeds(result: int, path: str | None = None) -> None:
    """Raise OSError if a function of the C library has failed."""
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)


class OsMapping:
    """A read-only shared mapping that may be longer than its file."""

    __slots__ = ("__weakref__", "_address", "_position", "_view", "size_bytes")

    def __init__(self, address: int, size_bytes: int, position: int) -> None:
        memory = (ctypes.c_ubyte * size_bytes).from_address(address)
        weakref.finalize(memory, OsMapping._unmap, address, size_bytes).atexit = False
        self._address = address
        self._position = position
        self._view = memoryview(memory).cast("B").toreadonly()
        self.size_bytes = size_bytes

    @staticmethod
    def _unmap(address: int, size_bytes: int) -> None:
        _libc().munmap(address, size_bytes)

    @classmethod
    def make(cls, fd: int, position: int, size_bytes: int) -> OsMapping | None:
        assert position % PAGE_BYTES == 0, "a mapping starts at a page"
        try:
            address = _libc().mmap(None, size_bytes, _PROT_READ, _MAP_SHARED, fd, position)
        except (AttributeError, OSError):
            return None
        if address is None or address == _MAP_FAILED:
            return None
        return cls(address, size_bytes, position)

    def slice(self, start: int, end: int) -> memoryview:
        return self._view[start:end]

    def file_slice(self, file: StoredFile, start: int, end: int) -> FileSlice:
        return FileSlice(file, self._position + start, end - start, self)

    def has_resident(self, start: int, end: int) -> bool:
        """As `is_resident`, by positions in the file."""
        return self.is_resident(start - self._position, end - self._position)

    def is_resident(self, start: int, end: int) -> bool:
        first = start - start % PAGE_BYTES
        # The same length for all: ctypes creates a type for each length and keeps it.
        vector = ctypes.create_string_buffer(_VECTOR_PAGES)
        for part in range(first, end, _VECTOR_PAGES * PAGE_BYTES):
            size_bytes = min(end - part, _VECTOR_PAGES * PAGE_BYTES)
            if _libc().mincore(self._address + part, size_bytes, vector) != 0:
                return False
            if vector.raw[: (size_bytes + PAGE_BYTES - 1) // PAGE_BYTES].translate(None, _RESIDENT):
                return False
        return True


class _PageRange(ctypes.Structure):
    _fields_ = (("position", ctypes.c_uint64), ("size_bytes", ctypes.c_uint64))


class _PageStates(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("cached", "dirty", "written_back", "evicted", "recently"))


class _PageCounts:
    """Counts pages in the page cache by `cachestat` (Linux 6.5), which needs no mapping. It counts pages that are being
    read from the disk as well."""

    _NUMBER: Final = 451
    """Of the system call, on all architectures."""

    @classmethod
    def _count(cls, fd: int, position: int, size_bytes: int) -> int:
        """-1 if the system does not count."""
        wanted, found = _PageRange(position, size_bytes), _PageStates()
        failed = _libc().syscall(cls._NUMBER, fd, ctypes.byref(wanted), ctypes.byref(found), 0)
        return -1 if failed else int(found.cached)

    @classmethod
    def are_known(cls, fd: int) -> bool:
        try:
            return sys.platform == "linux" and cls._count(fd, 0, PAGE_BYTES) >= 0
        except (AttributeError, OSError):
            return False

    @classmethod
    def has_all(cls, fd: int, start: int, end: int) -> bool:
        pages = (end + PAGE_BYTES - 1) // PAGE_BYTES - start // PAGE_BYTES
        return cls._count(fd, start, end - start) >= pages


_VECTOR_PAGES: Final = 2048
_RESIDENT: Final = bytes(value for value in range(256) if value & 1)


def read_file(disk: Disk, path: str) -> bytes | None:
    """The content of a small file, or None if there is none."""
    try:
        fd = disk.open_read(path)
    except FileNotFoundError:
        return None
    try:
        chunks: list[bytes] = []
        position = 0
        while chunk := disk.pread(fd, 1 << 20, position):
            chunks.append(chunk)
            position += len(chunk)
        return b"".join(chunks)
    finally:
        disk.close(fd)


def write_all(disk: Disk, fd: int, content: Buffer) -> None:
    """Append all of `content`. On OSError, part of it may be written."""
    view = memoryview(content).cast("B")
    while view:
        view = view[disk.write(fd, view) :]


def replace_file(disk: Disk, path: str, content: Buffer, *, durable: bool = True) -> None:
    """Write a temporary file, fsync, rename, fsync the directory. `path` never holds a partial file."""
    temporary = path + TEMPORARY_SUFFIX
    with contextlib.suppress(FileNotFoundError):
        disk.unlink(temporary)
    fd = disk.open_append(temporary)
    try:
        write_all(disk, fd, content)
        if durable:
            disk.fsync(fd)
    except OSError:
        with contextlib.suppress(OSError):
            disk.unlink(temporary)
        raise
    finally:
        disk.close(fd)
    disk.rename(temporary, path)
    if durable:
        disk.fsync_dir(os.path.dirname(path))
