"""The entries of a table's log that a batch makes, planned: files that come and go, and what the entries say of it.

Owns these values and their form in the entries' own metadata. A repair, which takes stale rows out, is an entry of its
own before the one that adds the batch's rows: readers that skip or refuse changes lose no new row (decision 026). Made
by `delta_exact`, committed by `delta_commit`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark_fenceline.delta_files import DataFile
from pyspark_fenceline.delta_state import TableState
from pyspark_fenceline.delta_table_files import TableFile

RANGES_TOLD: Final = 50


@dataclass(frozen=True, slots=True)
class Removed:
    """Rows of one partition and epoch that were taken out; both offsets are included. `reason`: stale, known."""

    topic: str
    partition: int
    epoch: int
    first_offset: int
    last_offset: int
    row_count: int
    reason: str

    def told(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Repair:
    """The entry that takes stale rows out. `remove`: files that go, `copies`: what stays of them. `state`: what the
    table remembers when this entry is its newest one.
    """

    remove: Sequence[TableFile]
    copies: Sequence[DataFile]
    state: TableState
    delete_where: str | None = None
    """Instead of copies, where the table has a change data feed: the rows that go, in SQL."""


@dataclass(frozen=True, slots=True)
class Change:
    """What a batch changes. `repair`: the entry before the batch's own, None where no row goes. `add`: the batch's
    files. `state`: what the table remembers afterwards. `discard`: written files that no entry names.
    """

    add: Sequence[DataFile]
    state: TableState
    repair: Repair | None = None
    removed: Sequence[Removed] = ()
    discard: Sequence[str] = ()
    is_known: bool = False
    """The table remembers this state already."""

    @property
    def is_nothing(self) -> bool:
        """An entry would tell nothing that the table does not know."""
        return not self.add and self.repair is None and self.is_known

    @property
    def stale_row_count(self) -> int:
        return sum(one.row_count for one in self.removed if one.reason == "stale")

    def append_metadata(self) -> dict[str, Any]:
        """For the entry that adds the batch's rows: what the table remembers."""
        return {"state": self.state.encode()}

    def repair_metadata(self, state: TableState) -> dict[str, Any]:
        """For the entry that takes rows out: what the table remembers, and what was repaired."""
        stale = [one.told() for one in self.removed if one.reason == "stale"]
        told: dict[str, Any] = {"state": state.encode()}
        if stale:
            told["repair"] = {
                "removed_rows": self.stale_row_count,
                "ranges": stale[:RANGES_TOLD],
                "range_count": len(stale),
            }
        return told
