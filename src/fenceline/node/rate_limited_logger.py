"""Writes the quorum's log lines, rate limited.

Owns the limit for equal lines: a lasting failure is retried many times a second.
"""

from __future__ import annotations

from typing import Any, Final

from fenceline.node.clock import Clock
from fenceline.node.logs import Logger
from fenceline.quorum.duties import Level, LogLine

log = Logger("quorum")

_REPEAT_MS: Final = 60_000
"""Interval between equal lines."""


class RateLimitedLogger:
    """See the module."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._logged_ms: dict[str, int] = {}
        """Recently logged texts, with their times."""

    def log(self, duty: LogLine) -> None:
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._logged_ms.get(duty.text, -_REPEAT_MS) < _REPEAT_MS:
            return
        self._logged_ms = {each: at_ms for each, at_ms in self._logged_ms.items() if now_ms - at_ms < _REPEAT_MS}
        self._logged_ms[duty.text] = now_ms
        fields: dict[str, Any] = {"advice": duty.advice} if duty.advice else {}
        match duty.level:
            case Level.ERROR:
                log.error(duty.text, **fields)
            case Level.WARNING:
                log.warning(duty.text, **fields)
            case Level.INFO:
                log.info(duty.text, **fields)
