"""Consumer protocol groups whose coordinator alternates between a Kafka and a Fenceline broker. Each continues
from the records that the other wrote.

Every script of `consumer_scripts` runs on a cluster whose coordinator moves, or is killed, after each request.
The responses must be those of a single broker.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import confluent_kafka
import pytest

from fenceline.client.admin.admin import Admin
from fenceline.client.admin.async_admin import NewTopic
from fenceline.errors import ErrorCode
from fenceline.groups.consumer.settings import ConsumerSettings, Interval
from fenceline.groups.settings import GroupSettings
from fenceline.ids import CONSUMER_OFFSETS_TOPIC, TopicPartition
from fenceline.testing.mixed_cluster import MixedNode
from fenceline.testing.waiting import eventually
from fenceline.wire.apis import ApiKey
from tests.groups.consumer_scripts import CONSUMER_SCRIPTS
from tests.groups.peers import HandlerPeer, Session
from tests.groups.scripts import Script
from tests.scheduling import CLUSTERS
from tests.support import client_threads
from tests.support.committed_offsets import coordinator_of
from tests.support.leaders import order_replicas
from tests.support.mixed_stage import MixedStage
from tests.support.moving_coordinator import MovingPeer, Turns
from tests.support.raw import RawConnection, plain

pytestmark = [pytest.mark.kafka, pytest.mark.together(CLUSTERS), pytest.mark.timeout(900)]

TOPICS: Final = ("t", "u")
PARTITIONS: Final = 3
READ: Final = "read"
GROUP: Final = "readers"
LONG_MS: Final = 600_000
"""Sessions that outlast any move."""
KILLED_AT: Final = (6, 11)
"""The turns in which the coordinator is killed: one of each kind."""
SETTINGS: Final = GroupSettings(
    initial_rebalance_delay_ms=0, consumer=ConsumerSettings(assignment=Interval(0, 0, 15_000))
)
OF_BROKERS: Final = {
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "3",
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.assignment.interval.ms": "0",
    "group.consumer.session.timeout.ms": f"{LONG_MS}",
    "group.consumer.max.session.timeout.ms": f"{LONG_MS}",
    "replica.lag.time.max.ms": "3000",
}


class Readers:
    """Members of librdkafka's in one group, of both protocols, and what each has read as (partition, offset)."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self.read: list[list[tuple[int, int]]] = []
        self._members: list[confluent_kafka.Consumer] = []
        self._stops = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def join(self, protocol: str) -> None:
        more: dict[str, Any] = (
            {"session.timeout.ms": LONG_MS, "partition.assignment.strategy": "cooperative-sticky"}
            if protocol == "classic"
            else {}
        )
        self._members.append(
            confluent_kafka.Consumer(
                {
                    "bootstrap.servers": self._bootstrap,
                    "group.id": GROUP,
                    "group.protocol": protocol,
                    "auto.offset.reset": "earliest",
                    "enable.auto.commit": False,
                    "max.poll.interval.ms": LONG_MS,
                    "log_level": 0,
                    **more,
                }
            )
        )
        self.read.append([])
        self._members[-1].subscribe([READ])

    def poll(self) -> None:
        for member, read in zip(self._members, self.read, strict=True):
            found = [message for message in member.consume(100, 0.1) if message.error() is None]
            read.extend((message.partition(), message.offset()) for message in found)
            if found:
                with suppress(confluent_kafka.KafkaException):
                    member.commit(asynchronous=False)

    @property
    def shares(self) -> list[set[int]]:
        return [{each.partition for each in member.assignment()} for member in self._members]

    @property
    def everything(self) -> list[tuple[int, int]]:
        return [where for read in self.read for where in read]

    def __enter__(self) -> Readers:
        self._thread.start()
        return self

    def _run(self) -> None:
        while not self._stops.is_set():
            self.poll()

    def __exit__(self, *_: object) -> None:
        self._stops.set()
        self._thread.join()

    def close(self) -> None:
        for member in self._members:
            member.close()


