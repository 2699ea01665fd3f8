"""The story of partitions that Fenceline and Kafka brokers replicate together: leaders move, die, and lose records.

Owns the order of events and what was seen of them; what must hold afterwards is for the tests to say.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fenceline.client.admin.admin import Admin
from fenceline.client.admin.async_admin import NewTopic
from fenceline.ids import LOSSES_TOPIC, TopicPartition
from fenceline.testing.apache_kafka import run_tool
from fenceline.testing.mixed_cluster import MixedNode
from fenceline.testing.waiting import eventually
from tests.support.leaders import elect, order_replicas
from tests.support.mixed_stage import MixedStage
from tests.support.partition_files import log_bytes
from tests.support.partition_load import PartitionLoad

MOVES = 20
MOVED = "moved"
"""Its leaders move under load, one partition for each codec and broker."""
TORN = "torn"
"""Its partitions get leaders that were not in sync; number 0 is Kafka's to cut, number 1 Fenceline's."""
ELECTED = "elected"
"""The same, but nobody may lead it uncleanly until Kafka's tool asks for that."""
BEHIND = "behind"
"""The leader's log starts where a follower never was; number 0 is followed by Kafka, number 1 by Fenceline."""
DECIDED = "decided"
"""Transactions, written while Kafka leads."""
SPARSE = "sparse"
"""Leaders move, and nothing is written until the end."""
MIGRATED = "migrated"
"""Its only replica goes from Kafka to Fenceline and back."""
UNDECIDED = b"undecided"
"""The value in the transaction that nobody ends."""
CODECS = ("none", "lz4", "zstd")
_GOES = {5: "ours", 9: "theirs"}
"""In which turns a leader of which kind is killed."""
_STOPS = {13: "ours", 16: "theirs"}
"""In which turns one is stopped as an operator does it."""
_SOME = 10
"""Records that every leader acknowledges before the next comes."""


@dataclass(slots=True)
class Lived:
    """What is left when all nodes have stopped."""

    directories: dict[int, Path]
    ours: int
    theirs: int
    controller: int
    kinds: dict[int, str]
    acknowledged: list[dict[int, bytes]] = field(default_factory=list)
    doubled: list[tuple[int, int]] = field(default_factory=list)
    handed: set[tuple[str, str]] = field(default_factory=set)
    """From a leader's kind to its successor's."""
    led: dict[int, set[int]] = field(default_factory=dict)
    """By partition of MOVED: who led it."""
    epochs: dict[int, list[int]] = field(default_factory=dict)
    """By partition of MOVED: the leader epoch after each turn."""
    controlled: set[str] = field(default_factory=set)
    """The kinds of those that were killed while they led the quorum."""
    lost: dict[tuple[str, int], bytes] = field(default_factory=dict)
    """By partition of TORN and ELECTED: the bytes that only the old leader had."""
    ledger_led_by: int = -1
    """Who led the topic of receipts when they were read."""
    receipts: list[dict[str, Any]] = field(default_factory=list)
    """What `fenceline losses list` tells in the end."""
    kept: dict[tuple[str, int], list[bytes]] = field(default_factory=dict)
    """By partition of TORN and ELECTED: the values that all must have."""
    without_leader: dict[int, int] = field(default_factory=dict)
    """By partition of ELECTED: who led it when only a replica was there that lacks records, before the tool asked."""
    read_torn: dict[int, list[bytes]] = field(default_factory=dict)
    """By leader: what it gives of partition 0 of TORN to readers of committed transactions."""
    began_at: dict[int, int] = field(default_factory=dict)
    """By partition of BEHIND: the leader's log start."""
    migrated: list[bytes] = field(default_factory=list)
    """The bytes of MIGRATED at each of its places."""
    committed: list[bytes] = field(default_factory=list)
    read_committed: dict[int, list[bytes]] = field(default_factory=dict)
    """By leader: what it gives readers of committed transactions."""


