"""A killed process that had started nodes and brokers leaves no processes and no folders behind."""

from __future__ import annotations

import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from fenceline.local_cluster import reaper
from fenceline.testing.waiting import eventually

_ROOT = Path(__file__).parents[2]
_NODE = """
from fenceline.testing.node import EmbeddedNode
node = EmbeddedNode()
node.start()
print(node.pid, node.port, node.root, flush=True)
"""
_PYTEST = """
import time
from fenceline.testing.node import EmbeddedNode

def test_that_does_not_end(node, capfd):
    with capfd.disabled():
        print(node.pid, node.port, node.root, flush=True)
    time.sleep(600)
"""
_GROUP = """
import subprocess
from fenceline.local_cluster import reaper
victim = subprocess.Popen(["sh", "-c", "sleep 600 & echo $! ; wait"], start_new_session=True, stdout=subprocess.PIPE)
reaper.watch_process(victim.pid)
print(victim.pid, victim.stdout.readline().decode().strip(), flush=True)
"""
_WAIT = "\nimport time\ntime.sleep(600)\n"


def is_gone(pid: int) -> bool:
    """Whether there is no such process, or only a zombie."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def can_connect(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=60).close()
    except ConnectionRefusedError:
        return False
    return True


class Started:
    """A program in its own process, and the words that it prints when it is ready."""

    def __init__(self, *command: str) -> None:
        self.process = subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, text=True, cwd=_ROOT)
        assert self.process.stdout is not None
        readable, _, _ = select.select([self.process.stdout], [], [], 100)
        self.words = self.process.stdout.readline().split() if readable else []

    def end_by(self, number: signal.Signals) -> None:
        self.process.send_signal(number)
        self.process.wait(60)


@pytest.fixture
def start() -> Iterator[Callable[..., Started]]:
    running: list[Started] = []

    def begin(*command: str) -> Started:
        running.append(Started(*command))
        return running[-1]

    yield begin
    for each in running:
        each.process.kill()
        each.process.wait()
        assert each.process.stdout is not None
        each.process.stdout.close()


def assert_no_node(words: list[str]) -> None:
    pid, port, root = int(words[0]), int(words[1]), Path(words[2])
    eventually(lambda: is_gone(pid))
    eventually(lambda: not can_connect(port))  # a thread of an ended process may exist for a moment
    eventually(lambda: not root.exists())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_node_ends_with_the_program_that_started_it(start: Callable[..., Started], number: signal.Signals) -> None:
    program = start("-c", _NODE + _WAIT)
    assert not is_gone(int(program.words[0]))
    program.end_by(number)
    assert_no_node(program.words)


def test_a_node_ends_with_a_program_that_does_not_close_it(start: Callable[..., Started]) -> None:
    program = start("-c", _NODE)
    assert program.process.wait(60) == 0
    assert_no_node(program.words)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.long
def test_a_node_ends_with_a_killed_test_run(
    start: Callable[..., Started], number: signal.Signals, tmp_path: Path
) -> None:
    path = tmp_path / "test_inner.py"
    path.write_text("from tests.conftest import node\n" + _PYTEST)
    run = start("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(path))
    assert len(run.words) == 3, run.words
    run.end_by(number)
    assert_no_node(run.words)


def test_a_complete_process_group_is_killed(start: Callable[..., Started]) -> None:
    program = start("-c", _GROUP + _WAIT)
    program.end_by(signal.SIGKILL)
    for pid in map(int, program.words):
        eventually(lambda pid=pid: is_gone(pid))  # type: ignore[misc]


def test_forgotten_processes_and_folders_are_kept(tmp_path: Path, start: Callable[..., Started]) -> None:
    kept, gone = tmp_path / "kept", tmp_path / "gone"
    kept.mkdir()
    gone.mkdir()
    sleeper = subprocess.Popen(["sleep", "600"])
    try:
        program = start(
            "-c",
            "from fenceline.local_cluster import reaper\n"
            f"reaper.watch_process({sleeper.pid}); reaper.forget_process({sleeper.pid})\n"
            f"reaper.watch_folder({str(kept)!r}); reaper.forget_folder({str(kept)!r})\n"
            f"reaper.watch_folder({str(gone)!r})\n"
            "print('ready', flush=True)" + _WAIT,
        )
        program.end_by(signal.SIGKILL)
        eventually(lambda: not gone.exists())
        assert sleeper.poll() is None
        assert kept.exists()
    finally:
        sleeper.kill()
        sleeper.wait()


def test_a_command_runs_to_its_end() -> None:
    assert reaper.run(["sh", "-c", "cat; echo more >&2; exit 3"], stdin="told\n", timeout_s=60) == (3, "told\nmore\n")


def test_a_command_is_killed_after_its_timeout() -> None:
    command = ["sleep", "654321"]
    with pytest.raises(subprocess.TimeoutExpired):
        reaper.run(command, timeout_s=0.5)
    assert not any(child.cmdline() == command for child in psutil.Process().children())
