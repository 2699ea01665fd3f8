"""Requests to coordinators of groups and transactions, and the wait until another broker has taken over from one.

Owns no figure. Every wait ends after two minutes with an error.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Set
from contextlib import suppress
from typing import Any, Final

from benchmarks.clusters import ClusterUnderTest, wait_for
from fenceline.client.admin.admin import Admin
from fenceline.client.core.config import ClientConfig
from fenceline.client.core.connection import Connection, open_connection
from fenceline.errors import ErrorCode, FencelineError
from fenceline.testing.mixed_cluster import MixedNode
from fenceline.wire.apis import ApiKey

GROUP: Final = 0
TRANSACTION: Final = 1
REQUEST_TIMEOUT_MS: Final = 60_000
STEP_S: Final = 0.005
RETRIABLE: Final = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)
TRANSACTION_RETRIABLE: Final = RETRIABLE | {ErrorCode.CONCURRENT_TRANSACTIONS}
_PATIENCE_S: Final = 120.0


async def connect(bootstrap: str) -> Connection:
    host, _, port = bootstrap.rpartition(":")
    return await open_connection(host, int(port), ClientConfig.parse("admin", bootstrap, {}), None)


async def coordinator_at(bootstrap: str, kind: int, name: str) -> tuple[int, str] | None:
    """Node and address of the coordinator, as this broker knows it."""
    connection = await connect(bootstrap)
    try:
        fields = {"key": name, "key_type": kind}
        answer = await connection.call(ApiKey.FIND_COORDINATOR, 3, fields, timeout_ms=REQUEST_TIMEOUT_MS)
    finally:
        connection.close()
    return (answer.node_id, f"{answer.host}:{answer.port}") if not answer.error_code else None


def wait_coordinator(bootstrap: str, kind: int, name: str) -> int:
    """Its node, once there is one."""
    node_id, _ = wait_for(lambda: asyncio.run(coordinator_at(bootstrap, kind, name)), "there is a coordinator")
    return node_id


def coordinator_of(cluster: ClusterUnderTest, kind: int, name: str) -> MixedNode:
    """Waits until there is one."""
    node_id = wait_coordinator(cluster.nodes[0].bootstrap, kind, name)
    return next(each for each in cluster.nodes if each.node_id == node_id)


def wait_in_sync(cluster: ClusterUnderTest, topic: str) -> None:
    """Until all nodes are in sync in the first partition."""

    def are_in_sync() -> bool:
        with Admin({"bootstrap.servers": cluster.nodes[0].bootstrap}) as admin:
            return len(admin.metadata([topic]).topics[topic].partitions[0].isr) == len(cluster.nodes)

    wait_for(are_in_sync, "all replicas are in sync")


def end(node: MixedNode, what: str) -> float:
    """Kill it ("killed") or stop it; the time since when another one must take over."""
    if what == "killed":
        moment = time.monotonic()
        node.kill()
        return moment
    node.stop()
    return time.monotonic()


async def until_done(
    connection: Connection,
    api: ApiKey,
    version: int,
    fields: dict[str, Any],
    *,
    retriable: Set[ErrorCode] = RETRIABLE,
) -> Any:
    """The response without error."""
    answer = await _until_not(retriable, connection, api, version, fields)
    assert not answer.error_code, ErrorCode(answer.error_code)
    return answer


async def until_loaded(
    connection: Connection,
    api: ApiKey,
    version: int,
    fields: dict[str, Any],
    *,
    retriable: Set[ErrorCode] = RETRIABLE,
) -> Any | None:
    """The response without error; None if this is not the coordinator."""
    answer = await _until_not({ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}, connection, api, version, fields)
    code = ErrorCode(answer.error_code)
    assert code is ErrorCode.NONE or code in retriable, code
    return answer if code is ErrorCode.NONE else None


async def _until_not(
    codes: Set[ErrorCode], connection: Connection, api: ApiKey, version: int, fields: dict[str, Any]
) -> Any:
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        answer = await connection.call(api, version, fields, timeout_ms=REQUEST_TIMEOUT_MS)
        code = ErrorCode(answer.error_code)
        if code not in codes:
            return answer
        assert time.monotonic() < deadline, f"{api.name}: still {code.name}"
        await asyncio.sleep(STEP_S)


async def until_moved(
    bootstraps: list[str], lost_id: int, kind: int, name: str, serves: Callable[[Connection], Awaitable[bool]]
) -> float:
    """The time at which another broker serves as the coordinator."""
    deadline = time.monotonic() + _PATIENCE_S
    turn = 0
    while time.monotonic() < deadline:
        turn += 1
        with suppress(OSError, FencelineError):
            found = await coordinator_at(bootstraps[turn % len(bootstraps)], kind, name)
            if found is not None and found[0] != lost_id:
                connection = await connect(found[1])
                try:
                    if await serves(connection):
                        return time.monotonic()
                finally:
                    connection.close()
        await asyncio.sleep(STEP_S)
    raise TimeoutError(f"no broker took over from node {lost_id}")


async def for_each(
    bootstrap: str, names: Iterable[str], do: Callable[[Connection, str], Awaitable[object]], *, connections: int = 4
) -> None:
    """Do it for every name, over so many connections to one broker."""
    waiting = iter(names)

    async def some() -> None:
        connection = await connect(bootstrap)
        for name in waiting:
            await do(connection, name)
        connection.close()

    await asyncio.gather(*(some() for _ in range(connections)))


async def init_producer(connection: Connection, transactional_id: str, timeout_ms: int) -> tuple[int, int]:
    """Its producer id and epoch."""
    fields = {
        "transactional_id": transactional_id,
        "transaction_timeout": timeout_ms,
        "producer_id": -1,
        "producer_epoch": -1,
    }
    answer = await until_done(connection, ApiKey.INIT_PRODUCER_ID, 5, fields, retriable=TRANSACTION_RETRIABLE)
    return answer.producer_id, answer.producer_epoch


async def begin_transaction(
    connection: Connection, transactional_id: str, topic: str, timeout_ms: int
) -> tuple[int, int]:
    """A transaction with the first partition of the topic, without records; its producer id and epoch."""
    producer_id, epoch = await init_producer(connection, transactional_id, timeout_ms)
    fields = {
        "v3_and_below_transactional_id": transactional_id,
        "v3_and_below_producer_id": producer_id,
        "v3_and_below_producer_epoch": epoch,
        "v3_and_below_topics": [{"name": topic, "partitions": [0]}],
    }
    await connection.call(ApiKey.ADD_PARTITIONS_TO_TXN, 3, fields, timeout_ms=REQUEST_TIMEOUT_MS)
    return producer_id, epoch


async def commit_offsets(
    connection: Connection, group: str, topic: str, count: int, generation: int = -1, member_id: str = ""
) -> None:
    """Commit offsets of the first `count` partitions, again while the coordinator is not there."""
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
        answer = await connection.call(ApiKey.OFFSET_COMMIT, 8, fields, timeout_ms=REQUEST_TIMEOUT_MS)
        codes = {ErrorCode(each.error_code) for each in answer.topics[0].partitions}
        if codes == {ErrorCode.NONE}:
            return
        assert codes <= RETRIABLE, codes
        await asyncio.sleep(STEP_S)
