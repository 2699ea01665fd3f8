"""OAUTHBEARER from end to end: Fenceline's client with client credentials and with a function, nodes, and connections
that outlive their tokens and sessions.

Rules: security.md A20, A21, A27, A70.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import urlopen

import pytest
from confluent_kafka.admin import AdminClient

from fenceline.client import Admin, Consumer, NewTopic, Producer, TopicPartition
from fenceline.errors import ErrorCode, OperatorError, PeerError
from fenceline.testing.apache_kafka import free_port
from fenceline.testing.mixed_cluster import COMBINED, LISTENER, MixedCluster
from fenceline.testing.node import EmbeddedNode
from tests.support.certificates import TestAuthority
from tests.support.token_endpoint import TokenEndpoint

OAUTH_MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
PLAIN = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'username="broker" password="of the broker" user_broker="of the broker" user_anna="secret";'
)


class Place(NamedTuple):
    node: EmbeddedNode
    endpoint: TokenEndpoint
    ca: Path
    metrics_port: int

    def settings(self, **more: Any) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.node.bootstrap,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "https.ca.location": str(self.ca),
            **more,
        }

    def credentials(self, secret: str = "secret") -> dict[str, Any]:
        """As librdkafka spells them."""
        return self.settings(
            **{
                "sasl.oauthbearer.method": "oidc",
                "sasl.oauthbearer.token.endpoint.url": self.endpoint.url,
                "sasl.oauthbearer.client.id": "anna",
                "sasl.oauthbearer.client.secret": secret,
                "sasl.oauthbearer.scope": "read",
            }
        )

    def metric(self, name: str) -> float:
        text = urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=30).read().decode()
        [value] = re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE)
        return float(value)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("issuer")
    authority = TestAuthority(folder)
    with TokenEndpoint(folder, identity=authority.identity("issuer", "127.0.0.1")) as endpoint:
        overrides = {
            "sasl.enabled.mechanisms": "PLAIN,OAUTHBEARER",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": PLAIN,
            "connections.max.reauth.ms": "10000",
            "fenceline.metrics.port": str(metrics_port := free_port()),
            **endpoint.settings(),
        }
        with EmbeddedNode(security_protocol="SASL_PLAINTEXT", overrides=overrides, log_level="info") as node:
            yield Place(node, endpoint, authority.ca, metrics_port)


def test_client_credentials(place: Place) -> None:
    before = len(place.endpoint.requests)
    with Admin(place.credentials()) as admin:
        admin.create_topics(["oauth"])
        assert admin.describe_cluster().brokers
    assert len(place.endpoint.requests) == before + 1, "its connections share a token"
    assert place.endpoint.requests[-1]["scope"] == "read"


def test_librdkafka_accepts_the_same_properties(place: Place) -> None:
    """And asks the endpoint for a token in the same way."""
    with Admin(place.credentials()) as admin:
        admin.describe_cluster()
    own = place.endpoint.requests[-1]
    # It reads the authorities from https.ca.location, and the handle must be served for its callbacks.
    client = AdminClient(place.credentials())
    assert client.list_topics(timeout=30).brokers
    assert place.endpoint.requests[-1] == own


def test_the_form_of_java(place: Place) -> None:
    jaas = f'{OAUTH_MODULE} required clientId="anna" clientSecret="secret" scope="write" extension_traceId="7";'
    settings = place.settings(
        **{
            "sasl.jaas.config": jaas,
            "sasl.oauthbearer.token.endpoint.url": place.endpoint.url,
            "sasl.login.callback.handler.class": (
                "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
            ),
        }
    )
    with Admin(settings) as admin:
        assert admin.describe_cluster().brokers
    assert place.endpoint.requests[-1] == {
        "grant_type": "client_credentials",
        "scope": "write",
        "login": "anna:secret",
    }


def test_wrong_client_secret(place: Place) -> None:
    with Admin(place.credentials("the wrong secret")) as admin:
        with pytest.raises(PeerError, match="invalid_client") as error:
            admin.describe_cluster()
        assert error.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED
        assert "the wrong secret" not in str(error.value)


def test_a_function_that_returns_tokens(place: Place) -> None:
    asked: list[str] = []

    def tokens(config: str) -> tuple[str, float]:
        asked.append(config)
        return place.endpoint.token(), time.time() + 300

    with Admin(place.settings(oauth_cb=tokens, **{"sasl.oauthbearer.config": "its text"})) as admin:
        assert admin.describe_cluster().brokers
    assert asked == ["its text"]


@pytest.mark.parametrize(
    ("returned", "error"),
    [
        (lambda place: "token", OperatorError),
        (lambda place: (place.endpoint.token(), 1.0), OperatorError),
        (lambda place: ("a b", time.time() + 300), OperatorError),
        (lambda place: (place.endpoint.token(aud="other"), time.time() + 300), PeerError),
    ],
)
def test_functions_that_return_no_valid_token(place: Place, returned: Any, error: type[Exception]) -> None:
    with Admin(place.settings(oauth_cb=lambda _: returned(place))) as admin, pytest.raises(error):
        admin.describe_cluster()


@pytest.mark.long
@pytest.mark.parametrize("mechanism", ["OAUTHBEARER", "PLAIN"])
def test_connections_outlive_their_sessions(place: Place, mechanism: str) -> None:
    """They log in again before, without a request that fails, and without a new connection (KIP-368)."""
    settings = place.credentials()
    if mechanism == "PLAIN":
        settings |= {"sasl.mechanism": "PLAIN", "sasl.username": "anna", "sasl.password": "secret"}
    topic = f"sessions-{mechanism.lower()}"
    with Admin(settings) as admin, Producer(settings) as producer:
        admin.create_topics([topic])
        begun, failed = place.metric("fenceline_authentications_total"), failures(place)
        connections = place.metric("fenceline_connections")
        sent = 0
        # The two connections of the producer log in again twice.
        while place.metric("fenceline_authentications_total") < begun + 6:
            for _ in range(20):
                producer.send(topic, str(sent).encode())
                sent += 1
            producer.flush()
        assert failures(place) == failed
        assert place.metric("fenceline_connections") <= connections + 2
    with Consumer({**settings, "auto.offset.reset": "earliest"}) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        found: list[bytes] = []
        while len(found) < sent:
            found += [bytes(record.value or b"") for record in consumer.poll(1_000)]
    assert found == [str(number).encode() for number in range(sent)]


def failures(place: Place) -> float:
    return place.metric("fenceline_failed_authentications_total")


def test_tokens_are_replaced_before_they_expire(place: Place) -> None:
    place.endpoint.lifetime_s = 4
    try:
        with Admin(place.credentials()) as admin:
            admin.describe_cluster()
            before = len(place.endpoint.requests)
            while len(place.endpoint.requests) < before + 2:
                assert admin.describe_cluster().brokers
    finally:
        place.endpoint.lifetime_s = 300


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"sasl.oauthbearer.client.secret": None}, r"sasl\.oauthbearer\.client\.secret not set"),
        ({"sasl.oauthbearer.token.endpoint.url": "token"}, "URL"),
        ({"oauth_cb": "name"}, "must be a function"),
        ({"https.ca.location": "/nowhere"}, r"https\.ca\.location"),
        ({"sasl.login.callback.handler.class": "org.example.Mine"}, "oauth_cb"),
        ({"sasl.oauthbearer.method": "magic"}, "default, oidc"),
    ],
)
def test_wrong_settings(place: Place, changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(OperatorError, match=reason), Admin({**place.credentials(), **changes}) as admin:
        admin.describe_cluster()


def test_secrets_are_not_logged(place: Place) -> None:
    assert "eyJ" not in place.node.errors


def test_nodes_log_in_to_each_other(tmp_path: Path) -> None:
    """With client credentials of their own."""
    (tmp_path / "issuer").mkdir()
    with TokenEndpoint(tmp_path / "issuer") as endpoint:
        jaas = f'{OAUTH_MODULE} required clientId="broker" clientSecret="secret" scope="internal";'
        cluster = MixedCluster(
            tmp_path / "cluster",
            [COMBINED, COMBINED],
            settings={
                "listener.security.protocol.map": f"PLAINTEXT:PLAINTEXT,INTERNAL:SASL_PLAINTEXT,{LISTENER}:PLAINTEXT",
                "inter.broker.listener.name": "INTERNAL",
                "sasl.enabled.mechanisms": "OAUTHBEARER",
                "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
                "sasl.oauthbearer.token.endpoint.url": endpoint.url,
                "listener.name.internal.oauthbearer.sasl.jaas.config": jaas,
                **endpoint.settings(),
            },
        )
        for node in cluster.nodes:
            own = f"PLAINTEXT://{node.bootstrap},INTERNAL://127.0.0.1:{free_port()}"
            node.settings = {"listeners": f"{own},{LISTENER}://{node.controller}", "advertised.listeners": own}
        with cluster:
            cluster.wait_ready()
            cluster.wait_complete()
            with (
                Admin(cluster.nodes[0].bootstrap) as admin,
                Producer(cluster.nodes[0].bootstrap, acks="all") as producer,
            ):
                admin.create_topics([NewTopic("replicated", 2, 2, {"min.insync.replicas": "2"})])
                for number in range(10):
                    producer.send("replicated", b"x", partition=number % 2).result(60)
        assert {each["login"] for each in endpoint.requests} == {"broker:secret"}
        assert {each["scope"] for each in endpoint.requests} == {"internal"}
        assert not any("broker:secret" in node.output for node in cluster.nodes)
