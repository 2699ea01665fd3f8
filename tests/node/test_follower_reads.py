"""Consumers that read from followers (KIP-392): the preferred replica, and the offsets that a follower serves."""

from __future__ import annotations

from typing import Any

import pytest

from fenceline.config.node import NodeConfig
from fenceline.errors import ErrorCode, OperatorError
from fenceline.node.api.fetch.fetching import RACK_AWARE_SELECTOR
from fenceline.records.batch import iter_headers
from tests.node.desk import Desk, run_story, turns

SELECTOR = {"replica.selector.class": RACK_AWARE_SELECTOR}
NOBODY = -1


def _replicated(desk: Desk, records: int = 5) -> None:
    """Racks: broker 1, the leader, in a; 2 in b; 3 in c."""
    desk.lead(5, isr=(1, 2, 3))
    desk.append(records)
    for follower in (2, 3):
        desk.follower_fetched(follower, records)


@pytest.mark.parametrize(
    ("rack", "preferred"), [("a", NOBODY), ("b", 2), ("c", 3), ("elsewhere", NOBODY), ("", NOBODY)]
)
def test_consumer_is_directed_to_its_rack(rack: str, preferred: int) -> None:
    async def story(desk: Desk) -> None:
        _replicated(desk)
        fetched = desk.fetched(0, rack_id=rack)
        assert (fetched.error_code, fetched.preferred_read_replica) == (0, preferred)
        assert (len(fetched.records or b"") == 0) is (preferred != NOBODY), "a redirected consumer gets no records"
        assert (fetched.high_watermark, fetched.log_start_offset) == (5, 0)

    run_story(story, settings=SELECTOR)


def test_no_preferred_replica_by_default() -> None:
    async def story(desk: Desk) -> None:
        _replicated(desk)
        assert desk.fetched(0, rack_id="b").preferred_read_replica == NOBODY

    run_story(story)


def test_redirected_fetch_does_not_wait() -> None:
    async def story(desk: Desk) -> None:
        _replicated(desk)
        answer = desk.fetch(desk.wanted(5), rack_id="b", max_wait_ms=60_000)
        assert answer.response.partitions[0].preferred_read_replica == 2

    run_story(story, settings=SELECTOR)


def test_parked_fetch_is_redirected_when_a_replica_joins_the_isr() -> None:
    async def story(desk: Desk) -> None:
        desk.lead(5)
        desk.follower_fetched(2, 0)
        parked = desk.fetch(desk.wanted(0), rack_id="b", max_wait_ms=60_000)
        assert parked.is_pending
        desk.tell(isr=(1, 2))
        assert (await parked.later()).partitions[0].preferred_read_replica == 2

    run_story(story, settings=SELECTOR)


@pytest.mark.parametrize("epoch", [4, 6])
def test_epoch_is_checked_before_the_redirect(epoch: int) -> None:
    """`epochs.md E66`."""

    async def story(desk: Desk) -> None:
        _replicated(desk)
        fetched = desk.fetched(0, rack_id="b", current_leader_epoch=epoch)
        assert fetched.error_code in (ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH)
        assert fetched.preferred_read_replica == NOBODY

    run_story(story, settings=SELECTOR)


@pytest.mark.parametrize("reason", ["out of sync", "fenced", "behind", "starts later", "no such listener"])
def test_replica_that_cannot_serve_is_not_preferred(reason: str) -> None:
    async def story(desk: Desk) -> None:
        _replicated(desk)
        more: dict[str, Any] = {}
        match reason:
            case "out of sync":
                desk.tell(isr=(1, 3))
            case "fenced":
                desk.tell_broker(2, fenced=True)
            case "behind":
                desk.append(1)
                desk.follower_fetched(3, 6)
                desk.follower_fetched(2, 5)
                assert desk.fetched(6, rack_id="b").preferred_read_replica == NOBODY
                return
            case "starts later":
                desk.follower_fetched(2, 5, log_start_offset=3)
            case _:
                more = {"listener": "NOWHERE"}
        assert desk.fetched(2, rack_id="b", **more).preferred_read_replica == NOBODY

    run_story(story, settings=SELECTOR)


def test_replicas_are_never_redirected() -> None:
    async def story(desk: Desk) -> None:
        _replicated(desk)
        fetched = desk.follower_fetched(2, 0, rack_id="b")
        assert fetched.preferred_read_replica == NOBODY
        assert len(fetched.records or b"") > 0

    run_story(story, settings=SELECTOR)


@pytest.mark.parametrize("version", [11, 12, 17])
def test_a_follower_serves_up_to_its_own_high_watermark(version: int) -> None:
    """`epochs.md E3`, E11, E43; PartitionTest.testReplicaFetchToFollower."""

    async def story(desk: Desk) -> None:
        desk.follow(5)
        desk.copied(6, epoch=5, high_watermark=4)
        fetched = desk.fetched(0, version=version)
        assert [header.base_offset for header in iter_headers(fetched.records or b"")] == [0, 1, 2, 3]
        assert fetched.high_watermark == 4
        for offset in (4, 5, 6):
            ahead = desk.fetched(offset, version=version)
            assert (ahead.error_code, len(ahead.records or b"")) == (0, 0), "replicated, but not known to be committed"
        assert desk.fetched(7, version=version).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert desk.fetched(0, version=version, replica_id=3).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    run_story(story)


def test_follower_answers_parked_fetch_when_its_high_watermark_advances() -> None:
    async def story(desk: Desk) -> None:
        desk.follow(5)
        opened = desk.fetch(desk.wanted(0, current_leader_epoch=5), session_epoch=0).response
        desk.fetch(session_id=opened.session_id, session_epoch=1)
        parked = desk.fetch(session_id=opened.session_id, session_epoch=2, max_wait_ms=60_000)
        desk.copied(3, epoch=5)
        await turns()
        assert parked.is_pending, "none of it is known to be committed"
        desk.replica().apply_leader_offsets(2, 0)
        fetched = (await parked.later()).partitions[0]
        assert [header.base_offset for header in iter_headers(fetched.records or b"")] == [0, 1]

    run_story(story)


def test_log_being_truncated_is_not_served() -> None:
    async def story(desk: Desk) -> None:
        replica = desk.follow(5)
        replica.is_being_cut = True
        assert desk.fetched(0).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        found = await desk.list_offset(-1, replica_id=-2)
        assert found.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        replica.is_being_cut = False

    run_story(story)


def test_only_the_selector_of_kafka_is_accepted() -> None:
    with pytest.raises(OperatorError) as refused:
        NodeConfig.load(None, {"replica.selector.class": "com.example.Nearest"}, {})
    assert RACK_AWARE_SELECTOR in refused.value.message
    assert "No other class is supported" in refused.value.advice
