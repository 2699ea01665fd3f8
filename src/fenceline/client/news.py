"""Waiting at the brokers: a Fetch that they hold back until there is something new for who reads at a position.

Owns at most one such request for each leader. Takes no records: whoever waits looks for himself afterwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from fenceline.client.cluster import Cluster, Purpose
from fenceline.client.deadline import Deadline
from fenceline.client.errors import error_code
from fenceline.client.fetch_wire import PartitionFetch, fetch_once
from fenceline.errors import ErrorCode, PeerError
from fenceline.ids import TopicPartition


class NewsWatch:
    """Make it inside a running loop."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._asked: dict[int, asyncio.Task[bool]] = {}
        """By leader; one that has not answered yet is not asked again."""
        self._is_stale = False
        """A leader's answer says that metadata may be."""

    async def close(self) -> None:
        for asked in self._asked.values():
            asked.cancel()
        await asyncio.gather(*self._asked.values(), return_exceptions=True)

    async def await_news(self, positions: Mapping[TopicPartition, tuple[int, int]], timeout_ms: int) -> bool:
        """Wait until there is something new for a reader at `positions` (next offset, epoch before it): records,
        another leader, another history. False when the time is over.

        A leader that still holds its answer back when another one has news is not asked again before it has answered;
        its next news may be of where the reader stood then.
        """
        deadline = Deadline(self._cluster.config["default.api.timeout.ms"])
        if self._is_stale:
            await self._cluster.fetch_metadata(sorted({tp.topic for tp in positions}), deadline)
            self._is_stale = False
        grouped = await self._cluster.by_leader(positions, deadline)
        for node_id, led in grouped.items():
            if (asked := self._asked.get(node_id)) is None or asked.done():
                wanted = [PartitionFetch(tp, *positions[tp], leader.epoch, 1) for tp, leader in led]
                self._asked[node_id] = asyncio.ensure_future(self._ask(node_id, wanted, timeout_ms))
        waiting = {self._asked[node_id] for node_id in grouped}
        while waiting:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if any(asked.result() for asked in done):
                return True
        return False

    async def _ask(self, node_id: int, wanted: list[PartitionFetch], timeout_ms: int) -> bool:
        cluster = self._cluster
        try:
            connection = await cluster.link(node_id, Purpose.FETCH).connection()
            answers = await fetch_once(cluster, connection, wanted, cluster.config, max_wait_ms=timeout_ms)
        except PeerError:
            self._is_stale = True
            return True
        if any(error_code(answer.error_code) is not ErrorCode.NONE for answer in answers.values()):
            self._is_stale = True
            return True
        return any(answer.records or answer.diverging_epoch is not None for answer in answers.values())
