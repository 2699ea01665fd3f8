"""SCRAM credentials that Kafka's own tool sets, changes and removes, as clients see them.

Rules: security.md A24, A25, A37, A38.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient

from fenceline.client import Admin, NewTopic
from fenceline.errors import ErrorCode, PeerError
from fenceline.testing.apache_kafka import run_tool
from fenceline.testing.node import EmbeddedNode
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
        **authority.broker_settings(),
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
