"""`repair`: makes a table equal to the log, and says what it changed.

Owns the order of a repair: audit, then one log entry that takes out what the log does not hold, and one that adds what
the table lacks, read from the log (two entries, so that readers that skip changes get the new rows: decision 026). Only
files with rows that go are written anew, and only the missing ranges are read. A second repair finds nothing to do.
Somebody who writes the table meanwhile is no trouble, as long as the files in question stay and the missing ranges are
not added by others; else the repair looks again.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from fenceline.errors import OperatorError
from fenceline.ids import TopicPartition
from pyspark_fenceline.audit_table import (
    Settings,
    Starting,
    Verdict,
    audit_files,
    open_for_audit,
    settings,
)
from pyspark_fenceline.audit_work import the_session
from pyspark_fenceline.delta_change import RANGES_TOLD, Removed
from pyspark_fenceline.delta_commit import commit_entry, open_table, refuse_append_only
from pyspark_fenceline.delta_files import DataFile
from pyspark_fenceline.delta_index import bounds
from pyspark_fenceline.delta_options import DeltaOptions
from pyspark_fenceline.delta_state import PartitionState, TableState, read_state
from pyspark_fenceline.delta_table_files import TableFile, table_files
from pyspark_fenceline.planning import OffsetRange, plan_tasks
from pyspark_fenceline.repair_hands import Hands, OwnHands, SparkHands, Transform
from pyspark_fenceline.repair_plan import Work, cuts_of, work_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger("pyspark_fenceline")
_ATTEMPTS: Final = 5
_COMMIT_ATTEMPTS: Final = 40


@dataclass(frozen=True, slots=True)
class Added:
    """Records [start_offset, end_offset_exclusive) of the log that the table lacked."""

    topic: str
    partition: int
    start_offset: int
    end_offset_exclusive: int


@dataclass(slots=True)
class Repair:
    """What a repair did. `version`: of the table afterwards, None when nothing was changed. `left`: findings that it
    left as they are, because the log can not be read there or says nothing of such rows.
    """

    before: Verdict
    version: int | None = None
    removed: Sequence[Removed] = ()
    added: Sequence[Added] = ()
    added_rows: int = 0
    files_removed: int = 0
    files_added: int = 0
    left: Sequence[Mapping[str, Any]] = field(default_factory=list)

    @property
    def removed_rows(self) -> int:
        return sum(one.row_count for one in self.removed)

    def sentence(self) -> str:
        """What was changed, for a person."""
        if self.version is None:
            what = "Nothing was changed" if not self.left else "Nothing could be changed"
        else:
            by_kind: dict[str, int] = {}
            for one in self.removed:
                by_kind[str(one.reason)] = by_kind.get(str(one.reason), 0) + one.row_count
            gone = ", ".join(f"{count} {kind}" for kind, count in sorted(by_kind.items()))
            what = (
                f"Took out {self.removed_rows} rows{f' ({gone})' if gone else ''} and added {self.added_rows}, "
                f"in version {self.version}: {self.files_removed} files went, {self.files_added} came"
            )
        more = f"; {len(self.left)} findings were left as they are" if self.left else ""
        return f"{what}{more}."


def repair(
    table: str,
    bootstrap: str | Mapping[str, str],
    topics: str | Collection[str] | None = None,
    *,
    spark: SparkSession | None = None,
    storage: Mapping[str, str] | None = None,
    transform: Transform | None = None,
    starting: Starting = "earliest",
    isolation_level: str = "read_uncommitted",
    everything: bool | None = None,
    catch_up: bool = True,
    doubtful_rows: str = "keep",
) -> Repair:
    """Make the Delta table at a path equal to the log, as Spark jobs.

    `transform`: from the source's columns (with headers and leader_epoch) to the table's, where it has others.
    `catch_up`: also add what the table has not reached yet; say False where a sink that may add it twice is writing.
    `doubtful_rows`: "delete" takes out rows of which the log says nothing too (partitions that the cluster has not, and
    epochs newer than the leader's). The other arguments and errors are those of `audit`.
    """
    chosen = settings(bootstrap, topics, starting, isolation_level, everything)
    hands = SparkHands(spark or the_session(), transform)
    return _repair(table, chosen, storage, hands, catch_up=catch_up, doubtful_rows=doubtful_rows)


def repair_here(
    table: str,
    chosen: Settings,
    *,
    storage: Mapping[str, str] | None = None,
    catch_up: bool = True,
    doubtful_rows: str = "keep",
) -> Repair:
    """As `repair`, in this process and without Spark."""
    return _repair(table, chosen, storage, OwnHands(), catch_up=catch_up, doubtful_rows=doubtful_rows)


class _Moved(Exception):
    """The table is not any more what the repair was planned for."""


def _repair(
    path: str,
    chosen: Settings,
    storage: Mapping[str, str] | None,
    hands: Hands,
    *,
    catch_up: bool,
    doubtful_rows: str,
) -> Repair:
    if doubtful_rows not in ("keep", "delete"):
        raise OperatorError(f"doubtful_rows can not be {doubtful_rows!r}", "Use keep or delete.")
    for _ in range(_ATTEMPTS):
        options, files = open_for_audit(path, storage)
        found = audit_files(options, files, chosen, hands.session)
        rows = hands.collect(found.findings)
        work = work_of(rows, catch_up=catch_up, doubtful_rows=doubtful_rows)
        if work.is_empty:
            return Repair(found.verdict, left=work.left)
        try:
            return _apply(options, files, chosen, hands, work, found.verdict)
        except _Moved:
            _log.warning("the table at %s was changed during its repair, looking again", path)
    raise OperatorError(
        f"The Delta table at {path} is changed by others all the time: {_ATTEMPTS} repairs were overtaken",
        "Stop what rewrites the table (OPTIMIZE, deletes) during a repair.",
    )


def _apply(
    options: DeltaOptions,
    files: Sequence[TableFile],
    chosen: Settings,
    hands: Hands,
    work: Work,
    before: Verdict,
) -> Repair:
    cuts, removed = cuts_of(options, files, work.bad)
    table = open_table(options)
    assert table is not None, "the table was audited a moment ago"
    if cuts:
        refuse_append_only(table, options.path)
    copies = hands.rewrite(options, [cut for cut in cuts if cut.keep is not None])
    tasks = plan_tasks([OffsetRange(tp, start, end) for tp, start, end in work.absent])
    filled = hands.fill(options, table, chosen, tasks) if tasks else []
    gone = [cut.file for cut in cuts]
    added = [Added(tp.topic, tp.partition, start, end) for tp, start, end in work.absent]
    if not gone and not filled:
        return Repair(before, left=work.left)
    version = _commit_repair(options, files, gone, copies, filled, removed)
    return Repair(
        before,
        version,
        removed,
        added,
        sum(file.record_count for file in filled),
        len(gone),
        len(copies) + len(filled),
        work.left,
    )


def _commit_repair(
    options: DeltaOptions,
    known: Sequence[TableFile],
    gone: Sequence[TableFile],
    copies: Sequence[DataFile],
    filled: Sequence[DataFile],
    removed: Sequence[Removed],
) -> int:
    """Two entries, or the one of them that is needed, on the table as it is now. Returns the version of the last one.
    Raises `_Moved` where the table is not what was planned for; what the first entry did stays right.
    """
    if gone:
        version = _commit_one(options, known, gone, copies, _told(removed, []), {})
        if not filled:
            return version
        paths = {file.path for file in gone}
        known = [file for file in known if file.path not in paths]
        known += [TableFile(file.path, file.size_bytes, file.partition_values) for file in copies]
    incoming = bounds(span for file in filled for span in file.spans)
    return _commit_one(options, known, [], filled, _told([], filled), incoming)


def _commit_one(
    options: DeltaOptions,
    known: Sequence[TableFile],
    gone: Sequence[TableFile],
    files: Sequence[DataFile],
    repaired: Mapping[str, Any],
    incoming: Mapping[TopicPartition, tuple[int, int]],
) -> int:
    """`files` in place of `gone`. `incoming`: bounds of the rows that are new; no file may have come that may have some
    of them.
    """
    from deltalake.exceptions import CommitFailedError

    paths = {file.path for file in known}
    for attempt in range(_COMMIT_ATTEMPTS):
        table = open_table(options)
        if table is None:
            raise _Moved
        now = {file.path: file for file in table_files(table)}
        came = [file for path, file in now.items() if path not in paths]
        if any(file.path not in now for file in gone) or any(_may_overlap(file, incoming) for file in came):
            raise _Moved
        told: dict[str, Any] = {"repair": repaired}
        state = read_state(table)
        if state is not None:
            told["state"] = _raised(state, incoming).encode()
        try:
            commit_entry(
                table,
                files,
                table.metadata().partition_columns,
                None,
                overwrite=False,
                remove=gone,
                told=told,
                only_next=True,
                deleted_row_count=int(repaired["removed_rows"]) if gone else 0,
            )
        except CommitFailedError:
            time.sleep(random.random() * min(0.2, 0.01 * 2**attempt))
            continue
        return int(table.version()) + 1
    raise _Moved


def _may_overlap(file: TableFile, incoming: Mapping[TopicPartition, tuple[int, int]]) -> bool:
    return any(file.may_hold(tp) and file.may_hold_offsets(first, last) for tp, (first, last) in incoming.items())


def _raised(state: TableState, incoming: Mapping[TopicPartition, tuple[int, int]]) -> TableState:
    partitions = dict(state.partitions)
    for tp, (_, last) in incoming.items():
        known = partitions.get(tp, PartitionState(-1, 0))
        partitions[tp] = PartitionState(known.leader_epoch, max(known.end_offset, last + 1))
    return TableState(partitions, state.topic_ids)


def _told(removed: Sequence[Removed], filled: Sequence[DataFile]) -> dict[str, Any]:
    return {
        "removed_rows": sum(one.row_count for one in removed),
        "added_rows": sum(file.record_count for file in filled),
        "ranges": [{**one.told(), "reason": str(one.reason)} for one in removed[:RANGES_TOLD]],
        "range_count": len(removed),
    }
