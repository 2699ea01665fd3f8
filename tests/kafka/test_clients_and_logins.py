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
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import confluent_kafka
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioPartition
from aiokafka.abc import AbstractTokenProvider as AioTokens
from kafka.net.sasl.oauth import AbstractTokenProvider as PythonTokens

import kafka
from fenceline.client import Consumer, Producer, TopicPartition
from fenceline.errors import PeerError
from fenceline.testing.waiting import eventually
from tests.conftest import need_apache_kafka
from tests.kafka.tool_jvm import ToolJvm
from tests.support.logins import (
    CERTIFICATE,
    OAUTH,
    PASSWORDS,
    PLAIN,
    SCRAM_512,
    TOKEN,
    Login,
    Place,
    java_settings,
    librdkafka_settings,
    place_of_logins,
    set_password,
)

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]


@dataclass(frozen=True)
class PlaceWithJvm(Place):
    jvm: ToolJvm


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlaceWithJvm]:
    need_apache_kafka()
    with (
        place_of_logins(tmp_path_factory.mktemp("clients")) as made,
        ToolJvm(f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={made.issuer.url}") as jvm,
    ):
        yield PlaceWithJvm(**vars(made), jvm=jvm)


# --- clients: each writes a record, and returns what it reads at its offset ----------------------------------------


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


def by_java(place: PlaceWithJvm, login: Login, value: bytes) -> bytes:
    return place.jvm.round_trip(java_settings(place, login), "t", value)


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


CLIENTS: Final[Mapping[str, tuple[Callable[[PlaceWithJvm, Login, bytes], bytes], tuple[str, ...]]]] = MappingProxyType(
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
def test_right_and_wrong_secrets(place: PlaceWithJvm, client: str, kind: str, tmp_path: Path) -> None:
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
def test_changed_passwords(place: PlaceWithJvm, client: str) -> None:
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
