"""Clusters with an authorizer on every node, of Fenceline alone and mixed with Apache Kafka: rules made through one
node are in force at all, and forwarded requests have the rights of their client.

Rules: security.md A40, A48 to A52.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from fenceline.client import Admin, NewTopic, Producer
from fenceline.errors import ErrorCode, PeerError
from fenceline.testing.mixed_cluster import COMBINED, LISTENER, MixedCluster, MixedNode
from fenceline.testing.waiting import eventually
from tests.conftest import need_apache_kafka
from tests.scheduling import CLUSTERS
from tests.support.kafka_start import quick_environment

pytestmark = [pytest.mark.kafka, pytest.mark.together(CLUSTERS)]
USERS = ("broker", "admin", "anna")
LOGIN = (
    'org.apache.kafka.common.security.plain.PlainLoginModule required username="broker" password="secret" '
    + " ".join(f'user_{name}="secret"' for name in USERS)
    + ";"
)
KINDS = {
    "three of Fenceline": [COMBINED] * 3,
    "one of Kafka": [COMBINED, f"kafka:{COMBINED}", COMBINED],
    "two of Kafka": [f"kafka:{COMBINED}", COMBINED, f"kafka:{COMBINED}"],
}


@pytest.fixture(params=list(KINDS))
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MixedCluster]:
    need_apache_kafka()
    (tmp_path / "scratch").mkdir()
    made = MixedCluster(
        tmp_path / "cluster",
        KINDS[request.param],
        settings={
            "listener.security.protocol.map": f"OWN:SASL_PLAINTEXT,{LISTENER}:SASL_PLAINTEXT",
            "inter.broker.listener.name": "OWN",
            "sasl.enabled.mechanisms": "PLAIN",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "sasl.mechanism.controller.protocol": "PLAIN",
            "listener.name.own.plain.sasl.jaas.config": LOGIN,
            f"listener.name.{LISTENER.lower()}.plain.sasl.jaas.config": LOGIN,
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:broker;User:admin",
            "offsets.topic.replication.factor": "3",
        },
        environment=quick_environment(tmp_path / "scratch"),
    )
    for node in made.nodes:
        own = f"OWN://{node.bootstrap}"
        node.settings = {"listeners": f"{own},{LISTENER}://{node.controller}", "advertised.listeners": own}
    with made:
        for node in made.nodes:
            eventually(lambda node=node: _knows_all(node), f"node {node.node_id} knows all brokers")
        yield made


def _settings(node: MixedNode, user: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": node.bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": "secret",
    }


def _knows_all(node: MixedNode) -> bool:
    with Admin(_settings(node, "admin")) as admin:
        return len(admin.describe_cluster().brokers) == 3


def _rule(resource: ResourceType, name: str, operation: AclOperation) -> AclBinding:
    return AclBinding(
        resource, name, ResourcePatternType.PREFIXED, "User:anna", "*", operation, AclPermissionType.ALLOW
    )


def _creation(node: MixedNode, topic: str) -> ErrorCode:
    """The error of creating a topic as anna."""
    with Admin(_settings(node, "anna")) as admin:
        try:
            admin.create_topics([NewTopic(topic, 1, 3)])
        except PeerError as error:
            return error.code
    return ErrorCode.NONE


def test_rules_of_one_node_are_in_force_at_all(cluster: MixedCluster) -> None:
    """Each node forwards; the active controller, of either kind, checks the rights of the client."""
    nodes = cluster.nodes
    for node in nodes:
        assert _creation(node, f"a{node.node_id}") is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    for made_by, checked_by in zip(nodes, nodes[1:] + nodes[:1], strict=True):
        name = f"a{made_by.node_id}"
        admin = AdminClient(_settings(made_by, "admin"))
        rules = [_rule(ResourceType.TOPIC, name, each) for each in (AclOperation.CREATE, AclOperation.WRITE)]
        for done in admin.create_acls(rules).values():
            done.result(30)
        eventually(lambda: _creation(checked_by, name) is ErrorCode.NONE, "anna may create the topic")  # noqa: B023
        for node in nodes:
            eventually(lambda: _is_written(node, name), f"node {node.node_id} knows the rules")  # noqa: B023
        every = AclBindingFilter(
            *(ResourceType.TOPIC, name, ResourcePatternType.PREFIXED, None, None),
            *(AclOperation.ANY, AclPermissionType.ANY),
        )
        for found in admin.delete_acls([every]).values():
            assert len(found.result(30)) == 2
        for node in nodes:
            eventually(lambda: not _is_written(node, name), f"node {node.node_id} knows that they are gone")  # noqa: B023


def _is_written(node: MixedNode, topic: str) -> bool:
    """Whether anna may write, through the leader; the metadata is the asked node's."""
    with Producer(_settings(node, "anna"), acks="all") as producer:
        try:
            producer.send(topic, b"x").result(30)
        except PeerError as error:
            if error.code is not ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                raise
            return False
    return True
