"""Groups: memory of 10,000 idle groups, and failover of a coordinator with a million committed offsets.

Failover is the time from the kill or stop of a coordinator until OffsetFetch returns an offset again. A coordinator
that is stopped hands over before it ends: then only the load of the offsets remains. Every returned offset must be
right.

`BENCH_ROWS` selects the rows (keys of `ROWS`, comma-separated; default: all); `BENCH_GROUPS` (of `idle`),
`BENCH_OFFSETS` (of `failover`, in thousands) and `BENCH_ROUNDS` shorten the run.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.clusters import ClusterUnderTest, wait_for
from benchmarks.coordinators import (
    GROUP,
    commit_offsets,
    connect,
    coordinator_of,
    end,
    for_each,
    until_done,
    until_loaded,
    until_moved,
    wait_coordinator,
    wait_in_sync,
)
from benchmarks.harness import SIDES, Figures, both, resident_mb, run_rows, scratch
from fenceline.client.admin.admin import Admin
from fenceline.client.admin.async_admin import NewTopic
from fenceline.client.core.connection import Connection
from fenceline.ids import CONSUMER_OFFSETS_TOPIC
from fenceline.wire.apis import ApiKey

GROUPS: Final = int(os.environ.get("BENCH_GROUPS", "10000"))
OFFSETS_EACH: Final = 10
PARTITIONS: Final = 1_000
LARGE_GROUPS: Final = int(os.environ.get("BENCH_OFFSETS", "1000"))
"""Times PARTITIONS: a million offsets."""
CONNECTIONS: Final = 20
_LARGE: Final = "large-0"
ROUNDS: Final = int(os.environ.get("BENCH_ROUNDS", "3"))
_SESSION_MS: Final = 1_800_000


def run(figures: Figures, repeats: int) -> None:
    run_rows(figures, {name: partial(row, figures) for name, row in ROWS.items()})


# --- idle groups ------------------------------------------------------------------------------------------------------


def idle(figures: Figures) -> None:
    overrides = {
        "group.initial.rebalance.delay.ms": "0",
        "group.max.session.timeout.ms": str(_SESSION_MS),
        "offsets.topic.num.partitions": "50",
    }
    with both(overrides=overrides) as subjects:
        for side, subject in subjects.items():
            _create(subject.bootstrap, "idle", OFFSETS_EACH, 1)
            wait_coordinator(subject.bootstrap, GROUP, _LARGE)
            asyncio.run(_join_all(subject.bootstrap, range(100)))
            time.sleep(3)
            before = resident_mb(subject.pid)
            asyncio.run(_join_all(subject.bootstrap, range(100, 100 + GROUPS)))
            time.sleep(3)
            label = f"{GROUPS:,} idle groups of one member and {OFFSETS_EACH} offsets"
            figures.add(f"{label}: memory of the node", side, resident_mb(subject.pid), "MB")
            figures.add(f"{label}: memory that they add", side, resident_mb(subject.pid) - before, "MB")


async def _join_all(bootstrap: str, numbers: Iterable[int]) -> None:
    waiting = list(numbers)

    async def some() -> None:
        connection = await connect(bootstrap)
        while waiting:
            await _join(connection, f"idle-{waiting.pop()}")
        connection.close()

    await asyncio.gather(*(some() for _ in range(CONNECTIONS)))


async def _join(connection: Connection, group: str) -> None:
    """One member joins, gets an assignment, and commits."""
    subscription = b"\x00\x00\x00\x00\x00\x01\x00\x04idle\xff\xff\xff\xff"
    joining = {
        "group_id": group,
        "session_timeout": _SESSION_MS,
        "session_timeout_ms": _SESSION_MS,
        "rebalance_timeout": 60_000,
        "rebalance_timeout_ms": 60_000,
        "member_id": "",
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": subscription}],
    }
    joined = await until_done(connection, ApiKey.JOIN_GROUP, 3, joining)
    member = {"group_id": group, "generation_id": joined.generation_id, "member_id": joined.member_id}
    assignment = {"member_id": joined.member_id, "assignment": subscription}
    await until_done(connection, ApiKey.SYNC_GROUP, 2, {**member, "assignments": [assignment]})
    await commit_offsets(connection, group, "idle", OFFSETS_EACH, joined.generation_id, joined.member_id)


# --- coordinator failover ---------------------------------------------------------------------------------------------


def failover(figures: Figures) -> None:
    with scratch() as directory:
        for side in SIDES:
            _fail_over(figures, side, directory / side)


def _fail_over(figures: Figures, side: str, directory: Path) -> None:
    settings = {"offsets.topic.num.partitions": "1", "offsets.topic.replication.factor": "3"}
    count = LARGE_GROUPS * PARTITIONS
    with ClusterUnderTest(side, directory, settings=settings) as cluster:
        cluster.start_voters()
        cluster.wait_complete()
        bootstrap = cluster.nodes[0].bootstrap
        _create(bootstrap, "many", PARTITIONS, 1)
        coordinator = coordinator_of(cluster, GROUP, _LARGE)
        started = time.perf_counter()
        groups = [f"large-{number}" for number in range(LARGE_GROUPS)]
        asyncio.run(for_each(coordinator.bootstrap, groups, _commit))
        figures.add(f"{count:,} offsets committed", side, count / (time.perf_counter() - started), "offsets/s")
        for _ in range(ROUNDS):
            for what in ("killed", "stopped"):
                _measure_failover(figures, cluster, what, count)


def _measure_failover(figures: Figures, cluster: ClusterUnderTest, what: str, count: int) -> None:
    cluster.wait_complete()
    wait_in_sync(cluster, CONSUMER_OFFSETS_TOPIC)
    controller, node = cluster.leader(), coordinator_of(cluster, GROUP, _LARGE)
    label = f"coordinator of {count:,} offsets {what}{', the active controller, too' if node is controller else ''}"
    staying = [each.bootstrap for each in cluster.nodes if each is not node]
    moment = end(node, what)
    answered = asyncio.run(until_moved(staying, node.node_id, GROUP, _LARGE, _returns_offsets))
    figures.add(f"{label}: until a position is told", cluster.side, answered - moment, "s")
    node.start()


async def _returns_offsets(connection: Connection) -> bool:
    """Raises AssertionError for a wrong offset."""
    topics = [{"name": "many", "partition_indexes": [0, PARTITIONS - 1]}]
    fields = {"group_id": f"large-{LARGE_GROUPS - 1}", "topics": topics, "require_stable": False}
    answer = await until_loaded(connection, ApiKey.OFFSET_FETCH, 7, fields)
    if answer is None:
        return False
    offsets = [each.committed_offset for each in answer.topics[0].partitions]
    assert offsets == [1_000, 1_000 + PARTITIONS - 1], f"wrong offsets: {offsets}"
    return True


async def _commit(connection: Connection, group: str) -> None:
    await commit_offsets(connection, group, "many", PARTITIONS)


# --- requests ---------------------------------------------------------------------------------------------------------


def _create(bootstrap: str, topic: str, partitions: int, replicas: int) -> None:
    with Admin({"bootstrap.servers": bootstrap, "default.api.timeout.ms": 120_000}) as admin:
        admin.create_topics([NewTopic(topic, partitions, replicas)])
        wait_for(
            lambda: (
                [each.leader >= 0 for each in admin.metadata([topic]).topics[topic].partitions.values()]
                == [True] * partitions
            ),
            f"{topic} has leaders",
        )


ROWS: Final[dict[str, Callable[[Figures], None]]] = {"idle": idle, "failover": failover}
