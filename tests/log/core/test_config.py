from __future__ import annotations

import pytest

from fenceline.config.effective import effective_topic_config
from fenceline.config.node import NodeConfig
from fenceline.config.topic import VALIDATE_COMPRESSED
from fenceline.log.core.config import LogConfig

TOPIC, BROKER = 2, 4


def test_defaults_are_those_of_the_topic_configs() -> None:
    """The defaults of a log equal those of a topic without configs."""
    assert LogConfig.from_mapping(effective_topic_config({}, "t", NodeConfig.load(None))) == LogConfig()


def test_the_segment_size_of_tests_replaces_the_one_of_operators() -> None:
    """As in Kafka: it has no lower bound."""
    overrides = {(TOPIC, "t"): {"segment.bytes": "2000000", "internal.segment.bytes": "500"}}
    effective = effective_topic_config(overrides, "t", NodeConfig.load(None))
    assert LogConfig.from_mapping(effective).segment_bytes == 500


@pytest.mark.parametrize(
    ("of_node", "of_brokers", "of_topic", "expected"),
    [
        (None, None, None, False),
        ("true", None, None, True),
        ("true", "false", None, False),
        (None, "TRUE", None, True),
        (None, "true", "false", False),
        (None, None, " true ", True),
    ],
)
def test_compressed_record_check_is_set_by_topic_brokers_or_node(
    of_node: str | None, of_brokers: str | None, of_topic: str | None, expected: bool
) -> None:
    node = NodeConfig.load(None, {VALIDATE_COMPRESSED: of_node} if of_node else {})
    overrides = {
        resource: {VALIDATE_COMPRESSED: text}
        for resource, text in (((BROKER, ""), of_brokers), ((TOPIC, "t"), of_topic))
        if text is not None
    }
    assert LogConfig.from_mapping(effective_topic_config(overrides, "t", node)).validate_compressed_records is expected
