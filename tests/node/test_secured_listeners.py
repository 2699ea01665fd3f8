"""A node whose only listener has TLS or SASL, with real clients, right and wrong credentials.

Rules: security.md A7, A12, A14, A16, A19, A23.
"""

from __future__ import annotations

import re
import socket
import ssl
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import urlopen

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from fenceline.client import Admin, Consumer, Producer, TopicPartition
from fenceline.errors import ErrorCode, OperatorError, PeerError
from fenceline.testing.apache_kafka import free_port
from fenceline.testing.node import EmbeddedNode
from fenceline.wire.apis import ApiKey
from tests.support.certificates import TestAuthority
from tests.support.raw import ConnectionClosed, RawConnection

JAAS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'username="broker" password="of the broker" user_broker="of the broker" user_anna="secret";'
)
COUNT = 500


class Secured(NamedTuple):
    node: EmbeddedNode
    authority: TestAuthority
    protocol: str
    metrics_port: int

    def metric(self, name: str) -> float:
        """Its value, or that of its only label."""
        text = urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=30).read().decode()
        [value] = re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE)
        return float(value)

    def settings(self, **changes: str) -> dict[str, str]:
        """Of librdkafka and of our client."""
        found = {"bootstrap.servers": self.node.bootstrap, "security.protocol": self.protocol}
        if self.protocol.endswith("SSL"):
            client = str(self.authority.identity("anna"))
            found |= {
                "ssl.ca.location": str(self.authority.ca),
                "ssl.certificate.location": client,
                "ssl.key.location": client,
            }
        if self.protocol.startswith("SASL"):
            found |= {"sasl.mechanism": "PLAIN", "sasl.username": "anna", "sasl.password": "secret"}
        return {**found, **{key.replace("_", "."): value for key, value in changes.items()}}


@pytest.fixture(scope="module", params=["SSL", "SASL_PLAINTEXT", "SASL_SSL"])
def secured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    protocol = request.param
    authority = TestAuthority(tmp_path_factory.mktemp("ca"))
    identity = authority.identity("broker", "127.0.0.1")
    overrides = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(identity),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.ca),
        "ssl.client.auth": "required",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        f"listener.name.{protocol.lower()}.plain.sasl.jaas.config": JAAS,
        "fenceline.metrics.port": str(metrics_port := free_port()),
    }
    with EmbeddedNode(security_protocol=protocol, overrides=overrides, log_level="info") as node:
        yield Secured(node, authority, protocol, metrics_port)


