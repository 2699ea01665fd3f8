"""Leaders without records: which fetches of their followers need no object, and what opens one.

Rules: `epochs.md E1`, `E2`, `E5`, `E30-E39`.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from fenceline.controller.partition_requests import AlteredPartition
from fenceline.errors import ErrorCode
from fenceline.replica.leader import LeaderState
from fenceline.wire.fetch import FetchedPartition
from tests.node.desk import ME, RECOVERING, TOPIC, Answer, Desk, run_story, turns

EPOCH = 5
LAG_MS = 30_000


class Follower:
    """A broker that fetches all partitions of the desk's topic in a session."""

    def __init__(self, desk: Desk, replica_id: int, *, epoch: int = EPOCH) -> None:
        self.desk, self.replica_id, self.epoch = desk, replica_id, epoch
        self.broker_epoch = 100 + replica_id
        self._session, self._next = 0, 0

    def ask(self, *indexes: int, wait_ms: int = 0, offset: int = 0, **fields: Any) -> Answer:
        """The next request of the session. Names the partitions, as in the first one."""
        fields.setdefault("current_leader_epoch", self.epoch)
        wanted = [self.desk.wanted(offset, index=each, log_start_offset=0, **fields) for each in indexes]
        answer = self.desk.fetch(
            *wanted,
            replica_id=self.replica_id,
            replica_epoch=self.broker_epoch,
            session_id=self._session,
            session_epoch=self._next,
            max_wait_ms=wait_ms,
        )
        self._next += 1
        if not answer.is_pending:
            self._session = answer.response.session_id
        return answer

    def fetched(self, *indexes: int, **fields: Any) -> list[FetchedPartition]:
        return self.ask(*indexes, **fields).response.partitions


def _lead(desk: Desk, index: int = 0, isr: tuple[int, ...] = (1, 2, 3), leader: int = ME, **changes: Any) -> None:
    """As a failover does: nothing opens it."""
    desk.tell(index, leader=leader, leader_epoch=EPOCH, isr=isr, **changes)


def _opened(desk: Desk) -> list[int]:
    return sorted(index for _, index in desk.partitions.open_by_name)


def _codes(rows: list[FetchedPartition]) -> list[int]:
    return [row.error_code for row in rows]


def _state(desk: Desk, index: int = 0) -> LeaderState:
    leader = desk.partitions.open_by_name[TOPIC, index].leader
    assert leader is not None
    return leader


def test_followers_in_sync_fetch_without_objects() -> None:
    async def story(desk: Desk) -> None:
        for index in range(3):
            _lead(desk, index)
        for replica_id in (2, 3):
            follower = Follower(desk, replica_id)
            rows = follower.fetched(0, 1, 2)
            assert [(row.index, row.error_code, row.high_watermark, row.log_start_offset) for row in rows] == [
                (index, 0, 0, 0) for index in range(3)
            ]
            assert follower.fetched() == [], "they are told once"
        assert _opened(desk) == []
        assert len(desk.replication.resting) == 3

    run_story(story, partitions=3)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"offset": 4}, ErrorCode.OFFSET_OUT_OF_RANGE),
        ({"last_fetched_epoch": 3}, ErrorCode.NONE),
    ],
)
def test_what_is_not_plain_is_checked_by_the_object(fields: dict[str, Any], code: ErrorCode) -> None:
    async def story(desk: Desk) -> None:
        _lead(desk)
        assert _codes(Follower(desk, 2).fetched(0, **fields)) == [code]
        assert _opened(desk) == [0]

    run_story(story)


@pytest.mark.parametrize(
    ("epoch", "leader", "code"),
    [
        (EPOCH - 1, ME, ErrorCode.FENCED_LEADER_EPOCH),
        (EPOCH + 1, ME, ErrorCode.UNKNOWN_LEADER_EPOCH),
        (EPOCH, 3, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (-1, 3, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (EPOCH - 1, 3, ErrorCode.FENCED_LEADER_EPOCH),
    ],
)
def test_epochs_and_roles_are_checked_without_an_object(epoch: int, leader: int, code: ErrorCode) -> None:
    """E1-E3."""

    async def story(desk: Desk) -> None:
        _lead(desk, leader=leader)
        assert _codes(Follower(desk, 2).fetched(0, current_leader_epoch=epoch)) == [code]
        assert _opened(desk) == []

    run_story(story)


def test_earlier_process_of_a_broker_is_rejected() -> None:
    """E31."""

    async def story(desk: Desk) -> None:
        _lead(desk)
        follower = Follower(desk, 2)
        follower.broker_epoch -= 1
        assert _codes(follower.fetched(0)) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]

    run_story(story)


def test_partition_that_recovers_serves_no_follower() -> None:
    async def story(desk: Desk) -> None:
        _lead(desk, isr=(1,), leader_recovery_state=RECOVERING)
        assert _codes(Follower(desk, 2).fetched(0)) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]

    run_story(story)


