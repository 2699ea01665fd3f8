"""The OAuth token of a process's connections: requested when the first one needs it, again when most of its life is
over, and after a peer has refused it.

Owns the token and its requests, which run in a thread; concurrent logins share one. Knows no issuer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from fenceline.errors import OperatorError
from fenceline.sasl.oauthbearer import BearerToken

_FRESH_FRACTION: Final = 0.8
"""The part of its life in which a token is used for new logins."""


class KeptToken:
    """See the module. Belongs to one event loop."""

    def __init__(self, request: Callable[[], BearerToken]) -> None:
        """`request` blocks; what it raises is raised by `fresh`."""
        self._request = request
        self._token: BearerToken | None = None
        self._stale_s = 0.0
        """From when on the token is replaced, since the epoch."""
        self._requesting: asyncio.Task[BearerToken] | None = None

    async def fresh(self) -> BearerToken:
        """Raises OperatorError for a token that has expired."""
        if self._token is not None and time.time() < self._stale_s:
            return self._token
        if self._requesting is None or self._requesting.done():
            self._requesting = asyncio.ensure_future(self._replace())
            self._requesting.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(self._requesting)

    def forget(self) -> None:
        """A peer has refused the token."""
        self._token = None

    def close(self) -> None:
        """No login waits for a token any more."""
        if self._requesting is not None:
            self._requesting.cancel()

    async def _replace(self) -> BearerToken:
        began_s = time.time()
        found = await asyncio.get_running_loop().run_in_executor(None, self._request)
        if found.expires_s <= began_s:
            raise OperatorError("The OAuth token has expired already", "Check the clocks and the issuer of the token.")
        self._token, self._stale_s = found, began_s + _FRESH_FRACTION * (found.expires_s - began_s)
        return found
