"""A Spark cluster of separate processes on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from fenceline.testing.apache_kafka import free_port
from tests.spark.own_process import started
from tests.spark.sessions import QUICK_JVM


@contextmanager
def standalone_cluster(folder: Path) -> Iterator[str]:
    """A master and two workers with one core each; the master's address."""
    import pyspark

    spark_class = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
    port = free_port()
    environment = {
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": f"{QUICK_JVM} -XX:+UseSerialGC -XX:-UsePerfData",
        "SPARK_LOCAL_DIRS": str(folder / "local"),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    address = ["--host", "127.0.0.1", "--webui-port", "0"]
    with ExitStack() as stack:
        command = [spark_class, "org.apache.spark.deploy.master.Master", *address, "--port", str(port)]
        master = stack.enter_context(started(command, folder / "master.log", environment))
        master.await_line("I have been elected leader|New state: ALIVE")
        for number in (1, 2):
            command = [spark_class, "org.apache.spark.deploy.worker.Worker", *address, "--port", "0"]
            command += ["--cores", "1", "--memory", "700m", "--work-dir", str(folder / f"work-{number}")]
            command.append(f"spark://127.0.0.1:{port}")
            worker = stack.enter_context(started(command, folder / f"worker-{number}.log", environment))
            worker.await_line("Successfully registered with master")
        yield f"spark://127.0.0.1:{port}"
