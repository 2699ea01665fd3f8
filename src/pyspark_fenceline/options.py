"""The options of the source and of the topic sink: Spark's Kafka source's names, parsed and checked.

Owns names, defaults and refusals (`pyspark.md S27`), so that a notebook works after changing `format("kafka")` to
`format("fenceline")`. Pure: no broker, no Spark. Keys are case-insensitive, as everywhere in Spark.

Options beyond the Kafka source's: `includeLeaderEpoch`, `maxPartitions`, `filterPushdown`.
"""

from __future__ import annotations

import difflib
import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from fenceline.errors import OperatorError
from fenceline.ids import TopicPartition

_log = logging.getLogger("pyspark_fenceline")
LATEST_OFFSET: Final = -1
EARLIEST_OFFSET: Final = -2
DEFAULT_MAX_TRIGGER_DELAY_MS: Final = 15 * 60 * 1000
_INT_MAX: Final = 2**31 - 1
_LONG_MAX: Final = 2**63 - 1


# Which partitions ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Subscribe:
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SubscribePattern:
    """Topics whose whole name matches; internal topics never do."""

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


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Checked options of a batch or stream read. `client` holds the `kafka.*` properties without their prefix."""

    subscription: Subscription
    client: Mapping[str, str]
    starting: Bound
    ending: Bound
    fail_on_data_loss: bool = True
    include_headers: bool = False
    include_leader_epoch: bool = False
    min_partitions: int | None = None
    max_partitions: int | None = None
    max_records_per_partition: int | None = None
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = DEFAULT_MAX_TRIGGER_DELAY_MS
    fetch_retries: int = 3
    fetch_retry_interval_ms: int = 1000
    filter_pushdown: bool = False


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Checked options of a write to topics. `topic` overrides the column of that name."""

    client: Mapping[str, str]
    topic: str | None


_KNOWN: Final = {
    name.lower(): name
    for name in (
        "subscribe", "subscribePattern", "assign", "startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp",
        "startingOffsetsByTimestampStrategy", "endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp",
        "failOnDataLoss", "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "minPartitions",
        "maxPartitions", "maxRecordsPerPartition", "includeHeaders", "includeLeaderEpoch", "filterPushdown",
        "fetchOffset.numRetries", "fetchOffset.retryIntervalMs", "groupIdPrefix", "kafkaConsumer.pollTimeoutMs",
    )
}  # fmt: skip
"""Options of a read by their lower-case name. The last two are taken for the sake of notebooks, and have no effect."""


# Parsing ------------------------------------------------------------------------------------------------------------


class _Options:
    """Case-insensitive view with typed getters; every refusal names the option."""

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

    def unknown(self) -> list[str]:
        """Names that neither this source nor Spark's Kafka source knows, nor belong to the client."""
        return [name for name in self._values if name not in _KNOWN and not name.startswith("kafka.")]

    def prefixed(self, prefix: str) -> dict[str, str]:
        return {key[len(prefix) :]: value for key, value in self._values.items() if key.startswith(prefix)}


