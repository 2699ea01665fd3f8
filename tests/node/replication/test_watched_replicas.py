"""Periodic work visits the replicas that it may have work for, and no others: an idle partition costs nothing.

Rules: `epochs.md E38`.
"""

from __future__ import annotations

from tests.node.desk import RECOVERING, TOPIC, Desk, run_story

LAG_MS = 30_000


def _watched(desk: Desk) -> set[int]:
    return {index for topic, index in desk.partitions.in_service.watched if topic == TOPIC}


def _idle_leader(desk: Desk, index: int = 0) -> None:
    """Without records, with all followers in sync, after a check of the in-sync sets."""
    desk.lead(5, isr=(1, 2, 3), index=index)
    for follower in (2, 3):
        desk.follower_fetched(follower, 0, index=index)
    desk.replication.shrink_isrs()


def test_leader_without_records_and_with_all_followers_in_sync_is_not_watched() -> None:
    async def story(desk: Desk) -> None:
        desk.lead(5, isr=(1, 2, 3))
        desk.follower_fetched(2, 0)
        desk.replication.shrink_isrs()
        assert _watched(desk) == {0}, "a follower has not fetched yet"
        desk.follower_fetched(3, 0)
        assert _watched(desk) == {0}
        desk.replication.shrink_isrs()
        assert _watched(desk) == set()

    run_story(story)


def test_follower_that_has_never_fetched_is_removed_from_the_in_sync_set() -> None:
    async def story(desk: Desk) -> None:
        desk.lead(5, isr=(1, 2, 3))
        desk.follower_fetched(2, 0)
        desk.replication.shrink_isrs()
        desk.clock.ms += LAG_MS + 1
        desk.replication.shrink_isrs()
        leader = desk.replica().leader
        assert leader is not None
        assert leader.proposal is not None
        assert [each.broker_id for each in leader.proposal.members] == [1, 2]

    run_story(story)


def test_first_record_makes_it_watched_for_good() -> None:
    async def story(desk: Desk) -> None:
        _idle_leader(desk)
        assert _watched(desk) == set()
        desk.append()
        assert _watched(desk) == {0}
        for follower in (2, 3):
            desk.follower_fetched(follower, 1)
        desk.replication.shrink_isrs()
        assert _watched(desk) == {0}, "its log has files"
        desk.append()
        desk.clock.ms += LAG_MS + 1
        desk.replication.shrink_isrs()
        leader = desk.replica().leader
        assert leader is not None
        assert leader.proposal is not None

    run_story(story)


def test_change_of_the_partition_or_of_its_config_makes_it_watched() -> None:
    async def story(desk: Desk) -> None:
        for index in (0, 1, 2):
            _idle_leader(desk, index)
        assert _watched(desk) == set()
        desk.tell(1, isr=(1, 2))
        assert _watched(desk) == {1}
        desk.replication.shrink_isrs()
        assert _watched(desk) == {1}, "not all replicas are in sync"
        desk.partitions.reload_config("another")
        assert _watched(desk) == {1}
        desk.partitions.reload_config(TOPIC)
        assert _watched(desk) == {0, 1, 2}
        desk.replication.shrink_isrs()
        desk.partitions.reload_config()
        assert _watched(desk) == {0, 1, 2}

    run_story(story, partitions=3)


def test_leader_that_recovers_or_has_too_few_replicas_is_watched() -> None:
    async def story(desk: Desk) -> None:
        desk.topic_settings["min.insync.replicas"] = "4"
        desk.partitions.reload_config(TOPIC)
        _idle_leader(desk)
        assert _watched(desk) == {0}
        desk.topic_settings["min.insync.replicas"] = "1"
        desk.partitions.reload_config(TOPIC)
        leader = desk.lead(5, replicas=(1,), isr=(1,), leader_recovery_state=RECOVERING, index=1).leader
        assert leader is not None
        leader.proposal = None  # as after a rejection: RECOVERED is to be proposed again
        desk.replication.shrink_isrs()
        assert _watched(desk) == {1}

    run_story(story, partitions=2)


def test_follower_without_records_is_not_watched() -> None:
    async def story(desk: Desk) -> None:
        _idle_leader(desk)
        desk.follow(6)
        assert _watched(desk) == {0}
        desk.replication.shrink_isrs()
        assert _watched(desk) == set()
        desk.lead(7, isr=(1, 2, 3))
        assert _watched(desk) == {0}

    run_story(story)


def test_replica_that_is_taken_out_of_service_is_not_watched_and_the_next_one_is() -> None:
    async def story(desk: Desk) -> None:
        before = desk.lead(5, isr=(1, 2, 3))
        desk.append()
        where = before.topic_partition
        desk.partitions.set_offline(where, "a test")
        desk.partitions.in_service.watch(where)
        assert _watched(desk) == set()
        assert desk.partitions.reserve(where)
        desk.partitions.release(where, is_back=True)
        assert desk.replica() is not before
        desk.partitions.in_service.unwatch(before)
        assert _watched(desk) == {0}

    run_story(story)
