"""Kafka Streams' own smoke test, with exactly_once_v2, on three nodes (`transactions.md X68`).

Its driver sends records, an application computes windows, joins and sums of them in transactions and is killed on the
way, and the driver checks each result.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from fenceline.client import Admin, NewTopic
from fenceline.local_cluster import reaper
from fenceline.local_cluster.cluster import LocalCluster
from fenceline.testing.apache_kafka import DEFAULT_JARS
from fenceline.testing.waiting import eventually
from tests.conftest import need_java, unavailable

pytestmark = [pytest.mark.kafka, pytest.mark.long, pytest.mark.timeout(580)]
_JARS: Final = DEFAULT_JARS / "streams"
# Those of SmokeTestDriver.
_TOPICS: Final = (
    "data",
    "echo",
    "max",
    "min",
    "min-suppressed",
    "min-raw",
    "dif",
    "sum",
    "sws-raw",
    "sws-suppressed",
    "cnt",
    "avg",
    "tagg",
    "fk",
)
_PARTITIONS: Final = 5
_OVERRIDES: Final = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.num.partitions": "5",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.num.partitions": "5",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
}
_KILLS: Final = 2
_PROCESSED_FIRST: Final = 20
"""Reports of progress of an application before it is killed."""
_MOST_S: Final = 400


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    need_java()
    if not any(_JARS.glob("kafka-streams-*-test.jar")):
        unavailable("The jars of Kafka Streams are missing: make jars")
    with LocalCluster(3, overrides=_OVERRIDES) as running:
        with Admin(running.bootstrap) as admin:
            admin.create_topics([NewTopic(name, _PARTITIONS, 3) for name in _TOPICS])
        yield running


class SmokeProcess:
    """The driver or an application. Its output goes to a file."""

    def __init__(self, bootstrap: str, directory: Path, name: str, command: str) -> None:
        config = directory / f"{name}.properties"
        config.write_text(
            f"bootstrap.servers={bootstrap}\n"
            f"state.dir={directory / name}\n"
            "processing.guarantee=exactly_once_v2\n"
            f"acceptable.recovery.lag={2**63 - 1}\n"
            "session.timeout.ms=10000\n"
        )
        self._output = directory / f"{name}.log"
        jars = ":".join(str(each) for each in sorted(_JARS.glob("*.jar")))
        program = ["java", "-Xmx512m", "-cp", jars, "org.apache.kafka.streams.tests.StreamsSmokeTest"]
        with self._output.open("wb") as output:
            self._process = subprocess.Popen([*program, str(config), command], stdout=output, stderr=subprocess.STDOUT)
        reaper.watch_process(self._process.pid)

    @property
    def output(self) -> str:
        return self._output.read_text(errors="replace")

    @property
    def code(self) -> int | None:
        return self._process.poll()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        reaper.forget_process(self._process.pid)


def _has_processed(app: SmokeProcess, driver: SmokeProcess) -> bool:
    return app.output.count("processed ") >= _PROCESSED_FIRST or driver.code is not None


def test_the_smoke_test_of_kafka_streams_passes(cluster: LocalCluster, tmp_path: Path) -> None:
    running = [SmokeProcess(cluster.bootstrap, tmp_path, "driver", "run")]
    driver = running[0]
    try:
        for number in range(_KILLS):
            app = SmokeProcess(cluster.bootstrap, tmp_path, f"app{number}", "process")
            running.append(app)
            eventually(partial(_has_processed, app, driver), "the application has processed records", wait_s=_MOST_S)
            running.remove(app)
            app.kill()
        running.append(SmokeProcess(cluster.bootstrap, tmp_path, "last", "process"))
        eventually(lambda: driver.code is not None, "the driver has ended", wait_s=_MOST_S)
    finally:
        for process in running:
            process.kill()
    lines = driver.output.rstrip().splitlines()
    assert lines[-1] == "SUCCESS", "\n".join(lines[-40:])
