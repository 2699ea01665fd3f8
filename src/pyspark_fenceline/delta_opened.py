"""Tables that a process keeps open from one batch to the next.

Owns the last few handles, each brought up to date before it is used. Opening a table reads its log since the last
checkpoint and the list of all its files, and a batch would do that twice: Spark plans its write in one process and
commits it in another, and keeps both. A handle is only used on while the entry that it last stood at is still the one
that was there, so that a table which was removed and made anew is opened anew. Never decides anything.
"""

from __future__ import annotations

import logging
import os
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark_fenceline.delta_options import DeltaOptions

if TYPE_CHECKING:
    from deltalake import DeltaTable

_log = logging.getLogger("pyspark_fenceline")
_MOST: Final = 4
_MOST_LOOKS: Final = 200
"""Then the table is opened anew, so that what a handle has gathered on its way does not grow for ever."""


@dataclass(slots=True)
class _Opened:
    table: DeltaTable
    version: int
    """At the last look; a commit moves the handle itself on."""
    entry: Any
    """What tells the file of that version's entry from another one."""
    looks: int = 0


_opened: OrderedDict[tuple[Any, ...], _Opened] = OrderedDict()


def look(options: DeltaOptions) -> DeltaTable | None:
    """The table as it is now, or None when there is none. Raises `OperatorError` where it can not be opened."""
    from pyspark_fenceline.delta_commit import open_table

    # A handle does not survive a fork.
    key = (os.getpid(), options.path, tuple(sorted((options.storage or {}).items())))
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
