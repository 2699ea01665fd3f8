"""What growth costs: each curve measures four sizes, each in fresh nodes. `benchmarks.scale_page` draws docs/scale.md.

`BENCH_ROWS` selects curves (keys of `CURVES`, comma-separated; default: all). `BENCH_SIZES=1000,2000` replaces the
sizes of the curves that run, for a short look.

- A pause is a delay of the node's event loop, sampled each 5 ms from the ready line on: how long its thread worked
  without serving anything else (and apart from that, with waits for the disk and for a core of this machine).
- CPU and memory are those of the node's process; what a figure of memory is "of one" is the increase over the node
  before, divided by the size. CPU at rest is the increase over the empty node, most of which is the sampling.
- Connections: a process has at most 20,000 open files here, of which the node keeps some for itself.
"""

from __future__ import annotations

import asyncio
import os
import struct
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import crc32c
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks import scale_cluster, scale_ends, scale_voters
from benchmarks.coordinators import (
    GROUP,
    REQUEST_TIMEOUT_MS,
    RETRIABLE,
    STEP_S,
    commit_offsets,
    connect,
    for_each,
    until_loaded,
    wait_coordinator,
)
from benchmarks.harness import Figures, run_rows, scratch
from benchmarks.scale_clients import PROBED
from benchmarks.scale_measuring import IDLE_S, MeasuredNode, SizeOfCurve, client_process, measured_node
from benchmarks.workloads import create_topic, percentile
from fenceline.client.core.connection import Connection
from fenceline.errors import ErrorCode
from fenceline.records.build import build_batch
from fenceline.wire.apis import ApiKey

Curve = Callable[[SizeOfCurve], None]

_SETTLING_S: Final = 1.0
PARTITIONS_A_TOPIC: Final = 2_500


def run(figures: Figures, repeats: int) -> None:
    def rows(name: str, sizes: tuple[int, ...], measure: Curve) -> None:
        for size in tuple(map(int, os.environ.get("BENCH_SIZES", "").split(","))) if _SHORT else sizes:
            for _ in range(repeats if name in _REPEATED else 1):
                measure(SizeOfCurve(figures, name, size))

    run_rows(figures, {name: partial(rows, name, sizes, measure) for name, (sizes, measure) in CURVES.items()})


_SHORT: Final = bool(os.environ.get("BENCH_SIZES"))
_REPEATED: Final = ("connections", "connections in 3 s")


# --- connections ------------------------------------------------------------------------------------------------------


def connections(curve: SizeOfCurve) -> None:
    """As fast as one client opens them."""
    with measured_node() as node, client_process("probe", node.port, 2_000) as probe:
        create_topic(node.bootstrap, PROBED, 1)
        time.sleep(_SETTLING_S)
        before_mb, before_s = node.resident_mb(), node.cpu_s()
        probe.close()
        empty_percent = node.idle_percent(IDLE_S)
        before_s = node.cpu_s()
        with client_process("connections", node.port, curve.size, 0) as client:
            opened = client.result()
            curve.add("opened", opened["opened_s"], "s")
            curve.add("CPU until all are open", node.cpu_s() - before_s, "s")
            curve.add("memory of one", (node.resident_mb() - before_mb) * 1e6 / curve.size, "bytes")
            curve.add_idle(node.idle_percent(IDLE_S), empty_percent)
            client.next()
            before_s = node.cpu_s()
            client.next()
            curve.add("active: CPU of a request", (node.cpu_s() - before_s) * 1e6 / 40_000, "us")
            curve.add_pause(node)


def connections_in_3_s(curve: SizeOfCurve) -> None:
    """While a producer writes a record each 2 ms: first at another node than it, which shows what the two cores of the
    machine allow, then at the same."""
    with measured_node() as node, measured_node() as another:
        create_topic(node.bootstrap, PROBED, 1)
        with client_process("probe", node.port, 2_000) as probe:
            time.sleep(2)
            probe.next()
            time.sleep(3)
            quiet = probe.next()
            with client_process("connections", another.port, curve.size, 3_000) as client:
                client.result()
                beside = probe.next()
            time.sleep(1)
            probe.next()
            with client_process("connections", node.port, curve.size, 3_000) as client:
                opened = client.result()
                busy = probe.next()
                curve.add("opened", opened["opened_s"], "s")
                curve.add("slowest connection", opened["slowest_s"] * 1000, "ms")
                curve.add("active producer before: p99", percentile(quiet, 0.99), "ms")
                curve.add("active producer while another node opens them: p99", percentile(beside, 0.99), "ms")
                curve.add("active producer meanwhile: p99", percentile(busy, 0.99), "ms")
                probe.next()
            # Their process has ended, and all of them at once.
            time.sleep(2)
            curve.add("active producer while all end: p99", percentile(probe.next(), 0.99), "ms")
            curve.add_pause(node)


