"""Computes the new offsets of `fenceline groups reset`.

Owns the parsing of times and durations, and the bounds of the log. Commits nothing.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from fenceline.client.admin.admin import Admin
from fenceline.client.core.offsets import CommittedOffset
from fenceline.errors import OperatorError
from fenceline.ids import TopicPartition

_DURATION: Final = re.compile(
    r"P(?:(?P<days>\d+)D)?(?:T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?",
    re.IGNORECASE,
)
_MOST_MS: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Target:
    """The requested position. Exactly one field is set."""

    earliest: bool = False
    latest: bool = False
    current: bool = False
    offset: int | None = None
    shift: int | None = None
    since_ms: int | None = None
    """The first record at or after this time."""


def target_of(
    *,
    earliest: bool,
    latest: bool,
    current: bool,
    offset: int | None,
    when: str | None,
    shift: int | None,
    duration: str | None,
) -> Target:
    """The target from the options. Raises OperatorError unless exactly one is given."""
    given = [
        name
        for name, is_given in (
            ("--to-earliest", earliest),
            ("--to-latest", latest),
            ("--to-current", current),
            ("--to-offset", offset is not None),
            ("--to-datetime", when is not None),
            ("--shift-by", shift is not None),
            ("--by-duration", duration is not None),
        )
        if is_given
    ]
    if len(given) != 1:
        raise OperatorError(
            f"{' and '.join(given)} are mutually exclusive" if given else "No target offset is given",
            "Give one of --to-earliest, --to-latest, --to-current, --to-offset N, --to-datetime TIME, --shift-by N,"
            " --by-duration P1DT2H.",
        )
    since_ms = None
    if when is not None:
        since_ms = _time_ms(when)
    elif duration is not None:
        since_ms = int(time.time() * 1000) - _duration_ms(duration)
    # ListOffsets reserves negative timestamps for the earliest and latest offsets.
    return Target(earliest, latest, current, offset, shift, None if since_ms is None else max(since_ms, 0))


def _time_ms(text: str) -> int:
    """An ISO 8601 time (UTC without a zone), or milliseconds since 1970."""
    try:
        if text.isdecimal():
            return _within(int(text))
        when = datetime.fromisoformat(text)
        return round((when if when.tzinfo is not None else when.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise OperatorError(
            f"{text!r} is not a time",
            "Use the form 2026-11-22T04:30:00.000 (UTC), with a suffix such as +01:00 for another zone.",
        ) from None


def _within(time_ms: int) -> int:
    """Raises OverflowError above the largest timestamp of a record."""
    if time_ms > _MOST_MS:
        raise OverflowError(time_ms)
    return time_ms


def _duration_ms(text: str) -> int:
    found = _DURATION.fullmatch(text)
    parts = {} if found is None else {name: float(value) for name, value in found.groupdict().items() if value}
    try:
        if parts:
            return round(timedelta(**parts).total_seconds() * 1000)
    except OverflowError:
        pass
    raise OperatorError(
        f"{text!r} is not a duration", "Use ISO 8601, such as P1DT2H30M: one day, two hours, 30 minutes."
    )


def partitions_of(admin: Admin, named: Collection[str]) -> list[TopicPartition]:
    """Parse TOPIC, or TOPIC:0,1,2 for some of its partitions. Raises OperatorError."""
    found: list[TopicPartition] = []
    for text in named:
        topic, _, chosen = text.partition(":")
        there = admin.metadata([topic]).topics[topic].partitions
        if not there:
            raise OperatorError(f"There is no topic {topic}", "List the topics with: fenceline topics list")
        indexes = sorted(there) if not chosen else [int(each) for each in chosen.split(",") if each.isdecimal()]
        missing = [index for index in indexes if index not in there]
        if missing or (chosen and len(indexes) != len(chosen.split(","))):
            raise OperatorError(
                f"{text!r} names partitions that do not exist", f"{topic} has partitions 0 to {len(there) - 1}."
            )
        found.extend(TopicPartition(topic, index) for index in indexes)
    return found


def new_offsets(
    admin: Admin,
    target: Target,
    partitions: Collection[TopicPartition],
    committed: Mapping[TopicPartition, CommittedOffset],
) -> dict[TopicPartition, int]:
    """The new offset of each partition, within the bounds of its log. Raises OperatorError, PeerError."""
    starts = admin.list_offsets(dict.fromkeys(partitions, "earliest"))
    ends = admin.list_offsets(dict.fromkeys(partitions, "latest"))
    times = admin.list_offsets(dict.fromkeys(partitions, target.since_ms)) if target.since_ms is not None else {}
    found: dict[TopicPartition, int] = {}
    for where in sorted(partitions):
        start, end = starts[where].offset, ends[where].offset
        at = committed.get(where)
        if target.earliest:
            wanted = start
        elif target.latest:
            wanted = end
        elif target.offset is not None:
            wanted = target.offset
        elif target.since_ms is not None:
            wanted = times[where].offset if times[where].offset >= 0 else end
        elif target.shift is not None:
            if at is None:
                raise OperatorError(
                    f"--shift-by needs a committed offset, and the group has no offset of {where}",
                    "Leave out this partition, or use another target, such as --to-earliest.",
                )
            wanted = at.offset + target.shift
        else:
            wanted = end if at is None else at.offset
        found[where] = min(max(wanted, start), end)
    return found
