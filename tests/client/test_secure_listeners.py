"""TLS and SASL against Apache Kafka: one listener with both."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from fenceline.client.admin.admin import Admin
from fenceline.client.core.config import ClientConfig
from fenceline.client.core.connection import open_connection
from fenceline.client.core.errors import ConnectionLost
from fenceline.client.producer.producer import Producer
from fenceline.client.reader.reader import RangeReader
from fenceline.errors import ErrorCode, OperatorError, PeerError
from fenceline.ids import TopicPartition
from fenceline.testing.apache_kafka import small_kafka
from tests.conftest import unavailable

pytestmark = pytest.mark.kafka


class Secured(NamedTuple):
    bootstrap: str
    ca: str


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """A broker whose only listener is SASL_SSL; user "anna" has passwords for PLAIN and SCRAM."""
    if shutil.which("openssl") is None:
        unavailable("the openssl command is missing")
    folder = tmp_path_factory.mktemp("tls")
    key, certificate = folder / "key.pem", folder / "cert.pem"
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    )
    subprocess.run([*command.split(), "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    login = "org.apache.kafka.common.security.plain.PlainLoginModule required username=admin password=adm"
    scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    overrides = {
        "listener.security.protocol.map": "PLAINTEXT:SASL_SSL,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "listener.name.plaintext.plain.sasl.jaas.config": f"{login} user_admin=adm user_anna=secret;",
        "listener.name.plaintext.scram-sha-256.sasl.jaas.config": scram,
        "listener.name.plaintext.scram-sha-512.sasl.jaas.config": scram,
        "ssl.keystore.type": "PEM",
        "ssl.truststore.type": "PEM",
        "ssl.keystore.certificate.chain": _one_line(certificate),
        "ssl.keystore.key": _one_line(key),
        "ssl.truststore.certificates": _one_line(certificate),
    }
    with small_kafka(overrides=overrides) as broker:
        admin = AdminClient(
            {
                "bootstrap.servers": broker.bootstrap,
                "security.protocol": "SASL_SSL",
                "ssl.ca.location": str(certificate),
                "sasl.mechanism": "PLAIN",
                "sasl.username": "admin",
                "sasl.password": "adm",
            }
        )
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            wanted = UserScramCredentialUpsertion("anna", ScramCredentialInfo(mechanism, 4096), b"secret", b"salt")
            for future in admin.alter_user_scram_credentials([wanted]).values():
                future.result(60)
        yield Secured(broker.bootstrap, str(certificate))


def _one_line(path: Path) -> str:
    return path.read_text().strip().replace("\n", " \\\n")


def _settings(secured: Secured, **changes: str) -> dict[str, str]:
    return {
        "bootstrap.servers": secured.bootstrap,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": secured.ca,
        "sasl.mechanism": "PLAIN",
        "sasl.username": "anna",
        "sasl.password": "secret",
        **{name.replace("_", "."): value for name, value in changes.items()},
    }


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_records_are_produced_and_consumed(secured: Secured, mechanism: str) -> None:
    settings = _settings(secured, sasl_mechanism=mechanism)
    topic = f"secure-{mechanism}"
    with Admin(settings) as admin, Producer(settings) as producer, RangeReader(settings) as reader:
        admin.create_topics([topic])
        producer.send(topic, b"x" * 300_000).result(60)
        (batch,) = list(reader.read({TopicPartition(topic, 0): (0, 1)}))
        assert batch.column("value").to_pylist() == [b"x" * 300_000]


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_wrong_password_fails_immediately(secured: Secured, mechanism: str) -> None:
    with Admin(_settings(secured, sasl_mechanism=mechanism, sasl_password="wrong")) as admin:
        with pytest.raises(PeerError, match=r"sasl\.password") as error:
            admin.describe_cluster()
        assert error.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED


def test_untrusted_certificate_is_reported(secured: Secured) -> None:
    settings = _settings(secured)
    del settings["ssl.ca.location"]
    with Admin(settings) as admin, pytest.raises(OperatorError, match=r"ssl\.ca\.location"):
        admin.describe_cluster()


def test_plaintext_to_a_tls_listener_is_reported(secured: Secured) -> None:
    """At the first attempt, however slow the broker is, before any call can time out."""
    host, port = secured.bootstrap.split(":")
    config = ClientConfig.parse("admin", secured.bootstrap, {"request.timeout.ms": 600_000})
    with pytest.raises(ConnectionLost, match=r"security\.protocol|closed it"):
        asyncio.run(open_connection(host, int(port), config, None))
