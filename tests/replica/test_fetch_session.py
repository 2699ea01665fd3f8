"""Fetch sessions (KIP-227) as a table of requests and their effects; tests/kafka sends the same to Apache Kafka."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from fenceline.errors import ErrorCode, PeerError
from fenceline.replica.fetch_session import FetchSessions, SessionAnswer
from fenceline.replica.progress import FollowerProgress
from fenceline.wire.fetch import FetchedPartition, FetchPartition, FetchRequest

TOPIC_ID = bytes(range(16))


def wanted(index: int, offset: int = 0, *, topic: str | None = "t", topic_id: bytes | None = None) -> FetchPartition:
    return FetchPartition(topic, topic_id, index, offset, 1000)


def request(
    session_id: int,
    epoch: int,
    *partitions: FetchPartition,
    forgotten: list[tuple[str | None, bytes | None, list[int]]] | None = None,
    replica_id: int = -1,
) -> FetchRequest:
    return FetchRequest(
        cluster_id=None,
        replica_id=replica_id,
        replica_epoch=-1,
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=1 << 20,
        isolation_level=0,
        session_id=session_id,
        session_epoch=epoch,
        partitions=list(partitions),
        forgotten=forgotten or [],
        rack_id="",
    )


def fetched_partition(
    index: int, *, records: bytes = b"", high_watermark: int = 0, log_start: int = 0, error: int = 0, **more: object
) -> FetchedPartition:
    return FetchedPartition(
        "t",
        None,
        index,
        error,
        high_watermark,
        high_watermark,
        log_start,
        records=records,
        **more,  # type: ignore[arg-type]
    )


class Reader:
    """One client of a session cache; `answer` keeps its id and epoch up to date as a client does."""

    def __init__(self, sessions: FetchSessions) -> None:
        self.sessions = sessions
        self.session_id = 0
        self.epoch = 0
        self.next_id = 100

    def ask(self, *partitions: FetchPartition, ids: bool = False, now_ms: int = 0, **more: object) -> SessionAnswer:
        asked = request(self.session_id, self.epoch, *partitions, **more)  # type: ignore[arg-type]
        self.next_id += 1
        answer = self.sessions.begin(asked, uses_topic_ids=ids, now_ms=now_ms, fresh_id=self.next_id)
        self.session_id = answer.session_id
        self.epoch = self.epoch + 1 if answer.session_id else 0
        return answer


@pytest.fixture
def sessions() -> FetchSessions:
    return FetchSessions(max_sessions=3, min_eviction_ms=1000)


@pytest.fixture
def reader(sessions: FetchSessions) -> Reader:
    return Reader(sessions)


def indexes(partitions: list[FetchPartition] | list[FetchedPartition]) -> list[int]:
    return [partition.index for partition in partitions]


def code_of(sessions: FetchSessions, asked: FetchRequest, *, ids: bool = False) -> ErrorCode:
    with pytest.raises(PeerError) as failure:
        sessions.begin(asked, uses_topic_ids=ids, now_ms=0, fresh_id=1)
    return failure.value.code


# --- opening, continuing, closing ---------------------------------------------------------------------------------


def test_a_full_fetch_without_a_session_opens_none(sessions: FetchSessions) -> None:
    answer = sessions.begin(request(0, -1, wanted(0)), uses_topic_ids=False, now_ms=0, fresh_id=7)
    assert (answer.session_id, answer.session, answer.is_full) == (0, None, True)
    assert len(sessions) == 0


@pytest.mark.parametrize("by_id", [False, True])
def test_without_a_session_the_last_mention_of_a_partition_counts(sessions: FetchSessions, by_id: bool) -> None:
    topic: dict[str, Any] = {"topic": None, "topic_id": b"i" * 16} if by_id else {}
    mentions = [wanted(0, 1, **topic), wanted(1, 2, **topic), wanted(0, 3, **topic)]
    answer = sessions.begin(request(0, -1, *mentions), uses_topic_ids=by_id, now_ms=0, fresh_id=7)
    assert answer.partitions == [mentions[2], mentions[1]]
    others = [wanted(0, 1, **topic), wanted(1, 2, **topic), wanted(0, 3, topic="u")]
    answer = sessions.begin(request(0, -1, *others), uses_topic_ids=by_id, now_ms=0, fresh_id=7)
    assert answer.partitions == others


def test_epoch_0_opens_a_session_and_returns_everything(reader: Reader, sessions: FetchSessions) -> None:
    answer = reader.ask(wanted(0), wanted(1))
    assert answer.session_id != 0
    assert answer.is_full
    fetched = [fetched_partition(0), fetched_partition(1)]
    assert answer.select(fetched) == fetched
    assert len(sessions) == 1


def test_an_empty_session_opens_and_closes_with_its_next_request(reader: Reader, sessions: FetchSessions) -> None:
    assert reader.ask().session_id != 0
    assert reader.ask().session_id == 0
    assert len(sessions) == 0


def test_later_responses_contain_only_changes(reader: Reader) -> None:
    reader.ask(wanted(0), wanted(1), wanted(2)).select(
        [fetched_partition(0), fetched_partition(1), fetched_partition(2)]
    )
    answer = reader.ask()
    assert indexes(answer.partitions) == [0, 1, 2]
    assert answer.select([fetched_partition(0), fetched_partition(1), fetched_partition(2)]) == []
    news = [
        fetched_partition(0, records=b"r", high_watermark=1),
        fetched_partition(1, high_watermark=5),
        fetched_partition(2, log_start=1),
    ]
    assert reader.ask().select(news) == news


@pytest.mark.parametrize(
    "news",
    [
        fetched_partition(0, records=b"r"),
        fetched_partition(0, error=1),
        fetched_partition(0, diverging_epoch=(1, 2)),
        fetched_partition(0, preferred_read_replica=3),
        fetched_partition(0, snapshot_id=(1, 2)),
    ],
)
def test_which_changes_are_returned(reader: Reader, news: FetchedPartition) -> None:
    reader.ask(wanted(0)).select([fetched_partition(0)])
    assert reader.ask().select([news]) == [news]


def test_a_partition_is_returned_again_after_an_error(reader: Reader) -> None:
    reader.ask(wanted(0)).select([fetched_partition(0)])
    reader.ask().select([fetched_partition(0, error=6)])
    assert indexes(reader.ask().select([fetched_partition(0)])) == [0]
    assert reader.ask().select([fetched_partition(0)]) == []


def test_partitions_are_added_replaced_and_forgotten(reader: Reader) -> None:
    reader.ask(wanted(0), wanted(1))
    assert indexes(reader.ask(wanted(2)).partitions) == [0, 1, 2]
    moved = reader.ask(wanted(1, 55)).partitions
    assert [(p.index, p.fetch_offset) for p in moved] == [(0, 0), (1, 55), (2, 0)]
    assert indexes(reader.ask(forgotten=[("t", None, [0, 9]), ("u", None, [2])]).partitions) == [1, 2]


def test_forgetting_overrides_adding_in_the_same_request(reader: Reader) -> None:
    reader.ask(wanted(0), wanted(1))
    assert indexes(reader.ask(wanted(0, 9), forgotten=[("t", None, [0])]).partitions) == [1]


def test_a_forgotten_partition_is_returned_in_full_when_added_again(reader: Reader) -> None:
    reader.ask(wanted(0), wanted(1)).select([fetched_partition(0), fetched_partition(1)])
    reader.ask(forgotten=[("t", None, [0])])
    assert indexes(reader.ask(wanted(0)).select([fetched_partition(1), fetched_partition(0)])) == [0]


def test_a_session_without_partitions_is_closed(reader: Reader, sessions: FetchSessions) -> None:
    reader.ask(wanted(0))
    answer = reader.ask(forgotten=[("t", None, [0])])
    assert (answer.session_id, answer.partitions) == (0, [])
    assert len(sessions) == 0


def test_minus_one_closes_and_zero_replaces(reader: Reader, sessions: FetchSessions) -> None:
    first = reader.ask(wanted(0)).session_id
    again = sessions.begin(request(first, 0, wanted(1)), uses_topic_ids=False, now_ms=0, fresh_id=900)
    assert (again.session_id, len(sessions)) == (900, 1)
    assert code_of(sessions, request(first, 1)) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    answer = sessions.begin(request(900, -1, wanted(1)), uses_topic_ids=False, now_ms=0, fresh_id=1)
    assert (answer.session_id, indexes(answer.partitions), len(sessions)) == (0, [1], 0)


def test_a_partition_listed_twice_counts_once(reader: Reader) -> None:
    answer = reader.ask(wanted(0, 1), wanted(1), wanted(0, 2))
    assert [(p.index, p.fetch_offset) for p in answer.partitions] == [(0, 2), (1, 0)]


# --- refusals -----------------------------------------------------------------------------------------------------


def test_unknown_session(sessions: FetchSessions) -> None:
    assert code_of(sessions, request(5, 1)) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert code_of(sessions, request(0, 1)) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND


@pytest.mark.parametrize("epoch", [2, 3, -2])
def test_an_epoch_out_of_sequence_changes_nothing(reader: Reader, sessions: FetchSessions, epoch: int) -> None:
    reader.ask(wanted(0))
    asked = request(reader.session_id, epoch, wanted(7))
    assert code_of(sessions, asked) is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert indexes(reader.ask().partitions) == [0]


def test_an_epoch_counts_once(reader: Reader, sessions: FetchSessions) -> None:
    reader.ask(wanted(0))
    reader.ask()
    assert code_of(sessions, request(reader.session_id, 1)) is ErrorCode.INVALID_FETCH_SESSION_EPOCH


def test_epochs_wrap_around_to_1(reader: Reader) -> None:
    session = reader.ask(wanted(0)).session
    assert session is not None
    session.next_epoch = reader.epoch = 2**31 - 1
    reader.ask()
    reader.epoch = 1
    reader.ask()
    assert session.next_epoch == 2


def test_names_and_ids_do_not_mix(reader: Reader, sessions: FetchSessions) -> None:
    reader.ask(wanted(0))
    asked = request(reader.session_id, 1, wanted(0, topic=None, topic_id=TOPIC_ID))
    assert code_of(sessions, asked, ids=True) is ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    by_id = Reader(sessions)
    by_id.ask(wanted(0, topic=None, topic_id=TOPIC_ID), ids=True)
    assert code_of(sessions, request(by_id.session_id, 1, wanted(0))) is ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    by_id.ask(ids=True)


# --- order --------------------------------------------------------------------------------------------------------


def test_served_partitions_move_to_the_end(reader: Reader) -> None:
    reader.ask(wanted(0), wanted(1), wanted(2)).select(
        [fetched_partition(0, records=b"r"), fetched_partition(1), fetched_partition(2)]
    )
    answer = reader.ask()
    assert indexes(answer.partitions) == [0, 1, 2], "the opening response keeps the order of the request"
    answer.select([fetched_partition(0, records=b"r"), fetched_partition(1), fetched_partition(2)])
    answer = reader.ask()
    assert indexes(answer.partitions) == [1, 2, 0]
    answer.select([fetched_partition(1, error=3), fetched_partition(2, records=b"r"), fetched_partition(0)])
    assert indexes(reader.ask().partitions) == [1, 0, 2]


# --- known topics -------------------------------------------------------------------------------------------------


def test_a_session_remembers_the_topics_it_has_found(reader: Reader) -> None:
    by_id = wanted(0, topic=None, topic_id=TOPIC_ID)
    unknown = FetchedPartition(None, TOPIC_ID, 0, ErrorCode.UNKNOWN_TOPIC_ID)

    def is_known(answer: SessionAnswer) -> bool:
        return answer.to_read()[0].is_known

    answer = reader.ask(by_id, ids=True)
    assert not is_known(answer)
    answer.select([unknown])
    answer = reader.ask(ids=True)
    assert not is_known(answer)
    answer.select([FetchedPartition(None, TOPIC_ID, 0, 0, 0, 0, 0, records=b"")])
    assert is_known(reader.ask(ids=True))


# --- partitions that are not read ---------------------------------------------------------------------------------


class Partitions:
    """The listeners of each partition."""

    def __init__(self) -> None:
        self.waiters: dict[int, set[Callable[[], None]]] = defaultdict(set)

    def mark_idle(self, answer: SessionAnswer, progress: FollowerProgress | None = None) -> None:
        """No partition has anything new."""
        for each in answer.to_read():
            each.mark_idle(self.waiters[each.asked.index], progress)

    def change(self, index: int) -> None:
        for call in tuple(self.waiters[index]):
            call()

    @property
    def waited_for(self) -> list[int]:
        return [index for index, waiters in self.waiters.items() if waiters]


@pytest.fixture
def partitions() -> Partitions:
    return Partitions()


def test_unchanged_partitions_are_not_read(reader: Reader, partitions: Partitions) -> None:
    partitions.mark_idle(reader.ask(wanted(0), wanted(1), wanted(2)))
    answer = reader.ask()
    assert indexes(answer.partitions) == []
    assert answer.has_idle
    partitions.change(2)
    partitions.change(0)
    assert indexes(reader.ask().partitions) == [0, 2]
    assert partitions.waited_for == [1], "the listener removes itself at its first call"


def test_a_waiting_fetch_is_notified_of_a_change_once(reader: Reader, partitions: Partitions) -> None:
    answer = reader.ask(wanted(0))
    partitions.mark_idle(answer)
    heard: list[int] = []
    assert answer.session is not None
    answer.session.listeners.add(lambda: heard.append(1))
    partitions.change(0)
    partitions.change(0)
    assert heard == [1]


def test_a_requested_partition_is_read_again(reader: Reader, partitions: Partitions) -> None:
    partitions.mark_idle(reader.ask(wanted(0), wanted(1)))
    assert [(p.index, p.fetch_offset) for p in reader.ask(wanted(1, 7)).partitions] == [(1, 7)]
    assert partitions.waited_for == [0]


@pytest.mark.parametrize("how", ["forgotten", "closed", "replaced", "evicted"])
def test_a_closed_session_leaves_no_listeners(
    reader: Reader, sessions: FetchSessions, partitions: Partitions, how: str
) -> None:
    answer = reader.ask(wanted(0), wanted(1))
    partitions.mark_idle(answer)
    match how:
        case "forgotten":
            reader.ask(forgotten=[("t", None, [0, 1])])
        case "closed":
            sessions.begin(request(answer.session_id, -1), uses_topic_ids=False, now_ms=0, fresh_id=5)
        case "replaced":
            sessions.begin(request(answer.session_id, 0), uses_topic_ids=False, now_ms=0, fresh_id=5)
        case _:
            for number in range(3):
                _open(sessions, now_ms=10_000, fresh_id=900 + number)
    assert partitions.waited_for == []


def test_a_follower_of_unchanged_partitions_stays_in_sync_while_it_fetches(
    reader: Reader, partitions: Partitions
) -> None:
    """`epochs.md E32`: it is at the log's end with every fetch, though this is not recorded each time."""
    progress = FollowerProgress()
    progress.fetched(5, 0, 102, 5, 1_000)
    partitions.mark_idle(reader.ask(wanted(0), now_ms=1_000), progress)
    reader.ask(now_ms=90_000)
    partitions.change(0)
    assert (progress.last_caught_up_ms, progress.last_fetch_ms) == (90_000, 90_000)
    assert progress.is_caught_up(6, 119_000, 30_000)
    assert not progress.is_caught_up(6, 121_000, 30_000)


