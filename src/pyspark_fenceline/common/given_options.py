"""Options as Spark passes them, and the parsing of their values.

Owns the parsing of texts (numbers, durations, JSON of partitions) and its errors. Knows no option by name.
"""

from __future__ import annotations

import difflib
import json
import logging
import re
from collections.abc import Mapping
from typing import Any, Final

from fenceline.errors import OperatorError
from fenceline.ids import TopicPartition

_log = logging.getLogger("pyspark_fenceline")
_warned: set[tuple[str, str]] = set()


class GivenOptions:
    """Case-insensitive options with typed getters; every error names the option."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._values = {str(key).lower(): str(value) for key, value in options.items()}

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._values

    def text(self, name: str) -> str | None:
        return self._values.get(name.lower())

    def boolean(self, name: str, default: bool = False) -> bool:
        value = self.text(name)
        match value.strip().lower() if value is not None else None:
            case None:
                return default
            case "true":
                return True
            case "false":
                return False
        raise OperatorError(f"Option '{name}' must be true or false, not '{value}'")

    def positive(self, name: str, high: int, *, low: int = 1) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        try:
            number = int(value.strip())
        except ValueError:
            raise OperatorError(f"Option '{name}' must be a whole number, not '{value}'") from None
        if number < low:
            raise OperatorError(f"{name} must be positive" if low == 1 else f"{name} must be at least {low}")
        if number > high:
            raise OperatorError(f"{name} must be at most {high}")
        return number

    def names(self) -> list[str]:
        """In lower case."""
        return list(self._values)

    def warn_of_unknown(self, known: Mapping[str, str], prefixes: tuple[str, ...], what: str) -> None:
        """Log a warning for each name that is neither in `known` (by lower-case names) nor begins with one of
        `prefixes`, with a suggestion; once per process, because Spark creates a writer for every batch.
        """
        for name in self._values:
            if name in known or name.startswith(prefixes) or (what, name) in _warned:
                continue
            _warned.add((what, name))
            _log.warning("ignoring unknown option %s of %s%s", name, what, suggestion(name, known))

    def prefixed(self, prefix: str) -> dict[str, str]:
        return {key[len(prefix) :]: value for key, value in self._values.items() if key.startswith(prefix)}


def suggestion(name: str, known: Mapping[str, str]) -> str:
    """The end of a warning about an unknown option: the known one (by lower-case names) that is close to it, or ""."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.75)
    return f"; did you mean {known[close[0]]}?" if close else ""


def partition_numbers(text: str, option: str) -> dict[TopicPartition, int]:
    """Parse `{"topicA":{"0":23,"1":-1}}`."""
    example = 'Expected e.g. {"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}'
    numbers: dict[TopicPartition, int] = {}
    for topic, partitions in parsed_json(text, option, example).items():
        if not isinstance(partitions, dict):
            raise OperatorError(f"Option '{option}' lists no partitions for '{topic}'. {example}, got {text}")
        for index, number in partitions.items():
            if not index.isdigit() or not is_whole(number):
                raise OperatorError(
                    f"Option '{option}': '{index}': {number!r} of '{topic}' is not understood. {example}"
                )
            numbers[TopicPartition(topic, int(index))] = number
    return numbers


def parsed_json(text: str, option: str, example: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise OperatorError(f"Option '{option}' is not understood. {example}, got {text}")
    return found


def is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


_UNITS_MS: Final = {
    "us": 0.001, "ms": 1, "": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000,
}  # fmt: skip


def duration_ms(text: str, option: str) -> int:
    """A Spark time string (`15m`, `10s`, `500ms`, `1h`); a bare number is ms."""
    found = re.fullmatch(r"(\d+)\s*([a-z]*)", text.strip().lower())
    if found is None or found[2] not in _UNITS_MS:
        raise OperatorError(f"Option '{option}' must be a time such as 500ms, 10s, 15m, 1h or 1d, not '{text}'")
    return int(int(found[1]) * _UNITS_MS[found[2]])
