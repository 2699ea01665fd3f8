"""Our client at an Apache Kafka broker that limits sessions: OAUTHBEARER by client credentials, and PLAIN. A
connection outlives many sessions.

Rules: security.md A20, A21, A27, A29, A70.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fenceline.client import Admin
from fenceline.client.core.config import ClientConfig
from fenceline.client.core.connection import open_connection
from fenceline.client.core.login import ClientLogin
from fenceline.errors import ErrorCode, PeerError
from fenceline.sasl.jaas import OAUTH_MODULE, PLAIN_MODULE
from fenceline.testing.apache_kafka import free_port
from fenceline.testing.mixed_cluster import COMBINED, LISTENER, MixedCluster
from fenceline.wire.apis import ApiKey
from tests.conftest import need_apache_kafka
from tests.scheduling import CLUSTERS
from tests.support.kafka_start import quick_environment
from tests.support.password_node import password_client
from tests.support.token_endpoint import TokenEndpoint

pytestmark = [pytest.mark.kafka, pytest.mark.together(CLUSTERS), pytest.mark.timeout(300)]
VALIDATOR = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"


class Place(NamedTuple):
    bootstrap: str
    endpoint: TokenEndpoint

    def settings(self, mechanism: str, **more: str) -> dict[str, Any]:
        found: dict[str, Any] = {**password_client(self.bootstrap, "anna", "secret"), "sasl.mechanism": mechanism}
        if mechanism == "OAUTHBEARER":
            found |= {
                "sasl.oauthbearer.token.endpoint.url": self.endpoint.url,
                "sasl.oauthbearer.client.id": "anna",
                "sasl.oauthbearer.client.secret": "secret",
            }
        return {**found, **more}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    need_apache_kafka()
    folder: Path = tmp_path_factory.mktemp("sessions")
    (folder / "scratch").mkdir()
    with TokenEndpoint(folder) as endpoint:
        environment = quick_environment(folder / "scratch")
        allowed = f" -Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={endpoint.keys.as_uri()}"
        environment["JDK_JAVA_OPTIONS"] += allowed
        users = 'username="broker" password="of the broker" user_broker="of the broker" user_anna="secret"'
        cluster = MixedCluster(
            folder / "cluster",
            [f"kafka:{COMBINED}"],
            settings={
                "listener.security.protocol.map": f"PLAINTEXT:PLAINTEXT,SASL:SASL_PLAINTEXT,{LISTENER}:PLAINTEXT",
                "inter.broker.listener.name": "PLAINTEXT",
                "sasl.enabled.mechanisms": "PLAIN,OAUTHBEARER",
                "listener.name.sasl.plain.sasl.jaas.config": f"{PLAIN_MODULE} required {users};",
                "listener.name.sasl.oauthbearer.sasl.jaas.config": f"{OAUTH_MODULE} required;",
                "listener.name.sasl.oauthbearer.sasl.server.callback.handler.class": VALIDATOR,
                "connections.max.reauth.ms": "4000",
                **endpoint.settings(),
            },
            environment=environment,
        )
        [node] = cluster.nodes
        own = f"PLAINTEXT://{node.bootstrap},SASL://127.0.0.1:{(port := free_port())}"
        node.settings = {"listeners": f"{own},{LISTENER}://{node.controller}", "advertised.listeners": own}
        with cluster:
            cluster.wait_ready()
            yield Place(f"127.0.0.1:{port}", endpoint)


def test_client_credentials(place: Place) -> None:
    with Admin(place.settings("OAUTHBEARER")) as admin:
        assert admin.describe_cluster().brokers
    wrong = place.settings("OAUTHBEARER", **{"sasl.oauthbearer.client.secret": "wrong"})
    with Admin(wrong) as admin, pytest.raises(PeerError, match="invalid_client") as error:
        admin.describe_cluster()
    assert error.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED


@pytest.mark.parametrize("mechanism", ["PLAIN", "OAUTHBEARER"])
def test_a_connection_outlives_its_sessions(place: Place, mechanism: str, monkeypatch: pytest.MonkeyPatch) -> None:
    logins = 0
    exchange = ClientLogin.exchange

    async def counted(login: ClientLogin) -> Any:
        nonlocal logins
        logins += 1
        return await exchange(login)

    monkeypatch.setattr(ClientLogin, "exchange", counted)

    async def play() -> None:
        config = ClientConfig.parse("admin", place.settings(mechanism), {})
        [(host, port)] = config.bootstrap
        connection = await open_connection(host, port, config, None)
        while logins < 4:
            answers = [connection.call(ApiKey.METADATA, 12, {"topics": []}, timeout_ms=30_000) for _ in range(5)]
            assert all(answer.brokers for answer in await asyncio.gather(*answers))
        assert connection.is_open
        connection.close()

    asyncio.run(play())
