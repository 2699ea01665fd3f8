"""A cluster for tests: nodes as processes of this machine, with faults, situations, a timeline and loss receipts.

Owns one cluster from its start to its end, the clients with which the laboratory itself asks it, and its folder. Never
relays bytes between an application and the nodes.

    with LabCluster(3) as cluster:
        topic = cluster.create_topic()
        lost = cluster.situations.unclean_election(topic, lose=50).lost
        assert sum(receipt.records for receipt in cluster.losses(topic)) == 50
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from fenceline.errors import OperatorError
from fenceline.local_cluster.cluster import LocalCluster, NodeEnded
from fenceline.local_cluster.layout import NodePlace
from fenceline.local_cluster.process import ChildProcess
from fenceline.local_cluster.secured import ADMIN, MECHANISM
from fenceline.testing.kafka_helpers import KafkaHelpers, text_of
from fenceline.testing.lab import forking
from fenceline.testing.lab.control import NodeControl
from fenceline.testing.lab.faults import ClusterFaults
from fenceline.testing.lab.partition_state import PartitionState
from fenceline.testing.lab.timeline import ClusterTimeline

if TYPE_CHECKING:
    from types import TracebackType
    from typing import IO

    from fenceline.client import ConsumerRecord, LossReceipt, LostRecordsReader
    from fenceline.testing.lab.situations import Situations

READY_WAIT_S: Final = 60.0
_KNOWN_WAIT_S: Final = 1.0
QUICK_PROPERTIES: Final[Mapping[str, str]] = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "500",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "broker.session.timeout.ms": "1500",
    "broker.heartbeat.interval.ms": "200",
    "replica.lag.time.max.ms": "1500",
    "controller.quorum.election.timeout.ms": "300",
    "controller.quorum.fetch.timeout.ms": "600",
    "controller.quorum.election.backoff.max.ms": "200",
    "replica.socket.timeout.ms": "2000",
    "fenceline.transaction.recovery.timeout.ms": "500",
    "group.consumer.heartbeat.interval.ms": "200",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "log.retention.check.interval.ms": "100",
    "log.segment.delete.delay.ms": "100",
}
"""Timeouts and sizes for tests; `properties` of a cluster win over them."""


class LabCluster(KafkaHelpers):
    """Nodes 1 to N, which are brokers and controllers, unless `controllers` adds nodes for that role.

    `properties` are of every node, as in Kafka's server.properties; `QUICK_PROPERTIES` are below them, and with
    `quick=False` Kafka's defaults are. `security`: TLS and SCRAM users (`client_settings` has the login). `data_dir`
    is kept, and continued if it holds a cluster; otherwise a temporary folder is deleted with the cluster. `port` is
    that of node 1, the others follow; 0 selects free ones. Thread-safe."""

    def __init__(
        self,
        nodes: int = 3,
        *,
        controllers: int = 0,
        properties: Mapping[str, Any] | None = None,
        security: bool = False,
        quick: bool = True,
        data_dir: Path | None = None,
        port: int = 0,
        log_level: str = "info",
    ) -> None:
        self.timeline = ClusterTimeline()
        self._controls: dict[int, NodeControl] = {}
        self._reported = threading.Condition()
        self._knowing: dict[str, set[int]] = {}
        """By new topic, the brokers that have reported it."""
        self.faults = ClusterFaults(self)
        given = {key: text_of(value) for key, value in (properties or {}).items()}
        base = dict(QUICK_PROPERTIES) if quick else {}
        base["unclean.leader.election.enable"] = "false"
        self.processes = LocalCluster(
            nodes,
            controllers=controllers or None,
            data_dir=data_dir,
            port=port,
            secure=security,
            overrides={**base, **given},
            log_level=log_level,
            on_end=self._node_ended,
            spawn=self._spawn,
        )
        self._receipts: LostRecordsReader | None = None
        self._situations: Situations | None = None
        self._is_closed = False

    # --- life -----------------------------------------------------------------------------------------------------

    def start(self, *, wait_s: float = READY_WAIT_S) -> Self:
        """Start the nodes, and wait until the cluster is complete. Raises OperatorError; nothing runs then."""
        try:
            self.processes.start(wait_s=wait_s)
        except BaseException:
            self.close()
            raise
        self.timeline.add("cluster ready", nodes=len(self.processes.layout.nodes))
        return self

    def close(self) -> None:
        """Kill the nodes, and remove the folder if it is temporary. May be called twice, and in any thread: waits of
        others end with an OperatorError."""
        self._is_closed = True
        self.faults.forget_all()
        self._close_clients()
        if self._receipts is not None:
            with contextlib.suppress(OperatorError, OSError):
                self._receipts.close()
            self._receipts = None
        self.processes.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- what it is -----------------------------------------------------------------------------------------------

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of the brokers, separated by commas."""
        return self.processes.bootstrap

    @property
    def client_settings(self) -> dict[str, Any]:
        """For clients that take librdkafka's names, such as confluent-kafka and `fenceline.client`: the addresses, and
        the login of a user that may do everything."""
        settings: dict[str, Any] = {"bootstrap.servers": self.bootstrap_servers}
        login = self.processes.layout.login
        if login is not None:
            settings |= {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": MECHANISM,
                "sasl.username": ADMIN,
                "sasl.password": login.password(ADMIN),
                "ssl.ca.location": str((login.folder / "ca.pem").absolute()),
            }
        return settings

    @property
    def nodes(self) -> tuple[int, ...]:
        return tuple(place.node_id for place in self.processes.layout.nodes)

    @property
    def broker_ids(self) -> tuple[int, ...]:
        return tuple(place.node_id for place in self.processes.layout.brokers)

    @property
    def root(self) -> Path:
        """The folder of the cluster; each node has `node-N` with `node.log` and `data`."""
        return self.processes.root

    @property
    def situations(self) -> Situations:
        """What an application must survive, each as one function."""
        if self._situations is None:
            from fenceline.testing.lab.situations import Situations

            self._situations = Situations(self)
        return self._situations

    def control(self, node: int) -> NodeControl:
        """The control channel of a node. Raises OperatorError if there is no such node."""
        self.processes.is_running(node)
        return self._control(node)

    # --- nodes ----------------------------------------------------------------------------------------------------

    def start_node(self, node: int, *, wait_s: float = READY_WAIT_S) -> None:
        """Start a node; one that runs is restarted. Waits until it is ready. Raises OperatorError."""
        self.faults.restored(node)
        self.processes.restart(node, wait_s=wait_s)
        self.timeline.add("started", node)

    def revive(self, restart: Iterable[int] = ()) -> None:
        """Start the nodes that do not run, and `restart` others; wait until the cluster is complete.

        Raises OperatorError."""
        for node in restart:
            if self.processes.is_running(node):
                self.processes.stop_node(node)
        down = [node for node in self.nodes if not self.processes.is_running(node)]
        if not down:
            return
        for node in down:
            self.faults.restored(node)
        self.processes.start_nodes(down)
        for node in down:
            self.timeline.add("started", node)
        self.processes.wait_until_ready()

    def log(self, node: int, *, start: int = 0) -> str:
        """The log lines of a node, from a byte of its log file on."""
        place = next(place for place in self.processes.layout.nodes if place.node_id == node)
        with place.log_file.open("rb") as file:
            file.seek(start)
            return file.read().decode(errors="replace")

    # --- topics ---------------------------------------------------------------------------------------------------

    def create_topic(self, name: str | None = None, **options: Any) -> str:
        """As `KafkaHelpers.create_topic`; waits until every broker knows the topic. All brokers, but at most three,
        have replicas, unless it is said otherwise. Raises PeerError."""
        name = super().create_topic(name, **options)
        self._await_known(name)
        return name

    def _replication_factor(self) -> int:
        return min(3, len(self.broker_ids))

    def partition(self, topic: str, partition: int = 0) -> PartitionState | None:
        """The newest state of a partition that a running broker knows; None if none knows it. Not affected by faults of
        the network."""
        states: list[PartitionState] = []
        for node in self.broker_ids:
            if self.processes.status_of(node).state != "running":
                continue
            with contextlib.suppress(OperatorError):  # it ends meanwhile
                found = self.control(node).do("partition", topic=topic, partition=partition)["state"]
                if found is not None:
                    states.append(
                        PartitionState(**{**found, "replicas": tuple(found["replicas"]), "isr": tuple(found["isr"])})
                    )
        return max(states, key=lambda state: state.known_at, default=None)

    def leader(self, topic: str, partition: int = 0) -> int:
        """The node that leads a partition; -1 without a leader. Raises OperatorError if there is no such partition."""
        found = self.partition(topic, partition)
        if found is None:
            raise OperatorError(f"There is no partition {topic}-{partition}", "Create the topic first: create_topic().")
        return found.leader

    # --- losses ---------------------------------------------------------------------------------------------------

    def losses(
        self, topic: str | None = None, *, wait_s: float = 0.0, timeout_s: float | None = None
    ) -> list[LossReceipt]:
        """The loss receipts of the cluster, or of a topic, oldest first; waits up to `wait_s` for the first one.

        `timeout_s`: of one request. Raises PeerError, OperatorError."""
        ends_s = time.monotonic() + wait_s
        with self._reader(timeout_s) as reader:
            while True:
                found = [each for each in reader.receipts() if topic in (None, each.topic)]
                if found or time.monotonic() >= ends_s:
                    return found
                time.sleep(0.02)

    def lost_records(self, receipt: LossReceipt) -> list[ConsumerRecord]:
        """The records that a receipt is about, from the evidence. Raises OperatorError if there is none."""
        with self._reader() as reader:
            return [record for piece in reader.read(receipt, arrow=False) for record in piece]

    # --- inside ---------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._is_closed:
            raise OperatorError("The cluster has ended", "Start a new one.")

    def _reader(self, timeout_s: float | None = None) -> AbstractContextManager[LostRecordsReader]:
        """The reader of receipts and evidence; with a timeout, one of its own, which is closed at the end."""
        from fenceline.client import LostRecordsReader

        self._check_open()
        if timeout_s is not None:
            limit = {"default.api.timeout.ms": round(timeout_s * 1000), "request.timeout.ms": round(timeout_s * 1000)}
            return LostRecordsReader(self.client_settings, **{"client.id": "fenceline-lab", **limit})
        if self._receipts is None:
            self._receipts = LostRecordsReader(self.client_settings, **{"client.id": "fenceline-lab"})
        return contextlib.nullcontext(self._receipts)

    def _control(self, node: int) -> NodeControl:
        found = self._controls.get(node)
        if found is None:
            found = self._controls[node] = NodeControl(node, self._on_event, self.faults.decide)
        return found

    def _spawn(
        self, place: NodePlace, arguments: Sequence[str], environment: Mapping[str, str], log: IO[bytes]
    ) -> ChildProcess:
        control = self._control(place.node_id)
        if not control.faults.peers:
            layout = self.processes.layout
            control.know_peers(
                {f"{host}:{port}": node for (host, port), node in layout.listeners.items()},
                [each.controller_port for each in layout.nodes if each.controller_port is not None],
            )
        with control.open() as its_end:
            return forking.spawn_node(f"fenceline {place.node_id}", arguments, environment, log, its_end)

    def _await_known(self, topic: str) -> None:
        """Until every broker that runs has reported the topic. A broker that is cut off or paused cannot."""
        wanted = {node for node in self.broker_ids if self.processes.status_of(node).state == "running"}
        with self._reported:
            self._reported.wait_for(lambda: wanted <= self._knowing.get(topic, set()), _KNOWN_WAIT_S)
            self._knowing.pop(topic, None)

    def _on_event(self, node: int, kind: str, fields: Mapping[str, Any]) -> None:
        if kind == "topic created":
            with self._reported:
                self._knowing.setdefault(fields["topic"], set()).add(node)
                self._reported.notify_all()
        if kind == "request fault":
            self.faults.was_hit(node, int(fields["fault"]))
        self.timeline.add(kind, node, **fields)

    def _node_ended(self, ended: NodeEnded) -> None:
        if not ended.was_wanted:
            self.timeline.add("died", ended.node, exit_code=ended.exit_code)