def strangers(curve: SizeOfCurve) -> None:
    """Connections that speak no Kafka, and the default `connections.max.idle.ms` replaced by 5 s. As the others, first
    at another node than the producer."""
    idle = {"connections.max.idle.ms": "5000"}
    with measured_node(**idle) as node, measured_node(**idle) as another:
        create_topic(node.bootstrap, PROBED, 1)
        with client_process("probe", node.port, 2_000) as probe:
            time.sleep(2)
            probe.next()
            time.sleep(3)
            quiet = probe.next()
            with client_process("strangers", another.port, curve.size, 10_000) as client:
                client.result()
                client.next()
                beside = probe.next()
            time.sleep(1)
            before_mb = node.resident_mb()
            probe.next()
            with client_process("strangers", node.port, curve.size, 10_000) as client:
                client.result()
                curve.add("memory of one", (node.resident_mb() - before_mb) * 1e6 / curve.size, "bytes")
                closed = client.next()["closed"]
                busy = probe.next()
                curve.add("closed within 10 s", 100 * sum(closed.values()) / curve.size, "%")
                curve.add("active producer before: p99", percentile(quiet, 0.99), "ms")
                curve.add("active producer while another node opens them: p99", percentile(beside, 0.99), "ms")
                curve.add("active producer meanwhile: p99", percentile(busy, 0.99), "ms")
                curve.add_pause(node)


# --- partitions and topics --------------------------------------------------------------------------------------------


