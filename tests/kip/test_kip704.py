"""KIP-704, sentence by sentence, the broker side: an uncleanly elected leader recovers before it serves requests.

`§` names the section of the KIP; a number such as V37 is the rule of `docs/rules/recovery.md`. Released Kafka sends
the state but ignores it (V31-V33); Fenceline implements the KIP. The controller's handling of RECOVERING and RECOVERED
is tested in `tests/controller`.
"""

from __future__ import annotations

import errno
from typing import Any
from unittest.mock import Mock

import pytest

from fenceline.controller.partition_requests import AlteredPartition
from fenceline.errors import ErrorCode, PeerError
from fenceline.ids import TopicPartition
from fenceline.log.core.producer_state import Origin
from fenceline.metadata.features import MINIMUM_METADATA_VERSION
from fenceline.metadata.image import LeaderRecoveryState
from fenceline.node.api.handlers import broker_partition_requests
from fenceline.node.api.handlers.transaction_markers import MarkerToWrite
from fenceline.node.replication import replication
from fenceline.records.batch import iter_headers
from fenceline.records.build import build_batch
from fenceline.replica.fetcher import FetchLimits, ReplicaFetcher
from fenceline.replica.follower import FollowerState
from fenceline.wire.apis import ApiKey
from fenceline.wire.fetch import FetchedPartition, FetchResponse
from tests.node.desk import RECOVERING, TOPIC, Desk, run_story, state, turns
from tests.replica.histories import MemoryLog

NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER
FENCED, UNKNOWN = ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH

APIS = ["produce", "consumer fetch", "follower fetch", "latest", "earliest", "time", "delete", "epoch end"]


async def _code(desk: Desk, api: str, epoch: int = -1) -> int:
    """One API's error code for the partition, with a leader epoch if the API has one."""
    match api:
        case "produce":
            return int(desk.produced().responses[0].partition_responses[0].error_code)
        case "consumer fetch":
            return desk.fetched(current_leader_epoch=epoch).error_code
        case "follower fetch":
            return desk.fetched(replica_id=2, replica_epoch=102, current_leader_epoch=epoch).error_code
        case "latest" | "earliest" | "time":
            timestamp = {"latest": -1, "earliest": -2, "time": 0}[api]
            return int((await desk.list_offset(timestamp, epoch=epoch)).error_code)
        case "delete":
            code = int((await desk.delete_records(0, timeout_ms=0)).error_code)
            return (
                0 if code == ErrorCode.REQUEST_TIMED_OUT else code
            )  # recovered locally; no follower has reported it yet
        case "epoch end":
            return int((await desk.epoch_end(0, current=epoch)).error_code)
    rows = [{"name": TOPIC, "partition_indexes": [0]}]
    answer = await desk.ask(ApiKey.DESCRIBE_PRODUCERS, 0, topics=rows)
    return int(answer.topics[0].partitions[0].error_code)


def _told_recovered(desk: Desk) -> None:
    desk.tell(leader_recovery_state=LeaderRecoveryState.RECOVERED)


async def _asked(desk: Desk, count: int = 1) -> Any:
    """Waits for AlterPartition requests; returns the last one's partition change."""
    while len(desk.controller.asked) < count:
        await turns(1)
    (_, changes), *_ = desk.controller.asked[-1].topics
    return changes[0]


def _transaction(desk: Desk, producer_id: int) -> None:
    """Appends one record of a transaction that is never completed."""
    replica = desk.replica()
    batch = build_batch(
        [(0, b"k", b"v", ())], producer_id=producer_id, producer_epoch=0, base_sequence=0, transactional=True
    )
    replica.log.append_as_leader(
        memoryview(batch), leader_epoch=replica.leader_epoch, now_ms=desk.clock.ms, origin=Origin.CLIENT
    )
    replica.appended()


async def _recovers_without_a_disk(desk: Desk, refusal: int) -> None:
    """A transaction is open when the leader is elected uncleanly, and the log takes no marker."""
    desk.lead(3)
    _transaction(desk, 7)
    desk.disk.fail("write", f"{TOPIC}-0/00000000000000000000.log", refusal)
    desk.lead(4, leader_recovery_state=RECOVERING)
    await turns(50)
    assert not desk.controller.asked


# -- § Proposed Changes: rejected requests -------------------------------------------------------------------------


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("role", ["leader", "follower"])
def test_all_requests_are_rejected_while_the_partition_recovers(api: str, role: str) -> None:
    """§ Leader, § Follower: NOT_LEADER_OR_FOLLOWER for every request of data; V37."""

    async def story(desk: Desk) -> None:
        (desk.lead if role == "leader" else desk.follow)(4, leader_recovery_state=RECOVERING)
        assert await _code(desk, api) == NOT_LEADER

    run_story(story)


