"""Probes of brokers on behalf of the active controller: at most one task for each, and what becomes of their findings.

Owns the tasks of `presence` and `silence_watch`. Knows nothing of what they probe.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from fenceline.node.logs import Logger

if TYPE_CHECKING:
    from fenceline.controller.requests import Request
    from fenceline.node.controller.ports import Decider

log = Logger("controller")

K = TypeVar("K")


class ProbeTasks(dict[K, "asyncio.Task[None]"]):
    """The probes under way, by any key. A probe that ends removes itself."""

    def begin(self, key: K, broker_id: int, probe: Coroutine[Any, Any, None]) -> None:
        task = self[key] = asyncio.get_running_loop().create_task(probe)

        def ended(done: asyncio.Task[None]) -> None:
            if self.get(key) is done:
                del self[key]
            if not done.cancelled() and (error := done.exception()) is not None:
                log.error("probing a broker failed", broker=broker_id, reason=repr(error))

        task.add_done_callback(ended)

    def cancel_all(self) -> None:
        for task in self.values():
            task.cancel()
        self.clear()


async def submit_finding(controller: Decider, finding: Request) -> None:
    """Wait for the controller's decision. A failure is ignored, also if this node stops leading meanwhile: the next
    leader probes again."""
    answer: asyncio.Future[Any] = controller.submit(finding)
    answer.add_done_callback(lambda done: done.cancelled() or done.exception())
    await asyncio.wait((answer,))
