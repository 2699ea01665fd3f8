"""A cluster of nodes as separate processes of this machine, for tests, benchmarks and `fenceline cluster`.

Owns the processes of the nodes and the folder of the cluster while it is up. Never relays bytes between nodes and
clients: it starts, watches, signals, and cuts sockets off (`cuts.py`).

    with LocalCluster(3) as cluster:
        cluster.isolate(1)
        cluster.heal(1)
"""

from __future__ import annotations

import fcntl
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from fenceline.errors import OperatorError
from fenceline.local_cluster import layout as layouts
from fenceline.local_cluster.child_processes import ChildProcesses
from fenceline.local_cluster.control import ControlServer
from fenceline.local_cluster.cuts import NetworkCut, NetworkCuts
from fenceline.local_cluster.layout import ClusterLayout, NodePlace
from fenceline.local_cluster.probe import ProbedQuorum, known_brokers, quorum_status
from fenceline.local_cluster.process import NodeProcess, Spawn, spawn_interpreter, trim_log, wait_for_leftovers

READY_WAIT_S: Final = 60.0
STOP_WAIT_S: Final = 10.0
"""How long a node may take to stop cleanly before it is killed."""
LAST_LINES: Final = 10
_PROBE_TIMEOUT_S: Final = 1.0
_PROBE_PAUSE_S: Final = 0.01
_LEFTOVER_WAIT_S: Final = 5.0
_TRIM_EVERY_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """The current state of a node. `state` is new, starting, running, paused or ended; `exit_code` is that of the last
    process."""

    node: int
    roles: tuple[str, ...]
    address: str
    state: str
    pid: int | None
    exit_code: int | None
    memory_bytes: int | None
    cuts: tuple[NetworkCut, ...]
    log: str


@dataclass(frozen=True, slots=True)
class NodeEnded:
    """The process of a node has ended. `was_wanted`: whether this was requested."""

    node: int
    exit_code: int
    was_wanted: bool
    last_lines: tuple[str, ...]


