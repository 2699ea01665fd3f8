"""What the options say of rows that are taken back. Owns the values alone; `options` reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RetractionOptions:
    """`evidence`: data directories of nodes, or copies of them, where lost records are looked for besides the paths
    that receipts name. `table`: a Delta table that has the query's rows. `storage`: settings of its object store.
    """

    evidence: tuple[str, ...] = ()
    table: str | None = None
    storage: Mapping[str, str] | None = None
