"""Three combined nodes against three of Apache Kafka, replication factor 3: produce, failover, catching up, idle.

Both sides have the same properties, min.insync.replicas 2, and the same clients. `BENCH_ROWS` selects the rows (keys of
`ROWS`, comma-separated; default: all); `BENCH_KILLS`, `BENCH_RECORDS` (a fraction of the produce runs, 0 to 1) and
`BENCH_BEHIND_MB` shorten the run.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.clusters import SHORT_SESSIONS, ClusterUnderTest
from benchmarks.harness import SIDES, Figures, Side, cpu_seconds, resident_mb, run_rows, scratch
from benchmarks.produce import CLIENTS, SIZES, WARM_UPS
from benchmarks.replication_probe import Load, Stream, Watch, create_replicated, receipt_of, wait_left_in_sync
from benchmarks.workloads import confluent_produce, delete_topics, percentile, synchronous_latencies_us
from fenceline.testing.mixed_cluster import MixedNode
from fenceline.testing.waiting import eventually

PARTITIONS: Final = 6
SHARE: Final = float(os.environ.get("BENCH_RECORDS", "1"))
LATENCY_RECORDS: Final = 5_000
_KILLS: Final = int(os.environ.get("BENCH_KILLS", "20"))
KILLS: Final[dict[Side, int]] = {"fenceline": _KILLS, "before": _KILLS, "kafka": min(5, _KILLS)}
"""Kafka needs 10 s for each failover."""
FREEZES: Final[dict[Side, int]] = {"fenceline": _KILLS, "before": _KILLS, "kafka": min(5, _KILLS)}
SHUTDOWNS: Final = min(5, _KILLS)
LEADERS: Final = 1000
UNCLEAN_RECORDS: Final = 10_000
BEHIND_MB: Final = int(os.environ.get("BENCH_BEHIND_MB", "5000"))
BEHIND_RECORD_BYTES: Final = 1000
PACED_PER_S: Final = 10_000
RATE_S: Final = 5.0
IDLE_PARTITIONS: Final = 1000
IDLE_S: Final = 20.0
SOCKET_TIMEOUT_MS: Final = {signal.SIGKILL: 60_000, signal.SIGSTOP: 1_000}
"""A frozen leader closes no connection: the producer detects it by this timeout, on both sides."""
WITHOUT_FAST_FENCING: Final = {"fenceline.broker.fencing.grace.ms": "-1"}


def run(figures: Figures, repeats: int) -> None:
    with scratch() as root:
        run_rows(figures, {name: partial(row, figures, root, repeats) for name, row in ROWS.items()}, parts=_PARTS)


# --- produce ----------------------------------------------------------------------------------------------------------


def produce(figures: Figures, root: Path, repeats: int, *, only: str | None = None) -> None:
    """One cluster after the other: idle brokers would use CPU time while both cores are busy."""
    for side in SIDES:
        with ClusterUnderTest(side, root / f"produce-{side}") as cluster:
            cluster.start_voters()
            for client, load in CLIENTS.items():
                if only not in (None, client):
                    continue
                for size_bytes, records in SIZES.items():
                    for attempt in range(WARM_UPS + repeats):
                        counted = figures if attempt >= WARM_UPS else None
                        _produced(counted, side, cluster, client, load, size_bytes, int(records * SHARE))
            largest = max(resident_mb(node.pid) for node in cluster.nodes)
            figures.add("resident memory of a broker after produce", side, largest, "MB")


def _produced(
    figures: Figures | None,
    side: Side,
    cluster: ClusterUnderTest,
    client: str,
    load: Callable[[str, str, int, int], float],
    size_bytes: int,
    records: int,
) -> None:
    topic = f"produce-{size_bytes}"
    create_replicated(_bootstrap(cluster), topic, partitions=PARTITIONS)
    before = _cpu_seconds(cluster)
    rate = load(_bootstrap(cluster), topic, records, size_bytes)
    cpu = _cpu_seconds(cluster) - before
    delete_topics(_bootstrap(cluster), [topic])
    if figures is not None:
        label = f"{client}, {size_bytes} B"
        figures.add(f"{label}: records/s", side, rate, "records/s")
        figures.add(f"{label}: CPU of the three brokers", side, cpu, "s")


def latency(figures: Figures, root: Path, repeats: int) -> None:
    with _both(root, "latency") as clusters:
        for cluster in clusters.values():
            create_replicated(_bootstrap(cluster), "latency")
        for attempt in range(WARM_UPS + repeats):
            for side, cluster in clusters.items():
                found = synchronous_latencies_us(_bootstrap(cluster), "latency", LATENCY_RECORDS)
                if attempt >= WARM_UPS:
                    for name, fraction in (("p50", 0.5), ("p99", 0.99)):
                        figures.add(f"one record, acks=all: {name}", side, percentile(found, fraction), "us")


# --- leader failover --------------------------------------------------------------------------------------------------


def killed(figures: Figures, root: Path, repeats: int) -> None:
    """Kafka's default timeouts; the leader is a broker with or without the active controller."""
    for side in SIDES:
        with ClusterUnderTest(side, root / f"killed-{side}") as cluster:
            cluster.start_voters()
            for number in range(KILLS[side]):
                for is_controller in (False, True):
                    _failed_over(figures, cluster, "killed", number, signal.SIGKILL, is_controller=is_controller)


