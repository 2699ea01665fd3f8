"""Files into the table, once.

Owns the driver's commit: one Delta transaction that adds a batch's files and records the batch under the query's id,
so that a batch that Spark replays finds itself done (`pyspark.md` S21, S23). Every step may be the last one before a
crash:

1. tasks write files (not in the table yet; a replay writes others),
2. the table is made when it is missing (empty; a replay finds it), or given new columns (a replay finds them),
3. files without stale rows are written beside those that have some (not in the table yet; a replay writes others),
4. where rows are stale, one log entry takes the old files out and adds these copies, or nothing (a replay finds no
   stale rows; decision 026),
5. one log entry adds the batch's files and the transaction id together, or nothing,
6. Spark notes the batch as committed; when that is lost, the replay sees 5 and adds nothing. Where the table is
   compared with the log, it adds what 5 did not: the log may have been cut when the batch was read first, and be
   again what it was when the batch was planned (decision 016).

delta-rs takes an older transaction version without a word, so the comparison is made here; a second driver of the
same query that is between comparison and commit fails in delta-rs, because the table's log moved under the same
application id. Where the table is compared with the log, each entry is only taken as the very next one: whatever
anybody committed after the look at the table makes this driver look again, also between 4 and 5.
"""

from __future__ import annotations

import logging
import os
import random
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.types import StructType

from fenceline.errors import OperatorError
from fenceline.ids import TopicPartition
from pyspark_fenceline.delta_evidence import Evidence, fresh_views, known_views
from pyspark_fenceline.delta_files import DataFile, delete_files
from pyspark_fenceline.delta_index import LOG_COLUMNS, PARTITION, TOPIC, missing_columns
from pyspark_fenceline.delta_options import AppTransaction, DeltaOptions
from pyspark_fenceline.delta_schema import delta_schema, fit, new_columns, new_shape
from pyspark_fenceline.delta_state import KEY
from pyspark_fenceline.delta_table_files import table_files
from pyspark_fenceline.delta_upsert import upsert
from pyspark_fenceline.log_matching import LogView
from pyspark_fenceline.patience import with_retries

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable

    from pyspark_fenceline.delta_change import Change, Repair
    from pyspark_fenceline.delta_table_files import TableFile

_log = logging.getLogger("pyspark_fenceline")
_ATTEMPTS: Final = 10
_EXACT_ATTEMPTS: Final = 40
_LONGEST_PAUSE_S: Final = 0.2
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


def check_tracked(options: DeltaOptions, schema: StructType) -> None:
    """Raises `OperatorError` where a table is to be compared with the log and the DataFrame has not the columns."""
    missing = missing_columns(field.name for field in schema) if options.client is not None else []
    if missing:
        raise OperatorError(
            f"To compare the Delta table at {options.path} with the log, the DataFrame needs the columns"
            f" {', '.join(LOG_COLUMNS)}; it has not: {', '.join(missing)}",
            "Read with option includeLeaderEpoch=true and keep these columns, or leave out kafka.bootstrap.servers.",
        )


def partition_columns(options: DeltaOptions) -> tuple[str, ...]:
    """How a new table is partitioned: by the log's partitions where it is compared with the log and nothing else is
    asked for, so that a repair concerns the files of few partitions only.
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
    evidence: Evidence | None = None,
    opened: DeltaTable | None = None,
    query_id: str | None = None,
) -> bool:
    """Add `files` in one transaction. False when `transaction` was committed before; its new files are removed then,
    but for rows that are missing from a table that is compared with the log.

    `overwrite` replaces all rows; with the option upsertKeys rows take the place of those with equal keys. With
    `evidence` the table's stale rows are taken out in an entry before, and rows that it has are not added again.
    `opened`: the table as it was a moment ago, to be tried first. `query_id`: of a stream, whose batch `transaction`
    names; its checkpoint tells where its sources stand. Raises `OperatorError` when the DataFrame does not fit the
    table, or when others keep winning the commit.
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
                "batch %d of %s is in the table already; nothing is added", transaction.version, transaction.app_id
            )
            if attempt == 0:
                # After an own attempt the files may be in the table: a commit can land and still report a failure.
                delete_files(options, [file.path for file in files])
            return False
        if not files and not overwrite and not is_exact:
            return True
        if is_replay and attempt > 0:
            # An own attempt may have landed and still have reported a failure: these stay.
            landed = {os.path.basename(file.path) for file in table_files(table)}
            files = [file for file in files if os.path.basename(file.path) not in landed]
        for file in files:
            if tuple(file.partition_values) != shape.partition_by:
                raise OperatorError(
                    f"The Delta table at {options.path} was made with other partition columns while files were written",
                    "Run the write again.",
                )
        try:
            if options.merge_schema:
                table = _grow(options, table, schema)
            if is_exact:
                assert evidence is not None
                _commit_exactly(options, table, files, shape.partition_by, transaction, evidence, query_id)
            elif is_upsert:
                upsert(options, table, files, _properties(transaction, None, None, only_next=True))
                # Only read: their rows are in the merge's own files.
                delete_files(options, [file.path for file in files])
            else:
                commit_entry(table, files, shape.partition_by, transaction, overwrite=overwrite)
        except CommitFailedError as error:
            _log.warning("another writer was faster on %s, trying again: %s", options.path, error)
            if must_be_next:
                time.sleep(random.random() * min(_LONGEST_PAUSE_S, 0.01 * 2**attempt))
            continue
        return not is_replay
    raise OperatorError(
        f"The Delta table at {options.path} is written by others all the time: {attempts} commits failed",
        "Check that no second run of this query is active.",
    )


