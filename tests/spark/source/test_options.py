from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.types import StructType

from fenceline.errors import OperatorError
from fenceline.ids import TopicPartition
from pyspark_fenceline.common.given_options import duration_ms
from pyspark_fenceline.common.retries import RetryPolicy
from pyspark_fenceline.delta.sink import DeltaDataSource
from pyspark_fenceline.source.bounds import (
    Assign,
    AtOffsets,
    AtTimestamp,
    AtTimestamps,
    Earliest,
    Latest,
    NoMatch,
    Subscribe,
    SubscribePattern,
)
from pyspark_fenceline.source.options import ReadOptions, check_common_options, read_options, write_options

BASE = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "t"}


def read(streaming: bool = True, **options: str) -> ReadOptions:
    return read_options(
        {**BASE, **{key.replace("__", "."): value for key, value in options.items()}}, streaming=streaming
    )


def refused(streaming: bool = True, base: dict[str, str] | None = None, **options: str) -> str:
    given = {**(BASE if base is None else base), **{key.replace("__", "."): value for key, value in options.items()}}
    with pytest.raises(OperatorError) as caught:
        read_options(given, streaming=streaming)
    return str(caught.value)


def test_defaults_are_those_of_sparks_kafka_source() -> None:
    stream, batch = read(), read(streaming=False)
    assert (stream.starting, batch.starting, batch.ending) == (Latest(), Earliest(), Latest())
    assert stream.fail_on_data_loss
    assert not stream.include_headers
    assert (stream.retries, stream.max_trigger_delay_ms) == (RetryPolicy(3, 1000), 900_000)
    assert stream.client == {"bootstrap.servers": "localhost:9092"}


def test_names_are_case_insensitive() -> None:
    options = read_options(
        {"KAFKA.Bootstrap.Servers": "h:1", "Subscribe": "b, a,,b", "STARTINGOFFSETS": "Earliest"}, streaming=True
    )
    assert options.subscription == Subscribe(("a", "b"))
    assert options.starting == Earliest()


def test_subscriptions() -> None:
    servers = {"kafka.bootstrap.servers": "h:1"}
    assert read_options({**servers, "subscribePattern": " t.* "}, streaming=True).subscription == SubscribePattern(
        "t.*"
    )
    assigned = read_options({**servers, "assign": '{"a":[1,0]}'}, streaming=True).subscription
    assert assigned == Assign((TopicPartition("a", 0), TopicPartition("a", 1)))
    assert "One of the following options must be specified" in refused(base=servers)
    assert "Only one of the following options can be specified" in refused(assign='{"a":[0]}')
    assert "No topics to subscribe to" in refused(base=servers, subscribe=" , ")
    assert "Pattern to subscribe is empty" in refused(base=servers, subscribePattern=" ")
    assert "not a regular expression" in refused(base=servers, subscribePattern="(")
    assert "No topicpartitions to assign" in refused(base=servers, assign="a:0")
    assert "No topicpartitions to assign" in refused(base=servers, assign="{}")
    assert "partition numbers" in refused(base=servers, assign='{"a":0}')
    assert "not understood" in refused(base=servers, assign='{"a":')


@pytest.mark.parametrize(
    "name", ["auto.offset.reset", "key.deserializer", "value.deserializer", "enable.auto.commit", "interceptor.classes"]
)
def test_properties_owned_by_spark_are_rejected(name: str) -> None:
    with pytest.raises(OperatorError, match=f"Kafka option '{name}' is not supported"):
        read_options({**BASE, f"kafka.{name}": "x"}, streaming=True)
    with pytest.raises(OperatorError, match="is not supported"):
        check_common_options({**BASE, f"kafka.{name}": "x"})


@pytest.mark.parametrize(
    ("name", "value"), [("maxOffsetsPerTrigger", "0"), ("minPartitions", "x"), ("startingOffsets", "begin")]
)
def test_invalid_values_are_rejected_when_the_data_frame_is_created(name: str, value: str) -> None:
    with pytest.raises(OperatorError, match=name):
        check_common_options({**BASE, name: value})


def test_an_unknown_option_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    check_common_options(
        {**BASE, "startingOffset": "earliest", "colour": "green", "groupIdPrefix": "g", "kafka.x": "y"}
    )
    assert caplog.messages == [
        "ignoring unknown option startingoffset; did you mean startingOffsets?",
        "ignoring unknown option colour",
    ]


def test_bootstrap_servers_are_required() -> None:
    assert "'kafka.bootstrap.servers' must be specified" in refused(base={"subscribe": "t"})


def test_group_settings_are_accepted_and_unused() -> None:
    assert "group.id" not in read(kafka__group__id="g", groupIdPrefix="p").client


def test_starting_positions() -> None:
    assert read(startingOffsets='{"t":{"0":23,"1":-1,"2":-2}}').starting == AtOffsets(
        {TopicPartition("t", 0): 23, TopicPartition("t", 1): -1, TopicPartition("t", 2): -2}
    )
    assert read(startingTimestamp="1000", startingOffsets="earliest").starting == AtTimestamp(1000, NoMatch.ERROR)
    by_time = read(startingOffsetsByTimestamp='{"t":{"0":5}}', startingOffsetsByTimestampStrategy="LATEST").starting
    assert by_time == AtTimestamps({TopicPartition("t", 0): 5}, NoMatch.LATEST)


