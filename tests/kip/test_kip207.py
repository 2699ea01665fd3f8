"""KIP-207, sentence by sentence: end offsets returned to clients never decrease, even across leader changes.

`§` names the section of the KIP, a number such as L11 the rule of `docs/rules/list_offsets.md`. Where released Kafka
differs from the KIP's text, the test names the behaviour that applies. The KIP's client side (retry, no refresh of
metadata) is tested in `tests/client`.
"""

from __future__ import annotations

import pytest

from fenceline.errors import ErrorCode
from fenceline.wire.apis import ApiKey
from tests.node.desk import RECOVERING, TOPIC, Desk, run_story

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5


def _moved_away_and_back(desk: Desk) -> None:
    """PartitionTest.testMonotonicOffsetsAfterLeaderChange: epoch 8, log end 5, high watermark 2; led again in 10."""
    desk.lead(8, isr=(1, 2, 3))
    desk.append(timestamps=(10, 11, 12, 13, 14))
    for follower in (2, 3):
        desk.follower_fetched(follower, 2)
    assert desk.replica().high_watermark == 2
    desk.follow(9, leader=2, isr=(1, 2, 3))
    desk.lead(10, isr=(1, 2, 3))


def _catch_up(desk: Desk) -> None:
    for follower in (2, 3):
        desk.follower_fetched(follower, 5)


# -- § Proposed Changes: the refusal -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "code"),
    [(version, ErrorCode.LEADER_NOT_AVAILABLE) for version in (1, 2, 3, 4)]
    + [(version, ErrorCode.OFFSET_NOT_AVAILABLE) for version in (5, 6, 7, 10, 11)],
)
def test_new_leader_rejects_until_its_high_watermark_has_caught_up(version: int, code: ErrorCode) -> None:
    """§ Proposed Changes 1, § Public Interfaces: 78 from version 5 on, LEADER_NOT_AVAILABLE below; L11-L12."""

    async def story(desk: Desk) -> None:
        _moved_away_and_back(desk)
        refused = await desk.list_offset(LATEST, version=version)
        assert (refused.error_code, refused.offset, refused.timestamp) == (code, -1, -1)

    run_story(story)


def test_answers_once_all_in_sync_replicas_reach_the_epoch_start() -> None:
    """§ Proposed Changes 2; L15, L39: no notification, the client retries."""

    async def story(desk: Desk) -> None:
        _moved_away_and_back(desk)
        desk.follower_fetched(2, 5)
        assert (await desk.list_offset(LATEST)).error_code == ErrorCode.OFFSET_NOT_AVAILABLE
        desk.follower_fetched(3, 5)
        found = await desk.list_offset(LATEST)
        assert (found.error_code, found.offset, found.leader_epoch) == (0, 5, 10)

    run_story(story)


def test_answers_when_a_lagging_replica_leaves_the_isr() -> None:
    """§ Proposed Changes 2; L39."""

    async def story(desk: Desk) -> None:
        _moved_away_and_back(desk)
        desk.follower_fetched(2, 5)
        desk.clock.ms += 60_000
        desk.tell(isr=(1, 2))
        assert (await desk.list_offset(LATEST)).offset == 5

    run_story(story)


def test_required_high_watermark_is_the_log_end_at_the_election() -> None:
    """§ Proposed Changes 1; L10-L11: the high watermark at the epoch's start is enough."""

    async def story(desk: Desk) -> None:
        _moved_away_and_back(desk)
        desk.append(3)
        assert (await desk.list_offset(LATEST)).error_code == ErrorCode.OFFSET_NOT_AVAILABLE
        _catch_up(desk)
        assert (await desk.list_offset(LATEST)).offset == 5

    run_story(story)


def test_fetches_are_served_meanwhile() -> None:
    """§ Proposed Changes: only ListOffsets is refused; L15."""

    async def story(desk: Desk) -> None:
        _moved_away_and_back(desk)
        fetched = desk.fetched(0)
        assert (fetched.error_code, fetched.high_watermark) == (0, 2)
        assert len(fetched.records or b"") > 0

    run_story(story)


def test_replica_is_never_rejected() -> None:
    """§ Proposed Changes: brokers send their replica id; L9."""

    async def story(desk: Desk) -> None:
        _moved_away_and_back(desk)
        for replica_id in (2, -2):
            assert (await desk.list_offset(LATEST, replica_id=replica_id)).offset == 5

    run_story(story)


