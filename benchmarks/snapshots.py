"""Metadata snapshots: generation during a running event loop, loading at start, and the memory of an image.

Each size is measured in a separate process, `python -m benchmarks.snapshots PARTITIONS`, which prints JSON.
"""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from uuid import UUID

import psutil

from benchmarks.harness import Figures, scratch
from fenceline.log.core.disk import OsDisk
from fenceline.metadata.delta import MetadataDelta
from fenceline.metadata.image import EMPTY_IMAGE, MetadataImage, PartitionImage
from fenceline.metadata.partition_values import PartitionEncoder
from fenceline.metadata.records import FeatureLevelRecord, TopicRecord, encode_record
from fenceline.node.metadata.batches import SnapshotBatches
from fenceline.node.metadata.metadata_log import DIRECTORY_NAME, MetadataLog
from fenceline.node.metadata.snapshot_files import verify_snapshot
from fenceline.quorum.log_view import SnapshotId

SIZES = (100_000, 1_000_000)
PARTITIONS_EACH = 10
BROKERS = 6
REPLICAS = 3
_TICK_S = 0.001
_EPOCH = 1


def run(figures: Figures, repeats: int) -> None:
    for size in SIZES:
        for _ in range(repeats if size == SIZES[0] else 1):
            done = subprocess.run(
                [sys.executable, "-m", __spec__.name, str(size)], capture_output=True, text=True, check=True
            )
            for figure, (value, unit) in json.loads(done.stdout).items():
                figures.add(f"{size} partitions: {figure}", "fenceline", value, unit)
    figures.note(
        "Generated: encoded, written, synced and renamed by a thread while the loop runs a 1 ms timer; the longest"
        " pause is the longest time between two ticks. Loaded: opening the directory and replaying the snapshot."
        " Memory: resident memory of the image per partition; three replicas, six brokers."
    )


def values(size: int) -> Iterator[bytes]:
    """Encoded records of `size` partitions, ten per topic."""
    yield encode_record(FeatureLevelRecord("metadata.version", 30), 30)
    encode = PartitionEncoder(30).encode
    directories = tuple(UUID(int=900 + broker) for broker in range(BROKERS))
    for number in range(size // PARTITIONS_EACH):
        topic = UUID(int=(number + 1) * 0x9E3779B97F4A7C15F39CC060)
        yield encode_record(TopicRecord(f"topic-{number:06}", topic), 30)
        for index in range(PARTITIONS_EACH):
            brokers = tuple((number + index + step) % BROKERS for step in range(REPLICAS))
            replicas = tuple(broker + 1 for broker in brokers)
            partition = PartitionImage(
                replicas,
                replicas,
                replicas[0],
                number % 7,
                number % 11,
                directories=tuple(directories[b] for b in brokers),
            )
            yield encode(topic, topic.bytes, index, partition)


def image_of(size: int) -> MetadataImage:
    delta = MetadataDelta(EMPTY_IMAGE)
    for value in values(size):
        delta.replay_value(value)
    return delta.build(size - 1, _EPOCH)[0]


async def generate(log: MetadataLog, image: MetadataImage) -> tuple[float, float]:
    """Seconds of the snapshot's generation, and the longest pause of the loop meanwhile in ms."""
    loop = asyncio.get_running_loop()
    longest_s = 0.0
    last = time.perf_counter()
    ticking: asyncio.TimerHandle

    def tick() -> None:
        nonlocal longest_s, last, ticking
        now = time.perf_counter()
        longest_s = max(longest_s, now - last)
        last = now
        ticking = loop.call_later(_TICK_S, tick)

    ticking = loop.call_later(_TICK_S, tick)
    await asyncio.sleep(0.1)
    longest_s = 0.0
    batches = SnapshotBatches(image, now_ms=1, last_log_timestamp_ms=1, kraft_version=0, voters=())
    started = time.perf_counter()
    snapshot = SnapshotId(image.offset + 1, image.epoch)
    await loop.run_in_executor(None, log.write_snapshot, snapshot, batches)
    took_s = time.perf_counter() - started
    ticking.cancel()
    return took_s, longest_s * 1000


def measure(size: int) -> dict[str, tuple[float, str]]:
    process = psutil.Process()
    image_of(1000)
    gc.collect()
    before = process.memory_info().rss
    image = image_of(size)
    gc.collect()
    found = {"memory of the image": ((process.memory_info().rss - before) / size, "bytes a partition")}
    # As a node does after its start: exclude permanent objects from garbage collection.
    gc.freeze()
    with scratch() as root:
        log = MetadataLog.open(OsDisk(), str(root), now_ms=0)
        took_s, pause_ms = asyncio.run(generate(log, image))
        found["snapshot generated"] = (took_s, "s")
        found["longest pause of the loop meanwhile"] = (pause_ms, "ms")
        snapshot = SnapshotId(image.offset + 1, image.epoch)
        path = root / DIRECTORY_NAME / snapshot.file_name
        found["size of the snapshot"] = (path.stat().st_size / 1e6, "MB")
        log.close()
        del image
        started = time.perf_counter()
        verify_snapshot(OsDisk(), str(path), snapshot)
        found["snapshot verified, as after a download"] = (time.perf_counter() - started, "s")
        started = time.perf_counter()
        replayed = MetadataLog.open(OsDisk(), str(root), now_ms=0).replay()
        found["snapshot loaded at start"] = (time.perf_counter() - started, "s")
        assert replayed.snapshot == snapshot
        assert sum(len(topic.partitions) for topic in replayed.image.topics_by_id.values()) == size
    return found


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]))))