@pytest.mark.parametrize("api", ["consumer fetch", "follower fetch", "latest", "earliest", "time", "epoch end"])
@pytest.mark.parametrize("role", ["leader", "follower"])
@pytest.mark.parametrize(("epoch", "code"), [(3, FENCED), (5, UNKNOWN), (4, NOT_LEADER)])
def test_the_epoch_is_checked_first(api: str, role: str, epoch: int, code: int) -> None:
    """V37."""

    async def story(desk: Desk) -> None:
        (desk.lead if role == "leader" else desk.follow)(4, leader_recovery_state=RECOVERING)
        assert await _code(desk, api, epoch) == code

    run_story(story)


def test_debug_reader_is_rejected_too() -> None:
    """V37 with L6."""

    async def story(desk: Desk) -> None:
        desk.lead(4, leader_recovery_state=RECOVERING)
        assert (await desk.list_offset(-1, replica_id=-2)).error_code == NOT_LEADER

    run_story(story)


@pytest.mark.parametrize("api", APIS)
def test_requests_are_served_after_the_controller_records_recovered(api: str) -> None:
    """§ Leader; V39: a metadata record with RECOVERED is enough, in the same leader epoch."""

    async def story(desk: Desk) -> None:
        desk.lead(4, leader_recovery_state=RECOVERING)
        _told_recovered(desk)
        assert await _code(desk, api) == 0

    run_story(story)


def test_followers_serve_consumers_once_the_leader_has_recovered() -> None:
    """§ Follower; V37: a record with RECOVERED counts though the leader epoch is the same."""

    async def story(desk: Desk) -> None:
        desk.follow(4, leader_recovery_state=RECOVERING)
        assert desk.fetched().error_code == NOT_LEADER
        _told_recovered(desk)
        assert desk.fetched().error_code == 0

    run_story(story)


def test_parked_fetch_on_a_follower_is_rejected_when_recovery_starts() -> None:
    """V37 with E7."""

    async def story(desk: Desk) -> None:
        desk.follow(3)
        parked = desk.fetch(desk.wanted(), max_wait_ms=60_000)
        desk.follow(4, leader=3, leader_recovery_state=RECOVERING)
        assert [each.error_code for each in (await parked.later()).partitions] == [NOT_LEADER]

    run_story(story)


# -- § Leader: the work of recovery --------------------------------------------------------------------------------


def test_transactions_are_aborted_and_flushed_before_alter_partition() -> None:
    """§ Leader: abort of pending transactions, flush, then AlterPartition; V38."""

    async def story(desk: Desk) -> None:
        desk.lead(3)
        desk.append(2)
        _transaction(desk, 7)
        _transaction(desk, 8)
        replica = desk.replica()
        assert replica.log.last_stable_offset == 2
        desk.lead(4, leader_recovery_state=RECOVERING)
        change = await _asked(desk)
        assert replica.log.log_end_offset == 6
        assert replica.log.recovery_point == 6, "flushed up to the markers"
        assert replica.log.last_stable_offset == 6
        assert [each.broker_id for each in change.new_isr] == [1]
        assert change.leader_epoch == 4
        assert change.leader_recovery_state == LeaderRecoveryState.RECOVERED
        _told_recovered(desk)
        headers = list(iter_headers(desk.fetched(0).records or b""))
        assert [header.is_control for header in headers] == [False] * 4 + [True] * 2
        assert [header.leader_epoch for header in headers] == [3] * 4 + [4] * 2

    run_story(story)


def test_full_disk_delays_the_recovery(monkeypatch: pytest.MonkeyPatch) -> None:
    """The partition stays online: it recovers once there is space, and the transactions are aborted once."""
    monkeypatch.setattr(replication, "_RECOVERY_PAUSE_S", 0.0)

    async def story(desk: Desk) -> None:
        await _recovers_without_a_disk(desk, errno.ENOSPC)
        assert await _code(desk, "consumer fetch") == NOT_LEADER
        desk.disk.heal()
        await _asked(desk)
        assert desk.replica().log.log_end_offset == 2
        assert desk.replica().log.recovery_point == 2

    run_story(story)


def test_failed_disk_ends_the_recovery() -> None:
    async def story(desk: Desk) -> None:
        await _recovers_without_a_disk(desk, errno.EIO)
        assert await _code(desk, "consumer fetch") == ErrorCode.KAFKA_STORAGE_ERROR

    run_story(story)


def test_completed_transaction_is_not_aborted() -> None:
    """V38: idempotent; an aborted transaction is not aborted again."""

    async def story(desk: Desk) -> None:
        desk.lead(3)
        _transaction(desk, 7)
        desk.lead(4, leader_recovery_state=RECOVERING)
        await _asked(desk)
        end = desk.replica().log.log_end_offset
        desk.controller.lose()
        desk.lead(5, leader_recovery_state=RECOVERING)
        await _asked(desk, 2)
        assert desk.replica().log.log_end_offset == end

    run_story(story)


