"""What the test of a simulated application works with: start applications, wait, read, assert.

Owns the view of the world that a story has. Everything here runs in the story's own process, which no fault meets.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from random import Random
from typing import Any, Final

from fenceline.client.admin.async_admin import AsyncAdmin
from fenceline.client.consumer.async_consumer import AsyncConsumer
from fenceline.client.core.fetched import ConsumerRecord
from fenceline.client.core.loss_receipts import LossReceipt
from fenceline.client.reader.lost_records import AsyncLostRecordsReader
from fenceline.errors import OperatorError
from fenceline.ids import TopicPartition
from fenceline.testing.applications.application import SimulatedApplication
from fenceline.testing.applications.cluster import SimulatedCluster
from fenceline.testing.applications.fault_injection import FaultInjection
from fenceline.testing.applications.store import SimulatedStore
from fenceline.testing.applications.timeline import StoryTimeline

_LOOKS_EVERY_S: Final = 0.1
_POLL_MS: Final = 500
_TRANSACTIONS_END_WITHIN_S: Final = 60.0
"""Kafka's default of transaction.timeout.ms."""


class StoryWorld:
    """See the module. Times are virtual seconds."""

    def __init__(
        self,
        cluster: SimulatedCluster,
        timeline: StoryTimeline,
        injection: FaultInjection,
        applications: list[SimulatedApplication],
        stores: list[SimulatedStore],
        faults_end_s: float,
    ) -> None:
        self.rng: Random = cluster.world.rng_of(cluster.world.seed, "story")
        """Random numbers for what the story itself chooses."""
        self.bootstrap_servers = cluster.bootstrap_servers
        self._cluster = cluster
        self._timeline = timeline
        self._injection = injection
        self._applications = applications
        self._stores = stores
        self._faults_end_s = faults_end_s
        self._admin: AsyncAdmin | None = None

    @property
    def admin(self) -> AsyncAdmin:
        """An admin client of the story."""
        if self._admin is None:
            self._admin = AsyncAdmin(self.bootstrap_servers)
        return self._admin

    @property
    def now_s(self) -> float:
        """Seconds since the story began."""
        return self._timeline.now_s

    def note(self, text: str) -> None:
        """Add a line to the story that a failure prints."""
        self._timeline.add(text)

    # -- applications and stores ---------------------------------------------------------------------------------------

    def start(
        self, name: str, main: Callable[..., Coroutine[Any, Any, object]], *args: Any, **options: Any
    ) -> SimulatedApplication:
        """Start `main(*args, **options)` as a process of its own. It is started again when it was killed or ended with
        an error, with new copies of the arguments."""
        if any(each.name == name for each in self._applications):
            raise OperatorError(f"The story has an application {name} already", "Start each with a name of its own.")
        application = SimulatedApplication(self._cluster, self._timeline, name, main, args, options)
        self._applications.append(application)
        application.start()
        return application

    def store(self, name: str) -> SimulatedStore:
        """A new store outside of Kafka, which survives crashes: give it to applications as an argument."""
        store = SimulatedStore(self._cluster.world, self._timeline, name)
        self._stores.append(store)
        return store

    # -- waiting -------------------------------------------------------------------------------------------------------

    async def quiet(self, within_s: float = 60.0) -> None:
        """Wait for the last fault, end all faults, and wait until every broker and application runs and all replicas
        are in sync. Raises AssertionError if they do not."""
        await asyncio.sleep(max(0.0, self._faults_end_s - self.now_s))
        self._injection.end_all()
        self.note("no more faults")
        await self.until(self._is_quiet, within_s=within_s, what="all brokers and applications run again")

    def _is_quiet(self) -> bool:
        return self._cluster.is_well() and all(each.is_running or each.has_finished for each in self._applications)

    async def until(
        self, condition: Callable[[], bool | Awaitable[bool]], *, within_s: float = 30.0, what: str = "the condition"
    ) -> None:
        """Wait until the condition is true. Raises AssertionError if it is not within this time."""
        ends_s = self.now_s + within_s
        while True:
            met = condition()
            if await met if inspect.isawaitable(met) else met:
                return
            if self.now_s >= ends_s:
                raise AssertionError(f"{what}: not within {within_s:g} s")
            await asyncio.sleep(_LOOKS_EVERY_S)

    async def caught_up(self, group: str, *topics: str, within_s: float = 60.0) -> None:
        """Wait until the group has committed the end of these topics. Raises AssertionError if it does not."""
        left: dict[TopicPartition, int] = {}

        partitions = await self._partitions(topics)

        async def is_caught_up() -> bool:
            left.clear()
            left.update(await self._lag(group, partitions))
            return not any(left.values())

        try:
            await self.until(is_caught_up, within_s=within_s)
        except AssertionError:
            behind = ", ".join(f"{where} {lag}" for where, lag in left.items() if lag)
            late = f"the group {group} has not caught up within {within_s:g} s"
            raise AssertionError(f"{late}; records that it has not committed: {behind}") from None

    async def lag(self, group: str, *topics: str) -> dict[TopicPartition, int]:
        """By partition, the number of offsets between what the group has committed and the end."""
        return await self._lag(group, await self._partitions(topics))

    async def _lag(self, group: str, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        ends = await self.admin.list_offsets(dict.fromkeys(partitions, "latest"))
        committed = await self.admin.list_group_offsets(group, partitions)
        new = [where for where in partitions if where not in committed and ends[where].offset > 0]
        starts = await self.admin.list_offsets(dict.fromkeys(new, "earliest")) if new else {}
        positions = {where: found.offset for where, found in (starts | committed).items()}
        return {where: max(0, ends[where].offset - positions.get(where, 0)) for where in partitions}

    async def _partitions(self, topics: tuple[str, ...]) -> list[TopicPartition]:
        found = (await self.admin.metadata(list(topics))).topics
        return [TopicPartition(topic, index) for topic in topics for index in sorted(found[topic].partitions)]

    # -- reading -------------------------------------------------------------------------------------------------------

    async def records(self, *topics: str) -> list[ConsumerRecord]:
        """All committed records of these topics, from the beginning to the end of each partition. Waits for the end of
        open transactions. Raises AssertionError if they do not end within a minute."""
        found: list[ConsumerRecord] = []
        ends_s = self.now_s + _TRANSACTIONS_END_WITHIN_S
        async with AsyncConsumer(
            self.bootstrap_servers, auto_offset_reset="earliest", isolation_level="read_committed"
        ) as consumer:
            partitions = await self._partitions(topics)
            ends = await self.admin.list_offsets(dict.fromkeys(partitions, "latest"))
            consumer.assign(partitions)
            while True:
                behind = [where for where in partitions if await consumer.position(where) < ends[where].offset]
                if not behind:
                    return found
                assert self.now_s < ends_s, f"a transaction stays open in {', '.join(map(str, behind))}"
                found += await consumer.poll(_POLL_MS)

    async def losses(self) -> list[LossReceipt]:
        """The receipts of records that the cluster lost, oldest first. Stories that allow unclean elections subtract
        what these cover. Waits until every node has written what it knows to the ledger; call it after `quiet`."""
        await self.until(self._cluster.has_delivered_receipts, what="the ledger has every receipt")
        async with AsyncLostRecordsReader(self.bootstrap_servers) as reader:
            return await reader.receipts()
