"""Audit and repair of tables with brokers of several versions, over real sockets: no Spark session."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from fenceline.client.reader.reader import RangeReader
from fenceline.ids import TopicPartition
from fenceline.wire.apis import ApiKey
from pyspark_fenceline.auditing.repair_table import repair_here
from pyspark_fenceline.auditing.table import Audit, AuditSettings, audit_here, settings
from pyspark_fenceline.common import connect
from tests.client.scripted_cluster import ScriptedCluster
from tests.spark.driver import QUICK
from tests.spark.source.test_old_brokers import KAFKA_2_1, KAFKA_2_4, OLD, write

Versions = dict[ApiKey, tuple[int, int]]
COLUMNS = ["topic", "partition", "offset", "leader_epoch", "value"]


def without_epochs() -> ScriptedCluster:
    """Kafka 2.0: clients cannot request the end of an epoch or the epoch of a leader."""
    cluster = ScriptedCluster(versions=OLD)
    del cluster.versions[ApiKey.OFFSET_FOR_LEADER_EPOCH]
    return cluster


def chosen(cluster: ScriptedCluster) -> AuditSettings:
    return settings({"bootstrap.servers": cluster.bootstrap, **QUICK}, "t")


def log_rows(cluster: ScriptedCluster, tp: TopicPartition) -> pa.Table:
    """All records of the log, as the source returns them."""
    with RangeReader({"bootstrap.servers": cluster.bootstrap, **QUICK}) as reader:
        batches = list(reader.read({tp: (0, cluster.logs[tp].end_offset)}))
    return pa.Table.from_batches(batches).select(COLUMNS)


def table_rows(table: Path) -> list[tuple[int, bytes]]:
    rows = DeltaTable(str(table)).to_pyarrow_table(columns=["offset", "value"]).to_pylist()
    return sorted((row["offset"], row["value"]) for row in rows)


def audited(cluster: ScriptedCluster, table: Path) -> Audit:
    try:
        return audit_here(str(table), chosen(cluster))
    finally:
        close(cluster)


def repaired(cluster: ScriptedCluster, table: Path) -> tuple[int, int]:
    """The numbers of removed and added rows."""
    try:
        kinds = ("stale", "beyond", "duplicate", "missing", "behind")
        done = repair_here(str(table), chosen(cluster), apply=True, kinds=kinds)
        return done.removed_rows, done.added_rows
    finally:
        close(cluster)


def close(cluster: ScriptedCluster) -> None:
    client = dict(chosen(cluster).client)
    for kind in ("cluster", "reader"):
        for properties in (client, {**client, "isolation.level": "read_uncommitted"}):
            connect.forget(kind, properties)


def offsets_by_kind(found: Audit) -> dict[str, list[int]]:
    """The offsets of the findings of each kind."""
    kinds: dict[str, set[int]] = {}
    for row in found.findings.to_pylist():
        kinds.setdefault(row["kind"], set()).update(range(row["start_offset"], row["end_offset_exclusive"]))
    return {kind: sorted(offsets) for kind, offsets in kinds.items()}


@pytest.mark.parametrize("versions", [None, KAFKA_2_1, KAFKA_2_4])
def test_differences_that_need_no_epochs_are_found_and_repaired(versions: Versions | None, tmp_path: Path) -> None:
    table = tmp_path / "table"
    with without_epochs() if versions is None else ScriptedCluster(versions=versions) as cluster:
        (tp,) = cluster.add_topic("t")
        write(cluster, tp, 0, 30)
        whole = log_rows(cluster, tp)
        far = whole.slice(0, 2).set_column(2, "offset", pa.array([40, 41], pa.int64()))
        spoilt = pa.concat_tables([whole.slice(0, 5), whole.slice(3, 2), whole.slice(10, 20), far])
        write_deltalake(str(table), spoilt, partition_by=["topic", "partition"])
        found = audited(cluster, table)
        differs = {"missing": [*range(5, 10)], "duplicate": [3, 4], "beyond": [40, 41]}
        # Nothing proves that the rows match the log.
        unproven = {"unproven": [*range(5), *range(10, 30)]} if versions is None else {}
        assert offsets_by_kind(found) == {**differs, **unproven}
        assert found.verdict.sees_truncation is (versions is not None)
        assert ("truncation cannot be detected" in str(found)) is (versions is None)
        assert repaired(cluster, table) == (4, 5)
        assert audited(cluster, table).verdict.outcome == ("unproven" if versions is None else "equal")
        assert table_rows(table) == [(number, b"%d" % number) for number in range(30)]
        assert repaired(cluster, table) == (0, 0)


@pytest.mark.parametrize("versions", [KAFKA_2_1, KAFKA_2_4])
def test_stale_rows_are_found_and_repaired_where_brokers_return_epochs(versions: Versions, tmp_path: Path) -> None:
    table = tmp_path / "table"
    with ScriptedCluster(versions=versions) as cluster:
        (tp,) = cluster.add_topic("t")
        write(cluster, tp, 0, 15)
        write_deltalake(str(table), log_rows(cluster, tp), partition_by=["topic", "partition"])
        cluster.logs[tp].elect(1, cut_to=10)
        write(cluster, tp, 100, 10)
        assert offsets_by_kind(audited(cluster, table))["stale"] == [*range(10, 15)]
        repaired(cluster, table)
        assert audited(cluster, table).verdict.is_equal
        assert [value for _, value in table_rows(table)] == cluster.logs[tp].values()


def test_without_epochs_the_verdict_states_its_limits(tmp_path: Path) -> None:
    table = tmp_path / "table"
    with without_epochs() as cluster:
        (tp,) = cluster.add_topic("t")
        write(cluster, tp, 0, 15)
        write_deltalake(str(table), log_rows(cluster, tp), partition_by=["topic", "partition"])
        cluster.logs[tp].elect(1, cut_to=10)
        # A log that is shorter than the table is still detected,
        found = audited(cluster, table)
        assert offsets_by_kind(found) == {"beyond": [*range(10, 15)], "unproven": [*range(10)]}
        assert found.verdict.outcome == "different"
        write(cluster, tp, 100, 5)
        # and one that has grown again is not.
        found = audited(cluster, table)
        assert offsets_by_kind(found) == {"unproven": [*range(15)]}
        assert found.verdict.outcome == "unproven"
        assert not found.verdict.is_equal
        assert not found.verdict.sees_truncation
        assert "truncation cannot be detected" in str(found)
        assert repaired(cluster, table) == (0, 0)
