"""Every client with every login that it has, over TLS: a record is written and read back with the right secret, and
the client says that it is not let in with a wrong, empty, expired or replaced one.

Rules: security.md A7, A13, A23 to A29, A70.
"""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import confluent_kafka
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioPartition
from aiokafka.abc import AbstractTokenProvider as AioTokens
from kafka.net.sasl.oauth import AbstractTokenProvider as PythonTokens

import kafka
from fenceline.client import Admin, Consumer, NewTopic, Producer, TopicPartition
from fenceline.errors import PeerError
from fenceline.sasl.delegation_tokens import token_password
from fenceline.sasl.jaas import OAUTH_MODULE, PLAIN_MODULE, SCRAM_MODULE
from fenceline.testing.apache_kafka import free_port
from fenceline.testing.node import EmbeddedNode
from fenceline.testing.waiting import eventually
from tests.conftest import need_apache_kafka
from tests.kafka.tool_jvm import ToolJvm
from tests.support.certificates import TestAuthority
from tests.support.password_node import TOKEN_SECRET
from tests.support.token_endpoint import TokenEndpoint

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]

SCRAM_256, SCRAM_512 = "SCRAM-SHA-256", "SCRAM-SHA-512"
PLAIN, OAUTH, CERTIFICATE, TOKEN = "PLAIN", "OAUTHBEARER", "certificate", "delegation token"
PASSWORDS: Final = (PLAIN, SCRAM_256, SCRAM_512)


class Login(NamedTuple):
    """`secret`: a password, a token of OAUTHBEARER, the path of a certificate and its key, or a token's hmac."""

    kind: str
    secret: str
    user: str = "anna"
    patience_s: float = 60
    """For kafka-python, which tries wrong secrets again until it gives up."""

    @property
    def mechanism(self) -> str:
        return SCRAM_256 if self.kind == TOKEN else self.kind


class Place(NamedTuple):
    node: EmbeddedNode
    with_certificates: str
    authority: TestAuthority
    issuer: TokenEndpoint
    jvm: ToolJvm

    def address(self, login: Login) -> str:
        return self.with_certificates if login.kind == CERTIFICATE else self.node.bootstrap

    def right(self, kind: str) -> Login:
        if kind == OAUTH:
            return Login(kind, self.issuer.token())
        if kind == CERTIFICATE:
            return Login(kind, str(self.authority.identity("anna")))
        if kind == TOKEN:
            with Admin(librdkafka_settings(self, Login(PLAIN, "secret"))) as admin:
                made = admin.create_delegation_token()
            return Login(kind, token_password(made.hmac), made.token_id)
        return Login(kind, "secret")

    def wrong(self, kind: str, folder: Path) -> Iterator[Login]:
        if kind == OAUTH:
            yield Login(kind, self.issuer.token(exp=time.time() - 1))
            yield Login(kind, self.issuer.token(aud="another"))
            yield Login(kind, self.issuer.token()[:-6] + "AAAAAA")
            yield Login(kind, "eyJhbGciOiJub25lIn0." + self.issuer.token().split(".")[1] + ".")
        elif kind == CERTIFICATE:
            yield Login(kind, str(TestAuthority(folder).identity("anna")))
            yield Login(kind, str(self.authority.identity("anna", file="expired", until=datetime.now(UTC) - DAY)))
        elif kind == TOKEN:
            right = self.right(kind)
            yield right._replace(secret=right.secret[:-6] + "AAAAA=")
            with Admin(librdkafka_settings(self, Login(PLAIN, "secret"))) as admin:
                admin.expire_delegation_token(right.secret)
            yield right
        else:
            yield Login(kind, "wrong")
            yield Login(kind, "wrong", "nobody")


