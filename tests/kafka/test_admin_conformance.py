"""The admin APIs against a real Kafka 4.3.1: same requests, same answers, field by field."""

from __future__ import annotations

from typing import Any

import pytest

from fenceline.testing.apache_kafka import ApacheKafka
from fenceline.testing.node import EmbeddedNode
from fenceline.wire.apis import ApiKey
from tests.support.admin_scripts import BROKER, SCRIPTS, run_script
from tests.support.raw import RawConnection
from tests.support.recorded import Answer, as_recorded

OF_THE_KIPS = {"metadata.snapshot.min.changed_records.ratio", "metadata.start.offset.lag.time.max.ms"}
"""Keys that a proposal names (KIP-630) and Kafka never had."""
OF_OLDER_KAFKA = {"leader.imbalance.per.broker.percentage"}
"""Kafka 4 took it out and gives every leader back; here it counts where it is set."""


@pytest.mark.parametrize("name", SCRIPTS)
def test_same_answers(name: str, answer: Answer, fenceline_node: EmbeddedNode) -> None:
    def answers(node: ApacheKafka | EmbeddedNode) -> list[Any]:
        with RawConnection(node.port) as connection:
            return run_script(connection, SCRIPTS[name])

    for step, theirs, mine in zip(SCRIPTS[name], answer("apache_kafka", answers), answers(fenceline_node), strict=True):
        assert as_recorded(mine) == theirs, f"{step.api.name} v{step.version} {step.fields}"


@pytest.mark.kafka
def test_every_broker_key_is_known(apache_kafka: ApacheKafka, fenceline_node: EmbeddedNode) -> None:
    """Names, types, mutability and sensitivity; also values and layers that neither side sets itself."""
    resource = {"resource_type": BROKER, "resource_name": "1", "configuration_keys": None}
    reported = []
    for port in (apache_kafka.port, fenceline_node.port):
        with RawConnection(port) as connection:
            answer = connection.call(ApiKey.DESCRIBE_CONFIGS, 4, {"resources": [resource], "include_synonyms": True})
        reported.append({row.name: row for row in answer.results[0].configs if not row.name.startswith("fenceline.")})
    theirs, ours = reported
    assert set(ours) - OF_THE_KIPS - OF_OLDER_KAFKA == set(theirs)
    for name, row in theirs.items():
        mine = ours[name]
        facts = (row.config_type, row.read_only, row.is_sensitive)
        assert (mine.config_type, mine.read_only, mine.is_sensitive) == facts, name
        if 4 not in {row.config_source, mine.config_source}:
            assert (mine.value, mine.config_source) == (row.value, row.config_source), name
            layers = [(each.name, each.value, each.source) for each in row.synonyms]
            assert [(each.name, each.value, each.source) for each in mine.synonyms] == layers, name


def test_every_key_is_documented(fenceline_node: EmbeddedNode) -> None:
    resource = {"resource_type": BROKER, "resource_name": "1", "configuration_keys": None}
    with RawConnection(fenceline_node.port) as connection:
        answer = connection.call(ApiKey.DESCRIBE_CONFIGS, 4, {"resources": [resource], "include_documentation": True})
    assert all(row.documentation for row in answer.results[0].configs)
