"""An unclean election between processes: the ledger has an exact receipt, and the lost record is replayed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from fenceline.client.consumer.consumer import Consumer
from fenceline.client.core.fetched import ConsumerRecord
from fenceline.client.reader.lost_records import LostRecordsReader
from fenceline.testing.mixed_cluster import COMBINED, MixedCluster
from fenceline.testing.waiting import eventually

from ..node.replicated_topics import bootstrap, create, in_sync, leader, log_bytes, partition, replicas_are_equal, write

pytestmark = pytest.mark.timeout(300)
QUICK = {"broker.session.timeout.ms": "1500", "broker.heartbeat.interval.ms": "300"}
FIELDS = [
    "topic",
    "topic_id",
    "partition",
    "start_offset",
    "end_offset_exclusive",
    "leader_epochs",
    "records",
    "bytes",
    "class",
    "cause",
    "replica",
    "leader",
    "time",
    "evidence",
]


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MixedCluster]:
    with MixedCluster(tmp_path_factory.mktemp("losing"), [COMBINED] * 3, settings=QUICK) as cluster:
        cluster.wait_ready()
        cluster.wait_complete()
        yield cluster


def fenceline(cluster: MixedCluster, *words: str) -> str:
    command = [sys.executable, "-m", "fenceline", "losses", *words, "--bootstrap", cluster.nodes[0].bootstrap]
    done = subprocess.run(command, env=dict(os.environ), capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout


def listed(cluster: MixedCluster, topic: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(fenceline(cluster, "list", "--json"))
    return [receipt for receipt in found if receipt["topic"] == topic]


def test_loss_of_an_unclean_election_is_reported_kept_and_replayed(three: MixedCluster) -> None:
    assert listed(three, "unclean") == [], "a cluster without losses has no ledger yet"
    create(three, "unclean", replicas=2, configs={"unclean.leader.election.enable": "true"})
    write(three, "unclean", ["kept"])
    old = leader(three, "unclean")
    behind = three.node(next(each for each in partition(three, "unclean").replicas if each != old.node_id))
    replicas_are_equal([old, behind], "unclean")
    behind.kill()
    in_sync(three, "unclean", {old.node_id})
    write(three, "unclean", ["lost"])
    lost_bytes = len(log_bytes(old, "unclean")) - len(log_bytes(behind, "unclean"))
    epoch = partition(three, "unclean").leader_epoch
    old.kill()
    behind.start()
    behind.wait_ready()
    eventually(lambda: leader(three, "unclean") is behind)
    write(three, "unclean", ["new"])
    old.start()
    old.wait_ready()
    in_sync(three, "unclean", {old.node_id, behind.node_id})
    replicas_are_equal([old, behind], "unclean")

    (receipt,) = eventually(lambda: listed(three, "unclean"), "a receipt of what was cut")
    assert list(receipt) == FIELDS
    assert (receipt["partition"], receipt["start_offset"], receipt["end_offset_exclusive"]) == (0, 1, 2)
    assert (receipt["records"], receipt["bytes"], receipt["leader_epochs"]) == (1, lost_bytes, [epoch])
    assert (receipt["replica"], receipt["leader"], receipt["cause"]) == (old.node_id, behind.node_id, "divergence")
    assert receipt["class"] in ("committed", "maybe_acknowledged"), "a killed leader has only its last checkpoint"
    assert all(os.path.exists(path) for path in receipt["evidence"])

    shown = json.loads(fenceline(three, "show", "unclean-0", "--json"))
    assert {key: shown[key] for key in FIELDS} == receipt
    assert shown["known_by"]
    (record,) = map(json.loads, fenceline(three, "export", "unclean-0@1").splitlines())
    assert (record["offset"], record["leader_epoch"], record["value"]) == (1, epoch, "lost")

    with LostRecordsReader(behind.bootstrap) as reader:  # another node than the one that has the evidence
        (records,) = reader.read(reader.receipt(shown["id"]), arrow=False)
    assert [(each.offset, each.leader_epoch, each.value) for each in records] == [(1, epoch, b"lost")]

    create(three, "found-again")
    fenceline(three, "replay", shown["id"], "--to", "found-again")
    (replayed,) = read(three, "found-again", 1)
    assert replayed.value == b"lost"
    assert dict(replayed.headers) == {
        "fenceline.lost.topic": b"unclean",
        "fenceline.lost.partition": b"0",
        "fenceline.lost.offset": b"1",
        "fenceline.lost.leader_epoch": str(epoch).encode(),
        "fenceline.lost.receipt": shown["id"].encode(),
    }


def read(cluster: MixedCluster, topic: str, count: int) -> list[ConsumerRecord]:
    found: list[ConsumerRecord] = []
    with Consumer(bootstrap(cluster), auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])

        def all_read() -> bool:
            found.extend(consumer.poll(500))
            return len(found) >= count

        eventually(all_read, f"{count} records of {topic}")
    return found
