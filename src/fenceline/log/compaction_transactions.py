"""What compaction has to know of transactions while it goes through a log from its start.

Owns which transactions it is in, and so which batches belong to aborted ones and which end markers nobody needs any
more: a marker goes when no batch of its transaction was met before it, and its delete horizon is over (KIP-534). Never
looks past what was decided: only what lies below the last stable offset is compacted. Rules: Apache Kafka 4.3.1.
"""

from __future__ import annotations

from collections.abc import Iterable

from fenceline.log.index import AbortedTransaction
from fenceline.log.replay import read_end_marker
from fenceline.records.batch import BatchHeader


class Transactions:
    """One pass over a log."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        """`aborted`: all that have records where it goes, wherever their markers lie."""
        self._committed: set[int] = set()
        """Producers of whose transaction, which is not aborted, a batch was met."""
        self._aborted: dict[int, AbortedTransaction] = {}
        self._seen: set[int] = set()
        """Of the producers in `_aborted`, those of whose transaction a batch was met."""
        self._coming = sorted(aborted, key=lambda entry: entry.first_offset, reverse=True)
        self.kept: list[AbortedTransaction] = []
        """Aborted transactions whose markers were met and stay; taken out by who writes the segment."""

    def is_aborted(self, header: BatchHeader) -> bool:
        """A batch of records is met; whether it is part of an aborted transaction."""
        self._begin_up_to(header.last_offset)
        if not header.is_transactional:
            return False
        if header.producer_id in self._aborted:
            self._seen.add(header.producer_id)
            return True
        self._committed.add(header.producer_id)
        return False

    def is_needless(self, header: BatchHeader, content: memoryview) -> bool:
        """A control batch is met; whether nothing of its transaction is left. Raises RecordsError."""
        self._begin_up_to(header.last_offset)
        if not header.record_count:
            return True  # compacted before
        marker = read_end_marker(header, content)
        if marker is None:
            return False
        if marker.commit:
            is_needless = header.producer_id not in self._committed
            self._committed.discard(header.producer_id)
            return is_needless
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