class Story(MixedStage):
    """`first` coordinates first."""

    def __init__(self, root: Path, kinds: tuple[str, ...], *, ours: int, theirs: int, first: str) -> None:
        super().__init__(root, kinds, ours=ours, theirs=theirs)
        self.cluster.settings |= OF_BROKERS
        self._first_one = self.ours if first == "ours" else self.theirs
        self.seen: dict[str, list[Any]] = {}
        self.failures: dict[str, BaseException] = {}
        self.coordinated: list[str] = []
        """The kind of the coordinator in each turn."""
        self.killed: list[str] = []
        self.described: list[Any] = []
        """The group of readers after each turn."""
        self.read: list[tuple[int, int]] = []
        self.shares: list[list[set[int]]] = []
        self.written = 0
        self._away: MixedNode | None = None

    def live(self) -> Story:
        with self.cluster, client_threads.quiet_clients():
            self._begin()
            topic_ids = self._create()
            readers = Readers(",".join(self.bootstrap))
            try:
                self._form(readers)
                with readers:
                    asyncio.run(self._tell(topic_ids))
                    self._come_back()
                    eventually(lambda: len(readers.everything) >= self.written, "all is read", wait_s=120)
                self.shares.append(readers.shares)
                self.read = readers.everything
            finally:
                readers.close()
        return self

    def _create(self) -> dict[str, UUID]:
        with Admin(self.third.bootstrap) as admin:
            admin.create_topics(
                [*(NewTopic(name, PARTITIONS, 1) for name in TOPICS), NewTopic(READ, PARTITIONS, 3)],
            )
        # Whoever looks for the first coordinator has its topic created.
        eventually(lambda: coordinator_of(self.third.port, GROUP), "groups have a coordinator", wait_s=120)
        with RawConnection(self.third.port) as connection:
            asked = {"topics": [{"topic_id": None, "name": name} for name in TOPICS]}
            return {each.name: each.topic_id for each in connection.call(ApiKey.METADATA, 12, asked).topics}

    def _form(self, readers: Readers) -> None:
        """Two of the consumer protocol, and a classic one that joins them."""
        self._coordinate(self._first_one)
        for protocol in ("consumer", "classic", "consumer"):
            readers.join(protocol)
            wanted = len(readers.read)
            eventually(
                lambda wanted=wanted: (  # type: ignore[misc]
                    readers.poll() or sorted(map(len, readers.shares)) == sorted(_even(wanted))
                ),
                f"{wanted} readers share",
                wait_s=120,
            )
        self.shares.append(readers.shares)

    # --- turns --------------------------------------------------------------------------------------------------------

    async def _tell(self, topic_ids: dict[str, UUID]) -> None:
        port = await asyncio.to_thread(self._coordinate, self._first_one)
        turns = Turns(port, len(CONSUMER_SCRIPTS), lambda: asyncio.to_thread(self._turn))
        self._turns = turns
        self.coordinated.append(self._first_one.kind)

        async def run(name: str, script: Script) -> None:
            session = Session(MovingPeer(turns, topic_ids))
            try:
                await script(session)
            except Exception as failure:
                self.failures[name] = failure
            finally:
                self.seen[name] = session.seen
                await turns.leave()

        await asyncio.gather(*(run(name, script) for name, script in CONSUMER_SCRIPTS.items()))

    def _turn(self) -> int:
        """Moves the coordinator to the other kind of broker; returns its port."""
        self._write(READ, self.written % PARTITIONS, [f"{self.written}"])
        self.written += 1
        self._come_back()
        before = self._coordinator()
        if self._turns.count in KILLED_AT:
            self.killed.append(before.kind)
            before.kill()
            self._away = before
            eventually(lambda: self._coordinator() is not before, "another one coordinates", wait_s=120)
        else:
            self._coordinate(self.theirs if before.kind == "fenceline" else self.ours)
        coordinator = self._coordinator()
        self._await_committed()
        self.coordinated.append(coordinator.kind)
        self.described.append(described(coordinator.port, GROUP))
        return coordinator.port

    def _coordinator(self) -> MixedNode:
        """Raises AssertionError while there is no coordinator."""
        leader = self.partition(CONSUMER_OFFSETS_TOPIC, 0).leader
        assert leader > 0, "no coordinator"
        return self.cluster.node(leader)

    def _coordinate(self, node: MixedNode) -> int:
        self._in_sync(CONSUMER_OFFSETS_TOPIC, 0, self.ids)
        order_replicas(self.third.port, CONSUMER_OFFSETS_TOPIC, {0: self._first(node)})
        self._elect(CONSUMER_OFFSETS_TOPIC, node)
        return node.port

    def _await_committed(self) -> None:
        """Kafka's coordinator tells what is below the high watermark, and that may be behind what was answered while a
        leader is new."""
        with Admin(self.third.bootstrap) as admin:
            eventually(lambda: admin.list_offsets({TopicPartition(CONSUMER_OFFSETS_TOPIC, 0): "latest"}), wait_s=120)

    def _come_back(self) -> None:
        if self._away is not None:
            self._away.start()
            self._away.wait_ready()
            self._in_sync(CONSUMER_OFFSETS_TOPIC, 0, self.ids)
            self._away = None


