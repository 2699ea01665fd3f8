"""The curves of `benchmarks.scale` about clusters: three nodes, what 1,000 brokers that follow the metadata log cost
its leader, the nodes of a host, a controller of 1,000 brokers.

The controller is measured without processes: it decides on images of that size, and does no I/O anyway. Each size is a
process of its own, `python -m benchmarks.scale_cluster BROKERS`, which prints JSON.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from random import Random
from typing import Final
from uuid import UUID

import psutil

from benchmarks.clusters import PATIENCE_S, ClusterUnderTest
from benchmarks.harness import cpu_seconds, resident_mb, scratch
from benchmarks.scale_measuring import IDLE_S, SizeOfCurve, client_process, longest_delay_s, read_metric
from benchmarks.workloads import create_topic
from fenceline.controller.controller import Controller
from fenceline.controller.partition_requests import AlterPartition, BalanceLeaders, IsrChange, IsrMember
from fenceline.controller.requests import (
    BrokerHeartbeat,
    CreateTopics,
    DeleteTopics,
    FenceEndedBroker,
    RegisterBroker,
    RegisterBrokerAnswer,
    Request,
    TopicReference,
    TopicToCreate,
    WriteBootstrapRecords,
)
from fenceline.controller.state import ControllerSettings
from fenceline.local_cluster import reaper
from fenceline.local_cluster.ports import free_ports
from fenceline.metadata.features import SUPPORTED, fresh_levels
from fenceline.metadata.image import EMPTY_IMAGE, Endpoint
from fenceline.node.controller.active_controller import INDEXED_IN_A_TURN
from fenceline.node.garbage import begin_service
from fenceline.node.metadata.batches import DecisionBatches
from fenceline.testing.apache_kafka import free_port
from fenceline.testing.mixed_cluster import MixedNode

_CLUSTER_ID: Final = "AAAAAAAAQACAAAAAAAAAAA"
PARTITIONS_A_BROKER: Final = 1_000
PARTITIONS_A_TOPIC: Final = 100
REPLICAS: Final = 3
_NODES: Final = 3
_FOLLOWING_PERCENT: Final = 10.0
"""Of a core: a node that uses more has not heard of all partitions yet, or begins to follow them."""


# --- three nodes ------------------------------------------------------------------------------------------------------


def partitions_of_three(curve: SizeOfCurve) -> None:
    """Every node has a replica of each, and leads a third."""
    from benchmarks.scale import create_partitions

    with _three_nodes() as (cluster, ports):
        empty_percent = _idle_percent(cluster)
        before_mb, before_s = _sum(resident_mb, cluster), _sum(cpu_seconds, cluster)
        began_s = time.perf_counter()
        create_partitions(cluster.voters[0].bootstrap, curve.size, replicas=_NODES)
        for port in ports.values():
            _wait_for_partitions(port, curve.size)
        curve.add("created", time.perf_counter() - began_s, "s")
        while _idle_percent(cluster, 3.0) > _FOLLOWING_PERCENT:
            pass
        curve.add("CPU of one until all are created", (_sum(cpu_seconds, cluster) - before_s) * 1e6 / curve.size, "us")
        curve.add(
            "memory of one replica", (_sum(resident_mb, cluster) - before_mb) * 1e6 / curve.size / _NODES, "bytes"
        )
        curve.add_idle(_idle_percent(cluster), empty_percent)
        curve.add_longest(map(longest_delay_s, ports.values()), "longest pause of a loop")
        _kill_and_return(curve, cluster, ports)


@contextmanager
def _three_nodes() -> Iterator[tuple[ClusterUnderTest, dict[int, int]]]:
    """Their loops are observed; with the port of each one's metrics."""
    with scratch() as directory, ClusterUnderTest("fenceline", directory / "cluster") as cluster:
        ports = {}
        for node in cluster.voters:
            ports[node.node_id] = port = free_port()
            node.settings |= {"fenceline.metrics.port": str(port), "fenceline.event.loop.sample.ms": "5"}
        cluster.start_voters()
        for port in ports.values():
            longest_delay_s(port)  # the first scrape imports modules
        time.sleep(1)
        yield cluster, ports


