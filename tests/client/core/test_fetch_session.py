"""Incremental fetch sessions: what a broker has cached is what the client wants, whatever fails in between."""

from __future__ import annotations

import random
from uuid import UUID, uuid4

import pytest

from fenceline.client.core.fetch_session import IncrementalFetch, PartitionFetch, SessionRequest
from fenceline.errors import ErrorCode
from fenceline.ids import TopicPartition


class Sessions:
    """A broker's side (KIP-227): one session of partitions by topic id or name."""

    def __init__(self, rng: random.Random, *, is_full: bool = False) -> None:
        self.rng, self.is_full = rng, is_full
        self.cached: dict[tuple[object, int], PartitionFetch] = {}
        self.id = self.epoch = 0
        self.named = 0

    def answer(self, request: SessionRequest, ids: dict[str, UUID], *, uses_ids: bool) -> tuple[ErrorCode, int]:
        """The error code and the session id."""

        def key(tp: TopicPartition, topic_id: UUID) -> tuple[object, int]:
            return (topic_id if uses_ids else tp.topic), tp.partition

        self.named += len(request.partitions)
        if request.epoch == 0:
            self.cached, self.id = {}, 0
            if self.is_full:
                return ErrorCode.NONE, 0
            self.id, self.epoch = self.rng.randrange(1, 2**31), 1
        elif request.session_id != self.id:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0
        elif request.epoch != self.epoch:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH, 0
        else:
            self.epoch += 1
        for each in request.partitions:
            self.cached[key(each.tp, ids[each.tp.topic])] = each
        for tp, topic_id in request.forgotten:
            del self.cached[key(tp, topic_id)]
        return ErrorCode.NONE, self.id


@pytest.mark.parametrize("uses_ids", [True, False])
@pytest.mark.parametrize("seed", range(10))
def test_the_broker_has_what_is_wanted(seed: int, uses_ids: bool) -> None:
    rng = random.Random(seed)
    broker, session = Sessions(rng), IncrementalFetch()
    ids = {topic: uuid4() for topic in "abc"}
    offsets = {TopicPartition(topic, index): 0 for topic in ids for index in range(3)}
    succeeded = 0
    for _ in range(300):
        if rng.random() < 0.1:
            ids[rng.choice("abc")] = uuid4()
        if rng.random() < 0.05:
            broker.id = 0
        if rng.random() < 0.02:
            uses_ids = not uses_ids
        wanted = [PartitionFetch(tp, offsets[tp], 0, 0, 10) for tp in offsets if rng.random() < 0.8]
        request = session.next_request(wanted, ids, uses_ids=uses_ids)
        was_lost = rng.random() < 0.1
        code, session_id = broker.answer(request, dict(ids), uses_ids=uses_ids)
        if was_lost:
            session.end()
        elif code is not ErrorCode.NONE:
            assert not request.is_full
            session.end(code)
        else:
            succeeded += 1
            session.answered(session_id)
            expected = {((ids[f.tp.topic] if uses_ids else f.tp.topic), f.tp.partition): f for f in wanted}
            assert broker.cached == expected
            assert set(session.topic_ids) == {each.tp.topic for each in wanted}
        for tp in rng.sample(sorted(offsets), 2):
            offsets[tp] += 1
    assert succeeded > 200


def test_an_unchanged_partition_is_named_once() -> None:
    broker, session, ids = Sessions(random.Random(1)), IncrementalFetch(), {"t": uuid4()}
    wanted = [PartitionFetch(TopicPartition("t", index), 0, 0, 0, 10) for index in range(100)]
    for _ in range(10):
        session.answered(broker.answer(session.next_request(wanted, ids, uses_ids=True), ids, uses_ids=True)[1])
        wanted[7] = wanted[7]._replace(offset=wanted[7].offset + 1)
    assert broker.named == 100 + 9


def test_a_broker_without_room_for_a_session_gets_full_requests() -> None:
    broker, session, ids = Sessions(random.Random(1), is_full=True), IncrementalFetch(), {"t": uuid4()}
    wanted = [PartitionFetch(TopicPartition("t", 0), 0, 0, 0, 10)]
    for _ in range(3):
        request = session.next_request(wanted, ids, uses_ids=True)
        assert (request.session_id, request.epoch, list(request.partitions)) == (0, 0, wanted)
        session.answered(broker.answer(request, ids, uses_ids=True)[1])
    assert wanted[0].tp not in session


def test_a_session_that_ended_is_closed_by_the_next_request() -> None:
    session, ids = IncrementalFetch(), {"t": uuid4()}
    wanted = [PartitionFetch(TopicPartition("t", 0), 0, 0, 0, 10)]
    session.next_request(wanted, ids, uses_ids=True)
    session.answered(77)
    session.end()
    assert session.next_request(wanted, ids, uses_ids=True)[:2] == (77, 0)
    session.end(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    assert session.next_request(wanted, ids, uses_ids=True)[:2] == (0, 0)


def test_epochs_wrap_to_one() -> None:
    session, ids = IncrementalFetch(), {"t": uuid4()}
    session.answered(5)
    session._epoch = 2**31 - 1
    session.answered(5)
    assert session.next_request([], ids, uses_ids=False).epoch == 1