def described(port: int, group: str) -> Any:
    """The group's state and epochs, and of each member its epoch and what it has and is to have."""
    fields = {"group_ids": [group], "include_authorized_operations": False}

    def ask() -> Any:
        with RawConnection(port) as connection:
            (found,) = connection.call(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, fields).groups
        assert ErrorCode(found.error_code) is ErrorCode.NONE
        members = {
            each.member_id: (each.member_epoch, each.member_type, plain(each.assignment), plain(each.target_assignment))
            for each in found.members
        }
        return found.group_state, found.group_epoch, found.assignment_epoch, members

    return eventually(ask, f"{group} is described", wait_s=120)


def _even(members: int) -> list[int]:
    return [PARTITIONS // members + (number < PARTITIONS % members) for number in range(members)]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((("broker,controller", "broker", "kafka:broker"), 2, 3, "ours"), id="2+1"),
        pytest.param((("broker", "kafka:broker,controller", "kafka:broker"), 1, 3, "theirs"), id="1+2"),
    ],
)
def lived(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Story:
    """Fenceline controls the first cluster and coordinates first, Kafka the second: both receive every request."""
    kinds, ours, theirs, first = request.param
    return Story(tmp_path_factory.mktemp("mixed"), kinds, ours=ours, theirs=theirs, first=first).live()


def test_coordinator_alternates_between_fenceline_and_kafka(lived: Story) -> None:
    assert len(lived.coordinated) > max(KILLED_AT) + 1
    assert all(one != other for one, other in zip(lived.coordinated, lived.coordinated[1:], strict=False))
    assert set(lived.killed) == {"kafka", "fenceline"}


@pytest.mark.parametrize("name", CONSUMER_SCRIPTS)
def test_responses_match_those_of_an_unmoved_coordinator(lived: Story, name: str) -> None:
    if name in lived.failures:
        raise lived.failures[name]
    expected = asyncio.run(_told_to_one(CONSUMER_SCRIPTS[name]))
    differences = [
        f"{number}: one     {one}\n{' ' * len(str(number))}  by turn {other}"
        for number, (one, other) in enumerate(zip(expected, lived.seen[name], strict=True))
        if one != other
    ]
    assert not differences, "\n".join(differences)


async def _told_to_one(script: Script) -> list[Any]:
    peer = HandlerPeer(TOPICS, PARTITIONS, SETTINGS)
    try:
        session = Session(peer)
        await script(session)
        return session.seen
    finally:
        peer.close()


def test_readers_keep_their_assignments(lived: Story) -> None:
    """No move triggers a rebalance, and no record is read twice or skipped."""
    assert {state for state, *_ in lived.described} == {"Stable"}
    assert all(each == lived.described[0] for each in lived.described)
    assert lived.shares[0] == lived.shares[1]
    assert sorted(lived.read) == sorted(set(lived.read))
    assert len(lived.read) == lived.written == len(lived.coordinated) - 1
