"""Topics with `flush.messages=1`: acknowledged records are durable on the disk of a replica."""

from __future__ import annotations

import pytest

from fenceline.testing.sim_disk import SimDisk
from fenceline.testing.simulation.checks import InvariantBroken
from fenceline.testing.simulation.flush_checks import check_durable
from fenceline.testing.simulation.log_reader import StoredBatches
from fenceline.testing.simulation.stage import play
from tests.log.helpers import append, open_log


def test_unflushed_records_are_detected() -> None:
    disk = SimDisk(0)
    disk.mkdir("/data")
    log = open_log(disk)
    for _ in range(2):
        append(log, 3)
        batches = StoredBatches(disk).between(log.segments, 0, log.log_end_offset)
        with pytest.raises(InvariantBroken, match=r"acknowledged the batch at \d of epoch 0 .* \(durability\)"):
            check_durable(disk, log, batches, "n1 rain-0")
        work = log.flush_work()
        assert work is not None
        work.run()
        check_durable(disk, log, batches, "n1 rain-0")


@pytest.mark.parametrize(("scenario", "seed"), [("brokers", 2), ("brokers", 6), ("operations", 1), ("operations", 4)])
def test_nothing_is_acknowledged_before_it_is_flushed(scenario: str, seed: int) -> None:
    outcome = play(seed, scenario, overrides={"flush_each": "1"})
    assert outcome.failure is None, outcome.report()
