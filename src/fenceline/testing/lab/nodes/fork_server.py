"""Starts nodes in milliseconds: a process that has imported everything, and forks for each of them.

Owns its children, and ends with the process that started it. It has one thread and no event loop, and forks from a
state in which nothing runs. Started once a test process (`forking`); its standard input is a socket.

A request is one message of JSON with four descriptors: standard output, standard error, the control channel of the
node, and a connection for the answers. The first answer is the pid, with a descriptor of the process (pidfd); a second
one follows when the process has ended, with its exit code.

    {"name": "node 1", "arguments": [...], "set": {...}, "unset": [...], "directory": "..."}
    {"pid": 123}
    {"exit_code": -9}
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any, Final, NoReturn

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_NAME: Final = 15
_REQUEST_BYTES: Final = 1 << 20
_DESCRIPTORS: Final = 4


class ForkServer:
    """Serves requests from `orders` until its other end is closed; then its children are killed."""

    def __init__(self, orders: socket.socket, run: Callable[[list[str]], int]) -> None:
        self._orders = orders
        self._run = run
        self._children: dict[int, tuple[int, socket.socket]] = {}
        """By pid: the pidfd, and the connection that waits for the exit code."""
        self._poll = select.poll()
        self._poll.register(orders.fileno(), select.POLLIN)
        self._prctl = ctypes.CDLL(None, use_errno=True).prctl

    def serve(self) -> None:
        while True:
            for fd, _ in self._poll.poll():
                if fd == self._orders.fileno():
                    if not self._take_order():
                        self._kill_all()
                        return
                else:
                    self._reap(fd)

    def _take_order(self) -> bool:
        message, descriptors, _, _ = socket.recv_fds(self._orders, _REQUEST_BYTES, _DESCRIPTORS)
        if not message:
            return False
        order = json.loads(message)
        output, errors, control, answers = descriptors
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become(order, output, errors, control, answers, parent)
        for each in (output, errors, control):
            os.close(each)
        connection = socket.socket(fileno=answers)
        handle = os.pidfd_open(pid)
        self._children[handle] = (pid, connection)
        self._poll.register(handle, select.POLLIN)
        with contextlib.suppress(OSError):
            socket.send_fds(connection, [json.dumps({"pid": pid}).encode() + b"\n"], [handle])
        return True

    def _become(
        self, order: dict[str, Any], output: int, errors: int, control: int, answers: int, parent: int
    ) -> NoReturn:
        """In the child: run the node, and exit."""
        code = 70
        try:
            os.setsid()
            self._prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
            if os.getppid() != parent:
                os._exit(1)
            arguments: list[str] = order["arguments"]
            self._prctl(_PR_SET_NAME, str(order["name"]).encode()[:15], 0, 0, 0)
            nothing = os.open(os.devnull, os.O_RDONLY)
            inherited = [handle for handle, _ in self._children.items()]
            inherited += [connection.detach() for _, connection in self._children.values()]
            for each in (*inherited, self._orders.detach(), answers):
                os.close(each)
            for source, target in ((nothing, 0), (output, 1), (errors, 2)):
                os.dup2(source, target)
            for each in {nothing, output, errors} - {0, 1, 2}:
                os.close(each)
            for name in order["unset"]:
                os.environ.pop(name, None)
            os.environ.update(order["set"])
            os.chdir(order["directory"])
            code = self._run([*arguments, "--control", str(control)])
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 1
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def _reap(self, handle: int) -> None:
        pid, connection = self._children.pop(handle)
        self._poll.unregister(handle)
        _, status = os.waitpid(pid, 0)
        os.close(handle)
        with connection, contextlib.suppress(OSError):
            connection.sendall(json.dumps({"exit_code": os.waitstatus_to_exitcode(status)}).encode() + b"\n")

    def _kill_all(self) -> None:
        for pid, _ in self._children.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        for handle in list(self._children):
            self._reap(handle)


def main() -> None:
    """Import the node, and serve."""
    orders = socket.socket(fileno=os.dup(0))
    gc.disable()
    from fenceline.testing.lab.nodes import lab_node, preloaded

    preloaded.load()
    gc.collect()
    gc.freeze()
    gc.enable()
    # Ctrl-C goes to the tests, which end this process by closing its socket.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ForkServer(orders, lab_node.main).serve()


if __name__ == "__main__":
    main()
