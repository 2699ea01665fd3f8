"""Kills the child processes of a process, and removes its folders, if it ends without doing so itself.

A killed test run executes no `finally`. So the first use starts a small helper process, which holds the reading end of
a pipe: over it, it learns what runs, and the end of the pipe means that its parent has ended. The helper has its own
session, so that a signal to the terminal's process group does not reach it. This module is also the helper's program;
it must import only the standard library, and only cheap parts of it.
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
"""How long the helper waits for killed processes to end before it removes folders anyway."""

_lock: Final = threading.Lock()
_helper: tuple[int, subprocess.Popen[bytes]] | None = None
"""The helper, and the process that owns it: a fork of that process starts its own."""


def watch_process(pid: int) -> None:
    """Kill the process when we end; its complete group if it leads one."""
    _send(f"+process {pid}")


def forget_process(pid: int) -> None:
    """The process was waited for: another process may get its pid from now on."""
    _send(f"-process {pid}")


def watch_folder(path: str | os.PathLike[str]) -> None:
    """Remove the folder and its content when we end, after every watched process has ended."""
    _send(f"+folder {os.fspath(path)}")


def forget_folder(path: str | os.PathLike[str]) -> None:
    _send(f"-folder {os.fspath(path)}")


def run(command: Sequence[str], *, stdin: str = "", timeout_s: float) -> tuple[int, str]:
    """Run a command to its end, which comes with ours at the latest: its exit code and output (stdout and stderr).

    Raises subprocess.TimeoutExpired if it takes too long; it is killed then."""
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


def _send(line: str) -> None:
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
        # If the helper was killed, cleanup is up to whoever killed it.
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
    """A process by its pid and, if supported, by a descriptor that can refer to no other process."""

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
    """The main loop of the helper: reads orders until the pipe ends, and then cleans up."""
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
