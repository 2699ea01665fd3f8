"""Weaknesses of Kafka that only a whole node shows: what it logs, and what its administrators can change.

`test_known_weaknesses.py` lists all. Rules: security.md A11, A22, A64, A68.
"""

from __future__ import annotations

import base64
import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet

from fenceline.sasl.delegation_tokens import token_hmac, token_password
from fenceline.sasl.oauthbearer import BearerToken, oauth_exchange
from fenceline.sasl.scram import DIGESTS, NUMBERS, ClientExchange, credential_of, salted_password
from fenceline.testing.node import EmbeddedNode
from fenceline.wire.apis import ApiKey
from tests.support.raw import RawConnection

ADMIN_PASSWORD, PLAIN_PASSWORD, SCRAM_PASSWORD = "of-the-adminQ7", "of-anna-plainQ7", "of-anna-scramQ7"
TOKEN_SECRET = "of-all-tokensQ7"
MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
KEY = ECKey.generate_key("P-256", {"kid": "first"})


def jaas(**users: str) -> str:
    options = " ".join(f'user_{name}="{password}"' for name, password in users.items())
    return f'{MODULE} required username="admin" password="{ADMIN_PASSWORD}" {options};'


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedNode]:
    keys = tmp_path_factory.mktemp("keys") / "keys.json"
    keys.write_text(json.dumps(KeySet([KEY]).as_dict(private=False)))
    overrides = {
        "sasl.enabled.mechanisms": ",".join(("PLAIN", *DIGESTS, "OAUTHBEARER")),
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": jaas(admin=ADMIN_PASSWORD, anna=PLAIN_PASSWORD),
        "listener.name.sasl_plaintext.sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:admin",
        "delegation.token.secret.key": TOKEN_SECRET,
        "config.providers": "env",
        "config.providers.env.class": "org.apache.kafka.common.config.provider.EnvVarConfigProvider",
    }
    with EmbeddedNode(security_protocol="SASL_PLAINTEXT", overrides=overrides, log_level="debug") as started:
        yield started


