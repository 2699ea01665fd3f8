"""Properties of a new Delta table, given to the sink as options `delta.*`.

Owns which of Delta's own properties may be set at creation, how their values look, and why others are refused: a
property that this writer, or delta-rs below it, would not keep is worse than none. Spark hands options over in lower
case, so the names are restored here. Pure but for the look at an existing table's properties.
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
_BOOLEAN: Final = re.compile(r"true|false")
_INTERVAL: Final = re.compile(r"interval \d+ (nanosecond|microsecond|millisecond|second|minute|hour|day|week)s?")
_FORMS: Final[Mapping[str, tuple[re.Pattern[str], str]]] = {
    APPEND_ONLY: (_BOOLEAN, "true or false"),
    "delta.enableChangeDataFeed": (_BOOLEAN, "true or false"),
    "delta.enableExpiredLogCleanup": (_BOOLEAN, "true or false"),
    "delta.checkpointInterval": (re.compile(r"[1-9]\d*"), "a positive whole number"),
    "delta.logRetentionDuration": (_INTERVAL, "a time such as 'interval 30 days'"),
    "delta.deletedFileRetentionDuration": (_INTERVAL, "a time such as 'interval 7 days'"),
}
_NAMES: Final = {name.lower(): name for name in _FORMS}
_REFUSED: Final = {
    "delta.columnmapping.mode": "this writer names the columns in its files as in the table",
    "delta.enabledeletionvectors": "rows can not be taken out of files with deletion vectors here",
    "delta.enablerowtracking": "this writer gives rows no ids",
    "delta.enableincommittimestamps": "delta-rs writes no such timestamps",
    "delta.settransactionretentionduration": "a query's batches are known by these transactions; without them a batch "
    "that is replayed is written twice",
    "delta.dataskippingnumindexedcols": "this writer keeps statistics of the first 32 columns and of the log's",
    "delta.dataskippingstatscolumns": "this writer keeps statistics of the first 32 columns and of the log's",
    "delta.isolationlevel": "this writer always commits what it compares with the log as the next version",
}
_REFUSED_PREFIXES: Final = {
    "delta.feature.": "features follow from the properties",
    "delta.constraints.": "this writer checks no constraints",
    "delta.min": "the table's protocol follows from the properties",
}


def table_properties(given: Mapping[str, str], *, loses_rows: bool) -> dict[str, str]:
    """Delta's properties out of options with lower-case names. `loses_rows`: the sink takes rows out of the table.

    Raises `OperatorError` for names that are not known or not kept, and for values that mean nothing.
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
                f"The table property '{lower}' can not be set by format('fenceline_delta'): {reason}",
                "Leave the option out.",
            )
        name = _NAMES.get(lower)
        if name is None:
            close = difflib.get_close_matches(lower, _NAMES, n=1, cutoff=0.75)
            raise OperatorError(
                f"The table property '{lower}' is not known",
                f"Is '{_NAMES[close[0]]}' meant?" if close else f"Known are: {', '.join(_FORMS)}.",
            )
        pattern, form = _FORMS[name]
        text = value.strip().lower()
        if not pattern.fullmatch(text):
            raise OperatorError(f"The table property '{name}' must be {form}, not '{value}'")
        found[name] = text
    if found.get(APPEND_ONLY) == "true" and loses_rows:
        raise OperatorError(
            f"The table property '{APPEND_ONLY}' forbids what this write has to do: it takes rows out of the table",
            f"Leave out '{APPEND_ONLY}', or the options 'kafka.*' and 'upsertKeys'.",
        )
    return found


def check_properties(table: DeltaTable, wanted: Mapping[str, str], path: str) -> None:
    """Raises `OperatorError` where a table that exists has other properties than those asked for."""
    held = table.metadata().configuration
    other = sorted(name for name, value in wanted.items() if held.get(name, "").strip().lower() != value)
    if other:
        raise OperatorError(
            f"The Delta table at {path} exists and has other properties: "
            + "; ".join(f"{name} is {held.get(name, 'not set')}, not {wanted[name]}" for name in other),
            "Options delta.* count where the table is created. Change the table's properties "
            "(DeltaTable.alter.set_table_properties, ALTER TABLE ... SET TBLPROPERTIES), or leave the options out.",
        )
