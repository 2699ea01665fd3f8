"""Commits files to the table exactly once.

Owns the driver's commit: one Delta transaction that adds a batch's files and records the batch under the query's id,
so that a replayed batch is not added again (`pyspark.md` S21, S23). A crash may follow any step:

1. tasks write files (not in the table yet; a replay writes others),
2. a missing table is created (empty; a replay finds it), or new columns are added (a replay finds them),
3. copies without stale rows are written for files that have some (not in the table yet; a replay writes others),
4. if rows are stale, one commit atomically removes the old files and adds these copies (a replay finds no stale rows;
   decision 026),
5. one commit atomically adds the batch's files and the transaction id,
6. Spark records the batch as committed; if that is lost, the replay finds 5 and adds nothing. If the table is compared
   with the log, it adds what 5 did not: the log may have been truncated when the batch was first read, and may again be
   as it was when the batch was planned (decision 016).

delta-rs accepts an older transaction version without an error, so the versions are compared here. A second driver of
the same query between comparison and commit fails in delta-rs, because the table has a newer transaction of the same
application id. If the table is compared with the log, each commit must be the very next version: any other commit since
the table was read makes this driver read it again, also between 4 and 5.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql.types import StructType

from fenceline.errors import OperatorError
from fenceline.ids import TopicPartition
from pyspark_fenceline.common.log_columns import LOG_COLUMNS, PARTITION, TOPIC, missing_columns
from pyspark_fenceline.common.log_matching import LogEpochs
from pyspark_fenceline.common.retries import with_retries
from pyspark_fenceline.delta.entry import advance, commit_entry, commit_properties, delete_rows, pause_after_conflict
from pyspark_fenceline.delta.evidence import TruncationEvidence, cached_log_epochs, fetch_log_epochs
from pyspark_fenceline.delta.files import DataFile, delete_files
from pyspark_fenceline.delta.options import AppTransaction, DeltaOptions
from pyspark_fenceline.delta.properties import refuse_append_only
from pyspark_fenceline.delta.schema import delta_schema, fit, new_columns, new_shape
from pyspark_fenceline.delta.table_files import open_table, table_files
from pyspark_fenceline.delta.upsert import upsert

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from pyspark_fenceline.delta.change import RepairCommit, TableChange

_log = logging.getLogger("pyspark_fenceline")
_ATTEMPTS: Final = 10
_EXACT_ATTEMPTS: Final = 40


def check_tracked(options: DeltaOptions, schema: StructType) -> None:
    """Raises `OperatorError` if the table is to be compared with the log and the DataFrame lacks the columns."""
    missing = missing_columns(field.name for field in schema) if options.client is not None else []
    if missing:
        raise OperatorError(
            f"To compare the Delta table at {options.path} with the log, the DataFrame needs the columns"
            f" {', '.join(LOG_COLUMNS)}; missing: {', '.join(missing)}",
            "Read with option includeLeaderEpoch=true and keep these columns, or remove kafka.bootstrap.servers.",
        )


def partition_columns(options: DeltaOptions) -> tuple[str, ...]:
    """The partition columns of a new table. By default a table that is compared with the log is partitioned as the log,
    so that a repair affects the files of few partitions only.
    """
    if options.is_partitioning_given or options.client is None:
        return options.partition_by
    return TOPIC, PARTITION


def commit_files(
    options: DeltaOptions,
    schema: StructType,
    files: Sequence[DataFile],
    *,
    transaction: AppTransaction | None,
    overwrite: bool,
    evidence: TruncationEvidence | None = None,
    opened: DeltaTable | None = None,
    query_id: str | None = None,
) -> bool:
    """Add `files` in one transaction. False if `transaction` was committed before; then its new files are removed,
    except for rows that are missing from a table that is compared with the log.

    `overwrite` replaces all rows; with the option upsertKeys rows replace those with equal keys. With `evidence` the
    table's stale rows are removed in a commit before, and rows that it has are not added again. `opened`: a recent
    handle of the table, to be tried first. `query_id`: of a stream, whose batch `transaction` names; its checkpoint has
    the positions of its sources. Raises `OperatorError` if the DataFrame does not fit the table, or if concurrent
    commits win every attempt.
    """
    from deltalake.exceptions import CommitFailedError

    if not files and not overwrite and transaction is None and evidence is None:
        return True
    is_exact = evidence is not None and options.client is not None and not overwrite
    is_upsert = bool(options.upsert_keys and files and not overwrite)
    must_be_next = is_exact or is_upsert
    attempts = _EXACT_ATTEMPTS if must_be_next else _ATTEMPTS
    for attempt in range(attempts):
        table = (opened if attempt == 0 else None) or open_table(options) or _create(options, schema)
        shape = fit(table, schema, options.partition_by, options.path, may_grow=options.merge_schema)
        newest = -1 if transaction is None else _newest_batch(table, transaction.app_id)
        is_replay = transaction is not None and newest == transaction.version
        if transaction is not None and newest >= transaction.version and not (is_replay and is_exact):
            _log.warning(
                "batch %d of %s is already in the table, nothing is added", transaction.version, transaction.app_id
            )
            if attempt == 0:
                # After an own attempt the files may be in the table: a commit can succeed and still report a failure.
                delete_files(options, [file.path for file in files])
            return False
        if not files and not overwrite and not is_exact:
            return True
        if is_replay and attempt > 0:
            # An own attempt may have succeeded and still have reported a failure: its files stay.
            landed = {os.path.basename(file.path) for file in table_files(table)}
            files = [file for file in files if os.path.basename(file.path) not in landed]
        for file in files:
            if tuple(file.partition_values) != shape.partition_by:
                raise OperatorError(
                    f"The Delta table at {options.path} was created with other partition columns during the write",
                    "Run the write again.",
                )
        try:
            if options.merge_schema:
                table = _add_columns(options, table, schema)
            if is_exact:
                assert evidence is not None
                _commit_exactly(options, table, files, shape.partition_by, transaction, evidence, query_id)
            elif is_upsert:
                upsert(options, table, files, commit_properties(transaction, only_next=True))
                # The merge has written their rows to its own files.
                delete_files(options, [file.path for file in files])
            else:
                commit_entry(table, files, shape.partition_by, transaction, overwrite=overwrite)
        except CommitFailedError as error:
            _log.warning("concurrent commit to the table at %s, retrying: %s", options.path, error)
            if must_be_next:
                pause_after_conflict(attempt)
            continue
        return not is_replay
    raise OperatorError(
        f"Concurrent writers changed the Delta table at {options.path} during each of {attempts} commits",
        "Check that no second run of this query is active.",
    )


def _commit_exactly(
    options: DeltaOptions,
    table: DeltaTable,
    files: Sequence[DataFile],
    partition_by: Sequence[str],
    transaction: AppTransaction | None,
    evidence: TruncationEvidence,
    query_id: str | None,
) -> None:
    from pyspark_fenceline.delta.checkpoint_positions import SourcePositions, positions_after
    from pyspark_fenceline.delta.plan import ChangePlanner

    def positions() -> SourcePositions | None:
        if query_id is None or transaction is None:
            return None
        return positions_after(options, query_id, transaction.version)

    get_epochs, fetch_epochs = (
        _with_option_retries(options, cached_log_epochs),
        _with_option_retries(options, fetch_log_epochs),
    )
    change = ChangePlanner(options, table, files, evidence, get_epochs, fetch_epochs, positions).plan()
    if change.is_empty:
        delete_files(options, change.discard)
        return
    if change.repair is not None:
        _commit_repair(options, table, change, change.repair, partition_by, transaction)
    if change.repair is None or change.add:
        _commit_append(table, change, partition_by, transaction)
    known = sum(one.row_count for one in change.removed if one.reason != "stale")
    if known:
        _log.info("%d rows of the batch are already in %s, or no longer in the log", known, options.path)
    # Written by tasks, and in no table.
    delete_files(options, change.discard)


def _commit_repair(
    options: DeltaOptions,
    table: DeltaTable,
    change: TableChange,
    repair: RepairCommit,
    partition_by: Sequence[str],
    transaction: AppTransaction | None,
) -> None:
    """The commit that removes stale rows; updates `table` to it. It is the batch's only commit if no row is added."""
    refuse_append_only(table, options.path)
    is_last = not change.add
    own_metadata = change.repair_metadata(change.state if is_last else repair.state)
    mark = transaction if is_last else None
    version = int(table.version()) + 1
    if repair.delete_where is not None:
        delete_rows(table, repair.delete_where, mark, own_metadata=own_metadata)
    else:
        commit_entry(
            table,
            repair.copies,
            partition_by,
            mark,
            overwrite=False,
            remove=repair.remove,
            own_metadata=own_metadata,
            only_next=True,
            deleted_row_count=change.stale_row_count,
        )
    _log_stale_rows(options, change)
    if not is_last:
        advance(table, version)


