"""Assertions about what an application made of the records that were acknowledged to their producers.

Owns the comparison and its message. Knows no cluster: it compares what was acknowledged with what was processed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
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
        return f"{self.topic}-{self.partition}@{self.offset} {self.value!r}"


Identity = Callable[[Any], Hashable]
"""What makes a record the same one: of an acknowledged record its value, unless something else is given."""


def assert_processed_at_least_once(
    acknowledged: Iterable[AcknowledgedRecord],
    processed: Iterable[Hashable],
    *,
    identity: Identity | None = None,
    lost: Iterable[Any] = (),
) -> None:
    """Each acknowledged record was processed. `processed`: the values that the application has processed, or what
    `identity` returns for the records. `lost`: records that the log itself has lost, which nobody could process.

    Raises AssertionError, which lists the records that are missing."""
    expected = _expected(acknowledged, identity, lost)
    missing = [record for key, record in expected if key not in set(processed)]
    if missing:
        raise AssertionError(
            _message(f"{len(missing)} of {len(expected)} acknowledged records were not processed", missing)
        )


def assert_processed_exactly_once(
    acknowledged: Iterable[AcknowledgedRecord],
    processed: Iterable[Hashable],
    *,
    identity: Identity | None = None,
    lost: Iterable[Any] = (),
) -> None:
    """As `assert_processed_at_least_once`, and none was processed twice, nor was anything that was not acknowledged.

    Records with the same identity must be processed as often as they were acknowledged."""
    expected = _expected(acknowledged, identity, lost)
    counts = Counter(processed)
    wanted = Counter(key for key, _ in expected)
    missing = [record for key, record in _first_of_each(expected) if counts[key] < wanted[key]]
    repeated = [
        f"{record} ({counts[key]} times)" for key, record in _first_of_each(expected) if counts[key] > wanted[key]
    ]
    foreign = [repr(key) for key in counts if key not in wanted]
    problems = [
        _message(f"{len(found)} {what}", found)
        for found, what in (
            (missing, f"of {len(expected)} acknowledged records were not processed"),
            (repeated, "records were processed too often"),
            (foreign, "processed records were never acknowledged"),
        )
        if found
    ]
    if problems:
        raise AssertionError("\n".join(problems))


def _expected(
    acknowledged: Iterable[AcknowledgedRecord], identity: Identity | None, lost: Iterable[Any]
) -> list[tuple[Hashable, AcknowledgedRecord]]:
    gone = {(record.topic, record.partition, record.offset, record.value) for record in lost}
    return [
        (record.value if identity is None else identity(record), record)
        for record in acknowledged
        if (record.topic, record.partition, record.offset, record.value) not in gone
    ]


def _first_of_each(
    expected: Iterable[tuple[Hashable, AcknowledgedRecord]],
) -> list[tuple[Hashable, AcknowledgedRecord]]:
    first: dict[Hashable, AcknowledgedRecord] = {}
    for key, record in expected:
        first.setdefault(key, record)
    return list(first.items())


def _message(headline: str, records: Sequence[object]) -> str:
    shown = [f"  {record}" for record in records[:_SHOWN]]
    more = [f"  ... and {len(records) - _SHOWN} more"] if len(records) > _SHOWN else []
    return "\n".join([f"{headline}:", *shown, *more])
