"""Kafka's property names, defaults and units."""

from __future__ import annotations

import pytest

from fenceline.errors import OperatorError
from fenceline.groups.settings import GroupSettings


def test_defaults_are_those_of_kafka() -> None:
    assert GroupSettings.from_lookup(lambda name: None) == GroupSettings()


def test_every_property_is_read_in_its_unit() -> None:
    properties = {
        "group.min.session.timeout.ms": "1",
        "group.max.session.timeout.ms": 2,
        "group.max.size": "3",
        "group.initial.rebalance.delay.ms": "4",
        "offset.metadata.max.bytes": "5",
        "offsets.retention.minutes": "6",
        "offsets.retention.check.interval.ms": "7",
    }
    assert GroupSettings.from_lookup(properties.get) == GroupSettings(
        min_session_timeout_ms=1,
        max_session_timeout_ms=2,
        max_size=3,
        initial_rebalance_delay_ms=4,
        offset_metadata_max_chars=5,
        offsets_retention_ms=360_000,
        offsets_retention_check_interval_ms=7,
    )


def test_assignors_may_be_named_by_kafkas_classes() -> None:
    classes = "org.apache.kafka.coordinator.group.assignor.RangeAssignor, uniform"
    found = GroupSettings.from_lookup({"group.consumer.assignors": classes}.get)
    assert found.consumer.assignors == ("range", "uniform")


def test_unknown_assignor_is_an_operator_error() -> None:
    with pytest.raises(OperatorError, match="sticky"):
        GroupSettings.from_lookup({"group.consumer.assignors": ("uniform", "sticky")}.get)
