"""Lost records are read from the node that keeps them, over the network: by clients, by commands, and by those who may.

Rules: security.md A53 to A55.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import confluent_kafka
import pyarrow as pa
import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from typer.testing import CliRunner

from fenceline.cli.app import app
from fenceline.client import (
    Admin,
    AsyncLostRecordsReader,
    EvidenceIncompleteError,
    LossReceipt,
    LostRecordsReader,
)
from fenceline.client.admin.client_quotas import ClientQuotaAlteration
from fenceline.client.core.fetched import to_records
from fenceline.errors import ErrorCode, OperatorError, PeerError
from fenceline.ids import EVIDENCE_RESOURCE, LOSSES_TOPIC
from fenceline.testing.node import EmbeddedNode
from fenceline.testing.waiting import eventually
from fenceline.wire.apis import ApiKey
from tests.support.losing_node import Lost, lose
from tests.support.raw import RawConnection

AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
JAAS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'username="admin" password="of the admin" user_admin="of the admin" user_anna="secret" user_bert="secret";'
)
SMALL: Mapping[str, str] = {"max.partition.fetch.bytes": "300"}
"""Many pieces."""


# -- a node without an authorizer --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def node() -> Iterator[EmbeddedNode]:
    with EmbeddedNode(overrides={"fenceline.lost.retention.ms": "-1"}) as running:
        yield running


@pytest.fixture(scope="module")
def lost(node: EmbeddedNode) -> Lost:
    return lose(node, "rain", {"bootstrap.servers": node.bootstrap})


def values_of(reader: LostRecordsReader, receipt: LossReceipt) -> list[str]:
    return [str(record.value, "utf-8") for records in reader.read(receipt, arrow=False) for record in records]


def test_records_and_arrow(node: EmbeddedNode, lost: Lost) -> None:
    receipt = lost.receipt
    with LostRecordsReader(node.bootstrap, **SMALL) as reader:
        assert reader.receipt(receipt.id[:8]) == receipt
        pieces = list(reader.read(receipt, arrow=False))
        records = [record for piece in pieces for record in piece]
        batches = list(reader.read(receipt))
    assert len(pieces) > 3
    assert [str(record.value, "utf-8") for record in records] == lost.values
    assert [record.offset for record in records] == list(range(receipt.start_offset, receipt.end_offset_exclusive))
    assert {(record.topic, record.partition, record.leader_epoch) for record in records} == {("rain", 0, 0)}
    table = pa.Table.from_batches(batches)
    assert table.column("offset").to_pylist() == [record.offset for record in records]
    assert table.column("value").to_pylist() == [record.value for record in records]


def test_asynchronous_reader(node: EmbeddedNode, lost: Lost) -> None:
    async def read() -> list[str]:
        async with AsyncLostRecordsReader(node.bootstrap) as reader:
            receipt = await reader.receipt(lost.receipt.id)
            pieces = [piece async for piece in reader.fetch(receipt)]
            return [str(record.value, "utf-8") for piece in pieces for record in to_records(piece)]

    assert asyncio.run(read()) == lost.values


def test_node_that_restarts_meanwhile(node: EmbeddedNode, lost: Lost) -> None:
    with LostRecordsReader(node.bootstrap, **SMALL) as reader:
        pieces = reader.read(lost.receipt, arrow=False)
        found = next(pieces)
        node.kill()
        node.start()
        found += [record for records in pieces for record in records]
    assert [str(record.value, "utf-8") for record in found] == lost.values


def run(node: EmbeddedNode, *arguments: str, code: int = 0, settings: Path | None = None) -> Any:
    """A command of `fenceline losses`. `settings`: the properties of its clients."""
    before = [] if settings is None else ["--command-config", str(settings)]
    result = CliRunner().invoke(app, [*before, "losses", *arguments], env={"FENCELINE_BOOTSTRAP": node.bootstrap})
    assert result.exit_code == code, result.output
    return result


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands run on a machine without the node's files."""
    monkeypatch.setattr("fenceline.cli.losses.is_here", lambda *_: False)