def test_a_request_of_an_outdated_process_is_read_in_full_and_proves_nothing(
    reader: Reader, sessions: FetchSessions, partitions: Partitions
) -> None:
    progress = FollowerProgress()
    progress.fetched(5, 0, 102, 5, 1_000)
    partitions.mark_idle(reader.ask(wanted(0), wanted(1), now_ms=1_000), progress)
    asked = request(reader.session_id, 1, replica_id=2)
    answer = sessions.begin(asked, uses_topic_ids=False, now_ms=90_000, fresh_id=1, is_outdated=True)
    assert indexes(answer.partitions) == [0, 1]
    assert progress.last_caught_up_ms == 1_000


def test_a_follower_that_registered_again_is_read_in_full(
    reader: Reader, sessions: FetchSessions, partitions: Partitions
) -> None:
    """Its leader has to learn the new broker epoch of every partition (E36)."""
    partitions.mark_idle(reader.ask(wanted(0), wanted(1)))
    asked = replace(request(reader.session_id, 1, replica_id=2), replica_epoch=7)
    answer = sessions.begin(asked, uses_topic_ids=False, now_ms=0, fresh_id=1)
    assert indexes(answer.partitions) == [0, 1]
    partitions.mark_idle(answer)
    asked = replace(request(reader.session_id, 2, replica_id=2), replica_epoch=7)
    assert sessions.begin(asked, uses_topic_ids=False, now_ms=0, fresh_id=1).partitions == []


