"""A cluster of nodes as separate processes of this machine, for tests, benchmarks and `fenceline cluster`.

Owns the nodes' processes and the cluster's folder while it is up. Is never in the way of a byte between nodes and
clients: it starts, watches, signals, and cuts sockets off (`local_cluster_cuts.py`).

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
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fenceline.errors import OperatorError
from fenceline.testing import local_cluster_layout as layouts
from fenceline.testing.child_processes import ChildProcesses
from fenceline.testing.local_cluster_control import ControlServer
from fenceline.testing.local_cluster_cuts import Cut, NetworkCuts
from fenceline.testing.local_cluster_layout import ClusterLayout, NodePlace
from fenceline.testing.local_cluster_logs import trim
from fenceline.testing.local_cluster_probe import QuorumStatus, known_brokers, quorum_status
from fenceline.testing.local_cluster_process import NodeProcess, wait_for_leftovers

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
    """A node as it is now. `state` is new, starting, running, paused or ended; `exit_code` is of the last process."""

    node: int
    roles: tuple[str, ...]
    address: str
    state: str
    pid: int | None
    exit_code: int | None
    memory_bytes: int | None
    cuts: tuple[Cut, ...]
    log: str


@dataclass(frozen=True, slots=True)
class NodeEnded:
    """A node's process is gone. `was_wanted` says whether somebody asked for it."""

    node: int
    exit_code: int
    was_wanted: bool
    last_lines: tuple[str, ...]


