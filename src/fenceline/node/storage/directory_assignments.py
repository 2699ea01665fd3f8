"""Reports to the controller the directory of each replica of this broker (KIP-858, AssignReplicasToDirs).

Owns the pending assignments, and the single request in flight: assignments that arise meanwhile are sent together in
the next one, until the controller has accepted them or the replica no longer belongs to this broker. Decides nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from fenceline.controller.partition_requests import AssignReplicasToDirs, AssignReplicasToDirsAnswer
from fenceline.errors import ErrorCode, PeerError
from fenceline.node.logs import Logger

if TYPE_CHECKING:
    from fenceline.controller.requests import Request

log = Logger("replication")

MOST_IN_REQUEST: Final = 2250
"""Same as Kafka's AssignmentsManager."""
_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 1.0
_GONE: Final = (
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
)
"""Errors that the next metadata of this broker will explain."""

_Place = tuple[UUID, int]


class DirectoryAssignments:
    """The assignments of one broker. `report` may be called in any thread, all other methods on the event loop."""

    def __init__(
        self, node_id: int, broker_epoch: Callable[[], int], submit: Callable[[Request], Awaitable[Any]]
    ) -> None:
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        self._submit = submit
        self._loop = asyncio.get_running_loop()
        self._wanted: dict[_Place, UUID] = {}
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False

    def report(self, topic_id: UUID, index: int, directory_id: UUID) -> None:
        """Report this assignment to the controller."""
        self._loop.call_soon_threadsafe(self._enqueue, (topic_id, index), directory_id)

    def _enqueue(self, place: _Place, directory_id: UUID) -> None:
        if self._is_closed:
            return
        self._wanted[place] = directory_id
        if self._task is None:
            self._task = asyncio.ensure_future(self._run())

    async def close(self) -> None:
        self._is_closed = True
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        pause_s = _FIRST_PAUSE_S
        try:
            while self._wanted:
                asked = dict(islice(self._wanted.items(), MOST_IN_REQUEST))
                if await self._send(asked):
                    pause_s = _FIRST_PAUSE_S
                else:
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        finally:
            self._task = None

    async def _send(self, asked: Mapping[_Place, UUID]) -> bool:
        """Whether all assignments are completed; those that failed or changed meanwhile stay pending."""
        request = AssignReplicasToDirs(self._node_id, self._broker_epoch(), _by_directory(asked))
        try:
            answer: AssignReplicasToDirsAnswer = await self._submit(request)
        except PeerError as error:
            log.warning(
                "could not report directories of replicas",
                replicas=len(asked),
                reason=error.message or error.code.name,
                advice="The node retries. A majority of the controllers must be running and reachable from here.",
            )
            return False
        completed = True
        for directory_id, topics in answer.directories:
            for topic_id, replicas in topics:
                for replica in replicas:
                    place = (topic_id, replica.index)
                    if replica.code is not ErrorCode.NONE and replica.code not in _GONE:
                        log.warning(
                            "controller rejected the directory of a replica",
                            replica=str(place),
                            reason=replica.code.name,
                        )
                        completed = False
                    elif self._wanted.get(place) == directory_id:
                        del self._wanted[place]
        return completed and not any(self._wanted.get(place) == reported for place, reported in asked.items())


def _by_directory(
    asked: Mapping[_Place, UUID],
) -> tuple[tuple[UUID, tuple[tuple[UUID, tuple[int, ...]], ...]], ...]:
    found: dict[UUID, dict[UUID, list[int]]] = {}
    for (topic_id, index), directory_id in asked.items():
        found.setdefault(directory_id, {}).setdefault(topic_id, []).append(index)
    return tuple(
        (directory_id, tuple((topic_id, tuple(indexes)) for topic_id, indexes in topics.items()))
        for directory_id, topics in found.items()
    )
