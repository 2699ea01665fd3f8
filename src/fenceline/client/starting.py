"""Initial positions of assigned partitions: the group's committed offset, or `auto.offset.reset`.

Owns the lookup of committed offsets. It may take longer than one poll (a coordinator can load for seconds, or be
unavailable): the next poll continues to wait for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from fenceline.client.admin_groups import fetch_committed
from fenceline.client.cluster import Cluster
from fenceline.client.config import ClientConfig
from fenceline.client.deadline import Deadline
from fenceline.client.errors import NoOffsetError
from fenceline.client.offsets import CommittedOffset
from fenceline.client.positions import PartitionState, Phase, Positions
from fenceline.ids import TopicPartition

_States = dict[TopicPartition, PartitionState]


class _LookUp(NamedTuple):
    states: _States
    """Of the partitions looked up; one that was reassigned meanwhile has a new state and needs a new lookup."""
    answer: asyncio.Task[dict[TopicPartition, CommittedOffset]]


class Starts:
    """The initial positions of one consumer. `started()` is called when partitions have a position or await a reset."""

    def __init__(
        self, cluster: Cluster, positions: Positions, config: ClientConfig, started: Callable[[], None]
    ) -> None:
        self._cluster = cluster
        self._positions = positions
        self._config = config
        self._started = started
        self._under_way: _LookUp | None = None

    async def settle(self, deadline: Deadline) -> None:
        """Set the position of every partition that has none, within the deadline. Raises NoOffsetError and errors of
        the coordinator.
        """
        while states := {tp: state for tp, state in self._positions.items() if state.phase is Phase.INITIALIZING}:
            found: dict[TopicPartition, CommittedOffset] = {}
            if self._config["group.id"]:
                look_up = self._look_up(states)
                await asyncio.wait({look_up.answer}, timeout=deadline.left_ms / 1000)
                if not look_up.answer.done():
                    return
                if self._under_way is look_up:
                    self._under_way = None
                states, found = look_up.states, look_up.answer.result()
            try:
                for tp, state in states.items():
                    if self._positions.get(tp) is state and state.phase is Phase.INITIALIZING:
                        self._start(tp, found.get(tp))
            finally:
                self._started()

    async def close(self) -> None:
        look_up, self._under_way = self._under_way, None
        if look_up is not None:
            look_up.answer.cancel()
            await asyncio.gather(look_up.answer, return_exceptions=True)

    def _look_up(self, states: _States) -> _LookUp:
        if self._under_way is None:
            patience = Deadline(self._config["default.api.timeout.ms"])
            asked = fetch_committed(self._cluster, self._config["group.id"], list(states), patience)
            self._under_way = _LookUp(states, asyncio.ensure_future(asked))
        return self._under_way

    def _start(self, tp: TopicPartition, committed: CommittedOffset | None) -> None:
        policy = self._config["auto.offset.reset"]
        if committed is not None:
            self._positions.seek(tp, committed.offset, committed.leader_epoch)
        elif policy == "none":
            raise NoOffsetError(tp.topic, tp.partition)
        else:
            self._positions.await_reset(tp, policy)
