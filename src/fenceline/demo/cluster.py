"""The demo's cluster: three brokers and a dedicated controller as local processes, and two topics.

Owns the replica assignment of the topics and how the busy partition of the flights loses its leader: by dropping the
leader's packets where the system allows it, else by killing processes, with the same outcome. The controller is a
separate node: a leader that is isolated from the other brokers still reaches it, and stays leader. The topic of the
aggregate and its coordinators are on the other brokers.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from fenceline.client.admin.admin import Admin, NewTopic
from fenceline.demo import published
from fenceline.demo.loss import NO_LEADER, LeaderAtLoss
from fenceline.errors import FencelineError
from fenceline.ids import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, TopicPartition
from fenceline.local_cluster.cluster import LocalCluster
from fenceline.local_cluster.socket_cuts import CutsUnavailable

BROKERS: Final = 3
_LEADER: Final = 2
_FOLLOWER: Final = 3
"""Partitions have two replicas, so that an unclean election has one candidate."""
_OTHERS: Final = ((1, 2), (3, 1))
"""Replicas of the other partitions, in turn: the leader of the busy partition leads no other."""
_NODES: Final = {
    "replica.lag.time.max.ms": "1500",
    "broker.session.timeout.ms": "4000",
    "broker.heartbeat.interval.ms": "500",
    "offsets.topic.num.partitions": str(len(_OTHERS)),
    "transaction.state.log.num.partitions": str(len(_OTHERS)),
}
"""Shorter timeouts, so that the cluster reacts within seconds; the defaults take half a minute."""
_COMPACTED: Final = {"cleanup.policy": "compact"}
_TIMEOUT_MS: Final = 2000


class DemoCluster:
    """Use as a context manager; its processes end with it, its directory stays. `busy`: the partition that loses
    records.
    """

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
            # A clean stop leaves complete logs.
            self._nodes.stop()
        self._nodes.__exit__(kind, error, trace)

    @property
    def bootstrap(self) -> str:
        """Addresses of the brokers that are never isolated."""
        return ",".join(place.address for place in self._nodes.layout.brokers if place.node_id != _LEADER)

    @property
    def data_dirs(self) -> list[Path]:
        """Data directories of the brokers."""
        return [place.data_dir for place in self._nodes.layout.brokers]

    @property
    def admin(self) -> Admin:
        """Created on first use. Two threads share it."""
        if self._admin is None:
            self._admin = Admin(self.bootstrap, **{"request.timeout.ms": _TIMEOUT_MS})
        return self._admin

    def create_topics(self) -> None:
        replicas: dict[int, tuple[int, ...]] = {}
        for partition in range(self._partition_count):
            replicas[partition] = _OTHERS[partition % len(_OTHERS)]
        replicas[self.busy] = (_LEADER, _FOLLOWER)
        others = dict(enumerate(_OTHERS))
        coordinators = (CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC)
        self.admin.create_topics(
            [
                NewTopic(self.topic, assignments=replicas),
                NewTopic(published.TOPIC, assignments=others),
                *(NewTopic(name, assignments=others, configs=_COMPACTED) for name in coordinators),
            ]
        )

    def leaders(self) -> dict[int, LeaderAtLoss]:
        """The leader of every partition. Raises FencelineError."""
        found = self.admin.metadata([self.topic], timeout_ms=_TIMEOUT_MS).topics[self.topic].partitions
        return {partition: LeaderAtLoss(each.leader, each.leader_epoch) for partition, each in found.items()}

    def ends(self) -> dict[int, int]:
        """End offset (exclusive) of each partition. Raises FencelineError."""
        wanted = [TopicPartition(self.topic, partition) for partition in range(self._partition_count)]
        found = self.admin.list_offsets(dict.fromkeys(wanted, "latest"), timeout_ms=_TIMEOUT_MS)
        return {tp.partition: at.offset for tp, at in found.items()}

    # -- the busy partition (`loss.PartitionControl`) ------------------------------------------------------------------

    def leader(self) -> LeaderAtLoss:
        try:
            return self.leaders()[self.busy]
        except (FencelineError, KeyError):
            return LeaderAtLoss(NO_LEADER, -1)

    def in_sync(self) -> frozenset[int]:
        try:
            found = self.admin.metadata([self.topic], timeout_ms=_TIMEOUT_MS).topics[self.topic]
            return frozenset(found.partitions[self.busy].isr)
        except (FencelineError, KeyError):
            return frozenset()

    def isolate_from_brokers(self, node: int) -> str:
        """Returns what was done to the node, for the timeline."""
        try:
            self._nodes.isolate(node, peers=self._other_brokers(node))
        except CutsUnavailable:
            self._killed = [other for other in (_LEADER, _FOLLOWER) if other != node]
            for other in self._killed:
                self._nodes.kill(other)
            return "loses its follower, which is killed: this system cannot drop a process's packets"
        return "is isolated from the other brokers"

    def isolate(self, node: int) -> None:
        """Isolate the node completely and allow an unclean election of its partition."""
        self.admin.alter_configs({("topic", self.topic): {"unclean.leader.election.enable": "true"}})
        if self._killed:
            self._nodes.kill(node)
            for other in self._killed:
                self._nodes.restart(other)
        else:
            self._nodes.isolate(node)

    def reconnect(self, node: int) -> None:
        """Let the node rejoin as a follower, and forbid unclean elections again."""
        if self._killed:
            self._nodes.restart(node)
        else:
            self._nodes.heal(node)
        self.admin.alter_configs({("topic", self.topic): {"unclean.leader.election.enable": None}})

    def _other_brokers(self, node: int) -> Collection[int]:
        return [place.node_id for place in self._nodes.layout.brokers if place.node_id != node]
