"""Assertions about what an application made of the records that were acknowledged to their producers.

Owns the comparison and its message. Knows no cluster: it compares what was acknowledged with what was processed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from typing import Any, Final, NamedTuple

_SHOWN: Final = 10


class AcknowledgedRecord(NamedTuple):
    """A record that a cluster has acknowledged."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None

    def __str__(self) -> str:
        return f"{self.value!r} ({self.topic}-{self.partition}, offset {self.offset})"


Identity = Callable[[Any], Hashable]
"""What makes a record the same one."""


def assert_at_least_once(
    acknowledged: Iterable[Hashable],
    processed: Iterable[Hashable],
    *,
    what: str = "record",
    identity: Identity | None = None,
    lost: Iterable[Any] = (),
) -> None:
    """Each of `acknowledged` is in `processed`.

    An `AcknowledgedRecord` is compared by its value, or by what `identity` returns for it; anything else as it is.
    `lost`: records that the log itself has lost (`UncleanElection.lost`), which no application could process. `what`: a
    word for the message. Raises AssertionError, which lists what is missing."""
    seen = set(processed)
    missing = [each for key, each in _expected(acknowledged, identity, lost).items() if key not in seen]
    if missing:
        raise AssertionError(f"{_counted(missing, what)} acknowledged, but never processed: {_list(missing)}")


def assert_exactly_once(
    acknowledged: Iterable[Hashable],
    processed: Iterable[Hashable],
    *,
    what: str = "record",
    identity: Identity | None = None,
    lost: Iterable[Any] = (),
) -> None:
    """As `assert_at_least_once`, and nothing is in `processed` twice. What was not acknowledged may be there once: a
    record without an acknowledgement may have been written. Raises AssertionError."""
    times = Counter(processed)
    assert_at_least_once(acknowledged, times, what=what, identity=identity, lost=lost)
    repeated = [each for each, count in times.items() if count > 1]
    if repeated:
        raise AssertionError(f"{_counted(repeated, what)} processed more than once: {_list(repeated)}")


def _expected(
    acknowledged: Iterable[Hashable], identity: Identity | None, lost: Iterable[Any]
) -> dict[Hashable, Hashable]:
    """By what it is compared by, each thing that must have been processed."""
    gone = {(record.topic, record.partition, record.offset, record.value) for record in lost}
    expected: dict[Hashable, Hashable] = {}
    for each in acknowledged:
        if isinstance(each, AcknowledgedRecord):
            if (each.topic, each.partition, each.offset, each.value) in gone:
                continue
            key = each.value if identity is None else identity(each)
        else:
            key = each if identity is None else identity(each)
        expected.setdefault(key, each)
    return expected


def _counted(found: list[Hashable], what: str) -> str:
    return f"{len(found)} {what}{' was' if len(found) == 1 else 's were'}"


def _list(found: list[Hashable]) -> str:
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return ", ".join(map(str, found[:_SHOWN])) + more
