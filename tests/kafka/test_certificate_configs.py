"""Certificates that are exchanged by `kafka-configs`: on a node of Apache Kafka and on one of Fenceline, and on a
cluster of three Fenceline nodes.

Rules: security.md A9 to A11.
"""

from __future__ import annotations

import re
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from fenceline.client import TopicPartition
from fenceline.testing.apache_kafka import free_port
from fenceline.testing.mixed_cluster import COMBINED, LISTENER, MixedCluster, MixedNode
from fenceline.testing.waiting import eventually
from tests.conftest import need_apache_kafka
from tests.kafka.tool_jvm import Told, ToolJvm
from tests.scheduling import CLUSTERS
from tests.support.certificates import TestAuthority
from tests.support.client_threads import ClientThread
from tests.support.kafka_start import quick_environment
from tests.support.read_to_end import read_to_end

pytestmark = [pytest.mark.kafka, pytest.mark.together(CLUSTERS), pytest.mark.timeout(600)]

LOGIN: Final = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'username="broker" password="between" user_broker="between";'
)
INTERNAL, CLIENT = "listener.name.internal.", "listener.name.client."
KEYSTORE, TRUSTSTORE = "ssl.keystore.location", "ssl.truststore.location"


def secure(cluster: MixedCluster, authority: TestAuthority) -> None:
    """Clients connect in plaintext, by TLS, or by SASL; brokers with each other by mutual TLS."""
    protocols = f"PLAINTEXT:PLAINTEXT,INTERNAL:SSL,CLIENT:SSL,LOGIN:SASL_PLAINTEXT,{LISTENER}:PLAINTEXT"
    cluster.settings |= {
        "listener.security.protocol.map": protocols,
        "inter.broker.listener.name": "INTERNAL",
        "ssl.keystore.type": "PEM",
        "ssl.truststore.type": "PEM",
        TRUSTSTORE: str(authority.ca),
        "ssl.client.auth": "required",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.login.plain.sasl.jaas.config": LOGIN,
    }
    for node in cluster.nodes:
        ports = [free_port() for _ in range(3)]
        names = ("INTERNAL", "CLIENT", "LOGIN")
        own = f"PLAINTEXT://{node.bootstrap}," + ",".join(
            f"{name}://127.0.0.1:{port}" for name, port in zip(names, ports, strict=True)
        )
        node.settings = {
            "listeners": f"{own},{LISTENER}://{node.controller}",
            "advertised.listeners": own,
            KEYSTORE: str(authority.identity(f"node-{node.node_id}", "127.0.0.1")),
        }


def address(node: MixedNode, listener: str) -> tuple[str, int]:
    found = re.search(rf"{listener}://([^:]+):(\d+)", node.settings["listeners"])
    assert found is not None
    return found[1], int(found[2])


def shown_certificate(node: MixedNode, listener: str) -> bytes:
    return ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate(address(node, listener), timeout=30))


def first_certificate(identity: Path) -> bytes:
    text = identity.read_text()
    begin = text.index("-----BEGIN CERTIFICATE")
    return ssl.PEM_cert_to_DER_cert(text[begin : text.index("-----END CERTIFICATE-----", begin) + 25])


# --- the same commands on a node of each kind -------------------------------------------------------------------------


class Side(NamedTuple):
    cluster: MixedCluster
    jvm: ToolJvm

    def run(self, *arguments: str) -> Told:
        server = ("--bootstrap-server", self.cluster.nodes[0].bootstrap, "--entity-type", "brokers")
        return self.jvm.run("configs", *server, *arguments)

    def alter(self, key: str, value: str | None, *entity: str) -> tuple[int, list[str]]:
        """The exit code, and the errors."""
        change = ("--delete-config", key) if value is None else ("--add-config", f"{key}={value}")
        told = self.run("--alter", *change, *(entity or ("--entity-name", "1")))
        return told.code, re.findall(r"^Caused by: (\S+):", told.printed, re.MULTILINE)[:1]

    def described(self) -> list[str]:
        lines = self.run("--describe", "--entity-name", "1").printed.splitlines()
        return sorted(line.strip() for line in lines if "listener.name" in line)


