"""Kafka's tool moves replicas between directories; a move started by one broker is completed by the other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fenceline.client.admin.admin import Admin
from fenceline.errors import ErrorCode
from fenceline.testing.apache_kafka import run_tool
from fenceline.testing.mixed_cluster import BROKER, COMBINED, MixedCluster, MixedNode
from fenceline.testing.waiting import eventually
from fenceline.wire.apis import ApiKey
from tests.conftest import need_apache_kafka
from tests.kafka.test_several_directories import described, go_on_as
from tests.node.replicated_topics import create, in_sync, write
from tests.scheduling import CLUSTERS
from tests.support.partition_files import log_bytes
from tests.support.raw import RawConnection

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(400), pytest.mark.together(CLUSTERS)]

TOPIC = "removals"
RATE = "replica.alter.log.dirs.io.max.bytes.per.second"
LARGE = "v" * 100_000


@pytest.fixture(autouse=True)
def _needs() -> None:
    need_apache_kafka()


def place(node: MixedNode) -> int:
    """Which of its directories has the replica."""
    (found,) = (number for number, path in enumerate(node.log_dirs) if (path / f"{TOPIC}-0").is_dir())
    return found


def reassign(cluster: MixedCluster, node: MixedNode, number: int, action: str, *more: str, replicas: int = 1) -> str:
    """Kafka's tool, for partition 0: the replica on `node` into its directory `number`."""
    ids = [node.node_id, *(each.node_id for each in cluster.nodes if each is not node and BROKER in each.roles)]
    plan = {
        "version": 1,
        "partitions": [
            {
                "topic": TOPIC,
                "partition": 0,
                "replicas": ids[:replicas],
                "log_dirs": [str(node.log_dirs[number]), *["any"] * (replicas - 1)],
            }
        ],
    }
    path = cluster.root / "plan.json"
    path.write_text(json.dumps(plan))
    tool = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
    return run_tool(
        tool, "--bootstrap-server", node.bootstrap, f"--{action}", "--reassignment-json-file", str(path), *more
    )


def is_moved(cluster: MixedCluster, node: MixedNode, number: int, replicas: int = 1) -> None:
    """`--verify` says so, and the files are there."""
    done = f"Reassignment of replica {TOPIC}-0-{node.node_id} completed successfully."
    eventually(lambda: done in reassign(cluster, node, number, "verify", replicas=replicas), done, wait_s=100)
    assert (node.log_dirs[number] / f"{TOPIC}-0").is_dir()
    assert not list(node.log_dirs[1 - number].glob(f"{TOPIC}-0"))
    assert not list(node.root.glob(f"data*/{TOPIC}-0.*-future"))


def configure(node: MixedNode, *change: str) -> str:
    return run_tool(
        "kafka.admin.ConfigCommand",
        *("--bootstrap-server", node.bootstrap, "--entity-type", "brokers", "--entity-name", str(node.node_id)),
        *("--alter", *change),
    )


def test_kafkas_tool_moves_a_replica_there_and_back_on_either_broker(tmp_path: Path) -> None:
    with MixedCluster(tmp_path, [COMBINED], directories=2) as cluster:
        cluster.wait_ready()
        cluster.wait_complete()
        (node,) = cluster.nodes
        create(cluster, TOPIC, replicas=1)
        write(cluster, TOPIC, [f"{number}" for number in range(500)])
        here = place(node)
        before = log_bytes(node.log_dirs[here], TOPIC)

        there = 1 - here
        assert "Successfully started moving log directory" in reassign(cluster, node, there, "execute")
        is_moved(cluster, node, there)
        assert log_bytes(node.log_dirs[there], TOPIC) == before
        write(cluster, TOPIC, ["after"])
        assert described(node, TOPIC)[str(node.log_dirs[there])] == [0]

        go_on_as(node, kafka=True)
        write(cluster, TOPIC, ["by Kafka"])
        assert described(node, TOPIC)[str(node.log_dirs[there])] == [0]
        reassign(cluster, node, here, "execute")
        is_moved(cluster, node, here)
        after = log_bytes(node.log_dirs[here], TOPIC)
        assert after.startswith(before)

        go_on_as(node, kafka=False)
        write(cluster, TOPIC, ["by us"])
        assert log_bytes(node.log_dirs[here], TOPIC).startswith(after)