def test_invalid_starting_positions() -> None:
    assert "expected a single long value" in refused(startingTimestamp="soon")
    assert "not understood" in refused(startingOffsets="newest")
    assert "no valid offset" in refused(startingOffsets='{"t":{"0":-3}}')
    assert "not understood" in refused(startingOffsets='{"t":{"zero":1}}')
    assert "error or latest" in refused(startingOffsetsByTimestampStrategy="guess")


def test_streams_have_no_end_and_batches_no_latest_start() -> None:
    assert "ending offset not valid" in refused(endingOffsets="latest")
    assert "ending timestamp not valid" in refused(endingTimestamp="1")
    assert "starting offset can't be latest" in refused(streaming=False, startingOffsets="latest")
    assert "can't be latest" in refused(streaming=False, startingOffsets='{"t":{"0":-1}}')
    assert "ending offset can't be earliest" in refused(streaming=False, endingOffsets="earliest")
    assert "can't be earliest" in refused(streaming=False, endingOffsets='{"t":{"0":-2}}')


def test_mismatched_starts_and_ends_are_rejected() -> None:
    both: dict[str, Any] = {"streaming": False, "startingOffsets": '{"t":{"0":9}}'}
    assert "greater than its ending offset" in refused(**both, endingOffsets='{"t":{"0":8}}')
    assert "same partitions" in refused(**both, endingOffsets='{"t":{"1":8}}')
    assert read(**both, endingOffsets='{"t":{"0":-1}}').ending == AtOffsets({TopicPartition("t", 0): -1})


def test_numbers_and_switches() -> None:
    options = read(minPartitions="3", maxRecordsPerPartition="10", maxOffsetsPerTrigger="7", maxTriggerDelay="5m")
    assert (options.min_partitions, options.max_records_per_partition) == (3, 10)
    assert (options.max_offsets_per_trigger, options.max_trigger_delay_ms) == (7, 300_000)
    assert refused(minPartitions="0") == "minPartitions must be positive"
    assert refused(maxRecordsPerPartition="-1") == "maxRecordsPerPartition must be positive"
    assert "whole number" in refused(maxOffsetsPerTrigger="many")
    assert "higher than the maxOffsetsPerTrigger" in refused(minOffsetsPerTrigger="9", maxOffsetsPerTrigger="8")
    assert "must be true or false" in refused(failOnDataLoss="maybe")
    assert "must be a time" in refused(maxTriggerDelay="a while")
    assert "higher than maxPartitions" in refused(minPartitions="4", maxPartitions="3")


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("15m", 900_000),
        ("500ms", 500),
        ("10 s", 10_000),
        ("1H", 3_600_000),
        ("42", 42),
        ("1min", 60_000),
        ("2d", 172_800_000),
    ],
)
def test_durations(text: str, ms: int) -> None:
    assert duration_ms(text, "x") == ms


def test_write_options() -> None:
    options = write_options({"kafka.bootstrap.servers": "h:1", "kafka.acks": "all", "topic": " t "})
    assert (options.topic, options.client) == ("t", {"bootstrap.servers": "h:1", "acks": "all"})
    assert write_options({"kafka.bootstrap.servers": "h:1"}).topic is None
    with pytest.raises(OperatorError, match="serializer"):
        write_options({"kafka.bootstrap.servers": "h:1", "kafka.key.serializer": "x"})
    with pytest.raises(OperatorError, match="bootstrap"):
        write_options({"topic": "t"})


def test_losses_are_tolerated_as_the_options_specify() -> None:
    def tolerated(**options: str) -> set[str]:
        return {str(kind) for kind in read(True, **options).policy.tolerated}

    assert tolerated() == set()
    assert tolerated(onTruncation="fail", onExpired="Fail", onRecreated="fail") == set()
    assert tolerated(onTruncation="rewind") == {"LOG_TRUNCATED"}
    assert tolerated(onExpired="continue", onRecreated="restart") == {"OFFSETS_EXPIRED", "TOPIC_RECREATED"}
    assert len(tolerated(failOnDataLoss="false")) == 4
    assert tolerated(failOnDataLoss="false", onTruncation="fail", onRecreated="fail") == {
        "OFFSETS_EXPIRED",
        "PARTITIONS_GONE",
    }
    with pytest.raises(OperatorError, match="'onTruncation' must be fail or rewind, not 'skip'"):
        tolerated(onTruncation="skip")


def test_an_address_without_a_port_is_rejected_on_load() -> None:
    words = "Option 'kafka.bootstrap.servers': 'broker' is not the address of a broker: it has no port"
    assert words in refused(base={"kafka.bootstrap.servers": "a:1, broker", "subscribe": "t"})
    with pytest.raises(OperatorError, match=words):
        write_options({"kafka.bootstrap.servers": "broker", "topic": "t"})
    sink = DeltaDataSource({"path": "p", "kafka.bootstrap.servers": "broker"})
    for write in (sink.writer, sink.streamWriter):
        with pytest.raises(OperatorError, match=words):
            write(StructType(), False)


def test_unproven_checkpoint_option() -> None:
    def accepts(**options: str) -> bool:
        return read_options({**BASE, **options}, streaming=True).accepts_unproven

    assert not accepts()
    assert accepts(failOnDataLoss="false")
    assert accepts(onUnproven="Accept")
    assert not accepts(failOnDataLoss="false", onUnproven="fail")
    assert "must be fail or accept" in refused(onUnproven="maybe")