@pytest.mark.parametrize("timestamp", [EARLIEST, EARLIEST_LOCAL])
def test_start_offset_is_answered_immediately(timestamp: int) -> None:
    """The KIP rejects every lookup; Kafka as released, and Fenceline, only the end offset (L13c, G12)."""

    async def story(desk: Desk) -> None:
        _moved_away_and_back(desk)
        found = await desk.list_offset(timestamp)
        assert (found.error_code, found.offset) == (0, 0)

    run_story(story)


@pytest.mark.parametrize(
    ("timestamp", "code", "offset"),
    [(11, 0, 1), (13, ErrorCode.OFFSET_NOT_AVAILABLE, -1), (100, ErrorCode.OFFSET_NOT_AVAILABLE, -1)],
)
def test_timestamps_are_looked_up_below_the_high_watermark(timestamp: int, code: int, offset: int) -> None:
    """L13b: a result below is returned, since it is committed; a missing result or one above is rejected."""

    async def story(desk: Desk) -> None:
        _moved_away_and_back(desk)
        found = await desk.list_offset(timestamp)
        assert (found.error_code, found.offset) == (code, offset)

    run_story(story)


def test_max_timestamp_above_the_high_watermark_is_rejected() -> None:
    """L13b."""

    async def story(desk: Desk) -> None:
        _moved_away_and_back(desk)
        assert (await desk.list_offset(MAX_TIMESTAMP)).error_code == ErrorCode.OFFSET_NOT_AVAILABLE
        _catch_up(desk)
        found = await desk.list_offset(MAX_TIMESTAMP)
        assert (found.error_code, found.offset, found.timestamp) == (0, 4, 14)

    run_story(story)


def test_tiered_offsets_are_answered_as_absent() -> None:
    """L21: there are no tiers."""

    async def story(desk: Desk) -> None:
        _moved_away_and_back(desk)
        found = await desk.list_offset(LATEST_TIERED)
        assert (found.error_code, found.offset, found.leader_epoch) == (0, -1, -1)

    run_story(story)


# -- § Motivation: monotonic ---------------------------------------------------------------------------------------


def test_offsets_after_a_leader_change_are_monotonic() -> None:
    """L26, L28, in the order of PartitionTest.testMonotonicOffsetsAfterLeaderChange."""

    async def story(desk: Desk) -> None:
        desk.lead(8, isr=(1, 2, 3))
        desk.append(timestamps=(10, 11, 12, 13, 14))
        for follower in (2, 3):
            desk.follower_fetched(follower, 2)
        assert (await desk.list_offset(LATEST)).offset == 2
        beyond = await desk.list_offset(100)
        assert (beyond.error_code, beyond.offset) == (0, -1), "no leader change yet: an empty result without error"
        desk.follow(9, leader=2, isr=(1, 2, 3))
        desk.lead(10, isr=(1, 2, 3))
        assert (await desk.list_offset(LATEST)).error_code == ErrorCode.OFFSET_NOT_AVAILABLE
        assert (await desk.list_offset(100)).error_code == ErrorCode.OFFSET_NOT_AVAILABLE
        _catch_up(desk)
        assert (await desk.list_offset(LATEST)).offset == 5
        beyond = await desk.list_offset(100)
        assert (beyond.error_code, beyond.offset) == (0, -1)

    run_story(story)


def test_promoted_follower_reports_no_end_below_its_former_leaders() -> None:
    """§ Motivation: the follower's high watermark is behind its leader's, so its answer would decrease."""

    async def story(desk: Desk) -> None:
        desk.follow(3, leader=2, isr=(1, 2))
        desk.copied(6, epoch=3, high_watermark=2)
        assert desk.replica().high_watermark == 2
        desk.lead(4, isr=(1, 2))
        assert (await desk.list_offset(LATEST)).error_code == ErrorCode.OFFSET_NOT_AVAILABLE
        desk.follower_fetched(2, 6)
        assert (await desk.list_offset(LATEST)).offset == 6

    run_story(story)


