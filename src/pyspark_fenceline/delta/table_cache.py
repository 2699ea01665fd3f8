"""Caches table handles from one batch to the next.

Owns the last few handles, each updated before it is used. Opening a table reads its log since the last checkpoint and
the list of all its files, and a batch would do that twice: Spark plans its write in one process and commits it in
another, and keeps both. Updating a handle takes some milliseconds as well. So a plan, which needs the table's schema
and state but not its files, only reads the new commits (`table_summary`), and a commit updates its handle afterwards in
the background, during the batch's other steps (`refresh`; decision 026). A handle is reused only while the commit file
of its version is unchanged, so that a table that was deleted and recreated is opened again. Never decides anything.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from pyspark_fenceline.delta.options import DeltaOptions
from pyspark_fenceline.delta.state import KEY, TableState, decode_state, read_state

if TYPE_CHECKING:
    from deltalake import DeltaTable

_log = logging.getLogger("pyspark_fenceline")
_MAX_HANDLES: Final = 4
_MAX_USES: Final = 200
"""Then the table is opened again, so that the memory of a handle does not grow without limit."""
_MAX_ENTRIES: Final = 100
"""Number of commits that `table_summary` reads one by one."""
_DATA_ACTIONS: Final = frozenset({"commitInfo", "add", "remove", "cdc", "txn"})
"""Actions that leave a table's schema, properties and protocol unchanged."""


@dataclass(frozen=True, slots=True)
class TableSummary:
    """`table`: with the schema, properties and protocol of the newest version, but its files may be older. `state`: the
    state of the comparison with the log in the newest commit; if it is None and the table is compared with the log, the
    files of `table` are the newest.
    """

    table: DeltaTable
    state: TableState | None


@dataclass(slots=True)
class _Handle:
    table: DeltaTable
    version: int
    """At the last use; a commit advances the handle itself."""
    entry: Any
    """Identifies the commit file of that version."""
    uses: int = 0
    table_summary: tuple[int, Any, TableState | None] | None = None
    """The newest version that `table_summary` read, its commit file and its state."""


_refreshing: threading.Thread | None = None
_handles: OrderedDict[tuple[Any, ...], _Handle] = OrderedDict()


def cached_table(options: DeltaOptions) -> DeltaTable | None:
    """The current table, or None if there is none. Raises `OperatorError` if it cannot be opened."""
    from pyspark_fenceline.delta.table_files import open_table

    _await_refresh()
    key = _key(options)
    known = _handles.pop(key, None)
    table = None if known is None else _updated(options, known)
    uses = 0 if known is None or table is None else known.uses + 1
    if table is None:
        table = open_table(options)
        if table is None:
            return None
    try:
        _keep(key, _Handle(table, int(table.version()), _entry(options, int(table.version())), uses))
    except OSError as error:
        _log.info("the table at %s will be opened again for the next batch: %s", options.path, error)
    return table


def table_summary(options: DeltaOptions) -> TableSummary | None:
    """The table's current schema and state, or None if there is none. Raises as `cached_table`."""
    _await_refresh()
    key = _key(options)
    known = _handles.get(key)
    found = None if known is None else _summary(options, known)
    if found is not None:
        return found
    table = cached_table(options)
    if table is None:
        return None
    state = read_state(table)
    if key in _handles:
        handle = _handles[key]
        _handles[key] = replace(handle, table_summary=(handle.version, handle.entry, state))
    return TableSummary(table, state)


def refresh(options: DeltaOptions) -> None:
    """Update the table's handle in the background. The next use waits for it."""
    global _refreshing
    _await_refresh()
    known = _handles.get(_key(options))
    if known is None:
        return

    def work() -> None:
        from deltalake.exceptions import DeltaError

        try:
            known.table.update_incremental()
        except (DeltaError, OSError) as error:
            # The next use reports it.
            _log.info("the handle of the table at %s could not be updated: %s", options.path, error)

    _refreshing = threading.Thread(target=work, name="fenceline-delta-refresh", daemon=True)
    _refreshing.start()


def _await_refresh() -> None:
    global _refreshing
    if _refreshing is not None:
        _refreshing.join()
        _refreshing = None


def _key(options: DeltaOptions) -> tuple[Any, ...]:
    # A handle does not survive a fork.
    return (os.getpid(), options.path, tuple(sorted((options.storage or {}).items())))


def _summary(options: DeltaOptions, known: _Handle) -> TableSummary | None:
    """From the commits since the last summary; None if they may have changed the schema, or were deleted."""
    if known.table_summary is None or known.uses >= _MAX_USES:
        return None
    version, entry, state = known.table_summary
    try:
        if _entry(options, version) != entry:
            return None
        for _ in range(_MAX_ENTRIES):
            found = _entry(options, version + 1)
            if found is None:
                if options.client is not None and state is None:
                    # Then the files are needed.
                    return None
                known.table_summary = (version, entry, state)
                known.uses += 1
                return TableSummary(known.table, state)
            version, entry = version + 1, found
            actions = _actions(options, version)
            if not actions.keys() <= _DATA_ACTIONS:
                return None
            state = decode_state(actions.get("commitInfo", {}).get(KEY))
    except (OSError, ValueError):
        return None
    return None


def _actions(options: DeltaOptions, version: int) -> Mapping[str, Any]:
    """The last action of each kind in the commit file of a version."""
    from pyspark_fenceline.delta.files import file_system

    name = f"_delta_log/{version:020d}.json"
    if "://" in options.path:
        with file_system(options).open_input_stream(name) as stream:
            text = bytes(stream.read()).decode()
    else:
        with open(os.path.join(options.path, name), encoding="utf-8") as file:
            text = file.read()
    return {kind: action for line in text.splitlines() if line.strip() for kind, action in json.loads(line).items()}


def _keep(key: tuple[Any, ...], handle: _Handle) -> None:
    if handle.entry is None:
        return
    _handles[key] = handle
    if len(_handles) > _MAX_HANDLES:
        _handles.popitem(last=False)


def _updated(options: DeltaOptions, known: _Handle) -> DeltaTable | None:
    """None if it must be opened again, which also raises any error."""
    from deltalake.exceptions import DeltaError

    try:
        if known.uses >= _MAX_USES or _entry(options, known.version) != known.entry:
            return None
        # Versions have no gaps: without a next one there are no newer commits.
        if _entry(options, int(known.table.version()) + 1) is not None:
            known.table.update_incremental()
    except (DeltaError, OSError):
        return None
    return known.table


def _entry(options: DeltaOptions, version: int) -> Any:
    """Identifies the commit file of a version; None if there is none."""
    name = f"_delta_log/{version:020d}.json"
    if "://" not in options.path:
        try:
            found = os.stat(os.path.join(options.path, name))
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size
    from pyarrow import fs

    from pyspark_fenceline.delta.files import file_system

    (info,) = file_system(options).get_file_info([name])
    return None if info.type != fs.FileType.File else (info.mtime_ns, info.size)