def test_transactions_of_a_coordinator_end_by_its_markers() -> None:
    """transactions.md X61, X62: a marker of the leader alone would tear a transaction that its coordinator commits."""

    async def story(desk: Desk) -> None:
        desk.lead(3)
        _transaction(desk, 7)
        _transaction(desk, 8)
        desk.held_producers = frozenset({7})
        desk.lead(4, leader_recovery_state=RECOVERING)
        await turns()
        assert desk.fenced == [TopicPartition(TOPIC, 0)]
        assert not desk.controller.asked, "it waits for the marker of 7"
        assert desk.replica().log.last_stable_offset == 0
        marker = MarkerToWrite((7, 1), 0, False, 2)
        assert desk.markers.end(TOPIC, 0, marker) is ErrorCode.NONE
        await _asked(desk)
        assert desk.replica().log.last_stable_offset == desk.replica().log.log_end_offset == 4

    run_story(story)


@pytest.mark.parametrize(("outcome", "aborted"), [(True, []), (False, [0]), (None, None)])
def test_lost_end_marker_is_written_again_as_the_coordinator_decided(outcome: bool | None, aborted: Any) -> None:
    """transactions.md X61: an abort would tear the transaction, if the other partitions were committed."""

    async def story(desk: Desk) -> None:
        desk.lead(3)
        _transaction(desk, 7)
        desk.outcomes = {7: outcome}
        desk.lead(4, leader_recovery_state=RECOVERING)
        await _asked(desk)
        log = desk.replica().log
        assert log.log_end_offset == (1 if outcome is None else 2)
        assert log.last_stable_offset == (0 if outcome is None else 2)
        if aborted is not None:
            assert [each.first_offset for each in log.aborted_transactions(0, 2)] == aborted

    run_story(story)


@pytest.mark.parametrize("is_internal", [False, True], ids=["records", "offsets of groups"])
def test_lost_end_marker_is_written_before_the_next_transaction_of_the_producer_ends(is_internal: bool) -> None:
    """transactions.md X61, X62: the fence of the next one ends all that is open of the producer."""

    async def story(desk: Desk) -> None:
        desk.lead(3)
        _transaction(desk, 7)
        desk.replica().is_internal = is_internal
        desk.decided = {7: True}
        desk.held_producers = frozenset({7})
        fence = desk._fence

        async def aborts(where: TopicPartition) -> frozenset[int] | None:
            assert desk.markers.end(TOPIC, 0, MarkerToWrite((7, 2), 0, False, 2)) is ErrorCode.NONE
            return await fence(where)

        desk.replication._fence_transactions = aborts
        desk.lead(4, leader_recovery_state=RECOVERING)
        await _asked(desk)
        log = desk.replica().log
        assert log.log_end_offset == log.last_stable_offset == 3
        assert log.aborted_transactions(0, 3) == [], "its records are committed"

    run_story(story)


@pytest.mark.parametrize("unanswered", ["held_producers", "outcomes"])
def test_without_an_answer_of_the_coordinators_transactions_are_left_to_them(
    monkeypatch: pytest.MonkeyPatch, unanswered: str
) -> None:
    monkeypatch.setattr(replication, "_RECOVERY_PAUSE_S", 0)

    async def story(desk: Desk) -> None:
        desk.lead(3)
        _transaction(desk, 7)
        setattr(desk, unanswered, None)
        desk.lead(4, leader_recovery_state=RECOVERING)
        await _asked(desk)
        assert (desk.replica().log.last_stable_offset, desk.replica().log.log_end_offset) == (0, 1)

    run_story(story)


def test_recovered_is_reported_with_an_unchanged_isr() -> None:
    """§ Leader, AlterPartition with an unchanged set; V33, V38, also with one replica (gaps.md G19)."""

    async def story(desk: Desk) -> None:
        desk.lead(4, replicas=(1,), leader_recovery_state=RECOVERING)
        change = await _asked(desk)
        assert [each.broker_id for each in change.new_isr] == [1]

    run_story(story)


def test_controllers_response_is_sufficient() -> None:
    """V39: a success response counts as the record does."""

    async def story(desk: Desk) -> None:
        def recovered(request: Any) -> Any:
            (topic_id, (change,)), *_ = request.topics
            altered = AlteredPartition(
                index=change.index,
                code=ErrorCode.NONE,
                leader=1,
                leader_epoch=change.leader_epoch,
                isr=(1,),
                leader_recovery_state=LeaderRecoveryState.RECOVERED,
                partition_epoch=change.partition_epoch + 1,
            )
            return type("Answer", (), {"topics": ((topic_id, (altered,)),)})()

        desk.controller.answer = recovered
        desk.lead(4, leader_recovery_state=RECOVERING)
        while desk.replica().is_recovering:
            await turns(1)
        assert desk.produced().responses[0].partition_responses[0].error_code == 0

    run_story(story)


