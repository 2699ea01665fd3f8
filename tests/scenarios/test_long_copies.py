"""Thirty minutes of exactly-once copies through three brokers that are killed, paused and cut off.

Three applications copy at the same time, one for each client library; they share nothing (`transactions.md X68`).
`FENCELINE_CHAOS_MINUTES` sets another duration, `FENCELINE_CHAOS_SEED` a seed.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest

from fenceline.client import Admin, NewTopic
from fenceline.local_cluster.cuts import NetworkCut, NetworkCuts
from fenceline.testing.mixed_cluster import COMBINED, MixedCluster, MixedNode
from fenceline.testing.waiting import eventually
from tests.conftest import need_apache_kafka
from tests.support.exactly_once_copy import PARTITIONS, Copy, JavaCopy, LibrdkafkaProcess, OwnCopy, committed
from tests.support.kafka_start import quick_environment
from tests.support.replicated_chaos import GROUPS, SOON_MISSED
from tests.testing.echo_peer import need_cuts

pytestmark = [pytest.mark.kafka, pytest.mark.soak, pytest.mark.timeout(0), pytest.mark.usefixtures("quiet_clients")]
SETTINGS = {
    **SOON_MISSED,
    **GROUPS,
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "transaction.state.log.num.partitions": "3",
}
COPIES: dict[str, type[Copy]] = {"librdkafka": LibrdkafkaProcess, "own": OwnCopy, "java": JavaCopy}
PER_SECOND = 100
_GOES_ON_S = 180
_REPORT_S = 60


class Sources(threading.Thread):
    """Writes numbers into the source of each copy, until it is stopped."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(daemon=True)
        self._producer = confluent_kafka.Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0, "message.timeout.ms": 600_000}
        )
        self.written = 0
        self.stopping = threading.Event()

    def run(self) -> None:
        while not self.stopping.wait(1):
            for number in range(self.written, self.written + PER_SECOND):
                for name in COPIES:
                    self._producer.produce(f"{name}-source", str(number).encode(), partition=number % PARTITIONS)
            self.written += PER_SECOND
            self._producer.poll(0)

    def finish(self) -> None:
        self.stopping.set()
        self.join(60)
        assert self._producer.flush(300) == 0


class Faults:
    """Faults of the nodes of a cluster, one at a time."""

    KINDS = ("kill", "pause", "cut")

    def __init__(self, cluster: MixedCluster) -> None:
        addresses = {
            ("127.0.0.1", port): node.node_id for node in cluster.nodes for port in (node.port, node.controller_port)
        }
        self._cuts = NetworkCuts(
            addresses, lambda: {node.node_id: node.pid for node in cluster.nodes if node.is_running}
        )
        self.counts = dict.fromkeys(self.KINDS, 0)

    def strike(self, kind: str, node: MixedNode, lasts_s: float) -> None:
        """Returns when it is over."""
        self.counts[kind] += 1
        match kind:
            case "kill":
                node.kill()
                time.sleep(lasts_s)
                node.start()
                node.wait_ready()
            case "pause":
                node.send_signal(signal.SIGSTOP)
                try:
                    time.sleep(lasts_s)
                finally:
                    node.send_signal(signal.SIGCONT)
            case _:
                self._cuts.isolate(node.node_id, [NetworkCut(None)])
                try:
                    time.sleep(lasts_s)
                finally:
                    self._cuts.heal(node.node_id)

    def close(self) -> None:
        self._cuts.close()


@pytest.fixture(params=[0, 1], ids=["3+0", "2+1"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MixedCluster]:
    """Of three nodes, so many of which are Kafka's."""
    need_apache_kafka()
    need_cuts()
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    kinds = [COMBINED] * (3 - request.param) + [f"kafka:{COMBINED}"] * request.param
    made = MixedCluster(tmp_path / "cluster", kinds, settings=SETTINGS, environment=quick_environment(scratch))
    with made:
        made.wait_ready()
        made.wait_complete()
        yield made


def test_three_applications_copy_exactly_once(cluster: MixedCluster, pytestconfig: pytest.Config) -> None:
    minutes = float(os.environ.get("FENCELINE_CHAOS_MINUTES", "30"))
    seed = int(os.environ.get("FENCELINE_CHAOS_SEED") or random.randrange(2**32))
    rng, capture = random.Random(seed), pytestconfig.pluginmanager.getplugin("capturemanager")
    bootstrap = ",".join(node.bootstrap for node in cluster.nodes)
    with Admin(bootstrap) as admin:
        names = [f"{name}-{role}" for name in COPIES for role in ("source", "target")]
        admin.create_topics([NewTopic(name, PARTITIONS, 3, {"min.insync.replicas": "2"}) for name in names])
    copies = [kind(bootstrap, name, f"{name}-source", f"{name}-target") for name, kind in COPIES.items()]
    sources, faults = Sources(bootstrap), Faults(cluster)
    sources.start()
    for copy in copies:
        copy.start()
    until_s = time.monotonic() + 60 * minutes
    reported_s = 0.0
    try:
        while time.monotonic() < until_s:
            before = {copy.name: copy.commits for copy in copies}
            faults.strike(rng.choice(Faults.KINDS), rng.choice(cluster.nodes), rng.uniform(1, 8))
            for copy in copies:
                eventually(
                    lambda copy=copy, before=before: copy.commits > before[copy.name],  # type: ignore[misc]
                    f"{copy.name} goes on (seed {seed})",
                    wait_s=_GOES_ON_S,
                )
            time.sleep(rng.uniform(0, 4))
            if time.monotonic() > reported_s + _REPORT_S:
                reported_s = time.monotonic()
                with capture.global_and_fixture_disabled():
                    print(f"\n{_progress(sources, copies, faults)}", end="", flush=True)
        sources.finish()
        for copy in copies:
            eventually(lambda copy=copy: _is_done(bootstrap, copy, sources), f"{copy.name} is done", wait_s=300)  # type: ignore[misc]
    finally:
        sources.stopping.set()
        for copy in copies:
            copy.finish()
        faults.close()
    print(f"seed {seed}: {_progress(sources, copies, faults)}")
    for copy in copies:
        for index, numbers in committed(bootstrap, copy.target).items():
            expected = list(range(index, sources.written, PARTITIONS))
            assert numbers == expected, f"{copy.name} {index} (seed {seed}): {_difference(numbers, expected)}"


def _progress(sources: Sources, copies: list[Copy], faults: Faults) -> str:
    states = ", ".join(f"{each.name} {each.commits} commits and {each.restarts} restarts" for each in copies)
    return f"{sources.written} records each; {states}; faults {faults.counts}"


def _is_done(bootstrap: str, copy: Copy, sources: Sources) -> bool:
    with Admin(bootstrap) as admin:
        offsets = admin.list_group_offsets(copy.name)
    return sum(each.offset for each in offsets.values()) == sources.written


def _difference(found: list[int], expected: list[int]) -> str:
    missing, surplus = sorted(set(expected) - set(found)), sorted(set(found) - set(expected))
    twice = len(found) - len(set(found))
    return f"{len(missing)} missing {missing[:5]}, {len(surplus)} surplus {surplus[:5]}, {twice} twice"
