"""Followed partitions without files: which ones have no object, and what opens them.

Rules: `epochs.md E23`, `E25`, `E28`, `E29`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from fenceline.errors import ErrorCode
from fenceline.ids import NO_LEADER
from fenceline.metadata.image import TopicImage
from fenceline.records.build import build_batch
from fenceline.replica.fetcher import MOST_NAMED
from fenceline.replica.follower import AskEnd, FollowerPhase, FollowerState
from fenceline.wire.fetch import FetchedPartition, FetchResponse
from tests.node import desk as desks
from tests.node.api.handlers.fakes import partition, topic_image
from tests.node.desk import ME, TOPIC, Desk, turns

LEADER = 2
EPOCH = 4


def run_story(story: Callable[[Desk], Coroutine[Any, Any, None]], **given: Any) -> None:
    """With the fetchers of a node."""

    async def following(desk: Desk) -> None:
        fetchers = desk.replication.fetchers
        del fetchers.follow, fetchers.follow_unused
        await story(desk)

    desks.run_story(following, **given)


class Followed:
    """The partitions that a desk follows from one leader, and that leader's answers."""

    def __init__(self, desk: Desk, leader: int = LEADER) -> None:
        self.desk = desk
        self.topic_id = desk.image.topics_by_name[TOPIC].id.bytes
        self.link = desk.replication.fetchers._links[leader]

    def state(self, index: int = 0) -> FollowerState:
        return self.link.fetcher.states[self.topic_id, index]

    def asks(self) -> list[int]:
        """The partitions that the next request names."""
        request = self.link.fetcher.next_request(0)
        return [] if request is None else [each.index for each in request.partitions]

    def answer(self, *rows: FetchedPartition, error: int = 0) -> list[Any]:
        """The leader answers the request. Returns the questions that follow."""
        questions: list[Any] = []
        for duty in self.link.fetcher.on_answer(FetchResponse(list(rows), error_code=error, session_id=7), 0):
            self.link.duties.execute(duty, questions)
        return questions

    def row(self, index: int = 0, code: int = 0, *, high_watermark: int = 0, start: int = 0, **more: Any) -> Any:
        more.setdefault("records", b"")
        return FetchedPartition(None, self.topic_id, index, code, high_watermark, high_watermark, start, **more)


def _records() -> bytearray:
    """The first batch of a partition."""
    batch = bytearray(build_batch([(0, b"k", b"v", ())]))
    batch[12:16] = EPOCH.to_bytes(4, "big")
    return batch


def _follow(desk: Desk, index: int = 0, *, leader: int = LEADER, epoch: int = EPOCH, **more: Any) -> None:
    desk.tell(index, leader=leader, leader_epoch=epoch, isr=(leader, ME), **more)


def _opened(desk: Desk) -> list[int]:
    return sorted(index for _, index in desk.partitions.open_by_name)


def test_partitions_without_records_are_followed_without_objects() -> None:
    async def story(desk: Desk) -> None:
        for index in range(3):
            _follow(desk, index)
        followed = Followed(desk)
        assert followed.asks() == [0, 1, 2]
        followed.answer(*(followed.row(index) for index in range(3)))
        assert followed.asks() == []
        assert _opened(desk) == []
        assert [desk.replication.fetchers.unused_epoch((followed.topic_id, index)) for index in range(3)] == [EPOCH] * 3
        assert desk.replication.fetchers.phases() == [FollowerPhase.FETCHING] * 3
        assert not [name for name in desk.disk.listdir(desk.log_dirs.opened[0].path) if name.startswith(TOPIC)]

    run_story(story, partitions=3)


def test_first_record_opens_the_replica_and_is_appended() -> None:
    async def story(desk: Desk) -> None:
        for index in range(2):
            _follow(desk, index)
        followed = Followed(desk)
        followed.asks()
        followed.answer(followed.row(0), followed.row(1, high_watermark=0, records=_records()))
        assert _opened(desk) == [1]
        assert desk.replica(1).log.log_end_offset == 1
        assert followed.asks() == [1]
        assert followed.link.fetcher._sent[followed.topic_id, 1].fetch_offset == 1

    run_story(story, partitions=2)


def test_leader_whose_log_starts_later_is_asked_for_its_end() -> None:
    """E28: offset 0 is out of range."""

    async def story(desk: Desk) -> None:
        _follow(desk)
        followed = Followed(desk)
        followed.asks()
        questions = followed.answer(followed.row(0, ErrorCode.OFFSET_OUT_OF_RANGE))
        assert _opened(desk) == [0]
        assert questions == [AskEnd(followed.state())]
        assert followed.state().phase is FollowerPhase.LOOKING
        assert followed.state().log is desk.replica().log

    run_story(story)


def test_replica_that_is_opened_meanwhile_is_not_asked_for_again() -> None:
    """A client that reads from followers opens it. The fetch in flight is the same for both."""

    async def story(desk: Desk) -> None:
        _follow(desk)
        followed = Followed(desk)
        assert followed.asks() == [0]
        before = followed.state()
        before.failures = 3
        desk.replica()
        assert followed.state().log is desk.replica().log
        assert followed.state().failures == 3
        followed.answer(followed.row(0))
        assert followed.state().is_compared
        assert followed.asks() == []

    run_story(story)


def test_next_epoch_and_next_leader() -> None:
    async def story(desk: Desk) -> None:
        _follow(desk)
        followed = Followed(desk)
        assert followed.asks() == [0]
        state = followed.state()
        desk.tell(isr=(LEADER,))
        assert followed.state() is state, "the fetch in flight stays valid"
        followed.answer(followed.row(0))
        _follow(desk, epoch=EPOCH + 1)
        assert followed.state().leader_epoch == EPOCH + 1
        _follow(desk, leader=3, epoch=EPOCH + 2)
        assert LEADER not in desk.replication.fetchers._links
        assert Followed(desk, 3).state().leader_epoch == EPOCH + 2
        assert _opened(desk) == []

    run_story(story)