def test_follower_that_waits_is_told_of_the_partition_first() -> None:
    """Kafka's followers expect each partition in the first response of a session."""

    async def story(desk: Desk) -> None:
        _lead(desk)
        follower = Follower(desk, 2)
        assert [row.high_watermark for row in follower.fetched(0, wait_ms=60_000)] == [0]
        answer = follower.ask(wait_ms=60_000)
        assert answer.is_pending
        assert _opened(desk) == []
        desk.append()
        await turns()
        assert [len(row.records or b"") > 0 for row in answer.response.partitions] == [True]

    run_story(story)


def test_first_record_reaches_followers_that_wait() -> None:
    async def story(desk: Desk) -> None:
        _lead(desk)
        followers = [Follower(desk, replica_id) for replica_id in (2, 3)]
        for each in followers:
            each.fetched(0)
        answers = [each.ask(wait_ms=60_000) for each in followers]
        assert all(each.is_pending for each in answers)
        desk.append()
        await turns()
        assert [each.response.partitions[0].index for each in answers] == [0, 0]
        assert all(each.response.partitions[0].records for each in answers)

    run_story(story)


def test_object_knows_the_progress_of_its_followers() -> None:
    """E32: as if it had been there all the time."""

    async def story(desk: Desk) -> None:
        _lead(desk)
        Follower(desk, 2).fetched(0)
        desk.clock.ms += 2_000
        Follower(desk, 3).fetched(0)
        at_ms = desk.clock.monotonic_ms()
        desk.clock.ms += 3_000
        desk.replica()
        followers = _state(desk).followers
        assert {each: progress.log_end_offset for each, progress in followers.items()} == {2: 0, 3: 0}
        assert {each: progress.broker_epoch for each, progress in followers.items()} == {2: 102, 3: 103}
        assert {each: progress.last_caught_up_ms for each, progress in followers.items()} == {
            2: at_ms - 2_000,
            3: at_ms,
        }
        desk.replication.shrink_isrs()
        assert (TOPIC, 0) not in desk.partitions.in_service.watched, "it is at rest"

    run_story(story)


def test_change_of_the_partition_is_noticed_in_the_session() -> None:
    """E5: the session keeps the epoch, and is fenced by it."""

    async def story(desk: Desk) -> None:
        for index in range(4):
            _lead(desk, index)
        follower = Follower(desk, 2)
        follower.fetched(0, 1, 2, 3)
        waiting = follower.ask(wait_ms=60_000)
        desk.tell(0, leader_epoch=EPOCH + 1)
        desk.tell(1, leader=3, leader_epoch=EPOCH + 1)
        desk.tell(2, replicas=(1, 3), isr=(1, 3))
        await turns()
        assert sorted((row.index, row.error_code) for row in waiting.response.partitions) == [
            (0, ErrorCode.FENCED_LEADER_EPOCH),
            (1, ErrorCode.FENCED_LEADER_EPOCH),
            (2, ErrorCode.UNKNOWN_LEADER_EPOCH),
        ]
        assert _opened(desk) == [2], "the others only say what the metadata says"

    run_story(story, partitions=4)


def test_deleted_topic_is_noticed_in_the_session() -> None:
    async def story(desk: Desk) -> None:
        _lead(desk)
        follower = Follower(desk, 2)
        follower.fetched(0)
        waiting = follower.ask(wait_ms=60_000)
        desk.delete_topic()
        await turns()
        assert _codes(waiting.response.partitions) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]

    run_story(story)


def test_failed_directory_is_noticed_in_the_session() -> None:
    async def story(desk: Desk) -> None:
        _lead(desk)
        follower = Follower(desk, 2)
        follower.fetched(0)
        waiting = follower.ask(wait_ms=60_000)
        directory = desk.log_dirs.opened[0]
        desk.log_dirs.fail(directory, "test")
        desk.partitions.directory_failed(directory, "test")
        await turns()
        assert _codes(waiting.response.partitions) == [ErrorCode.KAFKA_STORAGE_ERROR]

    run_story(story)


def _answering(code: ErrorCode = ErrorCode.NONE) -> Callable[[Any], Any]:
    """A controller that answers each change with this code."""

    def altered(change: Any) -> AlteredPartition:
        isr = tuple(member.broker_id for member in change.new_isr)
        return AlteredPartition(change.index, code, ME, change.leader_epoch, isr, 0, change.partition_epoch + 1)

    return lambda request: SimpleNamespace(
        topics=tuple((topic_id, tuple(map(altered, changes))) for topic_id, changes in request.topics)
    )


def _changes(desk: Desk) -> list[Any]:
    """All changes that the controller was asked for."""
    return [change for request in desk.controller.asked for _, changes in request.topics for change in changes]