def create_partitions(bootstrap: str, count: int, replicas: int = 1) -> None:
    """Topics of 2,500 partitions; requests of one topic."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "socket.timeout.ms": 120_000})
    each = min(PARTITIONS_A_TOPIC, count)
    for number in range(count // each):
        wanted = [NewTopic(f"many-{number}", each, replicas)]
        for future in admin.create_topics(wanted, request_timeout=120, operation_timeout=120).values():
            future.result()


def _restart_cleanly(curve: SizeOfCurve, node: MeasuredNode) -> None:
    stop_s, start_s = node.restart(kill=False)
    curve.add("clean stop", stop_s, "s")
    curve.add("start after it", start_s, "s")


def _kill_and_start(curve: SizeOfCurve, node: MeasuredNode) -> None:
    _, start_s = node.restart(kill=True)
    curve.add("start after a kill", start_s, "s")


def partitions(curve: SizeOfCurve) -> None:
    with measured_node() as node:
        time.sleep(_SETTLING_S)
        empty_percent = node.idle_percent(IDLE_S)
        before_mb, before_s, began_s = node.resident_mb(), node.cpu_s(), time.perf_counter()
        create_partitions(node.bootstrap, curve.size)
        _wait(lambda: node.metric("fenceline_partitions") >= curve.size)
        curve.add("created", time.perf_counter() - began_s, "s")
        curve.add("CPU until all are created", node.cpu_s() - before_s, "s")
        time.sleep(_SETTLING_S)
        curve.add("memory of one", (node.resident_mb() - before_mb) * 1e6 / curve.size, "bytes")
        curve.add_idle(node.idle_percent(IDLE_S), empty_percent)
        curve.add_pause(node)
        _restart_cleanly(curve, node)
        curve.add("memory after it", node.resident_mb(), "MB")
        _kill_and_start(curve, node)
        curve.add("memory after it (kill)", node.resident_mb(), "MB")


def topics_one_by_one(curve: SizeOfCurve) -> None:
    """The last fifth of the topics."""
    with measured_node() as node:
        admin = AdminClient({"bootstrap.servers": node.bootstrap})

        def create(first: int, end: int) -> None:
            for number in range(first, end):
                for future in admin.create_topics([NewTopic(f"one-{number}", 1, 1)]).values():
                    future.result()

        last = curve.size // 5
        create(0, curve.size - last)
        before_s, began_s = node.cpu_s(), time.perf_counter()
        create(curve.size - last, curve.size)
        curve.add("time of one of the last fifth", (time.perf_counter() - began_s) * 1e6 / last, "us")
        curve.add("CPU of one of the last fifth", (node.cpu_s() - before_s) * 1e6 / last, "us")
        curve.add_pause(node)


# --- groups -----------------------------------------------------------------------------------------------------------

_MEMBERS_A_GROUP: Final = 100
_GROUP_CONNECTIONS: Final = 50
_LARGE_SESSION_MS: Final = "600000"


def members(curve: SizeOfCurve) -> None:
    """Groups of the consumer protocol with 100 members each, which subscribe to one topic of 100 partitions."""
    settings = {
        "group.consumer.session.timeout.ms": _LARGE_SESSION_MS,
        "group.consumer.max.session.timeout.ms": _LARGE_SESSION_MS,
    }
    with measured_node(**settings) as node:
        create_topic(node.bootstrap, "shared", _MEMBERS_A_GROUP)
        wait_coordinator(node.bootstrap, GROUP, "group-0")
        time.sleep(_SETTLING_S)
        before_mb = node.resident_mb()
        asyncio.run(_join_and_beat(node, curve, before_mb))
        curve.add_pause(node)


async def _join_and_beat(node: MeasuredNode, curve: SizeOfCurve, before_mb: float) -> None:
    pool = [await connect(node.bootstrap) for _ in range(_GROUP_CONNECTIONS)]
    epochs: dict[int, int] = {}
    owned: dict[int, list[dict[str, Any]]] = {}
    """By member; what it has to report to the coordinator."""

    async def beat(connection: Connection, number: int) -> None:
        epoch = epochs.get(number, 0)
        fields = {
            "group_id": f"group-{number // _MEMBERS_A_GROUP}",
            "member_id": f"member-{number:06}-{'x' * 22}",
            "member_epoch": epoch,
            "instance_id": None,
            "rack_id": None,
            "rebalance_timeout": 300_000 if epoch == 0 else -1,
            "subscribed_topic_names": ["shared"] if epoch == 0 else None,
            "subscribed_topic_regex": None,
            "server_assignor": None,
            "topic_partitions": [] if epoch == 0 else owned.pop(number, None),
        }
        while True:
            answer = await connection.call(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, fields, timeout_ms=REQUEST_TIMEOUT_MS)
            code = ErrorCode(answer.error_code)
            if code in RETRIABLE:
                await asyncio.sleep(STEP_S)
                continue
            assert code is ErrorCode.NONE, code
            break
        epochs[number] = answer.member_epoch
        if answer.assignment is not None:
            given = answer.assignment.topic_partitions
            owned[number] = [{"topic_id": each.topic_id, "partitions": each.partitions} for each in given]

    async def all_beat(numbers: list[int]) -> float:
        """CPU seconds of the node for one."""
        count, before_s = len(numbers), node.cpu_s()

        async def some(connection: Connection) -> None:
            while numbers:
                await beat(connection, numbers.pop())

        await asyncio.gather(*(some(each) for each in pool))
        return (node.cpu_s() - before_s) / count

    began_s = time.perf_counter()
    curve.add("CPU of a join", 1e6 * await all_beat(list(range(curve.size))), "us")
    curve.add("joined", time.perf_counter() - began_s, "s")
    await asyncio.sleep(_SETTLING_S)
    curve.add("memory of one", (node.resident_mb() - before_mb) * 1e6 / curve.size, "bytes")
    sample = [each for each in range(curve.size) if each // _MEMBERS_A_GROUP % max(1, curve.size // 5_000) == 0]
    while owned.keys() & set(sample):
        await all_beat(list(sample))
    curve.add("CPU of a heartbeat", 1e6 * await all_beat(sample * 3), "us")
    for connection in pool:
        connection.close()


_OFFSETS_A_GROUP: Final = 1_000


def offsets(curve: SizeOfCurve) -> None:
    """Groups with 1,000 committed offsets each."""
    with measured_node() as node:
        create_topic(node.bootstrap, "read", _OFFSETS_A_GROUP)
        wait_coordinator(node.bootstrap, GROUP, "group-0")
        time.sleep(_SETTLING_S)
        empty_percent = node.idle_percent(IDLE_S)
        before_mb, before_s = node.resident_mb(), node.cpu_s()
        groups = [f"group-{number}" for number in range(curve.size // _OFFSETS_A_GROUP)]
        asyncio.run(for_each(node.bootstrap, groups, _commit))
        curve.add("CPU of a commit", (node.cpu_s() - before_s) * 1e6 / curve.size, "us")
        _wait(lambda: node.idle_percent(IDLE_S) < empty_percent + 1)  # the log of offsets is compacted
        curve.add("memory of one", (node.resident_mb() - before_mb) * 1e6 / curve.size, "bytes")
        curve.add_idle(node.idle_percent(IDLE_S), empty_percent)
        curve.add_pause(node)
        node.stop()
        began_s = time.perf_counter()
        node.start()
        asyncio.run(_until_read(node.bootstrap, groups[-1]))
        curve.add("start until an offset is read", time.perf_counter() - began_s, "s")
        curve.add_pause(node, "longest pause while they are loaded")
        curve.add("memory after it", node.resident_mb(), "MB")


async def _commit(connection: Connection, group: str) -> None:
    await commit_offsets(connection, group, "read", _OFFSETS_A_GROUP)


async def _until_read(bootstrap: str, group: str) -> None:
    connection = await connect(bootstrap)
    fields = {
        "group_id": group,
        "topics": [{"name": "read", "partition_indexes": [7]}],
        "require_stable": False,
    }
    answer = await until_loaded(connection, ApiKey.OFFSET_FETCH, 7, fields)
    assert answer is not None
    assert answer.topics[0].partitions[0].committed_offset == 1_007, answer
    connection.close()


# --- one partition ----------------------------------------------------------------------------------------------------


def producers(curve: SizeOfCurve) -> None:
    """Idempotent producers that have written one record each into one partition."""
    with measured_node(**{"producer.id.expiration.ms": "86400000"}) as node:
        create_topic(node.bootstrap, PROBED, 1)
        time.sleep(_SETTLING_S)
        before_mb, before_s = node.resident_mb(), node.cpu_s()
        with client_process("producers", node.port, curve.size) as client:
            client.result()
        curve.add("CPU of a first record", (node.cpu_s() - before_s) * 1e6 / curve.size, "us")
        time.sleep(_SETTLING_S)
        curve.add("memory of one", (node.resident_mb() - before_mb) * 1e6 / curve.size, "bytes")
        curve.add_pause(node)
        _restart_cleanly(curve, node)
        _kill_and_start(curve, node)
        assert node.metric("fenceline_producer_ids") == curve.size


def consumers(curve: SizeOfCurve) -> None:
    """Consumers that wait for the next record of one partition."""
    with measured_node() as node:
        create_topic(node.bootstrap, PROBED, 1)
        time.sleep(_SETTLING_S)
        before_mb = node.resident_mb()
        with client_process("consumers", node.port, curve.size) as client:
            client.result()
            curve.add("memory of one", (node.resident_mb() - before_mb) * 1e6 / curve.size, "bytes")
            before_s = node.cpu_s()
            found = client.next()
            rounds = len(found["delivered_ms"])
            curve.add("CPU of a record for one consumer", (node.cpu_s() - before_s) * 1e6 / curve.size / rounds, "us")
            curve.add("a record until the last consumer has it, median", percentile(found["delivered_ms"], 0.5), "ms")
            curve.add_pause(node)


def segments(curve: SizeOfCurve) -> None:
    """One partition, with a segment for each record. An ext4 without journal reuses no inode for a minute after it was
    deleted, and looks at all of them for each new file: the size before this one has deleted some 100,000. If the
    machine has one, set TMPDIR to a file system with a journal."""
    os.sync()
    time.sleep(_INODES_REST_S)
    config = {"segment.ms": "1", "retention.ms": "-1"}
    with measured_node() as node:
        create_topic(node.bootstrap, PROBED, 1, config)
        time.sleep(_SETTLING_S)
        empty_percent = node.idle_percent(IDLE_S)
        before_mb, before_s = node.resident_mb(), node.cpu_s()
        with client_process("segments", node.port, curve.size) as client:
            client.result()
        while _flushed_segments(node.log_dir / f"{PROBED}-0") < curve.size - 1:
            time.sleep(1)
        curve.add("CPU of a segment", (node.cpu_s() - before_s) * 1e6 / curve.size, "us")
        time.sleep(_SETTLING_S)
        curve.add("memory of one", (node.resident_mb() - before_mb) * 1e6 / curve.size, "bytes")
        curve.add_idle(node.idle_percent(IDLE_S), empty_percent)
        curve.add_pause(node)
        _restart_cleanly(curve, node)
        _kill_and_start(curve, node)
        admin = AdminClient({"bootstrap.servers": node.bootstrap})
        began_s = time.perf_counter()
        for future in admin.delete_topics([PROBED]).values():
            future.result()
        curve.add("deleted", time.perf_counter() - began_s, "s")
        time.sleep(_SETTLING_S)
        curve.add_pause(node, "longest pause, start and deletion")


def _flushed_segments(folder: Path) -> int:
    return sum(each.name.endswith(".timeindex") for each in os.scandir(folder))


_INODES_REST_S: Final = 65.0
_GIB: Final = 1 << 30


def retained(curve: SizeOfCurve) -> None:
    """GiB in one partition: sparse segments of 1 GiB, each of one batch. The node is killed."""
    with scratch() as directory, measured_node(data_dir=directory) as node:
        create_topic(node.bootstrap, PROBED, 1, {"retention.ms": "-1"})
        with client_process("segments", node.port, 1) as client:
            client.result()
        node.stop()
        _grow(node.log_dir / f"{PROBED}-0", curve.size)
        _set_recovery_point(node.log_dir, curve.size)
        curve.add("start after a clean stop", node.start(), "s")
        _kill_and_start(curve, node)
        curve.add("memory after it", node.resident_mb(), "MB")
        curve.add_pause(node)


def _grow(folder: Path, count: int) -> None:
    """Replace the segments of a partition, whose log has one record, by `count` of 1 GiB."""
    for each in folder.iterdir():
        if each.suffix in (".log", ".index", ".timeindex", ".snapshot"):
            each.unlink()
    header = bytearray(build_batch([(1_700_000_000_000, None, bytes(0), ())], leader_epoch=0)[:61])
    # A record: its length, attributes, timestamp and offset deltas of 0, no key, the value's length; no headers.
    value_bytes = _GIB - 200
    tail = b"\x00\x00\x00\x01" + _varint(value_bytes)
    body = _varint(len(tail) + value_bytes + 1) + tail
    size_bytes = len(header) + len(body) + value_bytes + 1
    struct.pack_into(">i", header, 8, size_bytes - 12)
    crc = crc32c.crc32c(bytes(header[21:]) + body)
    zeros, left = bytes(1 << 24), value_bytes + 1
    while left:
        piece = min(left, len(zeros))
        crc = crc32c.crc32c(memoryview(zeros)[:piece], crc)
        left -= piece
    struct.pack_into(">I", header, 17, crc)
    for number in range(count):
        struct.pack_into(">q", header, 0, number)
        with (folder / f"{number:020}.log").open("wb") as file:
            file.write(bytes(header) + body)
            file.truncate(size_bytes)


def _varint(value: int) -> bytes:
    value <<= 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _set_recovery_point(log_dir: Path, offset: int) -> None:
    path = log_dir / "recovery-point-offset-checkpoint"
    lines = path.read_text().splitlines()
    path.write_text(
        "\n".join(f"{PROBED} 0 {offset}" if line.startswith(f"{PROBED} 0 ") else line for line in lines) + "\n"
    )


def _wait(is_true: Callable[[], bool], *, wait_s: float = 300) -> None:
    deadline = time.perf_counter() + wait_s
    while not is_true():
        if time.perf_counter() > deadline:
            raise TimeoutError("the benchmark waits in vain")
        time.sleep(0.05)


CURVES: Final[Mapping[str, tuple[tuple[int, ...], Curve]]] = {
    "connections": ((2_450, 4_900, 9_800, 19_600), connections),
    "connections in 3 s": ((2_450, 4_900, 9_800, 19_600), connections_in_3_s),
    "strangers": ((2_400, 4_800, 9_600, 19_200), strangers),
    "partitions": ((12_500, 25_000, 50_000, 100_000), partitions),
    "topics one by one": ((1_250, 2_500, 5_000, 10_000), topics_one_by_one),
    "members": ((6_000, 12_500, 25_000, 50_000), members),
    "committed offsets": ((625_000, 1_250_000, 2_500_000, 5_000_000), offsets),
    "producers": ((12_500, 25_000, 50_000, 100_000), producers),
    "consumers": ((250, 500, 1_000, 2_000), consumers),
    "segments": ((12_500, 25_000, 50_000, 100_000), segments),
    "retained GiB": ((12, 25, 50, 100), retained),
    **scale_ends.CURVES,
    **scale_cluster.CURVES,
    "voters": (scale_voters.SIZES, scale_voters.voters),
}
