"""Logins of tasks by a delegation token that the driver obtains. Rules: security.md A71."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark.cloudpickle import dumps

from fenceline.client import Admin, Producer
from fenceline.errors import ErrorCode, OperatorError, PeerError
from fenceline.testing.node import EmbeddedNode
from pyspark_fenceline.common import connect, task_login
from pyspark_fenceline.common.schema import spark_schema
from pyspark_fenceline.common.task_login import PROPERTY, of_driver, of_tasks, token_login, with_token
from pyspark_fenceline.source.losses_table import losses_reader
from pyspark_fenceline.source.options import write_options
from pyspark_fenceline.source.source import FencelineDataSource
from pyspark_fenceline.source.topic_sink import TopicWriter
from tests.support.password_node import password_client, password_node

PASSWORD = "the-password-of-anna"
SCHEMA = spark_schema(include_headers=False, include_leader_epoch=False)


@pytest.fixture(scope="module")
def node() -> Iterator[EmbeddedNode]:
    overrides = password_node("SCRAM-SHA-256", anna=PASSWORD)
    with EmbeddedNode(security_protocol="SASL_PLAINTEXT", overrides=overrides) as node:
        yield node


@pytest.fixture
def client(node: EmbeddedNode) -> Iterator[dict[str, str]]:
    yield {**password_client(node.bootstrap, "anna", PASSWORD), PROPERTY: "scram-sha-256"}
    task_login._tokens.clear()


@pytest.fixture
def options(client: dict[str, str]) -> dict[str, str]:
    with Admin(of_driver(client)) as admin, Producer(of_driver(client)) as producer:
        if "t" not in admin.metadata().topics:
            admin.create_topics(["t"])
            producer.send("t", b"x").result(30)
    return {"subscribe": "t", **{f"kafka.{key}": value for key, value in client.items()}}


def tokens(client: dict[str, str]) -> list[str]:
    with Admin(of_driver(client)) as admin:
        return [token.token_id for token in admin.describe_delegation_tokens()]


def test_tasks_read_without_the_password(options: dict[str, str]) -> None:
    """What Spark sends them: the source, its reader and a partition."""
    source = FencelineDataSource(options)
    assert PASSWORD.encode() in dumps(source), "to the process that plans"
    reader = source.reader(SCHEMA)
    partitions = reader.partitions()
    for sent in (source, reader, *partitions):
        assert PASSWORD.encode() not in dumps(sent)
    copy, [partition] = pickle.loads(dumps(reader)), pickle.loads(dumps(partitions))
    [batch] = list(copy.read(partition))
    assert batch.column("value").to_pylist() == [b"x"]
    assert PASSWORD not in repr((reader._options, reader._plan, partition.login))  # type: ignore[attr-defined]


def test_tasks_of_a_stream_and_of_the_losses(options: dict[str, str]) -> None:
    source = FencelineDataSource({**options, "startingOffsets": "earliest"})
    reader = source.streamReader(SCHEMA)
    assert PASSWORD.encode() not in dumps((source, reader))
    start = reader.initialOffset()
    end = reader.latestOffset(start, None)  # type: ignore[call-arg]
    [partition] = reader.partitions(start, end)
    [batch] = list(pickle.loads(dumps(reader)).read(pickle.loads(dumps(partition))))
    assert batch.column("value").to_pylist() == [b"x"]
    losses = losses_reader(options)
    copy, found = pickle.loads(dumps(losses)), losses.partitions()
    assert PASSWORD.encode() not in dumps((losses, found))
    assert [list(copy.read(each)) for each in found] == [[]]


def test_tasks_write_without_the_password(options: dict[str, str]) -> None:
    import pyarrow as pa

    written = {key: value for key, value in options.items() if key != "subscribe"}
    writer = TopicWriter(write_options({**written, "topic": "copy"}), SCHEMA)
    assert PASSWORD.encode() not in dumps(writer)
    rows = pa.RecordBatch.from_pydict({"value": pa.array([b"y"], pa.binary())})
    only_value = type(SCHEMA)([SCHEMA["value"]])
    writer = pickle.loads(dumps(TopicWriter(write_options({**written, "topic": "copy"}), only_value)))
    assert writer.write(iter([rows])).record_count == 1


def test_a_token_is_kept_and_renewed_in_time(client: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(time=lambda: now_s)
    import time

    now_s = began_s = time.time()
    monkeypatch.setattr(task_login, "time", clock)
    before = set(tokens(client))
    first = token_login(client)
    assert token_login(client) == first
    assert set(tokens(client)) - before == {first["sasl.username"]}
    [kept] = task_login._tokens.values()
    now_s = (kept.from_ms + kept.expiry_ms) / 2_000
    assert token_login(client) == first
    [renewed] = task_login._tokens.values()
    assert renewed.expiry_ms >= kept.expiry_ms
    assert renewed.from_ms > kept.from_ms
    assert now_s > began_s


def test_a_token_that_is_gone_is_replaced(client: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    first = token_login(client)
    with Admin(of_driver(client)) as admin:
        admin.expire_delegation_token(first["sasl.password"])
    [kept] = task_login._tokens.values()
    kept.expiry_ms = kept.from_ms
    second = token_login(client)
    assert second["sasl.username"] != first["sasl.username"]


def test_what_tasks_get(client: dict[str, str]) -> None:
    assert of_tasks({**client, "oauth_cb": "x", "sasl.oauthbearer.client.secret": "x", "acks": "1"}) == {
        "bootstrap.servers": client["bootstrap.servers"],
        "security.protocol": "SASL_PLAINTEXT",
        "acks": "1",
    }
    plain = {"bootstrap.servers": "h:1", "sasl.password": "x"}
    assert (of_driver(plain), of_tasks(plain), token_login(plain), with_token(plain)) == (plain, plain, {}, plain)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({PROPERTY: "PLAIN"}, "must be one of"), ({"security.protocol": "SSL"}, "requires kafka.security.protocol")],
)
def test_wrong_options(client: dict[str, str], changes: dict[str, str], reason: str) -> None:
    with pytest.raises(OperatorError, match=reason):
        with_token({**client, **changes})


def test_clusters_without_tokens(tmp_path: Path) -> None:
    overrides = {**password_node(anna=PASSWORD), "delegation.token.secret.key": ""}
    with EmbeddedNode(security_protocol="SASL_PLAINTEXT", overrides=overrides) as node:
        client = {**password_client(node.bootstrap, "anna", PASSWORD), PROPERTY: "SCRAM-SHA-512"}
        with pytest.raises(PeerError) as error:
            with_token(client)
        assert error.value.code is ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED


def teardown_module() -> None:
    for _, kind, properties in list(connect._cache):
        connect.forget(kind, dict(properties))