def test_returned_followers_join_without_objects() -> None:
    async def story(desk: Desk) -> None:
        for index in range(3):
            _lead(desk, index, isr=(1, 2))
        follower = Follower(desk, 3)
        follower.fetched(0, 1, 2)
        await turns()
        changes = _changes(desk)
        assert [change.index for change in changes] == [0, 1, 2]
        assert [tuple(change.new_isr) for change in changes] == [((1, 101), (2, -1), (3, 103))] * 3
        assert follower.fetched() == [], "the decision is waited for"
        assert len(desk.controller.asked) == 1
        for index in range(3):
            desk.tell(index, isr=(1, 2, 3))
        follower.fetched()
        await turns()
        assert len(desk.controller.asked) == 1
        assert _opened(desk) == []

    run_story(story, partitions=3)


def test_new_member_is_waited_for_from_the_first_record_on() -> None:
    """E37: the controller may have added it already."""

    async def story(desk: Desk) -> None:
        _lead(desk, isr=(1,))
        Follower(desk, 3).fetched(0)
        await turns()
        desk.append()
        leader = _state(desk)
        assert leader.maximal_isr == {1, 3}
        assert leader.high_watermark == 0
        desk.controller.lose()
        await turns()
        assert len(desk.controller.asked) == 1, "it is asked again after a pause"

    run_story(story)


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("code", [ErrorCode.INELIGIBLE_REPLICA, ErrorCode.INVALID_UPDATE_VERSION])
def test_rejected_follower_is_proposed_again(code: ErrorCode, *, is_open: bool) -> None:
    """E39: after INELIGIBLE_REPLICA with its next fetch, otherwise once the metadata shows the change in its way."""

    async def story(desk: Desk) -> None:
        _lead(desk, isr=(1, 2))
        follower = Follower(desk, 3)
        desk.controller.answer = _answering(code)
        follower.fetched(0)
        if is_open:
            desk.replica()
        await turns()
        assert len(_changes(desk)) == 1
        follower.fetched()
        await turns()
        assert len(_changes(desk)) == (2 if code is ErrorCode.INELIGIBLE_REPLICA else 1)
        desk.tell(0, isr=(1,))
        follower.fetched()
        await turns()
        assert [member.broker_id for member in _changes(desk)[-1].new_isr] == [1, 3]
        assert _opened(desk) == ([0] if is_open or code is ErrorCode.INELIGIBLE_REPLICA else [])

    run_story(story)


def test_two_returned_followers_join_one_after_the_other() -> None:
    """E35. The second one waits for the decision about the first, and fetches again after it."""

    async def story(desk: Desk) -> None:
        _lead(desk, isr=(1,))
        desk.controller.answer = _answering()
        second, third = Follower(desk, 2), Follower(desk, 3)
        second.fetched(0)
        third.fetched(0)
        waiting = third.ask(wait_ms=60_000)
        await turns()
        assert waiting.is_pending
        assert [tuple(change.new_isr) for change in _changes(desk)] == [((1, 101), (2, 102))]
        desk.tell(0, isr=(1, 2))
        await turns()
        assert waiting.response.partitions == [], "it has to fetch again"
        third._session = waiting.response.session_id
        assert third.ask(wait_ms=60_000).is_pending
        await turns()
        assert [member.broker_id for member in _changes(desk)[-1].new_isr] == [1, 2, 3]
        assert _opened(desk) == []

    run_story(story)


def test_accepted_change_counts_before_the_metadata_shows_it() -> None:
    async def story(desk: Desk) -> None:
        _lead(desk, isr=(1, 2))
        desk.controller.answer = _answering()
        Follower(desk, 3).fetched(0)
        desk.replica()
        await turns()
        assert _state(desk).isr == {1, 2, 3}
        assert desk.replication.isr_changes.expands == 1

    run_story(story)


def test_ineligible_follower_is_left_to_the_object() -> None:
    """E36: a fenced broker may fetch, and does not join."""

    async def story(desk: Desk) -> None:
        desk.tell_broker(3, fenced=True)
        _lead(desk, isr=(1, 2))
        assert _codes(Follower(desk, 3).fetched(0)) == [0]
        assert _opened(desk) == [0]
        await turns()
        assert desk.controller.asked == []

    run_story(story)


def test_member_that_does_not_come_is_removed() -> None:
    """E38: while others fetch."""

    async def story(desk: Desk) -> None:
        for index in (0, 1):
            _lead(desk, index)
            Follower(desk, 2).fetched(index)
        Follower(desk, 3).fetched(1)
        desk.clock.ms += LAG_MS
        desk.replication.shrink_isrs()
        assert _opened(desk) == []
        desk.clock.ms += 1
        desk.replication.shrink_isrs()
        await turns()
        assert _opened(desk) == [0]
        assert [[member.broker_id for member in change.new_isr] for change in _changes(desk)] == [[1, 2]]

    run_story(story, partitions=2)


def test_closed_sessions_are_let_go() -> None:
    async def story(desk: Desk) -> None:
        _lead(desk)
        for _ in range(5):
            Follower(desk, 2).fetched(0)
            desk.fetching.sessions.by_id.popitem()[1].close()
        Follower(desk, 2).fetched(0)
        (waiting,) = desk.replication.resting._followers.values()
        assert len(waiting) == 1

    run_story(story)
