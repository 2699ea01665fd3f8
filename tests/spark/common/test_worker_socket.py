"""A worker acknowledges a task's command while its reader or writer is unpickled, and does nothing elsewhere."""

from __future__ import annotations

import pickle
import socket
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, BinaryIO

import pytest

from pyspark_fenceline.common import worker_socket
from tests.spark.fakes import FakeCluster
from tests.spark.streams import make

_QUICK_ACK = getattr(socket, "TCP_QUICKACK", None)
needs_quick_ack = pytest.mark.skipif(_QUICK_ACK is None, reason="only Linux has TCP_QUICKACK")


@pytest.fixture
def jvm() -> Iterator[socket.socket]:
    """A worker's end of a connection whose acknowledgements are delayed, because both ends have sent something."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as other,
    ):
        accepted, _ = listener.accept()
        with accepted:
            for _ in range(4):
                other.send(b"question")
                accepted.recv(64)
                accepted.send(b"answer")
                other.recv(64)
            yield accepted


def acknowledges_at_once(connection: socket.socket) -> bool:
    assert _QUICK_ACK is not None
    return bool(connection.getsockopt(socket.IPPROTO_TCP, _QUICK_ACK))


def as_worker(monkeypatch: pytest.MonkeyPatch, infile: Any, work: Callable[[], object]) -> None:
    """Do `work` below the `main(infile, outfile)` of a module with the name of Spark's worker."""
    worker = ModuleType("pyspark.worker")
    exec("def main(infile, outfile):\n    outfile()\n", worker.__dict__)
    monkeypatch.setitem(sys.modules, worker.__name__, worker)
    worker.main(infile, work)


@needs_quick_ack
def test_unpickling_a_reader_acknowledges_the_command(monkeypatch: pytest.MonkeyPatch, jvm: socket.socket) -> None:
    command = pickle.dumps(make(FakeCluster(t=1)))
    infile: BinaryIO = jvm.makefile("rb")
    with infile:
        assert not acknowledges_at_once(jvm)
        as_worker(monkeypatch, infile, lambda: pickle.loads(command))
        assert acknowledges_at_once(jvm)
        assert jvm.send(b"still open") == 10


@needs_quick_ack
def test_other_processes_are_unchanged(jvm: socket.socket) -> None:
    worker_socket.acknowledge_command()
    assert not acknowledges_at_once(jvm)


def test_anything_but_a_tcp_connection_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, others = socket.socketpair()
    with ours, others, ours.makefile("rb") as infile, open("/dev/null", "rb") as file:
        for received in (infile, file, None, object()):
            as_worker(monkeypatch, received, worker_socket.acknowledge_command)


@pytest.mark.long
@pytest.mark.spark
def test_a_task_of_spark_finds_its_input(spark: Any) -> None:
    found = spark.sparkContext.parallelize([0], 1).map(lambda _: worker_socket._worker_input() is not None).collect()
    assert found == [True]
