"""kill -9 between any two steps of a batch that is copied exactly once: of the whole driver, of a Python worker, of an
executor, of the broker. Rules: transactions.md X69-X74.

Runs on a standalone Spark cluster, against a Fenceline node and against Apache Kafka as shipped.
`FENCELINE_CHAOS_SEED` sets the seed of the long test.
"""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from fenceline.client import TopicPartition
from fenceline.testing.apache_kafka import ApacheKafka, small_kafka
from fenceline.testing.node import EmbeddedNode
from fenceline.testing.waiting import eventually
from tests.conftest import need_apache_kafka, need_java
from tests.spark.conftest import Broker
from tests.spark.exactly_once_query import FIRST_STEPS, ROWS_A_BATCH, plans
from tests.spark.kill_plans import JVM, OTHER
from tests.spark.own_process import OwnProcess, driver
from tests.spark.standalone_cluster import standalone_cluster
from tests.support.read_to_end import read_stable, read_to_end

pytestmark = [pytest.mark.long, pytest.mark.spark, pytest.mark.together("killed driver"), pytest.mark.timeout(0)]
PARTITIONS = 3
BATCHES_A_KILL = 12
VICTIMS = ("driver", "worker", "executor", "broker")


@pytest.fixture(params=["fenceline", pytest.param("kafka", marks=pytest.mark.kafka)])
def server(request: pytest.FixtureRequest) -> Iterator[EmbeddedNode | ApacheKafka]:
    if request.param == "kafka":
        need_apache_kafka()
    with EmbeddedNode() if request.param == "fenceline" else small_kafka() as running:
        yield running


class Query:
    """The copying query, restarted after each death of its driver."""

    def __init__(self, arguments: Sequence[object], folder: Path, scratch: Path) -> None:
        self._arguments, self._folder, self._scratch = arguments, folder, scratch
        self._stack = ExitStack()

    def __enter__(self) -> Query:
        self._start("endless")
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def _start(self, end: str) -> None:
        victim = driver("exactly_once_query", self._scratch, *self._arguments, self._folder, end)
        self.running: OwnProcess = self._stack.enter_context(victim)

    def kill(self) -> None:
        self._stack.close()

    def dies(self, plan: str, what: str) -> None:
        """Returns once the process that reaches the step has carried it out; the driver runs."""
        file = self._folder / plan
        if plan.split(maxsplit=2)[2] in FIRST_STEPS:
            self.kill()
        draft = self._folder / "draft"
        draft.write_text(what)
        draft.rename(file)
        if plan.split(maxsplit=2)[2] in FIRST_STEPS:
            self._start("endless")
        self.running.until(partial(_is_claimed, file), plan)
        if plan.startswith("driver") and not what:
            assert self.running.wait() == -signal.SIGKILL, self.running.log_tail
            self.kill()
            self._start("endless")

    def finish(self) -> None:
        self.kill()
        self._start("done")
        self.running.await_success(1_000)


def _is_claimed(plan: Path) -> bool:
    return not plan.exists()


def partitions_of(topic: str) -> list[TopicPartition]:
    return [TopicPartition(topic, index) for index in range(PARTITIONS)]


@pytest.mark.parametrize(
    ("seed", "rounds"),
    [(1, 1), pytest.param(int(os.environ.get("FENCELINE_CHAOS_SEED") or 2), 25, marks=pytest.mark.soak)],
)
def test_killed_query_writes_every_row_once_and_whole_batches(
    server: EmbeddedNode | ApacheKafka, tmp_path: Path, checkpoint: str, seed: int, rounds: int
) -> None:
    """Each round kills each of the victims once."""
    need_java()
    chance = random.Random(seed)
    rows = ROWS_A_BATCH * BATCHES_A_KILL * len(VICTIMS) * rounds // PARTITIONS
    broker = Broker("", server.bootstrap)
    source, target = broker.create("source", PARTITIONS), broker.create("target", PARTITIONS)
    for partition in range(PARTITIONS):
        broker.produce(source, range(rows), partition=partition)
    folder = tmp_path / "plans"
    folder.mkdir()
    order = [victim for _ in range(rounds) for victim in chance.sample(VICTIMS, len(VICTIMS))]
    batches = 0
    with standalone_cluster(tmp_path / "cluster") as master:
        given = (master, server.bootstrap, source, target, checkpoint)
        with Query(given, folder, tmp_path / "scratch") as query:
            for number, victim in enumerate(order):
                sides = {"driver": ["driver"], "broker": ["driver", "executor"]}.get(victim, ["executor"])
                plan = chance.choice([plan for side in sides for plan in plans(side)])
                where = f"seed {seed}, kill {number}, of the {victim} {plan}"
                query.dies(plan, {"executor": JVM, "broker": f"{OTHER}{server.pid}"}.get(victim, ""))
                if victim == "broker":
                    server.kill()
                    server.start()

                def one_more_batch(before: int = batches) -> int:
                    total, part = divmod(len(read_stable(server.bootstrap, partitions_of(target))), ROWS_A_BATCH)
                    # The end markers of one transaction do not arrive in all partitions at once.
                    return 0 if part else max(0, total - before)

                batches += eventually(one_more_batch, f"one more whole batch ({where})", wait_s=300, step_s=0.5)
                assert not query.running.has_ended, f"{where}\n{query.running.log_tail}"
            query.finish()
    expected = {f"{partition} {offset}".encode(): 1 for partition in range(PARTITIONS) for offset in range(rows)}
    found = Counter(record.value or b"" for record in read_to_end(server.bootstrap, partitions_of(target)))
    assert found == expected, f"seed {seed}"
