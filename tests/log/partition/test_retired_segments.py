"""A flush that meets a segment which retention has deleted meanwhile."""

from __future__ import annotations

import errno

import pytest

from fenceline.testing.sim_disk import SimDisk
from tests.losses.helpers import a_disk, open_log, write


@pytest.mark.parametrize("is_retired", [True, False])
def test_indexes_of_a_deleted_segment_are_not_rebuilt(is_retired: bool) -> None:
    """Seed 77 of the scenario `operations`: the flush looked for the batches, and took the partition offline."""
    disk: SimDisk = a_disk()
    log = open_log(disk)
    write(log, 0, 20)
    segment = log.segments[0]
    segment.index = segment.time_index = None
    for suffix in (".index", ".timeindex"):
        if disk.stat(segment.stem + suffix) is not None:
            disk.unlink(segment.stem + suffix)
    disk.unlink(segment.path)
    segment.is_retired = is_retired
    if is_retired:
        segment.save_indexes(durable=True)
    else:
        with pytest.raises(OSError, match=r".") as found:
            segment.save_indexes(durable=True)
        assert found.value.errno == errno.ENOENT
