"""The layers of controller.md C37."""

from __future__ import annotations

from fenceline.config.effective import (
    ConfigSource,
    Layer,
    describe_broker_config,
    describe_created_topic,
    describe_topic_config,
    effective_broker_config,
    effective_topic_config,
)
from fenceline.config.node import NodeConfig

TOPIC, BROKER = 2, 4


def node(**settings: str) -> NodeConfig:
    return NodeConfig.load(None, {key.replace("_", "."): value for key, value in settings.items()}, {})


def test_the_default_applies_without_a_setting() -> None:
    assert effective_topic_config({}, "t", node())["retention.ms"] == "604800000"


def test_each_layer_overrides_the_one_below() -> None:
    config = node(log_retention_ms="4")
    layers = {
        (BROKER, ""): {"log.retention.ms": "3"},
        (BROKER, "1"): {"log.retention.ms": "2"},
        (TOPIC, "t"): {"retention.ms": "1"},
    }
    expected = ["4", "3", "2", "1"]
    for count in range(4):
        configs = dict(list(layers.items())[:count])
        assert effective_topic_config(configs, "t", config)["retention.ms"] == expected[count]


def test_other_topics_and_brokers_have_no_effect() -> None:
    configs = {(TOPIC, "u"): {"retention.ms": "1"}, (BROKER, "2"): {"log.retention.ms": "2"}}
    assert effective_topic_config(configs, "t", node())["retention.ms"] == "604800000"


def test_units_of_synonyms() -> None:
    assert effective_topic_config({}, "t", node(log_retention_minutes="2"))["retention.ms"] == "120000"
    assert effective_topic_config({}, "t", node(log_retention_hours="-1"))["retention.ms"] == "-1"
    assert effective_topic_config({}, "t", node(log_roll_hours="2"))["segment.ms"] == "7200000"
    both = node(log_retention_minutes="2", log_retention_hours="1")
    assert effective_topic_config({}, "t", both)["retention.ms"] == "120000"


def test_description_of_a_topic_config() -> None:
    configs = {(TOPIC, "t"): {"retention.ms": "1"}, (BROKER, ""): {"log.retention.ms": "3"}}
    found = describe_topic_config(configs, "t", node(), "retention.ms")
    assert (found.value, found.source) == ("1", ConfigSource.DYNAMIC_TOPIC)
    assert found.layers == (
        Layer("retention.ms", "1", ConfigSource.DYNAMIC_TOPIC),
        Layer("log.retention.ms", "3", ConfigSource.DYNAMIC_DEFAULT_BROKER),
        Layer("log.retention.hours", "168", ConfigSource.DEFAULT),
    )


def test_a_synonym_in_other_units_applies_but_is_not_listed() -> None:
    found = describe_topic_config({}, "t", node(log_roll_hours="2"), "segment.ms")
    assert found == ("7200000", ConfigSource.DEFAULT, ())
    assert describe_created_topic({}, {}, node(log_roll_hours="2"))["segment.ms"].source is ConfigSource.STATIC_BROKER


def test_cluster_default_lists_only_itself() -> None:
    configs = {(BROKER, ""): {"log.retention.ms": "3"}, (BROKER, "1"): {"log.retention.ms": "2"}}
    found = describe_broker_config(configs, node(), "log.retention.ms", cluster_default=True)
    assert found.layers == (Layer("log.retention.ms", "3", ConfigSource.DYNAMIC_DEFAULT_BROKER),)
    assert effective_broker_config(configs, node(), "log.retention.ms") == "2"
    assert effective_broker_config({}, node(), "num.partitions") == "1"
