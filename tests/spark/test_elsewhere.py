"""The same source, unchanged, on a standalone Spark cluster and through Spark Connect, in processes of their own."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from fenceline.ids import TopicPartition
from fenceline.testing import reaper
from fenceline.testing.apache_kafka import free_port
from tests.conftest import need_java, unavailable
from tests.spark.conftest import Broker

pytestmark = [pytest.mark.spark, pytest.mark.together("spark elsewhere"), pytest.mark.timeout(600)]
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"


@contextmanager
def process(command: list[str], log: Path, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """In a session of its own, which is killed at the end."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        started = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable, **environment},
            start_new_session=True,
        )
    reaper.watch_process(started.pid)
    try:
        yield started
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        started.wait()
        reaper.forget_process(started.pid)


def await_line(pattern: str, log: Path, running: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 200
    while not re.search(pattern, log.read_text()):
        assert running.poll() is None, f"it ended:\n{log.read_text()[-4000:]}"
        assert time.monotonic() < deadline, f"no {pattern!r} in:\n{log.read_text()[-4000:]}"
        time.sleep(0.1)


@contextmanager
def standalone_cluster(folder: Path) -> Iterator[str]:
    """A master and two workers with one core each; the master's address."""
    import pyspark

    spark_class = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
    port = free_port()
    environment = {
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": QUICK,
        "SPARK_LOCAL_DIRS": str(folder / "local"),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    address = ["--host", "127.0.0.1", "--webui-port", "0"]
    with ExitStack() as stack:
        log = folder / "master.log"
        command = [spark_class, "org.apache.spark.deploy.master.Master", *address, "--port", str(port)]
        master = stack.enter_context(process(command, log, **environment))
        await_line("I have been elected leader|New state: ALIVE", log, master)
        for number in (1, 2):
            log = folder / f"worker-{number}.log"
            command = [spark_class, "org.apache.spark.deploy.worker.Worker", *address, "--port", "0"]
            command += ["--cores", "1", "--memory", "700m", "--work-dir", str(folder / f"work-{number}")]
            worker = stack.enter_context(process([*command, f"spark://127.0.0.1:{port}"], log, **environment))
            await_line("Successfully registered with master", log, worker)
        yield f"spark://127.0.0.1:{port}"


def run(where: str, broker: Broker, topic: str, folder: Path) -> dict[str, Any]:
    log = folder / "driver.log"
    with process(
        [sys.executable, "-m", "tests.spark.elsewhere_query", where, broker.bootstrap, topic, str(folder)], log
    ) as driver:
        assert driver.wait(550) == 0, log.read_text()[-6000:]
    found = json.loads([line for line in log.read_text().splitlines() if line.startswith("{")][-1])
    assert isinstance(found, dict)
    return found


def check(found: dict[str, Any]) -> None:
    rows = [[0, offset, 0] for offset in range(7, 100)] + [[1, offset, 0] for offset in range(50)]
    assert found["batch"] == rows
    assert found["stream"] == rows
    assert found["batches"] > 2
    assert found["losses"] == [["OFFSETS_EXPIRED", 0, 0, 7]]


@pytest.fixture
def filled(fenceline_node: Broker, topic: str) -> str:
    fenceline_node.create(topic, 2)
    fenceline_node.produce(topic, range(100), partition=0)
    fenceline_node.produce(topic, range(50), partition=1)
    fenceline_node.admin.delete_records({TopicPartition(topic, 0): 7})
    return topic


def test_a_standalone_cluster(fenceline_node: Broker, filled: str, tmp_path: Path) -> None:
    need_java()
    with standalone_cluster(tmp_path / "cluster") as master:
        found = run(master, fenceline_node, filled, tmp_path)
    assert found["executors"] == 2
    check(found)


def test_spark_connect(fenceline_node: Broker, filled: str, tmp_path: Path) -> None:
    need_java()
    if importlib.util.find_spec("grpc") is None:
        unavailable("pyspark[connect] is not installed")
    check(run("connect", fenceline_node, filled, tmp_path))