DAY: Final = timedelta(days=1)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    need_apache_kafka()
    folder = tmp_path_factory.mktemp("clients")
    authority = TestAuthority(folder)
    users = 'username="broker" password="of the broker" user_broker="of the broker" user_anna="secret"'
    port, other = free_port(), free_port()
    listeners = f"SASL_SSL://127.0.0.1:{port},SSL://127.0.0.1:{other}"
    with TokenEndpoint(folder) as issuer:
        overrides = {
            "listeners": listeners,
            "advertised.listeners": listeners,
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(authority.identity("broker", "127.0.0.1")),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(authority.ca),
            "listener.name.ssl.ssl.client.auth": "required",
            "sasl.enabled.mechanisms": ",".join((*PASSWORDS, OAUTH)),
            "sasl.mechanism.inter.broker.protocol": PLAIN,
            "listener.name.sasl_ssl.plain.sasl.jaas.config": f"{PLAIN_MODULE} required {users};",
            "delegation.token.secret.key": TOKEN_SECRET,
            **issuer.settings(),
        }
        allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={issuer.url}"
        with (
            EmbeddedNode(security_protocol="SASL_SSL", port=port, overrides=overrides) as node,
            ToolJvm(allowed) as jvm,
        ):
            made = Place(node, f"127.0.0.1:{other}", authority, issuer, jvm)
            with Admin(librdkafka_settings(made, Login(PLAIN, "secret"))) as admin:
                admin.create_topics([NewTopic("t", 1, 1)])
            set_password(made, "secret")
            yield made


def set_password(place: Place, password: str) -> None:
    from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

    admin = AdminClient(librdkafka_settings(place, Login(PLAIN, "secret")))
    for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
        credential = ScramCredentialInfo(mechanism, 4096)
        changed = admin.alter_user_scram_credentials(
            [UserScramCredentialUpsertion("anna", credential, password.encode())]
        )
        for each in changed.values():
            each.result(30)


# --- clients: each writes a record, and returns what it reads at its offset ----------------------------------------


def librdkafka_settings(place: Place, login: Login) -> dict[str, Any]:
    """Also of our client."""
    found: dict[str, Any] = {"bootstrap.servers": place.address(login), "ssl.ca.location": str(place.authority.ca)}
    if login.kind == CERTIFICATE:
        return {
            **found,
            "security.protocol": "SSL",
            "ssl.certificate.location": login.secret,
            "ssl.key.location": login.secret,
        }
    found |= {"security.protocol": "SASL_SSL", "sasl.mechanism": login.mechanism}
    if login.kind == OAUTH:
        return {**found, "oauth_cb": lambda _: (login.secret, time.time() + 300)}
    return {**found, "sasl.username": login.user, "sasl.password": login.secret}


def by_librdkafka(place: Place, login: Login, value: bytes) -> bytes:
    errors: list[str] = []
    offsets: list[int] = []
    settings = librdkafka_settings(place, login)
    callbacks: dict[str, Any] = {"error_cb": lambda error: errors.append(error.name()), "log_level": 0}
    producer = confluent_kafka.Producer({**settings, **callbacks, "linger.ms": 0})
    producer.produce("t", value, on_delivery=lambda error, message: error or offsets.append(message.offset()))
    deadline = time.monotonic() + 60
    while not errors and not offsets:
        assert time.monotonic() < deadline, "neither an error nor an acknowledgement"
        producer.poll(0.1)
    producer.purge()
    if not offsets:
        raise PermissionError(errors)
    consumer = confluent_kafka.Consumer({**settings, "group.id": "librdkafka"})
    consumer.assign([confluent_kafka.TopicPartition("t", 0, offsets[0])])
    [message] = consumer.consume(1, 60)
    consumer.close()
    return bytes(message.value())


