"""The transaction state of a compaction pass over a log.

Owns the set of open transactions at the current position, and so which batches are aborted and which end markers can be
removed: a marker is removed if no batch of its transaction remains before it and its delete horizon has passed
(KIP-534). Never reads past the last stable offset, the limit of compaction. Rules: Apache Kafka 4.3.1.
"""

from __future__ import annotations

from collections.abc import Iterable

from fenceline.log.core.index import AbortedTransaction
from fenceline.records.batch import BatchHeader
from fenceline.records.markers import read_end_marker


class CleanedTransactions:
    """One pass over a log."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        """`aborted`: all aborted transactions with records in the range, wherever their markers lie."""
        self._committed: set[int] = set()
        """Producers with a batch of a transaction that is not aborted."""
        self._aborted: dict[int, AbortedTransaction] = {}
        self._seen: set[int] = set()
        """The producers in `_aborted` that had a batch of their transaction."""
        self._coming = sorted(aborted, key=lambda entry: entry.first_offset, reverse=True)
        self.kept: list[AbortedTransaction] = []
        """Aborted transactions whose markers stay; the code that writes the segment takes them from here."""

    def is_aborted(self, header: BatchHeader) -> bool:
        """Process a batch of records. Whether it is part of an aborted transaction."""
        self._begin_up_to(header.last_offset)
        if not header.is_transactional:
            return False
        if header.producer_id in self._aborted:
            self._seen.add(header.producer_id)
            return True
        self._committed.add(header.producer_id)
        return False

    def is_removable_marker(self, header: BatchHeader, content: memoryview) -> bool:
        """Process a control batch. Whether its transaction has no record left. Raises RecordsError."""
        self._begin_up_to(header.last_offset)
        if not header.record_count:
            return True  # already compacted
        marker = read_end_marker(header, content)
        if marker is None:
            return False
        if marker.commit:
            is_removable_marker = header.producer_id not in self._committed
            self._committed.discard(header.producer_id)
            return is_removable_marker
        entry = self._aborted.pop(header.producer_id, None)
        if entry is None or header.producer_id not in self._seen:
            return True
        self._seen.discard(header.producer_id)
        self.kept.append(entry)
        return False

    def _begin_up_to(self, offset: int) -> None:
        coming = self._coming
        while coming and coming[-1].first_offset <= offset:
            entry = coming.pop()
            self._aborted.setdefault(entry.producer_id, entry)