class LocalCluster(ChildProcesses):
    """Nodes 1 to N. Safe for threads.

    `data_dir` is kept when given, and continued when it holds a cluster; without it a temporary folder goes with the
    cluster. `nodes` (3 in a new folder) are brokers, and controllers as well unless `controllers` asks for so many
    nodes of their own. `port` is node 1's, the others follow; 0 takes free ones. `overrides` are
    properties of every node. `on_end` is called, from a thread of its own, when a node's process has ended.
    """

    def __init__(
        self,
        nodes: int | None = None,
        *,
        controllers: int | None = None,
        data_dir: Path | None = None,
        port: int = 0,
        overrides: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
        log_level: str = "warning",
        on_end: Callable[[NodeEnded], None] | None = None,
    ) -> None:
        self._wanted_nodes, self._wanted_controllers, self._wanted_port = nodes, controllers, port
        super().__init__(None if data_dir is None else data_dir.absolute(), prefix="fenceline-cluster-")
        self._overrides = dict(overrides or {})
        owned = layouts.owned_environment()
        self._environment = {
            name: value for name, value in {**os.environ, **(environment or {})}.items() if name.upper() not in owned
        }
        self._log_level = log_level
        self._on_end = on_end
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
        """Who the nodes are, and where. Only known once `start` was called."""
        assert self._layout is not None, "the cluster was not started"
        return self._layout

    @property
    def bootstrap(self) -> str:
        """The brokers' addresses, separated by commas."""
        return self.layout.bootstrap

    @property
    def cluster_id(self) -> str:
        return self.layout.cluster_id

    def pid(self, node: int) -> int:
        """The process of a node that was started."""
        return self._process(node).pid

    # --- the cluster's life ---------------------------------------------------------------------------------------

    def start(self, *, wait_s: float = READY_WAIT_S) -> None:
        """Make or continue the cluster, start its nodes side by side and wait until it is complete.

        Raises OperatorError; `close` or `stop` then ends what was started.
        """
        with self._life:
            if self._is_stopping:
                raise OperatorError("The cluster was stopped before it was started")
            self._take_folder()
            wait_for_leftovers(self.root, wait_s=_LEFTOVER_WAIT_S)
            self._layout = layouts.plan(
                self.root, nodes=self._wanted_nodes, controllers=self._wanted_controllers, port=self._wanted_port
            )
            layouts.write(self._layout, self._overrides)
            self._cuts = NetworkCuts(self._layout.listeners, self._running_pids)
            self._spawner = ThreadPoolExecutor(1, thread_name_prefix="spawner")
            for place in self._layout.nodes:
                self._spawn(place)
            self._control = ControlServer(self)
            threading.Thread(target=self._keep_logs_small, name="cluster logs", daemon=True).start()
        self.wait_until_ready(wait_s=wait_s)

    @property
    def waits_for(self) -> str:
        """What a start or restart waits for now, in words; empty where there is nothing to say."""
        return self._waits_for

    def warnings(self) -> list[str]:
        """What nodes find odd in their settings, such as keys that nobody knows. Not before `start`."""
        from fenceline.config.node import NodeConfig

        return list(NodeConfig.load(self.layout.nodes[0].properties_file, {}, self._environment).warnings)

    def wait_until_ready(self, *, wait_s: float = READY_WAIT_S) -> None:
        """Wait until every node has said that it is ready, and every broker knows all of them as registered and alive.

        Raises OperatorError when a node ends meanwhile, with its last words, or when it takes too long.
        """
        deadline = time.monotonic() + wait_s
        for place in self.layout.nodes:
            self._wait_ready(place.node_id, deadline)
        everybody = frozenset(broker.node_id for broker in self.layout.brokers)
        for broker in self.layout.brokers:
            self._wait_known(broker, everybody, deadline)
        self._waits_for = ""

    def stop(self, *, wait_s: float = STOP_WAIT_S) -> dict[int, int]:
        """Stop all nodes that run cleanly, and kill those that take longer; their exit codes. The folder stays."""
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
            # Brokers are let go by controllers, so those are there until the end.
            for is_controller in (False, True):
                stopping = [each for each in processes.values() if each.place.is_controller is is_controller]
                for process in stopping:
                    process.ask_to_end(signal.SIGTERM)
                self._wait_ended(stopping, wait_s)
            self.kill_all()
            self._wait_ended(processes.values(), STOP_WAIT_S)
            self._leave_folder()
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
        """All nodes."""
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

    def quorum(self) -> QuorumStatus | None:
        """The active controller's view of the quorum; None while nobody leads, or who leads can not be asked."""
        ports = [
            place.controller_port
            for place, status in zip(self.layout.nodes, self.status(), strict=True)
            if place.controller_port is not None
            if status.state == "running" and not any(cut.peer is None for cut in status.cuts)
        ]
        return quorum_status(ports, timeout_s=_PROBE_TIMEOUT_S)

    def kill(self, node: int) -> None:
        """kill -9, and wait until it is gone. Raises OperatorError when it does not run."""
        process = self._process(node)
        process.ask_to_end(signal.SIGKILL)
        self._wait_ended([process], STOP_WAIT_S)

    def pause(self, node: int) -> None:
        """Freeze a node (SIGSTOP); its connections stay open and silent."""
        self._process(node).pause()

    def resume(self, node: int) -> None:
        """Let a paused node go on."""
        self._process(node).resume()

    def restart(self, node: int, *, wait_s: float = READY_WAIT_S) -> None:
        """Stop a node cleanly if it runs, start it, and wait until it is ready and known to itself.

        A node that is cut off from clients is not waited for. Raises OperatorError.
        """
        place, process = self._place(node), self._processes.get(node)
        if process is not None and process.is_running:
            process.ask_to_end(signal.SIGTERM)
            self._wait_ended([process], STOP_WAIT_S)
            if process.is_running:
                process.ask_to_end(signal.SIGKILL)
                self._wait_ended([process], STOP_WAIT_S)
        self._spawn(place)
        if self._cuts is not None and (self._cuts.is_lost(None, node) or self._cuts.is_lost(node, None)):
            return
        deadline = time.monotonic() + wait_s
        self._wait_ready(node, deadline)
        if place.is_broker:
            self._wait_known(place, frozenset({node}), deadline)
        self._waits_for = ""

    def isolate(self, node: int, *, peers: Iterable[int] = (), inbound: bool = True, outbound: bool = True) -> None:
        """Cut a node off, silently: what it sends and what is sent to it is lost, on new and on open connections.

        From everybody, clients too, or only from `peers`. Cuts add up until `heal`, and outlast a restart of the node.
        Raises OperatorError: not on Linux, forbidden by the system, no such node.
        """
        self._place(node)
        wanted = [Cut(self._place(peer).node_id, inbound, outbound) for peer in peers] or [Cut(None, inbound, outbound)]
        if not inbound and not outbound:
            raise OperatorError("A cut needs a direction", "Cut inbound, outbound or both.")
        if any(cut.peer == node for cut in wanted):
            raise OperatorError(f"Node {node} can not be cut off from itself")
        assert self._cuts is not None, "the cluster was not started"
        self._cuts.isolate(node, wanted)

    def heal(self, node: int) -> None:
        """End all cuts that `isolate` made for this node. TCP goes on when it sends again, which may take a while."""
        self._place(node)
        assert self._cuts is not None, "the cluster was not started"
        self._cuts.heal(node)

    # --- inside ---------------------------------------------------------------------------------------------------

    def _place(self, node: int) -> NodePlace:
        for place in self.layout.nodes:
            if place.node_id == node:
                return place
        raise OperatorError(f"There is no node {node}", f"The nodes are 1 to {len(self.layout.nodes)}.")

    def _process(self, node: int) -> NodeProcess:
        self._place(node)
        process = self._processes.get(node)
        if process is None or not process.is_running:
            raise OperatorError(f"Node {node} does not run", f"Start it with: fenceline cluster restart {node}")
        return process

    def _running_pids(self) -> dict[int, int]:
        return {node: process.pid for node, process in list(self._processes.items()) if process.is_running}

    def _spawn(self, place: NodePlace) -> None:
        """All spawns happen in one thread that lives as long as the cluster: a node ends with the one it comes from."""
        spawner = self._spawner
        if self._is_stopping or spawner is None:
            raise OperatorError("The cluster is stopping")

        def spawn() -> None:
            process = self._processes.get(place.node_id)
            if process is not None and process.is_running:
                raise OperatorError(f"Node {place.node_id} runs already")
            self._processes[place.node_id] = NodeProcess(
                place, environment=self._environment, log_level=self._log_level, on_change=self._on_change
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
                trim(place.log_file)

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
        while not wanted <= (known := known_brokers(broker.port, timeout_s=_PROBE_TIMEOUT_S)):
            self._check_alive(process)
            missing = ", ".join(str(node) for node in sorted(wanted - known))
            self._waits_for = f"broker {missing} to be registered, as node {broker.node_id} sees it"
            if time.monotonic() > deadline:
                raise OperatorError(
                    f"Node {broker.node_id} did not see node {missing} registered in time",
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
                f"Its whole log is {process.place.log_file}.",
            )

    def _wait_ended(self, processes: Iterable[NodeProcess], wait_s: float) -> None:
        waited = list(processes)
        with self._changed:
            self._changed.wait_for(lambda: not any(process.is_running for process in waited), wait_s)

    def _take_folder(self) -> None:
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            self._lock_file = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            raise OperatorError(f"{self.root} is a file", "Name a folder, which may be new.") from None
        except OSError as error:
            raise OperatorError(
                f"{self.root} can not be used: {error.strerror or error}",
                "Name a folder that can be made and written by this user.",
            ) from error
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock_file)
            self._lock_file = None
            raise OperatorError(
                f"The cluster of {self.root} is up already", f"See: fenceline cluster status --data-dir {self.root}"
            ) from None
        (self.root / "supervisor.pid").write_text(f"{os.getpid()}\n")

    def _leave_folder(self) -> None:
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
