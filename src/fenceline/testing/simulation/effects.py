"""Whether the effect of an operation on a simulated cluster has ended, if it can last longer than a request.

Owns how this is read from the running nodes and their disks. Only reads; called at most ten times a second.

| Operation | Lasts until |
|---|---|
| reassign, reassign back | no partition of the topic has replicas to add or to remove, and each replica matches the newest metadata |
| create topic, recreate topic, add partitions, cancel reassignment, preferred election, unclean election | each replica of the topic matches the newest metadata: its broker runs, has opened or follows it, and knows the newest leader epoch |
| alter config | every broker runs and has the newest configs of the topic |
| delete records | each replica of the topic is open or followed, and the replicas of a partition have the same log start |
| move directory | no node moves a replica of the topic |
| delete topic | no disk has directories of its partitions that are marked for deletion, or any directory of its partitions if no topic has its name |
| retention | no node has a segment file of the topic that is marked for deletion |
| compaction | no node compacts a partition of the topic |
| metadata snapshot | no node writes one |
| unregister broker | every broker is registered again |

A broker that is down or cut off has not received an operation: the operation is in progress there until it has.
"""  # noqa: E501 - a table

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from fenceline.log.core.file_names import DELETED_SUFFIX, LOG_SUFFIX
from fenceline.log.directories.partition_dir import DELETE_SUFFIX
from fenceline.metadata.image import ConfigResourceType
from fenceline.replica.fencing import NO_EPOCH
from fenceline.testing.simulation.data_checks import has_no_object
from fenceline.testing.simulation.operations import Operation

if TYPE_CHECKING:
    from fenceline.node.replication.replica import Replica
    from fenceline.replica.fetcher import Key
    from fenceline.testing.simulation.brokers_node import SimBroker
    from fenceline.testing.simulation.data_checks import DataChecks
    from fenceline.testing.simulation.world import Process


class Effects:
    """The effects of operations on one cluster."""

    def __init__(self, checks: DataChecks, processes: Mapping[int, Process], brokers: Mapping[int, SimBroker]) -> None:
        """`brokers`: by node, the current process of each."""
        self._checks = checks
        self._processes = processes
        self._brokers = brokers
        self._lasts: Mapping[str, Callable[[str], bool]] = {
            Operation.CREATE_TOPIC: self._is_outdated,
            Operation.RECREATE_TOPIC: self._is_outdated,
            Operation.ADD_PARTITIONS: self._is_outdated,
            Operation.CANCEL_REASSIGNMENT: self._is_outdated,
            Operation.PREFERRED_ELECTION: self._is_outdated,
            Operation.UNCLEAN_ELECTION: self._is_outdated,
            Operation.ALTER_CONFIG: self._has_old_config,
            Operation.DELETE_RECORDS: self._has_unequal_starts,
            Operation.REASSIGN: self._is_reassigned,
            Operation.REASSIGN_BACK: self._is_reassigned,
            Operation.MOVE_DIRECTORY: self._is_moving,
            Operation.DELETE_TOPIC: self._has_deleted_files,
            Operation.RETENTION: self._has_deleted_segments,
            Operation.COMPACTION: self._is_compacting,
        }

    def has_ended(self, name: str, topic: str | None) -> bool:
        """Whether the effect of this operation on this topic has ended. True if only the request is known."""
        if topic is not None:
            lasts = self._lasts.get(name)
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
            for replica in broker.partitions.in_service:
                if replica.topic_partition.topic == topic:
                    yield broker, replica

    def _is_reassigned(self, topic: str) -> bool:
        found = self._checks.image.topics_by_name.get(topic)
        if found is None:
            return False
        return any(each.adding or each.removing for each in found.partitions) or self._is_outdated(topic)

    def _broker(self, node_id: int) -> SimBroker | None:
        """None while it is down or has no metadata."""
        broker = self._brokers.get(node_id)
        return broker if broker is not None and self._processes[node_id].is_up and broker.has_metadata else None

    def _is_outdated(self, topic: str) -> bool:
        found = self._checks.image.topics_by_name.get(topic)
        if found is None:
            return False
        for index, partition in enumerate(found.partitions):
            for node_id in partition.replicas:
                broker = self._broker(node_id)
                if broker is None or _leader_epoch(broker, (found.id.bytes, index)) < partition.leader_epoch:
                    return True
        return False

    def _has_old_config(self, topic: str) -> bool:
        newest = self._checks.image
        if topic not in newest.topics_by_name:
            return False
        wanted = newest.config(ConfigResourceType.TOPIC, topic)
        brokers = [self._broker(node_id) for node_id in self._processes]
        return any(each is None or each.image.config(ConfigResourceType.TOPIC, topic) != wanted for each in brokers)

    def _has_unequal_starts(self, topic: str) -> bool:
        found = self._checks.image.topics_by_name.get(topic)
        if found is None:
            return False
        for index, partition in enumerate(found.partitions):
            starts = {
                None if broker is None else _log_start_offset(broker, (found.id.bytes, index))
                for broker in map(self._broker, partition.replicas)
            }
            if None in starts or len(starts) > 1:
                return True
        return False

    def _is_moving(self, topic: str) -> bool:
        return any(replica.topic_partition in broker.moves.in_progress for broker, replica in self._replicas(topic))

    def _is_compacting(self, topic: str) -> bool:
        return any(replica.cleaning is not None for _, replica in self._replicas(topic))

    def _has_deleted_segments(self, topic: str) -> bool:
        return any(
            name.endswith(LOG_SUFFIX + DELETED_SUFFIX)
            for broker, replica in self._replicas(topic)
            for name in broker.process.disk.folder(replica.log.directory) or ()
        )

    def _has_deleted_files(self, topic: str) -> bool:
        is_gone = topic not in self._checks.image.topics_by_name
        return any(
            (is_gone or folder.endswith(DELETE_SUFFIX)) and folder.rpartition("/")[2].startswith(f"{topic}-")
            for process in self._processes.values()
            for folder in process.disk.folders()
        )

    @staticmethod
    def _writes_snapshot(broker: SimBroker) -> bool:
        snapshots = broker.controller.snapshots
        return snapshots is not None and snapshots.is_running


def _leader_epoch(broker: SimBroker, key: Key) -> int:
    """In which a broker has a replica; -1 if it has none."""
    replica = broker.partitions.open_by_id.get(key)
    if replica is not None:
        return replica.leader_epoch
    followed = broker.replication.fetchers.unused_epoch(key)
    return max(broker.replication.resting.epochs(key), default=NO_EPOCH) if followed is None else followed


def _log_start_offset(broker: SimBroker, key: Key) -> int | None:
    """Of the replica on a broker; None if it has none, or has not opened it."""
    replica = broker.partitions.open_by_id.get(key)
    if replica is not None:
        return replica.log.log_start_offset
    return 0 if has_no_object(broker, key) else None
