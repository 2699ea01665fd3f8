"""Files into the table, once.

Owns the driver's commit: one Delta transaction that adds a batch's files and records the batch under the query's id,
so that a batch that Spark replays finds itself done (`pyspark.md` S21, S23). Every step may be the last one before a
crash:

1. tasks write files (not in the table yet; a replay writes others),
2. the table is made when it is missing (empty; a replay finds it),
3. one log entry adds the files and the transaction id together, or not at all,
4. Spark notes the batch as committed; when that is lost, the replay sees 3 and adds nothing.

delta-rs takes an older transaction version without a word, so the comparison is made here; a second driver of the
same query that is between comparison and commit fails in delta-rs, because the table's log moved under the same
application id.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql.types import StructType

from fenceline.errors import OperatorError
from pyspark_fenceline.delta_files import DataFile, delete_files
from pyspark_fenceline.delta_options import AppTransaction, DeltaOptions
from pyspark_fenceline.delta_schema import delta_schema, fit, new_shape

if TYPE_CHECKING:
    from deltalake import DeltaTable

_log = logging.getLogger("pyspark_fenceline")
_ATTEMPTS: Final = 10
_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")
"""delta-rs colours what an object store has answered."""


def open_table(options: DeltaOptions) -> DeltaTable | None:
    """The table at the path, or None when there is none. Raises `OperatorError` where it can not be opened."""
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError, TableNotFoundError

    if os.path.isfile(options.path):
        raise OperatorError(f"{options.path} is a file and no Delta table", "Choose the path of a directory.")
    try:
        return DeltaTable(options.path, storage_options=dict(options.storage) if options.storage else None)
    except TableNotFoundError:
        return None
    except (DeltaError, OSError) as error:
        raise OperatorError(
            f"The Delta table at {options.path} can not be opened: {_COLOURS.sub('', str(error)).strip()}",
            "Check the path and, where it lies in an object store, the options storage.*.",
        ) from error


def commit_files(
    options: DeltaOptions,
    schema: StructType,
    files: Sequence[DataFile],
    *,
    transaction: AppTransaction | None,
    overwrite: bool,
) -> bool:
    """Add `files` in one transaction. False when `transaction` was committed before; its new files are removed then.

    `overwrite` replaces all rows. Raises `OperatorError` when the DataFrame does not fit the table, or when others keep
    winning the commit.
    """
    from deltalake.exceptions import CommitFailedError

    if not files and not overwrite and transaction is None:
        return True
    for attempt in range(_ATTEMPTS):
        table = open_table(options) or _create(options, schema)
        shape = fit(table, schema, options.partition_by, options.path)
        if transaction is not None and _is_done(table, transaction):
            _log.warning(
                "batch %d of %s is in the table already; nothing is added", transaction.version, transaction.app_id
            )
            if attempt == 0:
                # After an own attempt the files may be in the table: a commit can land and still report a failure.
                delete_files(options, [file.path for file in files])
            return False
        if not files and not overwrite:
            return True
        for file in files:
            if tuple(file.partition_values) != shape.partition_by:
                raise OperatorError(
                    f"The Delta table at {options.path} was made with other partition columns while files were written",
                    "Run the write again.",
                )
        try:
            _commit(table, schema, files, shape.partition_by, transaction, overwrite=overwrite)
        except CommitFailedError as error:
            _log.warning("another writer was faster on %s, trying again: %s", options.path, error)
            continue
        return True
    raise OperatorError(
        f"The Delta table at {options.path} is written by others all the time: {_ATTEMPTS} commits failed",
        "Check that no second run of this query is active.",
    )


def _is_done(table: DeltaTable, transaction: AppTransaction) -> bool:
    latest = table.transaction_version(transaction.app_id)
    return latest is not None and latest >= transaction.version


def _create(options: DeltaOptions, schema: StructType) -> DeltaTable:
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    shape = new_shape(schema, options.partition_by)
    storage = dict(options.storage) if options.storage else None
    try:
        return DeltaTable.create(
            options.path,
            schema=delta_schema(schema),
            mode="error",
            partition_by=list(shape.partition_by),
            storage_options=storage,
        )
    except DeltaError:
        # Somebody else may have made it meanwhile.
        table = open_table(options)
        if table is None:
            raise
        return table


def _commit(
    table: DeltaTable,
    schema: StructType,
    files: Sequence[DataFile],
    partition_by: Sequence[str],
    transaction: AppTransaction | None,
    *,
    overwrite: bool,
) -> None:
    from deltalake import CommitProperties, Transaction
    from deltalake.transaction import AddAction, RemoveAction

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
    marks = [] if transaction is None else [Transaction(transaction.app_id, transaction.version)]
    table.create_write_transaction(
        actions,
        mode="overwrite" if overwrite else "append",
        schema=table.schema(),
        partition_by=list(partition_by),
        commit_properties=CommitProperties(app_transactions=marks),
    )
