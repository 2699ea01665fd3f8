"""Invalid requests of followers and consumers: each partition has its own answer, and valid partitions are served.

The single rules are tested in `tests/kip/test_kip320.py`; here they are combined in one request, which must not change
the leader's state.
"""

from __future__ import annotations

from typing import Any

import pytest

from fenceline.errors import ErrorCode
from fenceline.wire.apis import ApiKey
from tests.node.desk import TOPIC, Desk, run_story, turns

FENCED, UNKNOWN = ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH
OUT_OF_RANGE, NOT_LEADER = ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.NOT_LEADER_OR_FOLLOWER
FOLLOWER = {"replica_id": 2, "replica_epoch": 102}
CONSUMER = {"replica_id": -1, "replica_epoch": -1}

WRONG: list[tuple[str, dict[str, Any], int]] = [
    ("an epoch from the future", {"current_leader_epoch": 8}, UNKNOWN),
    ("the largest epoch", {"current_leader_epoch": 2**31 - 1}, UNKNOWN),
    ("an epoch that is over", {"current_leader_epoch": 5}, FENCED),
    ("below the log start", {"offset": 1}, OUT_OF_RANGE),
    ("a negative offset", {"offset": -1}, OUT_OF_RANGE),
    ("above the end", {"offset": 9}, OUT_OF_RANGE),
    ("far above the end", {"offset": 2**63 - 1}, OUT_OF_RANGE),
    ("below the log start, with the last epoch", {"offset": 1, "last_fetched_epoch": 5}, OUT_OF_RANGE),
    ("a last epoch from the future", {"offset": 5, "last_fetched_epoch": 9}, OUT_OF_RANGE),
    ("above the end, in the last epoch", {"offset": 9, "last_fetched_epoch": 7}, 0),
    ("above the end of an epoch before", {"offset": 8, "last_fetched_epoch": 5}, 0),
    ("the future epoch comes before the offset", {"offset": 99, "current_leader_epoch": 8}, UNKNOWN),
]


def seven(desk: Desk, partitions: int) -> None:
    """Logs of offsets 2 to 8: epoch 5 up to 4, epoch 7 from there; replica 2 is in sync and has every record."""
    for index in range(partitions):
        desk.lead(5, isr=(1, 2), index=index)
        desk.append(4, index=index)
        desk.follower_fetched(2, 4, index=index)
        desk.replica(index).log.advance_log_start(2)
        desk.lead(7, isr=(1, 2), index=index)
        desk.append(4, index=index)
        desk.follower_fetched(2, 8, index=index)


def leader_state(desk: Desk, index: int) -> Any:
    """The state of the leader for a partition."""
    leader = desk.replica(index).leader
    assert leader is not None
    progress = leader.followers[2]
    return (
        leader.isr,
        leader.high_watermark,
        leader.proposal,
        progress.log_end_offset,
        progress.last_fetch_ms,
        progress.last_caught_up_ms,
        progress.broker_epoch,
        desk.replica(index).log.log_end_offset,
    )


@pytest.mark.parametrize("reader", [FOLLOWER, CONSUMER])
@pytest.mark.parametrize("version", [12, 17, 18])
@pytest.mark.parametrize("in_session", [False, True])
def test_request_with_every_kind_of_invalid_partition(reader: dict[str, int], version: int, in_session: bool) -> None:
    async def story(desk: Desk) -> None:
        seven(desk, len(WRONG) + 1)
        before = [leader_state(desk, index) for index in range(len(WRONG))]
        desk.clock.ms += 5
        wanted = []
        for index, (_, fields, _) in enumerate(WRONG):
            given = {"current_leader_epoch": 7, "offset": 4} | fields
            wanted.append(desk.wanted(given.pop("offset"), index=index, version=version, **given))
        last = len(WRONG)
        wanted.append(desk.wanted(4, index=last, version=version, current_leader_epoch=7))
        epoch = 0 if in_session else -1
        answer = desk.fetch(*wanted, version=version, session_epoch=epoch, max_wait_ms=60_000, **reader).response
        found = {each.index: each for each in answer.partitions}
        assert {index: int(found[index].error_code) for index in range(last)} == {
            index: int(code) for index, (_, _, code) in enumerate(WRONG)
        }
        for index in range(last):
            assert not found[index].records, WRONG[index]
        assert found[9].diverging_epoch == (7, 8)
        assert found[10].diverging_epoch == (5, 4)
        assert len(found[last].records or b"") > 0, "the valid partition is served"
        assert [leader_state(desk, index) for index in range(last)] == before, (
            "and no invalid fetch has changed follower state"
        )
        await turns()
        assert desk.controller.asked == []

    run_story(story, partitions=len(WRONG) + 1)


