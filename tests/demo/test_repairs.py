"""Repairs are read from the table's transaction log, oldest first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, write_deltalake

from fenceline.demo.checks import row_count
from fenceline.demo.repairs import repairs_of

ROWS = pa.table({"offset": [1, 2, 3]})


def stale(partition: int, first: int, last: int) -> dict[str, object]:
    """A range of one file, as the sink writes it."""
    where = {"topic": "flights", "partition": partition, "epoch": 2, "first_offset": first, "last_offset": last}
    return {**where, "row_count": last + 1 - first, "reason": "stale"}


REPAIR = {
    "removed_rows": 60,
    "ranges": [stale(1, 1_020, 1_049), stale(1, 1_000, 1_019), stale(2, 1_050, 1_059)],
    "range_count": 3,
}


def commit(path: Path, repair: Any) -> None:
    properties = CommitProperties(custom_metadata={} if repair is None else {"fenceline": repair})
    write_deltalake(str(path), ROWS, mode="append", commit_properties=properties)


def test_a_missing_table_has_no_repairs_and_no_rows(tmp_path: Path) -> None:
    assert repairs_of(tmp_path / "none") == []
    assert row_count(tmp_path / "none") == 0


def test_repairs_among_other_entries(tmp_path: Path) -> None:
    entries: tuple[Any, ...] = (None, {"state": {}}, {"state": {}, "repair": REPAIR}, {"state": {}}, {"repair": REPAIR})
    for repair in entries:
        commit(tmp_path, repair)
    first, second = repairs_of(tmp_path)
    assert (first.version, second.version, first.rows) == (2, 4, 60)
    assert first.at_wall_s <= second.at_wall_s
    assert str(first) == (
        "Version 2 of the raw table deletes 60 stale rows: flights-1 1,000 to 1,049 of epoch 2, "
        "flights-2 1,050 to 1,059 of epoch 2"
    )
    assert row_count(tmp_path) == 15
