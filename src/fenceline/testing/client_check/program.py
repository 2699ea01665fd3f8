"""The program under test as a child process, and what it prints.

Owns the process with its whole group, and the lines of its two outputs with their times. Judges nothing. What it prints
is kept up to a bound; a program that prints without end is not held up, and its further lines are only counted.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Final

from fenceline.errors import OperatorError
from fenceline.local_cluster import reaper

MOST_LINES: Final = 200_000
MOST_LINE_BYTES: Final = 64 * 1024
_END_WAIT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class PrintedLine:
    """`at_s`: monotonic. `is_error`: on standard error."""

    at_s: float
    text: str
    is_error: bool


class Program:
    """A started program. `exit_code` is None while it runs."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Raises OperatorError if it cannot be started."""
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._lines: list[PrintedLine] = []
        self.dropped_lines = 0
        self.was_killed = False
        """Whether it did not end when it was asked to."""
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, **environment},
                start_new_session=True,
            )
        except OSError as error:
            raise OperatorError(
                f"{command[0]} cannot be started: {error.strerror or error}",
                "Give the command as you would type it, after `--`.",
            ) from error
        reaper.watch_process(self._process.pid)
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._readers = [
            threading.Thread(target=self._read, args=(stream, is_error), daemon=True)
            for stream, is_error in ((self._process.stdout, False), (self._process.stderr, True))
        ]
        for reader in self._readers:
            reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    @property
    def lines(self) -> list[PrintedLine]:
        """What it has printed so far."""
        with self._lock:
            return list(self._lines)

    def wait_for(self, wanted: set[str], *, wait_s: float) -> set[str]:
        """Wait until it has printed lines that contain these values, one each, or has ended; the missing ones."""
        ends_s = time.monotonic() + wait_s
        left, seen = set(wanted), 0
        while True:
            with self._lock:
                fresh, seen = self._lines[seen:], len(self._lines)
            for line in fresh:
                left -= _values_in(line.text, left)
            left_s = ends_s - time.monotonic()
            if not left or left_s <= 0:
                return left
            if self.exit_code is not None and not any(reader.is_alive() for reader in self._readers):
                return left
            with self._changed:
                if len(self._lines) == seen:
                    self._changed.wait(min(left_s, 0.1))

    def write(self, lines: Sequence[str]) -> None:
        """Write lines to its standard input; a program that does not read them is not waited for."""
        pipe = self._process.stdin
        assert pipe is not None

        def send() -> None:
            with contextlib.suppress(OSError, ValueError):
                pipe.write("".join(f"{line}\n" for line in lines).encode())
                pipe.flush()

        threading.Thread(target=send, name="input", daemon=True).start()

    def close_input(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def wait(self, wait_s: float) -> int | None:
        """Wait until it has ended by itself; its exit code, None if it has not."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(wait_s)
        return None

    def freeze(self) -> None:
        """SIGSTOP for the program and its children."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def stop(self, *, wait_s: float = _END_WAIT_S) -> int:
        """SIGTERM, and SIGKILL if it has not ended by then; its exit code."""
        if self._process.poll() is None:
            self._signal(signal.SIGCONT)
            self._signal(signal.SIGTERM)
            if self.wait(wait_s) is None:
                self.was_killed = True
                self._signal(signal.SIGKILL)
        code = self._process.wait()
        # Children that it has left behind.
        self._signal(signal.SIGKILL)
        reaper.forget_process(self._process.pid)
        for reader in self._readers:
            reader.join(_END_WAIT_S)
        self.close_input()
        return code

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def _read(self, stream: IO[bytes], is_error: bool) -> None:
        with stream:
            while raw := stream.readline(MOST_LINE_BYTES):
                line = PrintedLine(time.monotonic(), raw.decode(errors="replace").rstrip("\r\n"), is_error)
                with self._changed:
                    if len(self._lines) < MOST_LINES:
                        self._lines.append(line)
                    else:
                        self.dropped_lines += 1
                    self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()


def _values_in(text: str, wanted: set[str]) -> set[str]:
    """The wanted values that a line has: it is one of them, or has them as words."""
    if text in wanted:
        return {text}
    return wanted.intersection(text.replace(",", " ").replace('"', " ").replace("'", " ").split())
