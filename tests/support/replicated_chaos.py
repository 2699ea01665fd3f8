"""A replicated topic in a local cluster under load and in trouble, and how its history is judged afterwards.

Owns the course of a run: begin, load, trouble, end, judgement. What goes wrong is in `Verdict`; nothing here asserts.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from types import MappingProxyType
from typing import Final

from fenceline.client.admin.admin import Admin
from fenceline.client.admin.async_admin import NewTopic
from fenceline.client.core.offsets import LATEST
from fenceline.ids import TopicPartition
from fenceline.local_cluster.cluster import LocalCluster
from fenceline.records.batch import iter_headers
from fenceline.records.decode import decode_batch
from fenceline.testing.history import History, Partition
from fenceline.testing.history_checks import Anomaly
from fenceline.testing.waiting import eventually
from tests.cli.chaos import KINDS, Trouble
from tests.support.partition_files import log_bytes
from tests.support.process_faults import ProcessFaults
from tests.support.replicated_readers import Reader
from tests.support.replicated_senders import Sender

TOPIC: Final = "replicated"
PARTITIONS: Final = 6
SOON_MISSED: Final = MappingProxyType(
    {
        "broker.session.timeout.ms": "2000",
        "broker.heartbeat.interval.ms": "300",
        "replica.lag.time.max.ms": "2000",
    }
)
"""Settings of clusters whose brokers go."""
GROUPS: Final = MappingProxyType(
    {
        "offsets.topic.num.partitions": "1",
        "offsets.topic.replication.factor": "3",
        "group.initial.rebalance.delay.ms": "0",
    }
)
"""Settings of clusters whose groups have no time to lose, and one coordinator."""
NODES: Final = 3
_CLOCK_STEP_S: Final = 50 * 60.0
"""Less than what brokers let the clocks of producers differ from theirs."""


class ReplicaTrouble(Trouble):
    """Also disks without room and clocks that step."""

    def __init__(
        self,
        cluster: LocalCluster,
        rng: random.Random,
        *,
        longest_s: float,
        faults: ProcessFaults,
        kinds: Sequence[str] = (*KINDS, "full", "clock"),
    ) -> None:
        super().__init__(cluster, rng, longest_s=longest_s, kinds=kinds)
        self._faults, self._steps = faults, random.Random(rng.random())

    def mend_all(self) -> None:
        """Nodes that gave up for want of room are started again, and those whose disk was full in the middle of a cut:
        such a partition is offline until then, as its node says."""
        for place in self._cluster.layout.nodes:
            said = place.log_file.read_text().rpartition("Fenceline is ready")[2]
            if self._cluster.status_of(place.node_id).state == "ended" or "partition offline" in said:
                self.story.append(f"node {place.node_id} is started again")
                self._cluster.restart(place.node_id)

    def _wait(self) -> None:
        """As an operator's supervisor does it: who has given up for want of room is started again."""
        super()._wait()
        for node in self._nodes:
            if node not in self._busy and self._cluster.status_of(node).state == "ended":
                self.story.append(f"{time.monotonic() - self._begin:.1f} node {node} had ended by itself")
                self._busy[node] = self._pool.submit(self._cluster.restart, node)

    def _break_and_mend(self, kind: str, node: int, peer: int, lasts_s: float) -> None:
        if kind not in ("full", "clock"):
            super()._break_and_mend(kind, node, peer, lasts_s)
            return
        pid = self._cluster.pid(node)
        if kind == "full":
            self._faults.fill_disk(pid)
            time.sleep(lasts_s)
            self._faults.fill_disk(pid, is_full=False)
        else:
            self._faults.step_clock(pid, self._steps.uniform(-_CLOCK_STEP_S, _CLOCK_STEP_S))
            time.sleep(lasts_s)
            self._faults.step_clock(pid, 0)
        self.story.append(f"{time.monotonic() - self._begin:.1f} {kind} {node} over")


@dataclass(slots=True)
class Verdict:
    """The outcome of a run besides its history."""

    given_up: list[str] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)
    truncations: int = 0
    """How often readers were told that what they had read was cut off."""
    differing: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    lines: Counter[str] = field(default_factory=Counter)
    """What nodes said, by level and event."""


def create(bootstrap: str, *, topic: str = TOPIC, partitions: int = PARTITIONS, **configs: str) -> None:
    """A topic with three replicas that keeps all records."""
    settings = {"retention.ms": "-1", "min.insync.replicas": "2"} | {
        key.replace("_", "."): value for key, value in configs.items()
    }
    with Admin({"bootstrap.servers": bootstrap}) as admin:
        admin.create_topics([NewTopic(topic, partitions, NODES, configs=settings)])


