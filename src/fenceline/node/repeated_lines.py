"""Log lines that others can cause at will, rate limited: a client with a wrong password tries many times a second, and
an attacker as often as it can.

Owns the limit: equal lines are written once in ten seconds, then with how often they would have been repeated. Never
decides what is worth a line.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

_REPEAT_S: Final = 10.0
_MOST_LINES: Final = 1_000
"""Remembered. With more, the oldest are forgotten, and their lines may come again earlier."""


class RepeatedLines:
    """See the module. Belongs to the event loop."""

    def __init__(self, write: Callable[..., None]) -> None:
        """`write`: receives the event, and the fields by name (`Logger.info`)."""
        self._write = write
        self._repeats: dict[tuple[str, tuple[tuple[str, str], ...]], int] = {}
        """Lines of the last ten seconds: how often each would have been written since."""

    def write(self, event: str, **fields: str) -> None:
        """Without anything secret."""
        line = (event, tuple(fields.items()))
        if line in self._repeats:
            self._repeats[line] += 1
            return
        if len(self._repeats) >= _MOST_LINES:
            oldest = next(iter(self._repeats))
            self._write_repeated(oldest, self._repeats.pop(oldest))
        self._repeats[line] = 0
        self._write(event, **fields)
        asyncio.get_running_loop().call_later(_REPEAT_S, self._forget, line)

    def flush(self) -> None:
        """Write the numbers of repetitions at once."""
        for line, repeats in self._repeats.items():
            self._write_repeated(line, repeats)
        self._repeats = dict.fromkeys(self._repeats, 0)

    def _forget(self, line: tuple[str, tuple[tuple[str, str], ...]]) -> None:
        self._write_repeated(line, self._repeats.pop(line, 0))

    def _write_repeated(self, line: tuple[str, tuple[tuple[str, str], ...]], repeats: int) -> None:
        if repeats:
            event, fields = line
            counted: dict[str, Any] = {**dict(fields), "repeated": repeats}
            self._write(event, **counted)
