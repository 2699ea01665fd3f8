"""Plans the changes of a batch to a table that must match the log exactly.

Owns the decision, against one version of the table: which of its files have stale rows (`log_matching`), which rows of
the batch are already in the table or were truncated meanwhile, and the table's state afterwards. Rows of any partition
may be removed, whether the batch has rows of it or not, if the source would read them again (`delta.stale_rows`). Files
are checked by their bounds first, then by four of their columns; only files with rows to remove are rewritten, and a
file with stale rows only is not even read. Commits nothing: `delta.commit` makes one commit of it, or two if stale rows
are removed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fenceline.errors import OperatorError
from fenceline.ids import TopicPartition
from pyspark_fenceline.common.execution import in_threads
from pyspark_fenceline.common.log_columns import ColumnSpan, LogColumns, bounds, merged, spans_of
from pyspark_fenceline.common.log_matching import (
    AFTER_ALL,
    BEFORE_ALL,
    UNKNOWN_EPOCH,
    LogEpochs,
    SpanVerdict,
    judge_span,
)
from pyspark_fenceline.delta.beyond import refuse_rows_beyond
from pyspark_fenceline.delta.change import Removed, RepairCommit, TableChange, removed_rows
from pyspark_fenceline.delta.checkpoint_positions import SourcePositions
from pyspark_fenceline.delta.evidence import TruncationEvidence
from pyspark_fenceline.delta.files import DataFile
from pyspark_fenceline.delta.options import DeltaOptions
from pyspark_fenceline.delta.properties import CHANGE_DATA_FEED, is_set
from pyspark_fenceline.delta.rewrite import rewrite
from pyspark_fenceline.delta.stale_rows import EMPTY_LOG, StaleRule, delete_condition, removable_from, stale_mask
from pyspark_fenceline.delta.state import PartitionProgress, TableState, last_topic_ids, read_state
from pyspark_fenceline.delta.table_files import TableFile, end_offsets, read_log_columns, table_files

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from deltalake import DeltaTable

    Mask = npt.NDArray[np.bool_]

GetLogEpochs = Callable[[Iterable[TopicPartition]], Mapping[TopicPartition, LogEpochs]]
GetPositions = Callable[[], SourcePositions | None]


@dataclass(slots=True)
class ChangePlanner:
    """Plans one batch. `get_epochs`: fetches epochs that `evidence` lacks; `fetch_epochs`: fetches epochs and current
    bounds; `get_positions`: reads the sources' positions after this batch, None if unknown.
    """

    options: DeltaOptions
    table: DeltaTable
    files: Sequence[DataFile]
    evidence: TruncationEvidence
    get_epochs: GetLogEpochs
    fetch_epochs: GetLogEpochs
    get_positions: GetPositions
    _kept_files: list[TableFile] | None = field(default=None, init=False)
    _columns: dict[str, LogColumns] = field(default_factory=dict, init=False)
    _removed: list[Removed] = field(default_factory=list, init=False)

    def plan(self) -> TableChange:
        """Raises `OperatorError` if the table is of another topic, or has rows above the end of the log."""
        state = read_state(self.table)
        spans = merged(span for file in self.files for span in file.spans)
        incoming = bounds(spans)
        ends = self._ends(state)
        known_ids = state.topic_ids if state is not None else last_topic_ids(self.table)
        others = {
            topic for topic, id in known_ids.items() if id and self.evidence.topic_ids.get(topic) not in (id, None)
        }
        replaced = self._replaced_topics(others, {tp.topic for tp in incoming})
        recreated = {tp for tp in ends if tp.topic in replaced}
        doubted = {tp for tp in self._doubted(state, ends) if tp.topic not in others}
        ends |= self._checked(state, {tp: end for tp, end in ends.items() if tp.topic not in others})
        rules, in_doubt = self._stale_rules(doubted, spans)
        judged = {tp: rule for tp, rule in rules.items() if tp in doubted} | dict.fromkeys(
            recreated, StaleRule(EMPTY_LOG)
        )
        remove, partly = self._clean_table(judged)
        copies, delete_where = self._rewrite_files(partly, judged)
        logs = {tp: rule.log for tp, rule in rules.items() if tp not in in_doubt}
        overlapping = {
            tp: incoming[tp]
            for tp in incoming
            if tp in ends and incoming[tp][0] < ends[tp] and tp.topic not in replaced
        }
        present = self._present(overlapping) if overlapping else {}
        add, discard = self._clean_batch(logs, present)
        if remove or overlapping:
            # A bound from the files may be lower now; that of a file with many partitions may be less exact.
            removed_paths = {file.path for file in remove}
            remaining = [file for file in self._all_files() if file.path not in removed_paths]
            found = self._bounds_of(remaining, partly, {*ends})
            ends = {tp: min(end, found.get(tp, 0)) for tp, end in ends.items()}
        compared = {tp: rule.log for tp, rule in judged.items() if tp not in in_doubt}
        ids = {topic: id for topic, id in self.evidence.topic_ids.items() if topic not in others - replaced}
        ids = {**known_ids, **ids}
        known = TableState(self._next_partitions(state, ends, incoming, compared, in_doubt), ids)
        repair = None
        if remove:
            without = TableState(self._next_partitions(state, ends, {}, compared, in_doubt), ids)
            repair = RepairCommit(remove, copies, without, delete_where)
        return TableChange(
            add=add,
            state=known,
            repair=repair,
            removed=self._removed,
            discard=discard,
            is_unchanged=known == state,
        )

    # Affected partitions ----------------------------------------------------------------------------------------

    def _all_files(self) -> list[TableFile]:
        if self._kept_files is None:
            self._kept_files = table_files(self.table)
        return self._kept_files

    def _ends(self, state: TableState | None) -> dict[TopicPartition, int]:
        """An offset above all rows, of each partition of which the table may have rows."""
        if state is not None:
            return {tp: known.end_offset for tp, known in state.partitions.items()}
        return self._bounds_of(self._all_files(), (), {*self.evidence.leader_epochs})

    def _bounds_of(
        self, files: Sequence[TableFile], partly: Sequence[tuple[TableFile, Mask]], wanted: set[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """`partly`: files with the mask of the rows that stay."""
        import numpy as np

        ends = end_offsets(files, wanted)
        for file, keep in partly:
            remaining_spans = spans_of(self._read(file).rows(np.flatnonzero(keep)), complete=False)
            for tp, (_, last) in bounds(remaining_spans).items():
                ends[tp] = max(ends.get(tp, 0), last + 1)
        return ends

    def _replaced_topics(self, others: set[str], incoming: set[str]) -> set[str]:
        """The recreated topics of which the batch has records; for the others one broker's metadata is no proof. Raises
        `OperatorError` unless onRecreated=replace.
        """
        replaced = others & incoming
        if replaced and self.options.on_recreated != "replace":
            raise OperatorError(
                f"The Delta table at {self.options.path} holds rows of topics that were deleted and recreated: "
                f"{', '.join(sorted(replaced))}",
                'Write to a new table, or set the option onRecreated to "replace" to remove the old rows.',
            )
        return replaced

    def _doubted(self, state: TableState | None, partitions: Iterable[TopicPartition]) -> Iterator[TopicPartition]:
        """Those of `partitions` whose rows were not compared with the current leader's log yet."""
        for tp in partitions:
            known = state.partitions.get(tp) if state is not None else None
            if self.evidence.leader_epochs.get(tp, -1) > (UNKNOWN_EPOCH if known is None else known.leader_epoch):
                yield tp

    def _checked(self, state: TableState | None, ends: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
        """For partitions whose rows may be above the log's end: an exact offset above all rows. Raises `OperatorError`
        for rows that cannot be from this cluster's log.
        """
        suspects: list[TopicPartition] = []
        for tp, end in ends.items():
            known = state.partitions.get(tp) if state is not None else None
            leader_epoch = self.evidence.leader_epochs.get(tp, UNKNOWN_EPOCH)
            # No other writer since a comparison with an older leader: rows above the end of this one are stale.
            is_older = known is not None and UNKNOWN_EPOCH < known.leader_epoch < leader_epoch
            if not is_older and end > self.evidence.log_ends.get(tp, AFTER_ALL):
                suspects.append(tp)
        if not suspects:
            return {}
        # The files first, then the logs: records written meanwhile are in both.
        files = self._all_files()
        found = refuse_rows_beyond(self.options, files, self._read, self.fetch_epochs(suspects))
        return {tp: min(end, ends[tp]) for tp, end in found.items()}

    def _stale_rules(
        self, doubted: set[TopicPartition], spans: Sequence[ColumnSpan]
    ) -> tuple[dict[TopicPartition, StaleRule], set[TopicPartition]]:
        """The stale rule of each partition whose rows in the table are doubted or of which the batch has rows of an
        older leader; and the partitions that the next batch must check again.

        Rows are removed only by an answer that this process got now, never by that of a leader older than the one that
        the task found, and only as far as the source would read them again if a second unclean election brought them
        back (`delta.stale_rows`).
        """
        epochs = self.evidence.leader_epochs
        older = {s.topic_partition for s in spans if 0 <= s.epoch < epochs.get(s.topic_partition, -1)} - doubted
        if not doubted | older:
            return {}, set()
        positions = self.get_positions() or {}
        newest = {span.topic_partition: span for span in sorted(spans, key=lambda span: span.epoch)}
        # The source's positions in other partitions are unknown: they wait.
        known_position = {tp for tp in doubted | older if tp in positions or tp in newest}
        logs = {tp: log for tp, log in self.evidence.logs.items() if tp in known_position - doubted}
        if known_position - logs.keys():
            logs.update(self.get_epochs(sorted(known_position - logs.keys())))
        rules = {
            tp: StaleRule(log, removable_from(log, positions.get(tp), newest.get(tp)))
            for tp, log in logs.items()
            if log.leader_epoch >= epochs.get(tp, -1)
        }
        decided = {tp for tp, rule in rules.items() if rule.from_offset == BEFORE_ALL}
        return rules, known_position - decided

    # The table's rows -------------------------------------------------------------------------------------------

    def _clean_table(
        self, rules: Mapping[TopicPartition, StaleRule]
    ) -> tuple[list[TableFile], list[tuple[TableFile, Mask]]]:
        """Files to remove, and for some of them the mask of the rows that stay."""
        judged = {tp: rule for tp, rule in rules.items() if rule.from_offset != AFTER_ALL}
        if not judged:
            return [], []
        remove: list[TableFile] = []
        partly: list[tuple[TableFile, Mask]] = []
        for file in self._all_files():
            stale = self._stale_in(file, judged)
            if stale is None:
                continue
            remove.append(file)
            if not isinstance(stale, bool):
                partly.append((file, ~stale))
        return remove, partly

    def _rewrite_files(
        self, partly: Sequence[tuple[TableFile, Mask]], rules: Mapping[TopicPartition, StaleRule]
    ) -> tuple[list[DataFile], str | None]:
        """Copies of files without their stale rows. For a table with a change data feed no copies are made: the commit
        must contain the changed rows as well, which only delta-rs' own delete writes, by a condition on rows.
        """
        if partly and is_set(self.table, CHANGE_DATA_FEED):
            return [], delete_condition(rules, self._removed)
        copies = in_threads(lambda one: rewrite(self.options, one[0].path, one[0].partition_values, one[1]), partly)
        return copies, None

    def _stale_in(self, file: TableFile, rules: Mapping[TopicPartition, StaleRule]) -> Mask | bool | None:
        """None: no row to remove. True: all rows. Else the mask of the stale rows."""
        only = file.only_partition
        concerned = [only] if only is not None else [tp for tp in rules if file.may_hold(tp)]
        concerned = [tp for tp in concerned if tp in rules and file.may_hold_offsets(rules[tp].from_offset, AFTER_ALL)]
        if not concerned:
            return None
        if only is not None and file.offsets is not None and file.epochs is not None:
            verdict = judge_span(rules[only].log, *file.offsets, *file.epochs)
            if verdict is SpanVerdict.NONE_STALE:
                return None
            may_go = file.offsets[0] >= rules[only].from_offset
            if verdict is SpanVerdict.ALL_STALE and may_go and not file.has_null_epochs:
                removed = Removed(*only, file.epochs[0], *file.offsets, file.record_count or 0, "stale")
                self._removed.append(removed)
                return True
        columns = self._read(file)
        stale = stale_mask(columns, rules)
        if not stale.any():
            return None
        self._removed += removed_rows(columns, stale, "stale")
        return True if stale.all() else stale

    def _present(
        self, overlapping: Mapping[TopicPartition, tuple[int, int]]
    ) -> dict[TopicPartition, list[tuple[Any, Any]]]:
        """Offsets and epochs of the rows that stay in the table, within the batch's bounds.

        Files that were just rewritten are read in their old form: their stale rows match no row of the batch that is
        kept.
        """
        import numpy as np

        present: dict[TopicPartition, list[tuple[Any, Any]]] = {}
        for file in self._all_files():
            for tp, (first, last) in overlapping.items():
                only = file.only_partition
                if (only is not None and only != tp) or not file.may_hold(tp):
                    continue
                if not file.may_hold_offsets(first, last):
                    continue
                columns = self._read(file)
                if tp not in columns.partitions:
                    continue
                of_partition = columns.codes == columns.partitions.index(tp)
                inside = of_partition & (columns.offsets >= first) & (columns.offsets <= last)
                rows = np.flatnonzero(inside)
                present.setdefault(tp, []).append((columns.offsets[rows], columns.epochs[rows]))
        return present

    def _read(self, file: TableFile) -> LogColumns:
        if file.path not in self._columns:
            self._columns[file.path] = read_log_columns(self.options, file)
        return self._columns[file.path]

    # The batch's rows -------------------------------------------------------------------------------------------

    def _clean_batch(
        self, logs: Mapping[TopicPartition, LogEpochs], present: Mapping[TopicPartition, Sequence[tuple[Any, Any]]]
    ) -> tuple[list[DataFile], list[str]]:
        """The batch's files without rows that are stale or already in the table; and the files that these replace."""
        import numpy as np

        add: list[DataFile] = []
        discard: list[str] = []
        for file in self.files:
            doubtful = any(
                span.topic_partition in logs
                and judge_span(logs[span.topic_partition], span.first_offset, span.last_offset, span.epoch, span.epoch)
                is not SpanVerdict.NONE_STALE
                for span in file.spans
            )
            if not doubtful and not any(span.topic_partition in present for span in file.spans):
                add.append(file)
                continue
            columns = read_log_columns(
                self.options, TableFile(file.path, file.size_bytes, file.partition_values, file.record_count)
            )
            stale = stale_mask(columns, {tp: StaleRule(log) for tp, log in logs.items()})
            known = _known_mask(columns, present) & ~stale
            keep = ~(stale | known)
            self._removed += removed_rows(columns, stale, "lost")
            self._removed += removed_rows(columns, known, "known")
            if keep.all():
                add.append(file)
                continue
            discard.append(file.path)
            if np.any(keep):
                add.append(rewrite(self.options, file.path, file.partition_values, keep))
        return add, discard

    # The table's state ------------------------------------------------------------------------------------------

    def _next_partitions(
        self,
        state: TableState | None,
        ends: Mapping[TopicPartition, int],
        incoming: Mapping[TopicPartition, tuple[int, int]],
        compared: Mapping[TopicPartition, LogEpochs],
        in_doubt: set[TopicPartition],
    ) -> dict[TopicPartition, PartitionProgress]:
        """`compared`: the partitions whose rows were compared now, and with what. `in_doubt`: the batch may have added
        rows that are not in the log, so the next batch must compare again.
        """
        epochs = self.evidence.leader_epochs
        partitions: dict[TopicPartition, PartitionProgress] = {}
        for tp in sorted({*ends, *incoming}):
            end = max(ends.get(tp, 0), incoming[tp][1] + 1 if tp in incoming else 0)
            known = state.partitions.get(tp) if state is not None else None
            under = known.leader_epoch if known is not None else UNKNOWN_EPOCH
            if tp in in_doubt:
                under = UNKNOWN_EPOCH
            elif tp not in ends or compared.get(tp) is EMPTY_LOG:
                under = epochs.get(tp, UNKNOWN_EPOCH)
            elif tp in compared:
                under = compared[tp].leader_epoch
            partitions[tp] = PartitionProgress(under, end)
        return partitions


def _known_mask(columns: LogColumns, present: Mapping[TopicPartition, Sequence[tuple[Any, Any]]]) -> Mask:
    """Rows whose offset and epoch are in the table."""
    import numpy as np

    known = np.zeros(len(columns), dtype=np.bool_)
    for tp, pairs in present.items():
        if tp not in columns.partitions:
            continue
        of_partition = columns.codes == columns.partitions.index(tp)
        offsets = np.concatenate([pair[0] for pair in pairs])
        epochs = np.concatenate([pair[1] for pair in pairs])
        for epoch in np.unique(columns.epochs[of_partition]).tolist():
            rows = np.flatnonzero(of_partition & (columns.epochs == epoch))
            known[rows] = np.isin(columns.offsets[rows], offsets[epochs == epoch])
    return known