@pytest.mark.parametrize("change", ["leads", "leaderless", "moved away", "deleted", "offline"])
def test_partition_that_is_followed_no_more(change: str) -> None:
    async def story(desk: Desk) -> None:
        _follow(desk)
        _follow(desk, 1)
        match change:
            case "leads":
                desk.tell(leader=ME, leader_epoch=EPOCH + 1)
                desk.tell(1, leader=ME, leader_epoch=EPOCH + 1)
            case "leaderless":
                desk.tell(leader=NO_LEADER, leader_epoch=EPOCH + 1)
                desk.tell(1, leader=NO_LEADER, leader_epoch=EPOCH + 1)
            case "moved away":
                desk.tell(replicas=(2, 3), isr=(2, 3))
                desk.tell(1, replicas=(2, 3), isr=(2, 3))
            case "deleted":
                desk.delete_topic()
            case "offline":
                assert desk.partitions.directory_failed(desk.log_dirs.opened[0], "it burns") == 2
                assert set(desk.partitions.offline) == {(TOPIC, 0), (TOPIC, 1)}
        assert desk.replication.fetchers._links == {}
        assert desk.replication.fetchers.phases() == []
        assert _opened(desk) == []

    run_story(story, partitions=2)


def test_replica_that_cannot_be_opened_is_given_up() -> None:
    async def story(desk: Desk) -> None:
        _follow(desk)
        followed = Followed(desk)
        followed.asks()

        def fails(*_: Any, **__: Any) -> None:
            raise OSError(5, "Input/output error")

        desk.log_dirs.opened[0].partition = fails  # type: ignore[assignment, method-assign]
        followed.answer(followed.row(0, records=_records()))
        assert set(desk.partitions.offline) == {(TOPIC, 0)}
        assert desk.replication.fetchers._links == {}

    run_story(story)


def test_session_of_many_partitions_is_opened_in_parts() -> None:
    count = 2 * MOST_NAMED + 10

    async def story(desk: Desk) -> None:
        for index in range(count):
            _follow(desk, index)
        followed = Followed(desk)
        named, waits = [], []
        while request := followed.link.fetcher.next_request(0):
            named.append([each.index for each in request.partitions])
            waits.append(request.max_wait_ms)
            followed.answer(*(followed.row(index) for index in named[-1]))
            if len(waits) > 3:
                break
        assert [len(each) for each in named] == [MOST_NAMED, MOST_NAMED, 10, 0]
        assert sorted(index for each in named for index in each) == list(range(count))
        assert waits == [0, 0, 500, 500]

    run_story(story, partitions=count)


def test_partition_with_records_is_not_delayed_by_new_ones() -> None:
    async def story(desk: Desk) -> None:
        _follow(desk)
        followed = Followed(desk)
        followed.asks()
        for index in range(1, MOST_NAMED + 20):
            _follow(desk, index)
        followed.answer(followed.row(0, records=_records()))
        asked = followed.asks()
        assert asked[0] == 0
        assert len(asked) == 1 + MOST_NAMED

    run_story(story, partitions=MOST_NAMED + 20)


def test_topic_of_the_same_name() -> None:
    """Its id is another, and so are its partitions in the session."""

    async def story(desk: Desk) -> None:
        _follow(desk)
        first = Followed(desk)
        first.asks()
        topic = desk.image.topics_by_name[TOPIC]
        desk.delete_topic()
        desk.add_topic(replace(topic, id=UUID(int=99)))
        second = Followed(desk)
        assert set(second.link.fetcher.states) == {(UUID(int=99).bytes, 0)}
        assert _opened(desk) == []

    run_story(story)


def _storm(count: int) -> TopicImage:
    return topic_image("storm", *[partition((LEADER, ME), leader=LEADER, leader_epoch=EPOCH)] * count, number=12)


def test_large_topic_is_followed_in_parts() -> None:
    """A topic of thousands of partitions is created in one record batch."""

    async def story(desk: Desk) -> None:
        desk.add_topic(_storm(500))
        fetchers = desk.replication.fetchers
        assert len(fetchers.unused()) == 100
        await turns()
        assert sorted(state.index for state in fetchers.unused()) == list(range(500))

    run_story(story)


def test_topic_that_is_deleted_before_all_is_followed_is_not_followed() -> None:
    async def story(desk: Desk) -> None:
        desk.add_topic(_storm(500))
        desk.delete_topic()
        await turns()
        assert desk.replication.fetchers.unused() == []
        assert desk.partitions._postponed == {}

    run_story(story)


def test_change_of_a_partition_that_is_not_followed_yet() -> None:
    """What was put off does not revert it."""

    async def story(desk: Desk) -> None:
        topic = _storm(500)
        desk.add_topic(topic)
        moved = topic.partitions[0]._replace(leader=3, leader_epoch=EPOCH + 1, replicas=(3, ME), partition_epoch=9)
        desk.add_topic(replace(topic, partitions=(*topic.partitions[:-1], moved)))
        fetchers, key = desk.replication.fetchers, (topic.id.bytes, 499)
        assert fetchers.unused_epoch(key) == EPOCH + 1
        await turns()
        assert fetchers.unused_epoch(key) == EPOCH + 1
        assert key in fetchers._links[3].fetcher.states
        assert key not in fetchers._links[LEADER].fetcher.states

    run_story(story)
