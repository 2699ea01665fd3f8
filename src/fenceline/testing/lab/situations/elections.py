"""Situations around leaders: unclean elections, truncation, leaders that are cut off or move all the time.

Owns the choreography of these. How records are lost: a follower is down while records are acknowledged; then every
replica that has them goes down, one after the other, while a majority of the controllers stays up; then the follower is
elected. Replicas that are started meanwhile are cut off from the other brokers, but not from the controllers.

Rules: `epochs.md` E1 to E40; KIP-320, KIP-704.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from fenceline.client import ConsumerRecord, LossReceipt, TopicPartition
from fenceline.client.admin.leadership import ElectionKind
from fenceline.errors import FencelineError
from fenceline.testing.lab.fault_state import BROKERS, CONTROLLERS, LinkFault
from fenceline.testing.lab.faults import ActiveFault
from fenceline.testing.lab.situations.common import WAIT_S, SituationBase, SituationImpossible, values_of
from fenceline.testing.waiting import eventually

if TYPE_CHECKING:
    from fenceline.testing.lab.partition_state import PartitionState

_HOLD: Final = -1
"""The id of the laboratory's own faults of the network: they are no faults of the test."""
_MOVE_PAUSE_S: Final = 0.01


@dataclass(frozen=True, slots=True)
class LostRecord:
    """A record that was acknowledged, and is in the log no more."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int
    key: bytes | None
    value: bytes | None


@dataclass(frozen=True, slots=True)
class UncleanElection:
    """What `unclean_election` made true. `divergent_offset`: the first offset that differs; `written`: the offsets of
    the new leader's records."""

    topic: str
    partition: int
    divergent_offset: int
    old_leader: int
    new_leader: int
    old_epoch: int
    new_epoch: int
    lost: tuple[LostRecord, ...]
    receipts: tuple[LossReceipt, ...]
    written: tuple[int, ...] = ()

    @property
    def lost_values(self) -> list[bytes | None]:
        return [record.value for record in self.lost]


@dataclass(frozen=True, slots=True)
class IsolatedLeader:
    """A leader that is cut off from the other nodes and from the controllers, and still serves its clients."""

    topic: str
    partition: int
    node: int
    epoch: int
    new_leader: int
    new_epoch: int
    fault: ActiveFault


@dataclass(frozen=True, slots=True)
class LaggingBroker:
    """A broker whose metadata is older than that of its clients: it answers UNKNOWN_LEADER_EPOCH."""

    topic: str
    partition: int
    node: int
    known_epoch: int
    epoch: int
    fault: ActiveFault


