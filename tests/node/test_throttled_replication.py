"""A leader that throttles followers, through its real Fetch handler, and settings that change while it runs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from immutables import Map

from fenceline.metadata.image import ConfigResource, ConfigResourceType
from tests.node.desk import TOPIC, Desk, run_story

RATE = "leader.replication.throttled.rate"
REPLICAS = "leader.replication.throttled.replicas"


def configure(desk: Desk, kind: ConfigResourceType, name: str, **values: str) -> None:
    settings = Map({key.replace("_", "."): value for key, value in values.items()})
    configs = desk.image.configs.set(ConfigResource(kind, name), settings)
    desk._apply(desk.image, replace(desk.image, configs=configs))


def throttle(desk: Desk, rate: int, replicas: str = "*", broker: str = "1") -> None:
    configure(desk, ConfigResourceType.BROKER, broker, **{RATE: str(rate)})
    configure(desk, ConfigResourceType.TOPIC, TOPIC, **{REPLICAS: replicas})


def size(desk: Desk, replica_id: int, offset: int) -> int:
    return len(desk.follower_fetched(replica_id, offset).records or b"")


@pytest.mark.parametrize("broker", ["1", ""])
def test_replicas_out_of_sync_are_throttled_and_those_in_sync_are_not(broker: str) -> None:
    """Kafka's ReplicationQuotasTest.shouldThrottleOldSegments and shouldLeaderThrottle."""

    async def story(desk: Desk) -> None:
        throttle(desk, 50, broker=broker)
        desk.lead(5, isr=(1, 2))
        desk.append(4)
        got = size(desk, 3, 0)
        assert got > 50
        assert size(desk, 3, 1) == 0, "the quota is used up"
        assert size(desk, 2, 0) == got, "an in-sync replica is not throttled"
        assert len(desk.fetched(0).records or b"") == 0, "a consumer reads committed records as usual"
        desk.follower_fetched(2, 4)
        assert len(desk.fetched(0).records or b"") > 0, "and is not throttled either"
        desk.clock.ms += 60_000
        assert size(desk, 3, 1) > 0

    run_story(story)


def test_bytes_sent_to_in_sync_replicas_count() -> None:
    async def story(desk: Desk) -> None:
        throttle(desk, 50)
        desk.lead(5, isr=(1, 2))
        desk.append(4)
        assert size(desk, 2, 0) > 50
        assert size(desk, 3, 0) == 0

    run_story(story)


def test_the_fetch_of_a_throttled_follower_still_counts() -> None:
    """Its fetch offset counts, and its fetch waits instead of being retried in a loop."""

    async def story(desk: Desk) -> None:
        throttle(desk, 50)
        desk.lead(5, isr=(1, 2))
        desk.append(4)
        assert size(desk, 3, 0) > 50
        asked = desk.wanted(2, current_leader_epoch=5)
        waiting = desk.fetch(asked, replica_id=3, replica_epoch=103, max_wait_ms=100)
        assert waiting.is_pending
        leader = desk.replica().leader
        assert leader is not None
        assert leader.followers[3].log_end_offset == 2
        assert (await waiting.later()).partitions[0].records in (b"", None)

    run_story(story)


def test_only_the_listed_replicas_are_throttled() -> None:
    async def story(desk: Desk) -> None:
        throttle(desk, 50, replicas="1:1,0:2")
        for index in (0, 1):
            desk.lead(5, isr=(1,), index=index)
            desk.append(4, index=index)
        for _ in range(3):
            assert len(desk.follower_fetched(3, 0, index=0).records or b"") > 0
        assert len(desk.follower_fetched(3, 0, index=1).records or b"") > 0
        assert len(desk.follower_fetched(3, 0, index=1).records or b"") == 0

    run_story(story, partitions=2)


def test_a_removed_throttle_applies_to_no_replica() -> None:
    async def story(desk: Desk) -> None:
        throttle(desk, 50)
        desk.lead(5)
        desk.append(4)
        assert size(desk, 3, 0) > 0
        assert size(desk, 3, 0) == 0
        configure(desk, ConfigResourceType.TOPIC, TOPIC)
        assert size(desk, 3, 0) > 0
        configure(desk, ConfigResourceType.TOPIC, TOPIC, **{REPLICAS: "0:1"})
        assert size(desk, 3, 0) == 0
        configure(desk, ConfigResourceType.BROKER, "1")
        assert size(desk, 3, 0) > 0
        throttle(desk, 50)
        desk.delete_topic()
        assert not desk.replication.throttles.leader.is_active

    run_story(story)


def test_settings_from_before_the_start_apply() -> None:
    async def story(desk: Desk) -> None:
        throttle(desk, 50)
        fresh = desk.new_plane().replication
        assert not fresh.throttles.leader.is_active
        fresh.apply_image()
        assert fresh.throttles.leader.is_active
        assert fresh.throttles.leader.rate == 50

    run_story(story)