class Files(NamedTuple):
    first: TestAuthority
    other: TestAuthority
    root: Path

    def __getitem__(self, name: str) -> str:  # type: ignore[override]
        return str(self.root / name)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    root = tmp_path_factory.mktemp("stores")
    (root / "other").mkdir()
    found = Files(TestAuthority(root), TestAuthority(root / "other"), root)
    for name, common_name, host in (
        ("same", "node-1", "127.0.0.1"),
        ("named", "other", "127.0.0.1"),
        ("moved", "node-1", "moved.test"),
    ):
        found.first.identity(common_name, host, file=name)
    found.other.identity("node-1", "127.0.0.1")
    (root / "damaged.pem").write_text("no certificate")
    return found


@pytest.fixture(scope="module")
def sides(files: Files, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Side, Side]]:
    """A node of Kafka, one of Fenceline."""
    need_apache_kafka()
    with ExitStack() as stack:

        def start(prefix: str) -> Side:
            root = tmp_path_factory.mktemp("node")
            cluster = MixedCluster(root, [prefix + COMBINED])
            secure(cluster, files.first)
            jvm = stack.enter_context(ToolJvm())
            stack.enter_context(cluster)
            cluster.wait_ready()
            cluster.wait_complete()
            return Side(cluster, jvm)

        with ThreadPoolExecutor(2) as threads:
            theirs, ours = threads.map(start, ("kafka:", ""))
        yield theirs, ours


STEPS: Final = [
    (prefix + key, value)
    for prefix in (INTERNAL, CLIENT)
    for key, value in (
        (KEYSTORE, "same.pem"),
        (KEYSTORE, "named.pem"),
        (KEYSTORE, "moved.pem"),
        (KEYSTORE, "damaged.pem"),
        (KEYSTORE, "nowhere.pem"),
        (KEYSTORE, ""),
        (KEYSTORE, "other/node-1.pem"),
        (TRUSTSTORE, "other/ca.pem"),
        (TRUSTSTORE, "damaged.pem"),
        (TRUSTSTORE, ""),
        ("ssl.keystore.type", "=JKS"),
        ("ssl.truststore.type", "=FOO"),
        ("ssl.keystore.password", "=hush"),
        ("ssl.client.auth", "=maybe"),
        (KEYSTORE, None),
    )
]
OTHERS: Final = [
    (KEYSTORE, "same.pem"),
    ("listener.name.login." + KEYSTORE, "nowhere.pem"),
    ("listener.name.unknown." + KEYSTORE, "nowhere.pem"),
    ("listener.name.INTERNAL." + KEYSTORE, "nowhere.pem"),
    ("listener.name.controller." + KEYSTORE, "nowhere.pem"),
    ("listener.name.login.max.connections", "=7"),
    (INTERNAL + "who.knows", "=7"),
]


def test_same_commands_have_the_same_outcome(sides: tuple[Side, Side], files: Files) -> None:
    outcomes: dict[str, list[tuple[int, list[str]]]] = {}
    for key, name in STEPS + OTHERS:
        value = name if not name or name.startswith("=") else files[name]
        outcomes[f"{key} {name}"] = [each.alter(key, value and value.removeprefix("=")) for each in sides]
    for key, name in (
        (INTERNAL + KEYSTORE, "same.pem"),
        (KEYSTORE, "same.pem"),
        (INTERNAL + "ssl.client.auth", "none"),
    ):
        outcomes[f"{key} of all"] = [each.alter(key, files[name], "--entity-default") for each in sides]
    assert [name for name, (theirs, ours) in outcomes.items() if theirs != ours] == []
    assert {outcome[0][0] for outcome in outcomes.values()} == {0, 1}
    theirs, ours = (each.described() for each in sides)
    assert theirs == ours
    assert len(theirs) > 3
    assert all("hush" not in node.output for node in sides[1].cluster.nodes)


def test_other_configs_of_a_listener_are_refused(sides: tuple[Side, Side]) -> None:
    """Kafka 4.3.1 stores them, without effect on the running listener."""
    theirs, ours = (each.alter(INTERNAL + "ssl.enabled.protocols", "TLSv1.2") for each in sides)
    assert theirs == (0, [])
    assert ours == (1, ["org.apache.kafka.common.errors.InvalidRequestException"])


