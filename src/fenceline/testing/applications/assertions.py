"""What tests of applications assert: every record that was acknowledged was processed, at least or exactly once.

Pure functions over keys; they raise AssertionError with the keys that are missing or too many.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from typing import Final

_SHOWN: Final = 10


def assert_at_least_once(
    acknowledged: Iterable[Hashable], processed: Iterable[Hashable], *, what: str = "record"
) -> None:
    """Each of `acknowledged` is in `processed`. Raises AssertionError."""
    seen = set(processed)
    missing = [each for each in dict.fromkeys(acknowledged) if each not in seen]
    if missing:
        raise AssertionError(f"{_counted(missing, what)} acknowledged, but never processed: {_list(missing)}")


def assert_exactly_once(
    acknowledged: Iterable[Hashable], processed: Iterable[Hashable], *, what: str = "record"
) -> None:
    """Each of `acknowledged` is in `processed` once. Others may be there once as well: a record without an
    acknowledgement may have been written. Raises AssertionError."""
    times = Counter(processed)
    assert_at_least_once(acknowledged, times, what=what)
    repeated = [each for each, count in times.items() if count > 1]
    if repeated:
        raise AssertionError(f"{_counted(repeated, what)} processed more than once: {_list(repeated)}")


def _counted(found: list[Hashable], what: str) -> str:
    return f"{len(found)} {what}{' was' if len(found) == 1 else 's were'}"


def _list(found: list[Hashable]) -> str:
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return ", ".join(map(str, found[:_SHOWN])) + more
