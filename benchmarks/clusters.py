"""Clusters of processes under measurement, of either kind, with the same properties.

Owns their folders and processes. Nothing is waited for unless it is asked for, so that all can be timed from outside.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final, Literal
from uuid import uuid4

from fenceline.client.admin import Admin
from fenceline.client.admin_quorum import QuorumDescription
from fenceline.config.properties import format_properties
from fenceline.errors import FencelineError
from fenceline.ids import encode_uuid
from fenceline.node.format import format_directory, parse_initial_controllers
from fenceline.testing import reaper
from fenceline.testing.apache_kafka import free_port, java_command, run_tool
from fenceline.testing.local_cluster_probe import known_brokers

Side = Literal["fenceline", "kafka"]
SIDES: Final[tuple[Side, ...]] = ("fenceline", "kafka")
COMBINED: Final = "broker,controller"
CONTROLLER: Final = "controller"
LISTENER: Final = "CONTROLLER"
_CLUSTER_ID: Final = "AAAAAAAAQACAAAAAAAAAAA"
_PATIENCE_S: Final = 120.0
_STEP_S: Final = 0.005


def wait_for(look: Callable[[], object], what: str, *, timeout_s: float = _PATIENCE_S, step_s: float = _STEP_S) -> None:
    """Until `look` gives something true; refusals and broken connections count as not yet. Raises TimeoutError."""
    deadline = time.perf_counter() + timeout_s
    trouble: BaseException | None = None
    while True:
        try:
            if look():
                return
        except (FencelineError, OSError) as error:
            trouble = error
        if time.perf_counter() > deadline:
            raise TimeoutError(f"{what}: not within {timeout_s} s") from trouble
        time.sleep(step_s)


class NodeUnderTest:
    """One node: its folder, ports and process."""

    def __init__(self, cluster: ClusterUnderTest, node_id: int) -> None:
        self.node_id = node_id
        self.port, self.controller_port = free_port(), free_port()
        self.directory_id = encode_uuid(uuid4())
        self.root = cluster.root / f"node-{node_id}"
        self.data = self.root / "data"
        self.root.mkdir(parents=True)
        self._cluster = cluster
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def controller(self) -> str:
        return f"127.0.0.1:{self.controller_port}"

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def properties(self) -> Path:
        return self.root / "server.properties"

    def spawn(self) -> None:
        """Start the process and return at once."""
        with (self.root / "output").open("ab") as output:
            self._process = subprocess.Popen(
                self._cluster.command(self), stdout=output, stderr=output, env=self._cluster.environment
            )
        reaper.watch_process(self._process.pid)

    def kill(self) -> None:
        """kill -9; does nothing where it does not run."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            reaper.forget_process(self._process.pid)
            self._process = None

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None, "not started"
        self._process.send_signal(number)

    def knows(self, brokers: Iterable[int]) -> bool:
        """Whether its metadata names all of them: registered and not fenced."""
        if self._process is not None and self._process.poll() is not None:
            raise RuntimeError(f"{self._cluster.side}'s node {self.node_id} ended:\n{self.tail()}")
        return set(brokers) <= known_brokers(self.port, timeout_s=5)

    def listens(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.controller_port), timeout=1).close()
        except OSError:
            return False
        return True

    def tail(self) -> str:
        return (self.root / "output").read_text(errors="replace")[-4000:]


