"""A store outside of Kafka for simulated applications: a small database that survives crashes of its users.

Owns the keys and values, and the history of writes, by which a test sees what was processed and when. A write is
atomic. Requests travel: a process that is killed while one is under way does not learn its outcome, and the write
happens nevertheless; so it does if the answer is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextvars import copy_context
from typing import Final, NamedTuple, TypeVar

from fenceline.testing.applications.timeline import StoryTimeline
from fenceline.testing.simulation.loop import SimLoop
from fenceline.testing.simulation.scheduler import SimHandle, SimulationError
from fenceline.testing.simulation.world import World

T = TypeVar("T")

_LEAST_S: Final = 0.0005
_MOST_S: Final = 0.004
_TIMEOUT_S: Final = 0.5
"""After this time the client of an unreachable store gives up."""


class StoreUnavailable(ConnectionError):
    """The store did not answer: a write may have happened or not."""


class StoreConflict(Exception):
    """A value was not the expected one: nothing was written."""


class StoreWrite(NamedTuple):
    """`at_s`: virtual seconds since the story began. `by`: the name of the application."""

    at_s: float
    by: str
    changes: Mapping[str, bytes | None]


class SimulatedStore:
    """See the module. Values are bytes; None means that a key does not exist."""

    def __init__(self, world: World, timeline: StoryTimeline, name: str) -> None:
        self.name = name
        self.content: dict[str, bytes] = {}
        """What is in the store now, for the assertions of a test; applications use the methods."""
        self.writes: list[StoreWrite] = []
        self.answers_to_lose = 0
        self.is_unreachable = False
        self._world = world
        self._timeline = timeline
        self._rng = world.rng(f"store {name}")
        self._context = copy_context()

    def __repr__(self) -> str:
        return f"<SimulatedStore {self.name}>"

    def __deepcopy__(self, memo: object) -> SimulatedStore:
        return self

    async def get(self, key: str) -> bytes | None:
        """The value of a key. Raises StoreUnavailable."""
        return await self._call(lambda: self.content.get(key))

    async def scan(self, prefix: str = "") -> dict[str, bytes]:
        """All keys with this prefix, sorted, with their values. Raises StoreUnavailable."""
        return await self._call(
            lambda: {key: self.content[key] for key in sorted(self.content) if key.startswith(prefix)}
        )

    async def write(
        self, changes: Mapping[str, bytes | None], *, expect: Mapping[str, bytes | None] | None = None
    ) -> None:
        """Write all of these, or nothing; None deletes a key. `expect`: only if these keys have these values.

        Raises StoreConflict if they have not, and StoreUnavailable: then it may have been written.
        """
        changes, expected = dict(changes), dict(expect or {})
        by = asyncio.get_running_loop()
        name = by.name if isinstance(by, SimLoop) else ""

        def apply() -> None:
            for key, value in expected.items():
                if self.content.get(key) != value:
                    raise StoreConflict(f"{self.name}: {key} is not what was expected")
            for key, value in changes.items():
                if value is None:
                    self.content.pop(key, None)
                else:
                    self.content[key] = value
            self.writes.append(StoreWrite(self._timeline.now_s, name, changes))

        await self._call(apply)

    async def _call(self, effect: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        if not isinstance(loop, SimLoop):
            raise SimulationError("a SimulatedStore is used by simulated applications only")
        answer: asyncio.Future[T] = loop.create_future()

        def finish(result: T | None, error: Exception | None) -> None:
            if answer.done():
                return
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(result)  # type: ignore[arg-type]

        def arrive() -> None:
            if self.is_unreachable:
                reply(None, StoreUnavailable(f"{self.name} does not answer"), _TIMEOUT_S)
                return
            result, error = None, None
            try:
                result = effect()
            except StoreConflict as conflict:
                error = conflict
            if self.answers_to_lose and error is None:
                self.answers_to_lose -= 1
                reply(None, StoreUnavailable(f"{self.name}: the answer is lost"), _TIMEOUT_S)
            else:
                reply(result, error, self._delay_s())

        def reply(result: T | None, error: Exception | None, after_s: float) -> None:
            scheduler = self._world.scheduler
            scheduler.at(scheduler.now_s + after_s, SimHandle(loop, finish, (result, error), self._context, -1.0))

        self._world.loop.call_later(self._delay_s(), arrive)
        return await answer

    def _delay_s(self) -> float:
        return self._rng.uniform(_LEAST_S, _MOST_S)
