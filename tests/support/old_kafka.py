"""Apache Kafka 2.1.1 as child processes: ZooKeeper and brokers, the oldest that the client promises to work with.

Owns the processes and their folders. The jars are not those of today's Kafka: `make jars` fetches both.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from fenceline.config.properties import format_properties
from fenceline.local_cluster import reaper
from fenceline.local_cluster.child_processes import ChildProcesses
from fenceline.testing.apache_kafka import DEFAULT_JARS, QUICK_START, free_port
from fenceline.testing.waiting import eventually

OLD_VERSION: Final = "2.1.1"
OLD_JARS: Final = DEFAULT_JARS.with_name(f"kafka-{OLD_VERSION}")
_LOGGING: Final = """\
log4j.rootLogger=WARN, out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=[%d] %p %m (%c)%n
"""
_START_WITHIN_S: Final = 200.0
_SETTINGS: Final = {
    "offsets.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "log.retention.ms": "-1",
    "zookeeper.session.timeout.ms": "6000",
    "replica.lag.time.max.ms": "3000",
    "auto.create.topics.enable": "false",
}


def why_no_old_kafka(jars: Path = OLD_JARS) -> str | None:
    """The reason why it can not be run here, or None when it can."""
    if shutil.which("java") is None:
        return "Java is missing"
    if not (jars / ".complete").exists():
        return f"the jars of Apache Kafka {OLD_VERSION} are missing: run `make jars` (needs Maven)"
    return None


class OldKafka(ChildProcesses):
    """`brokers` of them, ids from 1 on, and a ZooKeeper. `settings` are of all brokers."""

    def __init__(
        self, root: Path, brokers: int = 2, *, settings: Mapping[str, str] | None = None, jars: Path = OLD_JARS
    ) -> None:
        super().__init__(root, prefix="kafka-2-1-")
        self._jars = jars
        self._settings = {**_SETTINGS, "offsets.topic.replication.factor": str(brokers), **(settings or {})}
        self._zookeeper_port = free_port()
        self.ports = {node: free_port() for node in range(1, brokers + 1)}
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        """ZooKeeper is 0."""

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports.values())

    def start(self) -> None:
        """All of them; returns when each takes connections."""
        folder = self.root / "zookeeper"
        properties = {"dataDir": str(folder), "clientPort": str(self._zookeeper_port), "tickTime": "500"}
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        self._start(0, main, {**properties, "clientPortAddress": "127.0.0.1"})
        self._await(0, self._zookeeper_port)
        eventually(self._sessions, "ZooKeeper serves requests", wait_s=_START_WITHIN_S)
        for node in self.ports:
            self.spawn(node)
        for node in self.ports:
            self.await_ready(node)

    def spawn(self, node: int) -> None:
        """Starts a broker without waiting for it.

        A broker of this version ends if ZooKeeper still has the session of its killed predecessor, so this waits until
        that session has expired.
        """
        eventually(lambda: not self._is_registered(node), f"the session of broker {node} has expired")
        place = f"PLAINTEXT://127.0.0.1:{self.ports[node]}"
        properties = {
            "broker.id": str(node),
            "listeners": place,
            "zookeeper.connect": f"127.0.0.1:{self._zookeeper_port}",
            "log.dirs": str(self.root / f"data-{node}"),
            **self._settings,
        }
        self._start(node, "kafka.Kafka", properties)

    def await_ready(self, node: int) -> None:
        """Waits until it takes connections and is registered; it takes them before it registers."""
        self._await(node, self.ports[node])
        eventually(lambda: self._is_registered(node), f"broker {node} is registered", wait_s=_START_WITHIN_S)

    def kill(self, node: int) -> None:
        """kill -9, and wait until it is gone."""
        process = self._processes.pop(node)
        process.kill()
        process.wait()
        reaper.forget_process(process.pid)

    def is_running(self, node: int) -> bool:
        return node in self._processes and self._processes[node].poll() is None

    def output(self, node: int) -> str:
        return (self.root / f"output-{node}").read_text(errors="replace")

    def _is_registered(self, node: int) -> bool:
        return f"/brokers/ids/{node}\n" in f"{self._sessions()}\n"

    def _sessions(self) -> str:
        """ZooKeeper's sessions and what each has registered. Raises OSError until ZooKeeper serves requests, which is
        after it takes connections."""
        with socket.create_connection(("127.0.0.1", self._zookeeper_port), timeout=10) as zookeeper:
            zookeeper.sendall(b"dump")
            with zookeeper.makefile("r") as answer:
                text = answer.read()
        if "ephemeral" not in text.lower():
            raise OSError(f"ZooKeeper does not list its sessions: {text!r}")
        return text

    def _start(self, node: int, main: str, properties: Mapping[str, str]) -> None:
        path = self.root / f"{node}.properties"
        path.write_text(format_properties(dict(properties)))
        scratch = self.root / f"scratch-{node}"
        scratch.mkdir(exist_ok=True)
        logging = self.root / "log4j.properties"
        logging.write_text(_LOGGING)
        command = [
            "java",
            "-Xmx256m",
            *QUICK_START,
            f"-Djava.io.tmpdir={scratch}",
            f"-Dlog4j.configuration=file:{logging}",
            "-cp",
            str(self._jars / "server" / "*"),
            main,
            str(path),
        ]
        with (self.root / f"output-{node}").open("ab") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
        reaper.watch_process(process.pid)
        self._processes[node] = process

    def _await(self, node: int, port: int) -> None:
        def accepts() -> bool:
            if not self.is_running(node):
                raise RuntimeError(f"node {node} has ended:\n{self.output(node)[-4000:]}")
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
            except OSError:
                return False
            return True

        eventually(accepts, f"node {node} takes connections", wait_s=_START_WITHIN_S)

    def _end(self) -> None:
        for node in sorted(self._processes, reverse=True):
            self.kill(node)
