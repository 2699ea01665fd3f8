"""Three combined nodes against three of Apache Kafka: start, memory, failover, topics; a controller that joins late.

Both sides have the same properties and Kafka's default timeouts, with replication factor 1. The same client code sends
requests to one node that keeps running.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks.clusters import ClusterUnderTest, wait_for
from benchmarks.harness import SIDES, Figures, Side, resident_mb, scratch
from benchmarks.snapshots import image_of
from fenceline.client.core.config import ClientConfig
from fenceline.client.core.connection import Connection, open_connection
from fenceline.errors import ErrorCode, FencelineError
from fenceline.log.core.disk import OsDisk
from fenceline.node.metadata.batches import SnapshotBatches
from fenceline.node.metadata.format import parse_initial_controllers
from fenceline.node.metadata.metadata_log import MetadataLog
from fenceline.quorum.log_view import SnapshotId
from fenceline.testing.mixed_cluster import CONTROLLER, LISTENER, MixedNode
from fenceline.wire.apis import ApiKey

KILLS: Final = int(os.environ.get("BENCH_KILLS", "20"))
FREEZES: Final[dict[Side, int]] = {"fenceline": 5, "kafka": 2, "before": 5}
"""A Kafka broker waits 30 s for the response of a frozen controller."""
TOPICS: Final = int(os.environ.get("BENCH_TOPICS", "1000"))
WARM_TOPICS: Final = 100
MANY_TOPICS, MANY_EACH = 10, 999
"""Both sides limit a request to 10,000 metadata records: 10 topics and 9,990 partitions."""
JOINED_PARTITIONS: Final = int(os.environ.get("BENCH_JOINED", "100000"))
IDLE_S: Final = 5.0
REQUEST_TIMEOUT_S: Final = 90.0
RETRY_S: Final = 0.02


def run(figures: Figures, repeats: int) -> None:
    with scratch() as root:
        with ClusterUnderTest("fenceline", root / "first") as cluster:
            cluster.start_voters()
        for attempt in range(repeats):
            for side in SIDES:
                fresh_cluster(figures, side, root / f"fresh-{attempt}-{side}")
        for side in SIDES:
            with ClusterUnderTest(side, root / f"failover-{side}") as cluster:
                cluster.start_voters()
                one_by_one(figures, cluster)
                killed(figures, cluster)
                frozen(figures, cluster)
        for side in SIDES:
            for size in (0, JOINED_PARTITIONS):
                joined(figures, side, root / f"joined-{size}-{side}", size)
    figures.note(
        "Spawn: from the first of three spawns on formatted directories until the metadata of each has all three nodes."
        f" Memory: resident, {IDLE_S:.0f} s later, shared pages counted for each. Failover: from the signal to the"
        " active controller until a CreateTopics sent at that moment through a remaining node succeeds; after an error"
        " it is retried after 20 ms. Kafka's default timeouts; failover of a killed controller does not wait for them."
    )
    figures.note(
        f"Joined: from the spawn of a fourth controller until its image contains the snapshot of {JOINED_PARTITIONS:,}"
        " partitions; 0 partitions: the same without a snapshot, the cost of the start alone."
    )


# --- the figures ------------------------------------------------------------------------------------------------------


def fresh_cluster(figures: Figures, side: Side, root: Path) -> None:
    """Start, idle memory, and many partitions in one request."""
    with ClusterUnderTest(side, root) as cluster:
        figures.add("three nodes, spawn to all registered and unfenced", side, cluster.start_voters(), "s")
        time.sleep(IDLE_S)
        figures.add("resident memory of the three, idle", side, sum(resident_mb(n.pid) for n in cluster.nodes), "MB")
        pss = sum(psutil.Process(n.pid).memory_full_info().pss for n in cluster.nodes) / 1e6
        figures.add("the same, shared pages counted once", side, pss, "MB")
        topics = [_topic(f"many-{number}", MANY_EACH) for number in range(MANY_TOPICS)]
        total = MANY_TOPICS * MANY_EACH

        async def create(connection: Connection) -> float:
            started = time.perf_counter()
            await _create(connection, topics)
            for node in cluster.nodes:
                other = await _connect(node)
                await _await_leaders(other, total)
                other.close()
            return time.perf_counter() - started

        figure = f"{total:,} partitions in one request until all have leaders on every node"
        figures.add(figure, side, _through(cluster.nodes[0], create), "s")


def one_by_one(figures: Figures, cluster: ClusterUnderTest) -> None:
    async def create(connection: Connection, prefix: str, count: int) -> float:
        started = time.perf_counter()
        for number in range(count):
            await _create(connection, [_topic(f"{prefix}-{number}", 1)])
        return count / (time.perf_counter() - started)

    leader = cluster.leader()
    other = next(node for node in cluster.nodes if node is not leader)
    _through(other, lambda connection: create(connection, "warm", WARM_TOPICS))
    rate = _through(other, lambda connection: create(connection, "single", TOPICS))
    figures.add(f"{TOPICS:,} topics one by one", cluster.side, rate, "topics/s")


def killed(figures: Figures, cluster: ClusterUnderTest) -> None:
    """kill -9 of the active controller, repeatedly; it is started again before the next round."""
    staying = list(cluster.nodes)
    for number in range(KILLS):
        cluster.wait_caught_up()
        leader = cluster.leader()
        staying.remove(leader)
        through = staying[0]
        wait_for(partial(through.knows, [through.node_id]), f"{cluster.side}'s node {through.node_id} serves")
        took_s = _failover(through, f"killed-{number}", partial(leader.send_signal, signal.SIGKILL))
        leader.kill()
        figures.add("failover, active controller killed", cluster.side, took_s, "s")
        # Use the last killed node last: its broker waits until its old session has expired.
        staying.append(leader)
        leader.start()
        wait_for(leader.listens, f"{cluster.side}'s node {leader.node_id} is back")


def frozen(figures: Figures, cluster: ClusterUnderTest) -> None:
    """SIGSTOP: connections stay open without traffic."""
    cluster.wait_complete()
    for number in range(FREEZES[cluster.side]):
        cluster.wait_caught_up()
        leader = cluster.leader()
        other = next(node for node in cluster.nodes if node is not leader)
        try:
            took_s = _failover(other, f"frozen-{number}", partial(leader.send_signal, signal.SIGSTOP))
        finally:
            leader.send_signal(signal.SIGCONT)
        figures.add("failover, active controller frozen", cluster.side, took_s, "s")
        cluster.wait_complete()


def joined(figures: Figures, side: Side, root: Path, size: int) -> None:
    """A fourth controller loads the image from three others."""
    with ClusterUnderTest(side, root, roles=CONTROLLER, joining=1) as cluster:
        if size:
            write_snapshots(cluster, size)
        cluster.start_voters()
        cluster.wait_caught_up()
        late = cluster.nodes[-1]
        started = time.perf_counter()
        late.start()

        async def loaded() -> None:
            while True:
                try:
                    connection = await _connect(late, at_controller=True)
                    if await _image_offset(connection) >= max(size, 1):
                        return
                    connection.close()
                except FencelineError:
                    pass
                await asyncio.sleep(RETRY_S)

        asyncio.run(asyncio.wait_for(loaded(), REQUEST_TIMEOUT_S))
        figures.add(f"a fourth controller joined, {size:,} partitions", side, time.perf_counter() - started, "s")


def write_snapshots(cluster: ClusterUnderTest, size: int) -> None:
    """Write the same image of `size` partitions to each voter's directory, before any of them starts."""
    image = image_of(size)
    voters = parse_initial_controllers(cluster.initial_controllers, LISTENER)
    now_ms = time.time_ns() // 1_000_000
    for node in cluster.voters:
        log = MetadataLog.open(OsDisk(), str(node.log_dir), now_ms=now_ms)
        batches = SnapshotBatches(image, now_ms=now_ms, last_log_timestamp_ms=now_ms, kraft_version=1, voters=voters)
        log.write_snapshot(SnapshotId(image.offset + 1, image.epoch), batches)
        log.close()