# --- all certificates of a running cluster ----------------------------------------------------------------------------


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[MixedCluster, TestAuthority, TestAuthority]]:
    need_apache_kafka()
    for name in ("scratch", "old", "new"):
        (tmp_path / name).mkdir()
    old, new = TestAuthority(tmp_path / "old"), TestAuthority(tmp_path / "new")
    made = MixedCluster(tmp_path / "cluster", [COMBINED] * 3, environment=quick_environment(tmp_path / "scratch"))
    secure(made, old)
    with made:
        made.wait_ready()
        made.wait_complete()
        yield made, old, new


class Sending(ClientThread):
    """A client of librdkafka that sends records until `ends` is set."""

    def __init__(self, bootstrap: str, trusted: Path, identity: Path) -> None:
        super().__init__(bootstrap)
        self.settings: dict[str, str | int | float | bool | None] = {
            "bootstrap.servers": bootstrap,
            "security.protocol": "SSL",
            "ssl.ca.location": str(trusted),
            "ssl.certificate.location": str(identity),
            "ssl.key.location": str(identity),
            "acks": "all",
            "connections.max.idle.ms": 2000,
        }
        self.sent = 0
        self.failures: list[str] = []
        self.ends = threading.Event()

    def _live(self) -> None:
        producer = confluent_kafka.Producer(self.settings)
        while not self.ends.is_set():
            producer.produce("t", str(self.sent).encode(), partition=self.sent % 3, on_delivery=self._delivered)
            self.sent += 1
            producer.poll(0.01)
        assert producer.flush(60) == 0

    def _delivered(self, error: object, _: object) -> None:
        if error is not None:
            self.failures.append(str(error))


def test_authority_of_a_cluster_is_exchanged_while_a_client_produces(
    cluster: tuple[MixedCluster, TestAuthority, TestAuthority], tmp_path: Path
) -> None:
    made, old, new = cluster
    both = tmp_path / "both.pem"
    both.write_bytes(old.ca.read_bytes() + new.ca.read_bytes())
    admin = AdminClient({"bootstrap.servers": made.nodes[0].bootstrap})
    topic = NewTopic("t", 3, 3, config={"min.insync.replicas": "3"})
    admin.create_topics([topic])["t"].result(30)
    fresh = {node.node_id: new.identity(f"node-{node.node_id}", "127.0.0.1") for node in made.nodes}
    host, port = address(made.nodes[0], "CLIENT")
    sending = Sending(f"{host}:{port}", both, old.identity("client"))
    sending.start()
    with ToolJvm() as jvm:

        def alter(key: str, value: str, *, code: int = 0, only: str = "") -> None:
            for node in made.nodes:
                store = value or str(fresh[node.node_id])
                change = ",".join(f"{prefix}{key}={store}" for prefix in ((only,) if only else (INTERNAL, CLIENT)))
                entity = ("--entity-type", "brokers", "--entity-name", str(node.node_id))
                told = jvm.run(
                    "configs", "--bootstrap-server", node.bootstrap, *entity, "--alter", "--add-config", change
                )
                assert told.code == code, told.printed

        alter(KEYSTORE, "", code=1)  # no node trusts the new authority yet
        alter(TRUSTSTORE, str(both))
        alter(KEYSTORE, "")
        for node in made.nodes:
            for listener in ("INTERNAL", "CLIENT"):
                eventually(
                    lambda node=node, listener=listener: (  # type: ignore[misc]
                        shown_certificate(node, listener) == first_certificate(fresh[node.node_id])
                    ),
                    f"{listener} of node {node.node_id} shows its new certificate",
                )
        alter(TRUSTSTORE, str(new.ca), only=INTERNAL)
        # A node that starts has the old certificates in its file, which no other node trusts.
        for node in made.nodes[1:]:
            node.stop()
            node.start()
            node.wait_ready()
            assert shown_certificate(node, "CLIENT") == first_certificate(fresh[node.node_id])
            made.wait_complete()
        seen = sending.sent
        eventually(lambda: sending.sent > seen + 100, "records were sent by all certificates")
    sending.ends.set()
    sending.end(90)
    assert sending.failures == []
    found = read_to_end(made.nodes[0].bootstrap, [TopicPartition("t", index) for index in range(3)])
    assert sorted({int(record.value or b"") for record in found}) == list(range(sending.sent))
    assert all("certificates not exchanged" not in node.output for node in made.nodes)
    assert all("PRIVATE" not in node.output for node in made.nodes)
