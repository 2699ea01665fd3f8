"""Clusters of real processes on one machine, with the same properties: Fenceline nodes, Apache Kafka nodes, or both.

Owns the folders and processes of the nodes. Waits only when asked, so that everything can be timed from outside. For
Fenceline alone, with cuts and a command line, there is `fenceline.local_cluster`.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final

from fenceline.config.properties import format_properties
from fenceline.ids import encode_uuid, random_id
from fenceline.local_cluster import reaper
from fenceline.local_cluster.child_processes import ChildProcesses
from fenceline.local_cluster.probe import known_brokers
from fenceline.node.metadata.format import format_directory, parse_initial_controllers
from fenceline.node.net.peer_connection import open_peer
from fenceline.testing.apache_kafka import free_port, java_command, run_tool
from fenceline.testing.waiting import eventually
from fenceline.wire.apis import ApiKey

CLUSTER_ID: Final = "AAAAAAAAQACAAAAAAAAAAA"
BROKER: Final = "broker"
CONTROLLER: Final = "controller"
COMBINED: Final = f"{BROKER},{CONTROLLER}"
LISTENER: Final = "CONTROLLER"
READY_WAIT_S: Final = 200.0
STOP_WAIT_S: Final = 120.0
_READY_LINE: Final = "Fenceline is ready"
_LAST_CHARACTERS: Final = 4000


class MixedNode:
    """One node of either kind: its folder, ports and process."""

    def __init__(self, cluster: MixedCluster, node_id: int, roles: Sequence[str], *, is_kafka: bool) -> None:
        self.node_id = node_id
        self.roles = tuple(roles)
        self.is_kafka = is_kafka
        self.port, self.controller_port = free_port(), free_port()
        self.directory_id = encode_uuid(random_id())
        self.root = cluster.root / f"node-{node_id}"
        self.log_dir = self.root / "data"
        self.log_dirs = (self.log_dir, *(self.root / f"data-{number}" for number in range(2, cluster.directories + 1)))
        self.properties_file = self.root / "server.properties"
        self.settings: dict[str, str] = {}
        """Properties of this node, from its next start on; they take precedence."""
        self._cluster = cluster
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def kind(self) -> str:
        return "kafka" if self.is_kafka else "fenceline"

    @property
    def is_controller(self) -> bool:
        return CONTROLLER in self.roles

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def controller(self) -> str:
        """The address of its controller listener."""
        return f"127.0.0.1:{self.controller_port}"

    @property
    def output(self) -> str:
        """Its output since its last start."""
        return (self.root / "output").read_text(errors="replace")

    @property
    def pid(self) -> int:
        assert self._process is not None, "it was not started"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    # --- life cycle -----------------------------------------------------------------------------------------------

    def write_properties(self) -> None:
        listeners = []
        if BROKER in self.roles:
            listeners.append(f"PLAINTEXT://{self.bootstrap}")
        if self.is_controller:
            listeners.append(f"{LISTENER}://{self.controller}")
        settings = {
            "node.id": str(self.node_id),
            "process.roles": ",".join(self.roles),
            "listeners": ",".join(listeners),
            "controller.listener.names": LISTENER,
            "listener.security.protocol.map": f"PLAINTEXT:PLAINTEXT,{LISTENER}:PLAINTEXT",
            **self._cluster.quorum_settings,
            "log.dirs": ",".join(map(str, self.log_dirs)),
            "offsets.topic.replication.factor": "1",
            **self._cluster.settings,
            **self.settings,
        }
        self.root.mkdir(parents=True, exist_ok=True)
        self.properties_file.write_text(format_properties(settings))

    def format(self) -> None:
        """Format its directory for the cluster."""
        self.write_properties()
        controllers = self._cluster.initial_controllers
        votes = f"{self.node_id}@" in controllers
        if not self.is_kafka:
            voters = parse_initial_controllers(controllers, LISTENER) if votes else ()
            format_directory(self.log_dirs, cluster_id=CLUSTER_ID, node_id=self.node_id, voters=voters)
            return
        how = ["--initial-controllers", controllers] if votes else []
        if self.is_controller and not votes and controllers:
            how = ["--no-initial-controllers"]
        path = str(self.properties_file)
        run_tool("kafka.tools.StorageTool", "format", "--cluster-id", CLUSTER_ID, "--config", path, *how)

    def start(self) -> None:
        """Spawn it, without waiting."""
        self.write_properties()
        path = str(self.properties_file)
        if self.is_kafka:
            command = java_command("kafka.Kafka", path, heap=self._cluster.heap)
        else:
            command = [sys.executable, "-m", "fenceline", "start", "--config", path, *self._cluster.options]
        with (self.root / "output").open("wb") as output:
            self._process = subprocess.Popen(
                command,
                stdout=output,
                stderr=output,
                env=self._cluster.environment,
                # Ctrl-C in a test run goes to the tests, which then end the node themselves.
                start_new_session=True,
            )
        reaper.watch_process(self._process.pid)

    def send_signal(self, number: signal.Signals) -> None:
        assert self._process is not None, "it was not started"
        self._process.send_signal(number)

    def kill(self) -> None:
        """kill -9; does nothing if it does not run."""
        if self._process is not None:
            self._process.kill()
            self._ended(STOP_WAIT_S)

    def stop(self, *, wait_s: float = STOP_WAIT_S) -> int:
        """SIGTERM; returns its exit code."""
        self.send_signal(signal.SIGTERM)
        return self._ended(wait_s)

    def _ended(self, wait_s: float) -> int:
        assert self._process is not None
        code = self._process.wait(wait_s)
        reaper.forget_process(self._process.pid)
        self._process = None
        return code

    # --- state ----------------------------------------------------------------------------------------------------

    def wait_ready(self) -> None:
        """Wait for its ready line (Fenceline), or until its port accepts connections (Kafka)."""
        if self.is_kafka:
            eventually(self._accepts, f"Kafka's node {self.node_id} is ready", wait_s=READY_WAIT_S)
        else:
            eventually(self._has_ready_line, f"node {self.node_id} is ready", wait_s=READY_WAIT_S)

    def listens(self) -> bool:
        """Whether its controller listener accepts connections."""
        try:
            socket.create_connection(("127.0.0.1", self.controller_port), timeout=1).close()
        except OSError:
            return False
        return True

    def knows(self, brokers: Iterable[int]) -> bool:
        """Whether all of them are in its metadata: registered and not fenced. Raises RuntimeError if it has ended."""
        self.check_running()
        return set(brokers) <= known_brokers(self.port, timeout_s=5)

    def describe_quorum(self) -> Any:
        """The metadata partition of its DescribeQuorum response, from its controller listener. Raises OSError."""

        async def ask() -> Any:
            connection = await open_peer("127.0.0.1", self.controller_port, client_id="test")
            try:
                topic = {"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}
                answer = await connection.call(ApiKey.DESCRIBE_QUORUM, 2, {"topics": [topic]}, 10)
                return answer.topics[0].partitions[0]
            finally:
                connection.close()

        return asyncio.run(ask())

    def _has_ready_line(self) -> bool:
        ready = _READY_LINE in self.output
        if not ready:
            self.check_running()
        return ready

    def _accepts(self) -> bool:
        self.check_running()
        port = self.port if BROKER in self.roles else self.controller_port

        async def poll() -> bool:
            (await open_peer("127.0.0.1", port, client_id="test")).close()
            return True

        return asyncio.run(poll())

    def check_running(self) -> None:
        """Raises RuntimeError with the end of the node's output if its process has ended."""
        if not self.is_running:
            raise RuntimeError(f"{self.kind}'s node {self.node_id} has ended:\n{self.output[-_LAST_CHARACTERS:]}")