def _kill_and_return(curve: SizeOfCurve, cluster: ClusterUnderTest, ports: Mapping[int, int]) -> None:
    """A broker that is not the active controller."""
    active = cluster.leader()
    node = next(each for each in cluster.voters if each is not active)
    began_s = time.perf_counter()
    node.kill()
    _wait_for(
        lambda: (
            _fenced(ports[active.node_id])
            and read_metric(ports[active.node_id], "fenceline_leaderless_partitions") == 0
        ),
        "the others lead everything",
    )
    curve.add("a broker killed until others lead its third", time.perf_counter() - began_s, "s")
    began_s = time.perf_counter()
    node.start()
    node.wait_ready()
    curve.add("the broker starts after it", time.perf_counter() - began_s, "s")
    _wait_for(lambda: _in_sync(ports[active.node_id]), "it is in sync everywhere")
    curve.add("the same until it is in sync everywhere", time.perf_counter() - began_s, "s")


def _fenced(port: int) -> bool:
    return read_metric(port, 'fenceline_brokers{state="fenced"}') == 1


def _in_sync(port: int) -> bool:
    return (
        read_metric(port, 'fenceline_brokers{state="fenced"}') == 0
        and read_metric(port, "fenceline_under_replicated_partitions") == 0
    )


def _wait_for_partitions(port: int, count: int) -> None:
    _wait_for(lambda: read_metric(port, "fenceline_partitions") >= count, "all partitions are known")


def _wait_for(is_true: Callable[[], bool], what: str) -> None:
    """A look at the metrics costs a node the more, the more partitions it has: looks take a twentieth of the time."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        began_s = time.monotonic()
        if is_true():
            return
        if began_s > deadline_s:
            raise TimeoutError(f"{what}: not within {PATIENCE_S:g} s")
        time.sleep(20 * (time.monotonic() - began_s))


def _idle_percent(cluster: ClusterUnderTest, wait_s: float = IDLE_S) -> float:
    """Of a core, of each node on average."""
    before_s = _sum(cpu_seconds, cluster)
    time.sleep(wait_s)
    return (_sum(cpu_seconds, cluster) - before_s) * 100 / wait_s / _NODES


def _sum(of: Callable[[int], float], cluster: ClusterUnderTest) -> float:
    return sum(of(_pid(node)) for node in cluster.voters)


def _pid(node: MixedNode) -> int:
    pid = node.pid
    assert pid is not None, "it runs"
    return pid


# --- brokers that follow the metadata log -----------------------------------------------------------------------------


def metadata_followers(curve: SizeOfCurve) -> None:
    """Three nodes, from whose leader so many brokers fetch besides. All figures are the leader's."""
    with _three_nodes() as (cluster, ports):
        leader = cluster.leader()
        pid = _pid(leader)
        before_s = cpu_seconds(pid)
        time.sleep(IDLE_S)
        empty_s = (cpu_seconds(pid) - before_s) / IDLE_S
        before_mb = resident_mb(pid)

        def added_s() -> float:
            """CPU since `began_s`, above that of an empty node."""
            return cpu_seconds(pid) - before_s - empty_s * (time.monotonic() - began_s)

        with client_process("observers", leader.controller_port, curve.size) as client:
            client.result()
            time.sleep(1)
            curve.add("memory of one", (resident_mb(pid) - before_mb) * 1e6 / curve.size, "bytes")
            client.next()
            began_s, before_s = time.monotonic(), cpu_seconds(pid)
            time.sleep(IDLE_S)
            fetches = client.next()["responses"]
            curve.add("at rest: CPU of a fetch", added_s() * 1e6 / fetches, "us")
            began_s, before_s = time.monotonic(), cpu_seconds(pid)
            fetches, complete_ms = 0, []
            for number in range(_CHANGES):
                changed_s = time.monotonic()
                create_topic(leader.bootstrap, f"topic-{number}", 1)
                time.sleep(_BETWEEN_CHANGES_S)
                found = client.next()
                fetches += found["responses"]
                complete_ms.append((found["complete_s"][-1] - changed_s) * 1000)
            curve.add("with a new topic each second: CPU of a fetch", added_s() * 1e6 / fetches, "us")
            curve.add("a new topic until the last broker knows it, median", statistics.median(complete_ms), "ms")
        curve.add_longest([longest_delay_s(ports[leader.node_id])], "longest pause of a loop")


_CHANGES: Final = 20
_BETWEEN_CHANGES_S: Final = 1.0


# --- nodes of a host --------------------------------------------------------------------------------------------------