def frozen(figures: Figures, root: Path, repeats: int) -> None:
    """SIGSTOP, with Kafka's default timeouts; the leader is a broker with or without the active controller."""
    for side in SIDES:
        with ClusterUnderTest(side, root / f"frozen-{side}") as cluster:
            cluster.start_voters()
            for number in range(FREEZES[side]):
                for is_controller in (False, True):
                    _failed_over(figures, cluster, "frozen", number, signal.SIGSTOP, is_controller=is_controller)


def by_session(figures: Figures, root: Path, repeats: int) -> None:
    """Session 1.5 s, heartbeat 0.3 s: a leader that is killed without fast fencing."""
    for side in SIDES:
        with ClusterUnderTest(
            side, root / f"session-{side}", settings=SHORT_SESSIONS | WITHOUT_FAST_FENCING
        ) as cluster:
            cluster.start_voters()
            for number in range(KILLS["kafka"]):
                for is_controller in (False, True):
                    what = "killed, session 1.5 s"
                    _failed_over(figures, cluster, what, number, signal.SIGKILL, is_controller=is_controller)


def _failed_over(
    figures: Figures,
    cluster: ClusterUnderTest,
    what: str,
    number: int,
    sent: signal.Signals,
    *,
    is_controller: bool,
) -> None:
    cluster.wait_complete()
    cluster.wait_caught_up()
    controller = cluster.leader()
    leader = controller if is_controller else next(node for node in cluster.nodes if node is not controller)
    staying = next(node for node in cluster.nodes if node is not leader)
    topic = f"{sent.name.lower()}-{number}-{is_controller:d}"
    create_replicated(_bootstrap(cluster), topic, first=leader.node_id)
    watch = Watch(staying, topic)
    with Stream(_bootstrap(cluster), topic, socket_timeout_ms=SOCKET_TIMEOUT_MS[sent]) as stream:
        # librdkafka checks its timeouts once a second: vary the moment of the fault within that second.
        stream.wait_until_s(1 + number * 0.3 % 1)
        moment = time.monotonic()
        leader.send_signal(sent)
        try:
            elected_s = watch.until_led_by_others(leader.node_id) - moment
            acknowledged_s = stream.next_acknowledged_s(moment)
        finally:
            _restart(leader)
    label = f"leader {what}{', the active controller, too' if is_controller else ''}"
    figures.add(f"{label}: until another leads in the metadata", cluster.side, elected_s, "s")
    figures.add(f"{label}: until the next acknowledgement", cluster.side, acknowledged_s, "s")
    if stream.errors:
        figures.note(f"{cluster.side}, {label}: {len(stream.errors)} errors, the first {stream.errors[0]}")
    # librdkafka fails requests to a broker that has left the metadata, such as one that was frozen before.
    cluster.wait_complete()
    delete_topics(_bootstrap(cluster), [topic])


def _restart(node: MixedNode) -> None:
    """Also after it was frozen: a new incarnation, which is fenced for its silence as quickly as one that never was."""
    node.kill()
    node.start()


