"""Clusters whose nodes talk to each other by TLS and SASL, of Fenceline alone and mixed with Apache Kafka.

Rules: security.md A3, A7, A52.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fenceline.client import Admin, NewTopic, Producer, TopicPartition
from fenceline.testing.apache_kafka import free_port
from fenceline.testing.mixed_cluster import COMBINED, LISTENER, MixedCluster
from tests.conftest import need_apache_kafka
from tests.scheduling import CLUSTERS
from tests.support.certificates import TestAuthority
from tests.support.kafka_start import quick_environment
from tests.support.read_to_end import read_to_end

pytestmark = [pytest.mark.kafka, pytest.mark.together(CLUSTERS)]
LOGIN = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'username="broker" password="between, brokers;" user_broker="between, brokers;";'
)
KINDS = {
    "three of Fenceline": [COMBINED] * 3,
    "one of Kafka": [COMBINED, f"kafka:{COMBINED}", COMBINED],
    "two of Kafka": [f"kafka:{COMBINED}", COMBINED, f"kafka:{COMBINED}"],
}


@pytest.fixture(params=[(kinds, between) for kinds in KINDS for between in ("SSL", "SASL_SSL", "SASL_PLAINTEXT")])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MixedCluster]:
    """Clients connect in plaintext; brokers with each other by the parameter's protocol, controllers by mutual TLS."""
    need_apache_kafka()
    kinds, between = request.param
    for name in ("scratch", "ca"):
        (tmp_path / name).mkdir()
    authority = TestAuthority(tmp_path / "ca")
    made = MixedCluster(
        tmp_path / "cluster",
        KINDS[kinds],
        settings={
            "listener.security.protocol.map": f"PLAINTEXT:PLAINTEXT,INTERNAL:{between},{LISTENER}:SSL",
            "inter.broker.listener.name": "INTERNAL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(authority.ca),
            "ssl.keystore.type": "PEM",
            "ssl.client.auth": "required",
            "sasl.enabled.mechanisms": "PLAIN",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "listener.name.internal.plain.sasl.jaas.config": LOGIN,
            "offsets.topic.replication.factor": "3",
        },
        environment=quick_environment(tmp_path / "scratch"),
    )
    for node in made.nodes:
        own = f"PLAINTEXT://{node.bootstrap},INTERNAL://127.0.0.1:{free_port()}"
        node.settings = {
            "listeners": f"{own},{LISTENER}://{node.controller}",
            "advertised.listeners": own,
            "ssl.keystore.location": str(authority.identity(f"node-{node.node_id}", "127.0.0.1")),
        }
    with made:
        made.wait_ready()
        made.wait_complete()
        yield made


def test_replication_and_forwarded_requests(cluster: MixedCluster) -> None:
    """Each node receives requests that only the active controller can answer, and each leads a partition."""
    for node in cluster.nodes:
        with Admin(node.bootstrap) as admin:
            admin.create_topics([NewTopic(f"by-{node.node_id}", 3, 3, {"min.insync.replicas": "3"})])
    names = [f"by-{node.node_id}" for node in cluster.nodes]
    with Producer(",".join(node.bootstrap for node in cluster.nodes), acks="all") as producer:
        for name in names:
            for number in range(30):
                producer.send(name, str(number).encode(), partition=number % 3)
        producer.flush()
    for name in names:
        found = read_to_end(cluster.nodes[0].bootstrap, [TopicPartition(name, index) for index in range(3)])
        assert sorted(int(record.value or b"") for record in found) == list(range(30))
    for node in cluster.nodes:
        assert node.is_kafka or "between, brokers" not in node.output