def log_in(node: EmbeddedNode, mechanism: str, *messages: bytes | Any) -> tuple[RawConnection, int]:
    """The messages are bytes, or made of the answer to the one before. The connection, and the last error code."""
    connection = RawConnection(node.port)
    assert connection.call(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": mechanism}).error_code == 0
    answer: Any = None
    for message in messages:
        sent = message if isinstance(message, bytes) else message(answer.auth_bytes)
        answer = connection.call(ApiKey.SASL_AUTHENTICATE, 2, {"auth_bytes": sent})
        if answer.error_code:
            break
    return connection, int(answer.error_code)


def plain(node: EmbeddedNode, user: str, password: str) -> tuple[RawConnection, int]:
    return log_in(node, "PLAIN", f"\0{user}\0{password}".encode())


def scram(node: EmbeddedNode, mechanism: str, user: str, password: str, **extensions: str) -> int:
    exchange = ClientExchange(mechanism, user, password, "nonce", extensions)
    connection, code = log_in(node, mechanism, exchange.first(), exchange.answer)
    with connection:
        return code


@pytest.fixture
def admin(node: EmbeddedNode) -> Iterator[RawConnection]:
    connection, code = plain(node, "admin", ADMIN_PASSWORD)
    assert code == 0
    with connection:
        yield connection


def upsert(admin: RawConnection, mechanism: str) -> bytes:
    """Set the password of anna; returns the salted one, which crosses the wire (A25)."""
    salted = salted_password(mechanism, SCRAM_PASSWORD, b"salt" * 6, 4096)
    change = {
        "name": "anna",
        "mechanism": NUMBERS[mechanism],
        "iterations": 4096,
        "salt": b"salt" * 6,
        "salted_password": salted,
    }
    answer = admin.call(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, {"deletions": [], "upsertions": [change]})
    assert [each.error_code for each in answer.results] == [0]
    return salted


def forms(secret: bytes) -> set[str]:
    """In which a log could show it."""
    text = secret.decode("latin-1")
    return {text, repr(secret)[2:-1], secret.hex(), base64.b64encode(secret).decode(), json.dumps(text)[1:-1]}


def test_no_secret_is_logged_at_debug(node: EmbeddedNode, admin: RawConnection) -> None:
    """CVE-2026-33558: requests with secrets were logged at DEBUG. Logins with each mechanism, right and wrong, and
    requests that carry secrets."""
    secrets = [each.encode() for each in (ADMIN_PASSWORD, PLAIN_PASSWORD, SCRAM_PASSWORD, TOKEN_SECRET)]
    secrets += [b"wrong-oneQ7", b"of-a-configQ7"]
    for user, password in (("anna", PLAIN_PASSWORD), ("anna", "wrong-oneQ7"), ("nobody", "wrong-oneQ7")):
        connection, code = plain(node, user, password)
        connection.__exit__(None, None, None)
        assert bool(code) is (password != PLAIN_PASSWORD)
    for mechanism in DIGESTS:
        secrets.append(upsert(admin, mechanism))
        assert scram(node, mechanism, "anna", SCRAM_PASSWORD) == 0
        assert scram(node, mechanism, "anna", "wrong-oneQ7") == 58
        secrets += stored_keys(mechanism)
    made = admin.call(ApiKey.CREATE_DELEGATION_TOKEN, 3, {"max_lifetime": -1})
    assert made.error_code == 0
    assert bytes(made.hmac) == token_hmac(TOKEN_SECRET.encode(), made.token_id)
    password = token_password(bytes(made.hmac))
    secrets += [bytes(made.hmac), password.encode()]
    assert scram(node, "SCRAM-SHA-512", made.token_id, password, tokenauth="true") == 0
    admin.call(ApiKey.RENEW_DELEGATION_TOKEN, 2, {"hmac": made.hmac, "renew_period": -1})
    admin.call(ApiKey.EXPIRE_DELEGATION_TOKEN, 2, {"hmac": made.hmac, "expiry_time_period": -1})
    for claims, expected in (({}, 0), ({"exp": 5}, 58)):
        now_s = int(time.time())
        token = jwt.encode(
            {"alg": "ES256", "kid": "first"}, {"sub": "anna", "iat": 5, "exp": now_s + 900, **claims}, KEY
        )
        secrets += [token.encode(), token.rpartition(".")[2].encode()]
        first = next(oauth_exchange(BearerToken(token, now_s + 900)))
        connection, code = log_in(node, "OAUTHBEARER", first, *([b"\x01"] if expected else []))
        connection.__exit__(None, None, None)
        assert code == expected
    alter(admin, "1", "listener.name.other.ssl.key.password", "of-a-configQ7")
    alter(admin, "1", "fenceline.unknown.password", "of-a-configQ7")
    admin.call(ApiKey.DESCRIBE_CONFIGS, 4, {"resources": [{"resource_type": 4, "resource_name": "1"}]})
    assert '"level": "debug"' in node.errors
    for secret in secrets:
        for form in forms(secret):
            assert form not in node.errors, f"{form} is in the log"


def stored_keys(mechanism: str) -> list[bytes]:
    """Of anna."""
    salted = salted_password(mechanism, SCRAM_PASSWORD, b"salt" * 6, 4096)
    found = credential_of(mechanism, salted, b"salt" * 6, 4096)
    return [found.stored_key, found.server_key]


def alter(admin: RawConnection, broker: str, name: str, value: str) -> int:
    """Set a config of a broker; returns the error code."""
    change = {"name": name, "config_operation": 0, "value": value}
    resource = {"resource_type": 4, "resource_name": broker, "configs": [change]}
    answer = admin.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [resource], "validate_only": False})
    return int(answer.responses[0].error_code)


@pytest.mark.parametrize(
    "text",
    [
        'com.sun.security.auth.module.JndiLoginModule required user.provider.url="ldap://evil";',
        'com.sun.security.auth.module.LdapLoginModule required userProvider="ldap://evil";',
        jaas(admin=ADMIN_PASSWORD, eve="of-eve"),
    ],
)
def test_login_modules_are_not_changed_by_configs(node: EmbeddedNode, admin: RawConnection, text: str) -> None:
    """CVE-2025-27818, CVE-2025-27819: AlterConfigs made a broker load a login module, which connected where it was told
    to. Here a change is refused or stored, and takes no effect."""
    for name in (
        "sasl.jaas.config",
        "listener.name.sasl_plaintext.sasl.jaas.config",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config",
        "listener.name.sasl_plaintext.scram-sha-512.sasl.jaas.config",
    ):
        assert alter(admin, "1", name, text) in (0, 42)
    for user, password, is_known in (("eve", "of-eve", False), ("anna", PLAIN_PASSWORD, True)):
        connection, code = plain(node, user, password)
        connection.__exit__(None, None, None)
        assert (code == 0) is is_known


