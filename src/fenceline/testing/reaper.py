"""Ends what a process started, and removes its folders, when that process is gone without having done so itself.

A test run that is killed runs no `finally`. So the first thing that needs it starts a small helper process, which holds
the reading end of a pipe: it learns over it what runs, and that its parent is gone when the pipe ends. The helper has a
session of its own, so that a signal to the terminal's process group does not meet it. This module is also the helper's
program; it must import nothing but the standard library, and cheap parts of it.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import BinaryIO, Final

_PATIENCE_S: Final = 10
"""How long the helper waits for a killed process to be gone before it removes folders all the same."""

_lock: Final = threading.Lock()
_helper: tuple[int, subprocess.Popen[bytes]] | None = None
"""The helper, and the process that it belongs to: a fork of that one starts its own."""


def watch_process(pid: int) -> None:
    """Kill the process when we are gone; the whole group of it, when it leads one."""
    _tell(f"+process {pid}")


def forget_process(pid: int) -> None:
    """It was waited for: another process may have its number from now on."""
    _tell(f"-process {pid}")


def watch_folder(path: str | os.PathLike[str]) -> None:
    """Remove the folder and what is in it when we are gone, after every watched process is."""
    _tell(f"+folder {os.fspath(path)}")


def forget_folder(path: str | os.PathLike[str]) -> None:
    _tell(f"-folder {os.fspath(path)}")


def run(command: Sequence[str], *, stdin: str = "", timeout_s: float) -> tuple[int, str]:
    """Run a command to its end, which comes with ours at the latest: its exit code, and what it printed on both ways.

    Raises subprocess.TimeoutExpired when it takes too long; it is killed then.
    """
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        watch_process(process.pid)
        try:
            printed, _ = process.communicate(stdin, timeout=timeout_s)
        except BaseException:
            process.kill()
            process.wait()
            raise
        finally:
            forget_process(process.pid)
    return process.returncode, printed


def _tell(line: str) -> None:
    global _helper
    assert "\n" not in line
    with _lock:
        if _helper is None or _helper[0] != os.getpid():
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", __file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            _helper = (os.getpid(), process)
            atexit.register(_end_helper, *_helper)
        pipe = _helper[1].stdin
        assert pipe is not None
        # Whoever killed the helper wants to do its work himself.
        with contextlib.suppress(BrokenPipeError):
            pipe.write(line.encode() + b"\n")
            pipe.flush()


def _end_helper(owner: int, helper: subprocess.Popen[bytes]) -> None:
    if owner != os.getpid() or helper.stdin is None:
        return
    with contextlib.suppress(BrokenPipeError):
        helper.stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        helper.wait(2 * _PATIENCE_S)


class _Watched:
    """A process by its number and, where the system has such, by a descriptor that can mean no other process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.handle: int | None = None
        if hasattr(os, "pidfd_open"):
            with contextlib.suppress(OSError):
                self.handle = os.pidfd_open(pid)

    def kill(self) -> None:
        if self.handle is not None and select.select([self.handle], [], [], 0)[0]:
            return
        with contextlib.suppress(ProcessLookupError):
            if os.getpgid(self.pid) == self.pid:
                os.killpg(self.pid, signal.SIGKILL)
            else:
                os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> None:
        if self.handle is not None:
            select.select([self.handle], [], [], _PATIENCE_S)

    def close(self) -> None:
        if self.handle is not None:
            os.close(self.handle)


def run_helper(lines: BinaryIO) -> None:
    """The helper's life: what it is told, to the end of the pipe, and then what is left to do."""
    processes: dict[int, _Watched] = {}
    folders: set[str] = set()
    for line in lines:
        order, _, what = line.decode().rstrip("\n").partition(" ")
        if order == "+process":
            processes[int(what)] = _Watched(int(what))
        elif order == "-process" and (known := processes.pop(int(what), None)) is not None:
            known.close()
        elif order == "+folder":
            folders.add(what)
        elif order == "-folder":
            folders.discard(what)
    for process in processes.values():
        process.kill()
    for process in processes.values():
        process.wait()
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    run_helper(sys.stdin.buffer)
