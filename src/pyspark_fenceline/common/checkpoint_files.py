"""Files of a streaming query's checkpoint, in a directory or in an object store.

Owns opening a `checkpointLocation`, and the format of Spark's offset log: `offsets/<batch id>` holds a version, a line
about the batch, and a line for each source. Spark writes an entry before the batch runs and does not change it
(`pyspark.md` S8). Never writes to a checkpoint, and never interprets an entry.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

FORMAT: Final = "v1"
NO_OFFSET: Final = "-"
"""The line of a source that has not been read yet."""


def as_local(location: str) -> str:
    """A `file:` URI as its path; other locations unchanged."""
    return "/" + location[len("file:") :].lstrip("/") if location.startswith("file:") else location


def open_checkpoint(location: str, storage: Mapping[str, str] | None = None) -> Any:
    """A `pyarrow.fs.FileSystem` whose root is the checkpoint. `storage`: delta-rs' settings of an object store."""
    from pyarrow import fs

    location = as_local(location)
    if "://" not in location:
        return fs.SubTreeFileSystem(location, fs.LocalFileSystem())
    from deltalake.fs import DeltaStorageHandler

    return fs.PyFileSystem(DeltaStorageHandler(location, dict(storage or {})))


def read_text(root: Any, path: str) -> str:
    """A small file of a checkpoint. Raises OSError."""
    with root.open_input_stream(path) as stream:
        return bytes(stream.read()).decode()


def numbered(root: Any, folder: str) -> list[int]:
    """Batch ids of a metadata log (`offsets`, `commits`), ascending; empty if there is no log."""
    from pyarrow import fs

    found = root.get_file_info(fs.FileSelector(folder, allow_not_found=True))
    return sorted(int(one.base_name) for one in found if one.base_name.isdigit())


def has_files_below(root: Any, folder: str) -> bool:
    """Whether there is a file anywhere below a folder; stops at the first one."""
    from pyarrow import fs

    folders = [folder]
    while folders:
        found = root.get_file_info(fs.FileSelector(folders.pop(), allow_not_found=True))
        if any(one.type is not fs.FileType.Directory for one in found):
            return True
        folders += [one.path for one in found]
    return False


def source_lines(text: str) -> list[str] | None:
    """The sources' lines of an entry of the offset log; None for an unknown format."""
    version, *lines = text.strip().split("\n")
    if version.strip() != FORMAT or len(lines) < 2:
        return None
    return [line.strip() for line in lines[1:]]


def batch_timestamp_ms(text: str) -> int | None:
    """When the batch of an entry was planned, by the clock of Spark's driver (ms since 1970); None if unknown."""
    lines = text.strip().split("\n")
    try:
        found = json.loads(lines[1])["batchTimestampMs"]
    except (IndexError, ValueError, KeyError, TypeError):
        return None
    return found if isinstance(found, int) and found > 0 else None
