"""Repairs are read from the table's own log, oldest first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, write_deltalake

from fenceline.demo.checks import row_count
from fenceline.demo.repairs import repairs_of

ROWS = pa.table({"offset": [1, 2, 3]})


def stale(partition: int, first: int, last: int) -> dict[str, object]:
    """As the sink tells it, of one file."""
    where = {"topic": "flights", "partition": partition, "epoch": 2, "first_offset": first, "last_offset": last}
    return {**where, "row_count": last + 1 - first, "reason": "stale"}


REPAIR = {
    "removed_rows": 60,
    "ranges": [stale(1, 1_020, 1_049), stale(1, 1_000, 1_019), stale(2, 1_050, 1_059)],
    "range_count": 3,
}


def commit(path: Path, told: Any) -> None:
    said = CommitProperties(custom_metadata={} if told is None else {"fenceline": told})
    write_deltalake(str(path), ROWS, mode="append", commit_properties=said)


def test_a_table_that_is_not_there_has_no_repairs_and_no_rows(tmp_path: Path) -> None:
    assert repairs_of(tmp_path / "none") == []
    assert row_count(tmp_path / "none") == 0


def test_repairs_among_other_entries(tmp_path: Path) -> None:
    entries: tuple[Any, ...] = (None, {"state": {}}, {"state": {}, "repair": REPAIR}, {"state": {}}, {"repair": REPAIR})
    for told in entries:
        commit(tmp_path, told)
    first, second = repairs_of(tmp_path)
    assert (first.version, second.version, first.rows) == (2, 4, 60)
    assert first.at_wall_s <= second.at_wall_s
    assert str(first) == (
        "version 2 of the raw table takes out 60 stale rows (flights-1 1,000 to 1,049 of epoch 2, "
        "flights-2 1,050 to 1,059 of epoch 2)"
    )
    assert row_count(tmp_path) == 15
