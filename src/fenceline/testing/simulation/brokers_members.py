"""A member of a consumer group in a simulated cluster: the production client library, on virtual time.

Owns the group scenario and its guarantee: a committed offset that was acknowledged never goes back, whichever member
commits next. Members read, commit automatically and explicitly, stop polling for a while, leave and rejoin.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Any, Final

from fenceline.client.consumer.async_consumer import AsyncConsumer
from fenceline.client.consumer.consumer_offsets import PendingCommit
from fenceline.client.core.surroundings import CURRENT, Surroundings
from fenceline.errors import FencelineError
from fenceline.ids import TopicPartition
from fenceline.testing.simulation.brokers import BrokersScenario
from fenceline.testing.simulation.brokers_admin import SimulatedAdmin
from fenceline.testing.simulation.brokers_clients import SimulatedClient, SimulatedProducer
from fenceline.testing.simulation.brokers_node import DATA_PORT
from fenceline.testing.simulation.checks import InvariantBroken
from fenceline.testing.simulation.operations import Operation
from fenceline.testing.simulation.options import Options
from fenceline.testing.simulation.profiles import draw
from fenceline.testing.simulation.sockets import machine_of

_CLIENT_MACHINE: Final = -100
_client_log: Final = logging.getLogger("fenceline.client")

GROUP: Final = "members"
_CONFIG: Final = {
    "group.id": GROUP,
    "auto.offset.reset": "earliest",
    "auto.commit.interval.ms": 100,
    "session.timeout.ms": 1_500,
    "heartbeat.interval.ms": 200,
    "max.poll.interval.ms": 1_500,
    "default.api.timeout.ms": 8_000,
    "request.timeout.ms": 1_500,
    "retry.backoff.ms": 300,
    "retry.backoff.max.ms": 1_500,
}
_POLL_MS: Final = 200


class Commits:
    """The acknowledged commits of all members of one group."""

    def __init__(self) -> None:
        self._acknowledged: dict[TopicPartition, int] = {}

    def acknowledged(self, offsets: dict[TopicPartition, int]) -> None:
        for where, offset in offsets.items():
            self._acknowledged[where] = max(offset, self._acknowledged.get(where, 0))

    def least(self) -> dict[TopicPartition, int]:
        """The least offsets that the group may have."""
        return dict(self._acknowledged)


class _Consumer(AsyncConsumer):
    """Checks the committed offsets of the group at once after a commit that is behind an acknowledged one: the next
    commit of the partition's owner would hide it."""

    member: SimulatedMember

    async def _send_commit(self, made: PendingCommit, timeout_ms: float | None) -> None:
        await super()._send_commit(made, timeout_ms)
        least = self.member.commits.least()
        if any(committed.offset < least.get(where, 0) for where, committed in made.offsets.items()):
            try:
                await self.member.check_positions(self)
            except InvariantBroken as error:
                self.member.world.scheduler.fail(error)


class SimulatedMember(SimulatedClient):
    """See the module."""

    name = "member"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.commits = Commits()
        """Shared by all members of the group."""
        self._consumer: AsyncConsumer | None = None

    async def one_request(self) -> None:
        rng = self.rng
        try:
            consumer = self._consumer or self._join()
            records = await consumer.poll(_POLL_MS, max_records=rng.choice((1, 5, 50)))
            if records:
                self.log_event(f"reads {len(records)} records")
            step = rng.random()
            if step < 0.3:
                await self._commit(consumer)
            elif step < 0.45:
                await self.check_positions(consumer)
            elif step < 0.5 and self.world.faults_active:
                await asyncio.sleep(rng.uniform(0.2, 2.5))
            elif step < 0.6 and self.world.faults_active:
                self._consumer = None
                await consumer.close()
        except FencelineError as error:
            self.log_event(f"meets {type(error).__name__}: {error}")
            await asyncio.sleep(0.05)
            return
        self.request_completed()
        if self.must_rest and self._consumer is not None:
            await self._consumer.close()

    def _join(self) -> AsyncConsumer:
        self.log_event("joins")
        nodes = ",".join(f"{machine_of(node)}:{DATA_PORT}" for node in self.nodes)
        consumer = self._consumer = _Consumer(nodes, **_CONFIG)
        consumer.member = self
        consumer.subscribe([f"t{number}" for number in range(self.world.options.topics)])
        return consumer

    async def _commit(self, consumer: AsyncConsumer) -> None:
        offsets = {where: each.offset for where, each in consumer.committable().items()}
        if offsets:
            self.world.coverage.operation(Operation.COMMIT_OFFSETS)
            await consumer.commit(offsets)
            self.commits.acknowledged(offsets)
            self.log_event(f"has committed {_describe(offsets)}")

    async def check_positions(self, consumer: AsyncConsumer) -> None:
        """Raises InvariantBroken if a committed offset is behind one that was acknowledged before the request."""
        least = self.commits.least()
        if not least:
            return
        self.world.coverage.operation(Operation.FETCH_COMMITTED)
        for where, committed in (await consumer.committed(list(least))).items():
            offset = committed.offset if committed is not None else 0
            if offset < least[where]:
                raise InvariantBroken(
                    f"{self.who}: the group has committed {offset} of {where}, but {least[where]} was acknowledged"
                    " (commits)"
                )


def _describe(offsets: Mapping[TopicPartition, int]) -> str:
    return ", ".join(f"{where} {offset}" for where, offset in offsets.items())


class MembersScenario(BrokersScenario):
    """The cluster of `brokers` without operator or unclean elections, and a group of the production client: a
    `stage.Scenario`."""

    name = "members"

    @staticmethod
    def adjust_options(rng: Random, drawn: Options) -> Options:
        """Coordinators fail over, and responses are late. No power failures: the topic of committed offsets may have
        been created while one broker was up, with one replica."""
        options = draw(rng, drawn)
        return replace(
            options,
            topics=1,
            partitions=rng.choice((2, 3)),
            replicas=3,
            min_isr=2,
            unclean=False,
            deletes=False,
            churn_s=0.0,
            strand_s=0.0,
            full_s=0.0,
            power_chance=0.0,
            crash_calls=0,
            return_s=0.0,
            think_ms=rng.choice((20.0, 50.0)),
        )

    def build(self) -> None:
        """See `BrokersScenario`. The client library gets the clock and the random numbers of the world."""
        world = self._world

        def now_s() -> float:
            return world.scheduler.now_s

        before = CURRENT.set(Surroundings(now_s, now_s, world.rng("client library")))
        self._level_before = _client_log.level
        _client_log.setLevel(logging.CRITICAL)
        world.loop.sockets = self._sockets.of(_CLIENT_MACHINE)
        super().build()
        CURRENT.reset(before)
        commits = Commits()
        for client in self._clients:
            if isinstance(client, SimulatedMember):
                client.commits = commits

    def clients(self) -> list[type[SimulatedClient]]:
        """See `BrokersScenario`."""
        return [SimulatedAdmin, SimulatedProducer, SimulatedMember, SimulatedMember, SimulatedMember]

    def end(self) -> tuple[int, int]:
        """See `BrokersScenario`."""
        _client_log.setLevel(self._level_before)
        return super().end()