def shutdown(figures: Figures, root: Path, repeats: int) -> None:
    """SIGTERM to a leader while a producer keeps sending."""
    for side in SIDES:
        with ClusterUnderTest(side, root / f"shutdown-{side}") as cluster:
            cluster.start_voters()
            for number in range(SHUTDOWNS):
                cluster.wait_complete()
                cluster.wait_caught_up()
                controller = cluster.leader()
                leader = next(node for node in cluster.nodes if node is not controller)
                topic = f"shutdown-{number}"
                create_replicated(_bootstrap(cluster), topic, first=leader.node_id)
                with Stream(_bootstrap(cluster), topic, is_idempotent=True) as stream:
                    moment = time.monotonic()
                    leader.stop()
                    stream.next_acknowledged_s(time.monotonic())
                figures.add("controlled shutdown: longest gap", side, 1000 * stream.longest_gap_s(moment), "ms")
                figures.add("controlled shutdown: errors at the producer", side, len(stream.errors), "errors")
                leader.start()
                delete_topics(_bootstrap(cluster), [topic])


def many_leaders(figures: Figures, root: Path, repeats: int) -> None:
    for side in SIDES:
        with ClusterUnderTest(side, root / f"many-{side}") as cluster:
            cluster.start_voters()
            for number in range(repeats):
                cluster.wait_complete()
                cluster.wait_caught_up()
                controller = cluster.leader()
                leader = next(node for node in cluster.nodes if node is not controller)
                topic = f"many-{number}"
                create_replicated(_bootstrap(cluster), topic, partitions=LEADERS, first=leader.node_id)
                staying = [node for node in cluster.nodes if node is not leader]
                watch = Watch(controller, topic)
                moment = time.monotonic()
                leader.send_signal(signal.SIGKILL)
                decided = watch.until_led_by_others(leader.node_id)
                served = watch.until_served(staying)
                label = f"{LEADERS:,} leaders of a killed broker"
                figures.add(f"{label}: until all are led by others", side, decided - moment, "s")
                figures.add(f"{label}: from there until all serve", side, served - decided, "s")
                _restart(leader)
                delete_topics(_bootstrap(cluster), [topic])


def unclean(figures: Figures, root: Path, repeats: int) -> None:
    """The only replica in the ISR is suspended, and resumed when a replica that lacks its records leads. Kafka reports
    no loss."""
    with ClusterUnderTest("fenceline", root / "unclean", settings=SHORT_SESSIONS) as cluster:
        cluster.start_voters()
        for number in range(repeats):
            cluster.wait_complete()
            cluster.wait_caught_up()
            controller = cluster.leader()
            ahead, behind = (node for node in cluster.nodes if node is not controller)
            topic = f"unclean-{number}"
            create_replicated(
                _bootstrap(cluster),
                topic,
                first=ahead.node_id,
                brokers=(ahead.node_id, behind.node_id),
                config={"min.insync.replicas": "1", "unclean.leader.election.enable": "true"},
            )
            behind.kill()
            wait_left_in_sync(controller.bootstrap, topic, 1)
            confluent_produce(ahead.bootstrap, topic, UNCLEAN_RECORDS, BEHIND_RECORD_BYTES)
            ahead.send_signal(signal.SIGSTOP)
            try:
                behind.start()
                elected = Watch(controller, topic).until_led_by_others(ahead.node_id)
            finally:
                ahead.send_signal(signal.SIGCONT)
            lost = receipt_of(controller.bootstrap, topic).records
            figures.add("unclean election: until the receipt is read", "fenceline", time.monotonic() - elected, "s")
            if lost != UNCLEAN_RECORDS:
                raise ValueError(f"the receipt has {lost} records, {UNCLEAN_RECORDS} were lost")


# --- catching up, idle ------------------------------------------------------------------------------------------------


