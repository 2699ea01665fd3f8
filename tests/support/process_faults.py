"""Disks that are full, fail or are slow, and clocks that step, for real processes (`process_faults.c`).

Owns the library, which is compiled when it is asked for, and the switches of each process. A process that is started
anew begins without faults.
"""

from __future__ import annotations

import errno
import mmap
import shutil
import struct
import subprocess
from pathlib import Path

from tests.conftest import unavailable

_SWITCHES = struct.Struct("=qqq")
_SOURCE = Path(__file__).with_suffix(".c")


class ProcessFaults:
    """`environment` is for processes that shall have switches."""

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("cc")
        if compiler is None:
            unavailable("a C compiler is missing")
        folder.mkdir(parents=True, exist_ok=True)
        library = folder / "faults.so"
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, _SOURCE, "-ldl"], check=True)
        self._folder = folder
        self.environment = {"LD_PRELOAD": str(library), "PROCESS_FAULTS": str(folder)}

    def fill_disk(self, pid: int, *, is_full: bool = True) -> None:
        """Every write into a file fails with ENOSPC, or none does any more."""
        self._set(pid, 8, errno.ENOSPC if is_full else 0)

    def fail_disk(self, pid: int, *, fails: bool = True) -> None:
        """Every write into a file fails with EIO, or none does any more."""
        self._set(pid, 8, errno.EIO if fails else 0)

    def slow_disk(self, pid: int, slower_s: float) -> None:
        """Every write into a file, and every flush of one, takes that much longer."""
        self._set(pid, 16, int(slower_s * 1e9))

    def step_clock(self, pid: int, ahead_s: float) -> None:
        """The wall clock of the process is that much ahead of the true one."""
        self._set(pid, 0, int(ahead_s * 1e9))

    def _set(self, pid: int, position: int, value: int) -> None:
        with (self._folder / str(pid)).open("r+b") as file, mmap.mmap(file.fileno(), _SWITCHES.size) as switches:
            struct.pack_into("=q", switches, position, value)