@pytest.mark.usefixtures("elsewhere")
def test_export_over_the_network(node: EmbeddedNode, lost: Lost, tmp_path: Path) -> None:
    lines = [json.loads(line) for line in run(node, "export", "rain-0").stdout.splitlines()]
    assert [line["value"] for line in lines] == lost.values
    assert json.loads(run(node, "export", "rain-0", "--json").stdout) == lines
    arrow = tmp_path / "lost.arrow"
    run(node, "export", "rain-0", "--arrow", str(arrow))
    with pa.ipc.open_file(str(arrow)) as file:
        assert file.read_all().column("value").to_pylist() == [value.encode() for value in lost.values]


def test_export_is_the_same_from_files(node: EmbeddedNode, lost: Lost, monkeypatch: pytest.MonkeyPatch) -> None:
    from_files = run(node, "export", "rain-0").stdout
    monkeypatch.setattr("fenceline.cli.losses.is_here", lambda *_: False)
    assert run(node, "export", "rain-0").stdout == from_files


@pytest.mark.usefixtures("elsewhere", "lost")
def test_replay_over_the_network(node: EmbeddedNode, lost: Lost) -> None:
    with Admin(node.bootstrap) as admin:
        admin.create_topics(["rain.lost"])
    told = json.loads(run(node, "replay", "rain-0", "--to", "rain.lost", "--json").stdout)
    assert (told["records"], told["missing_records"]) == (len(lost.values), 0)


@pytest.mark.usefixtures("lost")
def test_data_dir_is_never_replaced_by_the_network(node: EmbeddedNode, tmp_path: Path) -> None:
    assert "does not exist on this machine" in run(node, "export", "rain-0", "--data-dir", str(tmp_path), code=1).output


def test_ordinary_consumer_does_not_find_it(node: EmbeddedNode, lost: Lost) -> None:
    name = f"{EVIDENCE_RESOURCE}/{lost.receipt.id}"
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    assert not [topic for topic in admin.list_topics(timeout=30).topics if EVIDENCE_RESOURCE in topic]
    assert admin.list_topics(name, timeout=30).topics[name].error is not None
    settings = {
        "bootstrap.servers": node.bootstrap,
        "group.id": "any",
        "auto.offset.reset": "earliest",
        "allow.auto.create.topics": True,
        "enable.partition.eof": True,
    }
    for choose in (
        lambda consumer: consumer.subscribe([name]),
        lambda consumer: consumer.subscribe(["^__fenceline_evidence.*"]),
        lambda consumer: consumer.assign([confluent_kafka.TopicPartition(name, 0, lost.receipt.start_offset)]),
    ):
        consumer = confluent_kafka.Consumer(settings)
        try:
            choose(consumer)
            messages = consumer.consume(10, 1)
            assert all(message.error() is not None for message in messages)
        finally:
            consumer.close()
    with Admin(node.bootstrap) as ours:
        assert not [topic for topic in ours.metadata().topics if EVIDENCE_RESOURCE in topic]


def ask(port: int, receipt: str, version: int, *, index: int = 0, **fields: Any) -> Any:
    """The only partition of the answer to a plain Fetch."""
    return answered(port, receipt, version, index=index, **fields).responses[0].partitions[0]


