"""100,000 transactional ids on three nodes: memory of idle ids, and failover of their coordinator.

Failover is the time from the kill or stop of the coordinator until another broker answers EndTxn of a transaction that
was open. A coordinator that is stopped hands over before it ends: then only the load of the ids remains.

`BENCH_IDS` and `BENCH_ROUNDS` shorten the run.
"""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from benchmarks.clusters import ClusterUnderTest, wait_for
from benchmarks.harness import SIDES, Figures, resident_mb, scratch
from benchmarks.workloads import create_topic
from fenceline.client.admin.admin import Admin
from fenceline.client.core.config import ClientConfig
from fenceline.client.core.connection import Connection, open_connection
from fenceline.errors import ErrorCode, FencelineError
from fenceline.ids import TRANSACTION_STATE_TOPIC
from fenceline.testing.mixed_cluster import MixedNode
from fenceline.wire.apis import ApiKey

IDS: Final = int(os.environ.get("BENCH_IDS", "100000"))
ROUNDS: Final = int(os.environ.get("BENCH_ROUNDS", "3"))
CONNECTIONS: Final = 100
TOPIC: Final = "written"
_SETTINGS: Final = {
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
}
_REQUEST_TIMEOUT_MS: Final = 60_000
_STEP_S: Final = 0.005
_PATIENCE_S: Final = 120.0
_TRANSACTION: Final = 1
_RETRIABLE: Final = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.CONCURRENT_TRANSACTIONS,
    }
)


def run(figures: Figures, repeats: int) -> None:
    with scratch() as directory:
        for side in SIDES:
            _of_side(figures, side, directory / side)


def _of_side(figures: Figures, side: Any, directory: Path) -> None:
    with ClusterUnderTest(side, directory, settings=_SETTINGS) as cluster:
        cluster.start_voters()
        cluster.wait_complete()
        create_topic(cluster.nodes[0].bootstrap, TOPIC, 1)
        coordinator = _coordinator(cluster)
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
    wait_for(lambda: _all_in_sync(cluster), "all replicas are in sync")
    controller, node = cluster.leader(), _coordinator(cluster)
    identity = asyncio.run(_begin(node.bootstrap, name))
    label = f"coordinator of {IDS:,} ids {what}{', the active controller, too' if node is controller else ''}"
    staying = [each.bootstrap for each in cluster.nodes if each is not node]
    moment = time.monotonic()
    if what == "killed":
        node.kill()
    else:
        node.stop()
        moment = time.monotonic()
    answered = asyncio.run(_until_ended(staying, node.node_id, name, identity))
    figures.add(f"{label}: until EndTxn is answered", cluster.side, answered - moment, "s")
    node.start()


def _all_in_sync(cluster: ClusterUnderTest) -> bool:
    with Admin({"bootstrap.servers": cluster.nodes[0].bootstrap}) as admin:
        topics = admin.metadata([TRANSACTION_STATE_TOPIC]).topics
        return len(topics[TRANSACTION_STATE_TOPIC].partitions[0].isr) == len(cluster.nodes)


def _coordinator(cluster: ClusterUnderTest) -> MixedNode:
    bootstrap = cluster.nodes[0].bootstrap
    found = wait_for(lambda: asyncio.run(_coordinator_at(bootstrap)), "there is a coordinator")
    return next(each for each in cluster.nodes if each.node_id == found[0])


# --- requests ----------------------------------------


async def _connect(bootstrap: str) -> Connection:
    host, _, port = bootstrap.rpartition(":")
    return await open_connection(host, int(port), ClientConfig.parse("admin", bootstrap, {}), None)


async def _coordinator_at(bootstrap: str) -> tuple[int, str] | None:
    connection = await _connect(bootstrap)
    try:
        fields = {"key": "any", "key_type": _TRANSACTION}
        answer = await connection.call(ApiKey.FIND_COORDINATOR, 3, fields, timeout_ms=_REQUEST_TIMEOUT_MS)
    finally:
        connection.close()
    return (answer.node_id, f"{answer.host}:{answer.port}") if not answer.error_code else None


async def _init_all(bootstrap: str, prefix: str, count: int) -> None:
    waiting = list(range(count))

    async def some() -> None:
        connection = await _connect(bootstrap)
        while waiting:
            await _init(connection, f"{prefix}-{waiting.pop()}")
        connection.close()

    await asyncio.gather(*(some() for _ in range(CONNECTIONS)))


async def _init(connection: Connection, name: str) -> tuple[int, int]:
    fields = {
        "transactional_id": name,
        "transaction_timeout": 600_000,
        "producer_id": -1,
        "producer_epoch": -1,
    }
    answer = await _until_done(connection, ApiKey.INIT_PRODUCER_ID, 5, fields)
    return answer.producer_id, answer.producer_epoch


async def _begin(bootstrap: str, name: str) -> tuple[int, int]:
    """A transaction with one partition, without records."""
    connection = await _connect(bootstrap)
    producer_id, epoch = await _init(connection, name)
    fields = {
        "v3_and_below_transactional_id": name,
        "v3_and_below_producer_id": producer_id,
        "v3_and_below_producer_epoch": epoch,
        "v3_and_below_topics": [{"name": TOPIC, "partitions": [0]}],
    }
    await connection.call(ApiKey.ADD_PARTITIONS_TO_TXN, 3, fields, timeout_ms=_REQUEST_TIMEOUT_MS)
    connection.close()
    return producer_id, epoch


async def _until_done(connection: Connection, api: ApiKey, version: int, fields: dict[str, Any]) -> Any:
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        answer = await connection.call(api, version, fields, timeout_ms=_REQUEST_TIMEOUT_MS)
        if not answer.error_code:
            return answer
        code = ErrorCode(answer.error_code)
        assert code in _RETRIABLE, code
        assert time.monotonic() < deadline, f"{api.name}: still {code.name}"
        await asyncio.sleep(_STEP_S)


async def _until_ended(bootstraps: list[str], lost_id: int, name: str, identity: tuple[int, int]) -> float:
    """The time at which a remaining broker has committed the transaction."""
    deadline = time.monotonic() + _PATIENCE_S
    turn = 0
    while time.monotonic() < deadline:
        turn += 1
        with suppress(OSError, FencelineError):
            found = await _coordinator_at(bootstraps[turn % len(bootstraps)])
            if found is not None and found[0] != lost_id and await _ends(found[1], name, identity):
                return time.monotonic()
        await asyncio.sleep(_STEP_S)
    raise TimeoutError("EndTxn was not answered")


async def _ends(bootstrap: str, name: str, identity: tuple[int, int]) -> bool:
    connection = await _connect(bootstrap)
    try:
        fields = {
            "transactional_id": name,
            "producer_id": identity[0],
            "producer_epoch": identity[1],
            "committed": True,
        }
        while True:
            answer = await connection.call(ApiKey.END_TXN, 4, fields, timeout_ms=_REQUEST_TIMEOUT_MS)
            code = ErrorCode(answer.error_code)
            if code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                await asyncio.sleep(_STEP_S)
                continue
            if code in _RETRIABLE:
                return False
            assert code is ErrorCode.NONE, code
            return True
    finally:
        connection.close()
