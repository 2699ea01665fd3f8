"""Structured logs: JSON lines, or text for a terminal.

Log lines are written on the event loop, often when something has failed and requests are waiting. So the JSON format,
which servers use, needs no module that is not already loaded. Only the text format uses structlog, which is imported
with the first line, since the import takes some tenths of a second and megabytes.
"""

from __future__ import annotations

import json
import sys
import threading
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, Literal

LogFormat = Literal["auto", "json", "console"]
Sink = Callable[[str, str, str, dict[str, Any]], None]
"""(level, room, event, fields)."""
_LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}

_settings: dict[str, Any] = {"format": "auto", "level": 20}
_configured: list[Sink] = []
"""The active writer, set with the first line."""
_redirected: Final = threading.local()
"""`sink`: receives this thread's lines."""
_writing: Final = threading.Lock()


def configure(*, log_format: LogFormat = "auto", level: str = "info") -> None:
    """Choose the format (`auto`: coloured text on a terminal, JSON lines elsewhere) and the lowest level written."""
    _settings.update(format=log_format, level=_LEVELS[level])
    _configured.clear()


def level() -> str:
    """The lowest level written."""
    return next(name for name, number in _LEVELS.items() if number == _settings["level"])


def set_level(name: str) -> None:
    """Change the lowest level written while the node runs; `name` as in `configure`."""
    _settings["level"] = _LEVELS[name]


def redirect(sink: Sink | None) -> Sink | None:
    """Give this thread's lines of every level to `sink` instead of writing them; None writes them again.

    Returns the previous sink. Other threads are not affected.
    """
    before: Sink | None = getattr(_redirected, "sink", None)
    _redirected.sink = sink
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
        sink: Sink | None = getattr(_redirected, "sink", None)
        if sink is not None:
            sink(level, self._name, event, fields)
            return
        if _LEVELS[level] < _settings["level"]:
            return
        if not _configured:
            wants_text = _settings["format"] == "console" or (_settings["format"] == "auto" and sys.stderr.isatty())
            _configured.append(_text() if wants_text else _write_json)
        _configured[0](level, self._name, event, fields)


def json_line(level: str, room: str, event: str, fields: dict[str, Any]) -> str:
    """One line of the JSON format, with its end."""
    timestamp = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    line = {"room": room, **fields, "event": event, "level": level, "timestamp": timestamp}
    failure = line.pop("exc_info", None)
    if failure is not None:
        lines = traceback.format_exception(failure) if isinstance(failure, BaseException) else [traceback.format_exc()]
        line["exception"] = "".join(lines).rstrip("\n")
    return json.dumps(line, default=repr) + "\n"


def _write_json(level: str, room: str, event: str, fields: dict[str, Any]) -> None:
    text = json_line(level, room, event, fields)
    with _writing:
        sys.stderr.write(text)
        sys.stderr.flush()


def _text() -> Sink:
    import structlog

    stamp = structlog.processors.TimeStamper(fmt="iso", utc=True)
    processors: list[Any] = [structlog.processors.add_log_level, stamp, structlog.dev.ConsoleRenderer()]
    logger = structlog.wrap_logger(structlog.PrintLogger(sys.stderr), processors=processors)

    def write(level: str, room: str, event: str, fields: dict[str, Any]) -> None:
        getattr(logger, level)(event, room=room, **fields)

    return write
