"""How long the effect of an operation lasts: until every broker has it, even one that is down meanwhile."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from fenceline.metadata.image import EMPTY_IMAGE
from fenceline.testing.simulation.effects import Effects
from fenceline.testing.simulation.operations import Operation

_ID = UUID(int=7)


class _Cluster:
    """Two brokers with a replica each of partition 0 of `t0`."""

    def __init__(self) -> None:
        self.partition = SimpleNamespace(replicas=(1, 2), adding=(), removing=(), leader_epoch=3)
        self.configs: dict[int, dict[str, str]] = {node_id: {} for node_id in (0, 1, 2)}
        """By node; 0: the newest ones."""
        self.topics = {"t0": SimpleNamespace(id=_ID, partitions=(self.partition,))}
        self.folders = {1: ["/data/t0-0"], 2: ["/data/t0-0"]}
        self.unused_epochs: dict[int, int] = {}
        self.resting_epochs: dict[int, set[int]] = {}
        """By node, the epoch in which it follows without an object."""
        self.processes = {node_id: SimpleNamespace(is_up=True, disk=self._disk(node_id)) for node_id in (1, 2)}
        self.replicas = {
            node_id: SimpleNamespace(leader_epoch=3, log=SimpleNamespace(log_start_offset=5)) for node_id in (1, 2)
        }
        self.brokers = {node_id: self._broker(node_id) for node_id in (1, 2)}
        checks = SimpleNamespace(image=self._image(0))
        self.effects = Effects(cast(Any, checks), cast(Any, self.processes), cast(Any, self.brokers))

    def _disk(self, node_id: int) -> Any:
        return SimpleNamespace(folders=lambda: self.folders[node_id])

    def _image(self, node_id: int) -> Any:
        return SimpleNamespace(
            topics_by_name=self.topics, config=lambda kind, name: self.configs[node_id], brokers=EMPTY_IMAGE.brokers
        )

    def _broker(self, node_id: int) -> Any:
        opened = SimpleNamespace(open_by_id={(_ID.bytes, 0): self.replicas[node_id]})
        fetchers = SimpleNamespace(unused_epoch=lambda key: self.unused_epochs.get(node_id))
        resting = SimpleNamespace(epochs=lambda key: self.resting_epochs.get(node_id, set()))
        return SimpleNamespace(
            has_metadata=True,
            image=self._image(node_id),
            partitions=opened,
            replication=SimpleNamespace(fetchers=fetchers, resting=resting),
        )

    def lasts(self, operation: Operation) -> bool:
        return not self.effects.has_ended(operation, "t0")


_NEWS = (
    Operation.CREATE_TOPIC,
    Operation.RECREATE_TOPIC,
    Operation.ADD_PARTITIONS,
    Operation.CANCEL_REASSIGNMENT,
    Operation.PREFERRED_ELECTION,
    Operation.UNCLEAN_ELECTION,
    Operation.REASSIGN,
)


@pytest.mark.parametrize("operation", [*_NEWS, Operation.ALTER_CONFIG, Operation.DELETE_RECORDS])
def test_an_operation_is_in_progress_while_a_broker_that_has_a_part_in_it_is_down(operation: Operation) -> None:
    cluster = _Cluster()
    assert not cluster.lasts(operation)
    cluster.processes[2].is_up = False
    assert cluster.lasts(operation)
    del cluster.topics["t0"]
    assert not cluster.lasts(operation)


@pytest.mark.parametrize("operation", _NEWS)
def test_a_new_leader_is_in_progress_until_each_replica_knows_it(operation: Operation) -> None:
    cluster = _Cluster()
    cluster.replicas[1].leader_epoch = 2
    assert cluster.lasts(operation)
    cluster.replicas[1].leader_epoch = 3
    assert not cluster.lasts(operation)
    cluster.brokers[1].partitions.open_by_id.clear()
    assert cluster.lasts(operation)
    cluster.unused_epochs[1] = 2
    assert cluster.lasts(operation)
    cluster.unused_epochs[1] = 3
    assert not cluster.lasts(operation), "it follows without an object"
    cluster.unused_epochs.clear()
    cluster.resting_epochs[1] = {2}
    assert cluster.lasts(operation)
    cluster.resting_epochs[1] = {3}
    assert not cluster.lasts(operation), "it leads without an object"


def test_a_config_is_in_progress_until_each_broker_has_it() -> None:
    cluster = _Cluster()
    cluster.configs[0]["retention.ms"] = "0"
    cluster.configs[1]["retention.ms"] = "0"
    assert cluster.lasts(Operation.ALTER_CONFIG)
    cluster.configs[2]["retention.ms"] = "0"
    assert not cluster.lasts(Operation.ALTER_CONFIG)


def test_deleted_records_are_in_progress_until_the_replicas_begin_at_the_same_offset() -> None:
    cluster = _Cluster()
    cluster.replicas[1].log.log_start_offset = 9
    assert cluster.lasts(Operation.DELETE_RECORDS)
    cluster.replicas[2].log.log_start_offset = 9
    assert not cluster.lasts(Operation.DELETE_RECORDS)


def test_a_deletion_is_in_progress_while_a_disk_has_files_of_the_topic() -> None:
    """This includes the disk of a broker that is down and does not know of the deletion."""
    cluster = _Cluster()
    assert not cluster.lasts(Operation.DELETE_TOPIC)
    del cluster.topics["t0"]
    cluster.processes[2].is_up = False
    cluster.folders[1] = []
    assert cluster.lasts(Operation.DELETE_TOPIC)
    cluster.folders[2] = ["/data/t00-0"]
    assert not cluster.lasts(Operation.DELETE_TOPIC)
