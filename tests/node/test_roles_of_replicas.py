"""What a replica takes from the metadata image, and from its own disk, when its role changes.

The cases of PartitionTest about becoming leader and follower. Rules: `epochs.md E3`, `E17`, `E23`, `E33`, `E41`, `E65`.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from immutables import Map

from fenceline.errors import ErrorCode
from fenceline.log.core.errors import StorageError
from fenceline.metadata.image import LeaderRecoveryState
from fenceline.records.batch import iter_headers
from tests.node.desk import TOPIC, Desk, run_story, state

NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_leader_records_its_epoch_at_its_log_end_before_any_append() -> None:
    """testMakeLeaderUpdatesEpochCache; E17: followers learn of it though no record has it."""

    async def story(desk: Desk) -> None:
        desk.follow(4)
        desk.copied(3, epoch=4, high_watermark=3)
        replica = desk.lead(7)
        assert replica.log.epochs.entries == ((4, 0), (7, 3))
        end = await desk.epoch_end(4, current=7)
        assert (end.leader_epoch, end.end_offset) == (4, 3)
        end = await desk.epoch_end(7, current=7)
        assert (end.leader_epoch, end.end_offset) == (7, 3)
        desk.append(2)
        assert replica.log.epochs.entries == ((4, 0), (7, 3))

    run_story(story)


@pytest.mark.parametrize("version", [4, 10, 11, 12, 17])
@pytest.mark.parametrize("with_epoch", [False, True])
def test_a_follower_serves_newer_consumers_and_no_replica(version: int, with_epoch: bool) -> None:
    """testReplicaFetchToFollower, E3: a replica must fetch from the leader, whatever version it uses."""

    async def story(desk: Desk) -> None:
        desk.follow(5)
        desk.copied(3, epoch=5, high_watermark=3)
        epoch = {"current_leader_epoch": 5} if with_epoch and version >= 9 else {}
        consumer = desk.fetched(0, version=version, **epoch)
        assert consumer.error_code == (0 if version >= 11 else NOT_LEADER)
        if consumer.error_code == 0:
            assert sum(1 for _ in iter_headers(consumer.records or b"")) == 3
        replica = desk.fetched(0, version=version, replica_id=3, replica_epoch=103, **epoch)
        assert replica.error_code == NOT_LEADER

    run_story(story)


def test_an_update_in_the_same_epoch_keeps_epoch_start_and_followers() -> None:
    """testDoNotUpdateEpochStartOffsetIfLeaderEpochIsNotBumped, testDoNotResetReplicaState...; E33."""

    async def story(desk: Desk) -> None:
        desk.lead(5, isr=(1, 2))
        desk.append(4)
        desk.follower_fetched(2, 3)
        leader = desk.replica().leader
        assert leader is not None
        desk.tell(isr=(1, 2, 3))
        assert desk.replica().leader is leader
        assert (leader.epoch_start_offset, leader.followers[2].log_end_offset) == (0, 3)
        desk.lead(6, isr=(1, 2, 3))
        again = desk.replica().leader
        assert again is not None
        assert (again.epoch_start_offset, again.followers[2].log_end_offset) == (4, 3)

    run_story(story)


@pytest.mark.parametrize("role", ["leader", "follower"])
def test_applying_an_image_twice_changes_nothing(role: str) -> None:
    """testIgnoreLeaderPartitionStateChangeWithOlderPartitionEpoch, ...Follower; E33.

    Here partition changes come from one log, in its order; only a response of the controller can be late
    (`test_isr_changes`), or a change that waited for a truncation.
    """

    async def story(desk: Desk) -> None:
        (desk.lead if role == "leader" else desk.follow)(5, isr=(1, 2))
        replica = desk.replica()
        before = replica.leader, replica.leader_epoch
        told_again = state(desk.image)
        desk.partitions._role_of.apply(replica, told_again)
        assert (replica.leader, replica.leader_epoch) == before
        older = told_again._replace(isr=(1,), partition_epoch=told_again.partition_epoch - 1)
        desk.partitions._role_of.apply(replica, older)
        assert (replica.leader, replica.leader_epoch) == before
        if replica.leader is not None:
            assert replica.leader.isr == {1, 2}

    run_story(story)


def test_a_change_during_truncation_is_applied_afterwards() -> None:
    """E23: whatever happened to the partition meanwhile; the thread owns the log until it ends."""

    async def story(desk: Desk) -> None:
        replica = desk.follow(5)
        desk.copied(4, epoch=5)
        replica.is_being_cut = True
        desk.lead(6)
        assert not replica.is_leader
        assert desk.produced().responses[0].partition_responses[0].error_code == NOT_LEADER
        replica.log.truncate_to(2)
        replica.is_being_cut = False
        desk.partitions.cut_ended(replica)
        assert replica.leader is not None
        assert (replica.leader_epoch, replica.leader.epoch_start_offset) == (6, 2)
        assert replica.log.epochs.entries == ((5, 0), (6, 2))

    run_story(story)


@pytest.mark.parametrize(("isr", "high_watermark"), [((1,), 5), ((1, 2), 3)])
def test_a_leader_starts_with_the_checkpointed_high_watermark(isr: tuple[int, ...], high_watermark: int) -> None:
    """testUseCheckpointToInitializeHighWatermark; E41, L38: a single replica commits all records at once."""

    async def story(desk: Desk) -> None:
        desk.follow(4)
        desk.copied(5, epoch=4, high_watermark=3)
        desk.lead(5, isr=isr)
        assert desk.replica().high_watermark == high_watermark
        found: Any = await desk.list_offset(-1)
        blocked = high_watermark < 5
        assert found.error_code == (ErrorCode.OFFSET_NOT_AVAILABLE if blocked else 0)

    run_story(story)


def test_a_leader_that_becomes_follower_drops_its_leader_state() -> None:
    """testMakeFollower...; E33, E65: it returns no end offset, appends nothing, and remembers no follower."""

    async def story(desk: Desk) -> None:
        desk.lead(5, isr=(1, 2))
        desk.append(2)
        desk.follower_fetched(2, 2)
        desk.follow(6)
        assert desk.replica().leader is None
        assert (await desk.list_offset(-1)).error_code == NOT_LEADER
        desk.lead(7, isr=(1, 2))
        leader = desk.replica().leader
        assert leader is not None
        assert (leader.followers[2].log_end_offset, leader.epoch_start_offset) == (-1, 2)

    run_story(story)


@pytest.mark.parametrize("comes_again", [False, True])
def test_a_replica_removed_during_truncation_is_deleted_when_the_thread_ends(comes_again: bool) -> None:
    """Otherwise the thread would continue in the files of the next topic of that name."""

    async def story(desk: Desk) -> None:
        desk.follow(4)
        desk.copied(3, epoch=4, high_watermark=3)
        old, first = desk.replica(), desk.image
        old.is_being_cut = True
        desk.delete_topic()
        assert old.is_leaving
        assert "rain-0" in desk.disk.listdir("/data")
        if comes_again:
            topic = replace(first.topics_by_name[TOPIC], id=UUID(int=4712))
            after = replace(first, topics_by_name=Map({TOPIC: topic}), topics_by_id=Map({topic.id: topic}))
            desk._apply(desk.image, after)
            assert desk.partitions.get(TOPIC, 0) is None
        assert old.log.log_end_offset == 3
        assert desk.log_dirs.first.open_logs
        old.is_being_cut = False
        desk.partitions.cut_ended(old)
        put_away = [name for name in desk.disk.listdir("/data") if name.endswith("-delete")]
        assert len(put_away) == 1
        assert not comes_again or desk.replica().log.log_end_offset == 0
        assert (desk.partitions.get(TOPIC, 0) is not None) == comes_again

    run_story(story)


@pytest.mark.parametrize("fails", [False, True])
def test_a_replica_removed_during_a_flush_is_deleted_when_the_flush_ends(fails: bool) -> None:
    """`operations`, seed 9200933: the flush of a deleted topic wrote its topic id and its epochs into the directory of
    the next topic of that name, which the next start set aside.
    """

    async def story(desk: Desk) -> None:
        desk.follow(4)
        desk.copied(3, epoch=4, high_watermark=3)
        old, first = desk.replica(), desk.image
        work = old.log.flush_work()
        assert work is not None
        desk.delete_topic()
        topic = replace(first.topics_by_name[TOPIC], id=UUID(int=4712))
        after = replace(first, topics_by_name=Map({TOPIC: topic}), topics_by_id=Map({topic.id: topic}))
        desk._apply(desk.image, after)
        assert desk.partitions.get(TOPIC, 0) is None
        if fails:
            desk.disk.fail("fsync")
            with pytest.raises(StorageError) as caught:
                work()
            desk.disk.heal()
            work.fail(caught.value)
        else:
            work.run()
        desk.partitions.thread_ended(old)
        assert desk.replica().log.log_end_offset == 0
        desk.copied(2, epoch=4, high_watermark=2)
        assert desk.log_dirs.first.topic_id_of("/data/rain-0") == topic.id

    run_story(story)


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_replica_that_went_offline_during_a_flush_waits_for_its_end(is_deleted: bool) -> None:
    """Deletion and reopening of an offline partition would race with the thread that still used the log."""

    async def story(desk: Desk) -> None:
        desk.follow(4)
        desk.copied(3, epoch=4, high_watermark=3)
        old, first = desk.replica(), desk.image
        work = old.log.flush_work()
        assert work is not None
        desk.partitions.set_offline(old.topic_partition, "the disk is bad")
        if is_deleted:
            desk.delete_topic()
            topic = replace(first.topics_by_name[TOPIC], id=UUID(int=4712))
            after = replace(first, topics_by_name=Map({TOPIC: topic}), topics_by_id=Map({topic.id: topic}))
            desk._apply(desk.image, after)
            assert desk.partitions.get(TOPIC, 0) is None
        else:
            assert not desk.partitions.reserve(old.topic_partition)
        assert "rain-0" in desk.disk.listdir("/data")
        vacated = asyncio.ensure_future(desk.partitions.vacated({TOPIC}, 60))
        await asyncio.sleep(0)
        assert vacated.done() != is_deleted
        work.run()
        desk.partitions.thread_ended(old)
        await asyncio.wait_for(vacated, 60)
        if is_deleted:
            assert desk.replica().log.log_end_offset == 0
        else:
            assert desk.partitions.reserve(old.topic_partition)

    run_story(story)


def test_the_first_epoch_without_unclean_elections_is_known() -> None:
    """As far as each change of the partition was seen; a skipped change may have been an unclean election."""

    async def story(desk: Desk) -> None:
        replica = desk.follow(4, partition_epoch=10)
        assert replica.clean_since == 4, "earlier leaders are unknown"
        desk.follow(5, leader=3)
        desk.lead(6)
        desk.follow(7)
        assert replica.clean_since == 4
        desk.follow(8, leader=3, leader_recovery_state=LeaderRecoveryState.RECOVERING)
        assert replica.clean_since == 8, "the records of epoch 8 are those of the new history"
        desk.tell(leader_recovery_state=LeaderRecoveryState.RECOVERED)
        desk.follow(9)
        assert replica.clean_since == 8
        desk.follow(11, partition_epoch=replica_epoch(desk) + 2)
        assert replica.clean_since == 11, "a change was not seen"
        replica.is_being_cut = True
        desk.follow(12, leader=3)
        replica.is_being_cut = False
        desk.follow(13)
        assert replica.clean_since == 11

    def replica_epoch(desk: Desk) -> int:
        return desk.image.topics_by_name[TOPIC].partitions[0].partition_epoch

    run_story(story)
