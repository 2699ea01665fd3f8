"""The options of the source and of the topic sink: the names of Spark's Kafka source, parsed and checked.

Owns names, defaults and checks (`pyspark.md S27`), so that a notebook works after changing `format("kafka")` to
`format("fenceline")`. Pure: no broker, no Spark. Keys are case-insensitive, as everywhere in Spark.

Options beyond the Kafka source's: `onTruncation`, `onExpired`, `onRecreated`, `onUnproven`, `statefulQuery`,
`checkpointLocation`, `storage.*`, `includeLeaderEpoch`, `includeRetractions`, `retractionEvidence`, `retractionTable`,
`maxPartitions`, `filterPushdown`, `losses`, `lostReceipt`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from fenceline.errors import OperatorError
from pyspark_fenceline.common.checkpoint_files import as_local
from pyspark_fenceline.common.given_options import GivenOptions, duration_ms, suggestion
from pyspark_fenceline.common.query_state import NO_HINT, StateHint
from pyspark_fenceline.common.retries import DEFAULT_RETRIES, RetryPolicy, retry_policy
from pyspark_fenceline.errors import LossKind
from pyspark_fenceline.source.bounds import (
    Bound,
    Earliest,
    Latest,
    Subscription,
    batch_bounds,
    bound_of,
    stream_bounds,
    subscription_of,
)
from pyspark_fenceline.source.policy import STRICT, LossPolicy, policy_of

_log = logging.getLogger("pyspark_fenceline")
DEFAULT_MAX_TRIGGER_DELAY_MS: Final = 15 * 60 * 1000
_INT_MAX: Final = 2**31 - 1
_LONG_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class RetractionOptions:
    """`evidence`: data directories of nodes, or copies, that are searched for lost records in addition to the paths in
    receipts. `table`: a Delta table that holds the query's rows. `storage`: settings of its object store.
    """

    evidence: tuple[str, ...] = ()
    table: str | None = None
    storage: Mapping[str, str] | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Checked options of a batch or stream read. `client` holds the `kafka.*` properties without their prefix."""

    subscription: Subscription
    client: Mapping[str, str] = field(repr=False)
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
    retries: RetryPolicy = DEFAULT_RETRIES
    filter_pushdown: bool = False
    state: StateHint = NO_HINT
    accepts_unproven: bool = False
    """Whether to accept unproven positions of a checkpoint of Spark's own source."""
    retractions: RetractionOptions | None = None
    timeline_directory: str | None = None


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Checked options of a write to topics. `topic` overrides the column of that name."""

    client: Mapping[str, str] = field(repr=False)
    topic: str | None


_KNOWN: Final = {
    name.lower(): name
    for name in (
        "subscribe", "subscribePattern", "assign", "startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp",
        "startingOffsetsByTimestampStrategy", "endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp",
        "failOnDataLoss", "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "minPartitions",
        "maxPartitions", "maxRecordsPerPartition", "includeHeaders", "includeLeaderEpoch", "filterPushdown",
        "onTruncation", "onExpired", "onRecreated", "onUnproven", "losses", "statefulQuery", "checkpointLocation",
        "includeRetractions", "retractionEvidence", "retractionTable", "lostReceipt", "timelineDirectory",
        "fetchOffset.numRetries", "fetchOffset.retryIntervalMs", "groupIdPrefix", "kafkaConsumer.pollTimeoutMs",
    )
}  # fmt: skip
"""Options of a read by lower-case name. The last two are accepted for compatibility, and have no effect."""
_KNOWN_TO_WRITES: Final = {name.lower(): name for name in ("topic", "checkpointLocation", "queryName", "path")}
"""Options of a write; Spark adds all except the first itself."""


# Parsing ------------------------------------------------------------------------------------------------------------


def read_options(options: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    """Parse and check the options of a read. Raises `OperatorError`, with the message of Spark's Kafka source if it has
    one.
    """
    given = GivenOptions(options)
    common = _without_bounds(given)
    if common.retractions is not None and not streaming:
        raise OperatorError(
            "Option 'includeRetractions' is for streams only: a batch read returns what the log holds",
            "Remove the option, or use readStream.",
        )
    if common.timeline_directory is not None and not streaming:
        raise OperatorError("Option 'timelineDirectory' is for streams only", "Remove the option, or use readStream.")
    starting, ending = stream_bounds(given) if streaming else batch_bounds(given)
    return replace(common, starting=starting, ending=ending)


def _without_bounds(given: GivenOptions) -> ReadOptions:
    """The options that batch and stream have in common."""
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
    policy = policy_of(given, fail_on_data_loss=fail_on_data_loss)
    return ReadOptions(
        subscription=subscription,
        client=_reader_properties(given),
        starting=Earliest(),
        ending=Latest(),
        fail_on_data_loss=fail_on_data_loss,
        policy=policy,
        include_headers=given.boolean("includeHeaders"),
        include_leader_epoch=given.boolean("includeLeaderEpoch"),
        min_partitions=min_partitions,
        max_partitions=max_partitions,
        max_records_per_partition=given.positive("maxRecordsPerPartition", _LONG_MAX),
        max_offsets_per_trigger=max_offsets,
        min_offsets_per_trigger=min_offsets,
        max_trigger_delay_ms=DEFAULT_MAX_TRIGGER_DELAY_MS if delay is None else duration_ms(delay, "maxTriggerDelay"),
        retries=retry_policy(given),
        filter_pushdown=given.boolean("filterPushdown"),
        state=_state_hint(given),
        accepts_unproven=_accepts_unproven(given, fail_on_data_loss=fail_on_data_loss),
        retractions=_retraction_options(given, policy),
        timeline_directory=_timeline_directory(given),
    )


def _timeline_directory(given: GivenOptions) -> str | None:
    value = (given.text("timelineDirectory") or "").strip()
    return as_local(value) if value else None


def _accepts_unproven(given: GivenOptions, *, fail_on_data_loss: bool) -> bool:
    value = given.text("onUnproven")
    match value.strip().lower() if value is not None else None:
        case None:
            return not fail_on_data_loss
        case "fail":
            return False
        case "accept":
            return True
    raise OperatorError(f"Option 'onUnproven' must be fail or accept, not '{value}'")


def _state_hint(given: GivenOptions) -> StateHint:
    location = (given.text("checkpointLocation") or "").strip()
    return StateHint(
        given.boolean("statefulQuery") if "statefulQuery" in given else None,
        location or None,
        given.prefixed("storage.") or None,
    )


def _retraction_options(given: GivenOptions, policy: LossPolicy) -> RetractionOptions | None:
    if not given.boolean("includeRetractions"):
        for name in ("retractionEvidence", "retractionTable"):
            if name in given:
                raise OperatorError(f"Option '{name}' requires includeRetractions", "Set includeRetractions to true.")
        return None
    if policy.tolerated != {LossKind.LOG_TRUNCATED}:
        raise OperatorError(
            "includeRetractions needs onTruncation=rewind, and the defaults of onExpired, onRecreated and "
            "failOnDataLoss, which end the query: skipped records could not be retracted",
            "Set onTruncation to rewind, and remove the other three options.",
        )
    directories = (given.text("retractionEvidence") or "").split(",")
    return RetractionOptions(
        tuple(as_local(directory.strip()) for directory in directories if directory.strip()),
        as_local((given.text("retractionTable") or "").strip()) or None,
        given.prefixed("storage.") or None,
    )


def check_common_options(options: Mapping[str, str]) -> ReadOptions:
    """Check the options that batch and stream have in common, before Spark chooses one; warn about unknown names.

    Returns the options without the bounds.
    """
    given = GivenOptions(options)
    common = _without_bounds(given)
    for side in ("starting", "ending"):
        bound_of(given, side, Latest())
    for name in given.names():
        if name in _KNOWN or name.startswith(("kafka.", "storage.")):
            continue
        _log.warning("ignoring unknown option %s%s", name, suggestion(name, _KNOWN))
    return common


def wants_losses(options: Mapping[str, str]) -> bool:
    """Whether to read the table of losses instead of topics."""
    return GivenOptions(options).boolean("losses")


def lost_record_columns(options: Mapping[str, str]) -> tuple[bool, bool] | None:
    """Whether there are the columns of headers and of leader epochs, if records of losses are to be read; else None."""
    given = GivenOptions(options)
    if "lostReceipt" not in given:
        return None
    return given.boolean("includeHeaders"), given.boolean("includeLeaderEpoch")


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
            raise OperatorError(f"Kafka option '{name}' is not supported as {what} are written as bytes")
    _require_bootstrap(given, "producer")
    given.warn_of_unknown(_KNOWN_TO_WRITES, ("kafka.",), "a write to topics")
    topic = given.text("topic")
    return WriteOptions(client=given.prefixed("kafka."), topic=topic.strip() if topic is not None else None)


_REFUSED_CONSUMER_PROPERTIES: Final = {
    "auto.offset.reset": (
        "Instead set the source option 'startingOffsets' to 'earliest' or 'latest' to specify where to start. Spark "
        "keeps the consumed offsets; 'startingOffsets' only applies when a new query starts, and resuming always "
        "continues where the query left off"
    ),
    "key.deserializer": "Keys are read as byte arrays. Use DataFrame operations to decode them",
    "value.deserializer": "Values are read as byte arrays. Use DataFrame operations to decode them",
    "enable.auto.commit": "Spark's checkpoint keeps the offsets",
    "interceptor.classes": "Interceptors could change the data that is read",
}


def _refuse_consumer_properties(given: GivenOptions) -> None:
    for name, reason in _REFUSED_CONSUMER_PROPERTIES.items():
        if f"kafka.{name}" in given:
            raise OperatorError(f"Kafka option '{name}' is not supported. {reason}.")
    _require_bootstrap(given, "consumer")


def _require_bootstrap(given: GivenOptions, kind: str) -> None:
    servers = (given.text("kafka.bootstrap.servers") or "").strip()
    if not servers:
        raise OperatorError(f"Option 'kafka.bootstrap.servers' must be specified for configuring the {kind}")
    from pyspark_fenceline.common.connect import check_addresses

    check_addresses(servers)


def _reader_properties(given: GivenOptions) -> dict[str, str]:
    """`kafka.*` for the reader. Group settings are accepted and have no effect: ranges are read without a group."""
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
