"""Tables that a process keeps open from one batch to the next.

Owns the last few handles, each brought up to date before it is used. Opening a table reads its log since the last
checkpoint and the list of all its files, and a batch would do that twice: Spark plans its write in one process and
commits it in another, and keeps both. Bringing a handle up to date costs some milliseconds as well, so a plan, which
needs the table's form and state but not its files, only reads the entries that came (`glance`), and a commit brings its
handle up to date behind itself, while Spark is at the batch's other steps (`refresh`; decision 026). A handle is only
used on while the entry that it last stood at is still the one that was there, so that a table which was removed and
made anew is opened anew. Never decides anything.
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

from pyspark_fenceline.delta_options import DeltaOptions
from pyspark_fenceline.delta_state import KEY, TableState, decode_state, read_state

if TYPE_CHECKING:
    from deltalake import DeltaTable

_log = logging.getLogger("pyspark_fenceline")
_MOST: Final = 4
_MOST_LOOKS: Final = 200
"""Then the table is opened anew, so that what a handle has gathered on its way does not grow for ever."""
_MOST_ENTRIES: Final = 100
"""That a glance reads one by one."""
_OF_ROWS: Final = frozenset({"commitInfo", "add", "remove", "cdc", "txn"})
"""Actions that leave a table's schema, properties and protocol unchanged."""


@dataclass(frozen=True, slots=True)
class Glance:
    """`table`: with the schema, properties and protocol of the newest version, but perhaps older files. `state`: what
    the newest entry says of the comparison with the log; None where it says nothing, and then the table has its newest
    files if it is compared with the log at all.
    """

    table: DeltaTable
    state: TableState | None


@dataclass(slots=True)
class _Opened:
    table: DeltaTable
    version: int
    """At the last look; a commit moves the handle itself on."""
    entry: Any
    """What tells the file of that version's entry from another one."""
    looks: int = 0
    glance: tuple[int, Any, TableState | None] | None = None
    """The newest version that was glanced at, its entry and its state."""


_refreshing: threading.Thread | None = None
_opened: OrderedDict[tuple[Any, ...], _Opened] = OrderedDict()


def look(options: DeltaOptions) -> DeltaTable | None:
    """The table as it is now, or None when there is none. Raises `OperatorError` where it can not be opened."""
    from pyspark_fenceline.delta_commit import open_table

    _settle()
    key = _key(options)
    known = _opened.pop(key, None)
    table = None if known is None else _brought_up_to_date(options, known)
    looks = 0 if known is None or table is None else known.looks + 1
    if table is None:
        table = open_table(options)
        if table is None:
            return None
    try:
        _keep(key, _Opened(table, int(table.version()), _entry(options, int(table.version())), looks))
    except OSError as error:
        _log.info("the table at %s is opened anew for the next batch: %s", options.path, error)
    return table


def glance(options: DeltaOptions) -> Glance | None:
    """The table's form and state as they are now, or None when there is none. Raises as `look`."""
    _settle()
    key = _key(options)
    known = _opened.get(key)
    found = None if known is None else _glance(options, known)
    if found is not None:
        return found
    table = look(options)
    if table is None:
        return None
    state = read_state(table)
    if key in _opened:
        opened = _opened[key]
        _opened[key] = replace(opened, glance=(opened.version, opened.entry, state))
    return Glance(table, state)


def refresh(options: DeltaOptions) -> None:
    """Bring the table's handle up to date in the background. The next look or glance waits for it."""
    global _refreshing
    _settle()
    known = _opened.get(_key(options))
    if known is None:
        return

    def work() -> None:
        from deltalake.exceptions import DeltaError

        try:
            known.table.update_incremental()
        except (DeltaError, OSError) as error:
            # The next look finds it out, too.
            _log.info("the table at %s is not brought up to date yet: %s", options.path, error)

    _refreshing = threading.Thread(target=work, name="fenceline-delta-refresh", daemon=True)
    _refreshing.start()


def _settle() -> None:
    global _refreshing
    if _refreshing is not None:
        _refreshing.join()
        _refreshing = None


def _key(options: DeltaOptions) -> tuple[Any, ...]:
    # A handle does not survive a fork.
    return (os.getpid(), options.path, tuple(sorted((options.storage or {}).items())))


def _glance(options: DeltaOptions, known: _Opened) -> Glance | None:
    """By the entries since the last glance; None where they may have changed the table's form, or are gone."""
    if known.glance is None or known.looks >= _MOST_LOOKS:
        return None
    version, entry, state = known.glance
    try:
        if _entry(options, version) != entry:
            return None
        for _ in range(_MOST_ENTRIES):
            found = _entry(options, version + 1)
            if found is None:
                if options.client is not None and state is None:
                    # Then the files tell.
                    return None
                known.glance = (version, entry, state)
                known.looks += 1
                return Glance(known.table, state)
            version, entry = version + 1, found
            actions = _actions(options, version)
            if not actions.keys() <= _OF_ROWS:
                return None
            state = decode_state(actions.get("commitInfo", {}).get(KEY))
    except (OSError, ValueError):
        return None
    return None


def _actions(options: DeltaOptions, version: int) -> Mapping[str, Any]:
    """The last action of each kind in the entry of a version."""
    from pyspark_fenceline.delta_files import file_system

    name = f"_delta_log/{version:020d}.json"
    if "://" in options.path:
        with file_system(options).open_input_stream(name) as stream:
            text = bytes(stream.read()).decode()
    else:
        with open(os.path.join(options.path, name), encoding="utf-8") as file:
            text = file.read()
    return {kind: action for line in text.splitlines() if line.strip() for kind, action in json.loads(line).items()}


def _keep(key: tuple[Any, ...], opened: _Opened) -> None:
    if opened.entry is None:
        return
    _opened[key] = opened
    if len(_opened) > _MOST:
        _opened.popitem(last=False)


def _brought_up_to_date(options: DeltaOptions, known: _Opened) -> DeltaTable | None:
    """None where it has to be opened anew, which also says whatever is wrong."""
    from deltalake.exceptions import DeltaError

    try:
        if known.looks >= _MOST_LOOKS or _entry(options, known.version) != known.entry:
            return None
        # Versions have no gaps: without a next one nobody has gone on.
        if _entry(options, int(known.table.version()) + 1) is not None:
            known.table.update_incremental()
    except (DeltaError, OSError):
        return None
    return known.table


def _entry(options: DeltaOptions, version: int) -> Any:
    """None where the log has no entry of that version."""
    name = f"_delta_log/{version:020d}.json"
    if "://" not in options.path:
        try:
            found = os.stat(os.path.join(options.path, name))
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size
    from pyarrow import fs

    from pyspark_fenceline.delta_files import file_system

    (info,) = file_system(options).get_file_info([name])
    return None if info.type != fs.FileType.File else (info.mtime_ns, info.size)
