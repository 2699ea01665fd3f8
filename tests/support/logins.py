"""A node with every login that Fenceline has, over TLS, and the settings with which clients use them.

Owns the node's users: `broker` and `anna`, each by password, and anna by token and by certificate too.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

from fenceline.client import Admin, NewTopic
from fenceline.sasl.delegation_tokens import token_password
from fenceline.sasl.jaas import OAUTH_MODULE, PLAIN_MODULE, SCRAM_MODULE
from fenceline.testing.apache_kafka import free_port
from fenceline.testing.node import EmbeddedNode
from tests.support.certificates import TestAuthority
from tests.support.password_node import TOKEN_SECRET
from tests.support.token_endpoint import TokenEndpoint

SCRAM_256, SCRAM_512 = "SCRAM-SHA-256", "SCRAM-SHA-512"
PLAIN, OAUTH, CERTIFICATE, TOKEN = "PLAIN", "OAUTHBEARER", "certificate", "delegation token"
PASSWORDS: Final = (PLAIN, SCRAM_256, SCRAM_512)
_DAY: Final = timedelta(days=1)


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


@dataclass(frozen=True)
class Place:
    """Has the topic `t` with one partition."""

    node: EmbeddedNode
    with_certificates: str
    authority: TestAuthority
    issuer: TokenEndpoint

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
            yield Login(kind, str(self.authority.identity("anna", file="expired", until=datetime.now(UTC) - _DAY)))
        elif kind == TOKEN:
            right = self.right(kind)
            yield right._replace(secret=right.secret[:-6] + "AAAAA=")
            with Admin(librdkafka_settings(self, Login(PLAIN, "secret"))) as admin:
                admin.expire_delegation_token(right.secret)
            yield right
        else:
            yield Login(kind, "wrong")
            yield Login(kind, "wrong", "nobody")


@contextmanager
def place_of_logins(folder: Path) -> Iterator[Place]:
    """Its files are in `folder`, with the certificates."""
    authority = TestAuthority(folder)
    users = 'username="broker" password="of the broker" user_broker="of the broker" user_anna="secret"'
    port, other = free_port(), free_port()
    listeners = f"SASL_SSL://127.0.0.1:{port},SSL://127.0.0.1:{other}"
    with TokenEndpoint(folder) as issuer:
        overrides = {
            "listeners": listeners,
            "advertised.listeners": listeners,
            **authority.broker_settings(),
            "listener.name.ssl.ssl.client.auth": "required",
            "sasl.enabled.mechanisms": ",".join((*PASSWORDS, OAUTH)),
            "sasl.mechanism.inter.broker.protocol": PLAIN,
            "listener.name.sasl_ssl.plain.sasl.jaas.config": f"{PLAIN_MODULE} required {users};",
            "delegation.token.secret.key": TOKEN_SECRET,
            **issuer.settings(),
        }
        with EmbeddedNode(security_protocol="SASL_SSL", port=port, overrides=overrides) as node:
            place = Place(node, f"127.0.0.1:{other}", authority, issuer)
            with Admin(librdkafka_settings(place, Login(PLAIN, "secret"))) as admin:
                admin.create_topics([NewTopic("t", 1, 1)])
            set_password(place, "secret")
            yield place


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


def java_settings(place: Place, login: Login) -> dict[str, str]:
    """Also of Spark's connectors, behind `kafka.`."""
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
    return properties
