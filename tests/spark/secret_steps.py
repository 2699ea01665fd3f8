"""A Spark driver that runs every source, sink, audit and command against a secured cluster, with all that it can log
switched on. Which of its files name a secret is looked up by `test_secrets.py`.

    python -m tests.spark.secret_steps FOLDER PROPERTIES own|jaas|token TOPIC
"""

from __future__ import annotations

import contextlib
import logging
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from fenceline.config.properties import read_properties
from tests.spark.sessions import session

COUNT: Final = 200
SCRAM: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"


def client_of(properties: Path, login: str) -> dict[str, str]:
    """The client's properties, by the login's form."""
    found = read_properties(properties)
    if login == "jaas":
        user, password = found.pop("sasl.username"), found.pop("sasl.password")
        found["sasl.jaas.config"] = f'{SCRAM} required username="{user}" password="{password}";'
    if login == "token":
        found["executor.token.mechanism"] = "SCRAM-SHA-512"
    return found


class Steps:
    """The steps share a session. Errors are printed as a user would see them."""

    def __init__(self, folder: Path, client: dict[str, str], topic: str) -> None:
        events = folder / "events"
        events.mkdir()
        self.folder, self.client, self.topic = folder, client, topic
        self.spark = session(
            "local[2]",
            folder,
            spark__eventLog__enabled="true",
            spark__eventLog__compress="false",
            spark__eventLog__dir=events.as_uri(),
            spark__eventLog__logStageExecutorMetrics="true",
            spark__log__level="INFO",
            spark__sql__debug__maxToStringFields="1000",
            spark__task__maxFailures="1",
        )
        self.kafka = {f"kafka.{key}": value for key, value in client.items()}

    def read(self, **more: str) -> Any:
        options = {**self.kafka, "subscribe": self.topic, "includeLeaderEpoch": "true", **more}
        return self.spark.read.format("fenceline").options(**options).load()

    def stream(self, **more: str) -> Any:
        options = {"subscribe": self.topic, "startingOffsets": "earliest", "includeLeaderEpoch": "true", **more}
        return self.spark.readStream.format("fenceline").options(**self.kafka, **options).load()

    def run_stream(self, writer: Any, name: str) -> None:
        writer = writer.queryName(name).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(self.folder / "checkpoints" / name)).start()
        query.awaitTermination()
        query.explain(extended=True)
        print(query.lastProgress, query.recentProgress, query.status, query.exception())

    # --- steps ----------------------------------------

    def batch_read(self) -> None:
        found = self.read()
        for mode in ("simple", "extended", "codegen", "cost", "formatted"):
            found.explain(mode=mode)
        print(found._jdf.queryExecution().toString())
        assert found.count() == COUNT

    def batch_write(self) -> None:
        rows = self.read().select("key", "value")
        rows.write.format("fenceline").options(**self.kafka, topic=f"{self.topic}-copy").mode("append").save()

    def stream_to_topic(self) -> None:
        writer = self.stream().select("key", "value").writeStream.format("fenceline")
        self.run_stream(writer.options(**self.kafka, topic=f"{self.topic}-copy"), "to_topic")

    def exactly_once_to_topic(self) -> None:
        from pyspark_fenceline.source.exactly_once import exactly_once

        write = exactly_once(f"{self.topic}-once", {**self.kafka, "topic": f"{self.topic}-copy"})
        self.run_stream(self.stream().select("key", "value").writeStream.foreachBatch(write), "once")
        write.close()

    def stream_to_delta(self) -> None:
        writer = self.stream().writeStream.format("fenceline_delta").options(**self.kafka)
        self.run_stream(writer.option("path", str(self.folder / "table")), "to_delta")

    def batch_to_delta(self) -> None:
        writer = self.read().write.format("fenceline_delta").options(**self.kafka)
        writer.option("path", str(self.folder / "table-2")).mode("append").save()

    def losses(self) -> None:
        self.read(losses="true").explain(True)
        assert self.read(losses="true").count() == 0

    def audits(self) -> None:
        from pyspark_fenceline.auditing.table import audit

        found = audit(str(self.folder / "table"), self.client, spark=self.spark)
        print(found)
        found = audit(self.spark.read.parquet(str(self.folder / "table")), self.client)
        print(found, found.verdict)

    def command(self) -> None:
        from typer.testing import CliRunner

        from fenceline.cli.app import app

        path = self.folder.parent / f"{self.folder.name}.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in self.client.items()))
        arguments = ["audit", str(self.folder / "table"), "-b", self.client["bootstrap.servers"]]
        done = CliRunner().invoke(app, ["--command-config", str(path), *arguments])
        print(done.output)
        assert done.exit_code == 0

    def repair(self) -> None:
        from pyspark_fenceline.auditing.repair_table import repair

        print(repair(str(self.folder / "table"), self.client, apply=True))

    def lookup_that_fails(self) -> None:
        self.read(subscribe="no such topic").count()

    def login_that_fails(self) -> None:
        self.kafka = {**self.kafka, "kafka.sasl.username": "nobody"}
        self.read().count()

    def options_that_are_wrong(self) -> None:
        self.kafka = {**self.kafka, "kafka.acks": "7", "kafka.sasl.mechanism": "DIGEST"}
        self.read().count()

    def write_that_fails(self) -> None:
        rows = self.read().selectExpr("key", "value", "99 as partition")
        rows.write.format("fenceline").options(**self.kafka, topic=f"{self.topic}-copy").mode("append").save()

    def stream_that_fails(self) -> None:
        writer = self.stream(subscribe="no such topic").select("value").writeStream.format("fenceline")
        self.run_stream(writer.options(**self.kafka, topic=f"{self.topic}-copy"), "fails")

    def task_that_fails(self) -> None:
        self.read().selectExpr("assert_true(offset < 0)").collect()


SUCCEED: Final[tuple[Callable[[Steps], None], ...]] = (
    Steps.batch_read,
    Steps.batch_write,
    Steps.stream_to_topic,
    Steps.exactly_once_to_topic,
    Steps.stream_to_delta,
    Steps.batch_to_delta,
    Steps.losses,
    Steps.audits,
    Steps.command,
    Steps.repair,
)
FAIL: Final[tuple[Callable[[Steps], None], ...]] = (
    Steps.lookup_that_fails,
    Steps.write_that_fails,
    Steps.stream_that_fails,
    Steps.task_that_fails,
    Steps.options_that_are_wrong,
    Steps.login_that_fails,
)


def main(folder: Path, properties: Path, login: str, topic: str) -> None:
    logging.basicConfig(level=logging.DEBUG)
    # At DEBUG it logs all that Python says to the JVM, options as well.
    logging.getLogger("py4j").setLevel(logging.INFO)
    steps = Steps(folder, client_of(properties, login), topic)
    for step in SUCCEED:
        print(f"--- {step.__name__}", flush=True)
        step(steps)
    for step in FAIL:
        print(f"--- {step.__name__}", flush=True)
        kafka = steps.kafka
        with contextlib.suppress(Exception):
            try:
                step(steps)
                print(f"{step.__name__} has not failed")
            except Exception:
                traceback.print_exc()
                raise
        steps.kafka = kafka
    steps.spark.stop()
    print("--- done", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