# --- the client -------------------------------------------------------------------------------------------------------


def _failover(through: MixedNode, topic: str, strike: Callable[[], Any]) -> float:
    async def measure(connection: Connection) -> float:
        await _create(connection, [_topic(f"before-{topic}", 1)])
        started = time.perf_counter()
        strike()
        await _create(connection, [_topic(topic, 1)])
        return time.perf_counter() - started

    return _through(through, measure)


def _through(node: MixedNode, work: Callable[[Connection], Coroutine[Any, Any, float]]) -> float:
    async def connected() -> float:
        connection = await _connect(node)
        try:
            return await work(connection)
        finally:
            connection.close()

    return asyncio.run(connected())


async def _connect(node: MixedNode, *, at_controller: bool = False) -> Connection:
    port = node.controller_port if at_controller else node.port
    config = ClientConfig.parse("admin", f"127.0.0.1:{port}", {"request.timeout.ms": int(REQUEST_TIMEOUT_S * 1000)})
    return await open_connection("127.0.0.1", port, config, None)


def _topic(name: str, partitions: int) -> dict[str, Any]:
    return {"name": name, "num_partitions": partitions, "replication_factor": 1, "assignments": [], "configs": []}


async def _create(connection: Connection, topics: list[dict[str, Any]]) -> None:
    """Retry until the topics are created. A retry may find topics that an earlier request created."""
    fields = {"topics": topics, "timeout": int(REQUEST_TIMEOUT_S * 1000), "validate_only": False}
    deadline = time.perf_counter() + REQUEST_TIMEOUT_S
    is_retry = False
    while True:
        answer = await connection.call(ApiKey.CREATE_TOPICS, 7, fields, timeout_ms=int(REQUEST_TIMEOUT_S * 1000))
        codes = {ErrorCode(topic.error_code) for topic in answer.topics}
        if codes <= {ErrorCode.NONE} | ({ErrorCode.TOPIC_ALREADY_EXISTS} if is_retry else set()):
            return
        if time.perf_counter() > deadline:
            raise TimeoutError(f"{topics[0]['name']}: {codes}")
        is_retry = True
        await asyncio.sleep(RETRY_S)


async def _await_leaders(connection: Connection, total: int) -> None:
    fields = {"topics": None, "allow_auto_topic_creation": False}
    while True:
        answer = await connection.call(ApiKey.METADATA, 12, fields, timeout_ms=int(REQUEST_TIMEOUT_S * 1000))
        if sum(partition.leader_id >= 0 for topic in answer.topics for partition in topic.partitions) >= total:
            return
        await asyncio.sleep(RETRY_S)


async def _image_offset(connection: Connection) -> int:
    """The offset of a node's image, from the epoch of its finalized features; on Kafka, the offset of the last change
    of features or of the snapshot."""
    fields = {"client_software_name": "benchmark", "client_software_version": "1"}
    answer = await connection.call(ApiKey.API_VERSIONS, 4, fields, timeout_ms=5000)
    return int(answer.finalized_features_epoch)
