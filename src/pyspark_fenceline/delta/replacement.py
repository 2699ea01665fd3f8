"""Replaces files of a table in one commit, for a repair and a backfill.

Owns what other writers may do meanwhile: the replaced files must stay, and no file may be added that may hold the new
rows. A commit that reports a failure may have succeeded, so a further attempt looks for its files first. Decides
nothing about rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote

from fenceline.errors import OperatorError
from fenceline.ids import TopicPartition
from pyspark_fenceline.delta.entry import commit_entry, pause_after_conflict
from pyspark_fenceline.delta.files import DataFile
from pyspark_fenceline.delta.options import DeltaOptions
from pyspark_fenceline.delta.state import PartitionProgress, TableState, read_state
from pyspark_fenceline.delta.table_changes import files_of_version
from pyspark_fenceline.delta.table_files import TableFile, open_table, table_files

_ATTEMPTS: Final = 40


class TableChanged(Exception):
    """The table has changed since the change was planned. `may_be_committed`: a failed own commit may be in the table
    nevertheless; then its files must stay.
    """

    def __init__(self, *, may_be_committed: bool = False) -> None:
        super().__init__()
        self.may_be_committed = may_be_committed


def replace_files(
    options: DeltaOptions,
    known: Sequence[TableFile],
    remove: Sequence[TableFile],
    files: Sequence[DataFile],
    own_metadata: Mapping[str, Any],
    *,
    incoming: Mapping[TopicPartition, tuple[int, int]] | None = None,
    keeps_state: bool = True,
    deleted_row_count: int = 0,
    updated_row_count: int = 0,
) -> int:
    """Replace `remove` by `files` in one commit to the current table; returns its version. `known`: the table's files
    when the change was planned. `incoming`: bounds of the new rows; no file may have been added that may overlap them.
    Raises `TableChanged`.
    """
    from deltalake.exceptions import CommitFailedError

    paths = {file.path for file in known}
    new = incoming or {}
    since: int | None = None
    for attempt in range(_ATTEMPTS):
        table = open_table(options)
        if table is None:
            raise TableChanged(may_be_committed=attempt > 0)
        since = int(table.version()) if since is None else since
        now = {file.path: file for file in table_files(table)}
        if attempt > 0 and files and all(file.path in now for file in files):
            # The last attempt has succeeded although it reported a failure.
            return int(table.version())
        added_files = [file for path, file in now.items() if path not in paths]
        if any(file.path not in now for file in remove) or any(_may_overlap(file, new) for file in added_files):
            raise TableChanged(may_be_committed=_is_named(options, files, since + 1, int(table.version())))
        state = read_state(table) if keeps_state else None
        try:
            commit_entry(
                table,
                files,
                table.metadata().partition_columns,
                None,
                overwrite=False,
                remove=remove,
                own_metadata=own_metadata if state is None else {**own_metadata, "state": _raised(state, new).encode()},
                only_next=True,
                deleted_row_count=deleted_row_count,
                updated_row_count=updated_row_count,
            )
        except CommitFailedError:
            pause_after_conflict(attempt)
            continue
        return int(table.version()) + 1
    raise TableChanged(may_be_committed=True)


def _is_named(options: DeltaOptions, files: Sequence[DataFile], first_version: int, last_version: int) -> bool:
    """Whether a commit of these versions has one of the files, or cannot be read."""
    paths = {file.path for file in files}
    try:
        return any(
            unquote(changed.path) in paths
            for version in range(first_version, last_version + 1)
            for changed in files_of_version(options, version)
        )
    except OperatorError:
        return True


def _may_overlap(file: TableFile, incoming: Mapping[TopicPartition, tuple[int, int]]) -> bool:
    return any(file.may_hold(tp) and file.may_hold_offsets(first, last) for tp, (first, last) in incoming.items())


def _raised(state: TableState, incoming: Mapping[TopicPartition, tuple[int, int]]) -> TableState:
    partitions = dict(state.partitions)
    for tp, (_, last) in incoming.items():
        known = partitions.get(tp, PartitionProgress(-1, 0))
        partitions[tp] = PartitionProgress(known.leader_epoch, max(known.end_offset, last + 1))
    return TableState(partitions, state.topic_ids)
