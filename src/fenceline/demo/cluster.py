"""The demo's cluster: three brokers and a controller of its own as local processes, and one topic on them.

Owns where the topic's replicas lie and how its busy partition loses its leader: cut off in silence where the system
allows to cut sockets, else by killing processes, which tells the same story in rougher words. The controller is a
node of its own: the leader that hears no other broker still hears it, and stays leader.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from fenceline.client.admin import Admin, NewTopic
from fenceline.demo.loss import NOBODY, Leader
from fenceline.errors import FencelineError
from fenceline.ids import TopicPartition
from fenceline.testing.local_cluster import LocalCluster
from fenceline.testing.socket_cuts import CutsUnavailable

BROKERS: Final = 3
_LEADER: Final = 2
_FOLLOWER: Final = 3
"""Partitions have two replicas, so that an unclean election has one choice."""
_OTHERS: Final = ((1, 2), (3, 1))
"""Replicas of the other partitions in turn: the leader of the busy one leads no other."""
_NODES: Final = {
    "replica.lag.time.max.ms": "1500",
    "broker.session.timeout.ms": "4000",
    "broker.heartbeat.interval.ms": "500",
}
"""A cluster notices within seconds what takes half a minute by default: nobody wants to watch that."""
_PATIENCE_MS: Final = 2000


class Cluster:
    """Use as a context manager; its processes end with it, its folder stays. `busy`: the partition to be lost."""

    def __init__(self, directory: Path, topic: str, partition_count: int, busy: int) -> None:
        self.topic = topic
        self._partition_count = partition_count
        self.busy = busy
        self._nodes = LocalCluster(BROKERS, controllers=1, data_dir=directory, overrides=_NODES)
        self._killed: list[int] = []
        self._admin: Admin | None = None

    def __enter__(self) -> Self:
        self._nodes.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._admin is not None:
            self._admin.close()
        if kind is None:
            # In order, so that the logs are whole.
            self._nodes.stop()
        self._nodes.__exit__(kind, error, trace)

    @property
    def bootstrap(self) -> str:
        """Addresses of the brokers that stay."""
        return ",".join(place.address for place in self._nodes.layout.brokers if place.node_id != _LEADER)

    @property
    def data_dirs(self) -> list[Path]:
        """Of the brokers."""
        return [place.data_dir for place in self._nodes.layout.brokers]

    @property
    def admin(self) -> Admin:
        """Made when it is first used; for the thread that plays and for the one that looks."""
        if self._admin is None:
            self._admin = Admin(self.bootstrap, **{"request.timeout.ms": _PATIENCE_MS})
        return self._admin

    def create_topic(self) -> None:
        replicas: dict[int, tuple[int, ...]] = {}
        for partition in range(self._partition_count):
            replicas[partition] = _OTHERS[partition % len(_OTHERS)]
        replicas[self.busy] = (_LEADER, _FOLLOWER)
        self.admin.create_topics([NewTopic(self.topic, assignments=replicas)])

    def leaders(self) -> dict[int, Leader]:
        """Of every partition. Raises FencelineError."""
        found = self.admin.metadata([self.topic], timeout_ms=_PATIENCE_MS).topics[self.topic].partitions
        return {partition: Leader(each.leader, each.leader_epoch) for partition, each in found.items()}

    def ends(self) -> dict[int, int]:
        """Up to where (exclusive) each partition may be read. Raises FencelineError."""
        wanted = [TopicPartition(self.topic, partition) for partition in range(self._partition_count)]
        found = self.admin.list_offsets(dict.fromkeys(wanted, "latest"), timeout_ms=_PATIENCE_MS)
        return {tp.partition: at.offset for tp, at in found.items()}

    # -- the busy partition, as `loss.Stage` asks --------------------------------------------------------------------

    def leader(self) -> Leader:
        try:
            return self.leaders()[self.busy]
        except (FencelineError, KeyError):
            return Leader(NOBODY, -1)

    def in_sync(self) -> frozenset[int]:
        try:
            found = self.admin.metadata([self.topic], timeout_ms=_PATIENCE_MS).topics[self.topic]
            return frozenset(found.partitions[self.busy].isr)
        except (FencelineError, KeyError):
            return frozenset()

    def cut_off(self, node: int) -> str:
        """What was done, in words."""
        try:
            self._nodes.isolate(node, peers=self._other_brokers(node))
        except CutsUnavailable:
            self._killed = [other for other in (_LEADER, _FOLLOWER) if other != node]
            for other in self._killed:
                self._nodes.kill(other)
            return "has no follower any more: it is killed, since sockets can not be cut off on this system"
        return "is cut off from the other brokers"

    def take_away(self, node: int) -> None:
        """Its partition may be led uncleanly from now on."""
        self.admin.alter_configs({("topic", self.topic): {"unclean.leader.election.enable": "true"}})
        if self._killed:
            self._nodes.kill(node)
            for other in self._killed:
                self._nodes.restart(other)
        else:
            self._nodes.isolate(node)

    def bring_back(self, node: int) -> None:
        """It follows, and nothing is led uncleanly any more."""
        if self._killed:
            self._nodes.restart(node)
        else:
            self._nodes.heal(node)
        self.admin.alter_configs({("topic", self.topic): {"unclean.leader.election.enable": None}})

    def _other_brokers(self, node: int) -> Collection[int]:
        return [place.node_id for place in self._nodes.layout.brokers if place.node_id != node]
