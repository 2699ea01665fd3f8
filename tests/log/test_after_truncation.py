"""Look-ups after a truncation: LogOffsetTest.testFetchOffsetByTimestampForMaxTimestampAfterTruncate and its like.

Rules: list_offsets.md L18, L20-L22; `epochs.md E13`, `E15`, `E19`.
"""

from __future__ import annotations

import pytest

from fenceline.testing.sim_disk import SimDisk
from tests.log.helpers import SMALL, append, open_log


@pytest.mark.parametrize("anew", [False, True], ids=["in memory", "reopened"])
@pytest.mark.parametrize(("cut", "largest"), [(40, (20, 2_000)), (31, (20, 2_000)), (20, (19, 190)), (7, (6, 60))])
def test_max_timestamp_is_that_of_a_remaining_record(
    disk: SimDisk, cut: int, largest: tuple[int, int], anew: bool
) -> None:
    """L20, L22: timestamps rise, except that of offset 20, which is far ahead."""
    log = open_log(disk, config=SMALL)
    for number in range(40):
        append(log, epoch=number // 10, timestamp=2_000 if number == 20 else 10 * number)
    log.truncate_to(cut)
    if anew:
        log.close()
        log = open_log(disk, config=SMALL, clean=True)
    hit = log.offset_of_max_timestamp()
    assert hit is not None
    assert (hit.offset, hit.timestamp, hit.leader_epoch) == (*largest, largest[0] // 10)
    assert log.offset_for_timestamp(largest[1] + 1) is None
    found = log.offset_for_timestamp(10 * (cut - 1))
    assert found is not None
    assert found.offset == min(cut - 1, 20)
    assert log.end_offset_for_epoch(log.latest_epoch) == (log.latest_epoch, cut)


def test_emptied_log_has_no_timestamps(disk: SimDisk) -> None:
    """L20, E19."""
    log = open_log(disk, config=SMALL)
    for number in range(9):
        append(log, timestamp=10 * number)
    log.truncate_fully_and_start_at(50)
    assert log.offset_of_max_timestamp() is None
    assert log.offset_for_timestamp(0) is None
    append(log, timestamp=7)
    hit = log.offset_of_max_timestamp()
    assert hit is not None
    assert (hit.offset, hit.timestamp) == (50, 7)