class LocalCluster(ChildProcesses):
    """Nodes 1 to N. Thread-safe.

    `data_dir` is kept if given, and continued if it has a cluster; otherwise a temporary folder is deleted with the
    cluster. `nodes` (3 in a new folder) are brokers, and controllers as well unless `controllers` adds that many nodes
    for this role. `port` is that of node 1, the others follow; 0 selects free ones. `secure` gives a new
    cluster certificates and users (`secured`). `overrides` are properties of every
    node. `on_end` is called, from its own thread, when the process of a node has ended. `spawn` starts the process of a
    node."""

    def __init__(
        self,
        nodes: int | None = None,
        *,
        controllers: int | None = None,
        data_dir: Path | None = None,
        port: int = 0,
        secure: bool = False,
        overrides: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
        log_level: str = "warning",
        on_end: Callable[[NodeEnded], None] | None = None,
        spawn: Spawn = spawn_interpreter,
    ) -> None:
        self._wanted_nodes, self._wanted_controllers, self._wanted_port = nodes, controllers, port
        self._wants_security = secure
        super().__init__(None if data_dir is None else data_dir.absolute(), prefix="fenceline-cluster-")
        self._overrides = dict(overrides or {})
        owned = layouts.owned_environment()
        self._environment = {
            name: value for name, value in {**os.environ, **(environment or {})}.items() if name.upper() not in owned
        }
        self._log_level = log_level
        self._on_end = on_end
        self._spawn_process = spawn
        self._layout: ClusterLayout | None = None
        self._processes: dict[int, NodeProcess] = {}
        self._changed = threading.Condition()
        self._is_stopping = False
        self._life = threading.Lock()
        """Held while nodes are spawned for the first time, and while they are stopped."""
        self._control: ControlServer | None = None
        self._lock_file: int | None = None
        self._spawner: ThreadPoolExecutor | None = None
        self._cuts: NetworkCuts | None = None
        self._waits_for = ""

    @property
    def layout(self) -> ClusterLayout:
        """The nodes and their files. Only available after `start`."""
        assert self._layout is not None, "the cluster was not started"
        return self._layout

    @property
    def bootstrap(self) -> str:
        """The addresses of the brokers, separated by commas."""
        return self.layout.bootstrap

    @property
    def cluster_id(self) -> str:
        return self.layout.cluster_id

    def pid(self, node: int) -> int:
        """The pid of a node that was started."""
        return self.running(node).pid

    # --- the cluster's life ---------------------------------------------------------------------------------------

    def start(self, *, wait_s: float = READY_WAIT_S) -> None:
        """Create or continue the cluster, start its nodes in parallel and wait until it is complete.

        Raises OperatorError; `close` or `stop` then ends the started nodes."""
        with self._life:
            if self._is_stopping:
                raise OperatorError("The cluster was stopped before it was started")
            self._lock_folder()
            wait_for_leftovers(self.root, wait_s=_LEFTOVER_WAIT_S)
            self._layout = layouts.plan(
                self.root,
                nodes=self._wanted_nodes,
                controllers=self._wanted_controllers,
                port=self._wanted_port,
                secure=self._wants_security,
            )
            layouts.write(self._layout, self._overrides)
            self._cuts = NetworkCuts(self._layout.listeners, self._running_pids)
            self._spawner = ThreadPoolExecutor(1, thread_name_prefix="spawner")
            for place in self._layout.nodes:
                self._spawn(place)
            self._control = ControlServer(self.root, self.run_command)
            threading.Thread(target=self._keep_logs_small, name="cluster logs", daemon=True).start()
        self.wait_until_ready(wait_s=wait_s)

    @property
    def waits_for(self) -> str:
        """What a start or restart is waiting for; empty if it is not waiting."""
        return self._waits_for

    def warnings(self) -> list[str]:
        """Warnings about the settings of the nodes, such as unknown keys. Only after `start`."""
        from fenceline.config.node import NodeConfig

        return list(NodeConfig.load(self.layout.nodes[0].properties_file, {}, self._environment).warnings)

    def wait_until_ready(self, *, wait_s: float = READY_WAIT_S) -> None:
        """Wait until every node has reported that it is ready, and every broker knows all brokers as registered and
        unfenced.

        Raises OperatorError if a node ends meanwhile, with its last lines, or if it takes too long."""
        deadline = time.monotonic() + wait_s
        for place in self.layout.nodes:
            self._wait_ready(place.node_id, deadline)
        all_brokers = frozenset(broker.node_id for broker in self.layout.brokers)
        for broker in self.layout.brokers:
            self._wait_known(broker, all_brokers, deadline)
        self._waits_for = ""

    def stop(self, *, wait_s: float = STOP_WAIT_S) -> dict[int, int]:
        """Stop all running nodes cleanly, and kill those that take too long; returns their exit codes. The folder is
        kept."""
        self._is_stopping = True
        with self._changed:
            self._changed.notify_all()
        with self._life:
            if self._control is not None:
                self._control.close()
                self._control = None
            if self._cuts is not None:
                self._cuts.close()
            processes = {node: each for node, each in self._processes.items() if each.is_running}
            # A controlled shutdown of brokers needs the controllers, so these stop last.
            for is_controller in (False, True):
                stopping = [each for each in processes.values() if each.place.is_controller is is_controller]
                for process in stopping:
                    process.ask_to_end(signal.SIGTERM)
                self._wait_ended(stopping, wait_s)
            self.kill_all()
            self._wait_ended(processes.values(), STOP_WAIT_S)
            self._unlock_folder()
            self._is_stopping = False
        return {node: process.exit_code or 0 for node, process in processes.items()}

    def kill_all(self) -> None:
        """kill -9 for every node, without waiting."""
        self._is_stopping = True
        for process in list(self._processes.values()):
            if process.is_running:
                process.ask_to_end(signal.SIGKILL)

    def _end(self) -> None:
        self.kill_all()
        self.stop()

    # --- one node -------------------------------------------------------------------------------------------------

    def status(self) -> list[NodeStatus]:
        """The status of all nodes."""
        return [self.status_of(place.node_id) for place in self.layout.nodes]

    def status_of(self, node: int) -> NodeStatus:
        place, process = self._place(node), self._processes.get(node)
        is_running = process is not None and process.is_running
        return NodeStatus(
            node=node,
            roles=place.roles,
            address=place.address,
            state=_state(process),
            pid=process.pid if process is not None and is_running else None,
            exit_code=process.exit_code if process is not None else None,
            memory_bytes=process.memory_bytes() if process is not None and is_running else None,
            cuts=tuple(self._cuts.of(node)) if self._cuts is not None else (),
            log=str(place.log_file),
        )

    def quorum(self) -> ProbedQuorum | None:
        """The quorum as the active controller reports it; None if no controller leads, or the leader cannot be
        queried."""
        ports = [
            place.controller_port
            for place, status in zip(self.layout.nodes, self.status(), strict=True)
            if place.controller_port is not None
            if status.state == "running" and not any(cut.peer is None for cut in status.cuts)
        ]
        return quorum_status(ports, timeout_s=_PROBE_TIMEOUT_S, login=self.layout.login)

    def running(self, node: int) -> NodeProcess:
        """The process of a node. Raises OperatorError if there is no such node, or it does not run."""
        self._place(node)
        process = self._processes.get(node)
        if process is None or not process.is_running:
            raise OperatorError(f"Node {node} is not running", f"Start it with: fenceline cluster restart {node}")
        return process

    def is_running(self, node: int) -> bool:
        """Whether the process of a node runs, paused or not. Raises OperatorError if there is no such node."""
        self._place(node)
        process = self._processes.get(node)
        return process is not None and process.is_running

    def kill(self, node: int) -> None:
        """kill -9, and wait until it has ended. Raises OperatorError if it does not run."""
        process = self.running(node)
        process.ask_to_end(signal.SIGKILL)
        self._wait_ended([process], STOP_WAIT_S)

    def stop_node(self, node: int, *, wait_s: float = STOP_WAIT_S) -> None:
        """Stop a node cleanly (SIGTERM); kill it if it takes too long. Raises OperatorError if it does not run."""
        process = self.running(node)
        process.ask_to_end(signal.SIGTERM)
        self._wait_ended([process], wait_s)
        if process.is_running:
            process.ask_to_end(signal.SIGKILL)
            self._wait_ended([process], STOP_WAIT_S)

    def pause(self, node: int) -> None:
        """Freeze a node (SIGSTOP); its connections stay open and silent."""
        self.running(node).pause()

    def resume(self, node: int) -> None:
        """Resume a paused node."""
        self.running(node).resume()

    def restart(self, node: int, *, wait_s: float = READY_WAIT_S) -> None:
        """Stop a node cleanly if it runs, start it, and wait until it is ready and in its own metadata.

        Does not wait for a node that is cut off from clients. Raises OperatorError."""
        self._place(node)
        if self.is_running(node):
            self.stop_node(node)
        self.start_nodes([node], wait_s=wait_s)

    def start_nodes(self, nodes: Iterable[int], *, wait_s: float = READY_WAIT_S) -> None:
        """Start nodes that do not run, all at once, and wait as `restart`. Raises OperatorError."""
        places = [self._place(node) for node in nodes]
        for place in places:
            self._spawn(place)
        deadline = time.monotonic() + wait_s
        for place in places:
            node = place.node_id
            if self._cuts is not None and (self._cuts.is_lost(None, node) or self._cuts.is_lost(node, None)):
                continue
            self._wait_ready(node, deadline)
            if place.is_broker:
                self._wait_known(place, frozenset({node}), deadline)
        self._waits_for = ""

    def isolate(self, node: int, *, peers: Iterable[int] = (), inbound: bool = True, outbound: bool = True) -> None:
        """Cut a node off, silently: traffic from it and to it is lost, on new and on open connections.

        From all nodes and clients, or only from `peers`. Cuts accumulate until `heal`, and survive a restart of the
        node. Raises OperatorError: not on Linux, forbidden by the system, no such node."""
        self._place(node)
        wanted = [NetworkCut(self._place(peer).node_id, inbound, outbound) for peer in peers] or [
            NetworkCut(None, inbound, outbound)
        ]
        if not inbound and not outbound:
            raise OperatorError("A cut needs a direction", "Specify inbound, outbound or both.")
        if any(cut.peer == node for cut in wanted):
            raise OperatorError(f"Node {node} cannot be cut off from itself")
        assert self._cuts is not None, "the cluster was not started"
        self._cuts.isolate(node, wanted)

    def heal(self, node: int) -> None:
        """End all cuts that `isolate` made for this node. TCP continues with its next retransmission, which may take a
        while."""
        self._place(node)
        assert self._cuts is not None, "the cluster was not started"
        self._cuts.heal(node)

    def run_command(self, request: dict[str, Any]) -> dict[str, Any]:
        """Execute a command of `fenceline cluster` and return its result.

        Raises OperatorError, ValueError, KeyError, TypeError."""
        command = request["command"]
        if command == "status":
            return {
                "cluster_id": self.cluster_id,
                "bootstrap": self.bootstrap,
                "supervisor_pid": os.getpid(),
                "quorum": asdict(quorum) if (quorum := self.quorum()) is not None else None,
                "nodes": [asdict(each) for each in self.status()],
            }
        node = int(request["node"])
        match command:
            case "kill":
                self.kill(node)
            case "pause":
                self.pause(node)
            case "resume":
                self.resume(node)
            case "restart":
                self.restart(node)
            case "heal":
                self.heal(node)
            case "isolate":
                peers = [int(peer) for peer in request["peers"]]
                self.isolate(node, peers=peers, inbound=bool(request["inbound"]), outbound=bool(request["outbound"]))
            case _:
                raise ValueError(f"unknown command {command!r}")
        return asdict(self.status_of(node))

    # --- inside ---------------------------------------------------------------------------------------------------

    def _place(self, node: int) -> NodePlace:
        for place in self.layout.nodes:
            if place.node_id == node:
                return place
        raise OperatorError(f"There is no node {node}", f"The nodes are 1 to {len(self.layout.nodes)}.")

    def _running_pids(self) -> dict[int, int]:
        return {node: process.pid for node, process in list(self._processes.items()) if process.is_running}

    def _spawn(self, place: NodePlace) -> None:
        """All spawns happen in one thread that lives as long as the cluster: a node ends with the thread that spawned
        it."""
        spawner = self._spawner
        if self._is_stopping or spawner is None:
            raise OperatorError("The cluster is stopping")

        def spawn() -> None:
            process = self._processes.get(place.node_id)
            if process is not None and process.is_running:
                raise OperatorError(f"Node {place.node_id} is already running")
            self._processes[place.node_id] = NodeProcess(
                place,
                environment=self._environment,
                log_level=self._log_level,
                on_change=self._on_change,
                spawn=self._spawn_process,
            )
            if self._is_stopping:
                self._processes[place.node_id].ask_to_end(signal.SIGKILL)

        spawner.submit(spawn).result()

    def _on_change(self, process: NodeProcess) -> None:
        with self._changed:
            self._changed.notify_all()
        if process.exit_code is not None and self._on_end is not None:
            lines = tuple(process.last_lines(LAST_LINES))
            self._on_end(NodeEnded(process.place.node_id, process.exit_code, process.end_is_wanted, lines))

    def _keep_logs_small(self) -> None:
        while True:
            with self._changed:
                if self._changed.wait_for(lambda: self._is_stopping, _TRIM_EVERY_S):
                    return
            for place in self.layout.nodes:
                trim_log(place.log_file)

    def _wait_ready(self, node: int, deadline: float) -> None:
        process = self._processes[node]
        self._waits_for = f"node {node} to start"
        with self._changed:
            self._changed.wait_for(
                lambda: process.is_ready or not process.is_running or self._is_stopping,
                max(0.0, deadline - time.monotonic()),
            )
        self._check_alive(process)
        if not process.is_ready:
            raise OperatorError(f"Node {node} was not ready in time", f"See {process.place.log_file}.")

    def _wait_known(self, broker: NodePlace, wanted: frozenset[int], deadline: float) -> None:
        process = self._processes[broker.node_id]
        assert broker.port is not None
        while not wanted <= (known := known_brokers(broker.port, timeout_s=_PROBE_TIMEOUT_S, login=self.layout.login)):
            self._check_alive(process)
            missing = ", ".join(str(node) for node in sorted(wanted - known))
            self._waits_for = f"broker {missing} to be registered in the metadata of node {broker.node_id}"
            if time.monotonic() > deadline:
                raise OperatorError(
                    f"Node {broker.node_id} did not get the registration of node {missing} in time",
                    f"See the logs of the nodes: {self.root}/node-*/node.log",
                )
            with self._changed:
                self._changed.wait(_PROBE_PAUSE_S)

    def _check_alive(self, process: NodeProcess) -> None:
        if self._is_stopping:
            raise OperatorError("The cluster was stopped before it was ready")
        if not process.is_running:
            lines = "".join(f"\n  {line}" for line in process.last_lines(LAST_LINES))
            raise OperatorError(
                f"Node {process.place.node_id} ended with {process.exit_code} before it was ready:{lines}",
                f"See its log: {process.place.log_file}.",
            )

    def _wait_ended(self, processes: Iterable[NodeProcess], wait_s: float) -> None:
        waited = list(processes)
        with self._changed:
            self._changed.wait_for(lambda: not any(process.is_running for process in waited), wait_s)

    def _lock_folder(self) -> None:
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            self._lock_file = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            raise OperatorError(f"{self.root} is a file", "Specify a folder, which may be new.") from None
        except OSError as error:
            raise OperatorError(
                f"{self.root} cannot be used: {error.strerror or error}",
                "Specify a folder that this user can create and write.",
            ) from error
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock_file)
            self._lock_file = None
            raise OperatorError(
                f"The cluster in {self.root} is already running",
                f"See: fenceline cluster status --data-dir {self.root}",
            ) from None
        (self.root / "supervisor.pid").write_text(f"{os.getpid()}\n")

    def _unlock_folder(self) -> None:
        if self._spawner is not None:
            self._spawner.shutdown()
            self._spawner = None
        if self._lock_file is not None:
            (self.root / "supervisor.pid").unlink(missing_ok=True)
            os.close(self._lock_file)
            self._lock_file = None


def _state(process: NodeProcess | None) -> str:
    if process is None:
        return "new"
    if not process.is_running:
        return "ended"
    if process.is_paused:
        return "paused"
    return "running" if process.is_ready else "starting"