def _commit_append(
    table: DeltaTable, change: TableChange, partition_by: Sequence[str], transaction: AppTransaction | None
) -> None:
    """The commit that adds the batch's rows and its transaction id."""
    own_metadata = change.append_metadata()
    commit_entry(
        table, change.add, partition_by, transaction, overwrite=False, own_metadata=own_metadata, only_next=True
    )


def _with_option_retries(
    options: DeltaOptions,
    fetch: Callable[[Mapping[str, str], Iterable[TopicPartition]], Mapping[TopicPartition, LogEpochs]],
) -> Callable[[Iterable[TopicPartition]], Mapping[TopicPartition, LogEpochs]]:
    """Calls `fetch` for those partitions that exist, with the retries of the options."""

    def get_epochs(partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, LogEpochs]:
        client, wanted = options.client, set(partitions)
        assert client is not None, "only a table that is compared with the log needs epochs"
        return with_retries(lambda: fetch(client, wanted), options.retries)

    return get_epochs


def _log_stale_rows(options: DeltaOptions, change: TableChange) -> None:
    if change.stale_row_count:
        _log.warning(
            "%d rows of the table at %s were truncated from the log and are removed: %s",
            change.stale_row_count,
            options.path,
            "; ".join(
                f"{one.topic}-{one.partition} offsets {one.first_offset} to {one.last_offset} of epoch {one.epoch}"
                for one in change.removed[:10]
                if one.reason == "stale"
            ),
        )


def _add_columns(options: DeltaOptions, table: DeltaTable, schema: StructType) -> DeltaTable:
    """Add columns that the table lacks, in a separate commit, which a replay finds."""
    fields = new_columns(table, schema)
    if not fields:
        return table
    table.alter.add_columns(fields)
    grown = open_table(options)
    assert grown is not None, "the table was here a moment ago"
    return grown


def _newest_batch(table: DeltaTable, app_id: str) -> int:
    """The table's newest batch of this application; -1 for none."""
    newest = table.transaction_version(app_id)
    return -1 if newest is None else newest


def _create(options: DeltaOptions, schema: StructType) -> DeltaTable:
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    shape = new_shape(schema, partition_columns(options))
    storage = dict(options.storage) if options.storage else None
    try:
        return DeltaTable.create(
            options.path,
            schema=delta_schema(schema),
            mode="error",
            partition_by=list(shape.partition_by),
            configuration=options.properties or None,
            storage_options=storage,
        )
    except DeltaError:
        # Another writer may have created it meanwhile.
        table = open_table(options)
        if table is None:
            raise
        return table
