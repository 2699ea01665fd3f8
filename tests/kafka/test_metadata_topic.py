"""The metadata topic in Kafka's tools and clients, which KIP-630 makes readable: its cleanup policy is snapshot."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from fenceline.errors import ErrorCode
from fenceline.ids import METADATA_TOPIC
from fenceline.testing.node import EmbeddedNode
from tests.kafka.tool_jvm import ToolJvm

NAMED = ("--entity-type", "topics", "--entity-name", METADATA_TOPIC)


@pytest.fixture(scope="module")
def tools() -> Iterator[ToolJvm]:
    with ToolJvm() as jvm:
        yield jvm


@pytest.mark.kafka
def test_kafka_configs_reads_but_cannot_change_the_policy(fenceline_node: EmbeddedNode, tools: ToolJvm) -> None:
    servers = ("--bootstrap-server", fenceline_node.bootstrap)
    described = tools.run("configs", *servers, "--describe", "--all", *NAMED)
    assert described.code == 0
    assert "cleanup.policy=snapshot" in described.printed
    altered = tools.run("configs", *servers, "--alter", "--add-config", "cleanup.policy=compact", *NAMED)
    assert altered.code == 1
    assert "PolicyViolationException" in altered.printed
    assert "is read-only" in altered.printed


def test_confluent_kafka_reads_but_cannot_change_the_policy(fenceline_node: EmbeddedNode) -> None:
    admin = AdminClient({"bootstrap.servers": fenceline_node.bootstrap})
    resource = ConfigResource(ConfigResource.Type.TOPIC, METADATA_TOPIC)
    found = admin.describe_configs([resource])[resource].result(timeout=60)
    assert {name: (entry.value, entry.is_read_only) for name, entry in found.items()} == {
        "cleanup.policy": ("snapshot", True)
    }
    entry = ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.SET)
    changed = ConfigResource(ConfigResource.Type.TOPIC, METADATA_TOPIC, incremental_configs=[entry])
    with pytest.raises(KafkaException) as refused:
        admin.incremental_alter_configs([changed])[changed].result(timeout=60)
    assert refused.value.args[0].code() == ErrorCode.POLICY_VIOLATION
