"""Keeps bytes that are removed from a log: `lost+found` inside the partition's directory (decision 006).

Owns the names and the moves of evidence. Never reads, judges or deletes it: the losses package does. It lies inside the
partition's directory because Apache Kafka rejects a data directory with an unknown folder, but ignores folders inside a
partition.
"""

from __future__ import annotations

import contextlib
import os
from typing import Final

from fenceline.log.core.disk import Disk, write_all

EVIDENCE_DIR: Final = "lost+found"
INTENDED_SUFFIX: Final = ".intended"
"""Of the file that describes an intended cut, until there is a receipt."""
COPY_CHUNK_BYTES: Final = 1 << 20


def evidence_in(disk: Disk, directory: str) -> list[str]:
    """Names of the files there. Raises OSError."""
    try:
        return list(disk.listdir(f"{directory}/{EVIDENCE_DIR}"))
    except FileNotFoundError:
        return []


def keep_file(disk: Disk, directory: str, path: str) -> list[str]:
    """Move a complete file there; returns its new path (none for an empty file, which is removed). Raises OSError."""
    found = disk.stat(path)
    if found is None:
        return []
    if found.size_bytes == 0:
        disk.unlink(path)
        return []
    target = _place(disk, directory, os.path.basename(path))
    disk.rename(path, target)
    _sync(disk, directory)
    return [target]


def keep_link(disk: Disk, directory: str, path: str) -> list[str]:
    """Give a file a second name there; the first may then be replaced. Raises OSError."""
    target = _place(disk, directory, os.path.basename(path))
    disk.link(path, target)
    _sync(disk, directory)
    return [target]


def keep_tail(disk: Disk, directory: str, path: str, position: int) -> list[str]:
    """Copy the end of a file there; returns the copy's path. On a full disk evidence is skipped: service comes
    first."""
    try:
        target = _place(disk, directory, f"{os.path.basename(path)}.from-{position}")
        copy_range(disk, path, target, position, None)
        _sync(disk, directory)
    except OSError:
        return []
    return [target]


def copy_range(disk: Disk, source: str, target: str, start: int, end: int | None) -> None:
    """Copy bytes of one file to a new one and fsync it; the target is removed on an error. Raises OSError."""
    reader = disk.open_read(source)
    try:
        writer = disk.open_append(target)
        try:
            position = start
            while end is None or position < end:
                size = COPY_CHUNK_BYTES if end is None else min(COPY_CHUNK_BYTES, end - position)
                chunk = memoryview(disk.pread(reader, size, position))
                if not chunk:
                    break
                position += len(chunk)
                write_all(disk, writer, chunk)
            disk.fsync(writer)
        except OSError:
            with contextlib.suppress(OSError):
                disk.unlink(target)
            raise
        finally:
            disk.close(writer)
    finally:
        disk.close(reader)


def is_same(disk: Disk, one: str, other: str, size_bytes: int) -> bool:
    """Whether both files begin with the same `size_bytes`, read from both. Raises OSError."""
    readers = disk.open_read(one), disk.open_read(other)
    try:
        for position in range(0, size_bytes, COPY_CHUNK_BYTES):
            size = min(COPY_CHUNK_BYTES, size_bytes - position)
            first, second = (bytes(disk.pread(reader, size, position)) for reader in readers)
            if first != second or len(first) != size:
                return False
        return True
    finally:
        for reader in readers:
            disk.close(reader)


def _place(disk: Disk, directory: str, name: str) -> str:
    folder = f"{directory}/{EVIDENCE_DIR}"
    disk.mkdir(folder)
    existing = set(disk.listdir(folder))
    number = 0
    while f"{name}.{number}" in existing:
        number += 1
    return f"{folder}/{name}.{number}"


def _sync(disk: Disk, directory: str) -> None:
    disk.fsync_dir(f"{directory}/{EVIDENCE_DIR}")
    disk.fsync_dir(directory)
