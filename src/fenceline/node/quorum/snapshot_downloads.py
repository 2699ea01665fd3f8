"""Downloads of metadata snapshots from the leader: one at a time, file work in a thread, in order.

Owns the quorum's download duties, and the content of a verified file: the image that is loaded next. Results of a
download that was dropped meanwhile are not reported.

Rules: snapshots.md N33-N36; gaps.md G24, G29.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

from fenceline.errors import OperatorError
from fenceline.log.core.disk import Disk
from fenceline.node.metadata import snapshot_files
from fenceline.node.metadata.metadata_log import MetadataLog
from fenceline.node.metadata.replay import Replayed
from fenceline.quorum.duties import BeginDownload, DropDownload, Duty, VerifyAndFreeze, WritePiece
from fenceline.quorum.log_view import SnapshotId
from fenceline.quorum.quorum import Quorum

Call = Callable[[Callable[[Quorum, int], list[Duty]]], None]
"""Calls the quorum with the current time."""


class SnapshotDownloads:
    """See the module."""

    def __init__(self, disk: Disk, log: MetadataLog, executor: Executor | None, call: Call) -> None:
        self._disk = disk
        self._log = log
        self._executor = executor
        self._call = call
        self._current: tuple[SnapshotId, int] | None = None
        self._work: asyncio.Future[Any] | None = None
        self._found: tuple[SnapshotId, Replayed] | None = None
        self.whole_at_s = 0.0
        """When the last piece of the newest file arrived, by the loop's clock."""

    def perform(self, duty: BeginDownload | WritePiece | VerifyAndFreeze | DropDownload) -> None:
        """Never raises: failures are reported to the quorum."""
        snapshot_id, disk, directory = duty.snapshot_id, self._disk, self._log.directory
        match duty:
            case BeginDownload(_, source):
                self._current = (snapshot_id, source)
                self._enqueue(
                    lambda: snapshot_files.begin_download(disk, directory, snapshot_id, source),
                    lambda position: self._call(lambda quorum, now: quorum.download_begun(now, snapshot_id, position)),
                )
            case WritePiece(_, position, content) if self._current is not None:
                source, end = self._current[1], position + len(content)
                self._enqueue(
                    lambda: snapshot_files.write_piece(disk, directory, snapshot_id, source, content),  # type: ignore[arg-type]
                    lambda _: self._call(lambda quorum, now: quorum.piece_written(now, snapshot_id, end)),
                )
            case VerifyAndFreeze(_, size_bytes) if self._current is not None:
                source = self._current[1]
                self.whole_at_s = asyncio.get_running_loop().time()

                def freeze() -> Replayed:
                    snapshot_files.finish_download(disk, directory, snapshot_id, source, size_bytes)
                    return self._log.read_snapshot(snapshot_id)

                self._enqueue(freeze, lambda replayed: self._frozen(snapshot_id, replayed))
            case DropDownload() if self._current is not None and self._current[0] == snapshot_id:
                source = self._current[1]
                self._current = None
                self._enqueue(
                    lambda: snapshot_files.drop_download(disk, directory, snapshot_id, source), lambda _: None
                )
            case _:
                pass

    def verified_content(self, snapshot_id: SnapshotId) -> Replayed | None:
        """The content of the last verified file, if it is this snapshot; returned once."""
        found, self._found = self._found, None
        return found[1] if found is not None and found[0] == snapshot_id else None

    async def finish(self) -> None:
        """Wait for file work in progress."""
        self._current = None
        while self._work is not None:
            await asyncio.wait([self._work])

    def _frozen(self, snapshot_id: SnapshotId, replayed: Replayed) -> None:
        self._current = None
        self._found = (snapshot_id, replayed)
        if snapshot_id not in self._log.snapshots:
            self._log.snapshot_written(snapshot_id)
        self._call(lambda quorum, now: quorum.snapshot_frozen(now, snapshot_id))

    def _enqueue(self, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """Serialized: no two threads use the file of a download."""
        before, current = self._work, self._current

        def ended(done: asyncio.Future[Any]) -> None:
            if self._work is running:
                self._work = None
            error = done.exception()
            if self._current is not current or current is None:
                return
            if error is None:
                then(done.result())
                return
            snapshot_id = current[0]
            self._current = None
            reason = error.message if isinstance(error, OperatorError) else str(error)
            self._call(lambda quorum, now: quorum.download_failed(now, snapshot_id, reason))

        async def run() -> Any:
            if before is not None:
                await asyncio.wait([before])
            return await asyncio.get_running_loop().run_in_executor(self._executor, work)

        running = asyncio.ensure_future(run())
        self._work = running
        running.add_done_callback(ended)
