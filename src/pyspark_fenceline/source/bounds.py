"""The partitions of a read and its starting and ending offsets.

Owns these values, their options, and error messages worded as in Spark's Kafka source (`pyspark.md S27`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from fenceline.errors import OperatorError
from fenceline.ids import TopicPartition
from pyspark_fenceline.common.given_options import GivenOptions, is_whole, parsed_json, partition_numbers

LATEST_OFFSET: Final = -1
EARLIEST_OFFSET: Final = -2


# Which partitions ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Subscribe:
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SubscribePattern:
    """Topics whose complete name matches; internal topics never do."""

    pattern: str


@dataclass(frozen=True, slots=True)
class Assign:
    partitions: tuple[TopicPartition, ...]


Subscription = Subscribe | SubscribePattern | Assign


# Where to begin and to end ------------------------------------------------------------------------------------------


class NoMatch(StrEnum):
    """What a starting timestamp after the last record means (`startingOffsetsByTimestampStrategy`)."""

    ERROR = "error"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class Earliest:
    pass


@dataclass(frozen=True, slots=True)
class Latest:
    pass


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """Every partition's offset; -1 is the log's end, -2 its start."""

    offsets: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class AtTimestamps:
    """Every partition's timestamp in ms: the first record that is not older."""

    timestamps_ms: Mapping[TopicPartition, int]
    no_match: NoMatch


@dataclass(frozen=True, slots=True)
class AtTimestamp:
    timestamp_ms: int
    no_match: NoMatch


Bound = Earliest | Latest | AtOffsets | AtTimestamps | AtTimestamp


# Parsing ------------------------------------------------------------------------------------------------------------


def subscription_of(given: GivenOptions) -> Subscription:
    chosen = [name for name in ("subscribe", "subscribePattern", "assign") if name in given]
    if len(chosen) != 1:
        rule = "One" if not chosen else "Only one"
        verb = "must" if not chosen else "can"
        raise OperatorError(
            f"{rule} of the following options {verb} be specified for the fenceline source: "
            "subscribe, subscribePattern, assign"
        )
    value = given.text(chosen[0]) or ""
    match chosen[0]:
        case "subscribe":
            topics = tuple(sorted({topic.strip() for topic in value.split(",")} - {""}))
            if not topics:
                raise OperatorError(f"No topics to subscribe to as specified value for option 'subscribe' is '{value}'")
            return Subscribe(topics)
        case "subscribePattern":
            if not value.strip():
                raise OperatorError(
                    f"Pattern to subscribe is empty as specified value for option 'subscribePattern' is '{value}'"
                )
            try:
                re.compile(value.strip())
            except re.error as error:
                raise OperatorError(f"Option 'subscribePattern' is not a regular expression: {error}") from None
            return SubscribePattern(value.strip())
        case _:
            if not value.strip().startswith("{"):
                raise OperatorError(f"No topicpartitions to assign as specified value for option 'assign' is '{value}'")
            return Assign(_assigned(value))


def _assigned(text: str) -> tuple[TopicPartition, ...]:
    example = 'Expected e.g. {"topicA":[0,1],"topicB":[0,1]}'
    found = parsed_json(text, "assign", example)
    partitions: set[TopicPartition] = set()
    for topic, indexes in found.items():
        if not isinstance(indexes, list) or not all(is_whole(index) and index >= 0 for index in indexes):
            raise OperatorError(f"Option 'assign' lists no partition numbers for '{topic}'. {example}, got {text}")
        partitions.update(TopicPartition(topic, index) for index in indexes)
    if not partitions:
        raise OperatorError(f"No topicpartitions to assign as specified value for option 'assign' is '{text}'")
    return tuple(sorted(partitions))


def stream_bounds(given: GivenOptions) -> tuple[Bound, Bound]:
    if "endingOffsets" in given:
        raise OperatorError("ending offset not valid in streaming queries")
    if "endingOffsetsByTimestamp" in given or "endingTimestamp" in given:
        raise OperatorError("ending timestamp not valid in streaming queries")
    return bound_of(given, "starting", Latest()), Latest()


def batch_bounds(given: GivenOptions) -> tuple[Bound, Bound]:
    starting = bound_of(given, "starting", Earliest())
    ending = bound_of(given, "ending", Latest())
    if isinstance(starting, Latest):
        raise OperatorError("starting offset can't be latest for batch queries")
    if isinstance(ending, Earliest):
        raise OperatorError("ending offset can't be earliest for batch queries")
    if isinstance(starting, AtOffsets):
        for tp, offset in starting.offsets.items():
            if offset == LATEST_OFFSET:
                raise OperatorError(f"startingOffsets for {tp} can't be latest for batch queries")
    if isinstance(ending, AtOffsets):
        for tp, offset in ending.offsets.items():
            if offset == EARLIEST_OFFSET:
                raise OperatorError(f"ending offset for {tp} can't be earliest for batch queries")
    _check_order(starting, ending)
    return starting, ending


def _check_order(starting: Bound, ending: Bound) -> None:
    match starting, ending:
        case AtOffsets(first), AtOffsets(last):
            what = "offset"
        case AtTimestamps(first, _), AtTimestamps(last, _):
            what = "timestamp"
        case _:
            return
    if first.keys() != last.keys():
        raise OperatorError(
            f"Starting and ending {what}s must name the same partitions: {_names(first)} against {_names(last)}"
        )
    for tp, begin in first.items():
        if begin > last[tp] and begin >= 0 and last[tp] >= 0:
            raise OperatorError(f"The starting {what} of {tp}, {begin}, is greater than its ending {what}, {last[tp]}")


def _names(partitions: Mapping[TopicPartition, int]) -> str:
    return ", ".join(str(tp) for tp in sorted(partitions))


def bound_of(given: GivenOptions, side: str, default: Bound) -> Bound:
    """Precedence as in Spark's Kafka source: one timestamp for all, timestamps per partition, offsets."""
    text = given.text("startingOffsetsByTimestampStrategy")
    try:
        no_match = NoMatch.ERROR if text is None else NoMatch(text.strip().lower())
    except ValueError:
        raise OperatorError(
            f"Option 'startingOffsetsByTimestampStrategy' must be error or latest, not '{text}'"
        ) from None
    one = given.text(f"{side}Timestamp")
    if one is not None:
        try:
            return AtTimestamp(int(one.strip()), no_match)
        except ValueError:
            raise OperatorError(f"Option '{side}Timestamp': expected a single long value (ms), got {one}") from None
    option = f"{side}OffsetsByTimestamp"
    each = given.text(option)
    if each is not None:
        return AtTimestamps(partition_numbers(each, option), no_match)
    option = f"{side}Offsets"
    offsets = given.text(option)
    match offsets.strip().lower() if offsets is not None else None:
        case None:
            return default
        case "earliest":
            return Earliest()
        case "latest":
            return Latest()
    assert offsets is not None
    numbers = partition_numbers(offsets, option)
    for tp, offset in numbers.items():
        if offset < EARLIEST_OFFSET:
            raise OperatorError(f"Option '{option}': {offset} is no valid offset for {tp} (-1 is latest, -2 earliest)")
    return AtOffsets(numbers)
