"""Failures of data directories: detection, taking the directory offline, reporting it to the controller.

Owns the distinction between one bad file and a failed directory. An I/O error takes its partition offline at once; then
the directory is probed: a small file is written, synced and read back, in a thread. If that fails too, the directory
goes offline. On a node that is the only voter, the metadata log's directory is not handled here: the metadata log
itself stops the node. With other voters, the node stops, so that they take over.

Rules: KIP-112, KIP-858; controller.md C20. Unlike Kafka a single unreadable segment does not take a disk's other
partitions out of service (docs/decisions/014-several-directories.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Final

from fenceline.errors import OperatorError
from fenceline.ids import encode_uuid
from fenceline.log.core.errors import StorageError, is_transient
from fenceline.metadata.features import MV_DIRECTORIES
from fenceline.node.logs import Logger

if TYPE_CHECKING:
    from uuid import UUID

    from fenceline.config.node import NodeConfig
    from fenceline.log.directories.log_dir import LogDir
    from fenceline.log.directories.log_dirs import LogDirs
    from fenceline.metadata.image import MetadataImage
    from fenceline.node.signal import Signal

log = Logger("storage")

_TRY_AGAIN_S: Final = 1.0
_ADVICE: Final = (
    "This node cannot serve the partitions in it; other in-sync replicas take over leadership. Check the disk (dmesg,"
    " smartctl), repair or replace it, then restart this node."
)


class DirectoryFailures:
    """The failed directories of one broker. Event loop only, except `suspect`."""

    def __init__(
        self,
        config: NodeConfig,
        log_dirs: LogDirs,
        image: Callable[[], MetadataImage],
        executor: Executor,
        suspected: Signal[LogDir, OSError | StorageError],
        *,
        stop_replicas: Callable[[LogDir, str], int],
        report: Callable[[UUID], Awaitable[None]],
    ) -> None:
        """`suspected`: an I/O error occurred in a directory; any thread. `stop_replicas` is called when a directory has
        failed, and returns how many replicas in it were in use. `report` returns once the controller knows."""
        self._can_reach_others = config.can_reach_others
        self._report_limit_ms = config.get_int("log.dir.failure.timeout.ms")
        self._log_dirs = log_dirs
        self._image = image
        self._executor = executor
        self._stop_replicas = stop_replicas
        self._report_failed = report
        self._loop = asyncio.get_running_loop()
        self._tasks: dict[LogDir, asyncio.Task[None]] = {}
        self._tried_s: dict[LogDir, float] = {}
        self._ended: asyncio.Future[None] = self._loop.create_future()
        suspected.listen(self.suspect)

    def ended(self) -> asyncio.Future[None]:
        """Raises OperatorError once this node cannot continue because of its directories."""
        return asyncio.shield(self._ended)

    def suspect(self, log_dir: LogDir, error: OSError | StorageError) -> None:
        """An I/O error occurred in this directory. Any thread."""
        if error.errno and not is_transient(error.errno):
            reason = error.message if isinstance(error, StorageError) else error.strerror or str(error)
            self._loop.call_soon_threadsafe(self._suspect, log_dir, reason)

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._ended.cancel()

    def _suspect(self, log_dir: LogDir, reason: str) -> None:
        """Once a second at most: a failed directory may fail every request."""
        now_s = self._loop.time()
        if log_dir in self._tasks or not self._log_dirs.is_online(log_dir) or self._ended.done():
            return
        if now_s - self._tried_s.get(log_dir, -_TRY_AGAIN_S) < _TRY_AGAIN_S:
            return
        self._tried_s[log_dir] = now_s
        task = self._tasks[log_dir] = asyncio.ensure_future(self._probe(log_dir, reason))
        task.add_done_callback(lambda _: self._tasks.pop(log_dir, None))

    async def _probe(self, log_dir: LogDir, reason: str) -> None:
        try:
            await self._loop.run_in_executor(self._executor, log_dir.probe)
        except OSError as error:
            if not is_transient(error.errno):
                await self._failed(log_dir, reason)

    async def _failed(self, log_dir: LogDir, reason: str) -> None:
        if log_dir is self._log_dirs.metadata:
            if self._can_reach_others:
                self._end(
                    f"The directory of the metadata log, {log_dir.path}, has failed: {reason}",
                    "This node stops, so that others take over its leadership. Check the disk (dmesg, smartctl), then"
                    " restart the node.",
                )
            return
        directory_id = log_dir.directory_id
        assert directory_id is not None, "checked when it was opened"
        self._log_dirs.fail(log_dir, reason)
        stopped = self._stop_replicas(log_dir, reason)
        log.error(
            "log directory offline",
            path=log_dir.path,
            directory_id=encode_uuid(directory_id),
            reason=reason,
            partitions_in_use=stopped,
            advice=_ADVICE,
        )
        if not len(self._log_dirs):
            self._end(
                f"All log directories have failed: {', '.join(self._log_dirs.offline)}",
                "Check the disks (dmesg, smartctl), then restart this node.",
            )
        elif self._image().metadata_version < MV_DIRECTORIES:
            self._end(
                f"{log_dir.path} has failed, which cannot be reported below metadata.version 3.7-IV2: {reason}",
                "Repair the directory or remove it from log.dirs, then restart this node."
                " After `fenceline features upgrade` brokers can continue without a failed directory.",
            )
        else:
            await self._report(log_dir)

    async def _report(self, log_dir: LogDir) -> None:
        assert log_dir.directory_id is not None, "checked before"
        limit_ms = self._report_limit_ms
        try:
            async with asyncio.timeout(limit_ms / 1000):
                await self._report_failed(log_dir.directory_id)
        except TimeoutError:
            self._end(
                f"{log_dir.path} has failed, which could not be reported to a controller within"
                f" log.dir.failure.timeout.ms ({limit_ms} ms).",
                "Check that a majority of the controllers is running and reachable from here, then restart this node.",
            )

    def _end(self, message: str, advice: str) -> None:
        if not self._ended.done():
            self._ended.set_exception(OperatorError(message, advice))
