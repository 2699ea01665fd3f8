"""`fenceline verify` against Kafka's DumpLogSegments, which checks the same checksums; and Spark over segments.

Each command is one process. The rate is bytes of segments per CPU second of the complete command, including its start
and all threads of the JVM. Wall-clock rates are separate figures. BENCH_VERIFY_MB is the size of the segments in
megabytes (default 1,024, for the largest batches).
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.harness import Figures, scratch
from benchmarks.spark import session
from fenceline.ids import TopicPartition
from fenceline.log.core.config import LogConfig
from fenceline.log.core.disk import OsDisk
from fenceline.log.partition.partition_log import PartitionLog
from fenceline.records.build import build_batch
from fenceline.testing.apache_kafka import java_command

_DUMP: Final = "org.apache.kafka.tools.DumpLogSegments"
_RECORD_BYTES: Final = 100
_LOADS: Final = {
    "batches of 16 KB": (160, 1.0),
    "batches of 1 KB": (10, 1.0),
    "batches of 1 record": (1, 0.25),
}
"""By name: records of 100 B per batch, and the fraction of the total size."""
_BYTES: Final = int(os.environ.get("BENCH_VERIFY_MB", "1024")) << 20
_SEGMENT_BYTES: Final = 1 << 26
_PARTITIONS: Final = 2
_MB: Final = 1_000_000


def run(figures: Figures, repeats: int) -> None:
    for load, (records, share) in _LOADS.items():
        with scratch() as root:
            data = root / "data"
            size = sum(
                _fill(data, number, records, int(share * _BYTES) // _PARTITIONS) for number in range(_PARTITIONS)
            )
            segments = sorted(map(str, data.glob("*/*.log")))
            ours = [sys.executable, "-m", "fenceline", "verify", "--json"]
            theirs = java_command(_DUMP, "--files", ",".join(segments))
            for cold in (False, True):
                for _ in range(repeats):
                    _measure(figures, load, "fenceline", [*ours, str(data)], segments, size, cold=cold)
                    _measure(figures, load, "kafka", theirs, segments, size, cold=cold)
            if records > 1:
                for _ in range(repeats):
                    deep = f"{load}, every record"
                    _measure(figures, deep, "fenceline", [*ours, "--deep", str(data)], segments, size)
                    _measure(figures, deep, "kafka", [*theirs, "--deep-iteration"], segments, size)
            copy = root / "copy"
            shutil.copytree(data, copy)
            both = [*segments, *map(str, copy.glob("*/*.log"))]
            for _ in range(repeats):
                command = [*ours, str(data), str(copy)]
                _measure(figures, f"{load}, and replicas compared", "fenceline", command, both, 2 * size)
            shutil.rmtree(copy)
            if load == next(iter(_LOADS)):
                _spark(figures, repeats, root, data, size)
    figures.note(
        "Uncompressed records of 100 B in two partitions with segments of 64 MiB. Cold: the segments are not in the"
        " page cache. Kafka: DumpLogSegments, with --deep-iteration if every record is read; its output is discarded."
        f" {_BYTES >> 20} MiB with batches of 16 KB and 1 KB, a quarter of that with one record."
    )


def _fill(data: Path, partition: int, records: int, total_bytes: int) -> int:
    value = random.Random(partition).randbytes(_RECORD_BYTES - 15)
    log = PartitionLog.open(
        OsDisk(),
        str(data / f"bench-{partition}"),
        topic_partition=TopicPartition("bench", partition),
        topic_id=None,
        config=LogConfig(segment_bytes=_SEGMENT_BYTES),
        now_ms=1_000_000,
    )
    made = build_batch([(1_000_000 + number, b"key", value, ()) for number in range(records)])
    while log.size_bytes < total_bytes:
        log.append_as_leader(memoryview(bytearray(made)), leader_epoch=0, now_ms=1_000_000)
    size = log.size_bytes
    log.close()
    return size


def _measure(
    figures: Figures,
    load: str,
    side: str,
    command: Sequence[str],
    segments: Sequence[str],
    size: int,
    *,
    cold: bool = False,
) -> None:
    for path in segments:
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED if cold else os.POSIX_FADV_NORMAL)
        while not cold and os.read(fd, 1 << 22):
            pass
        os.close(fd)
    before, started = os.times(), time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    wall, after = time.perf_counter() - started, os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    where = f"{load}, cold" if cold else load
    figures.add(f"{where}: a second of CPU", side, size / _MB / cpu, "MB")
    figures.add(f"{where}: a second", side, size / _MB / wall, "MB")


def _spark(figures: Figures, repeats: int, root: Path, data: Path, size: int) -> None:
    """Wall-clock rates on both cores; the first run of each job is a warm-up."""
    spark = session(root)

    def read(**options: str) -> Any:
        return spark.read.format("fenceline_segments").options(**options).load(str(data))

    jobs: dict[str, Callable[[], object]] = {
        "batches with their checks": lambda: read().where("not crc_ok").count(),
        "findings": lambda: read(mode="findings").count(),
        "records into noop": lambda: read(mode="records").write.format("noop").mode("overwrite").save(),
    }
    try:
        for name, job in jobs.items():
            for attempt in range(1 + repeats):
                started = time.perf_counter()
                job()
                if attempt:
                    elapsed = time.perf_counter() - started
                    figures.add(f"Spark on 2 cores, {name}: a second", "fenceline", size / _MB / elapsed, "MB")
    finally:
        spark.stop()
