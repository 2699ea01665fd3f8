"""Replicas after random histories of leaders: each cuts exactly the difference when it follows a leader."""

from __future__ import annotations

from random import Random

import pytest

from fenceline.log.partition.partition_log import PartitionLog
from fenceline.losses.check import complaints, lost_between, stored_batches
from fenceline.losses.cutting import LogCut, cut_log
from fenceline.losses.receipt import LossCause
from fenceline.records.build import build_batch
from fenceline.replica.follower import FollowerState
from fenceline.testing.sim_disk import SimDisk
from tests.losses.helpers import REPLICA, TOPIC_ID, open_log, receipts_of

from ..replica.histories import MemoryLog, histories


def on_disk(disk: SimDisk, number: int, model: MemoryLog) -> PartitionLog:
    """A record of the model as a batch: the same epoch at the same offset is the same batch in every replica."""
    disk.mkdir(f"/data-{number}")
    log = open_log(disk, f"/data-{number}/rain-3")
    for offset, epoch in enumerate(model.records, model.log_start_offset):
        value = b"%d of %d" % (offset, epoch) * (1 + offset % 7)
        batch = build_batch([(1_000, None, value, ())], base_offset=offset, leader_epoch=epoch)
        log.append_as_follower(memoryview(batch))
    return log


@pytest.mark.parametrize("seed", range(80))
def test_receipts_are_the_difference_of_the_two_logs(seed: int) -> None:
    rng = Random(seed)
    models, last_epoch = histories(rng, 4, rng.randint(2, 12))
    disk = SimDisk(seed)
    logs = [on_disk(disk, number, model) for number, model in enumerate(models)]
    leader = rng.choice(logs)
    leader.assign_epoch(last_epoch + 1)
    for number, log in enumerate(logs):
        if log is leader:
            continue
        before = stored_batches(log)
        state = FollowerState("rain", TOPIC_ID.bytes, 3, last_epoch + 1, log)
        for turn in range(20):
            epoch, end = leader.end_offset_for_epoch(log.latest_epoch)
            if log.latest_epoch < 0 or (epoch == log.latest_epoch and end >= log.log_end_offset):
                break
            duty = state.on_divergence(epoch, end)
            cut = LogCut(duty.offset, False, LossCause.DIVERGENCE, "", REPLICA, 1, last_epoch + 1, 1_000 + turn)
            cut_log(disk, log, cut)
            state.resume()
        lost = lost_between(before, stored_batches(leader))
        assert lost_between(before, stored_batches(log)) == lost, "only records that the leader lacks are cut"
        assert complaints(receipts_of(disk, f"/data-{number}/rain-3"), lost) == []
