"""The data directories of one node, opened and locked.

Owns the check that they belong to this node and to one cluster. Raises OperatorError if they do not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from random import Random
from typing import Final, NamedTuple
from uuid import UUID

from fenceline.config.node import NodeConfig
from fenceline.errors import OperatorError, PeerError
from fenceline.ids import random_id
from fenceline.log.core.disk import Disk
from fenceline.log.core.meta_properties import META_FILE
from fenceline.log.core.open_files import MAX_FILES, OpenFiles
from fenceline.log.directories.log_dir import Draws, LogDir, UnusableDirectory
from fenceline.log.directories.log_dir_offsets import (
    CLEANED,
    HIGH_WATERMARKS,
    INCARNATIONS,
    LOG_STARTS,
    RECOVERY_POINTS,
)
from fenceline.node.logs import Logger
from fenceline.node.metadata.format import format_if_new
from fenceline.node.metadata.metadata_log import DIRECTORY_NAME

log = Logger("broker")

_CONSEQUENCES: Final[Mapping[str, str]] = {
    RECOVERY_POINTS: "every log is recovered from its start, which may take a while",
    LOG_STARTS: "records that DeleteRecords deleted from the middle of a segment may become readable again",
    HIGH_WATERMARKS: "high watermarks are determined again from the logs",
    CLEANED: "compacted logs are cleaned from their start again",
    INCARNATIONS: "after an unclean shutdown the other checkpoints are ignored for all partitions, and every log is"
    " recovered from its start",
}
_MAX_LISTED: Final = 10
"""Limit of partitions listed in one log line."""
_SHARE_OF_FILES: Final = 4
"""Segments may take the fourth part of the files that the process may open; sockets need the rest."""


class Directories(NamedTuple):
    """`metadata` is one of `data` unless `metadata.log.dir` is a separate directory."""

    data: tuple[LogDir, ...]
    metadata: LogDir
    offline: Mapping[str, str]
    """By path, why one of `log.dirs` cannot be used: the node starts without it."""

    @property
    def metadata_is_apart(self) -> bool:
        return self.metadata not in self.data

    @property
    def cluster_id(self) -> str:
        return self.metadata.cluster_id

    @property
    def all(self) -> tuple[LogDir, ...]:
        return (*self.data, self.metadata) if self.metadata_is_apart else self.data


def open_directories(config: NodeConfig, disk: Disk, rng: Random) -> Directories:
    """Format new directories, lock and open them. A directory with an I/O error is left out, as in Kafka, unless it
    holds the metadata log or is the last one. Raises OperatorError."""
    paths = [str(path) for path in config.log_dirs]
    metadata_path = str(config.metadata_log_dir)
    offline = {path: reason for path in paths if path != metadata_path and (reason := _refusal(disk, path))}
    format_if_new(config, disk, unusable=offline)
    opened: dict[str, LogDir] = {}
    try:
        every = dict.fromkeys((*paths, metadata_path))
        max_files = min(MAX_FILES, max(1, disk.file_limit() // (_SHARE_OF_FILES * len(every))))
        for path in every:
            if path not in offline:
                _open(config, disk, path, opened, offline, rng, max_files)
        _check(config, disk, opened)
        if not any(path in opened for path in paths):
            raise OperatorError(
                f"No directory of log.dirs is usable: {', '.join(f'{path}: {why}' for path, why in offline.items())}",
                "Mount or repair at least one of them, then restart the node.",
            )
    except BaseException:
        for log_dir in opened.values():
            with suppress(OSError):
                log_dir.give_back()
        raise
    for path, reason in offline.items():
        log.error(
            "log directory offline",
            path=path,
            reason=reason,
            advice="The node starts without it and cannot serve its partitions. Repair the directory and restart the"
            " node, or remove it from log.dirs.",
        )
    return Directories(tuple(opened[path] for path in paths if path in opened), opened[metadata_path], offline)


def _refusal(disk: Disk, path: str) -> str | None:
    """The system's error for the directory; None if it is readable or does not exist yet."""
    try:
        found = disk.stat(path)
        if found is not None:
            disk.listdir(path)
    except OSError as error:
        return error.strerror or str(error)
    return None