def _commit_exactly(
    options: DeltaOptions,
    table: DeltaTable,
    files: Sequence[DataFile],
    partition_by: Sequence[str],
    transaction: AppTransaction | None,
    evidence: Evidence,
    query_id: str | None,
) -> None:
    from pyspark_fenceline.checkpoint_places import Places, places_after
    from pyspark_fenceline.delta_exact import plan_change

    def places() -> Places | None:
        if query_id is None or transaction is None:
            return None
        return places_after(options, query_id, transaction.version)

    ask, ask_anew = _asking(options, known_views), _asking(options, fresh_views)
    change = plan_change(options, table, files, evidence, ask, ask_anew, places)
    if change.is_nothing:
        delete_files(options, change.discard)
        return
    if change.repair is not None:
        _commit_repair(options, table, change, change.repair, partition_by, transaction)
    if change.repair is None or change.add:
        _commit_append(table, change, partition_by, transaction)
    known = sum(one.row_count for one in change.removed if one.reason != "stale")
    if known:
        _log.info("%d rows of the batch are in %s already, or not in the log any more", known, options.path)
    # They were written by tasks and are in no table.
    delete_files(options, change.discard)


def _commit_repair(
    options: DeltaOptions,
    table: DeltaTable,
    change: Change,
    repair: Repair,
    partition_by: Sequence[str],
    transaction: AppTransaction | None,
) -> None:
    """The entry that takes stale rows out, and `table` behind it. It is the batch's only one where no row is added."""
    refuse_append_only(table, options.path)
    is_last = not change.add
    told = change.repair_metadata(change.state if is_last else repair.state)
    mark = transaction if is_last else None
    version = int(table.version()) + 1
    if repair.delete_where is not None:
        delete_rows(table, repair.delete_where, mark, told=told)
    else:
        commit_entry(
            table,
            repair.copies,
            partition_by,
            mark,
            overwrite=False,
            remove=repair.remove,
            told=told,
            only_next=True,
            deleted_row_count=change.stale_row_count,
        )
    _say_stale(options, change)
    if not is_last:
        follow(table, version)


def _commit_append(
    table: DeltaTable, change: Change, partition_by: Sequence[str], transaction: AppTransaction | None
) -> None:
    """The entry that adds the batch's rows and its transaction id."""
    told = change.append_metadata()
    commit_entry(table, change.add, partition_by, transaction, overwrite=False, told=told, only_next=True)


def follow(table: DeltaTable, version: int) -> None:
    """Bring `table` up to the entry that was just committed. Raises CommitFailedError where it is not the table's
    newest one any more.
    """
    from deltalake.exceptions import CommitFailedError

    table.update_incremental()
    if int(table.version()) != version:
        raise CommitFailedError(f"version {version} was followed by {table.version()} of another writer")