@pytest.mark.parametrize("stranger", [9, 0, 2**31 - 1])
def test_fetch_by_a_broker_without_a_replica_is_rejected(stranger: int) -> None:
    """Fetch rejects it (E30); ListOffsets and OffsetForLeaderEpoch do not check replicas and answer, as in Kafka."""

    async def story(desk: Desk) -> None:
        seven(desk, 1)
        before = leader_state(desk, 0)
        fields = {"replica_id": stranger, "replica_epoch": 100 + min(stranger, 100)}
        assert desk.fetched(4, current_leader_epoch=7, **fields).error_code == UNKNOWN
        assert desk.fetched(4, **fields).error_code == NOT_LEADER
        assert desk.fetched(4, current_leader_epoch=8, **fields).error_code == UNKNOWN
        assert desk.fetched(4, current_leader_epoch=6, **fields).error_code == FENCED
        latest = await desk.list_offset(replica_id=stranger, epoch=7)
        assert (latest.error_code, latest.offset, latest.leader_epoch) == (0, 8, 7)
        assert (await desk.list_offset(replica_id=stranger, epoch=8)).error_code == UNKNOWN
        asked = {"partition": 0, "current_leader_epoch": 7, "leader_epoch": 5}
        topics = [{"topic": TOPIC, "partitions": [asked]}]
        answer = await desk.ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, replica_id=stranger, topics=topics)
        (end,) = answer.topics[0].partitions
        assert (end.error_code, end.leader_epoch, end.end_offset) == (0, 5, 4)
        assert leader_state(desk, 0) == before

    run_story(story)


def test_unknown_broker_epoch_is_served_but_not_in_sync() -> None:
    """KIP-903: it is served, since this broker's metadata may be behind; the fetch does not bring it in sync until the
    metadata has that epoch."""

    async def story(desk: Desk) -> None:
        desk.lead(5, isr=(1,))
        desk.append(2)
        future = {"replica_id": 2, "replica_epoch": 999, "current_leader_epoch": 5}
        assert desk.fetched(0, **future).error_code == 0
        assert desk.fetched(2, **future).error_code == 0
        await turns()
        assert desk.controller.asked == []
        desk.tell_broker(2, epoch=999)
        assert desk.fetched(2, **future).error_code == 0
        await turns()
        (asked,) = desk.controller.asked
        ((_, (change,)),) = asked.topics
        assert [(each.broker_id, each.broker_epoch) for each in change.new_isr] == [(1, 101), (2, 999)]

    run_story(story)


def test_old_broker_epoch_does_not_update_follower_state() -> None:
    """E31: a fetch that the previous process sent."""

    async def story(desk: Desk) -> None:
        seven(desk, 1)
        before = leader_state(desk, 0)
        desk.append(1)
        desk.clock.ms += 5
        late = {"replica_id": 2, "replica_epoch": 101, "current_leader_epoch": 7}
        assert desk.fetched(9, **late).error_code == NOT_LEADER
        assert leader_state(desk, 0)[:-1] == before[:-1]

    run_story(story)


@pytest.mark.parametrize("epoch", [8, 2**31 - 1])
def test_future_leader_epochs_are_rejected_by_every_api(epoch: int) -> None:
    """E2 for each API that carries an epoch, at leaders and followers; a request does not make its epoch known."""

    async def story(desk: Desk) -> None:
        seven(desk, 1)
        for lead in (True, False):
            if not lead:
                desk.follow(7)
            assert desk.fetched(4, current_leader_epoch=epoch).error_code == UNKNOWN
            assert desk.fetched(4, current_leader_epoch=epoch, **FOLLOWER).error_code == UNKNOWN
            for timestamp in (-1, -2, -3, 0):
                assert (await desk.list_offset(timestamp, epoch=epoch)).error_code == UNKNOWN
            assert (await desk.epoch_end(5, current=epoch)).error_code == UNKNOWN
            assert desk.replica().leader_epoch == 7
            assert desk.replica().log.latest_epoch == 7
        desk.lead(9, isr=(1, 2))
        end = await desk.epoch_end(epoch, current=9)
        assert (end.error_code, end.leader_epoch, end.end_offset) in (
            (0, -1, -1),
            (0, 7, 8),
        ), "an epoch of a request does not become known"

    run_story(story)