def answered(port: int, receipt: str, version: int, *, index: int = 0, client_id: str = "raw", **fields: Any) -> Any:
    partition = {"partition": index, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
    topics = [{"topic": f"{EVIDENCE_RESOURCE}/{receipt}", "partitions": [partition]}]
    request = {"replica_id": -1, "max_wait": 0, "min_bytes": 1, "max_bytes": 1 << 20, "session_epoch": -1}
    if version < 7:
        request.pop("session_epoch")
    with RawConnection(port, client_id=client_id) as connection:
        return connection.call(ApiKey.FETCH, version, {**request, "topics": topics, **fields})


def test_every_version_by_name(node: EmbeddedNode, lost: Lost) -> None:
    answers = [ask(node.port, lost.receipt.id, version) for version in range(4, 13)]
    assert len({bytes(answer.records) for answer in answers}) == 1
    assert {answer.error_code for answer in answers} == {0}
    assert {answer.high_watermark for answer in answers} == {lost.receipt.end_offset_exclusive}


def test_readers_have_their_quota(node: EmbeddedNode, lost: Lost) -> None:
    """An answer is sent, then its connection is not read: other answers are not delayed."""
    with Admin(node.bootstrap) as admin:
        client = {"client-id": "greedy"}
        admin.alter_client_quotas([ClientQuotaAlteration(client, {"consumer_byte_rate": 1.0})])
        eventually(lambda: admin.describe_client_quotas(client), "the node knows the quota", wait_s=30)
        answer = answered(node.port, lost.receipt.id, 12, client_id="greedy")
        assert answer.throttle_time.total_seconds() > 0
        assert answer.responses[0].partitions[0].error_code == 0
        assert answered(node.port, lost.receipt.id, 12).throttle_time.total_seconds() == 0
        admin.alter_client_quotas([ClientQuotaAlteration(client, {"consumer_byte_rate": None})])


def test_sessions_and_followers_have_no_evidence(node: EmbeddedNode, lost: Lost) -> None:
    for fields in ({"session_epoch": 0}, {"replica_id": 2}):
        answer = ask(node.port, lost.receipt.id, 12, **fields)
        assert (answer.error_code, bool(answer.records)) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, False)


@pytest.mark.parametrize("receipt", ["", "..", "../rain-0/lost+found", "0" * 24, "a" * 30_000])
def test_receipts_that_are_unknown(node: EmbeddedNode, lost: Lost, receipt: str) -> None:
    assert ask(node.port, receipt, 12).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert ask(node.port, lost.receipt.id, 12, index=1).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_receipt_of_another_partition_or_node(node: EmbeddedNode, lost: Lost) -> None:
    with LostRecordsReader(node.bootstrap) as reader:
        with pytest.raises(PeerError, match="no evidence of it") as error:
            values_of(reader, lost.receipt._replace(partition=1))
        assert error.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        with pytest.raises(OperatorError, match="is not running"):
            values_of(reader, lost.receipt._replace(replica=7))
        with pytest.raises(OperatorError, match="There is no evidence"):
            values_of(reader, lost.receipt._replace(evidence=()))
        with pytest.raises(OperatorError, match="No loss receipts"):
            reader.receipt("ffffffff0")


@pytest.mark.usefixtures("elsewhere")
def test_damaged_batch_is_reported(node: EmbeddedNode) -> None:
    lost = lose(node, "hail", {"bootstrap.servers": node.bootstrap})
    path = Path(lost.receipt.evidence[-1])
    content = bytearray(path.read_bytes())
    content[17] ^= 1
    path.write_bytes(content)
    found: list[object] = []
    with LostRecordsReader(node.bootstrap, **SMALL) as reader, pytest.raises(EvidenceIncompleteError) as error:
        found.extend(record for records in reader.read(lost.receipt, arrow=False) for record in records)
    assert 0 < len(found) < len(lost.values)
    assert error.value.missing_records == len(lost.values) - len(found)
    told = run(node, "export", "hail-0")
    assert len(told.stdout.splitlines()) == len(found)
    assert f"{error.value.missing_records} of the {len(lost.values)} lost records are missing" in told.stderr


@pytest.mark.usefixtures("elsewhere")
def test_evidence_that_is_deleted_while_it_is_read(node: EmbeddedNode) -> None:
    lost = lose(node, "fog", {"bootstrap.servers": node.bootstrap})
    with LostRecordsReader(node.bootstrap, **SMALL) as reader, Admin(node.bootstrap) as admin:
        pieces = reader.read(lost.receipt, arrow=False)
        assert next(pieces)
        admin.delete_topics(["fog"])
        newest = eventually(
            lambda: found if not (found := reader.receipt(lost.receipt.id)).evidence else None, "the evidence is gone"
        )
        with pytest.raises(PeerError, match="none any more") as error:
            list(pieces)
        assert error.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        with pytest.raises(OperatorError, match="There is no evidence") as gone:
            list(reader.read(newest))
        assert "removed from this node" in gone.value.advice
    assert "There is no evidence" in run(node, "export", "fog-0", code=1).output