# --- capacity -----------------------------------------------------------------------------------------------------


def _open(sessions: FetchSessions, *, now_ms: int, fresh_id: int, replica_id: int = -1, size: int = 1) -> int:
    asked = request(0, 0, *map(wanted, range(size)), replica_id=replica_id)
    return sessions.begin(asked, uses_topic_ids=False, now_ms=now_ms, fresh_id=fresh_id).session_id


def _lives(sessions: FetchSessions, session_id: int, epoch: int = 1, now_ms: int = 0) -> bool:
    try:
        sessions.begin(request(session_id, epoch), uses_topic_ids=False, now_ms=now_ms, fresh_id=1)
    except PeerError:
        return False
    return True


def test_a_full_cache_means_full_responses(sessions: FetchSessions) -> None:
    assert [_open(sessions, now_ms=0, fresh_id=n) for n in (1, 2, 3)] == [1, 2, 3]
    assert _open(sessions, now_ms=999, fresh_id=4) == 0
    assert len(sessions) == 3
    assert all(_lives(sessions, n) for n in (1, 2, 3))


def test_the_least_recently_used_session_is_evicted_once_idle(sessions: FetchSessions) -> None:
    for number in (1, 2, 3):
        _open(sessions, now_ms=number, fresh_id=number)
    assert _lives(sessions, 1, now_ms=500)
    assert _open(sessions, now_ms=1002, fresh_id=4) == 0, "session 2 is idle for 1000 ms, not for longer"
    assert _open(sessions, now_ms=1003, fresh_id=4) == 4
    assert not _lives(sessions, 2)
    assert _lives(sessions, 1, 2)
    assert _lives(sessions, 3)


