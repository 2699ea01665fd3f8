"""100,000 transactional ids on three nodes: memory of idle ids, and failover of their coordinator.

Failover is the time from the kill or stop of the coordinator until another broker answers EndTxn of a transaction that
was open. A coordinator that is stopped hands over before it ends: then only the load of the ids remains.

`BENCH_IDS` and `BENCH_ROUNDS` shorten the run.
"""

from __future__ import annotations

import asyncio
import os
import time
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.clusters import ClusterUnderTest
from benchmarks.coordinators import (
    TRANSACTION,
    TRANSACTION_RETRIABLE,
    begin_transaction,
    connect,
    coordinator_of,
    end,
    for_each,
    init_producer,
    until_loaded,
    until_moved,
    wait_in_sync,
)
from benchmarks.harness import SIDES, Figures, resident_mb, scratch
from benchmarks.workloads import create_topic
from fenceline.client.core.connection import Connection
from fenceline.ids import TRANSACTION_STATE_TOPIC
from fenceline.wire.apis import ApiKey

IDS: Final = int(os.environ.get("BENCH_IDS", "100000"))
ROUNDS: Final = int(os.environ.get("BENCH_ROUNDS", "3"))
CONNECTIONS: Final = 100
TOPIC: Final = "written"
_TIMEOUT_MS: Final = 600_000
_SETTINGS: Final = {
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
}


def run(figures: Figures, repeats: int) -> None:
    with scratch() as directory:
        for side in SIDES:
            _of_side(figures, side, directory / side)


def _of_side(figures: Figures, side: Any, directory: Path) -> None:
    with ClusterUnderTest(side, directory, settings=_SETTINGS) as cluster:
        cluster.start_voters()
        cluster.wait_complete()
        create_topic(cluster.nodes[0].bootstrap, TOPIC, 1)
        coordinator = coordinator_of(cluster, TRANSACTION, "any")
        asyncio.run(_init_all(coordinator.bootstrap, "first", 100))
        time.sleep(3)
        before_mb, began_s = resident_mb(coordinator.pid), time.perf_counter()
        asyncio.run(_init_all(coordinator.bootstrap, "idle", IDS))
        figures.add(f"{IDS:,} ids made", side, IDS / (time.perf_counter() - began_s), "ids/s")
        time.sleep(3)
        added = resident_mb(coordinator.pid) - before_mb
        figures.add(f"memory that {IDS:,} idle ids add to their coordinator", side, 1e6 * added / IDS, "bytes an id")
        for number in range(ROUNDS):
            for what in ("killed", "stopped"):
                _fail_over(figures, cluster, what, f"open-{what}-{number}")


def _fail_over(figures: Figures, cluster: ClusterUnderTest, what: str, name: str) -> None:
    cluster.wait_complete()
    wait_in_sync(cluster, TRANSACTION_STATE_TOPIC)
    controller, node = cluster.leader(), coordinator_of(cluster, TRANSACTION, name)
    identity = asyncio.run(_begin(node.bootstrap, name))
    label = f"coordinator of {IDS:,} ids {what}{', the active controller, too' if node is controller else ''}"
    staying = [each.bootstrap for each in cluster.nodes if each is not node]
    moment = end(node, what)
    commits = partial(_commits, name=name, identity=identity)
    answered = asyncio.run(until_moved(staying, node.node_id, TRANSACTION, name, commits))
    figures.add(f"{label}: until EndTxn is answered", cluster.side, answered - moment, "s")
    node.start()


# --- requests ----------------------------------------


async def _init_all(bootstrap: str, prefix: str, count: int) -> None:
    names = (f"{prefix}-{number}" for number in range(count))
    await for_each(bootstrap, names, partial(init_producer, timeout_ms=_TIMEOUT_MS), connections=CONNECTIONS)


async def _begin(bootstrap: str, name: str) -> tuple[int, int]:
    connection = await connect(bootstrap)
    identity = await begin_transaction(connection, name, TOPIC, _TIMEOUT_MS)
    connection.close()
    return identity


async def _commits(connection: Connection, name: str, identity: tuple[int, int]) -> bool:
    fields = {
        "transactional_id": name,
        "producer_id": identity[0],
        "producer_epoch": identity[1],
        "committed": True,
    }
    return await until_loaded(connection, ApiKey.END_TXN, 4, fields, retriable=TRANSACTION_RETRIABLE) is not None