@pytest.mark.parametrize("began", [COMBINED, f"kafka:{COMBINED}"], ids=["fenceline", "kafka"])
def test_move_started_by_one_broker_is_completed_by_the_other(tmp_path: Path, began: str) -> None:
    """Killed in the middle of the copy."""
    with MixedCluster(tmp_path, [began], directories=2) as cluster:
        cluster.wait_ready()
        cluster.wait_complete()
        (node,) = cluster.nodes
        create(cluster, TOPIC, replicas=1)
        write(cluster, TOPIC, [LARGE] * 80)
        here = place(node)
        there = 1 - here
        reassign(cluster, node, there, "execute", "--replica-alter-log-dirs-throttle", "1000")
        pattern = f"{TOPIC}-0.*-future/*.log"
        eventually(lambda: any(each.stat().st_size for each in node.log_dirs[there].glob(pattern)))
        assert "still in progress" in reassign(cluster, node, there, "verify")
        before = log_bytes(node.log_dirs[here], TOPIC)
        node.kill()
        node.is_kafka = began == COMBINED
        node.start()
        node.wait_ready()
        eventually(lambda: node.knows([1]), "it is registered")
        write(cluster, TOPIC, ["after"])
        configure(node, "--delete-config", RATE)
        is_moved(cluster, node, there)
        assert log_bytes(node.log_dirs[there], TOPIC).startswith(before)


def test_a_follower_moves_while_its_leader_is_written_to(tmp_path: Path) -> None:
    """Under Kafka's controller, which is notified of the directory before the move."""
    settings = {"broker.heartbeat.interval.ms": "300"}
    kinds = ["kafka:controller", BROKER, f"kafka:{BROKER}"]
    with MixedCluster(tmp_path, kinds, settings=settings, directories=2) as cluster:
        cluster.wait_ready()
        cluster.wait_complete()
        node, other = cluster.nodes[1:]
        create(cluster, TOPIC, replicas=2)
        write(cluster, TOPIC, [LARGE] * 20)
        in_sync(cluster, TOPIC, {node.node_id, other.node_id})
        for each in (node, other, node):
            here = place(each)
            reassign(cluster, each, 1 - here, "execute", replicas=2)
            write(cluster, TOPIC, [LARGE] * 20)
            is_moved(cluster, each, 1 - here, replicas=2)
            write(cluster, TOPIC, ["after"])
            in_sync(cluster, TOPIC, {node.node_id, other.node_id})

        def logs() -> list[bytes]:
            return [log_bytes(each.log_dirs[place(each)], TOPIC) for each in (node, other)]

        eventually(lambda: len(set(logs())) == 1, "both replicas are the same")


@pytest.mark.parametrize("kind", [COMBINED, f"kafka:{COMBINED}"], ids=["fenceline", "kafka"])
def test_cordoned_directory_receives_no_new_replicas(tmp_path: Path, kind: str) -> None:
    """KIP-1066: the same on either kind."""
    with MixedCluster(tmp_path, [kind], directories=2) as cluster:
        cluster.wait_ready()
        cluster.wait_complete()
        (node,) = cluster.nodes
        configure(node, "--add-config", f"cordoned.log.dirs={node.log_dirs[1]}")

        def cordoned() -> list[str]:
            with Admin([node.bootstrap]) as admin:
                return [each.path for each in admin.describe_log_dirs([1])[1] if each.is_cordoned]

        eventually(lambda: cordoned() == [str(node.log_dirs[1])])
        create(cluster, TOPIC, partitions=4, replicas=1)
        for index in range(4):
            write(cluster, TOPIC, ["v"], index=index)
        assert len(list(node.log_dirs[0].glob(f"{TOPIC}-*"))) == 4
        with RawConnection(node.port) as connection:
            dirs = [{"path": str(node.log_dirs[1]), "topics": [{"name": TOPIC, "partitions": [0]}]}]
            (refused,) = connection.call(ApiKey.ALTER_REPLICA_LOG_DIRS, 2, {"dirs": dirs}).results
            assert [each.error_code for each in refused.partitions] == [ErrorCode.INVALID_REPLICA_ASSIGNMENT]
            configure(node, "--add-config", "cordoned.log.dirs=*")
            eventually(lambda: len(cordoned()) == 2)
            topic = {"name": "more", "num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()}
            asked = {"topics": [topic], "timeout": 30_000, "validate_only": True}

            def refusal() -> str | None:
                (reported,) = connection.call(ApiKey.CREATE_TOPICS, 7, asked).topics
                return reported.error_message if reported.error_code == ErrorCode.INVALID_REPLICATION_FACTOR else None

            assert "have all their log directories cordoned" in eventually(refusal, "the controller knows it")
        with pytest.raises(RuntimeError, match=r"Missing entries|Invalid entry"):
            configure(node, "--add-config", "cordoned.log.dirs=/nowhere")