def by_kcat(place: Place, login: Login, value: bytes) -> bytes:
    settings = librdkafka_settings(place, login)
    if "oauth_cb" in settings:
        # It can only make unsigned tokens itself.
        settings = {**settings, "enable.sasl.oauthbearer.unsecure.jwt": "true"}
        settings["sasl.oauthbearer.config"] = f"principal={login.user}"
        del settings["oauth_cb"]
    options = [part for key, text in settings.items() for part in ("-X", f"{key}={text}")]

    def run(*arguments: str, given: bytes = b"") -> bytes:
        ended = subprocess.run(["kcat", *options, *arguments], input=given, capture_output=True, timeout=60)
        if ended.returncode:
            raise PermissionError(ended.stderr.decode())
        return ended.stdout

    run("-P", "-t", "t", "-p", "0", given=value)
    return run("-C", "-t", "t", "-p", "0", "-o", "-1", "-c", "1", "-q").rstrip(b"\n")


def by_java(place: Place, login: Login, value: bytes) -> bytes:
    properties: dict[str, str] = {
        "bootstrap.servers": place.address(login),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(place.authority.ca),
        "max.block.ms": "30000",
    }
    if login.kind == CERTIFICATE:
        properties |= {"security.protocol": "SSL", "ssl.keystore.type": "PEM", "ssl.keystore.location": login.secret}
    else:
        properties |= {"security.protocol": "SASL_SSL", "sasl.mechanism": login.mechanism}
        user = f'username="{login.user}" password="{login.secret}"'
        properties["sasl.jaas.config"] = {
            PLAIN: f"{PLAIN_MODULE} required {user};",
            TOKEN: f'{SCRAM_MODULE} required {user} tokenauth="true";',
            OAUTH: f'{OAUTH_MODULE} required clientId="anna" clientSecret="{login.secret}";',
        }.get(login.kind, f"{SCRAM_MODULE} required {user};")
        if login.kind == OAUTH:
            properties["sasl.oauthbearer.token.endpoint.url"] = place.issuer.url
            properties["sasl.login.callback.handler.class"] = (
                "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
            )
    return place.jvm.round_trip(properties, "t", value)


def python_settings(place: Place, login: Login, tokens: Any) -> dict[str, Any]:
    """Of kafka-python and aiokafka. `tokens`: the base class of the library."""
    context = ssl.create_default_context(cafile=str(place.authority.ca))
    found: dict[str, Any] = {"bootstrap_servers": place.address(login), "ssl_context": context}
    if login.kind == CERTIFICATE:
        context.load_cert_chain(login.secret)
        return {**found, "security_protocol": "SSL"}
    found |= {"security_protocol": "SASL_SSL", "sasl_mechanism": login.mechanism}
    if login.kind == OAUTH:
        return {**found, "sasl_oauth_token_provider": tokens}
    return {**found, "sasl_plain_username": login.user, "sasl_plain_password": login.secret}


def by_kafka_python(place: Place, login: Login, value: bytes) -> bytes:
    class Tokens(PythonTokens):
        def token(self) -> str:
            return login.secret

    settings = python_settings(place, login, Tokens())
    patience_ms = int(login.patience_s * 1_000)
    producer = kafka.KafkaProducer(**settings, bootstrap_timeout_ms=patience_ms, max_block_ms=patience_ms)
    try:
        offset = producer.send("t", value).get(login.patience_s).offset
    finally:
        producer.close(0)
    consumer = kafka.KafkaConsumer(**settings, consumer_timeout_ms=60_000)
    partition = kafka.TopicPartition("t", 0)
    consumer.assign([partition])
    consumer.seek(partition, offset)
    found = next(consumer).value
    consumer.close()
    return bytes(found)


def by_aiokafka(place: Place, login: Login, value: bytes) -> bytes:
    class Tokens(AioTokens):
        async def token(self) -> str:
            return login.secret

    async def run() -> bytes:
        settings = python_settings(place, login, Tokens())
        producer = AIOKafkaProducer(**settings)
        try:
            await producer.start()
            offset = (await producer.send_and_wait("t", value)).offset
        finally:
            await producer.stop()
        async with AIOKafkaConsumer(**settings) as consumer:
            partition = AioPartition("t", 0)
            consumer.assign([partition])
            consumer.seek(partition, offset)
            return bytes((await asyncio.wait_for(consumer.getone(), 60)).value)

    return asyncio.run(run())


