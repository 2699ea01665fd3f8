"""Log lines that others can cause at will, rate limited: a client with a wrong password tries many times a second, and
an attacker as often as it can.

Owns the limit: equal lines are written once in ten seconds, then with how often they would have been repeated. Never
decides what is worth a line.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

_REPEAT_S: Final = 10.0
_MOST_LINES: Final = 1_000
"""Remembered. With more, the oldest are forgotten, and their lines may come again earlier."""


def shape(reason: str) -> str:
    """Without the numbers and quotations that a peer can choose."""
    return re.sub(r"\d+", "#", re.split(r"['\"]", reason, maxsplit=1)[0])


_Key: TypeAlias = tuple[str, tuple[Any, ...]]


@dataclass(slots=True)
class _Repeated:
    event: str
    fields: Mapping[str, str]
    count: int = 0
    """How often it would have been written again."""


class RepeatedLines:
    """See the module. Belongs to the event loop."""

    def __init__(self, write: Callable[..., None]) -> None:
        """`write`: receives the event, and the fields by name (`Logger.info`)."""
        self._write = write
        self._repeats: dict[_Key, _Repeated] = {}
        """Lines of the last ten seconds."""

    def write(self, event: str, *, alike: tuple[str, ...] | None = None, **fields: str) -> None:
        """Without anything secret. `alike`: equal for lines that count as equal; None: those with equal fields."""
        key: _Key = (event, tuple(fields.items()) if alike is None else alike)
        known = self._repeats.get(key)
        if known is not None:
            known.count += 1
            return
        if len(self._repeats) >= _MOST_LINES:
            self._write_repeated(self._repeats.pop(next(iter(self._repeats))))
        self._repeats[key] = _Repeated(event, fields)
        self._write(event, **fields)
        asyncio.get_running_loop().call_later(_REPEAT_S, self._forget, key)

    def flush(self) -> None:
        """Write the numbers of repetitions at once."""
        for line in self._repeats.values():
            self._write_repeated(line)

    def _forget(self, key: _Key) -> None:
        line = self._repeats.pop(key, None)
        if line is not None:
            self._write_repeated(line)

    def _write_repeated(self, line: _Repeated) -> None:
        if line.count:
            counted: dict[str, Any] = {**line.fields, "repeated": line.count}
            self._write(line.event, **counted)
            line.count = 0
