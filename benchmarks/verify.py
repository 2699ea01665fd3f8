"""`fenceline verify` over segments, beside Kafka's DumpLogSegments, which checks the same checksums.

Both are commands of one process: the rate is bytes of segments over the CPU seconds of the whole command, its start
included, so that cores that a JVM takes for itself count as well. Seconds by the clock are figures of their own.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.harness import Figures, scratch
from fenceline.ids import TopicPartition
from fenceline.log.config import LogConfig
from fenceline.log.disk import OsDisk
from fenceline.log.partition_log import PartitionLog
from fenceline.records.build import build_batch
from fenceline.testing.apache_kafka import java_command

_DUMP: Final = "org.apache.kafka.tools.DumpLogSegments"
_RECORD_BYTES: Final = 100
_LOADS: Final = {
    "batches of 16 KB": (160, 1 << 30),
    "batches of 1 KB": (10, 1 << 29),
    "batches of 1 record": (1, 1 << 27),
}
"""By name: records of 100 B in a batch, and bytes of all segments."""
_SEGMENT_BYTES: Final = 1 << 28
_MB: Final = 1_000_000


def run(figures: Figures, repeats: int) -> None:
    for load, (records, total_bytes) in _LOADS.items():
        with scratch() as root:
            directory = root / "bench-0"
            size = _fill(directory, records, total_bytes)
            segments = sorted(map(str, directory.glob("*.log")))
            ours = [sys.executable, "-m", "fenceline", "verify", "--json", str(directory)]
            theirs = java_command(_DUMP, "--files", ",".join(segments))
            for cold in (False, True):
                for _ in range(repeats):
                    _measure(figures, load, "fenceline", ours, segments, size, cold=cold)
                    _measure(figures, load, "kafka", theirs, segments, size, cold=cold)
            if records > 1:
                for _ in range(repeats):
                    _measure(figures, f"{load}, every record", "fenceline", [*ours, "--deep"], segments, size)
                    deep = [*theirs, "--deep-iteration"]
                    _measure(figures, f"{load}, every record", "kafka", deep, segments, size)
    figures.note(
        "Uncompressed records of 100 B in segments of 256 MiB. Cold: the segments have left the page cache. Kafka:"
        " DumpLogSegments, with --deep-iteration where every record is read; its output is thrown away."
    )


def _fill(directory: Path, records: int, total_bytes: int) -> int:
    value = random.Random(7).randbytes(_RECORD_BYTES - 15)
    log = PartitionLog.open(
        OsDisk(),
        str(directory),
        topic_partition=TopicPartition("bench", 0),
        topic_id=None,
        config=LogConfig(segment_bytes=_SEGMENT_BYTES),
        now_ms=1_000_000,
    )
    made = build_batch([(1_000_000 + number, b"key", value, ()) for number in range(records)])
    while log.size_bytes < total_bytes:
        log.append_as_leader(memoryview(made), leader_epoch=0, now_ms=1_000_000)
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