def nodes_of_a_host(curve: SizeOfCurve) -> None:
    """`fenceline start --nodes N`, and two confluent-kafka producers that write 1 KB into four partitions a node."""
    first = free_ports(curve.size + 1) + 1
    with scratch() as directory:
        command = [sys.executable, "-m", "fenceline", "start", "--nodes", str(curve.size), "--log-level", "warning"]
        command += ["--listen", f"127.0.0.1:{first}", "--data-dir", str(directory)]
        began_s = time.perf_counter()
        host = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        reaper.watch_process(host.pid)
        try:
            assert host.stdout is not None
            assert host.stdout.readline()
            curve.add("until all are ready", time.perf_counter() - began_s, "s")
            time.sleep(2)
            curve.add("memory, with the supervisor", resident_mb(host.pid), "MB")
            before_s = cpu_seconds(host.pid)
            time.sleep(IDLE_S)
            curve.add("idle: share of a core", (cpu_seconds(host.pid) - before_s) * 100 / IDLE_S, "%")
            create_topic(f"127.0.0.1:{first}", "host", 4 * curve.size)
            for is_measured in (False, True):
                before_s, began_s = cpu_seconds(host.pid), time.perf_counter()
                producers = [
                    subprocess.Popen([sys.executable, "-c", _PRODUCER, f"127.0.0.1:{first}"]) for _ in range(2)
                ]
                assert [each.wait() for each in producers] == [0, 0]
                took_s = time.perf_counter() - began_s
                if is_measured:
                    curve.add("produced", 2 * _PRODUCED / took_s, "records/s")
                    used_s = cpu_seconds(host.pid) - before_s
                    curve.add("CPU of the nodes for a record", used_s * 5e5 / _PRODUCED, "us")
        finally:
            host.terminate()
            host.wait()
            reaper.forget_process(host.pid)


_PRODUCED: Final = 200_000
_PRODUCER: Final = f"""
import sys
from benchmarks.workloads import confluent_produce
confluent_produce(sys.argv[1], "host", {_PRODUCED}, 1_000)
"""


# --- the controller ---------------------------------------------------------------------------------------------------


def controller(curve: SizeOfCurve) -> None:
    """With 1,000 partitions of three replicas for each broker."""
    done = subprocess.run(
        [sys.executable, "-m", __spec__.name, str(curve.size)], stdout=subprocess.PIPE, text=True, check=True
    )
    for measure, (value, unit) in json.loads(done.stdout).items():
        curve.add(measure, value, unit)


class _Simulated:
    """A controller whose brokers send what the benchmark asks them to."""

    def __init__(self, brokers: int) -> None:
        self.controller = Controller(ControllerSettings(_CLUSTER_ID))
        self.epochs: dict[int, int] = {}
        self.records = 0
        self._rng, self.now_ms = Random(7), 0
        self.controller.activate(EMPTY_IMAGE, 0, 0)
        self.ask(WriteBootstrapRecords(tuple(fresh_levels().items())))
        for broker in range(1, brokers + 1):
            self.register(broker)

    def register(self, broker: int) -> None:
        answer = self.ask(
            RegisterBroker(
                broker,
                _CLUSTER_ID,
                UUID(int=broker * 1_000 + self.controller.next_offset % 1_000),
                (Endpoint("PLAINTEXT", f"host{broker}", 9092, 0),),
                SUPPORTED,
                f"rack-{broker % 10}",
                (UUID(int=10_000 + broker),),
                -1,
            )
        )
        assert isinstance(answer, RegisterBrokerAnswer)
        self.epochs[broker] = answer.broker_epoch
        self.heartbeat(broker)

    def heartbeat(self, broker: int) -> None:
        self.ask(BrokerHeartbeat(broker, self.epochs[broker], self.controller.next_offset - 1))

    def ask(self, request: Request) -> object:
        """Decide, encode the records, apply them, in as many steps as it takes."""
        self.records = 0
        while True:
            self.now_ms += 1
            decision = self.controller.decide(request, self.now_ms, self._rng)
            version = self.controller.image.metadata_version or 30
            self.records += len(decision.records)
            if decision.records:
                batches = DecisionBatches(self.now_ms)
                batches.add(decision.records, decision.atomic, version)
                batches.finish()
                self.controller.replay(decision.records, self.controller.next_offset + len(decision.records) - 1, 1)
            if not decision.more:
                return decision.answer


