"""What all situations share: the cluster as the laboratory's own client sees it, and records of its own.

Owns the waits for metadata and the laboratory's own records. Knows no situation.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from fenceline.client import Producer, TopicPartition
from fenceline.errors import OperatorError
from fenceline.testing.waiting import eventually

if TYPE_CHECKING:
    from fenceline.client.core.metadata import PartitionMetadata
    from fenceline.testing.lab.cluster import LabCluster

WAIT_S: Final = 30.0
_KNOWN_WAIT_S: Final = 1.0
LAB_CLIENT: Final = "fenceline-lab"


class SituationImpossible(OperatorError):
    """The settings of the topic, the group or the cluster rule the situation out; says which."""


class SituationBase:
    """The base of the classes that `Situations` consists of."""

    def __init__(self, cluster: LabCluster) -> None:
        self._cluster = cluster

    def _partition(self, topic: str, partition: int) -> PartitionMetadata:
        """Raises SituationImpossible if there is none."""
        ends_s = time.monotonic() + _KNOWN_WAIT_S
        while True:
            found = self._cluster.admin.metadata([topic]).topics.get(topic)
            if found is not None and partition in found.partitions:
                return found.partitions[partition]
            # A broker may not know a new topic yet.
            if time.monotonic() > ends_s:
                raise SituationImpossible(
                    f"There is no partition {topic}-{partition}", "Create the topic first: create_topic()."
                )
            time.sleep(0.01)

    def _await_partition(
        self, topic: str, partition: int, holds: Callable[[PartitionMetadata], bool], what: str
    ) -> PartitionMetadata:
        def look() -> PartitionMetadata | None:
            found = self._partition(topic, partition)
            return found if holds(found) else None

        return eventually(look, f"{topic}-{partition}: {what}", wait_s=WAIT_S)

    def _config(self, topic: str, name: str) -> str:
        """The effective value of a config of a topic."""
        resource = ("topic", topic)
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
