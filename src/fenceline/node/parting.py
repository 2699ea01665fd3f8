"""Waiting for others at the end of a node's life, no longer than there are others.

Owns the look-out while a node that stops waits for the quorum. When a whole cluster stops, the last ones would wait in
vain. Decides nothing: who waits says what to do then.

Rules: raft.md Q23.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

_LOOK_S: Final = 0.05
"""Between two looks."""


class Others(Protocol):
    """The other voters, as this node reaches them."""

    async def has_no_majority(self) -> bool:
        """Whether those that are there are too few for any leader."""
        ...


async def while_others_are_there(
    others: Others | None, work: Coroutine[Any, Any, None], give_up: Callable[[], None]
) -> None:
    """Wait for `work`, which needs other voters; `give_up` is called, once, to end it when there are too few of them.

    Without `others`, work of a node that votes alone. Raises what `work` raises.
    """
    task = asyncio.ensure_future(work)
    await asyncio.wait((task,), timeout=_LOOK_S)
    while others is not None and not task.done():
        if await others.has_no_majority():
            give_up()
            break
        await asyncio.wait((task,), timeout=_LOOK_S)
    await task
