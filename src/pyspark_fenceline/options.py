"""The options of the source and of the topic sink: Spark's Kafka source's names, parsed and checked.

Owns names, defaults and refusals (`pyspark.md S27`), so that a notebook works after changing `format("kafka")` to
`format("fenceline")`. Pure: no broker, no Spark. Keys are case-insensitive, as everywhere in Spark.

Options beyond the Kafka source's: `onTruncation`, `onExpired`, `onRecreated`, `includeLeaderEpoch`, `maxPartitions`,
`filterPushdown`, `losses`.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from fenceline.errors import OperatorError
from pyspark_fenceline.bounds import (
    Bound,
    Earliest,
    Latest,
    Subscription,
    batch_bounds,
    bound_of,
    stream_bounds,
    subscription_of,
)
from pyspark_fenceline.given_options import GivenOptions, duration_ms
from pyspark_fenceline.patience import USUAL, Patience, patience_of
from pyspark_fenceline.policy import STRICT, LossPolicy, policy_of

_log = logging.getLogger("pyspark_fenceline")
DEFAULT_MAX_TRIGGER_DELAY_MS: Final = 15 * 60 * 1000
_INT_MAX: Final = 2**31 - 1
_LONG_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Checked options of a batch or stream read. `client` holds the `kafka.*` properties without their prefix."""

    subscription: Subscription
    client: Mapping[str, str]
    starting: Bound
    ending: Bound
    fail_on_data_loss: bool = True
    policy: LossPolicy = STRICT
    include_headers: bool = False
    include_leader_epoch: bool = False
    min_partitions: int | None = None
    max_partitions: int | None = None
    max_records_per_partition: int | None = None
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = DEFAULT_MAX_TRIGGER_DELAY_MS
    patience: Patience = USUAL
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
        "onTruncation", "onExpired", "onRecreated", "losses",
        "fetchOffset.numRetries", "fetchOffset.retryIntervalMs", "groupIdPrefix", "kafkaConsumer.pollTimeoutMs",
    )
}  # fmt: skip
"""Options of a read by their lower-case name. The last two are taken for the sake of notebooks, and have no effect."""
_KNOWN_TO_WRITES: Final = {name.lower(): name for name in ("topic", "checkpointLocation", "queryName", "path")}
"""Options of a write; Spark adds all but the first itself."""


# Parsing ------------------------------------------------------------------------------------------------------------


def read_options(options: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    """Parse and check the options of a read. Raises `OperatorError` in the words of Spark's Kafka source where it has
    some.
    """
    given = GivenOptions(options)
    common = _without_bounds(given)
    starting, ending = stream_bounds(given) if streaming else batch_bounds(given)
    return replace(common, starting=starting, ending=ending)


def _without_bounds(given: GivenOptions) -> ReadOptions:
    """All that does not depend on whether the read is a batch or a stream."""
    subscription = subscription_of(given)
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
    fail_on_data_loss = given.boolean("failOnDataLoss", True)
    return ReadOptions(
        subscription=subscription,
        client=_reader_properties(given),
        starting=Earliest(),
        ending=Latest(),
        fail_on_data_loss=fail_on_data_loss,
        policy=policy_of(given, fail_on_data_loss=fail_on_data_loss),
        include_headers=given.boolean("includeHeaders"),
        include_leader_epoch=given.boolean("includeLeaderEpoch"),
        min_partitions=min_partitions,
        max_partitions=max_partitions,
        max_records_per_partition=given.positive("maxRecordsPerPartition", _LONG_MAX),
        max_offsets_per_trigger=max_offsets,
        min_offsets_per_trigger=min_offsets,
        max_trigger_delay_ms=DEFAULT_MAX_TRIGGER_DELAY_MS if delay is None else duration_ms(delay, "maxTriggerDelay"),
        patience=patience_of(given),
        filter_pushdown=given.boolean("filterPushdown"),
    )


def check_general(options: Mapping[str, str]) -> tuple[bool, bool]:
    """Check what batch and stream have in common, before Spark has said which it is; warn of names that mean nothing.

    Returns whether headers and leader epochs are asked for.
    """
    given = GivenOptions(options)
    common = _without_bounds(given)
    for side in ("starting", "ending"):
        bound_of(given, side, Latest())
    for name in given.names():
        if name in _KNOWN or name.startswith("kafka."):
            continue
        close = difflib.get_close_matches(name, _KNOWN, n=1, cutoff=0.75)
        hint = f"; is {_KNOWN[close[0]]} meant?" if close else ""
        _log.warning("option %s is not known and is ignored%s", name, hint)
    return common.include_headers, common.include_leader_epoch


def wants_losses(options: Mapping[str, str]) -> bool:
    """Whether the read is of what logs have lost, not of what they hold."""
    return GivenOptions(options).boolean("losses")


def client_properties(options: Mapping[str, str]) -> dict[str, str]:
    """The client's settings of a read, checked."""
    given = GivenOptions(options)
    _refuse_consumer_properties(given)
    return _reader_properties(given)


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """Parse and check the options of a write to topics."""
    given = GivenOptions(options)
    for name, what in (("key.serializer", "keys"), ("value.serializer", "values")):
        if f"kafka.{name}" in given:
            raise OperatorError(f"Kafka option '{name}' is not supported as {what} are written as the bytes they are")
    _require_bootstrap(given, "producer")
    given.warn_of_unknown(_KNOWN_TO_WRITES, ("kafka.",), "a write to topics")
    topic = given.text("topic")
    return WriteOptions(client=given.prefixed("kafka."), topic=topic.strip() if topic is not None else None)


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


def _refuse_consumer_properties(given: GivenOptions) -> None:
    for name, reason in _REFUSED_CONSUMER_PROPERTIES.items():
        if f"kafka.{name}" in given:
            raise OperatorError(f"Kafka option '{name}' is not supported. {reason}.")
    _require_bootstrap(given, "consumer")


def _require_bootstrap(given: GivenOptions, kind: str) -> None:
    if not (given.text("kafka.bootstrap.servers") or "").strip():
        raise OperatorError(f"Option 'kafka.bootstrap.servers' must be specified for configuring the {kind}")


def _reader_properties(given: GivenOptions) -> dict[str, str]:
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
