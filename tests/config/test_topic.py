from __future__ import annotations

import pytest

from fenceline.config.broker import ALL_CONFIGS
from fenceline.config.definitions import InvalidConfig
from fenceline.config.topic import TOPIC_CONFIGS, TOPIC_SYNONYMS, validate_topic_configs


@pytest.mark.parametrize(
    ("configs", "message"),
    [
        ({"retention.ms": None, "x": None}, "Null value not supported for topic configs: retention.ms,x"),
        ({"x": "1"}, "Unknown topic config name: x"),
        ({"retention.ms": "-2"}, "Invalid value -2 for configuration retention.ms: Value must be at least -1"),
        (
            {"min.cleanable.dirty.ratio": "2"},
            "Invalid value 2.0 for configuration min.cleanable.dirty.ratio: Value must be no more than 1",
        ),
        (
            {"compression.gzip.level": "0"},
            "Invalid value 0 for configuration compression.gzip.level: Value must be between 1 and 9 or equal to -1",
        ),
        (
            {"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"},
            "conflict topic config setting min.compaction.lag.ms (10) > max.compaction.lag.ms (5)",
        ),
        (
            {"remote.storage.enable": "true"},
            "Tiered Storage functionality is disabled in the broker. "
            "Topic cannot be configured with remote log storage.",
        ),
    ],
)
def test_rejections_have_kafkas_messages(configs: dict[str, str | None], message: str) -> None:
    with pytest.raises(InvalidConfig) as refused:
        validate_topic_configs(configs)
    assert refused.value.message == message


@pytest.mark.parametrize(
    "configs",
    [
        {},
        {"cleanup.policy": ""},
        {"cleanup.policy": "delete,delete"},
        {"leader.replication.throttled.replicas": "0:1,"},
        {"leader.replication.throttled.replicas": "*"},
        {"internal.segment.bytes": "10"},
    ],
)
def test_configs_accepted_by_kafka(configs: dict[str, str | None]) -> None:
    validate_topic_configs(configs)


def test_broker_defaults_are_checked_too() -> None:
    with pytest.raises(InvalidConfig, match="conflict"):
        validate_topic_configs({"min.compaction.lag.ms": "10"}, {"max.compaction.lag.ms": "5"})
    validate_topic_configs({"max.compaction.lag.ms": "50"}, {"max.compaction.lag.ms": "5"})


def test_synonyms_name_existing_keys() -> None:
    for name, synonyms in TOPIC_SYNONYMS.items():
        assert name in TOPIC_CONFIGS
        assert all(synonym.name in ALL_CONFIGS for synonym in synonyms)


def test_defaults_are_within_their_bounds() -> None:
    for key in (*TOPIC_CONFIGS.values(), *ALL_CONFIGS.values()):
        if isinstance(key.default, str):
            key.parse(key.default)
