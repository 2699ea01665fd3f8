"""Downloads of snapshots by a simulated node: the partial file, its pieces, and the moment it becomes a snapshot.

Owns the one download under way. Files are written in jobs; what comes of a download that was dropped meanwhile is told
to nobody.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from fenceline.errors import OperatorError
from fenceline.log.disk import Disk, write_all
from fenceline.node.clock import Clock
from fenceline.node.metadata_log import MetadataLog
from fenceline.quorum.duties import BeginDownload, DropDownload, Duty, VerifyAndFreeze, WritePiece
from fenceline.quorum.log_view import SnapshotId
from fenceline.quorum.quorum import Quorum
from fenceline.testing.simulation.checks import image_of_snapshot

Call = Callable[[Quorum], list[Duty]]
Job = Callable[[Callable[[], object], Callable[[BaseException | None], None]], None]
"""(work for a thread, what to do with its error or None)."""


class Downloads:
    """See the module."""

    def __init__(
        self, disk: Disk, log: Callable[[], MetadataLog], job: Job, clock: Clock, call: Callable[[Call], None]
    ) -> None:
        self._disk = disk
        self._log = log
        self._job = job
        self._clock = clock
        self._call = call
        self._current: tuple[SnapshotId, str] | None = None

    def perform(self, duty: BeginDownload | WritePiece | VerifyAndFreeze | DropDownload) -> None:
        snapshot_id = duty.snapshot_id
        now_ms = self._clock.monotonic_ms
        if isinstance(duty, BeginDownload):
            name = f"{snapshot_id.end_offset:020d}-{snapshot_id.epoch:010d}-{duty.source}.checkpoint.part"
            path = f"{self._log().directory}/{name}"
            self._current = (snapshot_id, path)
            with suppress(FileNotFoundError):
                self._disk.unlink(path)
            self._call(lambda quorum: quorum.download_begun(now_ms(), snapshot_id, 0))
            return
        current = self._current
        if current is None or current[0] != snapshot_id:
            return
        path = current[1]
        if isinstance(duty, DropDownload):
            self._current = None
            return

        def done(error: BaseException | None) -> None:
            if self._current is not current:
                return
            if error is not None:
                reason = str(error)
                self._call(lambda quorum: quorum.download_failed(now_ms(), snapshot_id, reason))
            elif isinstance(duty, WritePiece):
                end = duty.position + len(duty.content)
                self._call(lambda quorum: quorum.piece_written(now_ms(), snapshot_id, end))
            else:
                self._current = None
                if snapshot_id not in self._log().snapshots:
                    self._log().snapshot_written(snapshot_id)
                self._call(lambda quorum: quorum.snapshot_frozen(now_ms(), snapshot_id))

        def work() -> None:
            fd = self._disk.open_append(path)
            try:
                if isinstance(duty, WritePiece):
                    write_all(self._disk, fd, duty.content)  # type: ignore[arg-type]
                    return
                content = self._disk.pread(fd, 1 << 30, 0)
                if len(content) != duty.size:
                    raise OperatorError(f"{len(content)} bytes instead of {duty.size}")
                image_of_snapshot(content, snapshot_id.end_offset, snapshot_id.epoch)
                self._disk.fsync(fd)
            finally:
                self._disk.close(fd)
            if self._current is current:
                self._disk.rename(path, f"{self._log().directory}/{snapshot_id.file_name}")
                self._disk.fsync_dir(self._log().directory)

        self._job(work, done)
