"""Processes of nodes that start in milliseconds, from the fork server of this process.

Owns the one fork server of this process: its start, which `prepare` begins early, and its end, which comes with ours
at the latest. Where the system cannot fork (`can_fork`), a node gets an interpreter of its own, and starts slower.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final

from fenceline.errors import OperatorError
from fenceline.local_cluster import reaper
from fenceline.local_cluster.process import ChildProcess, spawn_command

NO_FORK: Final = "FENCELINE_LAB_NO_FORK"
"""Environment variable: set to 1, nodes get interpreters of their own."""
_SERVER: Final = "fenceline.testing.lab.nodes.fork_server"
_NODE: Final = "fenceline.testing.lab.nodes.lab_node"
_END_WAIT_S: Final = 10.0
_ANSWER_BYTES: Final = 4096
_NEEDED_SOON: Final = (
    "fenceline.testing.lab.cluster",
    "fenceline.node.metadata.format",
    "fenceline.client.admin.admin",
    "fenceline.client.producer.producer",
    "fenceline.client.consumer.consumer",
)
"""Modules that a first cluster and its first record load."""

_lock: Final = threading.Lock()
_server: _Server | None = None


def can_fork() -> bool:
    """Whether this system has what the fork server needs."""
    needed = hasattr(os, "fork") and hasattr(os, "pidfd_open") and hasattr(socket, "send_fds")
    return sys.platform.startswith("linux") and needed and os.environ.get(NO_FORK, "") in ("", "0")


def prepare() -> None:
    """Start the fork server, and load what the first cluster needs in this process, without waiting for either."""
    if can_fork():
        _current()
    threading.Thread(target=_load, name="loading the test kit", daemon=True).start()


def _load() -> None:
    for name in _NEEDED_SOON:
        importlib.import_module(name)


def spawn_node(
    name: str, arguments: Sequence[str], environment: Mapping[str, str], log: IO[bytes], control: socket.socket
) -> ChildProcess:
    """Start a node of the laboratory. `name` is for lists of processes, `control` its end of the control channel.

    Raises OperatorError if the process cannot be started."""
    if can_fork():
        try:
            return _current().spawn(name, arguments, environment, log, control)
        except OSError as error:
            raise OperatorError(
                f"{name} cannot be started: {error.strerror or error}",
                f"Check the limits of processes, descriptors and memory; {NO_FORK}=1 starts nodes without forking.",
            ) from error
    command = [sys.executable, "-m", _NODE, *arguments, "--control", str(control.fileno())]
    return spawn_command(command, environment, log, inherited=[control.fileno()])


class _ForkedProcess:
    """A child of the fork server, as `ChildProcess`."""

    def __init__(self, pid: int, handle: int, stdout: IO[bytes], answers: socket.socket) -> None:
        self.pid = pid
        self.stdout: IO[bytes] | None = stdout
        self._handle = handle
        self._answers = answers
        self._code: int | None = None
        reaper.watch_process(pid)

    def send_signal(self, sig: int) -> None:
        if self._code is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, sig)

    def wait(self) -> int:
        if self._code is None:
            with self._answers:
                line = self._answers.recv(_ANSWER_BYTES)
            # Without an answer the fork server was killed, and with it its children.
            self._code = int(json.loads(line)["exit_code"]) if line else -int(signal.SIGKILL)
            os.close(self._handle)
            reaper.forget_process(self.pid)
        return self._code


class _Server:
    def __init__(self) -> None:
        self.owner = os.getpid()
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._orders = ours
        self._environment = dict(os.environ)
        self._lock = threading.Lock()
        with its:
            self._process = subprocess.Popen(
                [sys.executable, "-m", _SERVER],
                stdin=its.fileno(),
                start_new_session=True,
                env=self._environment,
            )
        reaper.watch_process(self._process.pid)

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def spawn(
        self,
        name: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        log: IO[bytes],
        control: socket.socket,
    ) -> _ForkedProcess:
        order = {
            "name": name,
            "arguments": list(arguments),
            "set": {key: value for key, value in environment.items() if self._environment.get(key) != value},
            "unset": [key for key in self._environment if key not in environment],
            "directory": str(Path.cwd()),
        }
        ours, its = socket.socketpair()
        read_end, write_end = os.pipe()
        try:
            with its:
                passed = [write_end, log.fileno(), control.fileno(), its.fileno()]
                with self._lock:
                    socket.send_fds(self._orders, [json.dumps(order).encode()], passed)
        finally:
            os.close(write_end)
        line, descriptors, _, _ = socket.recv_fds(ours, _ANSWER_BYTES, 1)
        if not line:
            os.close(read_end)
            ours.close()
            raise OSError("the process that starts nodes has ended; its message is above")
        answer: dict[str, Any] = json.loads(line)
        return _ForkedProcess(int(answer["pid"]), descriptors[0], os.fdopen(read_end, "rb"), ours)

    def close(self) -> None:
        """End the server, and with it its children."""
        self._orders.close()
        try:
            self._process.wait(_END_WAIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        reaper.forget_process(self._process.pid)


def _current() -> _Server:
    """The server of this process; a fork of it starts its own."""
    global _server
    with _lock:
        if _server is None or _server.owner != os.getpid() or not _server.is_running:
            _server = _Server()
            atexit.register(_close, _server)
        return _server


def _close(server: _Server) -> None:
    if server.owner == os.getpid():
        server.close()
