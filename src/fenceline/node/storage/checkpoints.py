"""Writes the offset checkpoints of this node's data directories.

Owns the order: one checkpoint at a time, each directory in a disk thread. A failure in one directory does not keep the
others from being written. What they contain is `log.directories.log_dir_offsets`'s.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from fenceline.log.core.errors import StorageError

if TYPE_CHECKING:
    from fenceline.log.directories.log_dir import LogDir
    from fenceline.log.directories.log_dirs import LogDirs


_AT_ONCE: Final = 1_000
"""Logs that are looked at in one iteration of the event loop: a millisecond."""


async def _last_of(steps: Iterator[Callable[[], None] | None]) -> Callable[[], None]:
    """The last of `steps`, which are taken in turns."""
    for number, step in enumerate(steps, 1):
        if step is not None:
            return step
        if number % _AT_ONCE == 0:
            await asyncio.sleep(0)
    raise AssertionError("the last step is work")


class Checkpoints:
    """`suspect` is called for a directory whose checkpoints could not be written."""

    def __init__(
        self, log_dirs: LogDirs, executor: Executor, suspect: Callable[[LogDir, OSError | StorageError], None]
    ) -> None:
        self._log_dirs = log_dirs
        self._executor = executor
        self._suspect = suspect
        self._writing = asyncio.Lock()

    async def write(self) -> None:
        """Write the checkpoints that have changed. Raises StorageError."""
        failure: StorageError | None = None
        async with self._writing:
            for log_dir in self._log_dirs:
                try:
                    work = await _last_of(log_dir.checkpoint_steps())
                    await asyncio.get_running_loop().run_in_executor(self._executor, work)
                except StorageError as error:
                    failure = failure or error
                    self._suspect(log_dir, error)
        if failure is not None:
            raise failure

    async def write_truncated(self) -> None:
        """Checkpoint logs that end below their recovery point before they are served: records appended now are not
        flushed up to there.

        Runs after their losses have receipts, whose class depends on the old checkpoint's high watermark. If the disk
        has no room, the next checkpoint does it.
        """
        if any(log_dir.has_truncated_log() for log_dir in self._log_dirs if not log_dir.clean):
            with suppress(StorageError):
                await self.write()