def _open(
    config: NodeConfig,
    disk: Disk,
    path: str,
    opened: dict[str, LogDir],
    offline: dict[str, str],
    rng: Random,
    max_files: int,
) -> None:
    cluster_id = next((each.cluster_id for each in opened.values()), None)
    try:
        opened[path] = LogDir.open(
            path,
            disk,
            cluster_id=cluster_id,
            node_id=config.node_id,
            files=OpenFiles(disk, max_files=max_files),
            draws=draws_of(path, rng),
        )
    except UnusableDirectory as error:
        if path == str(config.metadata_log_dir):
            raise
        offline[path] = error.reason


def _check(config: NodeConfig, disk: Disk, opened: Mapping[str, LogDir]) -> None:
    seen: dict[UUID, str] = {}
    for path, log_dir in opened.items():
        for name, reason in log_dir.damaged.items():
            consequence = _CONSEQUENCES[name]
            log.warning("checkpoint file damaged and ignored", reason=reason, consequence=consequence)
        _log_rejected_entries(path, log_dir)
        if log_dir.directory_id is None:
            raise OperatorError(
                f"{path}/{META_FILE} has no directory.id.",
                "The file was written before Kafka 3.7 or is truncated. Start Apache Kafka 4 once on this directory, or"
                " restore the file from a backup.",
            )
        if log_dir.directory_id in seen:
            raise OperatorError(
                f"{seen[log_dir.directory_id]} and {path} have the same directory.id.",
                "One is a copy of the other. Remove the copy from log.dirs, or format a new directory in its place.",
            )
        seen[log_dir.directory_id] = path
        if path != str(config.metadata_log_dir) and disk.stat(f"{path}/{DIRECTORY_NAME}") is not None:
            raise OperatorError(
                f"{path} contains a metadata log, but the metadata log of this node belongs in"
                f" {config.metadata_log_dir}.",
                "Set metadata.log.dir to the directory that contains it (the default is the first of log.dirs), or move"
                " the unwanted metadata log away.",
            )


def _log_rejected_entries(path: str, log_dir: LogDir) -> None:
    """Log ignored checkpoint entries."""
    for reason in log_dir.offsets.rejected:
        log.warning(
            "checkpoint entry ignored",
            reason=reason,
            consequence="the log of this partition is recovered from its start, and keeps all its records",
            advice="No action is needed unless the file was edited: the next checkpoint replaces it.",
        )
    if log_dir.orphans:
        log.warning(
            "dropped checkpoint entries without a directory",
            path=path,
            partitions=[str(each) for each in log_dir.orphans[:_MAX_LISTED]],
            count=len(log_dir.orphans),
            advice="No action is needed if these partitions were deleted or moved just before the node was killed."
            " Otherwise their directories are missing: stop the node, restore them, and start it again.",
        )


def draws_of(path: str, rng: Random) -> Draws:
    """The randomness of one directory."""
    # Separate streams: these are drawn when replicas arrive and segments begin, which must not affect other draws.
    seed = f"{path}{rng.getstate()}"
    return Draws(partial(random_id, rng), partial(random_id, Random(seed)), Random(f"jitter {seed}").randrange)


@contextmanager
def starting(config: NodeConfig) -> Iterator[None]:
    """During a start there is no request to fail: disk errors become OperatorError."""
    try:
        yield
    except (PeerError, OSError) as error:
        reason = (error.strerror or str(error)) if isinstance(error, OSError) else error.message
        raise OperatorError(
            f"Node {config.node_id} cannot start: {reason}",
            f"Check that {config.metadata_log_dir} has free space and is writable, and that its disk is healthy."
            " Then restart the node.",
        ) from error
