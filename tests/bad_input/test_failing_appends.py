"""A disk that fails during a leader's append: the producer gets an error, the log ends at a batch, others continue."""

from __future__ import annotations

import errno
import os
from typing import Any

import pytest

from fenceline.errors import ErrorCode
from fenceline.node.api.produce import producing
from fenceline.node.replication import replicas
from fenceline.node.storage import storage_trouble
from fenceline.records.batch import iter_headers
from fenceline.testing.sim_disk import SimDisk
from tests.node.desk import TOPIC, Desk, run_story

FAILED = f"{TOPIC}-0/{0:020d}.log"


@pytest.fixture(params=["compiled", "python"], autouse=True)
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "python":
        monkeypatch.setattr(producing, "_answer_plain", None)


class FailingWrites:
    """Writes of partition 0 fail after 30 bytes, as long as `number` is set."""

    def __init__(self, disk: SimDisk) -> None:
        self.number = 0
        self._disk = disk
        self._write = disk.write
        disk.write = self.write  # type: ignore[method-assign]

    def write(self, fd: int, content: Any, /) -> int:
        path = self._disk._paths[fd]
        if not self.number or not path.endswith(FAILED):
            return self._write(fd, content)
        self._write(fd, memoryview(content)[:30])
        raise OSError(self.number, os.strerror(self.number), path)


def outcome(desk: Desk, index: int, acks: int = 1) -> tuple[int, int]:
    (partition,) = desk.produced(index=index, acks=acks).responses[0].partition_responses
    return partition.error_code, partition.base_offset


def offsets(desk: Desk, index: int) -> list[int]:
    return [header.base_offset for header in iter_headers(desk.fetched(0, index=index).records or b"")]


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_partly_written_batch_is_truncated(number: int) -> None:
    async def story(desk: Desk) -> None:
        trouble = FailingWrites(desk.disk)
        for index in (0, 1):
            desk.lead(5, index=index)
            assert outcome(desk, index) == (0, 0)
        path = f"{desk.replica().log.directory}/{0:020d}.log"
        whole = desk.disk.peek(path)
        trouble.number = number
        for attempt in (1, 2, 3):
            assert outcome(desk, 0) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
            assert outcome(desk, 1) == (0, attempt)
            assert desk.disk.peek(path) == whole
        assert desk.replica().log.log_end_offset == desk.replica().high_watermark == 1
        assert offsets(desk, 0) == [0]
        assert offsets(desk, 1) == [0, 1, 2, 3]
        trouble.number = 0
        assert outcome(desk, 0) == (0, 1)
        assert offsets(desk, 0) == [0, 1]

    run_story(story, partitions=2)


def test_partly_written_batch_that_cannot_be_truncated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The partition accepts no appends until a restart truncates the torn end; complete batches are still readable."""
    lines: list[tuple[str, dict[str, Any]]] = []
    for module in (storage_trouble, replicas):
        monkeypatch.setattr(
            module.log.__class__, "error", lambda self, event, **more: lines.append((event, more)), raising=True
        )

    async def story(desk: Desk) -> None:
        trouble = FailingWrites(desk.disk)
        for index in (0, 1):
            desk.lead(5, index=index)
            assert outcome(desk, index) == (0, 0)
        trouble.number = errno.EIO
        desk.disk.fail("truncate", FAILED)
        assert outcome(desk, 0)[0] == ErrorCode.KAFKA_STORAGE_ERROR
        trouble.number = 0
        desk.disk.heal()
        for attempt in (1, 2):
            assert outcome(desk, 0)[0] == ErrorCode.KAFKA_STORAGE_ERROR, "the bytes past its end are unknown"
            assert outcome(desk, 1) == (0, attempt)
        assert offsets(desk, 0) == [0]

    run_story(story, partitions=2)
    ((event, more),) = lines  # once, not for every record
    assert event == "records rejected"
    assert "the partition is offline for writes until the node is restarted" in more["reason"]


def test_crash_during_an_append() -> None:
    """The machine stops before the torn end is truncated: the next start ends the log at the last complete batch."""
    from fenceline.ids import TopicPartition
    from fenceline.log.core.config import LogConfig
    from fenceline.log.partition.partition_log import PartitionLog

    async def story(desk: Desk) -> None:
        trouble = FailingWrites(desk.disk)
        desk.lead(5)
        assert outcome(desk, 0) == (0, 0)
        log = desk.replica().log
        trouble.number = errno.EIO
        desk.disk.fail("truncate", FAILED)
        assert outcome(desk, 0)[0] == ErrorCode.KAFKA_STORAGE_ERROR
        desk.disk.heal()
        size = log.size_bytes
        assert len(desk.disk.peek(f"{log.directory}/{0:020d}.log") or b"") == size + 30
        log.close(clean=False)
        again = PartitionLog.open(
            desk.disk,
            log.directory,
            topic_partition=TopicPartition(TOPIC, 0),
            topic_id=desk.topic_id,
            config=LogConfig(),
            now_ms=0,
        )
        assert (again.log_end_offset, again.size_bytes) == (1, size)
        assert again.recovery is not None
        assert again.recovery.torn_bytes == 30

    run_story(story)