def test_the_same_leader_in_a_newer_epoch_counts_as_a_change() -> None:
    """L10, L40."""

    async def story(desk: Desk) -> None:
        desk.lead(8, isr=(1, 2))
        desk.append(3)
        desk.follower_fetched(2, 2)
        assert (await desk.list_offset(LATEST)).offset == 2
        desk.lead(9, isr=(1, 2))
        assert (await desk.list_offset(LATEST)).error_code == ErrorCode.OFFSET_NOT_AVAILABLE

    run_story(story)


def test_isr_change_alone_does_not_count_as_a_leader_change() -> None:
    """L10; PartitionTest.testDoNotUpdateEpochStartOffsetIfLeaderEpochIsNotBumped."""

    async def story(desk: Desk) -> None:
        replica = desk.lead(8, isr=(1, 2))
        desk.append(3)
        desk.follower_fetched(2, 2)
        desk.tell(isr=(1, 2, 3))
        assert replica.leader is not None
        assert replica.leader.epoch_start_offset == 0
        assert (await desk.list_offset(LATEST)).offset == 2

    run_story(story)


def test_leader_without_followers_never_rejects() -> None:
    """L16, L38."""

    async def story(desk: Desk) -> None:
        desk.follow(3, leader=2, isr=(1, 2))
        desk.copied(6, epoch=3, high_watermark=2)
        desk.lead(4, isr=(1,))
        assert (await desk.list_offset(LATEST)).offset == 6

    run_story(story)


def test_end_offset_stays_unavailable_while_the_isr_is_too_small() -> None:
    """L16: the high watermark does not move, so the rejection lasts."""

    async def story(desk: Desk) -> None:
        desk.topic_settings = {"min.insync.replicas": "2"}
        desk.follow(3, leader=2, isr=(1, 2))
        desk.copied(6, epoch=3, high_watermark=2)
        desk.lead(4, isr=(1,))
        assert (await desk.list_offset(LATEST)).error_code == ErrorCode.OFFSET_NOT_AVAILABLE
        desk.follower_fetched(2, 6)
        desk.tell(isr=(1, 2))
        assert (await desk.list_offset(LATEST)).offset == 6

    run_story(story)


def test_read_committed_also_waits_for_the_high_watermark() -> None:
    """L11."""

    async def story(desk: Desk) -> None:
        _moved_away_and_back(desk)
        refused = await desk.list_offset(LATEST, isolation_level=1)
        assert refused.error_code == ErrorCode.OFFSET_NOT_AVAILABLE

    run_story(story)


def test_unclean_elections_are_no_exception() -> None:
    """The KIP answers at once where unclean elections are allowed; Kafka as released never checks that (L14, G13)."""

    async def story(desk: Desk) -> None:
        desk.topic_settings = {"unclean.leader.election.enable": "true"}
        _moved_away_and_back(desk)
        assert (await desk.list_offset(LATEST)).error_code == ErrorCode.OFFSET_NOT_AVAILABLE

    run_story(story)


# -- order of answers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("epoch", "code"),
    [(9, ErrorCode.FENCED_LEADER_EPOCH), (11, ErrorCode.UNKNOWN_LEADER_EPOCH), (10, ErrorCode.OFFSET_NOT_AVAILABLE)],
)
def test_epoch_is_checked_before_offset_availability(epoch: int, code: ErrorCode) -> None:
    """L35."""

    async def story(desk: Desk) -> None:
        _moved_away_and_back(desk)
        assert (await desk.list_offset(LATEST, epoch=epoch)).error_code == code

    run_story(story)


def test_recovering_leader_answers_not_leader() -> None:
    """KIP-704 before KIP-207 (V37)."""

    async def story(desk: Desk) -> None:
        desk.lead(4, leader_recovery_state=RECOVERING)
        assert (await desk.list_offset(LATEST)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    run_story(story)


def test_rejection_is_per_partition() -> None:
    """§ Public Interfaces: the error is the partition's."""

    async def story(desk: Desk) -> None:
        _moved_away_and_back(desk)
        desk.lead(1, index=1)
        asked = [{"partition_index": index, "timestamp": LATEST} for index in (0, 1)]
        answer = await desk.ask(ApiKey.LIST_OFFSETS, 10, replica_id=-1, topics=[{"name": TOPIC, "partitions": asked}])
        codes = {each.partition_index: each.error_code for each in answer.topics[0].partitions}
        assert codes == {0: ErrorCode.OFFSET_NOT_AVAILABLE, 1: 0}

    run_story(story, partitions=2)
