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
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.clusters import ClusterUnderTest, wait_for
from benchmarks.harness import SIDES, Figures, both, resident_mb, run_rows, scratch
from fenceline.client.admin.admin import Admin
from fenceline.client.admin.async_admin import NewTopic
from fenceline.client.core.config import ClientConfig
from fenceline.client.core.connection import Connection, open_connection
from fenceline.errors import ErrorCode, FencelineError
from fenceline.testing.mixed_cluster import MixedNode
from fenceline.wire.apis import ApiKey

GROUPS: Final = int(os.environ.get("BENCH_GROUPS", "10000"))
OFFSETS_EACH: Final = 10
PARTITIONS: Final = 1_000
LARGE_GROUPS: Final = int(os.environ.get("BENCH_OFFSETS", "1000"))
"""Times PARTITIONS: a million offsets."""
CONNECTIONS: Final = 20
ROUNDS: Final = int(os.environ.get("BENCH_ROUNDS", "3"))
_REQUEST_TIMEOUT_MS: Final = 60_000
_STEP_S: Final = 0.005
_SESSION_MS: Final = 1_800_000
_RETRIABLE: Final = frozenset(
    {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR}
)


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
            wait_for(partial(_coordinator_now, subject.bootstrap), "there is a coordinator")
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
        connection = await _connect(bootstrap)
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
    joined = await _until_done(connection, ApiKey.JOIN_GROUP, 3, joining)
    member = {"group_id": group, "generation_id": joined.generation_id, "member_id": joined.member_id}
    assignment = {"member_id": joined.member_id, "assignment": subscription}
    await _until_done(connection, ApiKey.SYNC_GROUP, 2, {**member, "assignments": [assignment]})
    await _commit(connection, group, "idle", OFFSETS_EACH, joined.generation_id, joined.member_id)


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
        coordinator = wait_for(partial(_coordinator_now, bootstrap), "there is a coordinator")
        started = time.perf_counter()
        asyncio.run(_commit_all(_node(cluster, coordinator).bootstrap))
        figures.add(f"{count:,} offsets committed", side, count / (time.perf_counter() - started), "offsets/s")
        for _ in range(ROUNDS):
            for what in ("killed", "stopped"):
                _measure_failover(figures, cluster, what, count)


def _measure_failover(figures: Figures, cluster: ClusterUnderTest, what: str, count: int) -> None:
    cluster.wait_complete()
    wait_for(lambda: _all_in_sync(cluster), "all replicas are in sync")
    controller = cluster.leader()
    number = wait_for(partial(_coordinator_now, cluster.nodes[0].bootstrap), "there is a coordinator")
    node = _node(cluster, number)
    label = f"coordinator of {count:,} offsets {what}{', the active controller, too' if node is controller else ''}"
    staying = [each for each in cluster.nodes if each is not node]
    moment = time.monotonic()
    if what == "killed":
        node.kill()
    else:
        node.stop()
        moment = time.monotonic()
    answered = asyncio.run(_until_answered([each.bootstrap for each in staying], node.node_id))
    figures.add(f"{label}: until a position is told", cluster.side, answered - moment, "s")
    node.start()


def _node(cluster: ClusterUnderTest, number: int) -> MixedNode:
    return next(each for each in cluster.nodes if each.node_id == number)


def _all_in_sync(cluster: ClusterUnderTest) -> bool:
    with Admin({"bootstrap.servers": cluster.nodes[0].bootstrap}) as admin:
        return len(admin.metadata(["__consumer_offsets"]).topics["__consumer_offsets"].partitions[0].isr) == 3


async def _until_answered(bootstraps: list[str], lost_id: int) -> float:
    """The time at which a remaining broker returns an offset. Raises AssertionError for a wrong offset."""
    deadline = time.monotonic() + 120
    turn = 0
    while time.monotonic() < deadline:
        turn += 1
        with suppress(OSError, FencelineError):
            found = await _coordinator_at(bootstraps[turn % len(bootstraps)])
            if found is not None and found[0] != lost_id and await _returns_offsets(found[1]):
                return time.monotonic()
        await asyncio.sleep(_STEP_S)
    raise TimeoutError("no offset was returned")


