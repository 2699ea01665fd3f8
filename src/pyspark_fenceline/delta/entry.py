"""One commit to a table: an entry of its log, with metadata, the batch's transaction id and metrics.

Owns the form of an entry, and how a writer that must write the very next version finds that another one was first.
Decides nothing, and never tries again by itself.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark_fenceline.delta.files import DataFile
from pyspark_fenceline.delta.options import AppTransaction
from pyspark_fenceline.delta.state import KEY
from pyspark_fenceline.delta.table_files import TableFile

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable

_LONGEST_PAUSE_S: Final = 0.2


def commit_entry(
    table: DeltaTable,
    files: Sequence[DataFile],
    partition_by: Sequence[str],
    transaction: AppTransaction | None,
    *,
    overwrite: bool,
    remove: Sequence[TableFile] = (),
    own_metadata: Mapping[str, Any] | None = None,
    only_next: bool = False,
    deleted_row_count: int = 0,
    updated_row_count: int = 0,
) -> None:
    """One commit; `table` is not updated. `own_metadata` becomes commit metadata. With `only_next` the commit must be
    the next version after `table`, else CommitFailedError is raised; without, it may follow concurrent commits that do
    not conflict. For the table's history: of the rows of `remove`, `deleted_row_count` are in none of `files`, and
    `updated_row_count` are there with other values.
    """
    from deltalake.transaction import AddAction, RemoveAction

    now_ms = time.time_ns() // 1_000_000
    actions: list[AddAction | RemoveAction] = [
        AddAction(
            path=file.path,
            size=file.size_bytes,
            partition_values=file.partition_values,
            modification_time=file.modified_ms,
            data_change=True,
            stats=file.statistics,
        )
        for file in files
    ]
    actions += [RemoveAction(file.path, True, now_ms, file.size_bytes, dict(file.partition_values)) for file in remove]
    metrics = _change_metrics(files, remove, deleted_row_count, updated_row_count) if remove else _write_metrics(files)
    properties = commit_properties(transaction, own_metadata, metrics, only_next=only_next)
    table.create_write_transaction(
        actions,
        mode="overwrite" if overwrite else "append",
        schema=table.schema(),
        partition_by=list(partition_by),
        commit_properties=properties,
    )


def delete_rows(
    table: DeltaTable, condition: str, transaction: AppTransaction | None, *, own_metadata: Mapping[str, Any]
) -> None:
    """One commit, the very next version, that deletes the rows of a condition and writes change data. Raises
    CommitFailedError as `commit_entry`.
    """
    # delta-rs writes its own metrics for a delete.
    table.delete(condition, commit_properties=commit_properties(transaction, own_metadata, only_next=True))


def commit_properties(
    transaction: AppTransaction | None,
    own_metadata: Mapping[str, Any] | None = None,
    metrics: Mapping[str, str] | None = None,
    *,
    only_next: bool,
) -> CommitProperties:
    from deltalake import CommitProperties, Transaction

    metadata: dict[str, Any] = {} if own_metadata is None else {KEY: own_metadata}
    if metrics is not None:
        metadata["operationMetrics"] = metrics
    return CommitProperties(
        app_transactions=[] if transaction is None else [Transaction(transaction.app_id, transaction.version)],
        custom_metadata=metadata or None,
        max_commit_retries=0 if only_next else None,
    )


def _write_metrics(files: Sequence[DataFile]) -> dict[str, str]:
    """Metrics of a commit that adds files, with the names of Delta's own writers, as text."""
    return _texts(
        numFiles=len(files),
        numAddedFiles=len(files),
        numOutputRows=sum(file.record_count for file in files),
        numOutputBytes=sum(file.size_bytes for file in files),
    )


def _change_metrics(
    files: Sequence[DataFile], remove: Sequence[TableFile], deleted_rows: int, updated_rows: int
) -> dict[str, str]:
    """The same for a commit that removes or changes rows."""
    updated = {"numUpdatedRows": updated_rows} if updated_rows else {}
    return _texts(
        numAddedFiles=len(files),
        numRemovedFiles=len(remove),
        numAddedBytes=sum(file.size_bytes for file in files),
        numRemovedBytes=sum(file.size_bytes for file in remove),
        numCopiedRows=sum(file.record_count for file in files) - updated_rows,
        numDeletedRows=deleted_rows,
        **updated,
    )


def _texts(**numbers: int) -> dict[str, str]:
    return {name: str(number) for name, number in numbers.items()}


def advance(table: DeltaTable, version: int) -> None:
    """Update `table` to the version that was just committed. Raises CommitFailedError if the table has a newer one."""
    from deltalake.exceptions import CommitFailedError

    table.update_incremental()
    if int(table.version()) != version:
        raise CommitFailedError(f"version {version} was followed by {table.version()} of another writer")


def pause_after_conflict(attempt: int) -> None:
    """Before the next attempt of a commit that must be the next version. `attempt`: from 0 on."""
    time.sleep(random.random() * min(_LONGEST_PAUSE_S, 0.01 * 2**attempt))
