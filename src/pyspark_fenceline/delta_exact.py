"""Plans the changes of a batch to a table that must match the log exactly.

Owns the decision, against one version of the table: which of its files have stale rows (`log_matching`), which rows of
the batch are already in the table or were truncated meanwhile, and the table's state afterwards. Rows of any partition
may be removed, whether the batch has rows of it or not, if the source would read them again (`delta_reach`). Files are
checked by their bounds first, then by four of their columns; only files with rows to remove are rewritten, and a file
with stale rows only is not even read. Commits nothing: `delta_commit` makes one commit of it, or two if stale rows are
removed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from fenceline.errors import OperatorError
from fenceline.ids import TopicPartition
from pyspark_fenceline.checkpoint_places import Places
from pyspark_fenceline.delta_beyond import refuse_rows_beyond
from pyspark_fenceline.delta_change import Change, Removed, Repair
from pyspark_fenceline.delta_evidence import Evidence
from pyspark_fenceline.delta_feed import delete_condition, has_change_feed
from pyspark_fenceline.delta_files import DataFile
from pyspark_fenceline.delta_index import LogColumns, Span, bounds, merged, spans_of
from pyspark_fenceline.delta_masks import NOTHING_OF_IT, Word, known_mask, stale_mask
from pyspark_fenceline.delta_options import DeltaOptions
from pyspark_fenceline.delta_reach import reach
from pyspark_fenceline.delta_rewrite import rewrite
from pyspark_fenceline.delta_state import PartitionState, TableState, last_topic_ids, read_state
from pyspark_fenceline.delta_table_files import TableFile, end_offsets, read_log_columns, table_files
from pyspark_fenceline.log_matching import (
    AFTER_ALL,
    BEFORE_ALL,
    UNKNOWN_EPOCH,
    LogView,
    SpanVerdict,
    judge_span,
)

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from deltalake import DeltaTable

    Mask = npt.NDArray[np.bool_]

_log = logging.getLogger("pyspark_fenceline")
_THREADS: Final = 4
AskViews = Callable[[Iterable[TopicPartition]], Mapping[TopicPartition, LogView]]
AskPlaces = Callable[[], Places | None]


def plan_change(
    options: DeltaOptions,
    table: DeltaTable,
    files: Sequence[DataFile],
    evidence: Evidence,
    ask: AskViews,
    ask_anew: AskViews,
    ask_places: AskPlaces,
) -> Change:
    """`ask`: fetches epochs that `evidence` lacks; `ask_anew`: fetches epochs and current bounds; `ask_places`: reads
    the sources' positions after this batch, None if unknown. Raises `OperatorError` if the table is of another topic,
    or has rows above the end of the log.
    """
    return _Planner(options, table, files, evidence, ask, ask_anew, ask_places).plan()


class _Planner:
    def __init__(
        self,
        options: DeltaOptions,
        table: DeltaTable,
        files: Sequence[DataFile],
        evidence: Evidence,
        ask: AskViews,
        ask_anew: AskViews,
        ask_places: AskPlaces,
    ) -> None:
        self._options = options
        self._table = table
        self._files = files
        self._evidence = evidence
        self._ask = ask
        self._ask_anew = ask_anew
        self._ask_places = ask_places
        self._kept_files: list[TableFile] | None = None
        self._columns: dict[str, LogColumns] = {}
        self._removed: list[Removed] = []

    def plan(self) -> Change:
        state = read_state(self._table)
        spans = merged(span for file in self._files for span in file.spans)
        incoming = bounds(spans)
        ends = self._ends(state)
        known_ids = state.topic_ids if state is not None else last_topic_ids(self._table)
        others = {
            topic for topic, id in known_ids.items() if id and self._evidence.topic_ids.get(topic) not in (id, None)
        }
        replaced = self._replaced_topics(others, {tp.topic for tp in incoming})
        anew = {tp for tp in ends if tp.topic in replaced}
        doubted = {tp for tp in self._doubted(state, ends) if tp.topic not in others}
        ends |= self._checked(state, {tp: end for tp, end in ends.items() if tp.topic not in others})
        words, unsettled = self._words(doubted, spans)
        judged = {tp: word for tp, word in words.items() if tp in doubted} | dict.fromkeys(anew, Word(NOTHING_OF_IT))
        remove, partly = self._clean_table(judged)
        copies, delete_where = self._what_stays(partly, judged)
        views = {tp: word.view for tp, word in words.items() if tp not in unsettled}
        overlapping = {
            tp: incoming[tp]
            for tp in incoming
            if tp in ends and incoming[tp][0] < ends[tp] and tp.topic not in replaced
        }
        present = self._present(overlapping) if overlapping else {}
        add, discard = self._clean_batch(views, present)
        if remove or overlapping:
            # A bound from the files may be lower now; that of a file with many partitions may be less exact.
            gone = {file.path for file in remove}
            remaining = [file for file in self._all_files() if file.path not in gone]
            found = self._bounds_of(remaining, partly, {*ends})
            ends = {tp: min(end, found.get(tp, 0)) for tp, end in ends.items()}
        compared = {tp: word.view for tp, word in judged.items() if tp not in unsettled}
        ids = {topic: id for topic, id in self._evidence.topic_ids.items() if topic not in others - replaced}
        ids = {**known_ids, **ids}
        known = TableState(self._next_partitions(state, ends, incoming, compared, unsettled), ids)
        repair = None
        if remove:
            without = TableState(self._next_partitions(state, ends, {}, compared, unsettled), ids)
            repair = Repair(remove, copies, without, delete_where)
        return Change(
            add=add,
            state=known,
            repair=repair,
            removed=self._removed,
            discard=discard,
            is_known=known == state,
        )

    # Affected partitions ----------------------------------------------------------------------------------------

    def _all_files(self) -> list[TableFile]:
        if self._kept_files is None:
            self._kept_files = table_files(self._table)
        return self._kept_files

    def _ends(self, state: TableState | None) -> dict[TopicPartition, int]:
        """An offset above all rows, of each partition of which the table may have rows."""
        if state is not None:
            return {tp: known.end_offset for tp, known in state.partitions.items()}
        return self._bounds_of(self._all_files(), (), {*self._evidence.leader_epochs})

    def _bounds_of(
        self, files: Sequence[TableFile], partly: Sequence[tuple[TableFile, Mask]], wanted: set[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """`partly`: files with the mask of the rows that stay."""
        import numpy as np

        ends = end_offsets(files, wanted)
        for file, keep in partly:
            staying = spans_of(self._read(file).rows(np.flatnonzero(keep)), complete=False)
            for tp, (_, last) in bounds(staying).items():
                ends[tp] = max(ends.get(tp, 0), last + 1)
        return ends

    def _replaced_topics(self, others: set[str], incoming: set[str]) -> set[str]:
        """The recreated topics of which the batch has records; for the others one broker's metadata is no proof. Raises
        `OperatorError` unless onRecreated=replace.
        """
        replaced = others & incoming
        if replaced and self._options.on_recreated != "replace":
            raise OperatorError(
                f"The Delta table at {self._options.path} holds rows of topics that were deleted and recreated: "
                f"{', '.join(sorted(replaced))}",
                'Write to a new table, or set the option onRecreated to "replace" to remove the old rows.',
            )
        return replaced

    def _doubted(self, state: TableState | None, partitions: Iterable[TopicPartition]) -> Iterator[TopicPartition]:
        """Those of `partitions` whose rows were not compared with the current leader's log yet."""
        for tp in partitions:
            known = state.partitions.get(tp) if state is not None else None
            if self._evidence.leader_epochs.get(tp, -1) > (UNKNOWN_EPOCH if known is None else known.leader_epoch):
                yield tp

    def _checked(self, state: TableState | None, ends: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
        """For partitions whose rows may be above the log's end: an exact offset above all rows. Raises `OperatorError`
        for rows that cannot be from this cluster's log.
        """
        suspects: list[TopicPartition] = []
        for tp, end in ends.items():
            known = state.partitions.get(tp) if state is not None else None
            leader_epoch = self._evidence.leader_epochs.get(tp, UNKNOWN_EPOCH)
            # No other writer since a comparison with an older leader: rows above the end of this one are stale.
            is_older = known is not None and UNKNOWN_EPOCH < known.leader_epoch < leader_epoch
            if not is_older and end > self._evidence.log_ends.get(tp, AFTER_ALL):
                suspects.append(tp)
        if not suspects:
            return {}
        # The files first, then the logs: records written meanwhile are in both.
        files = self._all_files()
        found = refuse_rows_beyond(self._options, files, self._read, self._ask_anew(suspects))
        return {tp: min(end, ends[tp]) for tp, end in found.items()}

    def _words(
        self, doubted: set[TopicPartition], spans: Sequence[Span]
    ) -> tuple[dict[TopicPartition, Word], set[TopicPartition]]:
        """The stale rule of each partition whose rows in the table are doubted or of which the batch has rows of an
        older leader; and the partitions that the next batch must check again.

        Rows are removed only by an answer that this process got now, never by that of a leader older than the one that
        the task found, and only as far as the source would read them again if a second unclean election brought them
        back (`delta_reach`).
        """
        epochs = self._evidence.leader_epochs
        older = {s.topic_partition for s in spans if 0 <= s.epoch < epochs.get(s.topic_partition, -1)} - doubted
        if not doubted | older:
            return {}, set()
        places = self._ask_places() or {}
        newest = {span.topic_partition: span for span in sorted(spans, key=lambda span: span.epoch)}
        # The source's positions in other partitions are unknown: they wait.
        told = {tp for tp in doubted | older if tp in places or tp in newest}
        views = {tp: view for tp, view in self._evidence.views.items() if tp in told - doubted}
        if told - views.keys():
            views.update(self._ask(sorted(told - views.keys())))
        words = {
            tp: Word(view, reach(view, places.get(tp), newest.get(tp)))
            for tp, view in views.items()
            if view.leader_epoch >= epochs.get(tp, -1)
        }
        settled = {tp for tp, word in words.items() if word.from_offset == BEFORE_ALL}
        return words, told - settled

    # The table's rows -------------------------------------------------------------------------------------------

    def _clean_table(
        self, words: Mapping[TopicPartition, Word]
    ) -> tuple[list[TableFile], list[tuple[TableFile, Mask]]]:
        """Files to remove, and for some of them the mask of the rows that stay."""
        judged = {tp: word for tp, word in words.items() if word.from_offset != AFTER_ALL}
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

    def _what_stays(
        self, partly: Sequence[tuple[TableFile, Mask]], words: Mapping[TopicPartition, Word]
    ) -> tuple[list[DataFile], str | None]:
        """Copies of files without their stale rows. For a table with a change data feed no copies are made: the commit
        must contain the changed rows as well, which only delta-rs' own delete writes, by a condition on rows.
        """
        if partly and has_change_feed(self._table):
            return [], delete_condition(words, self._removed)
        with ThreadPoolExecutor(_THREADS) as pool:
            copies = list(
                pool.map(lambda one: rewrite(self._options, one[0].path, one[0].partition_values, one[1]), partly)
            )
        return copies, None

    def _stale_in(self, file: TableFile, words: Mapping[TopicPartition, Word]) -> Mask | bool | None:
        """None: no row to remove. True: all rows. Else the mask of the stale rows."""
        only = file.only_partition
        concerned = [only] if only is not None else [tp for tp in words if file.may_hold(tp)]
        concerned = [tp for tp in concerned if tp in words and file.may_hold_offsets(words[tp].from_offset, AFTER_ALL)]
        if not concerned:
            return None
        if only is not None and file.offsets is not None and file.epochs is not None:
            verdict = judge_span(words[only].view, *file.offsets, *file.epochs)
            if verdict is SpanVerdict.NONE_STALE:
                return None
            may_go = file.offsets[0] >= words[only].from_offset
            if verdict is SpanVerdict.ALL_STALE and may_go and not file.has_null_epochs:
                self._note(
                    only, file.epochs[0], file.offsets[0], file.offsets[1], file.record_count or 0, reason="stale"
                )
                return True
        columns = self._read(file)
        stale = stale_mask(columns, words)
        if not stale.any():
            return None
        self._note_rows(columns, stale, "stale")
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
            self._columns[file.path] = read_log_columns(self._options, file)
        return self._columns[file.path]

    # The batch's rows -------------------------------------------------------------------------------------------

    def _clean_batch(
        self, views: Mapping[TopicPartition, LogView], present: Mapping[TopicPartition, Sequence[tuple[Any, Any]]]
    ) -> tuple[list[DataFile], list[str]]:
        """The batch's files without rows that are stale or already in the table; and the files that these replace."""
        import numpy as np

        add: list[DataFile] = []
        discard: list[str] = []
        for file in self._files:
            doubtful = any(
                span.topic_partition in views
                and judge_span(views[span.topic_partition], span.first_offset, span.last_offset, span.epoch, span.epoch)
                is not SpanVerdict.NONE_STALE
                for span in file.spans
            )
            if not doubtful and not any(span.topic_partition in present for span in file.spans):
                add.append(file)
                continue
            columns = read_log_columns(
                self._options, TableFile(file.path, file.size_bytes, file.partition_values, file.record_count)
            )
            stale = stale_mask(columns, {tp: Word(view) for tp, view in views.items()})
            known = known_mask(columns, present) & ~stale
            keep = ~(stale | known)
            self._note_rows(columns, stale, "lost")
            self._note_rows(columns, known, "known")
            if keep.all():
                add.append(file)
                continue
            discard.append(file.path)
            if np.any(keep):
                add.append(rewrite(self._options, file.path, file.partition_values, keep))
        return add, discard

    # The table's state ------------------------------------------------------------------------------------------

    def _next_partitions(
        self,
        state: TableState | None,
        ends: Mapping[TopicPartition, int],
        incoming: Mapping[TopicPartition, tuple[int, int]],
        compared: Mapping[TopicPartition, LogView],
        unsettled: set[TopicPartition],
    ) -> dict[TopicPartition, PartitionState]:
        """`compared`: the partitions whose rows were compared now, and with what. `unsettled`: the batch may have added
        rows that are not in the log, so the next batch must compare again.
        """
        epochs = self._evidence.leader_epochs
        partitions: dict[TopicPartition, PartitionState] = {}
        for tp in sorted({*ends, *incoming}):
            end = max(ends.get(tp, 0), incoming[tp][1] + 1 if tp in incoming else 0)
            known = state.partitions.get(tp) if state is not None else None
            under = known.leader_epoch if known is not None else UNKNOWN_EPOCH
            if tp in unsettled:
                under = UNKNOWN_EPOCH
            elif tp not in ends or compared.get(tp) is NOTHING_OF_IT:
                under = epochs.get(tp, UNKNOWN_EPOCH)
            elif tp in compared:
                under = compared[tp].leader_epoch
            partitions[tp] = PartitionState(under, end)
        return partitions

    def _note(
        self, tp: TopicPartition, epoch: int, first_offset: int, last_offset: int, row_count: int, *, reason: str
    ) -> None:
        self._removed.append(Removed(*tp, epoch, first_offset, last_offset, row_count, reason))

    def _note_rows(self, columns: LogColumns, mask: Mask, reason: str) -> None:
        import numpy as np

        if not mask.any():
            return
        for code, tp in enumerate(columns.partitions):
            of_partition = mask & (columns.codes == code)
            if not of_partition.any():
                continue
            for epoch in np.unique(columns.epochs[of_partition]).tolist():
                offsets = columns.offsets[of_partition & (columns.epochs == epoch)]
                self._note(tp, epoch, int(offsets.min()), int(offsets.max()), len(offsets), reason=reason)
