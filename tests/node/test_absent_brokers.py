"""What a node tells clients of brokers that ended: by what it saw itself, and by the metadata."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from fenceline.metadata.image import MetadataImage
from fenceline.node.absent_brokers import NO_ABSENT, STILL_NAMED_MS, Absent, AbsentBrokers
from fenceline.node.clock import SystemClock
from fenceline.node.replica_fetchers import ReplicaFetchers
from tests.node.controller_helpers import StillClock
from tests.node.handlers.fakes import broker_image, image_of
from tests.node.socket_leader import LEADER, NEVER_MS, WAIT_S, following
from tests.node.test_silent_leaders import SilentLeader, replica

SESSION_MS = 9_000


def brokers(*fenced: int) -> MetadataImage:
    """1, 2 and 3."""
    return image_of((), [broker_image(each, fenced=each in fenced) for each in (1, 2, 3)])


def absent_brokers() -> tuple[AbsentBrokers, StillClock]:
    clock = StillClock()
    absent = AbsentBrokers(clock, session_ms=SESSION_MS)
    absent.image_changed(brokers(), (1, 2, 3))
    return absent, clock


def test_who_left_is_away_until_it_comes() -> None:
    absent, _ = absent_brokers()
    assert absent.current() is NO_ABSENT
    absent.disconnected(2)
    absent.disconnected(3)
    assert absent.current() == Absent(disconnected=frozenset({2, 3}))
    absent.reconnected(2)
    assert absent.current() == Absent(disconnected=frozenset({3}))
    absent.reconnected(3)
    assert absent.current() is NO_ABSENT


def test_who_leads_for_longer_than_a_session_is_there_for_others() -> None:
    """The controller hears it, so it is this node that does not reach it; refusals that go on change nothing."""
    absent, clock = absent_brokers()
    absent.disconnected(2)
    clock.ms += SESSION_MS - 1
    absent.disconnected(2)
    assert absent.current().disconnected == {2}
    clock.ms += 1
    absent.disconnected(2)
    assert absent.current() is NO_ABSENT
    absent.reconnected(2)
    absent.disconnected(2)
    assert absent.current().disconnected == {2}, "it was there, and left anew"


def test_what_is_new_in_the_metadata_counts_more() -> None:
    """It registered anew, say: then it may lead again before this node has reached it."""
    absent, _ = absent_brokers()
    absent.disconnected(2)
    absent.image_changed(brokers(), (3,))
    assert absent.current().disconnected == {2}
    absent.image_changed(brokers(), (2,))
    assert absent.current() is NO_ABSENT


def test_who_is_fenced_is_named_for_a_while() -> None:
    absent, clock = absent_brokers()
    absent.disconnected(2)
    absent.image_changed(brokers(2), (2,))
    assert absent.current() == Absent(recently_fenced=frozenset({2}))
    clock.ms += STILL_NAMED_MS // 2
    absent.image_changed(brokers(2, 3), (2, 3))
    assert absent.current().recently_fenced == {2, 3}
    clock.ms += STILL_NAMED_MS // 2
    assert absent.current().recently_fenced == {3}, "changes of a fenced broker do not begin it anew"
    clock.ms += STILL_NAMED_MS // 2
    assert absent.current() is NO_ABSENT


def test_who_was_fenced_before_this_node_looked_is_not_named() -> None:
    absent = AbsentBrokers(StillClock(), session_ms=SESSION_MS)
    absent.image_changed(brokers(3), (1, 2, 3))
    absent.image_changed(brokers(3), (3,))
    assert absent.current() is NO_ABSENT


def test_who_is_back_or_forgotten_is_not_absent() -> None:
    absent, _ = absent_brokers()
    absent.image_changed(brokers(2, 3), (2, 3))
    absent.image_changed(brokers(3), (2,))
    assert absent.current().recently_fenced == {3}
    absent.image_changed(image_of((), [broker_image(1)]), (2, 3))
    assert absent.current() is NO_ABSENT


# --- the way to a leader ----------------------------------------------------------------------------------------------


class LeavingLeader(SilentLeader):
    """Answers no fetch; `leave` ends the connection of the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.leave: Callable[[], None] = lambda: None

    def heard(self, number: int, header: Any, frame: memoryview, writer: asyncio.StreamWriter) -> Any:
        self.leave = writer.transport.abort
        return super().heard(number, header, frame, writer)


