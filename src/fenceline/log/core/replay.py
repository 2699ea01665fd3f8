"""The state that a batch in the log changes: its producer's state, the segment's aborted transactions.

Owns nothing: the same code for a batch that was just written and for one that is read back. Never rejects a batch.
"""

from __future__ import annotations

from fenceline.log.core.index import AbortedTransaction, insert_aborted
from fenceline.log.core.producer_state import ProducerStates
from fenceline.log.core.scan import Found
from fenceline.log.core.segment import Segment
from fenceline.records.markers import read_end_marker


def apply_to_producers(producers: ProducerStates, segment: Segment, found: Found) -> None:
    """Apply a batch that is in the log to its producer's state and to the segment's aborted transactions."""
    header = found.header
    if header.producer_id < 0:
        return
    if not header.is_control:
        producers.record(header, header.base_offset)
        return
    marker = read_end_marker(header, found.content)
    if marker is None:
        return
    completed = producers.record_marker(header, marker, header.base_offset)
    if completed is not None and completed.aborted:
        entry = AbortedTransaction(
            completed.producer_id, completed.first_offset, completed.last_offset, completed.last_stable_offset
        )
        insert_aborted(segment.aborted_transactions(), entry)