def behind(figures: Figures, root: Path, repeats: int, *, per_s: int = 0) -> None:
    """A follower was down while much was written. Producers keep sending while it catches up, as fast as they can or
    with `per_s` records per second."""
    for side in SIDES:
        with ClusterUnderTest(side, root / f"behind-{per_s}-{side}") as cluster:
            cluster.start_voters()
            cluster.wait_complete()
            follower = next(node for node in cluster.nodes if node is not cluster.leader())
            staying = [node for node in cluster.nodes if node is not follower]
            bootstrap = ",".join(node.bootstrap for node in staying)
            create_replicated(bootstrap, "behind", partitions=PARTITIONS, first=staying[0].node_id)
            create_replicated(bootstrap, "beside", partitions=PARTITIONS, first=staying[0].node_id)
            follower.kill()
            wait_left_in_sync(bootstrap, "behind", 2)
            confluent_produce(bootstrap, "behind", BEHIND_MB * 1_000_000 // BEHIND_RECORD_BYTES, BEHIND_RECORD_BYTES)
            with Load(bootstrap, "beside", BEHIND_RECORD_BYTES, per_s) as load:
                load.runs_for(2 * RATE_S)
                alone = load.rate(time.monotonic() - RATE_S, time.monotonic())
                had_bytes = _log_bytes(follower, "behind")
                follower.start()
                grows = partial(lambda node, had: _log_bytes(node, "behind") > had, follower, had_bytes)
                eventually(grows, "the follower fetches", wait_s=120, step_s=0.005)
                started, had_bytes = time.monotonic(), _log_bytes(follower, "be*")
                in_sync = Watch(staying[0], "behind").until_in_sync(len(cluster.nodes))
                wrote_mb = (_log_bytes(follower, "be*") - had_bytes) / 1e6
                meanwhile = load.rate(started, in_sync)
            label = f"{BEHIND_MB:,} MB behind{f', {per_s:,} records/s beside it' if per_s else ''}"
            figures.add(f"{label}: caught up with", side, BEHIND_MB / (in_sync - started), "MB/s")
            figures.add(
                f"{label}: the follower wrote, with what producers write", side, wrote_mb / (in_sync - started), "MB/s"
            )
            figures.add(f"{label}: producer before", side, alone, "records/s")
            figures.add(f"{label}: producer meanwhile", side, meanwhile / alone * 100, "% of its rate before")


def idle(figures: Figures, root: Path, repeats: int) -> None:
    with _both(root, "idle") as clusters:
        for cluster in clusters.values():
            create_replicated(_bootstrap(cluster), "idle", partitions=IDLE_PARTITIONS)
        time.sleep(5)
        for _ in range(repeats):
            for side, cluster in clusters.items():
                before = [cpu_seconds(node.pid) for node in cluster.nodes]
                time.sleep(IDLE_S)
                used = [cpu_seconds(node.pid) - start for node, start in zip(cluster.nodes, before, strict=True)]
                label = f"idle, {IDLE_PARTITIONS:,} partitions"
                figures.add(f"{label}: the busiest broker", side, max(used) / IDLE_S * 100, "% of a core")
                figures.add(
                    f"{label}: the largest broker", side, max(resident_mb(node.pid) for node in cluster.nodes), "MB"
                )


# --- clusters ---------------------------------------------------------------------------------------------------------


@contextmanager
def _both(root: Path, name: str) -> Iterator[dict[Side, ClusterUnderTest]]:
    """Run both sides."""
    with ExitStack() as stack:
        clusters: dict[Side, ClusterUnderTest] = {}
        for side in SIDES:
            clusters[side] = stack.enter_context(ClusterUnderTest(side, root / f"{name}-{side}"))
            clusters[side].start_voters()
        yield clusters


def _bootstrap(cluster: ClusterUnderTest) -> str:
    return ",".join(node.bootstrap for node in cluster.nodes)


def _log_bytes(node: MixedNode, topic: str) -> int:
    return sum(path.stat().st_size for path in node.log_dir.glob(f"{topic}-*/*.log"))


def _cpu_seconds(cluster: ClusterUnderTest) -> float:
    return sum(cpu_seconds(node.pid) for node in cluster.nodes)


ROWS: Final[dict[str, Callable[[Figures, Path, int], None]]] = {
    "produce": produce,
    "produce-java": partial(produce, only="ProducerPerformance"),
    "produce-confluent": partial(produce, only="confluent-kafka"),
    "latency": latency,
    "killed": killed,
    "frozen": frozen,
    "by_session": by_session,
    "shutdown": shutdown,
    "many-leaders": many_leaders,
    "unclean": unclean,
    "behind": behind,
    "behind-paced": partial(behind, per_s=PACED_PER_S),
    "idle": idle,
}
_PARTS: Final = ("produce-java", "produce-confluent")
"""Run only if BENCH_ROWS selects them."""
