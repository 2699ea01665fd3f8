"""Whether the effect of an operation on a simulated cluster has ended, where it can last longer than a request.

Owns how that is read off the nodes that run and their disks. Only reads; asked for ten times a second at most.

| Operation | Lasts until |
|---|---|
| reassign, reassign back | no partition of the topic has replicas to add or to remove |
| move directory | no node moves a replica of the topic |
| delete topic | no disk has files of its partitions that are put away |
| retention | no node has a segment of the topic whose file is to be deleted |
| compaction | no node compacts a partition of the topic |
| metadata snapshot | no node writes one |
| unregister broker | every broker is registered again |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from fenceline.log.file_names import DELETED_SUFFIX, LOG_SUFFIX
from fenceline.log.partition_dir import DELETE_SUFFIX
from fenceline.testing.simulation.operations import Operation

if TYPE_CHECKING:
    from fenceline.node.replica import Replica
    from fenceline.testing.simulation.brokers_node import SimBroker
    from fenceline.testing.simulation.data_checks import DataChecks
    from fenceline.testing.simulation.world import Process


class Effects:
    """Of one cluster."""

    def __init__(self, checks: DataChecks, processes: Mapping[int, Process], brokers: Mapping[int, SimBroker]) -> None:
        """`brokers`: by node, its newest life."""
        self._checks = checks
        self._processes = processes
        self._brokers = brokers
        self._last: Mapping[str, Callable[[str], bool]] = {
            Operation.REASSIGN: self._is_reassigned,
            Operation.REASSIGN_BACK: self._is_reassigned,
            Operation.MOVE_DIRECTORY: self._is_moving,
            Operation.DELETE_TOPIC: self._has_deleted_files,
            Operation.RETENTION: self._has_deleted_segments,
            Operation.COMPACTION: self._is_compacted,
        }

    def has_ended(self, name: str, topic: str | None) -> bool:
        """Of the operation with this name, and of this topic. True where nothing but the request is known of it."""
        if topic is not None:
            lasts = self._last.get(name)
            return lasts is None or not lasts(topic)
        if name == Operation.METADATA_SNAPSHOT:
            return not any(self._writes_snapshot(broker) for broker in self._running())
        if name == Operation.UNREGISTER_BROKER:
            return all(node_id in self._checks.image.brokers for node_id in self._processes)
        return True

    def _running(self) -> Iterator[SimBroker]:
        for node_id, broker in self._brokers.items():
            if self._processes[node_id].is_up and broker.has_metadata:
                yield broker

    def _replicas(self, topic: str) -> Iterator[tuple[SimBroker, Replica]]:
        for broker in self._running():
            for replica in broker.partitions:
                if replica.topic_partition.topic == topic:
                    yield broker, replica

    def _is_reassigned(self, topic: str) -> bool:
        found = self._checks.image.topics_by_name.get(topic)
        return found is not None and any(each.adding or each.removing for each in found.partitions)

    def _is_moving(self, topic: str) -> bool:
        return any(replica.topic_partition in broker.moves.under_way for broker, replica in self._replicas(topic))

    def _is_compacted(self, topic: str) -> bool:
        return any(replica.cleaning is not None for _, replica in self._replicas(topic))

    def _has_deleted_segments(self, topic: str) -> bool:
        return any(
            name.endswith(LOG_SUFFIX + DELETED_SUFFIX)
            for broker, replica in self._replicas(topic)
            for name in broker.process.disk.folder(replica.log.directory) or ()
        )

    def _has_deleted_files(self, topic: str) -> bool:
        return any(
            folder.endswith(DELETE_SUFFIX) and folder.rpartition("/")[2].startswith(f"{topic}-")
            for process in self._processes.values()
            for folder in process.disk.folders()
        )

    @staticmethod
    def _writes_snapshot(broker: SimBroker) -> bool:
        snapshots = broker.controller.snapshots
        return snapshots is not None and snapshots.is_running
