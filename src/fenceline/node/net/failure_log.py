"""Log lines about peers that are not let in, rate limited.

Owns the limit for equal lines: a client with a wrong password tries many times a second, and an attacker as often as
it can. Never decides who is let in.
"""

from __future__ import annotations

import asyncio
from typing import Final

from fenceline.node.logs import Logger

log = Logger("server")

_REPEAT_S: Final = 10.0
_MOST_LINES: Final = 1_000
"""Remembered. With more, the oldest are forgotten, and their lines may come again earlier."""


class FailureLog:
    """See the module. Belongs to the event loop."""

    def __init__(self) -> None:
        self._repeats: dict[tuple[str, str, str, str], int] = {}
        """Lines of the last ten seconds: how often each would have been logged since."""

    def refused(self, event: str, listener: str, host: str, reason: str) -> None:
        """`event`: what failed. `reason`: without anything secret."""
        line = (event, listener, host, reason)
        if line in self._repeats:
            self._repeats[line] += 1
            return
        if len(self._repeats) >= _MOST_LINES:
            del self._repeats[next(iter(self._repeats))]
        self._repeats[line] = 0
        log.info(event, listener=listener, host=host, reason=reason)
        asyncio.get_running_loop().call_later(_REPEAT_S, self._forget, line)

    def _forget(self, line: tuple[str, str, str, str]) -> None:
        repeats = self._repeats.pop(line, 0)
        if repeats:
            event, listener, host, reason = line
            log.info(event, listener=listener, host=host, reason=reason, repeated=repeats)
