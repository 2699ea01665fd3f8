"""This controller as the cluster knows it: where it is found, and which features it supports (KIP-919).

Owns the registration of one controller's life. It is asked for until this node's own image shows it.

Rules: since_4_0.md K20, K27 (a feature is raised only when every voter is registered), K38.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from fenceline.config.listeners import SECURITY_PROTOCOLS, Listener
from fenceline.controller.requests import RegisterController
from fenceline.errors import PeerError
from fenceline.metadata.features import Levels
from fenceline.metadata.image import Endpoint

if TYPE_CHECKING:
    from fenceline.node.controller_driver import ControllerDriver

_AGAIN_S: Final = 1.0
_FIRST_METADATA_VERSION: Final = 15
"""3.7-IV0: older ones have no such record."""


class ControllerRegistration:
    """See the module."""

    def __init__(
        self, controller: ControllerDriver, node_id: int, endpoints: Iterable[Listener], features: Mapping[str, Levels]
    ) -> None:
        self._controller = controller
        self._node_id = node_id
        self._request = RegisterController(
            node_id,
            uuid4(),
            tuple(
                Endpoint(each.name, each.host, each.port, SECURITY_PROTOCOLS[each.security_protocol])
                for each in endpoints
            ),
            features,
        )
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.ensure_future(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    @property
    def _is_wanted(self) -> bool:
        image = self._controller.image
        if image.metadata_version < _FIRST_METADATA_VERSION:
            return False
        known = image.controllers.get(self._node_id)
        return known is None or known.incarnation_id != self._request.incarnation_id

    async def _run(self) -> None:
        while True:
            changed = self._controller.next_change()
            if self._is_wanted:
                with contextlib.suppress(PeerError):
                    await self._controller.submit(self._request)
                await asyncio.wait((changed,), timeout=_AGAIN_S)
            else:
                await asyncio.wait((changed,))
