"""Properties of a Delta table, of a new one from the sink's options `delta.*`.

Owns which of Delta's own properties may be set at creation, the form of their values, and why others are rejected: this
writer, or delta-rs below it, would not honour them. Spark passes options in lower case, so the names are restored here.
Pure except for reading an existing table's properties.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from fenceline.errors import OperatorError

if TYPE_CHECKING:
    from deltalake import DeltaTable

PREFIX: Final = "delta."
APPEND_ONLY: Final = "delta.appendOnly"
CHANGE_DATA_FEED: Final = "delta.enableChangeDataFeed"
DELETION_VECTORS: Final = "delta.enableDeletionVectors"
_BOOLEAN: Final = re.compile(r"true|false")
_INTERVAL: Final = re.compile(r"interval \d+ (nanosecond|microsecond|millisecond|second|minute|hour|day|week)s?")
_FORMS: Final[Mapping[str, tuple[re.Pattern[str], str]]] = {
    APPEND_ONLY: (_BOOLEAN, "true or false"),
    CHANGE_DATA_FEED: (_BOOLEAN, "true or false"),
    "delta.enableExpiredLogCleanup": (_BOOLEAN, "true or false"),
    "delta.checkpointInterval": (re.compile(r"[1-9]\d*"), "a positive whole number"),
    "delta.logRetentionDuration": (_INTERVAL, "a time such as 'interval 30 days'"),
    "delta.deletedFileRetentionDuration": (_INTERVAL, "a time such as 'interval 7 days'"),
}
_NAMES: Final = {name.lower(): name for name in _FORMS}
_REFUSED: Final = {
    "delta.columnmapping.mode": "this writer uses the table's column names in its files",
    "delta.enabledeletionvectors": "this writer cannot remove rows from files with deletion vectors",
    "delta.enablerowtracking": "this writer assigns no row ids",
    "delta.enableincommittimestamps": "delta-rs writes no in-commit timestamps",
    "delta.settransactionretentionduration": "these transactions identify a query's batches; without them a replayed "
    "batch is written twice",
    "delta.dataskippingnumindexedcols": "this writer keeps statistics of the first 32 columns and of the log's",
    "delta.dataskippingstatscolumns": "this writer keeps statistics of the first 32 columns and of the log's",
    "delta.isolationlevel": "this writer always commits a comparison with the log as the next version",
}
_REFUSED_PREFIXES: Final = {
    "delta.feature.": "features follow from the properties",
    "delta.constraints.": "this writer checks no constraints",
    "delta.min": "the table's protocol follows from the properties",
}


def table_properties(given: Mapping[str, str], *, loses_rows: bool) -> dict[str, str]:
    """Delta's properties from options with lower-case names. `loses_rows`: the sink removes rows from the table.

    Raises `OperatorError` for unknown or unsupported names, and for invalid values.
    """
    found: dict[str, str] = {}
    for lower, value in given.items():
        if not lower.startswith(PREFIX):
            continue
        reason = _REFUSED.get(lower) or next(
            (why for prefix, why in _REFUSED_PREFIXES.items() if lower.startswith(prefix)), None
        )
        if reason is not None:
            raise OperatorError(
                f"The table property '{lower}' cannot be set by format('fenceline_delta'): {reason}",
                "Remove the option.",
            )
        name = _NAMES.get(lower)
        if name is None:
            close = difflib.get_close_matches(lower, _NAMES, n=1, cutoff=0.75)
            raise OperatorError(
                f"Unknown table property '{lower}'",
                f"Did you mean '{_NAMES[close[0]]}'?" if close else f"Supported properties: {', '.join(_FORMS)}.",
            )
        pattern, form = _FORMS[name]
        text = value.strip().lower()
        if not pattern.fullmatch(text):
            raise OperatorError(f"The table property '{name}' must be {form}, not '{value}'")
        found[name] = text
    if found.get(APPEND_ONLY) == "true" and loses_rows:
        raise OperatorError(
            f"The table property '{APPEND_ONLY}' forbids this write, which removes rows from the table",
            f"Remove '{APPEND_ONLY}', or the options 'kafka.*' and 'upsertKeys'.",
        )
    return found


def is_set(table: DeltaTable, name: str) -> bool:
    """Whether an existing table has a property that is true or false."""
    return bool(table.metadata().configuration.get(name, "false").lower() == "true")


def refuse_append_only(table: DeltaTable, path: str) -> None:
    if is_set(table, APPEND_ONLY):
        raise OperatorError(
            f"The Delta table at {path} has rows that were truncated from the log, which cannot be removed because "
            "delta.appendOnly is set",
            "Unset the table property delta.appendOnly, or set the option repair to false.",
        )


def check_properties(table: DeltaTable, wanted: Mapping[str, str], path: str) -> None:
    """Raises `OperatorError` if an existing table has other properties than the requested ones."""
    held = table.metadata().configuration
    other = sorted(name for name, value in wanted.items() if held.get(name, "").strip().lower() != value)
    if other:
        raise OperatorError(
            f"The Delta table at {path} exists and has other properties: "
            + "; ".join(f"{name} is {held.get(name, 'not set')}, not {wanted[name]}" for name in other),
            "Options delta.* apply only when the table is created. Change the table's properties "
            "(DeltaTable.alter.set_table_properties, ALTER TABLE ... SET TBLPROPERTIES), or remove the options.",
        )
