"""Wrong bits where no checksum looks: found by seed 873 of the quorum."""

from __future__ import annotations

import pytest

from fenceline.errors import OperatorError
from fenceline.metadata.records import NoOpRecord
from fenceline.node.metadata_batches import record_batch
from fenceline.node.metadata_log import MetadataLog
from fenceline.testing.sim_disk import SimDisk


class _Disk(SimDisk):
    """Reads give the lowest bit of the second batch's offset wrong, once `is_wrong` is set."""

    is_wrong = False
    at = 0

    def pread(self, fd: int, size_bytes: int, position: int, /) -> bytes:
        content = bytearray(super().pread(fd, size_bytes, position))
        if self.is_wrong and position <= self.at < position + len(content):
            content[self.at - position] ^= 1
        return bytes(content)


def test_a_batch_that_does_not_follow_is_not_taken_in() -> None:
    disk = _Disk(resident=lambda: False)
    disk.mkdir("/data")
    log = MetadataLog.open(disk, "/data", now_ms=0)
    for _ in range(3):
        log.append(record_batch([NoOpRecord()], 25, 0), 1, 0)
        flush = log.begin_flush()
        assert flush is not None
        flush()
        flush.end(None)
    disk.at = log.size_bytes // 3 + 7
    assert log.replay().record_count == 3
    disk.is_wrong = True
    with pytest.raises(OperatorError, match="a batch at offset 0 where 1 was expected"):
        log.replay()
