"""Clusters of real processes on one machine: Fenceline nodes, Apache Kafka nodes, or both in one voter set."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

from fenceline.config.properties import format_properties
from fenceline.ids import encode_uuid
from fenceline.node.format import format_directory, parse_initial_controllers
from fenceline.node.peer_connection import open_peer
from fenceline.testing import reaper
from fenceline.testing.apache_kafka import free_port, java_command, run_tool
from fenceline.wire.apis import ApiKey

CLUSTER = "AAAAAAAAQACAAAAAAAAAAA"


def eventually(look: Callable[[], Any], *, wait_s: float = 60) -> Any:
    """What `look` gives once it is true; an error that it raises counts as not yet."""
    deadline = time.monotonic() + wait_s
    while True:
        error: BaseException | None = None
        try:
            found = look()
            if found:
                return found
        except (OSError, AssertionError, LookupError) as failure:
            error = failure
        if time.monotonic() > deadline:
            raise AssertionError(f"never came: {look}") from error
        time.sleep(0.05)


class Process:
    """One node of a cluster, of either kind."""

    def __init__(self, cluster: Processes, node_id: int, roles: Sequence[str], *, is_kafka: bool) -> None:
        self.node_id = node_id
        self.roles = tuple(roles)
        self.is_kafka = is_kafka
        self.port = free_port()
        self.controller_port = free_port()
        self.directory_id = encode_uuid(uuid4())
        self.root = cluster.root / f"node-{node_id}"
        self.root.mkdir()
        self._cluster = cluster
        self._process: subprocess.Popen[str] | None = None

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def controller(self) -> str:
        return f"127.0.0.1:{self.controller_port}"

    @property
    def log_dir(self) -> Path:
        return self.root / "data"

    @property
    def output(self) -> str:
        """What it wrote."""
        return (self.root / "output").read_text()

    def write_properties(self) -> Path:
        listeners = []
        if "broker" in self.roles:
            listeners.append(f"PLAINTEXT://127.0.0.1:{self.port}")
        if "controller" in self.roles:
            listeners.append(f"CONTROLLER://127.0.0.1:{self.controller_port}")
        path = self.root / "server.properties"
        path.write_text(
            format_properties(
                {
                    "node.id": str(self.node_id),
                    "process.roles": ",".join(self.roles),
                    "listeners": ",".join(listeners),
                    "controller.listener.names": "CONTROLLER",
                    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
                    **self._cluster.quorum_settings,
                    "log.dirs": str(self.log_dir),
                    "offsets.topic.replication.factor": "1",
                    **self._cluster.settings,
                }
            )
        )
        return path

    def format(self) -> None:
        """Make its directory part of the cluster."""
        controllers = self._cluster.initial_controllers
        votes = f"{self.node_id}@" in controllers
        if not self.is_kafka:
            voters = parse_initial_controllers(controllers, "CONTROLLER") if votes else ()
            format_directory([self.log_dir], cluster_id=CLUSTER, node_id=self.node_id, voters=voters)
            return
        how = ["--initial-controllers", controllers] if votes else []
        if "controller" in self.roles and not votes and controllers:
            how = ["--no-initial-controllers"]
        path = str(self.write_properties())
        run_tool("kafka.tools.StorageTool", "format", "--cluster-id", CLUSTER, "--config", path, *how)

    def start(self) -> None:
        """Spawn it; nobody waits for it."""
        path = self.write_properties()
        if self.is_kafka:
            command = java_command("kafka.Kafka", str(path), heap="512m")
        else:
            command = [sys.executable, "-m", "fenceline", "start", "--config", str(path), "--log-format", "json"]
        with (self.root / "output").open("w") as output:
            self._process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, text=True, start_new_session=True
            )
        reaper.watch_process(self._process.pid)

    def wait_ready(self) -> None:
        """Until its ready line is there (Fenceline), or its port takes connections (Kafka)."""
        if not self.is_kafka:

            def look_at_output() -> bool:
                if "Fenceline is ready" in self.output:
                    return True
                if not self.is_running:
                    raise RuntimeError(f"node {self.node_id} has ended:\n{self.output}")
                return False

            eventually(look_at_output, wait_s=120)
            return
        port = self.port if "broker" in self.roles else self.controller_port

        async def look() -> bool:
            (await open_peer("127.0.0.1", port, client_id="test")).close()
            return True

        eventually(lambda: asyncio.run(look()), wait_s=200)

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None, "it was not started"
        return self._process.pid

    def kill(self) -> None:
        """kill -9."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            reaper.forget_process(self._process.pid)
            self._process = None

    def stop(self) -> int:
        """SIGTERM; its exit code."""
        assert self._process is not None, "it was not started"
        self._process.terminate()
        code = self._process.wait(120)
        reaper.forget_process(self._process.pid)
        self._process = None
        return code

    def describe_quorum(self) -> Any:
        """The metadata partition of its DescribeQuorum answer, asked at its controllers' listener. Raises OSError."""

        async def ask() -> Any:
            connection = await open_peer("127.0.0.1", self.controller_port, client_id="test")
            try:
                topic = {"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}
                answer = await connection.call(ApiKey.DESCRIBE_QUORUM, 2, {"topics": [topic]}, 10)
                return answer.topics[0].partitions[0]
            finally:
                connection.close()

        return asyncio.run(ask())


class Processes:
    """A cluster. `kinds` says of each node, ids from 1 on: its roles, with `kafka:` before them for Apache Kafka."""

    def __init__(
        self,
        root: Path,
        kinds: Sequence[str],
        *,
        voters: int | None = None,
        late: Sequence[int] = (),
        static: bool = False,
        settings: dict[str, str] | None = None,
    ) -> None:
        """Only the first `voters` controllers begin the quorum; nodes of `late` are formatted and not started; `static`
        voters are those of `controller.quorum.voters`, with kraft.version 0."""
        self._late = frozenset(late)
        self.root = root
        self.settings = settings or {}
        self.nodes: list[Process] = []
        for node_id, kind in enumerate(kinds, 1):
            roles = kind.removeprefix("kafka:").split(",")
            self.nodes.append(Process(self, node_id, roles, is_kafka=kind.startswith("kafka:")))
        controllers = [each for each in self.nodes if "controller" in each.roles]
        self.initial_controllers = ",".join(
            f"{each.node_id}@{each.controller}:{each.directory_id}" for each in controllers[:voters] if not static
        )
        if static:
            named = ",".join(f"{each.node_id}@{each.controller}" for each in controllers)
            self.quorum_settings = {"controller.quorum.voters": named}
        else:
            servers = ",".join(each.controller for each in controllers)
            self.quorum_settings = {"controller.quorum.bootstrap.servers": servers}

    def __enter__(self) -> Processes:
        try:
            for node in self.nodes:
                node.format()
            for node in self.nodes:
                if node.node_id not in self._late:
                    node.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for node in self.nodes:
            node.kill()

    def wait_ready(self) -> None:
        for node in self.nodes:
            if node.node_id not in self._late:
                node.wait_ready()

    def node(self, node_id: int) -> Process:
        return self.nodes[node_id - 1]

    def leader(self, *, but: int = -1) -> Process:
        """Who leads the quorum and says so itself; waits for it."""

        def look() -> Process | None:
            for node in self.nodes:
                if node.is_running and "controller" in node.roles and node.node_id != but:
                    try:
                        described = node.describe_quorum()
                    except OSError:
                        continue
                    if described.error_code == 0 and described.leader_id == node.node_id:
                        return node
            return None

        found: Process = eventually(look)
        return found
