"""Finds the rows that a stream must retract: the driver's search in evidence and in a table.

Owns the order of the search (evidence in receipts, directories of the option, then the table) and the error if rows are
not found. The location is stored with the batch that retracts the rows; its replay reads them from there again, or ends
the query. Never decides which rows are retracted (`retractions`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fenceline.client.core.loss_receipts import LossReceipt
from fenceline.errors import ErrorCode, OperatorError, PeerError
from pyspark_fenceline.common.cluster import SourceCluster
from pyspark_fenceline.common.lost_ranges import InEvidence, InTable, KeptIn, LostRange, Retraction
from pyspark_fenceline.delta.options import DeltaOptions
from pyspark_fenceline.errors import Loss
from pyspark_fenceline.source.kept_evidence import find_in_evidence
from pyspark_fenceline.source.kept_rows import Cover, KeptSpan, cover, joined
from pyspark_fenceline.source.options import RetractionOptions
from pyspark_fenceline.source.retractions import cannot_retract

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

Receipts = Callable[[frozenset[str]], Sequence[LossReceipt]]
"""The receipts of topics, oldest loss first."""
_NOT_ALLOWED = (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)


@dataclass(slots=True)
class _Search:
    """One range: its rows in evidence and in the table, and why rows are missing."""

    lost: LostRange
    evidence: Cover
    notes: list[str]
    in_table: tuple[KeptSpan, ...] = ()
    missing: tuple[tuple[int, int], ...] = ()


class Retractor:
    """One query's search, on the driver."""

    def __init__(
        self,
        options: RetractionOptions,
        schema: StructType,
        receipts: Receipts,
        policies: Callable[[Collection[str]], Mapping[str, str]],
        *,
        committed_only: bool,
    ) -> None:
        self._options = options
        self._schema = schema
        self._receipts = receipts
        self._policies = policies
        self._committed_only = committed_only

    def check_topics(self, topics: Collection[str]) -> None:
        """Raises `OperatorError` for a compacted topic: a record may have been compacted away in the log that was read,
        and exist in the current one."""
        if not topics:
            return
        try:
            found = self._policies(topics)
        except PeerError as error:
            if error.code not in _NOT_ALLOWED:
                raise
            raise OperatorError(
                f"It is not known whether rows of {', '.join(sorted(topics))} can be retracted: {error.message}",
                "Grant the query's user DESCRIBE_CONFIGS on the topics, or remove includeRetractions.",
            ) from error
        compacted = [name for name, policy in sorted(found.items()) if "compact" in policy]
        if compacted:
            raise OperatorError(
                f"Rows of {', '.join(compacted)} cannot be retracted: the topic is compacted, so it is not known "
                "which of its records the query has read",
                "Remove includeRetractions; write the rows to a table, and derive results from its changes.",
            )

    def check(self) -> None:
        """Raises `OperatorError` if the table of the options cannot hold the rows."""
        if (table := self._table) is not None:
            from pyspark_fenceline.source.kept_table import check_columns

            check_columns(table, self._schema)

    def plan(self, lost: Sequence[LostRange], losses: Sequence[Loss]) -> tuple[Retraction, ...]:
        """The locations of all rows of `lost`. Raises `DataLossError` if some are not found."""
        found, version = self._search(lost)
        self._require_all(found, losses)
        planned: list[Retraction] = []
        for one in found:
            sources: tuple[tuple[tuple[KeptSpan, ...], KeptIn], ...] = ((one.evidence.pieces, InEvidence()),)
            if one.in_table:
                assert self._options.table is not None, "rows were found in it"
                sources = (*sources, (one.in_table, InTable(self._options.table, version)))
            for pieces, kept_in in sources:
                planned += [Retraction(one.lost.part(*bounds), kept_in) for bounds in joined(pieces)]
        return tuple(planned)

    def pieces_of(self, retractions: Sequence[Retraction], losses: Sequence[Loss]) -> list[KeptSpan]:
        """The files of the rows that a planned batch retracts, from its offset. Raises `DataLossError`."""
        pieces: list[KeptSpan] = []
        in_evidence = [one.rows for one in retractions if isinstance(one.kept_in, InEvidence)]
        found, _ = self._search(in_evidence, with_table=False)
        self._require_all(found, losses)
        pieces += [piece for one in found for piece in one.evidence.pieces]
        tables: dict[InTable, list[LostRange]] = {}
        for one in retractions:
            if isinstance(one.kept_in, InTable):
                tables.setdefault(one.kept_in, []).append(one.rows)
        for table, rows in tables.items():
            from pyspark_fenceline.source.kept_table import find_in_table

            options = DeltaOptions(table.path, storage=self._options.storage)
            kept = find_in_table(options, table.version, rows, self._schema)
            for lost, spans in zip(rows, kept.spans, strict=True):
                covered = cover(lost, spans)
                search = _Search(lost, Cover((), ()), list(kept.notes), covered.pieces, covered.missing)
                self._require_all([search], losses)
                pieces += covered.pieces
        return pieces

    def pieces_of_lost(self, lost: Sequence[LostRange], losses: Sequence[Loss]) -> list[KeptSpan]:
        """The files of rows that the log has lost since a batch was planned. Raises `DataLossError`."""
        found, _ = self._search(lost)
        self._require_all(found, losses)
        return [piece for one in found for piece in (*one.evidence.pieces, *one.in_table)]

    # The search -------------------------------------------------------------------------------------------------------

    @property
    def _table(self) -> DeltaOptions | None:
        options = self._options
        return None if options.table is None else DeltaOptions(options.table, storage=options.storage)

    def _search(self, lost: Sequence[LostRange], *, with_table: bool = True) -> tuple[list[_Search], int]:
        """Search each range in evidence, and the rest in the table; returns also the table's version."""
        if not lost:
            return [], -1
        topics = frozenset(one.topic_partition.topic for one in lost)
        self.check_topics(topics)
        receipts, notes = self._receipts_of(topics)
        found: list[_Search] = []
        for one in lost:
            kept = find_in_evidence(one, receipts, self._options.evidence, committed_only=self._committed_only)
            covered = cover(one, kept.spans)
            found.append(_Search(one, covered, [*notes, *kept.notes], (), covered.missing))
        table = self._table if with_table else None
        asked = [(search, search.lost.part(*bounds)) for search in found for bounds in search.missing]
        if table is None or not asked:
            return found, -1
        from pyspark_fenceline.source.kept_table import find_in_table

        result = find_in_table(table, None, [part for _, part in asked], self._schema)
        for search in found:
            search.missing = ()
        for (search, part), spans in zip(asked, result.spans, strict=True):
            covered = cover(part, spans)
            search.in_table += covered.pieces
            search.missing += covered.missing
            search.notes += [note for note in result.notes if note not in search.notes]
        return found, result.version

    def _receipts_of(self, topics: frozenset[str]) -> tuple[Sequence[LossReceipt], list[str]]:
        try:
            return self._receipts(topics), []
        except PeerError as error:
            if error.code not in _NOT_ALLOWED:
                raise
            return (), [f"the user is not authorized to read loss receipts ({error.message})"]

    def _require_all(self, found: Sequence[_Search], losses: Sequence[Loss]) -> None:
        lacking = [one for one in found if one.missing]
        if not lacking:
            return
        clauses = []
        for one in lacking[:3]:
            offsets = ", ".join(f"{start} to {end - 1}" for start, end in one.missing[:5])
            more = f" and {len(one.missing) - 5} more ranges" if len(one.missing) > 5 else ""
            notes = "; ".join(dict.fromkeys(one.notes)) or "the evidence does not contain them"
            clauses.append(f"offsets {offsets}{more} of {one.lost.topic_partition} were not found ({notes})")
        if len(lacking) > 3:
            clauses.append(f"and some of {len(lacking) - 3} more partitions")
        ways = (
            "start the replica that lost them, so that it keeps them as evidence, and run the query on its machine",
            "set the option retractionEvidence to its data directory, or a copy",
            "set the option retractionTable to a Delta table with these rows",
        )
        raise cannot_retract(losses, "; ".join(clauses), ways)


def receipts_from(client: Mapping[str, str], cluster: SourceCluster) -> Receipts:
    """The receipts of a cluster; empty without a losses topic."""

    def read(topics: frozenset[str]) -> Sequence[LossReceipt]:
        from pyspark_fenceline.source.losses_table import LossesReader

        reader = LossesReader(client, topics, cluster)
        return [receipt for task in reader.partitions() for receipt in reader.receipts(task)]

    return read
