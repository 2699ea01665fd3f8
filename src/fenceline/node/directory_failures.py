"""A data directory that fails: found out, taken out of service with all that lies in it, told to the controller.

Owns the line between one bad file and a bad directory. What the system refuses costs the partition that met it, at
once; then the directory is tried: a small file is written, synced and read back, in a thread. Where that fails, too,
the directory is offline. One with the metadata log is no business of this room on a node that is alone: its metadata
log says when it can not go on. With others, the node stops, so that they take over.

Rules: KIP-112, KIP-858; controller.md C20. Unlike Kafka a single unreadable segment does not take a disk's other
partitions out of service (docs/decisions/014-several-directories.md).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from fenceline.errors import OperatorError
from fenceline.ids import encode_uuid
from fenceline.log.errors import StorageError, is_transient
from fenceline.metadata.features import MV_DIRECTORIES
from fenceline.node.logs import Logger

if TYPE_CHECKING:
    from fenceline.log.log_dir import LogDir
    from fenceline.node.broker import Broker

log = Logger("storage")

_TRY_AGAIN_S: Final = 1.0
_ADVICE: Final = (
    "The partitions in it can not be served here; where they have other replicas in sync, those lead now. Check the"
    " disk (dmesg, smartctl), mend or replace it, then restart this node."
)


class DirectoryFailures:
    """One broker's. All methods but `suspect` belong to the loop."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._loop = asyncio.get_running_loop()
        self._tasks: dict[LogDir, asyncio.Task[None]] = {}
        self._tried_s: dict[LogDir, float] = {}
        self._ended: asyncio.Future[None] = self._loop.create_future()

    def ended(self) -> asyncio.Future[None]:
        """Raises OperatorError once this node can not go on for its directories."""
        return asyncio.shield(self._ended)

    def suspect(self, log_dir: LogDir, error: OSError | StorageError) -> None:
        """The system refused something in this directory. Any thread."""
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
        """Once a second at most: what fails with every request is known."""
        now_s = self._loop.time()
        if log_dir in self._tasks or not self._broker.log_dirs.is_online(log_dir) or self._ended.done():
            return
        if now_s - self._tried_s.get(log_dir, -_TRY_AGAIN_S) < _TRY_AGAIN_S:
            return
        self._tried_s[log_dir] = now_s
        task = self._tasks[log_dir] = asyncio.ensure_future(self._try(log_dir, reason))
        task.add_done_callback(lambda _: self._tasks.pop(log_dir, None))

    async def _try(self, log_dir: LogDir, reason: str) -> None:
        try:
            await self._loop.run_in_executor(self._broker.disk_threads, log_dir.probe)
        except OSError as error:
            if not is_transient(error.errno):
                await self._failed(log_dir, reason)

    async def _failed(self, log_dir: LogDir, reason: str) -> None:
        broker = self._broker
        if log_dir is broker.log_dirs.metadata:
            if broker.config.can_reach_others:
                self._end(
                    f"The directory of the metadata log, {log_dir.path}, has failed: {reason}",
                    "This node stops, so that others take over what it led. Check the disk (dmesg, smartctl), then"
                    " start it again.",
                )
            return
        directory_id = log_dir.directory_id
        assert directory_id is not None, "looked at when it was opened"
        broker.log_dirs.fail(log_dir, reason)
        broker.moves.directory_failed(log_dir)
        stopped = broker.partitions.directory_failed(log_dir, reason)
        log.error(
            "log directory offline",
            path=log_dir.path,
            directory_id=encode_uuid(directory_id),
            reason=reason,
            partitions_in_use=stopped,
            advice=_ADVICE,
        )
        if not len(broker.log_dirs):
            self._end(
                f"All log directories have failed: {', '.join(broker.log_dirs.offline)}",
                "Check the disks (dmesg, smartctl), then start this node again.",
            )
        elif broker.image.metadata_version < MV_DIRECTORIES:
            self._end(
                f"{log_dir.path} has failed, and below metadata.version 3.7-IV2 no controller can be told: {reason}",
                "Mend the directory or take it out of log.dirs, then start this node again."
                " `fenceline features upgrade` lets brokers go on without a directory.",
            )
        else:
            await self._tell(log_dir)

    async def _tell(self, log_dir: LogDir) -> None:
        assert log_dir.directory_id is not None, "looked at before"
        limit_ms = self._broker.config.get_int("log.dir.failure.timeout.ms")
        try:
            async with asyncio.timeout(limit_ms / 1000):
                await self._broker.lifecycle.tell_failed(log_dir.directory_id)
        except TimeoutError:
            self._end(
                f"{log_dir.path} has failed, and no controller could be told within log.dir.failure.timeout.ms"
                f" ({limit_ms} ms)",
                "Check that a majority of the controllers runs and is reached from here, then start this node again.",
            )

    def _end(self, message: str, advice: str) -> None:
        if not self._ended.done():
            self._ended.set_exception(OperatorError(message, advice))
