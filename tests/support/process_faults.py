"""Full disks and clocks that step, for real processes that know nothing of it (`process_faults.c`).

Owns the library, which is compiled when it is asked for, and the switches of each process. A process that is started
anew begins without faults.
"""

from __future__ import annotations

import mmap
import shutil
import struct
import subprocess
from pathlib import Path

from tests.conftest import unavailable

_SWITCHES = struct.Struct("=qq")
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
        self._set(pid, 8, int(is_full))

    def step_clock(self, pid: int, ahead_s: float) -> None:
        """The wall clock of the process is that much ahead of the true one."""
        self._set(pid, 0, int(ahead_s * 1e9))

    def _set(self, pid: int, position: int, value: int) -> None:
        with (self._folder / str(pid)).open("r+b") as file, mmap.mmap(file.fileno(), _SWITCHES.size) as switches:
            struct.pack_into("=q", switches, position, value)