def test_files_are_not_read_by_configs(node: EmbeddedNode, admin: RawConnection, tmp_path: Path) -> None:
    """CVE-2025-27817: a URL or a file in a config was read for whoever set it. Keys of tokens do not change."""
    forged = ECKey.generate_key("P-256", {"kid": "forged"})
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps(KeySet([forged]).as_dict(private=False)))
    prefix = "listener.name.sasl_plaintext."
    for name in (
        *("sasl.oauthbearer.jwks.endpoint.url", prefix + "sasl.oauthbearer.jwks.endpoint.url"),
        *("sasl.oauthbearer.token.endpoint.url", prefix + "oauthbearer.sasl.oauthbearer.jwks.endpoint.url"),
    ):
        assert alter(admin, "1", name, keys.as_uri()) in (0, 42)
    now_s = int(time.time())
    token = jwt.encode({"alg": "ES256", "kid": "forged"}, {"sub": "admin", "iat": now_s, "exp": now_s + 900}, forged)
    connection, code = log_in(node, "OAUTHBEARER", next(oauth_exchange(BearerToken(token, now_s + 900))), b"\x01")
    connection.__exit__(None, None, None)
    assert code == 58


def test_config_providers_are_not_for_values_of_requests(node: EmbeddedNode, admin: RawConnection) -> None:
    """CVE-2019-12399, CVE-2024-31141: a variable in a config that is set over the network is text, although this node
    has the provider."""
    variable = "${env:PATH}"
    assert alter(admin, "1", "config.providers", "file") in (0, 42)
    assert alter(admin, "1", "log.cleaner.threads", variable) == 42
    assert alter(admin, "1", "metric.reporters", variable) == 0
    [found] = admin.call(
        ApiKey.DESCRIBE_CONFIGS, 4, {"resources": [{"resource_type": 4, "resource_name": "1"}]}
    ).results
    assert {each.name: each.value for each in found.configs}["metric.reporters"] == variable
    assert os.environ["PATH"] not in node.errors


def test_secrets_are_not_described(node: EmbeddedNode, admin: RawConnection) -> None:
    """CVE-2019-12399: values that are secret, or of a key that is not known, are answered as null."""
    alter(admin, "1", "fenceline.unknown.password", "of-a-configQ7")
    answer = admin.call(ApiKey.DESCRIBE_CONFIGS, 4, {"resources": [{"resource_type": 4, "resource_name": "1"}]})
    [found] = answer.results
    values = {each.name: each.value for each in found.configs}
    assert values["fenceline.unknown.password"] is None
    for name, value in values.items():
        assert value is None or not re.search("Q7|of-eve", value), name


def test_a_user_without_rights_changes_and_reads_no_configs(node: EmbeddedNode) -> None:
    """CVE-2023-25194: who may alter configs is asked before what they say."""
    connection, code = plain(node, "anna", PLAIN_PASSWORD)
    assert code == 0
    with connection:
        assert alter(connection, "1", "listener.name.sasl_plaintext.plain.sasl.jaas.config", "x") == 31
        assert alter(connection, "1", "fenceline.unknown.password", "x") == 31


def test_stored_login_modules_have_no_effect_after_a_restart(node: EmbeddedNode, admin: RawConnection) -> None:
    """CVE-2025-27818: as before, when the node reads its configs again."""
    alter(admin, "1", "sasl.jaas.config", jaas(admin=ADMIN_PASSWORD, eve="of-eve"))
    assert node.stop() == 0
    node.start()
    for user, password, is_known in (("eve", "of-eve", False), ("anna", PLAIN_PASSWORD, True)):
        connection, code = plain(node, user, password)
        connection.__exit__(None, None, None)
        assert (code == 0) is is_known