class ElectionSituations(SituationBase):
    """Part of `Situations`."""

    def unclean_election(
        self,
        topic: str,
        partition: int = 0,
        *,
        lose: int = 50,
        produce: Callable[[], object] | None = None,
        then_write: int = 0,
    ) -> UncleanElection:
        """Elect a leader that lacks `lose` acknowledged records, which are lost then.

        The laboratory writes these records, unless `produce` does: it is called when what is written will be lost. The
        new leader gets `then_write` records before the replicas with the old ones come back. Needs two replicas, and as
        many acknowledging replicas as `min.insync.replicas` without the one that is elected."""
        before = self._losable(topic, partition)
        known = {receipt.id for receipt in self._cluster.losses(topic)}
        old, survivor = before.leader, self._survivor(before)
        self._note("unclean election begins", topic=topic, partition=partition, leader=old, survivor=survivor)
        self._kill(survivor)
        self._await_out_of_isr(topic, partition, survivor)
        divergent = self._end(topic, partition)
        if produce is not None:
            produce()
        else:
            self._write(topic, partition, values_of("lost", lose))
        end = self._end(topic, partition)
        held = [survivor]
        self._start_held(survivor)
        in_sync = self._partition(topic, partition).isr
        for other in (each for each in in_sync if each != old):
            self._kill(other)
            self._await_out_of_isr(topic, partition, other)
            self._start_held(other)
            held.append(other)
        old_epoch = self._partition(topic, partition).leader_epoch
        self._kill(old)
        after = self._elect_uncleanly(topic, partition, survivor)
        self._release(held)
        written = tuple(self._write(topic, partition, values_of("new", then_write))) if then_write else ()
        self._cluster.start_node(old)
        self._await_partition(topic, partition, lambda it: set(it.isr) == set(it.replicas), "all replicas are in sync")
        receipts, lost = self._lost(before, TopicPartition(topic, partition), (divergent, end), known)
        self._note("unclean election done", topic=topic, partition=partition, lost=len(lost), from_offset=divergent)
        return UncleanElection(
            topic, partition, divergent, old, survivor, old_epoch, after.leader_epoch, lost, receipts, written
        )

    def truncation_and_growth(
        self, topic: str, partition: int = 0, *, lose: int = 20, grow: int = 40
    ) -> UncleanElection:
        """An unclean election that loses records, and more new ones than were lost: a position behind the lost ones is
        a valid offset again, of another history."""
        if grow < lose:
            raise SituationImpossible(
                f"{grow} new records do not reach the end of {lose} lost ones", "Give grow at least the value of lose."
            )
        return self.unclean_election(topic, partition, lose=lose, then_write=grow)

    def isolated_leader(self, topic: str, partition: int = 0) -> IsolatedLeader:
        """The leader is cut off from all nodes, not from clients, and another one is elected. What it acknowledges with
        acks=1 is lost when the fault ends."""
        before = self._with_replicas(topic, partition, 2)
        others = [node for node in self._cluster.nodes if node != before.leader]
        if len(self._cluster.nodes) < 3:
            raise SituationImpossible(
                "A cluster of less than three nodes elects no leader without the one that is cut off",
                "Use a cluster of three nodes.",
            )
        fault = self._cluster.faults.cut(before.leader, peers=others)
        after = self._await_partition_elsewhere(topic, partition, before.leader)
        return IsolatedLeader(
            topic, partition, before.leader, before.leader_epoch, after.leader, after.leader_epoch, fault
        )

    def leader_moved(self, topic: str, partition: int = 0, *, to: int | None = None) -> PartitionState:
        """A clean change of the leader, to another replica in sync. Epochs that clients know are stale then."""
        before = self._with_replicas(topic, partition, 2)
        if to is not None and (to not in before.replicas or to == before.leader):
            raise SituationImpossible(
                f"Node {to} cannot become the leader of {topic}-{partition}: the leader is {before.leader}, the"
                f" replicas are {list(before.replicas)}",
                "Choose one of the followers.",
            )
        ready = self._await_partition(
            topic,
            partition,
            lambda it: any(node != before.leader and to in (None, node) for node in it.isr),
            "another replica is in sync",
        )
        target = to if to is not None else next(node for node in ready.isr if node != before.leader)
        return self._move(topic, partition, target)

    def moving_leader(self, topic: str, partition: int = 0, *, pause_s: float = _MOVE_PAUSE_S) -> ActiveFault:
        """The leader moves again and again until the fault ends: requests rarely meet the leader that their client
        knows."""
        self._with_replicas(topic, partition, 2)
        ended = threading.Event()

        def move() -> None:
            while not ended.wait(pause_s):
                try:
                    found = self._partition(topic, partition)
                    targets = [node for node in found.isr if node != found.leader]
                    if targets:
                        self._move(topic, partition, targets[0])
                except (FencelineError, TimeoutError, OSError):
                    continue

        thread = threading.Thread(target=move, name=f"moving leader of {topic}-{partition}", daemon=True)
        first = self._partition(topic, partition).leader_epoch
        thread.start()

        def undo() -> None:
            ended.set()
            thread.join()

        fault = self._cluster.faults.begin(f"moving leader of {topic}-{partition}", None, undo)
        self._await_partition(topic, partition, lambda it: it.leader_epoch > first, "the leader has moved")
        return fault

    def lagging_broker(self, topic: str, partition: int = 0) -> LaggingBroker:
        """A broker becomes the leader and does not hear of it, and clients do: requests with the new epoch get
        UNKNOWN_LEADER_EPOCH from it. When its session ends (`broker.session.timeout.ms`), another one is elected."""
        before = self._with_replicas(topic, partition, 2)
        controller = self._controller()
        if len(self._cluster.nodes) < 3 or not set(before.replicas) - {before.leader, controller}:
            raise SituationImpossible(
                f"No replica of {topic}-{partition} could lead and lag: the replicas are {list(before.replicas)}, node"
                f" {before.leader} leads, and node {controller} is the controller",
                "Use three nodes and three replicas.",
            )
        ready = self._await_partition(
            topic, partition, lambda it: bool(set(it.isr) - {it.leader, controller}), "another replica is in sync"
        )
        node = next(each for each in ready.isr if each not in (ready.leader, controller))
        tp = TopicPartition(topic, partition)
        self._order_replicas(tp, [node, *(each for each in before.replicas if each != node)])
        hold = LinkFault(0, listener=CONTROLLERS, holds_incoming=True, holds_outgoing=True)
        fault = self._cluster.faults.links("lagging metadata", node, [hold])
        self._elect(tp, via=controller)
        after = self._await_partition(topic, partition, lambda it: it.leader == node, f"node {node} leads")
        return LaggingBroker(topic, partition, node, before.leader_epoch, after.leader_epoch, fault)

    # --- inside ---------------------------------------------------------------------------------------------------

    def _with_replicas(self, topic: str, partition: int, count: int) -> PartitionState:
        found = self._partition(topic, partition)
        if len(found.replicas) < count:
            raise SituationImpossible(
                f"{topic}-{partition} has {len(found.replicas)} replica, and this needs {count}",
                f"Create the topic with replication_factor={count} or more.",
            )
        return self._await_partition(topic, partition, lambda it: it.leader >= 0, "it has a leader")

    def _losable(self, topic: str, partition: int) -> PartitionState:
        found = self._with_replicas(topic, partition, 2)
        needed = int(self._config(topic, "min.insync.replicas") or "1")
        if needed > len(found.replicas) - 1:
            raise SituationImpossible(
                f"{topic} has min.insync.replicas={needed} of {len(found.replicas)} replicas: no record is acknowledged"
                " without the replica that would have to lack it",
                "Use more replicas, or a lower min.insync.replicas.",
            )
        if len(self._cluster.nodes) < 3 and any(self._is_voter(node) for node in found.replicas):
            raise SituationImpossible(
                "A cluster of less than three nodes has no controller when one of them is down",
                "Use three nodes, or controllers=1.",
            )
        return self._await_partition(
            topic, partition, lambda it: it.leader >= 0 and set(it.isr) == set(it.replicas), "all are in sync"
        )

    def _is_voter(self, node: int) -> bool:
        return any(each.is_controller for each in self._cluster.processes.layout.nodes if each.node_id == node)

    def _survivor(self, found: PartitionState) -> int:
        """The first replica that does not lead: an unclean election takes the first that is alive."""
        return next(node for node in found.replicas if node != found.leader)

    def _kill(self, node: int) -> None:
        self._cluster.processes.kill(node)
        self._note("killed for the situation", node=node)

    def _start_held(self, node: int) -> None:
        """Start a broker that does not reach the other brokers, but the controllers."""
        control = self._cluster.control(node)
        hold = LinkFault(_HOLD, peer="nodes", listener=BROKERS, holds_incoming=True, holds_outgoing=True)
        control.set(replace(control.faults, links=(*control.faults.links, hold)))
        self._cluster.start_node(node)

    def _release(self, nodes: Sequence[int]) -> None:
        for node in nodes:
            control = self._cluster.control(node)
            control.set(control.faults.without(_HOLD))

    def _elect_uncleanly(self, topic: str, partition: int, node: int) -> PartitionState:
        tp = TopicPartition(topic, partition)

        def elected() -> PartitionState | None:
            self._elect(tp, ElectionKind.UNCLEAN)
            found = self._partition(topic, partition)
            return found if found.leader == node else None

        return eventually(elected, f"node {node} is elected uncleanly for {topic}-{partition}", wait_s=WAIT_S)

    def _move(self, topic: str, partition: int, node: int) -> PartitionState:
        tp = TopicPartition(topic, partition)
        found = self._partition(topic, partition)
        self._order_replicas(tp, [node, *(each for each in found.replicas if each != node)])
        self._elect(tp)
        return self._await_partition(topic, partition, lambda it: it.leader == node, f"node {node} leads")

    def _await_out_of_isr(self, topic: str, partition: int, node: int) -> None:
        self._await_partition(topic, partition, lambda it: node not in it.isr, f"node {node} is out of the ISR")

    def _await_partition_elsewhere(self, topic: str, partition: int, node: int) -> PartitionState:
        return self._await_partition(topic, partition, lambda it: it.leader not in (-1, node), "another one leads")

    def _lost(
        self, before: PartitionState, where: TopicPartition, offsets: tuple[int, int], known: Set[str]
    ) -> tuple[tuple[LossReceipt, ...], tuple[LostRecord, ...]]:
        """The receipts of the range that was lost, of all replicas that had it, and its records, from the evidence of
        one of them."""
        divergent, end = offsets
        if end == divergent:
            return (), ()
        replicas = len(before.replicas) - 1

        def receipts() -> list[LossReceipt]:
            found = [
                each
                for each in self._cluster.losses(where.topic)
                if each.partition == where.partition and each.id not in known
                if each.start_offset <= divergent and each.end_offset_exclusive >= end
                if before.leader_epoch in each.leader_epochs
            ]
            return found if len(found) >= replicas else []

        found = eventually(receipts, f"{replicas} loss receipts of {where}", wait_s=WAIT_S)
        best = max(found, key=lambda receipt: receipt.records)
        records = self._cluster.lost_records(best)
        return tuple(found), tuple(_lost_record(best, each) for each in records if each.offset >= divergent)


def _lost_record(receipt: LossReceipt, record: ConsumerRecord) -> LostRecord:
    return LostRecord(receipt.topic, receipt.partition, record.offset, record.leader_epoch, record.key, record.value)
