"""Log lines: their format, and that the first line does not block the node that writes it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fenceline.node import logs
from fenceline.node.logs import Logger

log = Logger("room")


@pytest.fixture(autouse=True)
def as_configured_before() -> Iterator[None]:
    before = dict(logs._settings), list(logs._configured), logs.redirect(None)
    yield
    logs._settings.update(before[0])
    logs._configured[:] = before[1]
    logs.redirect(before[2])


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_a_line_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(log_format="json")
    log.warning("it rains", broker=1, what={"drops": [1, 2]}, name="ü", odd=sys)
    (line,) = lines(capsys)
    stamp = datetime.fromisoformat(line.pop("timestamp"))
    assert stamp.tzinfo == UTC
    assert abs(datetime.now(UTC) - stamp) < timedelta(hours=1)
    assert line == {
        "room": "room",
        "broker": 1,
        "what": {"drops": [1, 2]},
        "name": "ü",
        "odd": repr(sys),
        "event": "it rains",
        "level": "warning",
    }


def test_levels(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(log_format="json", level="warning")
    log.debug("no")
    log.info("no")
    log.warning("yes")
    log.error("yes")
    assert [each["level"] for each in lines(capsys)] == ["warning", "error"]


def test_an_exception_is_logged_with_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(log_format="json")
    try:
        raise ValueError("wet")
    except ValueError:
        log.exception("it failed", broker=1)
    (line,) = lines(capsys)
    assert (line["level"], line["event"], line["broker"]) == ("error", "it failed", 1)
    reported = line["exception"].splitlines()
    assert (reported[0], reported[-1]) == ("Traceback (most recent call last):", "ValueError: wet")
    assert "exc_info" not in line


def test_an_exception_not_being_handled_is_logged_with_its_own_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    """As for a task that was never awaited: no exception is being handled when it is logged."""
    logs.configure(log_format="json")
    failed: list[Exception] = []
    try:
        raise ValueError("wet")
    except ValueError as error:
        failed.append(error)
    log.error("unhandled", exc_info=failed[0])
    log.error("nothing was raised", exc_info=None)
    first, second = lines(capsys)
    reported = first["exception"].splitlines()
    assert (reported[0], reported[-1]) == ("Traceback (most recent call last):", "ValueError: wet")
    assert "exception" not in second
    assert "exc_info" not in second


def test_text_for_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(log_format="console")
    log.warning("it rains", broker=1)
    reported = capsys.readouterr().err
    assert "it rains" in reported
    assert "broker" in reported
    assert not reported.startswith("{")


def test_the_first_json_line_imports_nothing() -> None:
    """A controller writes it before it fences a broker that died."""
    program = """
import asyncio, sys
from fenceline.node.broker import Broker
from fenceline.node.logs import Logger
before = set(sys.modules)
Logger("room").warning("it rains", broker=1)
try:
    raise ValueError
except ValueError:
    Logger("room").exception("it failed")
print(sorted(set(sys.modules) - before))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "[]"
    assert len(done.stderr.splitlines()) == 2
