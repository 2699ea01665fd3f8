"""Brokers that a node reports as absent to clients: from its own connections, and from the metadata."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from fenceline.metadata.image import MetadataImage
from fenceline.node.clock import SystemClock
from fenceline.node.replication.absent_brokers import NO_ABSENT, STILL_NAMED_MS, Absent, AbsentBrokers
from fenceline.node.replication.replica_fetchers import ReplicaFetchers
from tests.node.api.handlers.fakes import broker_image, image_of
from tests.node.controller_helpers import StillClock
from tests.node.socket_leader import LEADER, NEVER_MS, WAIT_S, following
from tests.node.test_silent_leaders import SilentLeader, replica

SESSION_MS = 9_000


def brokers(*fenced: int) -> MetadataImage:
    """Brokers 1, 2 and 3."""
    return image_of((), [broker_image(each, fenced=each in fenced) for each in (1, 2, 3)])


def absent_brokers() -> tuple[AbsentBrokers, StillClock]:
    clock = StillClock()
    absent = AbsentBrokers(clock, session_ms=SESSION_MS)
    absent.image_changed(brokers(), (1, 2, 3))
    return absent, clock


def test_disconnected_broker_is_absent_until_it_reconnects() -> None:
    absent, _ = absent_brokers()
    assert absent.current() is NO_ABSENT
    absent.disconnected(2)
    absent.disconnected(3)
    assert absent.current() == Absent(disconnected=frozenset({2, 3}))
    absent.reconnected(2)
    assert absent.current() == Absent(disconnected=frozenset({3}))
    absent.reconnected(3)
    assert absent.current() is NO_ABSENT


def test_leader_absent_longer_than_a_session_counts_as_alive() -> None:
    """The controller is in contact with it, so only this node cannot reach it; further refusals change nothing."""
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
    assert absent.current().disconnected == {2}, "it was present, and disconnected again"


def test_metadata_change_clears_a_disconnected_broker() -> None:
    """For example a new registration: the broker may lead again before this node reaches it."""
    absent, _ = absent_brokers()
    absent.disconnected(2)
    absent.image_changed(brokers(), (3,))
    assert absent.current().disconnected == {2}
    absent.image_changed(brokers(), (2,))
    assert absent.current() is NO_ABSENT


def test_fenced_broker_stays_listed_for_a_while() -> None:
    absent, clock = absent_brokers()
    absent.disconnected(2)
    absent.image_changed(brokers(2), (2,))
    assert absent.current() == Absent(recently_fenced=frozenset({2}))
    clock.ms += STILL_NAMED_MS // 2
    absent.image_changed(brokers(2, 3), (2, 3))
    assert absent.current().recently_fenced == {2, 3}
    clock.ms += STILL_NAMED_MS // 2
    assert absent.current().recently_fenced == {3}, "changes of a fenced broker do not restart the period"
    clock.ms += STILL_NAMED_MS // 2
    assert absent.current() is NO_ABSENT


def test_broker_fenced_before_the_first_image_is_not_listed() -> None:
    absent = AbsentBrokers(StillClock(), session_ms=SESSION_MS)
    absent.image_changed(brokers(3), (1, 2, 3))
    absent.image_changed(brokers(3), (3,))
    assert absent.current() is NO_ABSENT


def test_unfenced_or_unregistered_broker_is_not_absent() -> None:
    absent, _ = absent_brokers()
    absent.image_changed(brokers(2, 3), (2, 3))
    absent.image_changed(brokers(3), (2,))
    assert absent.current().recently_fenced == {3}
    absent.image_changed(image_of((), [broker_image(1)]), (2, 3))
    assert absent.current() is NO_ABSENT


# --- connections to a leader ------------------------------------------------------------------------------------------


class LeavingLeader(SilentLeader):
    """Answers no fetch; `leave` closes the connection of the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.leave: Callable[[], None] = lambda: None

    def heard(self, number: int, header: Any, frame: memoryview, writer: asyncio.StreamWriter) -> Any:
        self.leave = writer.transport.abort
        return super().heard(number, header, frame, writer)


class RecordingAbsentBrokers(AbsentBrokers):
    """Records the calls."""

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
) -> AsyncIterator[tuple[ReplicaFetchers, RecordingAbsentBrokers]]:
    """One replica follows the leader, and has sent its first fetch."""
    reported = RecordingAbsentBrokers()
    async with following(leader, answer_timeout_ms=answer_timeout_ms, absent=reported) as fetchers:
        fetchers.follow(replica(0), LEADER, 3)
        await leader.fetched()
        yield fetchers, reported


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


def test_leader_is_absent_from_close_until_reconnect() -> None:
    async def story() -> None:
        leader = LeavingLeader()
        async with followed(leader) as (_, reported):
            assert reported.all == ["came"]
            leader.leave()
            await leader.fetched()
            assert reported.all == ["came", "left", "came"]

    asyncio.run(story())


def test_leader_that_accepts_and_closes_connections_is_present() -> None:
    """It accepted each of them."""

    async def story() -> None:
        leader = LeavingLeader()
        async with followed(leader) as (_, reported):
            for _ in range(3):
                leader.leave()
                await leader.fetched()
            assert reported.all == ["came", "left", "came", "came", "came"]
            leader.refuse()
            leader.leave()
            await until(lambda: reported.current().disconnected == {LEADER})

    asyncio.run(story())


def test_check_detects_a_closed_connection_immediately() -> None:
    """Nothing runs between the abort of the transport and the check."""

    async def story() -> None:
        leader = LeavingLeader()
        async with followed(leader) as (fetchers, reported):
            fetchers.check_connections()
            assert reported.current() is NO_ABSENT
            connection = fetchers._links[LEADER]._connection
            assert connection is not None
            assert connection._transport is not None
            connection._transport.abort()
            assert reported.current() is NO_ABSENT
            fetchers.check_connections()
            assert reported.current().disconnected == {LEADER}
            await leader.fetched()
            assert reported.current() is NO_ABSENT

    asyncio.run(story())


def test_leader_that_refuses_connections_is_absent() -> None:
    """Also if this node closed the connection itself, as to send a changed fetch."""

    async def story() -> None:
        leader = LeavingLeader()
        async with followed(leader) as (fetchers, reported):
            leader.refuse()
            fetchers.follow(replica(1), LEADER, 3)
            await until(lambda: reported.current().disconnected == {LEADER})
            await leader.serve()
            await leader.fetched()
            assert reported.current() is NO_ABSENT

    asyncio.run(story())


def test_broker_no_longer_followed_is_not_absent() -> None:
    async def story() -> None:
        leader = LeavingLeader()
        async with followed(leader) as (fetchers, reported):
            leader.refuse()
            leader.leave()
            await until(lambda: reported.current().disconnected == {LEADER})
            fetchers.leave(replica(0))
            assert reported.current() is NO_ABSENT

    asyncio.run(story())


def test_unresponsive_leader_is_not_absent() -> None:
    """It may be frozen: its session decides."""

    async def story() -> None:
        leader = SilentLeader()
        async with followed(leader, answer_timeout_ms=50) as (fetchers, reported):
            for _ in range(2):
                fetchers.check_connections()
                await leader.fetched()
            fetchers.check_connections()
            assert set(reported.all) == {"came"}

    asyncio.run(story())
