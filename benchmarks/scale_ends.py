"""Curves of `benchmarks.scale` about what ends together: members, transactions, committed offsets.

Owns how so many of them come to end at once. A producer writes a record each 2 ms meanwhile; its latencies count from
the moment at which a record was due, so a node that is slow for long counts for more than a pause.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from benchmarks.coordinators import (
    GROUP,
    TRANSACTION,
    begin_transaction,
    commit_offsets,
    for_each,
    until_done,
    wait_coordinator,
)
from benchmarks.scale_clients import PROBED
from benchmarks.scale_measuring import MeasuredNode, SizeOfCurve, client_process, measured_node
from benchmarks.workloads import create_topic, percentile
from fenceline.wire.apis import ApiKey

if TYPE_CHECKING:
    from fenceline.client.core.connection import Connection

_CONNECTIONS: Final = 16
_SESSION_MS: Final = 6_000
_TRANSACTION_MS: Final = 10_000
_RETENTION_MINUTES: Final = 1
_OFFSETS_A_REQUEST: Final = 500
_ENDED_A_SECOND: Final = 1_000
"""At least so many: how long is measured."""
_BEFORE_S: Final = 3.0


def members(curve: SizeOfCurve) -> None:
    """Groups of one member each, of the consumer protocol. Their coordinator is killed, and none comes back."""
    settings = {
        "group.consumer.session.timeout.ms": str(_SESSION_MS),
        "group.consumer.min.session.timeout.ms": str(_SESSION_MS),
    }
    with measured_node(**settings) as node:
        create_topic(node.bootstrap, PROBED, 1)
        wait_coordinator(node.bootstrap, GROUP, "group-0")
        asyncio.run(_for_each(node.bootstrap, "group", curve.size, _join))
        node.restart(kill=True)
        _measure(curve, node, _SESSION_MS / 1000 + curve.size / _ENDED_A_SECOND)


async def _join(connection: Connection, group: str) -> None:
    fields = {
        "group_id": group,
        "member_id": f"member-of-{group}",
        "member_epoch": 0,
        "instance_id": None,
        "rack_id": None,
        "rebalance_timeout": 300_000,
        "subscribed_topic_names": [PROBED],
        "subscribed_topic_regex": None,
        "server_assignor": None,
        "topic_partitions": [],
    }
    await until_done(connection, ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, fields)


def transactions(curve: SizeOfCurve) -> None:
    """Open transactions of one partition each, whose coordinator is away for longer than they may last."""
    with measured_node() as node:
        create_topic(node.bootstrap, PROBED, 1)
        wait_coordinator(node.bootstrap, TRANSACTION, "id-0")
        begin = partial(begin_transaction, topic=PROBED, timeout_ms=_TRANSACTION_MS)
        asyncio.run(_for_each(node.bootstrap, "id", curve.size, begin))
        node.stop()
        time.sleep(_TRANSACTION_MS / 1000)
        node.start()
        _measure(curve, node, _TRANSACTION_MS / 1000 + curve.size / _ENDED_A_SECOND)


def offsets(curve: SizeOfCurve) -> None:
    """Offsets past their retention, 500 in each group."""
    settings = {"offsets.retention.minutes": str(_RETENTION_MINUTES), "offsets.retention.check.interval.ms": "1000"}
    with measured_node(**settings) as node:
        create_topic(node.bootstrap, PROBED, 1)
        create_topic(node.bootstrap, "read", _OFFSETS_A_REQUEST)
        wait_coordinator(node.bootstrap, GROUP, "group-0")
        asyncio.run(_for_each(node.bootstrap, "group", curve.size // _OFFSETS_A_REQUEST, _commit))
        time.sleep(60 * _RETENTION_MINUTES - 10)
        _measure(curve, node, 10 + curve.size / _ENDED_A_SECOND)


async def _commit(connection: Connection, group: str) -> None:
    await commit_offsets(connection, group, "read", _OFFSETS_A_REQUEST)


async def _for_each(
    bootstrap: str, prefix: str, count: int, do: Callable[[Connection, str], Awaitable[object]]
) -> None:
    await for_each(bootstrap, (f"{prefix}-{number}" for number in range(count)), do, connections=_CONNECTIONS)


def _measure(curve: SizeOfCurve, node: MeasuredNode, wait_s: float) -> None:
    with client_process("probe", node.port, 2_000) as probe:
        time.sleep(1)
        probe.next()
        time.sleep(_BEFORE_S)
        curve.add("active producer before: p99", percentile(probe.next(), 0.99), "ms")
        time.sleep(wait_s)
        latencies = probe.next()
        curve.add("active producer meanwhile: p99", percentile(latencies, 0.99), "ms")
        curve.add("active producer meanwhile: longest", latencies[-1], "ms")
        curve.add_pause(node)


CURVES: Final = {
    "members that end": ((1_250, 2_500, 5_000, 10_000), members),
    "late transactions": ((1_250, 2_500, 5_000, 10_000), transactions),
    "expired offsets": ((12_500, 25_000, 50_000, 100_000), offsets),
}