def by_own_client(place: Place, login: Login, value: bytes) -> bytes:
    settings = librdkafka_settings(place, login)
    if login.kind == TOKEN:
        settings["sasl.tokenauth"] = True
    with Producer(settings) as producer:
        offset = producer.send("t", value).result(60).offset
    partition = TopicPartition("t", 0)
    with Consumer(settings) as consumer:
        consumer.assign([partition])
        consumer.seek(partition, offset)
        while True:
            for record in consumer.poll(60_000):
                return bytes(record.value or b"")


CLIENTS: Final[Mapping[str, tuple[Callable[[Place, Login, bytes], bytes], tuple[str, ...]]]] = MappingProxyType(
    {
        "librdkafka": (by_librdkafka, (*PASSWORDS, OAUTH, CERTIFICATE)),
        # The librdkafka of kcat is older than 2.6.1, which Kafka 4 and Fenceline refuse with SCRAM.
        "kcat": (by_kcat, (PLAIN, CERTIFICATE)),
        "java": (by_java, (*PASSWORDS, OAUTH, CERTIFICATE, TOKEN)),
        "kafka-python": (by_kafka_python, (*PASSWORDS, OAUTH, CERTIFICATE)),
        "aiokafka": (by_aiokafka, (*PASSWORDS, OAUTH, CERTIFICATE)),
        "own": (by_own_client, (*PASSWORDS, OAUTH, CERTIFICATE, TOKEN)),
    }
)
"""Each with the logins that it has."""
PAIRS: Final = [(client, kind) for client, (_, kinds) in CLIENTS.items() for kind in kinds]


@pytest.mark.parametrize(("client", "kind"), PAIRS)
def test_right_and_wrong_secrets(place: Place, client: str, kind: str, tmp_path: Path) -> None:
    use, _ = CLIENTS[client]
    value = f"{client} {kind} {time.time()}".encode()
    asks_the_issuer = (client, kind) == ("java", OAUTH)
    right = Login(OAUTH, "secret") if asks_the_issuer else place.right(kind)
    assert use(place, right, value) == value
    for login in [Login(OAUTH, "wrong")] if asks_the_issuer else place.wrong(kind, tmp_path):
        with pytest.raises(Exception) as error:
            use(place, login._replace(patience_s=3), value)
        assert not isinstance(error.value, AssertionError)


def test_unsigned_tokens_are_refused(place: Place) -> None:
    """Those that kcat makes: Kafka takes them unless it has keys (A28)."""
    with pytest.raises(PermissionError, match="uthentication"):
        by_kcat(place, Login(OAUTH, ""), b"x")


@pytest.mark.parametrize("client", [name for name, (_, kinds) in CLIENTS.items() if SCRAM_512 in kinds])
def test_changed_passwords(place: Place, client: str) -> None:
    use, _ = CLIENTS[client]
    set_password(place, "another")
    try:
        with pytest.raises(Exception):  # noqa: B017 - each client has its own
            use(place, Login(SCRAM_512, "secret", patience_s=3), b"old")
        assert use(place, Login(SCRAM_512, "another"), b"new") == b"new"
    finally:
        set_password(place, "secret")


def test_rotated_keys_of_tokens(place: Place) -> None:
    """Tokens of a new key are let in once the issuer publishes it; those of a withdrawn key are not."""
    old = place.issuer.token()
    place.issuer.rotate()

    def is_let_in(token: str) -> bool:
        try:
            return by_own_client(place, Login(OAUTH, token), b"new") == b"new"
        except PeerError:
            return False

    eventually(lambda: is_let_in(place.issuer.token()), "the node reads the new key", wait_s=60)
    assert not is_let_in(old)
