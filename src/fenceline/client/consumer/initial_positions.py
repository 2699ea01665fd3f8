"""Initial positions of assigned partitions: the group's committed offset, or `auto.offset.reset`.

Owns the lookup of committed offsets. It may take longer than one poll (a coordinator can load for seconds, or be
unavailable): the next poll continues to wait for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from fenceline.client.consumer.positions import PositionPhase, Positions, PositionState
from fenceline.client.core.cluster import Cluster
from fenceline.client.core.config import ClientConfig
from fenceline.client.core.deadline import Deadline
from fenceline.client.core.errors import NoOffsetError
from fenceline.client.core.group_requests import fetch_committed
from fenceline.client.core.offsets import CommittedOffset, reset_spec
from fenceline.client.core.surroundings import surroundings
from fenceline.ids import TopicPartition

_States = dict[TopicPartition, PositionState]


class _Lookup(NamedTuple):
    states: _States
    """Of the partitions looked up; one that was reassigned meanwhile has a new state and needs a new lookup."""
    answer: asyncio.Task[dict[TopicPartition, CommittedOffset]]


class InitialPositions:
    """The initial positions of one consumer. `started()` is called when partitions have a position or await a reset."""

    def __init__(
        self, cluster: Cluster, positions: Positions, config: ClientConfig, started: Callable[[], None]
    ) -> None:
        self._cluster = cluster
        self._positions = positions
        self._config = config
        self._started = started
        self._pending: _Lookup | None = None

    async def resolve(self, deadline: Deadline) -> None:
        """Set the position of every partition that has none, within the deadline. Raises NoOffsetError and errors of
        the coordinator.
        """
        while states := {
            tp: state for tp, state in self._positions.items() if state.phase is PositionPhase.INITIALIZING
        }:
            found: dict[TopicPartition, CommittedOffset] = {}
            if self._config["group.id"]:
                lookup = self._lookup(states)
                await asyncio.wait({lookup.answer}, timeout=deadline.left_ms / 1000)
                if not lookup.answer.done():
                    return
                if self._pending is lookup:
                    self._pending = None
                states, found = lookup.states, lookup.answer.result()
            try:
                for tp, state in states.items():
                    if self._positions.get(tp) is state and state.phase is PositionPhase.INITIALIZING:
                        self._start(tp, found.get(tp))
            finally:
                self._started()

    async def close(self) -> None:
        lookup, self._pending = self._pending, None
        if lookup is not None:
            lookup.answer.cancel()
            await asyncio.gather(lookup.answer, return_exceptions=True)

    def _lookup(self, states: _States) -> _Lookup:
        if self._pending is None:
            deadline = Deadline(self._config["default.api.timeout.ms"])
            asked = fetch_committed(self._cluster, self._config["group.id"], list(states), deadline)
            self._pending = _Lookup(states, asyncio.ensure_future(asked))
        return self._pending

    def _start(self, tp: TopicPartition, committed: CommittedOffset | None) -> None:
        policy = self._config["auto.offset.reset"]
        if committed is not None:
            self._positions.seek(tp, committed.offset, committed.leader_epoch)
        elif policy == "none":
            raise NoOffsetError(tp.topic, tp.partition)
        else:
            self._positions.await_reset(tp, reset_spec(policy, surroundings().wall_ms()))