def test_requests_are_rejected_until_the_controller_accepts() -> None:
    """V39."""

    async def story(desk: Desk) -> None:
        desk.controller.answer = lambda _: PeerError(ErrorCode.REQUEST_TIMED_OUT)
        desk.lead(4, leader_recovery_state=RECOVERING)
        await _asked(desk, 2)
        assert desk.replica().is_recovering
        assert desk.fetched().error_code == NOT_LEADER
        assert state(desk.image).leader_recovery_state is RECOVERING

    run_story(story)


def test_no_replica_joins_the_isr_before_recovery() -> None:
    """§ Leader: no expansion while it recovers; V39, V42."""

    async def story(desk: Desk) -> None:
        desk.lead(4, leader_recovery_state=RECOVERING)
        await _asked(desk)
        assert desk.follower_fetched(2, 0).error_code == NOT_LEADER
        leader = desk.replica().leader
        assert leader is not None
        assert leader.propose_expansion(2) is None
        desk.controller.lose()
        _told_recovered(desk)
        assert desk.follower_fetched(2, 0).error_code == 0
        assert sorted(each.broker_id for each in (await _asked(desk, 2)).new_isr) == [1, 2]

    run_story(story)


def test_leadership_loss_stops_recovery_and_the_next_leader_restarts_it() -> None:
    """§ Leader; V40-V41: also the same broker, elected again while it recovers."""

    async def story(desk: Desk) -> None:
        desk.lead(4, leader_recovery_state=RECOVERING)
        await _asked(desk)
        desk.follow(5, leader=2, leader_recovery_state=RECOVERING)
        assert not desk.replication._recoveries
        desk.controller.lose()
        desk.lead(6, leader_recovery_state=RECOVERING)
        assert (await _asked(desk, 2)).leader_epoch == 6
        assert desk.replica().is_recovering

    run_story(story)


def test_a_clean_election_needs_no_recovery() -> None:
    """§ Proposed Changes: RECOVERED is the state of every other election."""

    async def story(desk: Desk) -> None:
        desk.lead(4)
        await turns()
        assert desk.controller.asked == []
        assert desk.fetched().error_code == 0

    run_story(story)


def test_reported_end_offset_is_the_log_end() -> None:
    """V45: for a sole replica; the end offset is not returned before."""

    async def story(desk: Desk) -> None:
        desk.follow(3, leader=2, isr=(2, 1))
        desk.copied(5, epoch=3, high_watermark=1)
        desk.lead(4, isr=(1,), leader_recovery_state=RECOVERING)
        assert (await desk.list_offset(-1)).error_code == NOT_LEADER
        _told_recovered(desk)
        assert (await desk.list_offset(-1)).offset == 5

    run_story(story)


# -- § Compatibility -----------------------------------------------------------------------------------------------


def test_rejected_replica_backs_off_and_truncates_nothing() -> None:
    """§ Clients, Fetch: replicas back off; V43: for `replica.fetch.backoff.ms` at most, since a recovery takes
    milliseconds, and with the log unchanged whatever its epochs are."""
    log = MemoryLog()
    log.append([3] * 5)
    limits = FetchLimits(max_wait_ms=500, min_bytes=1, max_bytes=10_000, partition_max_bytes=1_000, backoff_ms=1_000)
    following = ReplicaFetcher(replica_id=2, broker_epoch=102, limits=limits)
    state = FollowerState("topic", bytes(16), 0, 4, log)
    following.follow(state)
    now_ms, pauses = 0, []
    for _ in range(8):
        assert following.next_request(now_ms) is not None
        refused = FetchedPartition(None, bytes(16), 0, error_code=NOT_LEADER)
        assert list(following.on_answer(FetchResponse([refused], session_id=5), now_ms)) == []
        assert following.next_request(now_ms) is None
        ready_ms = following.next_ready_ms()
        assert ready_ms is not None
        pauses.append(ready_ms - now_ms)
        now_ms = ready_ms
    assert (pauses[0], max(pauses)) == (20, 1_000)
    assert log.log_end_offset == 5


def test_versions_without_recovery_state_or_topic_ids_are_unsupported() -> None:
    """§ Public Interfaces, AlterPartition versions 0 and 1: every broker of a metadata.version that can be finalized
    has version 2 (3.3-IV3 is level 7), and Kafka 4 took 0 and 1 out."""
    api, _ = broker_partition_requests.controller_apis(Mock())
    assert api.key is ApiKey.ALTER_PARTITION
    assert (api.min_version, api.max_version) == (2, 3)
    assert MINIMUM_METADATA_VERSION >= 7
