"""An Apache Kafka node as a child process, for comparisons and tests. Never used by the server."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from fenceline.local_cluster import reaper
from fenceline.local_cluster.child_processes import ChildProcesses
from fenceline.local_cluster.ports import free_ports

KAFKA_VERSION = "4.3.1"
QUICK_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData")
"""JVM options for tools and test brokers, which are too short-lived for a better compiler. Not for measurements."""
DEFAULT_JARS = Path(__file__).resolve().parents[3] / ".cache" / f"kafka-{KAFKA_VERSION}"


def free_port() -> int:
    """A TCP port of the loopback interface that is free now, outside the range of outgoing connections."""
    return free_ports(1)


def why_unavailable(jars: Path = DEFAULT_JARS) -> str | None:
    """The reason why Apache Kafka cannot be run here, or None if it can."""
    if shutil.which("java") is None:
        return "Java is missing"
    if not (jars / ".complete").exists():
        return "Apache Kafka's jars are missing: run `make jars` (needs Maven)"
    return None


def java_command(
    main_class: str,
    *arguments: str,
    jars: Path = DEFAULT_JARS,
    heap: str = "1g",
    jvm_options: Sequence[str] = ("-XX:+UseG1GC",),
) -> list[str]:
    """The command line that runs one of Kafka's classes (server or tool)."""
    return [
        "java",
        f"-Xmx{heap}",
        *jvm_options,
        "-Dlog4j2.configurationFile=" + str(jars / "log4j2.properties"),
        "-cp",
        str(jars / "server" / "*"),
        main_class,
        *arguments,
    ]


def tool_options(jars: Path = DEFAULT_JARS) -> list[str]:
    """JVM options for Kafka's command line tools: `QUICK_START`, and their classes in a memory-mapped archive.

    The first caller creates the archive (one to two seconds); a JVM that cannot use it ignores it."""
    archive = jars / "tools.jsa"
    if not archive.exists():
        made = archive.with_name(f"tools-{os.getpid()}.jsa")
        listing = ("org.apache.kafka.tools.ConsoleProducer", "--bootstrap-server", "127.0.0.1:1", "--topic", "t")
        code, _ = reaper.run(
            java_command(*listing, jars=jars, jvm_options=(*QUICK_START, f"-XX:ArchiveClassesAtExit={made}")),
            timeout_s=300,
        )
        if code == 0 and made.exists():
            made.replace(archive)
        made.unlink(missing_ok=True)
    return [*QUICK_START, f"-XX:SharedArchiveFile={archive}", "-Xlog:disable"]


def run_tool(
    main_class: str, *arguments: str, jars: Path = DEFAULT_JARS, timeout_s: float = 300, check: bool = True
) -> str:
    """Run one of Kafka's own tools to its end and return its output (stdout and stderr)."""
    _write_log_config(jars)
    command = java_command(main_class, *arguments, jars=jars, heap="512m", jvm_options=tool_options(jars))
    code, printed = reaper.run(command, timeout_s=timeout_s)
    if check and code != 0:
        raise RuntimeError(f"{main_class} {' '.join(arguments)} ended with {code}:\n{printed}")
    return printed


def _write_log_config(jars: Path) -> None:
    path = jars / "log4j2.properties"
    if not path.exists():
        path.write_text(
            "status=error\nappender.out.type=Console\nappender.out.name=out\nappender.out.layout.type=PatternLayout\n"
            "appender.out.layout.pattern=[%d] %p %m (%c)%n\nappender.out.target=SYSTEM_ERR\n"
            "rootLogger.level=warn\nrootLogger.appenderRef.out.ref=out\n"
        )


class ApacheKafka(ChildProcesses):
    """One combined broker and controller. `data_dir` is kept if given.

    `jvm_options` replace the garbage collector that Kafka's start script selects."""

    def __init__(
        self,
        *,
        overrides: Mapping[str, str] | None = None,
        data_dir: Path | None = None,
        port: int | None = None,
        heap: str = "1g",
        jars: Path = DEFAULT_JARS,
        jvm_options: Sequence[str] = ("-XX:+UseG1GC",),
    ) -> None:
        self._jars = jars
        super().__init__(data_dir, prefix="apache-kafka-")
        self.log_dir = self.root / "data"
        self.port = port or free_port()
        self.controller_port = free_port()
        self._heap = heap
        self._jvm_options = jvm_options
        self._overrides = dict(overrides or {})
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    def start(self, *, wait_s: float = 200) -> None:
        """Format the directory if it is new, spawn the process and wait until its port accepts connections."""
        self.root.mkdir(parents=True, exist_ok=True)
        _write_log_config(self._jars)
        properties = self._write_properties()
        if not (self.log_dir / "meta.properties").exists():
            run_tool(
                "kafka.tools.StorageTool",
                "format",
                "--standalone",
                "--cluster-id",
                "AAAAAAAAQACAAAAAAAAAAA",
                "--config",
                str(properties),
                jars=self._jars,
            )
        output = (self.root / "kafka.log").open("ab")
        # Native libraries are unpacked there; a killed JVM does not delete them.
        scratch = self.root / "tmp"
        scratch.mkdir(exist_ok=True)
        options = (*self._jvm_options, f"-Djava.io.tmpdir={scratch}")
        self._process = subprocess.Popen(
            java_command("kafka.Kafka", str(properties), jars=self._jars, heap=self._heap, jvm_options=options),
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        reaper.watch_process(self._process.pid)
        output.close()
        deadline = time.monotonic() + wait_s
        while True:
            if self._process.poll() is not None:
                self._ended()
                raise RuntimeError(
                    f"Apache Kafka ended during startup:\n{(self.root / 'kafka.log').read_text()[-4000:]}"
                )
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                if time.monotonic() > deadline:
                    self.close()
                    raise RuntimeError("Apache Kafka did not open its port in time") from None
                time.sleep(0.05)

    def stop(self, *, wait_s: float = 120) -> None:
        """Stop cleanly (SIGTERM) and wait; the data directory is kept."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(wait_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._ended()

    def kill(self) -> None:
        """kill -9; the data directory is left unchanged."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._ended()

    def _end(self) -> None:
        self.kill()

    def _ended(self) -> None:
        if self._process is not None:
            reaper.forget_process(self._process.pid)
            self._process = None
        shutil.rmtree(self.root / "tmp", ignore_errors=True)

    def _write_properties(self) -> Path:
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{self.controller_port}",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{self.controller_port}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": str(self.log_dir),
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            **self._overrides,
        }
        path = self.root / "server.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        return path


def small_kafka(
    *, overrides: Mapping[str, str] | None = None, data_dir: Path | None = None, port: int | None = None
) -> ApacheKafka:
    """A Kafka for tests: a small heap and a quick start. Not for measurements."""
    return ApacheKafka(overrides=overrides, data_dir=data_dir, port=port, heap="512m", jvm_options=QUICK_START)