def on(*protocols: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("secured", protocols, indirect=True)


def test_librdkafka(secured: Secured) -> None:
    settings: dict[str, Any] = secured.settings()
    admin = AdminClient(settings)
    admin.create_topics([NewTopic("rd", 1, 1)])["rd"].result(30)
    producer = confluent_kafka.Producer(settings)
    for number in range(COUNT):
        producer.produce("rd", bytes(1_000) + str(number).encode())
    assert producer.flush(30) == 0
    consumer = confluent_kafka.Consumer({**settings, "group.id": "rd", "auto.offset.reset": "earliest"})
    consumer.subscribe(["rd"])
    found: list[bytes | None] = []
    while len(found) < COUNT:
        messages = consumer.consume(COUNT, 30)
        assert messages, "no more records"
        found += [message.value() for message in messages]
    consumer.close()
    assert found == [bytes(1_000) + str(number).encode() for number in range(COUNT)]


def test_own_client_and_responses_of_several_megabytes(secured: Secured) -> None:
    """Records that are not in memory are sent from files, in slices."""
    settings = secured.settings()
    with Admin(settings) as admin, Producer(settings) as producer:
        admin.create_topics(["own"])
        for _ in range(8):
            producer.send("own", bytes(900_000))
        producer.flush()
    with Consumer({**settings, "auto.offset.reset": "earliest", "fetch.min.bytes": 5_000_000}) as consumer:
        consumer.assign([TopicPartition("own", 0)])
        found = 0
        while found < 8:
            records = consumer.poll(30_000)
            assert records, "no more records"
            found += len(records)


@on("SASL_PLAINTEXT", "SASL_SSL")
def test_wrong_password(secured: Secured) -> None:
    with Admin(secured.settings(sasl_password="wrong")) as admin:
        with pytest.raises(PeerError, match=r"sasl\.password") as error:
            admin.describe_cluster()
        assert error.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED


@on("SSL")
def test_peer_without_a_certificate(secured: Secured) -> None:
    context = ssl.create_default_context(cafile=str(secured.authority.ca))
    with (
        socket.create_connection(("127.0.0.1", secured.node.port), timeout=30) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as tls,
        pytest.raises(ssl.SSLError, match=r"(?i)certificate.required"),
    ):
        tls.recv(100)  # TLS 1.3 reports a missing certificate here


@on("SSL")
def test_own_client_without_a_certificate(secured: Secured) -> None:
    """It does not try until its time is over."""
    settings = {
        key: value for key, value in secured.settings().items() if "certificate" not in key and "key" not in key
    }
    with Admin(settings) as admin, pytest.raises(OperatorError, match="certificate required") as error:
        admin.describe_cluster(timeout_ms=600_000)
    assert "ssl.certificate.location" in error.value.advice


@on("SSL", "SASL_SSL")
def test_plaintext_on_a_tls_port(secured: Secured) -> None:
    with socket.create_connection(("127.0.0.1", secured.node.port), timeout=30) as plain:
        plain.sendall(struct.pack(">ihhih", 10, ApiKey.API_VERSIONS, 0, 7, 0))
        alert = plain.recv(100)
        assert alert[:1] in (b"", b"\x15"), "an alert of TLS, or nothing"
        if alert:
            assert plain.recv(100) == b""


@on("SASL_PLAINTEXT")
def test_nothing_is_served_before_the_authentication(secured: Secured) -> None:
    with RawConnection(secured.node.port) as connection:
        assert connection.call(ApiKey.API_VERSIONS, 3, {"client_software_name": "a", "client_software_version": "1"})
        with pytest.raises(ConnectionClosed):
            connection.call(ApiKey.METADATA, 12, {"topics": []})


@on("SASL_PLAINTEXT")
def test_oversized_request_before_the_authentication(secured: Secured) -> None:
    with socket.create_connection(("127.0.0.1", secured.node.port), timeout=30) as plain:
        plain.sendall(struct.pack(">i", 65_537))
        assert plain.recv(100) == b""


@on("SSL", "SASL_SSL")
def test_expiry_of_the_certificate_is_a_metric(secured: Secured) -> None:
    assert secured.metric("fenceline_certificate_expiry_timestamp_seconds") > time.time()


@on("SASL_PLAINTEXT")
def test_failures_are_counted(secured: Secured) -> None:
    before = secured.metric("fenceline_failed_authentications_total")
    with Admin(secured.settings(sasl_password="wrong")) as admin, pytest.raises(PeerError):
        admin.describe_cluster()
    assert secured.metric("fenceline_failed_authentications_total") > before
    assert secured.metric("fenceline_authentications_total") > 0


def test_secrets_are_not_logged(secured: Secured) -> None:
    for secret in ("of the broker", "secret", "PRIVATE KEY"):
        assert secret not in secured.node.errors


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"ssl.keystore.location": ""}, "TLS needs a certificate"),
        ({"ssl.truststore.location": ""}, "nodes with these certificates cannot connect to each other"),
        ({"ssl.keystore.location": "/nowhere.pem"}, "cannot be read"),
        ({"ssl.keystore.type": "JKS"}, r"ssl\.keystore\.password is missing"),
        ({"ssl.enabled.protocols": "TLSv1.1"}, "older protocols are broken"),
        ({"ssl.cipher.suites": "TLS_RSA_WITH_RC4_128_MD5"}, "is not available"),
        ({"ssl.principal.mapping.rules": "RULE:x"}, "is no rule"),
        ({"listener.name.sasl_ssl.ssl.client.auth": "maybe"}, "required, requested, none"),
        ({"sasl.enabled.mechanisms": "GSSAPI"}, "Kerberos"),
        ({"sasl.enabled.mechanisms": "DIGEST-MD5"}, "Choose from PLAIN"),
        ({"listener.name.sasl_ssl.plain.sasl.jaas.config": "x"}, "is no login module"),
        ({"sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512"}, "no user for other nodes"),
    ],
)
def test_start_is_refused_with_the_reason(tmp_path: Path, changes: dict[str, str], reason: str) -> None:
    from fenceline.testing.node import NodeFailed

    authority = TestAuthority(tmp_path)
    overrides = {
        **authority.broker_settings(),
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": JAAS,
        **changes,
    }
    with pytest.raises(NodeFailed, match=reason), EmbeddedNode(security_protocol="SASL_SSL", overrides=overrides):
        pass