class ClusterUnderTest:
    """`voters` nodes of `roles` that begin a quorum; `joining` controllers are formatted, and join when spawned.

    Formatted when made; `prepare` may write more into the directories before any process starts.
    """

    def __init__(
        self,
        side: Side,
        root: Path,
        *,
        voters: int = 3,
        roles: str = COMBINED,
        joining: int = 0,
        settings: Mapping[str, str] | None = None,
        prepare: Callable[[ClusterUnderTest], None] | None = None,
    ) -> None:
        self.side, self.root, self.roles = side, root, roles
        self.nodes = [NodeUnderTest(self, node_id) for node_id in range(1, voters + joining + 1)]
        self.voters = self.nodes[:voters]
        self.initial_controllers = ",".join(
            f"{each.node_id}@{each.controller}:{each.directory_id}" for each in self.voters
        )
        self._settings = dict(settings or {})
        # Python's compiled files are where they are after any first start; the checkout may forbid to write them.
        self.environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        self.environment["PYTHONPYCACHEPREFIX"] = str(root.parent / "pycache")
        with ThreadPoolExecutor(2) as threads:
            list(threads.map(self._format, self.nodes))
        if prepare is not None:
            prepare(self)

    def __enter__(self) -> ClusterUnderTest:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for node in self.nodes:
            node.kill()
        shutil.rmtree(self.root, ignore_errors=True)

    def command(self, node: NodeUnderTest) -> list[str]:
        if self.side == "kafka":
            return java_command("kafka.Kafka", str(node.properties))
        return [sys.executable, "-m", "fenceline", "start", "--config", str(node.properties), "--log-level", "warning"]

    def start(self) -> float:
        """Seconds from the first spawn until all brokers know all, or all controllers listen and one leads."""
        started = time.perf_counter()
        for node in self.voters:
            node.spawn()
        if self.roles == COMBINED:
            self.wait_complete()
        else:
            for node in self.voters:
                wait_for(node.listens, f"controller {node.node_id} of {self.side}")
            self.leader()
        return time.perf_counter() - started

    def wait_complete(self) -> None:
        ids = [node.node_id for node in self.voters]
        for node in self.voters:
            wait_for(partial(node.knows, ids), f"{self.side}'s node {node.node_id} knows {ids}")

    def quorum(self) -> QuorumDescription:
        """Asked at the controllers. Raises FencelineError."""
        where = ",".join(each.controller for each in self.voters)
        with Admin({"bootstrap.controllers": where, "default.api.timeout.ms": 5000}) as admin:
            return admin.describe_quorum()

    def leader(self) -> NodeUnderTest:
        """Waits until there is one that says so; a controller that has just started may refuse to tell."""
        found: list[NodeUnderTest] = []

        def look() -> bool:
            leader = self.quorum().leader_id
            found.extend(node for node in self.voters if node.node_id == leader)
            return bool(found)

        wait_for(look, f"a leader of {self.side}")
        return found[0]

    def wait_caught_up(self) -> None:
        """Until every voter has the whole log and asked for more a moment ago."""

        def look() -> bool:
            found = self.quorum()
            fetched = [v.last_fetch_ms or 0 for v in found.voters if v.replica_id != found.leader_id]
            return all(v.lag == 0 for v in found.voters) and min(fetched) > (time.time() - 1) * 1000

        wait_for(look, f"all voters of {self.side} caught up", step_s=0.1)

    def _format(self, node: NodeUnderTest) -> None:
        listeners = [f"{LISTENER}://{node.controller}"]
        if self.roles == COMBINED:
            listeners.insert(0, f"PLAINTEXT://{node.bootstrap}")
        settings = {
            "node.id": str(node.node_id),
            "process.roles": self.roles,
            "listeners": ",".join(listeners),
            "controller.listener.names": LISTENER,
            "listener.security.protocol.map": f"PLAINTEXT:PLAINTEXT,{LISTENER}:PLAINTEXT",
            "controller.quorum.bootstrap.servers": ",".join(each.controller for each in self.voters),
            "log.dirs": str(node.data),
            "offsets.topic.replication.factor": "1",
            **self._settings,
        }
        node.properties.write_text(format_properties(settings))
        votes = node in self.voters
        if self.side == "fenceline":
            voters = parse_initial_controllers(self.initial_controllers, LISTENER) if votes else ()
            format_directory([node.data], cluster_id=_CLUSTER_ID, node_id=node.node_id, voters=voters)
            return
        how = ("--initial-controllers", self.initial_controllers) if votes else ("--no-initial-controllers",)
        arguments = ("format", "--cluster-id", _CLUSTER_ID, "--config", str(node.properties), *how)
        run_tool("kafka.tools.StorageTool", *arguments)
