"""The planned commits of a batch: files to add and remove, and the commits' metadata.

Owns these values and their form in the commit metadata. A repair, which removes stale rows, is a separate commit before
the one that adds the batch's rows: readers that skip or reject changes lose no new row (decision 026). Planned by
`delta.plan`, committed by `delta.commit`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark_fenceline.common.log_columns import LogColumns
from pyspark_fenceline.delta.files import DataFile
from pyspark_fenceline.delta.state import TableState
from pyspark_fenceline.delta.table_files import TableFile

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

MAX_RANGES_SHOWN: Final = 50


@dataclass(frozen=True, slots=True)
class Removed:
    """Removed rows of one partition and epoch; both offsets are inclusive. `reason`: stale, lost, known, or the kind of
    an audit's finding."""

    topic: str
    partition: int
    epoch: int
    first_offset: int
    last_offset: int
    row_count: int
    reason: str

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


def removed_rows(columns: LogColumns, mask: npt.NDArray[np.bool_], reason: str) -> list[Removed]:
    """The rows of a mask, by partition and epoch. A row without a valid epoch has -1."""
    import numpy as np

    found: list[Removed] = []
    chosen = np.flatnonzero(mask)
    codes = columns.codes[chosen]
    for code in np.unique(codes[codes >= 0]).tolist():
        tp = columns.partitions[code]
        rows = chosen[codes == code]
        epochs = columns.epochs[rows]
        for epoch in np.unique(epochs).tolist():
            offsets = columns.offsets[rows[epochs == epoch]]
            first, last = int(offsets.min()), int(offsets.max())
            found.append(Removed(tp.topic, tp.partition, max(epoch, -1), first, last, len(offsets), reason))
    return found


@dataclass(frozen=True, slots=True)
class RepairCommit:
    """The commit that removes stale rows. `remove`: files to remove, `copies`: their remaining rows. `state`: the
    table's state while this commit is its newest one.
    """

    remove: Sequence[TableFile]
    copies: Sequence[DataFile]
    state: TableState
    delete_where: str | None = None
    """Instead of copies, if the table has a change data feed: the rows to delete, in SQL."""


@dataclass(frozen=True, slots=True)
class TableChange:
    """What a batch changes. `repair`: the commit before the batch's own, None if no row is removed. `add`: the batch's
    files. `state`: the table's state afterwards. `discard`: written files that no commit adds.
    """

    add: Sequence[DataFile]
    state: TableState
    repair: RepairCommit | None = None
    removed: Sequence[Removed] = ()
    discard: Sequence[str] = ()
    is_unchanged: bool = False
    """The table has this state already."""

    @property
    def is_empty(self) -> bool:
        """A commit would change neither the table nor its state."""
        return not self.add and self.repair is None and self.is_unchanged

    @property
    def stale_row_count(self) -> int:
        return sum(one.row_count for one in self.removed if one.reason == "stale")

    def append_metadata(self) -> dict[str, Any]:
        """For the commit that adds the batch's rows: the table's state."""
        return {"state": self.state.encode()}

    def repair_metadata(self, state: TableState) -> dict[str, Any]:
        """For the commit that removes rows: the table's state, and what was removed."""
        stale = [one.to_json() for one in self.removed if one.reason == "stale"]
        metadata: dict[str, Any] = {"state": state.encode()}
        if stale:
            metadata["repair"] = {
                "removed_rows": self.stale_row_count,
                "ranges": stale[:MAX_RANGES_SHOWN],
                "range_count": len(stale),
            }
        return metadata
