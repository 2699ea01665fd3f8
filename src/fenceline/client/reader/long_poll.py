"""Long polling: a Fetch that the broker answers when a partition changes at a given position, or after `HOLD_MS`.

Owns at most one such request per leader. A request continues after the caller's timeout, and the next call waits for
the same one. Discards the records: the caller fetches them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from fenceline.client.core.cluster import Cluster, Purpose
from fenceline.client.core.deadline import Deadline
from fenceline.client.core.errors import error_code
from fenceline.client.core.fetch_session import PartitionFetch
from fenceline.client.core.fetch_wire import diverging_end, fetch_once
from fenceline.errors import ErrorCode, PeerError
from fenceline.ids import TopicPartition

HOLD_MS: Final = 5_000
"""`max_wait_ms` of the Fetch."""

Positions = Mapping[TopicPartition, tuple[int, int]]
"""Next offset, and the epoch of the record before it."""


@dataclass(frozen=True, slots=True)
class _PendingRequest:
    positions: Positions
    answer: asyncio.Task[bool]


class LongPoller:
    """Create it inside a running loop."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        # One record is a change.
        self._config = replace(cluster.config, values={**cluster.config.values, "fetch.min.bytes": 1})
        self._pending: dict[int, _PendingRequest] = {}
        """By leader. A broker handles a connection's requests in order, so a second one would wait for the first."""
        self._is_stale = False
        """Whether a response showed that metadata may be stale."""

    async def close(self) -> None:
        answers = [pending.answer for pending in self._pending.values()]
        for answer in answers:
            answer.cancel()
        await asyncio.gather(*answers, return_exceptions=True)

    async def wait_for_change(self, positions: Positions, timeout_ms: int) -> bool:
        """Wait for a change at `positions`: new records, another leader, or a truncation.

        False if there is none within `timeout_ms`, or if all leaders answered that there is none. Otherwise True, also
        if a leader's request in flight is for other positions: whether these have changed is not known.
        """
        loop = asyncio.get_running_loop()
        deadline = Deadline(self._config["default.api.timeout.ms"])
        ends_s = loop.time() + timeout_ms / 1000
        if self._is_stale:
            await self._cluster.fetch_metadata(sorted({tp.topic for tp in positions}), deadline)
            self._is_stale = False
        grouped = await self._cluster.by_leader(positions, deadline)
        is_covered = True
        for node_id, led in grouped.items():
            here = {tp: positions[tp] for tp, _ in led}
            pending = self._pending.get(node_id)
            if pending is None or pending.answer.done():
                wanted = [PartitionFetch(tp, *here[tp], leader.epoch, 1) for tp, leader in led]
                pending = self._pending[node_id] = _PendingRequest(
                    here, asyncio.ensure_future(self._ask(node_id, wanted))
                )
            is_covered = is_covered and pending.positions == here
        waiting = {self._pending[node_id].answer for node_id in grouped}
        while waiting:
            done, waiting = await asyncio.wait(
                waiting, timeout=max(0.0, ends_s - loop.time()), return_when=asyncio.FIRST_COMPLETED
            )
            if any(answer.result() for answer in done):
                return True
            if not done:
                break
        return not is_covered

    async def _ask(self, node_id: int, wanted: list[PartitionFetch]) -> bool:
        try:
            connection = await self._cluster.link(node_id, Purpose.FETCH).connection()
            answers = await fetch_once(self._cluster, connection, wanted, self._config, max_wait_ms=HOLD_MS)
        except PeerError:
            self._is_stale = True
            return True
        if any(error_code(answer.error_code) is not ErrorCode.NONE for answer in answers.values()):
            self._is_stale = True
            return True
        return any(answer.records or diverging_end(answer) is not None for answer in answers.values())