def _asking(
    options: DeltaOptions,
    look: Callable[[Mapping[str, str], Iterable[TopicPartition]], Mapping[TopicPartition, LogView]],
) -> Callable[[Iterable[TopicPartition]], Mapping[TopicPartition, LogView]]:
    """Histories of those partitions that exist, by `look`, as patiently as the options say."""

    def ask(partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, LogView]:
        client, wanted = options.client, set(partitions)
        assert client is not None, "only a table that is compared with the log needs histories"
        return with_retries(lambda: look(client, wanted), options.patience)

    return ask


def _say_stale(options: DeltaOptions, change: Change) -> None:
    if change.stale_row_count:
        _log.warning(
            "%d rows of %s were cut off the log and are taken out: %s",
            change.stale_row_count,
            options.path,
            "; ".join(
                f"{one.topic}-{one.partition} offsets {one.first_offset} to {one.last_offset} of epoch {one.epoch}"
                for one in change.removed[:10]
                if one.reason == "stale"
            ),
        )


def refuse_append_only(table: DeltaTable, path: str) -> None:
    if table.metadata().configuration.get("delta.appendOnly", "false").lower() == "true":
        raise OperatorError(
            f"The Delta table at {path} has rows that were cut off the log, and may not lose any (delta.appendOnly)",
            "Unset the table's property delta.appendOnly, or set the option repair to false.",
        )


def _grow(options: DeltaOptions, table: DeltaTable, schema: StructType) -> DeltaTable:
    """Add columns that the table lacks, in an entry of its own, which a replay finds done."""
    fields = new_columns(table, schema)
    if not fields:
        return table
    table.alter.add_columns(fields)
    grown = open_table(options)
    assert grown is not None, "the table was here a moment ago"
    return grown


def _newest_batch(table: DeltaTable, app_id: str) -> int:
    """That the table has of this application; -1 for none."""
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
        # Somebody else may have made it meanwhile.
        table = open_table(options)
        if table is None:
            raise
        return table


def commit_entry(
    table: DeltaTable,
    files: Sequence[DataFile],
    partition_by: Sequence[str],
    transaction: AppTransaction | None,
    *,
    overwrite: bool,
    remove: Sequence[TableFile] = (),
    told: Mapping[str, Any] | None = None,
    only_next: bool = False,
    deleted_row_count: int = 0,
    updated_row_count: int = 0,
) -> None:
    """One log entry; `table` stays where it is. `told` goes into the entry's own metadata. With `only_next` it must
    follow the version of `table`, else CommitFailedError is raised; without, it goes behind what others did that is no
    conflict. For the table's history, of the rows of `remove`: `deleted_row_count` that are in none of `files`, and
    `updated_row_count` that are there with other values.
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
    properties = _properties(transaction, told, metrics, only_next=only_next)
    table.create_write_transaction(
        actions,
        mode="overwrite" if overwrite else "append",
        schema=table.schema(),
        partition_by=list(partition_by),
        commit_properties=properties,
    )


def delete_rows(
    table: DeltaTable, condition: str, transaction: AppTransaction | None, *, told: Mapping[str, Any]
) -> None:
    """One log entry, the very next one, without the rows of a condition; with what a change data feed needs. Raises
    CommitFailedError as `commit_entry`.
    """
    # delta-rs writes its own metrics for a delete.
    table.delete(condition, commit_properties=_properties(transaction, told, None, only_next=True))


def _properties(
    transaction: AppTransaction | None,
    told: Mapping[str, Any] | None,
    metrics: Mapping[str, str] | None,
    *,
    only_next: bool,
) -> CommitProperties:
    from deltalake import CommitProperties, Transaction

    metadata: dict[str, Any] = {} if told is None else {KEY: told}
    if metrics is not None:
        metadata["operationMetrics"] = metrics
    return CommitProperties(
        app_transactions=[] if transaction is None else [Transaction(transaction.app_id, transaction.version)],
        custom_metadata=metadata or None,
        max_commit_retries=0 if only_next else None,
    )


def _write_metrics(files: Sequence[DataFile]) -> dict[str, str]:
    """As Delta's own writers name them, and as texts, for an entry that adds."""
    return _texts(
        numFiles=len(files),
        numAddedFiles=len(files),
        numOutputRows=sum(file.record_count for file in files),
        numOutputBytes=sum(file.size_bytes for file in files),
    )


def _change_metrics(
    files: Sequence[DataFile], remove: Sequence[TableFile], deleted_rows: int, updated_rows: int
) -> dict[str, str]:
    """The same for an entry that takes rows out, or changes them."""
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