class MixedCluster(ChildProcesses):
    """`kinds` has the roles of each node, with ids from 1 on; the prefix `kafka:` means Apache Kafka.

    Only the first `voters` controllers form the initial quorum, by default all; nodes of `late` are formatted but not
    started. `static` voters are those of `controller.quorum.voters`, with kraft.version 0. `heap` is that of each Kafka
    JVM, `options` are those of each `fenceline start`, `directories` is the number of data directories of each node."""

    def __init__(
        self,
        root: Path,
        kinds: Sequence[str],
        *,
        voters: int | None = None,
        late: Iterable[int] = (),
        static: bool = False,
        settings: Mapping[str, str] | None = None,
        heap: str = "512m",
        options: Sequence[str] = ("--log-format", "json"),
        environment: Mapping[str, str] | None = None,
        directories: int = 1,
    ) -> None:
        super().__init__(root, prefix="mixed-cluster-")
        self.directories = directories
        self._late = frozenset(late)
        self.settings = dict(settings or {})
        self.heap, self.options, self.environment = heap, tuple(options), environment
        self.nodes: list[MixedNode] = []
        for node_id, kind in enumerate(kinds, 1):
            roles = kind.removeprefix("kafka:").split(",")
            self.nodes.append(MixedNode(self, node_id, roles, is_kafka=kind.startswith("kafka:")))
        controllers = [each for each in self.nodes if each.is_controller]
        self.voters = controllers[:voters]
        if static:
            named = ",".join(f"{each.node_id}@{each.controller}" for each in controllers)
            self.initial_controllers = ""
            self.quorum_settings = {"controller.quorum.voters": named}
        else:
            self.initial_controllers = ",".join(
                f"{each.node_id}@{each.controller}:{each.directory_id}" for each in self.voters
            )
            servers = ",".join(each.controller for each in controllers)
            self.quorum_settings = {"controller.quorum.bootstrap.servers": servers}

    def start(self) -> None:
        """Format all nodes and spawn those that are not late."""
        with ThreadPoolExecutor(2) as threads:
            list(threads.map(MixedNode.format, self.nodes))
        for node in self._started:
            node.start()

    def _end(self) -> None:
        for node in self.nodes:
            node.kill()

    def node(self, node_id: int) -> MixedNode:
        return self.nodes[node_id - 1]

    @property
    def _started(self) -> list[MixedNode]:
        return [node for node in self.nodes if node.node_id not in self._late]

    def check_running(self) -> None:
        """Raises RuntimeError if a node that is not late has ended."""
        for node in self._started:
            node.check_running()

    def wait_ready(self) -> None:
        """Wait until all nodes that are not late are ready."""
        for node in self._started:
            node.wait_ready()

    def wait_complete(self) -> None:
        """Wait until every running broker knows all running brokers."""
        brokers = [node for node in self.nodes if BROKER in node.roles and node.is_running]
        ids = [node.node_id for node in brokers]
        for node in brokers:
            eventually(partial(node.knows, ids), f"{node.kind}'s node {node.node_id} knows {ids}", wait_s=READY_WAIT_S)

    def leader(self, *, but: int = -1) -> MixedNode:
        """The leader of the quorum by its own report; waits for one."""

        def poll() -> MixedNode | None:
            for node in self.nodes:
                if node.is_running and node.is_controller and node.node_id != but:
                    try:
                        described = node.describe_quorum()
                    except OSError:
                        continue
                    if described.error_code == 0 and described.leader_id == node.node_id:
                        return node
            return None

        return eventually(poll, "a leader")
