"""What all situations share: the cluster as the laboratory's own client sees it, and records of its own.

Owns the waits for metadata and the laboratory's own records. Knows no situation.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from fenceline.client import Producer, TopicPartition
from fenceline.client.admin.leadership import ElectionKind
from fenceline.errors import ErrorCode, OperatorError
from fenceline.local_cluster.probe import ask_node
from fenceline.testing.lab.fault_state import BROKERS
from fenceline.testing.waiting import eventually
from fenceline.wire.apis import ApiKey

if TYPE_CHECKING:
    from fenceline.testing.lab.cluster import LabCluster
    from fenceline.testing.lab.partition_state import PartitionState

WAIT_S: Final = 30.0
_KNOWN_WAIT_S: Final = 1.0
_OPERATION_MS: Final = 5000
LAB_CLIENT: Final = "fenceline-lab"


class SituationImpossible(OperatorError):
    """The settings of the topic, the group or the cluster rule the situation out; says which."""


class SituationBase:
    """The base of the classes that `Situations` consists of."""

    def __init__(self, cluster: LabCluster) -> None:
        self._cluster = cluster

    def _partition(self, topic: str, partition: int) -> PartitionState:
        """Raises SituationImpossible if there is none."""
        ends_s = time.monotonic() + _KNOWN_WAIT_S
        while True:
            found = self._cluster.partition(topic, partition)
            if found is not None:
                return found
            # A broker may not know a new topic yet.
            if time.monotonic() > ends_s:
                raise SituationImpossible(
                    f"There is no partition {topic}-{partition}", "Create the topic first: create_topic()."
                )
            time.sleep(0.01)

    def _await_partition(
        self, topic: str, partition: int, holds: Callable[[PartitionState], bool], what: str
    ) -> PartitionState:
        def look() -> PartitionState | None:
            found = self._partition(topic, partition)
            return found if holds(found) else None

        return eventually(look, f"{topic}-{partition}: {what}", wait_s=WAIT_S)

    def _elect(
        self, tp: TopicPartition, kind: ElectionKind = ElectionKind.PREFERRED, *, via: int | None = None
    ) -> None:
        """Elect a leader, as far as that is possible. `via`: the broker that is asked first."""
        wanted = [{"topic": tp.topic, "partitions": [tp.partition]}]
        fields = {"election_type": int(kind), "topic_partitions": wanted, "timeout": _OPERATION_MS}
        self._operate(ApiKey.ELECT_LEADERS, 2, fields, self._controller() if via is None else via)

    def _order_replicas(self, tp: TopicPartition, replicas: Sequence[int]) -> None:
        """Make the first one the preferred leader."""
        rows = [{"partition_index": tp.partition, "replicas": list(replicas)}]
        fields = {"timeout": _OPERATION_MS, "topics": [{"name": tp.topic, "partitions": rows}]}
        self._operate(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, fields, self._controller())

    def _controller(self) -> int:
        """The node of the active controller; -1 if it is not known."""
        quorum = self._cluster.processes.quorum()
        return -1 if quorum is None else quorum.leader_id

    def _operate(self, api: ApiKey, version: int, fields: dict[str, Any], first: int) -> None:
        """Ask a broker that reaches the active controller: clients may ask one that is cut off. Raises TimeoutError."""
        processes = self._cluster.processes

        def done() -> bool:
            for place in sorted(processes.layout.brokers, key=lambda place: place.node_id != first):
                if place.port is None or self._is_cut_off(place.node_id):
                    continue
                answer = ask_node(
                    place.port, api, version, fields, _OPERATION_MS / 1000, processes.layout.login, is_client=True
                )
                if answer is not None and answer.error_code == ErrorCode.NONE:
                    return True
            return False

        eventually(done, f"{api.name} is done", wait_s=WAIT_S)

    def _is_cut_off(self, node: int) -> bool:
        """Whether it may not reach the controllers."""
        status = self._cluster.processes.status_of(node)
        faults = self._cluster.control(node).faults.links
        return status.state != "running" or bool(status.cuts) or any(each.listener != BROKERS for each in faults)

    def _config(self, topic: str, name: str) -> str:
        """The effective value of a config of a topic."""
        return self._config_of(("topic", topic), name)

    def _config_of(self, resource: tuple[str, str], name: str) -> str:
        """The effective value of a config of a resource, such as `("broker", "1")`; empty if it has none."""
        entry = self._cluster.admin.describe_configs([resource])[resource].get(name)
        return "" if entry is None or entry.value is None else entry.value

    def _write(self, topic: str, partition: int, values: Sequence[bytes | None], **settings: Any) -> list[int]:
        """Write records, all acknowledged; their offsets."""
        config = {**self._cluster.client_settings, "client.id": LAB_CLIENT, "acks": "all", **settings}
        with Producer(config) as producer:
            deliveries = [producer.send(topic, value, partition=partition) for value in values]
            return [delivery.result(WAIT_S).offset for delivery in deliveries]

    def _end(self, topic: str, partition: int) -> int:
        """The end offset that consumers get."""
        tp = TopicPartition(topic, partition)
        return self._cluster.admin.list_offsets({tp: "latest"})[tp].offset

    def _note(self, kind: str, **fields: Any) -> None:
        self._cluster.timeline.add(kind, **fields)


def values_of(stem: str, count: int) -> list[bytes]:
    """Distinct values."""
    return [f"{stem}-{number}".encode() for number in range(count)]
