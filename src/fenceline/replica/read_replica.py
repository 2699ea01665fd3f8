"""Which replica a consumer should read from (KIP-392): one in its own rack, where there is one.

Owns the choice alone, as Kafka's RackAwareReplicaSelector makes it. Knows neither addresses nor logs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

NOBODY: Final = -1


class Candidate(NamedTuple):
    """A replica that has what the reader asks for. `lag_ms`: since it was at the leader's log end."""

    broker_id: int
    rack: str | None
    log_end_offset: int
    lag_ms: int


def choose(rack: str, leader: Candidate, followers: Iterable[Candidate]) -> int:
    """The broker to read from; NOBODY: stay with the leader.

    The leader is best where it is in the reader's rack. Else the follower there that is furthest, then the one that was
    caught up last.
    """
    if leader.rack == rack:
        return NOBODY
    best = max(
        (each for each in followers if each.rack == rack),
        key=lambda each: (each.log_end_offset, -each.lag_ms, each.broker_id),
        default=None,
    )
    return NOBODY if best is None else best.broker_id
