"""Options that set table properties, unknown option names, and tables from which no row can be removed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from fenceline.errors import OperatorError
from pyspark_fenceline.common import given_options
from pyspark_fenceline.delta.options import delta_options
from pyspark_fenceline.delta.properties import check_properties, table_properties
from pyspark_fenceline.delta.sink import DeltaDataSource
from pyspark_fenceline.delta.table_files import refuse_deletion_vectors
from pyspark_fenceline.source.options import write_options
from tests.spark.auditing.test_audit import rewritten
from tests.spark.delta.test_plan import SCHEMA, records, write
from tests.spark.fakes import FakeCluster, install_fake_cluster

PATH = {"path": "/table"}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    return install_fake_cluster(monkeypatch, t=2)


def test_properties_are_set_when_the_table_is_created(cluster: FakeCluster, tmp_path: Path) -> None:
    """Spark passes the names in lower case."""
    given = {
        "path": str(tmp_path / "t"),
        "kafka.bootstrap.servers": "fake:1",
        "delta.enablechangedatafeed": "True",
        "delta.checkpointinterval": "50",
        "delta.logretentionduration": "interval 60 days",
    }
    cluster.log("t").append(3)
    write(delta_options(given), 0, records(cluster, 0, 3))
    table = DeltaTable(given["path"])
    assert table.metadata().configuration == {
        "delta.enableChangeDataFeed": "true",
        "delta.checkpointInterval": "50",
        "delta.logRetentionDuration": "interval 60 days",
    }
    assert table.protocol().min_writer_version == 4
    check_properties(table, delta_options(given).properties, "there")
    DeltaDataSource(given).streamWriter(SCHEMA, False)
    for other in ({"delta.checkpointinterval": "60"}, {"delta.enableExpiredLogCleanup": "true"}):
        with pytest.raises(OperatorError, match=r"exists and has other properties: delta\.") as caught:
            DeltaDataSource({**given, **other}).streamWriter(SCHEMA, False)
        assert "SET TBLPROPERTIES" in caught.value.advice


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("delta.enableDeletionVectors", "true", "deletion vectors"),
        ("delta.columnMapping.mode", "name", "column names in its files"),
        ("delta.setTransactionRetentionDuration", "interval 1 day", "written twice"),
        ("delta.feature.appendOnly", "supported", "follow from the properties"),
        ("delta.constraints.positive", "a > 0", "checks no constraints"),
        ("delta.minWriterVersion", "7", "protocol follows"),
        ("delta.dataSkippingNumIndexedCols", "3", "statistics"),
        ("delta.colour", "green", "Unknown table property"),
        ("delta.enableChangeDataFeed", "yes", "must be true or false"),
        ("delta.checkpointInterval", "0", "positive whole number"),
        ("delta.logRetentionDuration", "30 days", "interval 30 days"),
    ],
)
def test_properties_that_would_not_be_honoured_are_rejected(name: str, value: str, reason: str) -> None:
    with pytest.raises(OperatorError, match=reason):
        delta_options({**PATH, name: value})


def test_a_misspelt_property_is_rejected_with_a_suggestion() -> None:
    with pytest.raises(OperatorError) as caught:
        table_properties({"delta.enablechangedatafeeds": "true"}, loses_rows=False)
    assert caught.value.advice == "Did you mean 'delta.enableChangeDataFeed'?"


@pytest.mark.parametrize("more", [{"kafka.bootstrap.servers": "b:1"}, {"upsertKeys": "id"}])
def test_append_only_tables_cannot_be_repaired(more: dict[str, str]) -> None:
    assert delta_options({**PATH, "delta.appendOnly": "true"}).properties == {"delta.appendOnly": "true"}
    with pytest.raises(OperatorError, match=r"delta\.appendOnly.* forbids"):
        delta_options({**PATH, "delta.appendOnly": "true", **more})


def test_unknown_option_names_are_reported_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(given_options, "_warned", set())
    given = {**PATH, "queryName": "q", "checkpointLocation": "/c", "storage.x": "1", "kafka.y": "2"}
    for _ in range(2):
        delta_options({**given, "repair": "false", "partitionsBy": "a", "mergeschemas": "true", "colour": "green"})
        write_options({"kafka.bootstrap.servers": "b:1", "topics": "t", "includeHeader": "true", "path": "p"})
    assert caplog.messages == [
        "ignoring unknown option partitionsby of format('fenceline_delta'); did you mean partitionBy?",
        "ignoring unknown option mergeschemas of format('fenceline_delta'); did you mean mergeSchema?",
        "ignoring unknown option colour of format('fenceline_delta')",
        "ignoring unknown option topics of a write to topics; did you mean topic?",
        "ignoring unknown option includeheader of a write to topics",
    ]


VECTOR = {"storageType": "i", "pathOrInlineDv": "^Bg9^0rr910000000000iXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L"}
FEATURES = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}


def with_vectors(path: Path, *, has_some: bool, makes_more: bool) -> str:
    actions: dict[str, Any] = {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **FEATURES}}
    if has_some:
        actions["add"] = {"deletionVector": {**VECTOR, "sizeInBytes": 44, "cardinality": 6}}
    if makes_more:
        actions["metaData"] = {"configuration": {"delta.enableDeletionVectors": "true"}}
    return rewritten(path, **actions)


@pytest.mark.parametrize(("has_some", "makes_more"), [(True, False), (False, True), (True, True)])
def test_a_table_with_deletion_vectors_is_rejected_when_the_query_starts(
    cluster: FakeCluster, tmp_path: Path, has_some: bool, makes_more: bool
) -> None:
    path = with_vectors(tmp_path / "t", has_some=has_some, makes_more=makes_more)
    fields = [field for field in SCHEMA if field.name != "value"]
    schema = type(SCHEMA)(fields)
    types = {"topic": "string", "partition": "long", "offset": "long", "leader_epoch": "long"}
    schema = type(SCHEMA).fromJson(
        {**json.loads(schema.json()), "fields": [{**f.jsonValue(), "type": types[f.name]} for f in fields]}
    )
    plain = {"path": path}
    DeltaDataSource(plain).streamWriter(schema, False)
    for given, overwrite in (
        ({**plain, "kafka.bootstrap.servers": "fake:1"}, False),
        ({**plain, "upsertKeys": "offset"}, False),
        (plain, True),
    ):
        with pytest.raises(OperatorError, match="deletion vectors") as caught:
            DeltaDataSource(given).streamWriter(schema, overwrite)
        assert "REORG TABLE" in caught.value.advice


def test_the_table_feature_alone_creates_no_deletion_vectors(tmp_path: Path) -> None:
    refuse_deletion_vectors(DeltaTable(with_vectors(tmp_path / "t", has_some=False, makes_more=False)), "there")