def measure_controller(brokers: int) -> dict[str, tuple[float, str]]:
    found: dict[str, tuple[float, str]] = {}
    process = psutil.Process()
    _Simulated(3)
    begin_service()  # a controller's process collects garbage in its own way
    before = process.memory_info().rss
    world = _Simulated(brokers)
    total = brokers * PARTITIONS_A_BROKER
    topics = total // PARTITIONS_A_TOPIC
    began_s = time.process_time()
    for number in range(topics):
        world.ask(CreateTopics((TopicToCreate(f"topic-{number:06}", PARTITIONS_A_TOPIC, REPLICAS),)))
    found["all partitions created: one"] = ((time.process_time() - began_s) * 1e6 / total, "us")
    found["memory of one partition, with the controller's indexes"] = (
        (process.memory_info().rss - before) / total,
        "bytes",
    )

    def timed(what: str, request: Callable[[int], Request], times: int = 20) -> None:
        taken = []
        for each in range(times):
            asked = request(each)
            began_s = time.process_time()
            world.ask(asked)
            taken.append(time.process_time() - began_s)
        found[what] = (sorted(taken)[times // 2] * 1e6, "us")

    world.ask(BalanceLeaders())  # the index is built at its first use
    timed("a heartbeat", lambda each: BrokerHeartbeat(1, world.epochs[1], world.controller.next_offset - 1), 200)
    timed("a topic of one partition", lambda each: CreateTopics((TopicToCreate(f"new-{each}", 1, 3),)))
    ids = [world.controller.image.topics_by_name[f"new-{each}"].id for each in range(20)]
    timed("it is deleted", lambda each: DeleteTopics((TopicReference(None, ids[each]),)))
    timed("an in-sync set shrinks", lambda each: _shrink(world, each))
    timed("the check for a better leader", lambda each: BalanceLeaders())
    gained = sum(
        1
        for topic in world.controller.image.topics_by_id.values()
        for partition in topic.partitions
        if partition.leader == 5
    )
    began_s = time.process_time()
    world.ask(FenceEndedBroker(5, world.epochs[5], world.now_ms + 1))
    found["failover of a broker that leads 1,000"] = ((time.process_time() - began_s) * 1000, "ms")
    assert world.records >= gained > 0, (world.records, gained)
    began_s = time.process_time()
    world.register(5)
    found["the broker returns"] = ((time.process_time() - began_s) * 1000, "ms")
    taken = []
    for each in range(5):
        other = Controller(ControllerSettings(_CLUSTER_ID))
        began_s = time.process_time()
        other.activate(world.controller.image, world.controller.next_offset, 1_000_000 + each)
        taken.append(time.process_time() - began_s)
    found["another controller becomes active"] = (statistics.median(taken) * 1000, "ms")
    turns_ms = []
    is_complete = False
    while not is_complete:
        began_s = time.process_time()
        is_complete = other.state.prepare(INDEXED_IN_A_TURN)
        turns_ms.append((time.process_time() - began_s) * 1000)
    found["it indexes all partitions"] = (sum(turns_ms), "ms")
    found["longest pause meanwhile"] = (max(turns_ms), "ms")
    began_s = time.process_time()
    other.decide(BalanceLeaders(), 1_000_000, Random(7))
    found["its first decision"] = ((time.process_time() - began_s) * 1000, "ms")
    return found


def _shrink(world: _Simulated, number: int) -> Request:
    topic = world.controller.image.topics_by_name[f"topic-{number:06}"]
    index, partition = next((index, each) for index, each in enumerate(topic.partitions) if len(each.isr) > 1)
    leader = partition.leader
    change = IsrChange(index, partition.leader_epoch, partition.partition_epoch, (IsrMember(leader),))
    return AlterPartition(leader, world.epochs[leader], ((topic.id, (change,)),))


CURVES: Final[Mapping[str, tuple[tuple[int, ...], Callable[[SizeOfCurve], None]]]] = {
    "partitions of three": ((37_500, 75_000, 150_000, 300_000), partitions_of_three),
    "metadata followers": ((125, 250, 500, 1_000), metadata_followers),
    "nodes of a host": ((1, 2, 4), nodes_of_a_host),
    "brokers": ((125, 250, 500, 1_000), controller),
}

if __name__ == "__main__":
    print(json.dumps(measure_controller(int(sys.argv[1]))))
