"""Child processes with a folder: both are removed when their owner closes them.

Owns the `with` block and the temporary folder if none was given. The folder is also removed when the owner is killed
(`reaper.py`).
"""

from __future__ import annotations

import shutil
import tempfile
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import Self

from fenceline.local_cluster import reaper


class ChildProcesses(ABC):
    """Use as a context manager, or call `start` and `close`. `data_dir` is kept if given."""

    def __init__(self, data_dir: Path | None, *, prefix: str) -> None:
        self._own_dir = Path(tempfile.mkdtemp(prefix=prefix)) if data_dir is None else None
        if self._own_dir is not None:
            reaper.watch_folder(self._own_dir)
        self.root = data_dir or self._own_dir or Path()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @abstractmethod
    def start(self) -> object:
        """Start the processes that do not run yet."""

    @abstractmethod
    def _end(self) -> None:
        """Kill the running processes, and wait until they have ended."""

    def close(self) -> None:
        """Kill the running processes; remove the folder if it is temporary."""
        self._end()
        if self._own_dir is not None:
            shutil.rmtree(self._own_dir, ignore_errors=True)
            reaper.forget_folder(self._own_dir)
