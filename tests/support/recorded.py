"""Answers of Apache Kafka, and of Spark's own connector, that are kept as readable files: pytest plugin.

Owns the files in `tests/recorded/`, one for each module of tests, and the option `--answers`:

| `--answers=` | the fixture `answer` returns | used by |
|---|---|---|
| `recorded` (default) | what the file has for this test; the other system is not started | `make test` |
| `live` | what the other system answers now; the test fails if the file has something else | `make test-all` |
| `record` | what the other system answers now; it is written to the file | `make record` |

A test with the fixture `answer` is marked `recorded`, and in the latter two modes `kafka`, so that it has the same
prerequisites and worker as other tests that start Apache Kafka. Never compares with our own answers: the test does.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence, Set
from datetime import date, datetime, timedelta
from enum import Enum
from pathlib import Path
from typing import Any, Final, TypeAlias
from uuid import UUID

import pytest

from fenceline.testing.apache_kafka import KAFKA_VERSION

TESTS: Final = Path(__file__).parents[1]
FOLDER: Final = TESTS / "recorded"
_VERSION: Final = "recorded_with"

Answer: TypeAlias = Callable[[str, Callable[[Any], Any]], Any]
"""`answer("kafka", lambda kafka: ...)`: what the second argument returns when it is called with the fixture of that
name, in the form of `as_recorded`."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--answers",
        choices=("recorded", "live", "record"),
        default="recorded",
        help="where the answers of Apache Kafka come from: the files in tests/recorded, or a running one",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    is_asked = config.getoption("--answers") != "recorded"
    for item in items:
        if "answer" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.recorded)
            if is_asked:
                item.add_marker(pytest.mark.kafka)


@pytest.fixture
def answer(request: pytest.FixtureRequest) -> Answer:
    """The answers of the other system to this test, in the order in which the test asks (see the module)."""
    mode = request.config.getoption("--answers")
    path = _path(request.node)
    asked = 0

    def ask(fixture: str, question: Callable[[Any], Any]) -> Any:
        nonlocal asked
        asked += 1
        name = request.node.name if asked == 1 else f"{request.node.name} #{asked}"
        known = _load(path)
        if mode == "recorded":
            assert name in known, f"{path.name} has no answer to {name!r}: run `make record`"
            return known[name]
        # Through JSON, so that a live answer has the same types as a recorded one.
        found = json.loads(json.dumps(as_recorded(question(request.getfixturevalue(fixture)))))
        if mode == "record":
            _store(path, {**known, name: found})
        else:
            assert found == known.get(name), (
                f"the answer differs from {path.name}: run `make record` and look at the diff"
            )
        return found

    return ask


def as_recorded(value: Any) -> Any:
    """The value as JSON has it: tuples are lists, sets are sorted, bytes are hexadecimal, values by their fields."""
    if value is None or (isinstance(value, bool | int | float | str) and not isinstance(value, Enum)):
        return value
    if isinstance(value, Enum):
        return as_recorded(value.value)
    if isinstance(value, bytes | bytearray | memoryview):
        return f"0x{bytes(value).hex()}"
    if isinstance(value, UUID | datetime | date | timedelta):
        return str(value)
    if isinstance(value, Mapping):
        return {
            key if isinstance(key, str) else repr(as_recorded(key)): as_recorded(each) for key, each in value.items()
        }
    if isinstance(value, Set):
        return sorted((as_recorded(each) for each in value), key=repr)
    if isinstance(value, Sequence):
        return [as_recorded(each) for each in value]
    if dataclasses.is_dataclass(value):
        return {field.name: as_recorded(getattr(value, field.name)) for field in dataclasses.fields(value)}
    raise TypeError(f"{type(value).__name__} has no form in a recording")


def _path(item: pytest.Item) -> Path:
    return FOLDER / item.path.relative_to(TESTS).with_suffix(".json")


_loaded: dict[Path, dict[str, Any]] = {}


def _load(path: Path) -> dict[str, Any]:
    if path not in _loaded:
        _loaded[path] = json.loads(path.read_text()) if path.exists() else {}
    return _loaded[path]


def _store(path: Path, answers: dict[str, Any]) -> None:
    """One line for each item of an answer, so that a diff shows what has changed."""
    _loaded[path] = answers = {_VERSION: f"Apache Kafka {KAFKA_VERSION}", **answers}
    rows = []
    for name, found in answers.items():
        if isinstance(found, list) and found:
            lines = ",\n".join(json.dumps(each, ensure_ascii=False) for each in found)
            rows.append(f"{json.dumps(name)}: [\n{lines}\n]")
        else:
            rows.append(f"{json.dumps(name)}: {json.dumps(found, ensure_ascii=False)}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{\n" + ",\n".join(rows) + "\n}\n")
