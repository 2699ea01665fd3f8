"""Producer ids of this broker: one by one, out of blocks that the controller allocates.

Owns the current block and the next one, which is requested when the current one is 90 % used. The rest of a block is
never used after a restart. Rules: `controller.md C41`, `transactions.md X29`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from fenceline.controller.requests import AllocateProducerIds
from fenceline.errors import PeerError
from fenceline.node.logs import Logger

if TYPE_CHECKING:
    from fenceline.node.context import Submit

_USED_BEFORE_NEXT_BLOCK: Final = 0.9
_RETRY_S: Final = 0.05

log: Final = Logger("transactions")


class _IdRange(NamedTuple):
    next_id: int
    end_exclusive: int
    reload_at: int
    """The id at which the next block is requested."""


_EMPTY: Final = _IdRange(0, 0, 0)


class ProducerIds:
    """All methods run on the event loop."""

    def __init__(self, node_id: int, broker_epoch: Callable[[], int], submit: Submit) -> None:
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        self._submit = submit
        self._current = _EMPTY
        self._following: _IdRange | None = None
        self._loading: asyncio.Task[None] | None = None
        self._not_before: float = 0
        self._is_closed = False

    def at_hand(self) -> int | None:
        """The next unused id; None while the controller has not allocated one."""
        if self._current.next_id >= self._current.end_exclusive and self._following is not None:
            self._current, self._following = self._following, None
        current = self._current
        if current.next_id >= current.reload_at:
            self._load()
        if current.next_id >= current.end_exclusive:
            return None
        self._current = current._replace(next_id=current.next_id + 1)
        return current.next_id

    async def next_id(self) -> int:
        """The next unused id. Raises PeerError if the controller allocates none."""
        while (producer_id := self.at_hand()) is None:
            loading = self._load()
            if loading is not None:
                await asyncio.shield(loading)
            else:
                await asyncio.sleep(_RETRY_S)
        return producer_id

    async def wait_until_at_hand(self) -> None:
        """Until an id is at hand, or the controller could not be asked for one."""
        if self._current.next_id < self._current.end_exclusive or self._following is not None:
            return
        loading = self._load()
        if loading is not None:
            await asyncio.wait({loading})

    def close(self) -> None:
        self._is_closed = True
        if self._loading is not None:
            self._loading.cancel()

    def _load(self) -> asyncio.Task[None] | None:
        """Request a block, unless one is at hand or was refused a moment ago."""
        if self._loading is None and self._following is None and not self._is_closed:
            if asyncio.get_running_loop().time() < self._not_before:
                return None
            self._loading = asyncio.ensure_future(self._request())
            self._loading.add_done_callback(self._loaded)
        return self._loading

    async def _request(self) -> None:
        block = await self._submit(AllocateProducerIds(self._node_id, self._broker_epoch()))
        reload_at = block.first + int(block.size * _USED_BEFORE_NEXT_BLOCK)
        self._following = _IdRange(block.first, block.first + block.size, reload_at)

    def _loaded(self, done: asyncio.Task[None]) -> None:
        self._loading = None
        if done.cancelled() or (error := done.exception()) is None:
            return
        self._not_before = asyncio.get_running_loop().time() + _RETRY_S
        if not isinstance(error, PeerError):
            raise error
        log.debug("no producer ids allocated", reason=str(error))
