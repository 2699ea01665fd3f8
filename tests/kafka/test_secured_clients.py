"""Other clients log in to a node by SCRAM over TLS, with credentials that Kafka's own tool has set and changed.

Rules: security.md A24, A25, A37, A38.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import confluent_kafka
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError as AiokafkaError
from confluent_kafka.admin import AdminClient
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet
from kafka.errors import KafkaError

import kafka
from fenceline.client import Admin, Consumer, NewTopic, Producer, TopicPartition
from fenceline.errors import ErrorCode, PeerError
from fenceline.testing.apache_kafka import run_tool
from fenceline.testing.node import EmbeddedNode
from fenceline.testing.waiting import eventually
from tests.conftest import need_apache_kafka
from tests.support.certificates import TestAuthority

pytestmark = [pytest.mark.kafka]
ADMIN = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'username="admin" password="of the admin" user_admin="of the admin";'
)
MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")


class Place(NamedTuple):
    node: EmbeddedNode
    ca: Path
    tool_config: Path

    def settings(self, mechanism: str, password: str = "secret") -> dict[str, Any]:
        """Of librdkafka and of our client."""
        return {
            "bootstrap.servers": self.node.bootstrap,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.ca),
            "sasl.mechanism": mechanism,
            "sasl.username": "anna",
            "sasl.password": password,
        }

    def python_settings(self, mechanism: str, password: str = "secret") -> dict[str, Any]:
        """Of kafka-python and aiokafka."""
        return {
            "bootstrap_servers": self.node.bootstrap,
            "security_protocol": "SASL_SSL",
            "ssl_context": ssl.create_default_context(cafile=str(self.ca)),
            "sasl_mechanism": mechanism,
            "sasl_plain_username": "anna",
            "sasl_plain_password": password,
        }

    def users(self, *arguments: str) -> str:
        """kafka-configs.sh for the user anna."""
        common = ("--bootstrap-server", self.node.bootstrap, "--command-config", str(self.tool_config))
        entity = ("--entity-type", "users", "--entity-name", "anna")
        return run_tool("kafka.admin.ConfigCommand", *common, *arguments, *entity)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    need_apache_kafka()
    folder = tmp_path_factory.mktemp("secured")
    authority = TestAuthority(folder)
    overrides = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(authority.identity("broker", "127.0.0.1")),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.ca),
        "sasl.enabled.mechanisms": ",".join(("PLAIN", *MECHANISMS)),
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": ADMIN,
    }
    tool_config = folder / "admin.properties"
    tool_config.write_text(
        "security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nssl.truststore.type=PEM\n"
        f"ssl.truststore.location={authority.ca}\n"
        f"sasl.jaas.config={ADMIN.replace(' user_admin=', ' ignored=')}\n"
    )
    with EmbeddedNode(security_protocol="SASL_SSL", overrides=overrides) as node:
        made = Place(node, authority.ca, tool_config)
        made.users(
            "--alter", "--add-config", ",".join(f"{each}=[iterations=4096,password=secret]" for each in MECHANISMS[:1])
        )
        made.users("--alter", "--add-config", "SCRAM-SHA-512=[iterations=8192,password=secret]")
        with Admin(made.settings("SCRAM-SHA-512")) as admin:
            admin.create_topics([NewTopic("t", 1, 1)])
        yield made


def test_credentials_are_described_without_their_keys(place: Place) -> None:
    """By librdkafka and kafka-configs.sh."""
    described_by_kafka = place.users("--describe")
    assert "SCRAM-SHA-256=iterations=4096" in described_by_kafka
    assert "SCRAM-SHA-512=iterations=8192" in described_by_kafka
    admin = AdminClient(place.settings("SCRAM-SHA-256"))
    described = admin.describe_user_scram_credentials(["anna", "otto"])
    found = described["anna"].result(30).scram_credential_infos
    assert {each.mechanism.name: each.iterations for each in found} == {"SCRAM_SHA_256": 4096, "SCRAM_SHA_512": 8192}
    with pytest.raises(confluent_kafka.KafkaException, match="does not exist"):
        described["otto"].result(30)


def produce_by_librdkafka(place: Place, mechanism: str, password: str) -> None:
    errors: list[str] = []
    outcomes: list[bool] = []
    callbacks: dict[str, Any] = {"error_cb": lambda error: errors.append(error.name()), "log_level": 0}
    producer = confluent_kafka.Producer({**place.settings(mechanism, password), **callbacks})
    producer.produce("t", b"x", on_delivery=lambda error, _: outcomes.append(error is None))
    eventually(lambda: producer.poll(0.1) is None or errors or outcomes, "an answer", wait_s=30)
    producer.purge()
    if not outcomes:
        raise PermissionError(errors)


def produce_by_kafka_python(place: Place, mechanism: str, password: str) -> None:
    producer = kafka.KafkaProducer(**place.python_settings(mechanism, password), max_block_ms=5_000)
    producer.send("t", b"x").get(30)
    producer.close()


def produce_by_aiokafka(place: Place, mechanism: str, password: str) -> None:
    async def produce() -> None:
        producer = AIOKafkaProducer(**place.python_settings(mechanism, password))
        try:
            await producer.start()
            await producer.send_and_wait("t", b"x")
        finally:
            await producer.stop()

    asyncio.run(produce())


def produce_by_own_client(place: Place, mechanism: str, password: str) -> None:
    with Producer(place.settings(mechanism, password)) as producer:
        producer.send("t", b"x").result(30)


WRITERS = {
    "librdkafka": produce_by_librdkafka,
    "kafka-python": produce_by_kafka_python,
    "aiokafka": produce_by_aiokafka,
    "own": produce_by_own_client,
}


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("writer", WRITERS)
def test_right_and_wrong_password(place: Place, writer: str, mechanism: str) -> None:
    WRITERS[writer](place, mechanism, "secret")
    with pytest.raises((PermissionError, KafkaError, AiokafkaError, PeerError)):
        WRITERS[writer](place, mechanism, "wrong")


def test_readers_get_it_all(place: Place) -> None:
    settings = {**place.settings("SCRAM-SHA-256"), "auto.offset.reset": "earliest"}
    with Consumer(settings) as own:
        own.assign([TopicPartition("t", 0)])
        [end] = own.end_offsets([TopicPartition("t", 0)]).values()
    rd = confluent_kafka.Consumer({**settings, "group.id": "rd"})
    rd.subscribe(["t"])
    found = 0
    while found < end:
        messages = rd.consume(end, 30)
        assert messages
        found += len(messages)
    rd.close()

    async def read() -> int:
        fields = place.python_settings("SCRAM-SHA-512")
        async with AIOKafkaConsumer("t", **fields, auto_offset_reset="earliest") as consumer:
            return len([await asyncio.wait_for(consumer.getone(), 30) for _ in range(end)])

    assert asyncio.run(read()) == end


def test_changed_and_removed_credentials(place: Place) -> None:
    def is_let_in(password: str) -> bool:
        with Admin(place.settings("SCRAM-SHA-512", password)) as admin:
            try:
                admin.describe_cluster()
            except PeerError as error:
                return error.code is not ErrorCode.SASL_AUTHENTICATION_FAILED
            return True

    place.users("--alter", "--add-config", "SCRAM-SHA-512=[password=another]")
    assert [is_let_in(each) for each in ("secret", "another")] == [False, True]
    place.users("--alter", "--delete-config", "SCRAM-SHA-512")
    assert not is_let_in("another")
    place.users("--alter", "--add-config", "SCRAM-SHA-512=[iterations=8192,password=secret]")
    assert is_let_in("secret")


# --- OAUTHBEARER ----------------------------------------


class Issuer(NamedTuple):
    """Signs tokens, and publishes its key in a file."""

    key: ECKey
    node: EmbeddedNode

    def token(self, **claims: Any) -> str:
        now_s = int(time.time())
        found = {"iss": "issuer", "aud": "kafka", "sub": "anna", "iat": now_s, "exp": now_s + 300, **claims}
        return jwt.encode({"alg": "ES256", "kid": "key"}, found, self.key, ["ES256"])


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Issuer]:
    key = ECKey.generate_key("P-256", {"kid": "key"})
    file = tmp_path_factory.mktemp("issuer") / "keys.json"
    file.write_text(json.dumps(KeySet([key]).as_dict(private=False)))
    overrides = {
        "sasl.enabled.mechanisms": "PLAIN,OAUTHBEARER",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": ADMIN,
        "sasl.oauthbearer.jwks.endpoint.url": file.as_uri(),
        "sasl.oauthbearer.expected.issuer": "issuer",
        "sasl.oauthbearer.expected.audience": "kafka",
    }
    with EmbeddedNode(security_protocol="SASL_PLAINTEXT", overrides=overrides) as node:
        yield Issuer(key, node)


def brokers_by_librdkafka(issuer: Issuer, token: str) -> int:
    found = {
        "bootstrap.servers": issuer.node.bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": lambda _: (token, time.time() + 300),
        "log_level": 0,
    }
    return len(AdminClient(found).list_topics(timeout=5).brokers)


def brokers_by_aiokafka(issuer: Issuer, token: str) -> int:
    class Provider(AbstractTokenProvider):
        async def token(self) -> str:
            return token

    async def ask() -> int:
        client = AIOKafkaAdminClient(
            bootstrap_servers=issuer.node.bootstrap,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="OAUTHBEARER",
            sasl_oauth_token_provider=Provider(),
        )
        try:
            await client.start()
            return len((await client.describe_cluster())["brokers"])
        finally:
            await client.close()

    return asyncio.run(ask())


@pytest.mark.parametrize("ask", [brokers_by_librdkafka, brokers_by_aiokafka])
def test_tokens(issuer: Issuer, ask: Callable[[Issuer, str], int]) -> None:
    assert ask(issuer, issuer.token()) == 1
    for wrong in (issuer.token(exp=1), issuer.token(aud="other"), issuer.token()[:-4] + "AAAA"):
        with pytest.raises((confluent_kafka.KafkaException, AiokafkaError)):
            ask(issuer, wrong)