def test_replicas_evict_consumers_and_never_replicas(sessions: FetchSessions) -> None:
    assert _open(sessions, now_ms=0, fresh_id=1, replica_id=8) == 1
    assert _open(sessions, now_ms=0, fresh_id=2) == 2
    assert _open(sessions, now_ms=0, fresh_id=3) == 3
    assert _open(sessions, now_ms=1, fresh_id=4, replica_id=9) == 4
    assert _open(sessions, now_ms=1, fresh_id=5, replica_id=9) == 5
    assert _open(sessions, now_ms=1, fresh_id=6, replica_id=9) == 0
    assert not _lives(sessions, 2)
    assert not _lives(sessions, 3)
    assert all(_lives(sessions, n) for n in (1, 4, 5))


def test_a_replica_evicts_the_smallest_consumer(sessions: FetchSessions) -> None:
    for number, size in ((1, 5), (2, 2), (3, 9)):
        _open(sessions, now_ms=0, fresh_id=number, size=size)
    assert _open(sessions, now_ms=1, fresh_id=4, replica_id=9) == 4
    assert [_lives(sessions, number) for number in (1, 2, 3, 4)] == [True, False, True, True]


def test_a_larger_session_evicts_an_old_one(sessions: FetchSessions) -> None:
    for number, size in ((1, 5), (2, 2), (3, 9)):
        _open(sessions, now_ms=0, fresh_id=number, size=size)
    for epoch, now_ms in ((1, 600), (2, 1000)):
        assert all(_lives(sessions, number, epoch, now_ms) for number in (1, 2, 3))
    assert _open(sessions, now_ms=1100, fresh_id=4, size=3) == 0, "no session is older than 1000 ms"
    assert all(_lives(sessions, number, 3, 1101) for number in (1, 2, 3))
    assert _open(sessions, now_ms=1102, fresh_id=4, size=2) == 0, "not larger than the smallest"
    assert _open(sessions, now_ms=1102, fresh_id=4, size=3) == 4
    assert not _lives(sessions, 2, 4, 1103)
    assert _open(sessions, now_ms=1104, fresh_id=5, size=4) == 0, "session 4 is small, but young"
    assert _open(sessions, now_ms=1104, fresh_id=5, size=6) == 5
    assert [_lives(sessions, 1, 4, 1105), _lives(sessions, 3, 4, 1105)] == [False, True]


def test_an_old_replica_session_is_evicted_only_by_a_larger_replica_session(sessions: FetchSessions) -> None:
    for number, size in ((1, 5), (2, 2), (3, 9)):
        _open(sessions, now_ms=0, fresh_id=number, size=size, replica_id=number)
    assert all(_lives(sessions, number, 1, 900) for number in (1, 2, 3))
    assert all(_lives(sessions, number, 2, 1001) for number in (1, 2, 3))
    assert _open(sessions, now_ms=1002, fresh_id=4, size=100) == 0
    assert _open(sessions, now_ms=1002, fresh_id=4, size=3, replica_id=4) == 4
    assert not _lives(sessions, 2, 3, 1003)


def test_an_id_in_use_is_not_assigned_again(sessions: FetchSessions) -> None:
    assert _open(sessions, now_ms=0, fresh_id=2**31 - 1) == 2**31 - 1
    assert _open(sessions, now_ms=0, fresh_id=2**31 - 1) == 1
    assert _open(sessions, now_ms=0, fresh_id=1) == 2
