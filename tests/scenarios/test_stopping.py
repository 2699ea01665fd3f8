"""SIGTERM under load, a second signal, and their effect on clients."""

from __future__ import annotations

import signal
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Consumer

from fenceline.client.admin.admin import Admin
from fenceline.client.admin.async_admin import NewTopic
from fenceline.client.producer.producer import Producer
from fenceline.testing.mixed_cluster import COMBINED, MixedCluster
from fenceline.testing.node import EmbeddedNode
from fenceline.testing.waiting import eventually
from fenceline.wire.apis import ApiKey
from fenceline.wire.frame import encode_request_frame
from tests.scenarios.faults import connection_to, create, fetch_body, values
from tests.scenarios.test_hostile_clients import many_sockets
from tests.scenarios.test_kill_loop import PARTITIONS as LOAD_PARTITIONS
from tests.scenarios.test_kill_loop import TOPIC as LOAD_TOPIC
from tests.scenarios.test_kill_loop import Load, read_everything

pytestmark = pytest.mark.long


def test_sigterm_stops_cleanly_under_load_with_parked_fetches_and_groups(tmp_path: Path) -> None:
    node = EmbeddedNode(data_dir=tmp_path, overrides={"offsets.topic.num.partitions": "1"})
    with node, ExitStack() as stack:
        with connection_to(node) as connection:
            create(connection, LOAD_TOPIC, partitions=LOAD_PARTITIONS)
            create(connection, "quiet")
        consumers = [
            Consumer(
                {
                    "bootstrap.servers": node.bootstrap,
                    "group.id": "g",
                    "log_level": 0,
                    "fetch.wait.max.ms": 30_000,
                    "socket.timeout.ms": 60_000,
                }
            )
            for _ in range(2)
        ]
        for consumer in consumers:
            stack.callback(consumer.close)
            consumer.subscribe(["quiet"])
        while not any(consumer.poll(0.05) or consumer.assignment() for consumer in consumers):
            pass
        parked = b"".join(
            encode_request_frame(ApiKey.FETCH, 12, 1, "parked", fetch_body("quiet", {0: 0}, 1 << 20, 600_000))
        )
        peers = stack.enter_context(many_sockets(node, 50))
        for peer in peers:
            peer.sendall(parked)
        load = Load(node.bootstrap)
        load.start()
        try:
            assert load.progress.wait(60)
            for _ in range(2):
                load.progress.clear()
                assert load.progress.wait(60)
                assert node.stop(wait_s=60) == 0
                assert "Traceback" not in node.errors
                assert (node.log_dir / ".kafka_cleanshutdown").exists()
                node.start()
        finally:
            load.stop()
        assert not load.failed
        found = read_everything(node.bootstrap)
        positions = {number: (p, offset) for p, records in found.items() for offset, number in records}
        assert all(
            positions.get(number) == reported for number, reported in load.acknowledged.items() if reported[1] >= 0
        )
        assert len(positions) == sum(map(len, found.values()))


def test_a_second_signal_stops_the_node_at_once(tmp_path: Path) -> None:
    """The exit code is 130 if the second signal arrives during the stop; a clean stop also passes."""
    with EmbeddedNode(data_dir=tmp_path) as node, many_sockets(node, 1) as (peer,):
        with connection_to(node) as connection:
            create(connection, "t")
        # A parked fetch delays the stop, so that the second signal arrives during it.
        peer.sendall(
            b"".join(encode_request_frame(ApiKey.FETCH, 12, 1, "p", fetch_body("t", {0: 0}, 1 << 20, 600_000)))
        )
        with connection_to(node) as connection:
            create(connection, "u")
        node.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + 60
        while node.is_running and time.monotonic() < deadline:
            time.sleep(0.05)
            node.send_signal(signal.SIGTERM)
        code = node.wait(wait_s=60)
        # If the stop finished first, the second signal may hit an interpreter that is exiting.
        stopped = code == 0 or (code == -signal.SIGTERM and (node.log_dir / ".kafka_cleanshutdown").exists())
        assert stopped or code == 130, code
        node.start()
        assert values(node, "t") == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_either_signal_stops_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    with EmbeddedNode(data_dir=tmp_path) as node:
        node.send_signal(number)
        assert node.wait(wait_s=60) == 0
        assert (node.log_dir / ".kafka_cleanshutdown").exists()
        assert node.errors == ""


def test_a_start_without_a_quorum_keeps_the_clean_shutdown_file(tmp_path: Path) -> None:
    """Whether it is stopped or killed: it has not registered and has opened no log, so the next start is clean, and the
    partition of which this node has the only replica is not elected uncleanly."""
    with MixedCluster(tmp_path / "cluster", [COMBINED] * 3) as cluster:
        cluster.wait_ready()
        cluster.wait_complete()
        node, *others = cluster.nodes
        with Admin([each.bootstrap for each in cluster.nodes]) as admin:
            admin.create_topics([NewTopic("alone", assignments={0: [node.node_id]})])
        with Producer(node.bootstrap) as producer:
            producer.send("alone", b"one").result()
        assert node.stop() == 0
        mark = Path(node.log_dirs[0]) / ".kafka_cleanshutdown"
        left = mark.read_bytes()
        assert b"-1" not in left
        for each in others:
            each.kill()
        for end in (node.stop, node.kill):
            node.start()
            eventually(node.listens, "its controller runs")
            end()
            assert mark.read_bytes() == left
        for each in cluster.nodes:
            each.start()
        cluster.wait_ready()
        cluster.wait_complete()
        with Producer(node.bootstrap) as producer:
            assert producer.send("alone", b"two").result().offset == 1
        assert not any("unclean election" in each.output for each in cluster.nodes)
