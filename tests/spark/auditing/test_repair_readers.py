"""Downstream readers of a table while `repair` changes it: the entries of a repair, and commits between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from fenceline.client.reader.reader import RangeReader
from fenceline.ids import TopicPartition
from fenceline.testing.node import EmbeddedNode
from pyspark_fenceline.auditing.repair_table import TableRepair, repair_here
from pyspark_fenceline.auditing.table import AuditSettings, audit_here, settings
from pyspark_fenceline.delta import replacement
from pyspark_fenceline.delta.entry import commit_entry
from tests.spark.conftest import Broker
from tests.spark.cut_log import restart_cut
from tests.spark.table_readers import (
    COLUMNS,
    ChangeFound,
    RowKey,
    change_feed,
    check_readers,
    stream,
    stream_without_changes,
)

pytestmark = [pytest.mark.timeout(300)]
TOPIC = "cut"
KINDS = ("stale", "missing", "behind")


class ProcessEnded(BaseException):
    """The process ends."""


def records(broker: Broker, first: int, end: int) -> pa.Table:
    with RangeReader({"bootstrap.servers": broker.bootstrap}) as reader:
        batches = list(reader.read({TopicPartition(TOPIC, 0): (first, end)}, include_leader_epoch=True))
    return pa.Table.from_batches(batches).select(["key", "value", "topic", "partition", "offset", "leader_epoch"])


@pytest.fixture
def story(tmp_path: Path) -> Iterator[tuple[str, AuditSettings, Broker]]:
    """A table without 50 to 59 of a log that lost 100 to 149 of it and grew again to 160."""
    with EmbeddedNode() as node:
        broker = Broker("fenceline", node.bootstrap)
        broker.create(TOPIC)
        for start in (0, 100):
            broker.produce(TOPIC, range(start, start + 100))
        table = str(tmp_path / "table")
        write_deltalake(table, records(broker, 0, 50), partition_by=["topic", "partition"])
        write_deltalake(table, records(broker, 60, 150), mode="append")
        restart_cut(node, TOPIC, 100)
        broker = Broker("fenceline", node.bootstrap)
        broker.produce(TOPIC, range(1000, 1060))
        yield table, settings(broker.bootstrap, TOPIC), broker


def rows_at(table: str, version: int | None = None) -> Counter[RowKey]:
    rows = DeltaTable(table, version=version).to_pyarrow_table(columns=[*COLUMNS])
    return Counter((row["topic"], row["partition"], row["offset"], row["leader_epoch"]) for row in rows.to_pylist())


def end_after(monkeypatch: pytest.MonkeyPatch, entries: int) -> None:
    """The process ends after that number of entries, before the next one."""
    left = iter(range(entries))

    def commit(*arguments: Any, **options: Any) -> None:
        if next(left, None) is None:
            raise ProcessEnded
        commit_entry(*arguments, **options)

    monkeypatch.setattr(replacement, "commit_entry", commit)


def check_repaired(table: str, chosen: AuditSettings) -> None:
    assert audit_here(table, chosen).verdict.is_equal
    assert sorted(offset for _, _, offset, _ in rows_at(table).elements()) == [*range(160)]
    check_readers(table)


def test_a_reader_starting_between_the_entries_of_a_repair_continues(
    story: tuple[str, AuditSettings, Broker],
) -> None:
    table, chosen, _ = story
    done = repair_here(table, chosen, apply=True, kinds=KINDS)
    assert (done.removed_rows, done.added_rows, done.version) == (50, 70, 3)
    check_repaired(table, chosen)
    # A snapshot between the entries, and then later rows: nothing is lost, duplicated or changed.
    assert rows_at(table, 2) + stream(table, 3) == rows_at(table)
    # A reader that starts before the repair must skip it, and gets every new row.
    with pytest.raises(ChangeFound):
        stream(table, 2)
    assert not rows_at(table) - stream_without_changes(table)
    assert change_feed(table) == rows_at(table)


def test_an_interrupted_repair_is_completed_by_the_next_one(
    story: tuple[str, AuditSettings, Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    table, chosen, _ = story
    with monkeypatch.context() as patch:
        end_after(patch, 1)
        with pytest.raises(ProcessEnded):
            repair_here(table, chosen, apply=True, kinds=KINDS)
    # The histories are not mixed: the table is a prefix of the log, with its gap.
    assert sorted(offset for _, _, offset, _ in rows_at(table)) == [*range(50), *range(60, 100)]
    assert audit_here(table, chosen).verdict.rows == {"missing": 10, "behind": 60}
    between = rows_at(table)
    done = repair_here(table, chosen, apply=True, kinds=KINDS)
    assert (done.removed_rows, done.added_rows) == (0, 70)
    assert between + stream(table, 3) == rows_at(table)
    check_repaired(table, chosen)


def test_a_failed_entry_that_landed_is_not_repeated(
    story: tuple[str, AuditSettings, Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    table, chosen, _ = story
    entries = 0

    def commit(*arguments: Any, **options: Any) -> None:
        nonlocal entries
        entries += 1
        commit_entry(*arguments, **options)
        if entries in (1, 2):
            raise CommitFailedError("the answer was lost")

    monkeypatch.setattr(replacement, "commit_entry", commit)
    done = repair_here(table, chosen, apply=True, kinds=KINDS)
    assert (done.removed_rows, done.added_rows, done.version, entries) == (50, 70, 3, 2)
    check_repaired(table, chosen)


def test_files_of_an_entry_that_may_have_landed_are_kept(
    story: tuple[str, AuditSettings, Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    table, chosen, _ = story
    entries = 0

    def commit(*arguments: Any, **options: Any) -> None:
        nonlocal entries
        entries += 1
        commit_entry(*arguments, **options)
        if entries == 1:
            # It lands, other writers rewrite its files, and then the failure follows.
            DeltaTable(table).delete("offset = 3")
            raise CommitFailedError("the answer was lost")

    monkeypatch.setattr(replacement, "commit_entry", commit)
    repair_here(table, chosen, apply=True, kinds=KINDS)
    for version in range(DeltaTable(table).version() + 1):
        rows_at(table, version)
    assert sorted(offset for _, _, offset, _ in rows_at(table)) == [offset for offset in range(160) if offset != 3]


def test_changes_of_another_writer_between_the_entries_are_seen(
    story: tuple[str, AuditSettings, Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    table, chosen, broker = story
    entries = 0

    def commit(*arguments: Any, **options: Any) -> None:
        nonlocal entries
        entries += 1
        if entries == 2:
            # A stream adds some of the records that the repair has read.
            write_deltalake(table, records(broker, 100, 110), mode="append")
        commit_entry(*arguments, **options)

    monkeypatch.setattr(replacement, "commit_entry", commit)
    done: TableRepair = repair_here(table, chosen, apply=True, kinds=KINDS)
    # Changes made before the refresh are reported too.
    assert (done.removed_rows, done.added_rows) == (50, 60)
    assert done.before.rows["stale"] == 50
    check_repaired(table, chosen)
    # Files of the conflicting attempt are deleted.
    on_disk = {path.name for path in Path(table).rglob("*.parquet")}
    known = {Path(path).name for version in range(5) for path in DeltaTable(table, version=version).file_uris()}
    assert on_disk == known