def read_options(options: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    """Parse and check the options of a read. Raises `OperatorError` in the words of Spark's Kafka source where it has
    some.
    """
    given = _Options(options)
    common = _without_bounds(given)
    starting, ending = _stream_bounds(given) if streaming else _batch_bounds(given)
    return replace(common, starting=starting, ending=ending)


def _without_bounds(given: _Options) -> ReadOptions:
    """All that does not depend on whether the read is a batch or a stream."""
    subscription = _subscription(given)
    _refuse_consumer_properties(given)
    min_offsets = given.positive("minOffsetsPerTrigger", _LONG_MAX)
    max_offsets = given.positive("maxOffsetsPerTrigger", _LONG_MAX)
    if min_offsets is not None and max_offsets is not None and min_offsets > max_offsets:
        raise OperatorError(
            f"The value of minOffsetsPerTrigger({min_offsets}) is higher than the maxOffsetsPerTrigger({max_offsets})"
        )
    delay = given.text("maxTriggerDelay")
    min_partitions = given.positive("minPartitions", _INT_MAX)
    max_partitions = given.positive("maxPartitions", _INT_MAX)
    if min_partitions is not None and max_partitions is not None and min_partitions > max_partitions:
        raise OperatorError(f"minPartitions({min_partitions}) is higher than maxPartitions({max_partitions})")
    retries = given.positive("fetchOffset.numRetries", _INT_MAX)
    interval = given.positive("fetchOffset.retryIntervalMs", _INT_MAX, low=0)
    return ReadOptions(
        subscription=subscription,
        client=_reader_properties(given),
        starting=Earliest(),
        ending=Latest(),
        fail_on_data_loss=given.boolean("failOnDataLoss", True),
        include_headers=given.boolean("includeHeaders"),
        include_leader_epoch=given.boolean("includeLeaderEpoch"),
        min_partitions=min_partitions,
        max_partitions=max_partitions,
        max_records_per_partition=given.positive("maxRecordsPerPartition", _LONG_MAX),
        max_offsets_per_trigger=max_offsets,
        min_offsets_per_trigger=min_offsets,
        max_trigger_delay_ms=DEFAULT_MAX_TRIGGER_DELAY_MS if delay is None else duration_ms(delay, "maxTriggerDelay"),
        fetch_retries=3 if retries is None else retries,
        fetch_retry_interval_ms=1000 if interval is None else interval,
        filter_pushdown=given.boolean("filterPushdown"),
    )


def check_general(options: Mapping[str, str]) -> tuple[bool, bool]:
    """Check what batch and stream have in common, before Spark has said which it is; warn of names that mean nothing.

    Returns whether headers and leader epochs are asked for.
    """
    given = _Options(options)
    common = _without_bounds(given)
    for side in ("starting", "ending"):
        _bound(given, side, Latest())
    for name in given.unknown():
        close = difflib.get_close_matches(name, _KNOWN, n=1, cutoff=0.75)
        hint = f"; is {_KNOWN[close[0]]} meant?" if close else ""
        _log.warning("option %s is not known and is ignored%s", name, hint)
    return common.include_headers, common.include_leader_epoch


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """Parse and check the options of a write to topics."""
    given = _Options(options)
    for name, what in (("key.serializer", "keys"), ("value.serializer", "values")):
        if f"kafka.{name}" in given:
            raise OperatorError(f"Kafka option '{name}' is not supported as {what} are written as the bytes they are")
    _require_bootstrap(given, "producer")
    topic = given.text("topic")
    return WriteOptions(client=given.prefixed("kafka."), topic=topic.strip() if topic is not None else None)


def _subscription(given: _Options) -> Subscription:
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
    found = _json(text, "assign", example)
    partitions: set[TopicPartition] = set()
    for topic, indexes in found.items():
        if not isinstance(indexes, list) or not all(_is_whole(index) and index >= 0 for index in indexes):
            raise OperatorError(f"Option 'assign' lists no partition numbers for '{topic}'. {example}, got {text}")
        partitions.update(TopicPartition(topic, index) for index in indexes)
    if not partitions:
        raise OperatorError(f"No topicpartitions to assign as specified value for option 'assign' is '{text}'")
    return tuple(sorted(partitions))


_REFUSED_CONSUMER_PROPERTIES: Final = {
    "auto.offset.reset": (
        "Instead set the source option 'startingOffsets' to 'earliest' or 'latest' to say where to start. Spark keeps "
        "the offsets that were consumed; 'startingOffsets' only counts when a new query starts, resuming goes on where "
        "it left off"
    ),
    "key.deserializer": "Keys are read as the bytes they are. Use DataFrame operations to decode them",
    "value.deserializer": "Values are read as the bytes they are. Use DataFrame operations to decode them",
    "enable.auto.commit": "Spark's checkpoint keeps the offsets",
    "interceptor.classes": "Interceptors could change what is read",
}


def _refuse_consumer_properties(given: _Options) -> None:
    for name, reason in _REFUSED_CONSUMER_PROPERTIES.items():
        if f"kafka.{name}" in given:
            raise OperatorError(f"Kafka option '{name}' is not supported. {reason}.")
    _require_bootstrap(given, "consumer")


def _require_bootstrap(given: _Options, kind: str) -> None:
    if not (given.text("kafka.bootstrap.servers") or "").strip():
        raise OperatorError(f"Option 'kafka.bootstrap.servers' must be specified for configuring the {kind}")


def _reader_properties(given: _Options) -> dict[str, str]:
    """`kafka.*` for the reader. Group settings are taken and have no effect: ranges are read without a group."""
    properties = given.prefixed("kafka.")
    for unused in (
        "group.id",
        "group.instance.id",
        "session.timeout.ms",
        "heartbeat.interval.ms",
        "max.poll.interval.ms",
    ):
        properties.pop(unused, None)
    return properties


def _stream_bounds(given: _Options) -> tuple[Bound, Bound]:
    if "endingOffsets" in given:
        raise OperatorError("ending offset not valid in streaming queries")
    if "endingOffsetsByTimestamp" in given or "endingTimestamp" in given:
        raise OperatorError("ending timestamp not valid in streaming queries")
    return _bound(given, "starting", Latest()), Latest()


def _batch_bounds(given: _Options) -> tuple[Bound, Bound]:
    starting = _bound(given, "starting", Earliest())
    ending = _bound(given, "ending", Latest())
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


def _bound(given: _Options, side: str, default: Bound) -> Bound:
    """Preference as in Spark's Kafka source: one timestamp for all, timestamps a partition, offsets."""
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
            raise OperatorError(f"Option '{option}': {offset} is no offset for {tp} (-1 is latest, -2 earliest)")
    return AtOffsets(numbers)


def partition_numbers(text: str, option: str) -> dict[TopicPartition, int]:
    """Parse `{"topicA":{"0":23,"1":-1}}`."""
    example = 'Expected e.g. {"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}'
    numbers: dict[TopicPartition, int] = {}
    for topic, partitions in _json(text, option, example).items():
        if not isinstance(partitions, dict):
            raise OperatorError(f"Option '{option}' lists no partitions for '{topic}'. {example}, got {text}")
        for index, number in partitions.items():
            if not index.isdigit() or not _is_whole(number):
                raise OperatorError(
                    f"Option '{option}': '{index}': {number!r} of '{topic}' is not understood. {example}"
                )
            numbers[TopicPartition(topic, int(index))] = number
    return numbers


def _json(text: str, option: str, example: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise OperatorError(f"Option '{option}' is not understood. {example}, got {text}")
    return found


def _is_whole(value: object) -> bool:
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
