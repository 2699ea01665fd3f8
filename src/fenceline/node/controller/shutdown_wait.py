"""Waiting for the quorum during a node's shutdown, only while a majority of the other voters may exist.

Owns the check of the other voters while a stopping node waits for the quorum. When the whole cluster stops, the last
nodes would wait in vain. Decides nothing: the caller passes the action.

Rules: raft.md Q23.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from fenceline.node.controller.ports import OtherVoters

_CHECK_S: Final = 0.05
"""Interval between checks."""


async def wait_while_quorum_possible(
    others: OtherVoters | None, work: Coroutine[Any, Any, None], give_up: Callable[[], None]
) -> None:
    """Await `work`, which needs other voters; `give_up` is called once to end it if too few of them are running.

    `others` None: this node is the only voter. Raises the exception of `work`.
    """
    task = asyncio.ensure_future(work)
    await asyncio.wait((task,), timeout=_CHECK_S)
    while others is not None and not task.done():
        if await others.has_no_majority():
            give_up()
            break
        await asyncio.wait((task,), timeout=_CHECK_S)
    await task
