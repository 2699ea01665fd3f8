"""The cost of a repair: a table of 5 M rows, 300,000 of which become stale in an unclean election.

Three nodes; Spark in local[2]. The leader of four partitions is the only replica in the ISR. It accepts 150,000 records
with acks=1 in each of two partitions, which a batch writes to files of the table that also have rows to keep, and is
killed. A replica that lacks these records is elected and accepts one record per partition. The stream rewinds, and the
batch with these records deletes the stale rows. The figure is the extra time over a batch of one record per partition
before the truncation; both are the first batch of a started query. After each repair the audit must find the table
equal to the log.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from confluent_kafka.admin import AdminClient
from deltalake import DeltaTable

from benchmarks.clusters import SHORT_SESSIONS, ClusterUnderTest
from benchmarks.harness import Figures, scratch
from benchmarks.replication_probe import Watch, create_replicated, wait_left_in_sync
from benchmarks.spark import session
from benchmarks.spark_tables import sink, source
from fenceline.client.producer.producer import Producer
from fenceline.testing.mixed_cluster import MixedNode
from pyspark_fenceline.auditing.table import audit_here, settings

TOPIC: Final = "repair"
PARTITIONS: Final = 4
ROWS: Final = 5_000_000
KEPT_ROWS: Final = 50_000
"""Rows to keep in each file with stale rows."""
STALE_ROWS: Final = 300_000
CUT_PARTITIONS: Final = 2
ALONE: Final = {"min.insync.replicas": "1", "unclean.leader.election.enable": "true", "retention.ms": "-1"}


def run(figures: Figures, repeats: int) -> None:
    with scratch() as root, ClusterUnderTest("fenceline", root / "cluster", settings=SHORT_SESSIONS) as cluster:
        cluster.start_voters()
        controller = cluster.leader()
        first, second = (node for node in cluster.nodes if node is not controller)
        create_replicated(
            controller.bootstrap,
            TOPIC,
            partitions=PARTITIONS,
            first=first.node_id,
            brokers=(first.node_id, second.node_id),
            config=ALONE,
        )
        spark = session(root)
        try:
            write(controller.bootstrap, ROWS // PARTITIONS, range(PARTITIONS), "all")
            batch(spark, controller.bootstrap, root)
            for attempt in range(1 + repeats):
                measure(figures if attempt else Figures("warm-up"), cluster, spark, root)
        finally:
            spark.stop()


def measure(figures: Figures, cluster: ClusterUnderTest, spark: Any, root: Path) -> None:
    cluster.wait_complete()
    cluster.wait_caught_up()
    controller = cluster.leader()
    bootstrap = controller.bootstrap
    Watch(controller, TOPIC).until_in_sync(2)
    write(bootstrap, 1, range(PARTITIONS), "all")
    plain_ms = batch(spark, bootstrap, root)

    ahead, behind = leader_and_follower(cluster)
    cut = range(CUT_PARTITIONS)
    write(bootstrap, KEPT_ROWS, cut, "all")
    behind.kill()
    wait_left_in_sync(bootstrap, TOPIC, 1)
    write(bootstrap, STALE_ROWS // CUT_PARTITIONS, cut, "1")
    batch(spark, bootstrap, root)
    table = DeltaTable(root / TOPIC)
    before, rows = set(table.file_uris()), table.count()
    ahead.kill()
    behind.start()
    write(bootstrap, 1, range(PARTITIONS), "1")
    repair_ms = batch(spark, bootstrap, root)
    table = DeltaTable(root / TOPIC)
    if (removed := rows + PARTITIONS - table.count()) != STALE_ROWS:
        raise ValueError(f"{removed} rows were deleted instead of {STALE_ROWS}")
    found = audit_here(str(root / TOPIC), settings(bootstrap, TOPIC))
    if not found.verdict.is_equal:
        raise ValueError(f"the table differs from the log: {found}")
    figures.add(f"repair of {STALE_ROWS} rows, beyond the batch", "fenceline", repair_ms - plain_ms, "ms")
    figures.add("a batch of one record a partition", "fenceline", plain_ms, "ms")
    figures.add("files that such a repair takes out", "fenceline", len(before - set(table.file_uris())), "files")
    figures.add("files of the table", "fenceline", len(before), "files")
    ahead.start()


def leader_and_follower(cluster: ClusterUnderTest) -> tuple[MixedNode, MixedNode]:
    """The leader and the follower of all partitions, which have the same two replicas."""
    admin = AdminClient({"bootstrap.servers": cluster.leader().bootstrap})
    partitions = admin.list_topics(TOPIC, timeout=10).topics[TOPIC].partitions.values()
    (leader,) = {each.leader for each in partitions}
    (follower,) = {replica for each in partitions for replica in each.replicas} - {leader}
    nodes = {node.node_id: node for node in cluster.nodes}
    return nodes[leader], nodes[follower]


def write(bootstrap: str, count: int, partitions: range, acks: str) -> None:
    rows = pa.table({"value": pa.array([b"x" * 100] * min(count, 250_000), pa.binary())})
    with Producer(bootstrap, **{"acks": acks, "enable.idempotence": False}) as producer:
        sent = [
            producer.send_arrow(rows, TOPIC, value="value", partition=partition)
            for partition in partitions
            for _ in range(count // len(rows))
        ]
        producer.flush()
        for each in sent:
            each.result()


def batch(spark: Any, bootstrap: str, root: Path) -> float:
    """Run a query until it has read all records. Returns the milliseconds of its batches with rows."""
    options = {"onTruncation": "rewind", "statefulQuery": "false", "maxOffsetsPerTrigger": 1_000_000}
    frame = source(spark, "fenceline", bootstrap, TOPIC, **options)
    query = sink(frame, bootstrap, root, TOPIC).trigger(availableNow=True).start()
    query.awaitTermination()
    return float(sum(p["durationMs"]["triggerExecution"] for p in query.recentProgress if p["numInputRows"]))
