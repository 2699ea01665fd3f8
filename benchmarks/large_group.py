"""One group of the consumer protocol (KIP-848) with 1,000 members: rebalances, and the cost of heartbeats.

Every member sends heartbeats as a client does: at the interval of the coordinator, and at once when its assignment
changes. Each member sends its own requests; connections are shared.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final
from uuid import UUID

from benchmarks.clusters import wait_for
from benchmarks.coordinators import GROUP, REQUEST_TIMEOUT_MS, RETRIABLE, connect, until_done
from benchmarks.harness import Figures, Subject, both, cpu_seconds
from fenceline.client.admin.admin import Admin
from fenceline.client.admin.async_admin import NewTopic
from fenceline.client.core.connection import Connection
from fenceline.errors import ErrorCode
from fenceline.wire.apis import ApiKey

MEMBERS: Final = 1_000
PARTITIONS: Final = 2_000
LEAVING: Final = 100
CONNECTIONS: Final = 20
REST_S: Final = 20.0
TOPIC: Final = "large"
_STEP_S: Final = 0.02
_POLL_S: Final = 0.05
_REBALANCE_MS: Final = 300_000


def run(figures: Figures, repeats: int) -> None:
    with both(overrides={"offsets.topic.num.partitions": "1", "offsets.topic.replication.factor": "1"}) as subjects:
        for side, subject in subjects.items():
            with Admin({"bootstrap.servers": subject.bootstrap, "default.api.timeout.ms": 120_000}) as admin:
                admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])
                wait_for(
                    lambda admin=admin: (  # type: ignore[misc]
                        [each.leader >= 0 for each in admin.metadata([TOPIC]).topics[TOPIC].partitions.values()]
                        == [True] * PARTITIONS
                    ),
                    f"{TOPIC} has leaders",
                )
            for number in range(repeats):
                asyncio.run(_GroupRun(figures, side, subject, f"large-{number}").run())


class _GroupRun:
    """One group on one side."""

    def __init__(self, figures: Figures, side: str, subject: Subject, group: str) -> None:
        self._figures, self._side, self._subject, self._group = figures, side, subject, group
        self._members: list[_Member] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        connections = await asyncio.gather(*(connect(self._subject.bootstrap) for _ in range(CONNECTIONS)))
        await until_done(connections[0], ApiKey.FIND_COORDINATOR, 3, {"key": self._group, "key_type": GROUP})
        await self._timed(f"{MEMBERS:,} members join", lambda: self._join(connections, MEMBERS))
        await self._rest()
        await self._timed(f"{LEAVING} of {MEMBERS:,} members leave", self._leave)
        await self._timed(f"{LEAVING} members join {MEMBERS - LEAVING:,}", lambda: self._join(connections, LEAVING))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for connection in connections:
            connection.close()

    async def _timed(self, what: str, change: Callable[[], Any]) -> None:
        """Time and CPU seconds of the node until all partitions are assigned and balanced."""
        began, before = time.perf_counter(), cpu_seconds(self._subject.pid)
        await change()
        while not self._is_balanced():
            for task in self._tasks:
                if task.done() and not task.cancelled():
                    task.result()
            await asyncio.sleep(_POLL_S)
        label = f"one group, {PARTITIONS:,} partitions: {what}"
        self._figures.add(f"{label}: until all are shared", self._side, time.perf_counter() - began, "s")
        self._figures.add(f"{label}: CPU of the node", self._side, cpu_seconds(self._subject.pid) - before, "s")

    async def _join(self, connections: list[Connection], count: int) -> None:
        for _ in range(count):
            number = len(self._tasks)
            member = _Member(connections[number % CONNECTIONS], self._group, f"{self._group}-member-{number:05}")
            self._members.append(member)
            self._tasks.append(asyncio.ensure_future(member.run()))

    async def _leave(self) -> None:
        leaving, self._members = self._members[:LEAVING], self._members[LEAVING:]
        for member, task in zip(leaving, self._tasks, strict=False):
            task.cancel()
            await member.leave()

    async def _rest(self) -> None:
        began, before = time.perf_counter(), cpu_seconds(self._subject.pid)
        beats = sum(member.beats for member in self._members)
        await asyncio.sleep(REST_S)
        used, took = cpu_seconds(self._subject.pid) - before, time.perf_counter() - began
        count = sum(member.beats for member in self._members) - beats
        label = f"one group of {MEMBERS:,} members at rest"
        self._figures.add(f"{label}: heartbeats", self._side, count / took, "1/s")
        self._figures.add(f"{label}: share of a core", self._side, 100 * used / took, "%")

    def _is_balanced(self) -> bool:
        most = -(-PARTITIONS // len(self._members))
        sizes = [sum(map(len, member.owned.values())) for member in self._members]
        return sum(sizes) == PARTITIONS and max(sizes) <= most


class _Member:
    """A client of the consumer protocol that fetches nothing."""

    def __init__(self, connection: Connection, group: str, member_id: str) -> None:
        self.owned: dict[UUID, frozenset[int]] = {}
        self.beats = 0
        self._connection, self._group, self._member_id = connection, group, member_id
        self._epoch = 0

    async def run(self) -> None:
        reports_owned = True
        while True:
            answer = await self._heartbeat(self._epoch, reports_owned=reports_owned)
            code = ErrorCode(answer.error_code)
            if code in RETRIABLE:
                await asyncio.sleep(_STEP_S)
                continue
            assert code is ErrorCode.NONE, code
            self.beats += 1
            self._epoch = answer.member_epoch
            reports_owned = False
            if answer.assignment is not None:
                given = {each.topic_id: frozenset(each.partitions) for each in answer.assignment.topic_partitions}
                reports_owned = given != self.owned
                self.owned = given
            if not reports_owned:
                await asyncio.sleep(answer.heartbeat_interval.total_seconds())

    async def leave(self) -> None:
        await self._heartbeat(-1, reports_owned=False)

    async def _heartbeat(self, epoch: int, *, reports_owned: bool) -> Any:
        owned = [{"topic_id": topic_id, "partitions": sorted(each)} for topic_id, each in self.owned.items()]
        fields = {
            "group_id": self._group,
            "member_id": self._member_id,
            "member_epoch": epoch,
            "instance_id": None,
            "rack_id": None,
            "rebalance_timeout": _REBALANCE_MS if epoch == 0 else -1,
            "subscribed_topic_names": [TOPIC] if epoch == 0 else None,
            "subscribed_topic_regex": None,
            "server_assignor": None,
            "topic_partitions": owned if reports_owned else None,
        }
        return await self._connection.call(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, fields, timeout_ms=REQUEST_TIMEOUT_MS)
