"""Registration of this controller: its endpoints and supported features (KIP-919).

Owns the registration of one controller process. The request is repeated until this node's own image contains the
registration. If another process registers with the same id, both would replace each other's registration forever, a
record each time: then a warning is logged, and the requests back off.

Rules: since_4_0.md K20, K27 (a feature is raised only when every voter is registered), K38.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final
from uuid import UUID

from fenceline.config.listeners import SECURITY_PROTOCOLS, ListenerConfig
from fenceline.controller.requests import RegisterController
from fenceline.errors import PeerError
from fenceline.ids import random_id
from fenceline.metadata.features import Levels
from fenceline.metadata.image import Endpoint
from fenceline.node.logs import Logger

if TYPE_CHECKING:
    from fenceline.node.controller.ports import ControllerClient

log = Logger("controller")

_AGAIN_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 60.0
_FREE_ANSWERS: Final = 4
"""One is enough unless another process has this id; this node's image may lag a little behind."""
_FIRST_METADATA_VERSION: Final = 15
"""3.7-IV0: older levels have no such record."""


class ControllerRegistration:
    """See the module."""

    def __init__(
        self,
        controller: ControllerClient,
        node_id: int,
        endpoints: Iterable[ListenerConfig],
        features: Mapping[str, Levels],
        incarnation_id: UUID | None = None,
    ) -> None:
        self._controller = controller
        self._node_id = node_id
        self._request = RegisterController(
            node_id,
            incarnation_id or random_id(),
            tuple(
                Endpoint(each.name, each.host, each.port, SECURITY_PROTOCOLS[each.security_protocol])
                for each in endpoints
            ),
            features,
        )
        self._task: asyncio.Task[None] | None = None
        self._answers = 0
        """Number of registrations that the active controller has written."""

    def start(self) -> None:
        self._task = asyncio.ensure_future(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    @property
    def _known_incarnation(self) -> UUID | None:
        known = self._controller.image.controllers.get(self._node_id)
        return known.incarnation_id if known is not None else None

    @property
    def _is_wanted(self) -> bool:
        if self._controller.image.metadata_version < _FIRST_METADATA_VERSION:
            return False
        return self._known_incarnation != self._request.incarnation_id

    async def _run(self) -> None:
        while True:
            changed = self._controller.next_change()
            if not self._is_wanted:
                await asyncio.wait((changed,))
                continue
            if self._answers >= _FREE_ANSWERS:
                await self._give_way()
                if not self._is_wanted:
                    continue
            with contextlib.suppress(PeerError):
                await self._controller.submit(self._request)
                self._answers += 1
            await asyncio.wait((changed,), timeout=_AGAIN_S)

    async def _give_way(self) -> None:
        """The registration is replaced again and again: log a warning and back off."""
        known = self._controller.image.controllers.get(self._node_id)
        if known is not None:
            log.error(
                "another process registers as this controller",
                node=self._node_id,
                other=", ".join(f"{each.host}:{each.port}" for each in known.endpoints),
                advice=f"Two processes run with node.id={self._node_id}. Stop one of them and give it its own node.id"
                " and log directory. Never run a copy of a log directory: both would share one vote.",
            )
        await asyncio.sleep(min(2.0 ** (self._answers - _FREE_ANSWERS), _LONGEST_PAUSE_S))
