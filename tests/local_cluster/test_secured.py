"""A local cluster with TLS and users: `fenceline cluster up --secure`."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from confluent_kafka.admin import NewTopic as ConfluentTopic

from fenceline.client import Admin, NewTopic, Producer, TopicPartition
from fenceline.client.reader.reader import RangeReader
from fenceline.config.properties import read_properties
from fenceline.errors import ErrorCode, OperatorError, PeerError
from fenceline.local_cluster import LocalCluster
from fenceline.local_cluster.secured import create
from fenceline.testing.apache_kafka import run_tool
from fenceline.testing.waiting import eventually
from tests.conftest import need_apache_kafka


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def settings(folder: Path) -> dict[str, str]:
    """Of the clients of a running cluster, from its file."""
    return read_properties(folder / "security" / "librdkafka.properties")


@pytest.fixture(scope="module", autouse=True)
def cluster(folder: Path) -> Iterator[LocalCluster]:
    with LocalCluster(2, controllers=1, data_dir=folder, secure=True) as running:
        yield running


def test_nodes_replicate_and_the_quorum_is_seen(cluster: LocalCluster, settings: dict[str, str]) -> None:
    with Admin(settings) as admin, Producer(settings, acks="all") as producer, RangeReader(settings) as reader:
        admin.create_topics([NewTopic("t", 1, 2, {"min.insync.replicas": "2"})])
        producer.send("t", b"x").result(60)
        [batch] = list(reader.read({TopicPartition("t", 0): (0, 1)}))
        assert batch.column("value").to_pylist() == [b"x"]
    quorum = cluster.quorum()
    assert quorum is not None
    assert quorum.leader_id == 3


def test_librdkafka_accepts_the_file(settings: dict[str, str]) -> None:
    admin = AdminClient(dict(settings))
    assert len(admin.list_topics(timeout=30).brokers) == 2


def test_own_client_accepts_both_files(folder: Path) -> None:
    for name in ("client.properties", "librdkafka.properties"):
        with Admin(read_properties(folder / "security" / name)) as admin:
            assert len(admin.describe_cluster().brokers) == 2


@pytest.mark.kafka
def test_kafkas_tools_accept_the_file(folder: Path, cluster: LocalCluster) -> None:
    need_apache_kafka()
    config = str(folder / "security" / "client.properties")
    printed = run_tool(
        *("org.apache.kafka.tools.TopicCommand", "--bootstrap-server", cluster.bootstrap),
        *("--command-config", config, "--create", "--topic", "by-the-tool"),
    )
    assert "Created topic by-the-tool" in printed


def test_nobody_gets_in_without_the_password(settings: dict[str, str]) -> None:
    with Admin({**settings, "sasl.password": "guessed"}) as admin, pytest.raises(PeerError) as error:
        admin.describe_cluster()
    assert error.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED


def test_the_guest_has_what_an_acl_allows(folder: Path, settings: dict[str, str]) -> None:
    guest = read_properties(folder / "security" / "guest.librdkafka.properties")
    admin = AdminClient(dict(settings))
    admin.create_topics([ConfluentTopic("for-guests", 1, 2)])["for-guests"].result(60)
    with Admin(guest) as asking:
        assert "for-guests" not in asking.metadata().topics
        with pytest.raises(PeerError, match="TOPIC_AUTHORIZATION_FAILED"):
            asking.create_topics(["of-guests"])
    allowed = AclBinding(
        *(ResourceType.TOPIC, "for-", ResourcePatternType.PREFIXED, "User:guest", "*"),
        *(AclOperation.DESCRIBE, AclPermissionType.ALLOW),
    )
    for made in admin.create_acls([allowed]).values():
        made.result(60)

    def is_seen() -> bool:
        with Admin(guest) as asking:
            return "for-guests" in asking.metadata().topics

    eventually(is_seen, "both brokers know the ACL")


def test_secrets_are_for_their_owner_only(folder: Path) -> None:
    users = json.loads((folder / "security" / "users.json").read_text())
    files = [path for path in folder.rglob("*") if path.is_file()]
    for path in files:
        content = path.read_bytes()
        has_secret = b"PRIVATE KEY" in content or any(secret.encode() in content for secret in users.values())
        if has_secret:
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert stat.S_IMODE((folder / "security").stat().st_mode) == 0o700


def test_cluster_comes_back_with_its_users(folder: Path, cluster: LocalCluster, settings: dict[str, str]) -> None:
    cluster.restart(1)
    with Admin(settings) as admin:
        assert len(admin.describe_cluster().brokers) == 2


def test_more_nodes_get_certificates_of_one_authority(tmp_path: Path) -> None:
    create(tmp_path, [1])
    login = create(tmp_path, [1, 2])
    assert sorted(path.name for path in login.folder.glob("node-*.pem")) == ["node-1.pem", "node-2.pem"]
    login.context()


def test_cluster_without_security_stays_without(tmp_path: Path) -> None:
    from fenceline.local_cluster import layout

    layout.write(layout.plan(tmp_path, nodes=1, controllers=None, port=0), {})
    with pytest.raises(OperatorError, match="without security"):
        layout.plan(tmp_path, nodes=None, controllers=None, port=0, secure=True)