class Story(MixedStage):
    """`ours` and `theirs` are killed and stopped, the third in `live_by_control` only, where another takes its part."""

    def __init__(self, root: Path, kinds: Sequence[str], *, ours: int, theirs: int) -> None:
        super().__init__(root, kinds, ours=ours, theirs=theirs)
        self.lived = Lived(
            {node.node_id: node.log_dir for node in self.cluster.nodes},
            ours,
            theirs,
            next(node.node_id for node in self.cluster.nodes if node.is_controller),
            {node.node_id: node.kind for node in self.cluster.nodes},
        )

    def live(self) -> Lived:
        """From the first start to the last stop."""
        with self.cluster:
            self._begin()
            self._create()
            with PartitionLoad(self.bootstrap, MOVED, CODECS) as load:
                load.await_more(_SOME)
                for turn in range(MOVES):
                    self._turn(turn, load)
            self.lived.acknowledged, self.lived.doubled = load.acknowledged, load.doubled
            self._transact()
            self._migrate()
            self._tear(0, self.theirs, self.ours)
            self._move_ledger()
            self._tear(1, self.ours, self.theirs)
            self._read_receipts()
            self._end()
        return self.lived

    def live_by_control(self) -> Lived:
        """Whoever leads the quorum is killed under load, together with what else it leads: each kind at least once."""
        with self.cluster:
            self._begin()
            self._create()
            with PartitionLoad(self.bootstrap, MOVED, CODECS) as load:
                load.await_more(_SOME)
                while len(self.lived.controlled) < 2 and len(self.lived.epochs.get(0, ())) < MOVES:
                    controller = self.cluster.leader()
                    self.third = next(node for node in self.cluster.nodes if node is not controller)
                    self._leave(controller, load, by_kill=True)
                    self.lived.controlled.add(controller.kind)
                    self._move(len(self.lived.epochs.get(0, ())), load)
                    self._note_leaders()
            self.lived.acknowledged, self.lived.doubled = load.acknowledged, load.doubled
            self._end_moved()
            self._stop()
        return self.lived

    def _create(self) -> None:
        ours, theirs = self.ours.node_id, self.theirs.node_id
        both_ways = {0: [theirs, ours], 1: [ours, theirs]}
        all_ways = {index: self._order(index) for index in range(len(CODECS))}
        with Admin(self.third.bootstrap) as admin:
            admin.create_topics(
                [
                    NewTopic(MOVED, configs={"min.insync.replicas": "2"}, assignments=all_ways),
                    NewTopic(TORN, configs={"unclean.leader.election.enable": "true"}, assignments=both_ways),
                    NewTopic(ELECTED, assignments=both_ways),
                    NewTopic(BEHIND, assignments={0: [ours, theirs], 1: [theirs, ours]}),
                    NewTopic(DECIDED, assignments={0: [theirs, *(each for each in self.ids if each != theirs)]}),
                    NewTopic(SPARSE, assignments={0: self.ids}),
                    NewTopic(MIGRATED, assignments={0: [theirs]}),
                    NewTopic("__transaction_state", configs={"cleanup.policy": "compact"}, assignments={0: [theirs]}),
                ]
            )
        for topic, count in (
            (MOVED, len(CODECS)),
            (TORN, 2),
            (ELECTED, 2),
            (BEHIND, 2),
            (DECIDED, 1),
            (SPARSE, 1),
            (MIGRATED, 1),
        ):
            for index in range(count):
                eventually(lambda topic=topic, index=index: self.partition(topic, index).leader >= 0)  # type: ignore[misc]
        for index in range(2):
            self._write(BEHIND, index, [f"early {number}" for number in range(20)])

    def _turn(self, turn: int, load: PartitionLoad) -> None:
        before = [self.partition(MOVED, index).leader for index in range(len(CODECS))]
        if turn in _GOES:
            self._leave(getattr(self, _GOES[turn]), load, by_kill=True)
        elif turn in _STOPS:
            self._leave(getattr(self, _STOPS[turn]), load, by_kill=False)
        else:
            self._move(turn, load)
        for old, new in zip(before, self._note_leaders(), strict=True):
            if old != new:
                self.lived.handed.add((self.lived.kinds[old], self.lived.kinds[new]))

    def _note_leaders(self) -> list[int]:
        leaders = []
        for index in range(len(CODECS)):
            now = self.partition(MOVED, index)
            self.lived.led.setdefault(index, set()).add(now.leader)
            self.lived.epochs.setdefault(index, []).append(now.leader_epoch)
            leaders.append(now.leader)
        return leaders

    def _move(self, turn: int, load: PartitionLoad) -> None:
        """Every partition gets another preferred leader, and has it elected."""
        orders = {index: self._order(turn + 1 + index) for index in range(len(CODECS))}
        for index in orders:
            self._in_sync(MOVED, index, self.ids)
        order_replicas(self.third.port, MOVED, orders)
        order_replicas(self.third.port, SPARSE, {0: self._order(turn)})

        def elected() -> bool:
            elect(self.third.port, MOVED, list(orders))
            elect(self.third.port, SPARSE, [0])
            return all(self.partition(MOVED, index).leader == order[0] for index, order in orders.items())

        eventually(elected, f"leaders are as wished in turn {turn}", wait_s=120)
        load.await_more(_SOME)

    def _leave(self, node: MixedNode, load: PartitionLoad, *, by_kill: bool) -> None:
        """A broker that leads a partition stops, and restarts after the others have continued without it."""
        if by_kill:
            node.kill()
        else:
            node.stop()
        for index in range(len(CODECS)):
            eventually(
                lambda index=index: self.partition(MOVED, index).leader not in (-1, node.node_id),  # type: ignore[misc]
                f"another broker leads {MOVED}-{index}",
                wait_s=120,
            )
        load.await_more(_SOME)
        if by_kill and node in (self.ours, self.theirs):
            self._leave_behind(0 if node is self.theirs else 1, self.ours if node is self.theirs else self.theirs)
        node.start()
        node.wait_ready()
        for index in range(len(CODECS)):
            self._in_sync(MOVED, index, self.ids)

    def _leave_behind(self, index: int, leader: MixedNode) -> None:
        """The follower is away; what it would need next is deleted, up to the middle of a batch."""
        self._in_sync(BEHIND, index, [leader.node_id])
        self._write(BEHIND, index, [f"late {number}" for number in range(20)])
        start = 35
        with Admin(leader.bootstrap) as admin:
            admin.delete_records({TopicPartition(BEHIND, index): start})
        self.lived.began_at[index] = start

    def _transact(self) -> None:
        """Kafka coordinates and leads while transactions are decided; then Fenceline leads what it has replicated."""
        self._in_sync(DECIDED, 0, self.ids)
        order_replicas(self.third.port, DECIDED, {0: self._first(self.theirs)})
        self._elect(DECIDED, self.theirs)
        producer = self._transactional("decided")
        for number in range(4):
            producer.begin_transaction()
            values = [f"transaction {number} record {each}".encode() for each in range(10)]
            for value in values:
                producer.produce(DECIDED, value, partition=0)
            assert producer.flush(120) == 0
            if number % 2:
                producer.abort_transaction(120)
            else:
                producer.commit_transaction(120)
                self.lived.committed += values
        for node in (self.theirs, self.ours):
            order_replicas(self.third.port, DECIDED, {0: self._first(node)})
            self._elect(DECIDED, node)
            self.lived.read_committed[node.node_id] = self._read_committed(DECIDED, len(self.lived.committed))

    def _migrate(self) -> None:
        for node in (self.theirs, self.ours, self.theirs):
            wanted = (node.node_id,)
            order_replicas(self.third.port, MIGRATED, {0: wanted})
            eventually(
                lambda wanted=wanted: self.partition(MIGRATED, 0).replicas == wanted,  # type: ignore[misc]
                f"{MIGRATED} has moved to {wanted}",
                wait_s=120,
            )
            self._leads(MIGRATED, 0, node.node_id)
            self._write(MIGRATED, 0, [f"{MIGRATED} to {wanted} {number}" for number in range(100)])
            self.lived.migrated.append(log_bytes(node.log_dir, MIGRATED))

    def _tear(self, index: int, old: MixedNode, behind: MixedNode) -> None:
        """`old` leads alone, goes, and has to take over the history of `behind`, which lacks its last records."""
        for topic in (TORN, ELECTED):
            self._in_sync(topic, index, [old.node_id, behind.node_id])
            order_replicas(self.third.port, topic, {index: [old.node_id, behind.node_id]})
            self._elect(topic, old, index)
            self._write(topic, index, [f"kept {number}" for number in range(50)], compression_type="gzip")
            self._equal(topic, index, [old, behind])
        if old is self.theirs:
            self._leave_undecided()
            self._equal(TORN, index, [old, behind])
        behind.kill()
        for topic in (TORN, ELECTED):
            self._in_sync(topic, index, [old.node_id])
            common = len(log_bytes(old.log_dir, topic, index))
            self._write(topic, index, [f"lost {number}" for number in range(50)], compression_type="snappy")
            self._write(topic, index, [f"lost too {number}" for number in range(50)])
            self.lived.lost[topic, index] = log_bytes(old.log_dir, topic, index)[common:]
        old.kill()
        behind.start()
        behind.wait_ready()
        self._leads(TORN, index, behind.node_id)
        self.lived.without_leader[index] = self.partition(ELECTED, index).leader
        run_tool(
            "org.apache.kafka.tools.LeaderElectionCommand",
            *("--bootstrap-server", self.third.bootstrap, "--election-type", "unclean"),
            *("--topic", ELECTED, "--partition", str(index)),
        )
        self._leads(ELECTED, index, behind.node_id)
        for topic in (TORN, ELECTED):
            self._write(topic, index, [f"new {number}" for number in range(70)], compression_type="lz4")
        old.start()
        old.wait_ready()
        for topic in (TORN, ELECTED):
            self._in_sync(topic, index, [old.node_id, behind.node_id])
            self._equal(topic, index, [old, behind])
            self.lived.kept[topic, index] = [f"kept {number}".encode() for number in range(50)]
            self.lived.kept[topic, index] += [f"new {number}".encode() for number in range(70)]
        if old is self.theirs:
            for node in (self.ours, self.theirs):
                order_replicas(
                    self.third.port, TORN, {0: [node.node_id, *{old.node_id, behind.node_id} - {node.node_id}]}
                )
                self._elect(TORN, node)
                self.lived.read_torn[node.node_id] = self._read_committed(TORN, len(self.lived.kept[TORN, index]))

    def _move_ledger(self) -> None:
        """It was made by who had the first receipt; what is lost from now on is told to Kafka, and to Kafka alone.

        To both of its brokers where there are two: after a kill -9 Kafka's controller finds no leader for what only one
        had.
        """
        kafka = tuple(sorted(node.node_id for node in self.cluster.nodes if node.is_kafka))

        def is_made() -> bool:
            with Admin(self.third.bootstrap) as admin:
                return bool(admin.metadata([LOSSES_TOPIC]).topics[LOSSES_TOPIC].partitions)

        eventually(is_made, "the topic of the first receipt", wait_s=120)
        order_replicas(self.third.port, LOSSES_TOPIC, {0: kafka})
        eventually(
            lambda: tuple(sorted(self.partition(LOSSES_TOPIC, 0).replicas)) == kafka,
            f"{LOSSES_TOPIC} has moved",
            wait_s=120,
        )

    def _read_receipts(self) -> None:
        """By `fenceline losses list --bootstrap` with the address of a broker of Kafka, which leads the ledger."""
        self.lived.ledger_led_by = self.partition(LOSSES_TOPIC, 0).leader

        def look() -> bool:
            command = (
                sys.executable,
                "-m",
                "fenceline",
                "losses",
                "list",
                "--json",
                "--bootstrap",
                self.theirs.bootstrap,
            )
            done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
            assert done.returncode == 0, done.stderr
            self.lived.receipts = json.loads(done.stdout)
            reported = {(each["topic"], each["partition"]) for each in self.lived.receipts}
            return {(TORN, 1), (ELECTED, 1)} <= reported

        eventually(look, "the receipt of what Fenceline cut", wait_s=120, step_s=0.2)

    def _leave_undecided(self) -> None:
        """A transaction that is open when its leader and its coordinator die."""
        producer = self._transactional("undecided")
        producer.begin_transaction()
        producer.produce(TORN, UNDECIDED, partition=0)
        assert producer.flush(120) == 0
        self._undecided = producer  # it says nothing more, and its end would abort the transaction

    def _end(self) -> None:
        """Wait until all replicas are in sync; then stop all nodes."""
        self._end_moved()
        for topic in (DECIDED, SPARSE):
            self._in_sync(topic, 0, self.ids)
            self._write(topic, 0, ["the last"])
            self._equal(topic, 0, self.cluster.nodes)
        for index in range(2):
            self._in_sync(BEHIND, index, [self.ours.node_id, self.theirs.node_id])
            self._write(BEHIND, index, ["the last"])
            for topic in (TORN, ELECTED):
                self._in_sync(topic, index, [self.ours.node_id, self.theirs.node_id])
        self._stop()

    def _end_moved(self) -> None:
        for index in range(len(CODECS)):
            self._in_sync(MOVED, index, self.ids)
            self._write(MOVED, index, ["the last"])
            self._equal(MOVED, index, self.cluster.nodes)
