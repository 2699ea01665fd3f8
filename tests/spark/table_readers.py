"""Readers that follow a Delta table by its log alone: each kind of reader, reduced to the rows it delivers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

RowKey = tuple[str, int, int, int | None]
"""Topic, partition, offset, epoch."""
COLUMNS = ("topic", "partition", "offset", "leader_epoch")


class Version(NamedTuple):
    """One entry: the rows of the files that it adds and removes, and of its change data files by their kind."""

    number: int
    added: Counter[RowKey]
    removed: Counter[RowKey]
    changed: dict[str, Counter[RowKey]]

    @property
    def is_change(self) -> bool:
        return bool(self.removed)


class ChangeFound(Exception):
    """The error of a Delta stream without options: DELTA_SOURCE_TABLE_IGNORE_CHANGES, or IGNORE_DELETE."""


def versions(path: str, first: int = 0) -> Iterator[Version]:
    """The table's entries from version `first` on; files missing from the disk are an error."""
    for file in sorted(Path(path, "_delta_log").glob("*.json")):
        if int(file.stem) < first:
            continue
        sides: dict[str, Counter[RowKey]] = {"add": Counter(), "remove": Counter()}
        changed: dict[str, Counter[RowKey]] = {}
        for line in file.read_text().splitlines():
            ((name, action),) = json.loads(line).items()
            if name in sides and action.get("dataChange", True):
                sides[name].update(row for row, _ in _rows(path, action))
            elif name == "cdc":
                for row, kind in _rows(path, action):
                    changed.setdefault(str(kind), Counter())[row] += 1
        yield Version(int(file.stem), sides["add"], sides["remove"], changed)


def _rows(path: str, action: dict[str, Any]) -> list[tuple[RowKey, str | None]]:
    table = pq.ParquetFile(str(Path(path, unquote(action["path"])))).read()
    values = action.get("partitionValues") or {}
    columns: list[list[Any]] = []
    for name in COLUMNS:
        if name in table.column_names:
            columns.append(table.column(name).cast(pa.string() if name == "topic" else pa.int64()).to_pylist())
        else:
            value = values.get(name)
            columns.append([value if name == "topic" or value is None else int(value)] * table.num_rows)
    kinds = (
        table.column("_change_type").to_pylist() if "_change_type" in table.column_names else [None] * table.num_rows
    )
    return [(row, kind) for row, kind in zip(zip(*columns, strict=True), kinds, strict=True)]


def stream(path: str, first: int = 0) -> Counter[RowKey]:
    """A Delta stream without options: every added row. Raises `ChangeFound` at the first version that removes."""
    found: Counter[RowKey] = Counter()
    for version in versions(path, first):
        if version.is_change:
            raise ChangeFound(version.number)
        found += version.added
    return found


def stream_without_changes(path: str, first: int = 0) -> Counter[RowKey]:
    """A Delta stream with skipChangeCommits: a version that removes anything is skipped completely."""
    found: Counter[RowKey] = Counter()
    for version in versions(path, first):
        if not version.is_change:
            found += version.added
    return found


def change_feed(path: str, first: int = 0) -> Counter[RowKey]:
    """A reader of the change data feed: inserts minus deletes. Change data files take precedence over added and
    removed files."""
    found: Counter[RowKey] = Counter()
    for version in versions(path, first):
        if version.changed:
            found.update(version.changed.get("insert", Counter()))
            found.subtract(version.changed.get("delete", Counter()))
        else:
            found.update(version.added)
            found.subtract(version.removed)
    return +found


def check_readers(path: str) -> None:
    """Every version either only adds rows, or removes rows and adds no new ones; so a reader that skips changes has
    every row that the table has or ever had.
    """
    held: Counter[RowKey] = Counter()
    for version in versions(path):
        if version.is_change:
            new = version.added - version.removed
            assert not new, f"version {version.number} removes, and adds rows: {sorted(new)[:5]}"
            if version.changed:
                assert set(version.changed) == {"delete"}
                assert version.changed["delete"] == version.removed - version.added
        held.update(version.added)
        held.subtract(version.removed)
        assert min(held.values(), default=0) >= 0
    assert not +held - stream_without_changes(path)
    assert change_feed(path) == +held
