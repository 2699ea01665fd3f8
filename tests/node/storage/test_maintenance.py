"""Recurring work on all partitions leaves time for requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

from fenceline.ids import TopicPartition
from fenceline.log.core.config import LogConfig
from fenceline.node.replication.open_replicas import OpenReplicas
from fenceline.node.storage.maintenance import Maintenance

PARTITIONS = 500


async def counts_in_turns(work: Coroutine[Any, Any, None], count: Callable[[], int]) -> list[int]:
    """The count at each turn of the loop, until the work is done."""
    task = asyncio.ensure_future(work)
    seen = [0]
    while not task.done():
        await asyncio.sleep(0)
        seen.append(count())
    return seen


def test_others_have_their_turn_while_due_flushes_are_looked_for() -> None:
    looked = 0
    flushed: list[Any] = []

    class Log:
        def __init__(self, index: int) -> None:
            self.index = index
            self.config = LogConfig()

        def flush_due(self, now_ms: int) -> bool:
            nonlocal looked
            looked += 1
            return self.index % 100 == 7

    async def flush(replica: Any) -> None:
        flushed.append(replica.log.index)

    async def run() -> list[int]:
        maintenance: Any = Maintenance.__new__(Maintenance)
        maintenance._clock = SimpleNamespace(now_ms=lambda: 1)
        replicas = [SimpleNamespace(log=Log(index), is_being_cut=index == 107) for index in range(PARTITIONS)]
        maintenance._in_service = SimpleNamespace(watched=dict(enumerate(replicas)))
        maintenance._timed = {}
        maintenance._flushes = SimpleNamespace(flush=flush)
        maintenance._trouble = None
        return await counts_in_turns(maintenance._flush_overdue(), lambda: looked)

    seen = asyncio.run(run())
    assert flushed == [7, 207, 307, 407]
    assert looked == PARTITIONS - 1
    assert max(after - before for before, after in pairwise(seen)) <= 50


def test_others_have_their_turn_while_in_sync_sets_are_checked() -> None:
    checked = 0

    def shrink_isrs() -> Iterator[None]:
        nonlocal checked
        for _ in range(PARTITIONS):
            yield
            checked += 1

    async def run() -> list[int]:
        maintenance: Any = Maintenance.__new__(Maintenance)
        maintenance._shrink_isrs_of_each = shrink_isrs
        return await counts_in_turns(maintenance._shrink_isrs(), lambda: checked)

    seen = asyncio.run(run())
    assert checked == PARTITIONS
    assert max(after - before for before, after in pairwise(seen)) <= 50


def test_of_many_logs_each_pass_looks_at_some_and_at_those_with_a_time_limit() -> None:
    count, timed, looked = 10_000, 4_321, list[int]()

    class Replica:
        is_being_cut = False

        def __init__(self, index: int) -> None:
            self.index = index
            self.topic_partition = TopicPartition("many", index)
            self.topic_id_bytes = b"many"
            self.config = LogConfig(flush_ms=5) if index == timed else LogConfig()
            self.log = self

        def flush_due(self, now_ms: int) -> bool:
            looked.append(self.index)
            return False

    in_service = OpenReplicas()
    for index in range(count):
        replica: Any = Replica(index)
        in_service.by_name["many", index] = in_service.watched[replica.topic_partition] = replica
    maintenance: Any = Maintenance.__new__(Maintenance)
    maintenance._clock = SimpleNamespace(now_ms=lambda: 1)
    maintenance._in_service, maintenance._trouble = in_service, None
    maintenance._passes, maintenance._timed = 0, {}
    passes = 1 + count // 2_000
    found = []
    for _ in range(2 * passes):
        looked.clear()
        asyncio.run(maintenance._flush_overdue())
        found.append(set(looked))
        assert len(looked) == len(set(looked)) <= 1 + count / passes + 1
    assert set().union(*found[:passes]) == set(range(count))
    assert all(timed in each for each in found[passes:])
    in_service.remove(in_service.by_name["many", timed].topic_partition)
    looked.clear()
    asyncio.run(maintenance._flush_overdue())
    assert timed not in looked