def all_in_sync(bootstrap: str, topic: str = TOPIC) -> bool:
    with Admin({"bootstrap.servers": bootstrap}) as admin:
        found = admin.metadata([topic]).topics[topic].partitions
    return all(len(each.isr) == len(each.replicas) > 0 and each.leader >= 0 for each in found.values())


def ends(bootstrap: str, topic: str = TOPIC, partitions: int = PARTITIONS) -> dict[int, int]:
    wanted = {TopicPartition(topic, index): LATEST for index in range(partitions)}
    with Admin({"bootstrap.servers": bootstrap}) as admin:
        return {tp.partition: found.offset for tp, found in admin.list_offsets(wanted).items()}


def finish(
    cluster: LocalCluster,
    senders: Sequence[Sender],
    readers: Sequence[Reader],
    *,
    topic: str = TOPIC,
    partitions: int = PARTITIONS,
) -> Verdict:
    """Let everything that is on its way arrive; the cluster runs, with all nodes."""
    for sender in senders:
        sender.finish()
    eventually(lambda: all_in_sync(cluster.bootstrap, topic), "all replicas are in sync", wait_s=120)
    reached = ends(cluster.bootstrap, topic, partitions)
    verdict = Verdict()
    verdict.given_up = [each for sender in senders for each in sender.given_up]
    for reader in readers:
        behind = reader.finish(reached)
        verdict.troubles += [f"{reader.name}: {each}" for each in (*reader.troubles, *behind)]
    verdict.truncations = sum(reader.truncations for reader in readers)
    return verdict


def look_at_files(
    cluster: LocalCluster, history: History, verdict: Verdict, *, topic: str = TOPIC, partitions: int = PARTITIONS
) -> None:
    """Every replica's log, and what the nodes said. The cluster has stopped."""
    for index in range(partitions):
        contents = {
            place.node_id: log_bytes(place.data_dir, topic, index)
            for place in cluster.layout.nodes
            if (place.data_dir / f"{topic}-{index}").exists()
        }
        if len(set(contents.values())) > 1:
            sizes = {node: len(content) for node, content in contents.items()}
            verdict.differing.append(f"{topic}-{index}: the replicas' bytes differ; sizes are {sizes}")
        else:
            contents = dict(list(contents.items())[:1])  # one stands for all
        for node, content in contents.items():
            history.log(f"node {node}", (topic, index), *_records(content))
    for node_id, line in _said(cluster):
        if not line.startswith("{"):
            if not line.startswith("Fenceline is ready") and not is_of_a_full_disk(line):
                verdict.complaints.append(f"{node_id}: {line}")
            continue
        reported = json.loads(line)
        verdict.lines[f"{reported['level']}: {reported['event']}"] += 1
        if reported["level"] not in ("debug", "info", "warning") and not is_of_a_full_disk(line):
            verdict.complaints.append(f"{node_id}: {line}")


def batches_of(cluster: LocalCluster, anomalies: Iterable[Anomaly], *, most: int = 40) -> Iterator[str]:
    """Who wrote what is wrong, and where those values are besides. The cluster has stopped."""
    values: dict[Partition, set[int]] = {}
    for each in anomalies:
        values.setdefault(each.partition, set()).add(each.value)
    for (topic, index), wrong in values.items():
        place = next(each for each in cluster.layout.nodes if (each.data_dir / f"{topic}-{index}").exists())
        content = log_bytes(place.data_dir, topic, index)
        holders = (
            f"{topic}-{index} offsets {header.base_offset} to {header.last_offset}: producer {header.producer_id} epoch"
            f" {header.producer_epoch} sequences {header.base_sequence} to {header.last_sequence}, leader epoch"
            f" {header.leader_epoch}, at {header.max_timestamp}"
            for header in iter_headers(content)
            if any(int(bytes(record.value or b"0")) in wrong for record in decode_batch(content, header))
        )
        yield from islice(holders, most)


def _records(content: bytes) -> tuple[list[int], list[int]]:
    offsets: list[int] = []
    values: list[int] = []
    for header in iter_headers(content):
        for record in decode_batch(content, header):
            assert record.value is not None
            offsets.append(record.offset)
            values.append(int(bytes(record.value)))
    return offsets, values


def _said(cluster: LocalCluster) -> Iterator[tuple[int, str]]:
    for place in cluster.layout.nodes:
        for file in (place.log_file.with_name("node.log.1"), place.log_file):
            if file.exists():
                for line in file.read_text().splitlines():
                    yield place.node_id, line


def is_of_a_full_disk(line: str) -> bool:
    """What a node says that has no room, also as its last words: a controller stops that can not even write that."""
    return "no space left" in line.lower() or line.startswith(("  Make room", "  Free disk space"))
