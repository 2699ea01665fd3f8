"""One entry of a table's log, planned: files that come and go, and what is told of it.

Owns these values and their form in the entry's own metadata. Made by `delta_exact`, committed by `delta_commit`.
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
class Change:
    """One log entry. `add`: files that come, `remove`: files that go. `discard`: written files that no entry names."""

    add: Sequence[DataFile]
    remove: Sequence[TableFile]
    state: TableState
    removed: Sequence[Removed] = ()
    discard: Sequence[str] = ()
    is_known: bool = False
    """The table remembers this state already."""

    @property
    def is_nothing(self) -> bool:
        """An entry would tell nothing that the table does not know."""
        return not self.add and not self.remove and self.is_known

    def metadata(self) -> dict[str, Any]:
        """For the commit: what the table remembers, and what was repaired."""
        stale = [one.told() for one in self.removed if one.reason == "stale"]
        told: dict[str, Any] = {"state": self.state.encode()}
        if stale:
            rows = sum(one.row_count for one in self.removed if one.reason == "stale")
            told["repair"] = {"removed_rows": rows, "ranges": stale[:RANGES_TOLD], "range_count": len(stale)}
        return told
