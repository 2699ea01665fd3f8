"""The options of retractions. Owns the values only; `options` parses them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RetractionOptions:
    """`evidence`: data directories of nodes, or copies, that are searched for lost records in addition to the paths in
    receipts. `table`: a Delta table that holds the query's rows. `storage`: settings of its object store.
    """

    evidence: tuple[str, ...] = ()
    table: str | None = None
    storage: Mapping[str, str] | None = None
