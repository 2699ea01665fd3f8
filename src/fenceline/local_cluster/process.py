"""One node of a local cluster as a child process.

Owns the process: its spawn, its signals, its ready line, its end, and the size of its `node.log` and of the one older
file beside it. Its output goes directly into its log file; only the ready line is read here.

On Linux the system kills a node when the thread that spawned it ends, for whatever reason (PR_SET_PDEATHSIG): a
NodeProcess must be created by a thread that lives as long as the cluster. On other systems `reaper.py` does this.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Final, Protocol

from fenceline.local_cluster import reaper
from fenceline.local_cluster.layout import NodePlace

LOG_LIMIT_BYTES: Final = 16 * 1024 * 1024
_PR_SET_PDEATHSIG: Final = 1
_TAIL_BYTES: Final = 16 * 1024
_STOP_WAIT_S: Final = 1.0


class ChildProcess(Protocol):
    """A running process, as `subprocess.Popen`. `stdout` is a pipe."""

    @property
    def pid(self) -> int: ...
    @property
    def stdout(self) -> IO[bytes] | None: ...
    def send_signal(self, sig: int) -> None:
        """Does nothing if the process has ended."""

    def wait(self) -> int:
        """The exit code; a negative value is the signal that ended it."""
        ...


class Spawn(Protocol):
    """Starts the process of a node, which the system ends with ours.

    `arguments` are those of `fenceline start`; standard error goes to `log`, standard output to a pipe."""

    def __call__(
        self, place: NodePlace, arguments: Sequence[str], environment: Mapping[str, str], log: IO[bytes]
    ) -> ChildProcess: ...


def spawn_interpreter(
    place: NodePlace, arguments: Sequence[str], environment: Mapping[str, str], log: IO[bytes]
) -> ChildProcess:
    """`fenceline start` in a new interpreter."""
    return spawn_command([sys.executable, "-m", "fenceline", "start", *arguments], environment, log)


def spawn_command(
    command: Sequence[str], environment: Mapping[str, str], log: IO[bytes], *, inherited: Sequence[int] = ()
) -> ChildProcess:
    """Any command; it inherits these descriptors."""
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=log,
        env=dict(environment),
        # Ctrl-C at the terminal goes to the supervisor, which then stops the nodes itself.
        start_new_session=True,
        preexec_fn=end_with(os.getpid()),
        pass_fds=inherited,
    )


class NodeProcess:
    """A node that was started once. `on_change` is called from its own thread when it is ready and when it ends."""

    def __init__(
        self,
        place: NodePlace,
        *,
        environment: Mapping[str, str],
        log_level: str,
        on_change: Callable[[NodeProcess], None],
        spawn: Spawn = spawn_interpreter,
    ) -> None:
        self.place = place
        self.is_ready = False
        """Whether it has reported that it is ready; it may have ended since."""
        self.exit_code: int | None = None
        """None while it runs; a negative value is the signal that ended it."""
        self.is_paused = False
        self.end_is_wanted = False
        """Whether its end was requested."""
        self._on_change = on_change
        arguments = ["--config", str(place.properties_file), "--log-level", log_level]
        with place.log_file.open("ab") as log:
            self._log_start = log.tell()
            self._process = spawn(place, arguments, environment, log)
        self._is_reaped = not sys.platform.startswith("linux")
        if self._is_reaped:
            reaper.watch_process(self.pid)
        place.pid_file.write_text(f"{self.pid}\n")
        threading.Thread(target=self._watch, name=f"node {place.node_id}", daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process runs, paused or not."""
        return self.exit_code is None

    def send_signal(self, number: signal.Signals) -> None:
        """Does nothing if the process has ended."""
        self._process.send_signal(number)

    def ask_to_end(self, number: signal.Signals) -> None:
        """SIGTERM for a clean stop, or SIGKILL. SIGTERM also resumes a paused node."""
        self.end_is_wanted = True
        self.send_signal(number)
        if number is not signal.SIGKILL:
            self.resume()

    def pause(self) -> None:
        """Freeze it (SIGSTOP), and wait until it is frozen."""
        self.send_signal(signal.SIGSTOP)
        self.is_paused = True
        deadline = time.monotonic() + _STOP_WAIT_S
        while not self._is_stopped() and time.monotonic() < deadline:
            time.sleep(0.001)

    def resume(self) -> None:
        self.is_paused = False
        self.send_signal(signal.SIGCONT)

    def memory_bytes(self) -> int | None:
        """Resident memory; None if the system does not report it."""
        try:
            pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        except (OSError, IndexError, ValueError):
            return None
        return pages * os.sysconf("SC_PAGE_SIZE")

    def last_lines(self, count: int) -> list[str]:
        """The last lines that this process (not an earlier one) wrote to the log."""
        with contextlib.suppress(OSError), self.place.log_file.open("rb") as log:
            end = log.seek(0, os.SEEK_END)
            # A log file trimmed since then has no lines of earlier processes.
            start = self._log_start if self._log_start <= end else 0
            log.seek(max(start, end - _TAIL_BYTES))
            return log.read(_TAIL_BYTES).decode(errors="replace").splitlines()[-count:]
        return []

    def _is_stopped(self) -> bool:
        try:
            threads = list(Path(f"/proc/{self.pid}/task").iterdir())
            return all((thread / "stat").read_text().rpartition(")")[2].split()[0] in "TtZX" for thread in threads)
        except OSError:
            return True

    def _watch(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output, self.place.log_file.open("ab") as log:
            for line in output:
                log.write(line)
                log.flush()
                if not self.is_ready:
                    self.is_ready = True
                    self._on_change(self)
        code = self._process.wait()
        if self._is_reaped:
            reaper.forget_process(self.pid)
        self.place.pid_file.unlink(missing_ok=True)
        self.exit_code = code
        self._on_change(self)


def end_with(parent: int) -> Callable[[], None] | None:
    """The code of a child between fork and exec, so that it never outlives us. It must not import anything."""
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    kill = int(signal.SIGKILL)

    def in_child() -> None:
        prctl(_PR_SET_PDEATHSIG, kill, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return in_child


def wait_for_leftovers(root: Path, *, wait_s: float) -> None:
    """Wait until the nodes of a killed supervisor have ended, as the system ensures."""
    deadline = time.monotonic() + wait_s
    for pid_file in root.glob("node-*/pid"):
        while _is_leftover(pid_file) and time.monotonic() < deadline:
            time.sleep(0.01)


def _is_leftover(pid_file: Path) -> bool:
    """Whether the process exists and runs this node, not another program with the same pid."""
    try:
        pid = int(pid_file.read_text())
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (OSError, ValueError):
        return False
    return os.fsencode(pid_file.with_name("server.properties")) in command.split(b"\0")


def trim_log(log_file: Path, *, limit_bytes: int = LOG_LIMIT_BYTES) -> bool:
    """Move everything into the older file, replacing its content, once there is more than `limit_bytes`.

    Returns whether it was moved. If the disk fails, the file is left unchanged. A node writes through its own
    descriptor in append mode, so its file is copied and truncated, not renamed; a line written then may be lost."""
    with contextlib.suppress(OSError):
        if log_file.stat().st_size > limit_bytes:
            shutil.copyfile(log_file, older_log(log_file))
            os.truncate(log_file, 0)
            return True
    return False


def older_log(log_file: Path) -> Path:
    """The file with the lines before those of the log file."""
    return log_file.with_name(log_file.name + ".1")