class Told(AbsentBrokers):
    """Remembers what it was told."""

    def __init__(self) -> None:
        super().__init__(SystemClock(), session_ms=NEVER_MS)
        self.all: list[str] = []

    def disconnected(self, broker_id: int) -> None:
        self.all.append("left")
        super().disconnected(broker_id)

    def reconnected(self, broker_id: int) -> None:
        self.all.append("came")
        super().reconnected(broker_id)


@asynccontextmanager
async def followed(
    leader: SilentLeader, *, answer_timeout_ms: int = NEVER_MS
) -> AsyncIterator[tuple[ReplicaFetchers, Told]]:
    """One replica follows it, and the first fetch is asked."""
    told = Told()
    async with following(leader, answer_timeout_ms=answer_timeout_ms, absent=told) as fetchers:
        fetchers.follow(replica(0), LEADER, 3)
        await leader.fetched()
        yield fetchers, told


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


def test_a_leader_that_closes_its_connection_has_left_until_it_takes_another() -> None:
    async def story() -> None:
        leader = LeavingLeader()
        async with followed(leader) as (_, told):
            assert told.all == ["came"]
            leader.leave()
            await leader.fetched()
            assert told.all == ["came", "left", "came"]

    asyncio.run(story())


def test_a_leader_that_ends_each_connection_unanswered_is_there() -> None:
    """It took each of them."""

    async def story() -> None:
        leader = LeavingLeader()
        async with followed(leader) as (_, told):
            for _ in range(3):
                leader.leave()
                await leader.fetched()
            assert told.all == ["came", "left", "came", "came", "came"]
            leader.refuse()
            leader.leave()
            await until(lambda: told.current().disconnected == {LEADER})

    asyncio.run(story())


def test_a_closed_connection_is_seen_before_it_is_heard() -> None:
    """Nothing runs between the end of the transport and the look."""

    async def story() -> None:
        leader = LeavingLeader()
        async with followed(leader) as (fetchers, told):
            fetchers.check_connections()
            assert told.current() is NO_ABSENT
            connection = fetchers._links[LEADER]._connection
            assert connection is not None
            assert connection._transport is not None
            connection._transport.abort()
            assert told.current() is NO_ABSENT
            fetchers.check_connections()
            assert told.current().disconnected == {LEADER}
            await leader.fetched()
            assert told.current() is NO_ABSENT

    asyncio.run(story())


def test_a_leader_that_refuses_has_left() -> None:
    """Also where this node gave up the connection itself, as when there is something new to ask for."""

    async def story() -> None:
        leader = LeavingLeader()
        async with followed(leader) as (fetchers, told):
            leader.refuse()
            fetchers.follow(replica(1), LEADER, 3)
            await until(lambda: told.current().disconnected == {LEADER})
            await leader.serve()
            await leader.fetched()
            assert told.current() is NO_ABSENT

    asyncio.run(story())


def test_who_is_not_followed_any_more_is_not_away() -> None:
    async def story() -> None:
        leader = LeavingLeader()
        async with followed(leader) as (fetchers, told):
            leader.refuse()
            leader.leave()
            await until(lambda: told.current().disconnected == {LEADER})
            fetchers.leave(replica(0))
            assert told.current() is NO_ABSENT

    asyncio.run(story())


def test_a_leader_that_gives_no_answer_has_not_left() -> None:
    """A frozen one: its session decides."""

    async def story() -> None:
        leader = SilentLeader()
        async with followed(leader, answer_timeout_ms=50) as (fetchers, told):
            for _ in range(2):
                fetchers.check_connections()
                await leader.fetched()
            fetchers.check_connections()
            assert set(told.all) == {"came"}

    asyncio.run(story())
