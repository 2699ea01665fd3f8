"""Structured logs. structlog is imported at the first line written, so that a quiet start does not pay for it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final, Literal

LogFormat = Literal["auto", "json", "console"]
Sink = Callable[[str, str, str, dict[str, Any]], None]
"""(level, room, event, fields)."""
_LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}

_settings: dict[str, Any] = {"format": "auto", "level": 20}
_configured: list[Any] = []
_sinks: list[Sink] = []


def configure(*, log_format: LogFormat = "auto", level: str = "info") -> None:
    """Choose the form (`auto`: coloured text on a terminal, JSON lines elsewhere) and the lowest level written."""
    _settings.update(format=log_format, level=_LEVELS[level])
    _configured.clear()


def level() -> str:
    """The lowest level written."""
    return next(name for name, number in _LEVELS.items() if number == _settings["level"])


def set_level(name: str) -> None:
    """Change the lowest level written while the node runs; `name` as in `configure`."""
    _settings["level"] = _LEVELS[name]


def redirect(sink: Sink | None) -> Sink | None:
    """Give lines of every level to `sink` instead of writing them; None writes them again. The sink before it."""
    before = _sinks[0] if _sinks else None
    _sinks[:] = [] if sink is None else [sink]
    return before


class Logger:
    """A named logger; the events are short phrases, everything else goes into fields."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def debug(self, event: str, **fields: Any) -> None:
        self._write("debug", event, fields)

    def info(self, event: str, **fields: Any) -> None:
        self._write("info", event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        self._write("warning", event, fields)

    def error(self, event: str, **fields: Any) -> None:
        self._write("error", event, fields)

    def exception(self, event: str, **fields: Any) -> None:
        """An error with the traceback of the exception being handled."""
        self._write("error", event, {**fields, "exc_info": True})

    def _write(self, level: str, event: str, fields: dict[str, Any]) -> None:
        if _sinks:
            _sinks[0](level, self._name, event, fields)
            return
        if _LEVELS[level] < _settings["level"]:
            return
        if not _configured:
            _configured.append(_structlog())
        getattr(_configured[0], level)(event, room=self._name, **fields)


def _structlog() -> Any:
    import structlog

    wants_text = _settings["format"] == "console" or (_settings["format"] == "auto" and sys.stderr.isatty())
    renderer: Any = structlog.dev.ConsoleRenderer() if wants_text else structlog.processors.JSONRenderer()
    processors: list[Any] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if not wants_text:
        processors.append(structlog.processors.format_exc_info)
    return structlog.wrap_logger(structlog.PrintLogger(sys.stderr), processors=[*processors, renderer])