async def _returns_offsets(bootstrap: str) -> bool:
    connection = await _connect(bootstrap)
    try:
        group = f"large-{LARGE_GROUPS - 1}"
        topics = [{"name": "many", "partition_indexes": [0, PARTITIONS - 1]}]
        fields = {"group_id": group, "topics": topics, "require_stable": False}
        while True:
            answer = await connection.call(ApiKey.OFFSET_FETCH, 7, fields, timeout_ms=_REQUEST_TIMEOUT_MS)
            code = ErrorCode(answer.error_code)
            if code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                await asyncio.sleep(_STEP_S)
                continue
            if code in _RETRIABLE:
                return False
            assert code is ErrorCode.NONE, code
            offsets = [each.committed_offset for each in answer.topics[0].partitions]
            assert offsets == [1_000, 1_000 + PARTITIONS - 1], f"wrong offsets: {offsets}"
            return True
    finally:
        connection.close()


async def _commit_all(bootstrap: str) -> None:
    waiting = list(range(LARGE_GROUPS))

    async def some() -> None:
        connection = await _connect(bootstrap)
        while waiting:
            await _commit(connection, f"large-{waiting.pop()}", "many", PARTITIONS)
        connection.close()

    await asyncio.gather(*(some() for _ in range(4)))


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


async def _connect(bootstrap: str) -> Connection:
    host, _, port = bootstrap.rpartition(":")
    return await open_connection(host, int(port), ClientConfig.parse("admin", bootstrap, {}), None)


def _coordinator_now(bootstrap: str) -> int | None:
    found = asyncio.run(_coordinator_at(bootstrap))
    return found[0] if found is not None else None


async def _coordinator_at(bootstrap: str) -> tuple[int, str] | None:
    connection = await _connect(bootstrap)
    try:
        fields = {"key": "large-0", "key_type": 0}
        answer = await connection.call(ApiKey.FIND_COORDINATOR, 3, fields, timeout_ms=_REQUEST_TIMEOUT_MS)
    finally:
        connection.close()
    return (answer.node_id, f"{answer.host}:{answer.port}") if not answer.error_code else None


async def _until_done(connection: Connection, api: ApiKey, version: int, fields: dict[str, Any]) -> Any:
    deadline = time.monotonic() + _REQUEST_TIMEOUT_MS / 1000
    while True:
        answer = await connection.call(api, version, fields, timeout_ms=_REQUEST_TIMEOUT_MS)
        if not answer.error_code:
            return answer
        code = ErrorCode(answer.error_code)
        assert code in _RETRIABLE, code
        assert time.monotonic() < deadline, f"{api.name}: still {code.name} after a minute"
        await asyncio.sleep(_STEP_S)


async def _commit(
    connection: Connection, group: str, topic: str, count: int, generation: int = -1, member_id: str = ""
) -> None:
    partitions = [
        {
            "partition_index": index,
            "committed_offset": 1_000 + index,
            "committed_leader_epoch": 0,
            "committed_metadata": "",
        }
        for index in range(count)
    ]
    fields = {
        "group_id": group,
        "generation_id": generation,
        "generation_id_or_member_epoch": generation,
        "member_id": member_id,
        "group_instance_id": None,
        "topics": [{"name": topic, "partitions": partitions}],
    }
    while True:
        answer = await connection.call(ApiKey.OFFSET_COMMIT, 8, fields, timeout_ms=_REQUEST_TIMEOUT_MS)
        codes = {ErrorCode(each.error_code) for each in answer.topics[0].partitions}
        if codes == {ErrorCode.NONE}:
            return
        assert codes <= _RETRIABLE, codes
        await asyncio.sleep(_STEP_S)


ROWS: Final[dict[str, Callable[[Figures], None]]] = {"idle": idle, "failover": failover}