def test_node_that_does_not_send_evidence(tmp_path: Path) -> None:
    with EmbeddedNode(
        data_dir=tmp_path / "node",
        overrides={"fenceline.lost.retention.ms": "-1", "fenceline.evidence.fetch.enable": "false"},
    ) as silent:
        lost = lose(silent, "rain", {"bootstrap.servers": silent.bootstrap})
        with LostRecordsReader(silent.bootstrap) as reader:
            with pytest.raises(PeerError, match=r"fenceline\.evidence\.fetch\.enable is false") as error:
                values_of(reader, lost.receipt)
            assert error.value.code is ErrorCode.POLICY_VIOLATION
        assert len(run(silent, "export", "rain-0").stdout.splitlines()) == len(lost.values), "its files can be read"


# -- rights ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded() -> Iterator[EmbeddedNode]:
    """Its super user is admin; anna and bert have the rights that they are given."""
    overrides = {
        "fenceline.lost.retention.ms": "-1",
        "authorizer.class.name": AUTHORIZER,
        "super.users": "User:admin",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": JAAS,
    }
    with EmbeddedNode(security_protocol="SASL_PLAINTEXT", overrides=overrides, log_level="info") as running:
        yield running


def as_user(node: EmbeddedNode, user: str = "admin", password: str = "of the admin") -> dict[str, str]:
    return {
        "bootstrap.servers": node.bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": password,
    }


def allow(node: EmbeddedNode, user: str, topic: str, *, denies: bool = False) -> None:
    kind = AclPermissionType.DENY if denies else AclPermissionType.ALLOW
    pattern = ResourcePatternType.LITERAL
    rule = AclBinding(ResourceType.TOPIC, topic, pattern, f"User:{user}", "*", AclOperation.READ, kind)
    admin = AdminClient(as_user(node))
    for created in admin.create_acls([rule]).values():
        created.result(30)


@pytest.mark.usefixtures("elsewhere")
def test_only_those_who_may_read_it(guarded: EmbeddedNode, tmp_path: Path) -> None:
    lost = lose(guarded, "rain", as_user(guarded))
    with LostRecordsReader(as_user(guarded)) as admin:
        assert values_of(admin, lost.receipt) == lost.values
    with (
        LostRecordsReader(as_user(guarded, "anna", "secret")) as anna,
        LostRecordsReader(as_user(guarded, "bert", "secret")) as bert,
    ):
        for is_of_topic in (False, True):
            if is_of_topic:
                allow(guarded, "anna", "rain")
            with pytest.raises(PeerError, match=f"READ is needed on the topic rain and on .*{EVIDENCE_RESOURCE}") as no:
                values_of(anna, lost.receipt)
            assert no.value.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
        # Rules of a topic that does not exist are allowed.
        allow(guarded, "anna", EVIDENCE_RESOURCE)
        allow(guarded, "bert", EVIDENCE_RESOURCE)
        assert eventually(lambda: may(anna, lost.receipt)) == lost.values
        with pytest.raises(PeerError, match="READ is needed on the topic rain"):
            values_of(bert, lost.receipt)
        files = {user: tmp_path / f"{user}.properties" for user in ("anna", "bert")}
        for user, file in files.items():
            file.write_text("".join(f"{key}={value}\n" for key, value in as_user(guarded, user, "secret").items()))
            allow(guarded, user, LOSSES_TOPIC)
        exported = run(guarded, "export", "rain-0", settings=files["anna"]).stdout
        assert [json.loads(line)["value"] for line in exported.splitlines()] == lost.values
        refused = run(guarded, "export", "rain-0", code=1, settings=files["bert"]).output
        assert "READ is needed on the topic rain" in refused
        allow(guarded, "anna", EVIDENCE_RESOURCE, denies=True)
        eventually(lambda: may(anna, lost.receipt) is None)
    lines = guarded.errors
    assert f"Topic:LITERAL:{EVIDENCE_RESOURCE}" in lines
    assert "Topic:LITERAL:rain" in lines
    assert "evidence is read by a client" in lines
    assert "User:anna" in lines


def may(reader: LostRecordsReader, receipt: LossReceipt) -> list[str] | None:
    try:
        return values_of(reader, receipt)
    except PeerError as error:
        return None if error.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED else []
