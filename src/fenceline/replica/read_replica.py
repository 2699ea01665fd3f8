"""Selects the replica that a consumer should fetch from (KIP-392): one in its own rack, if there is one.

Owns only the selection, by the rules of Kafka's RackAwareReplicaSelector. Knows neither addresses nor logs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

NO_PREFERRED_REPLICA: Final = -1


class ReadReplicaCandidate(NamedTuple):
    """A replica that has the requested offset. `lag_ms`: time since it was at the leader's log end."""

    broker_id: int
    rack: str | None
    log_end_offset: int
    lag_ms: int


def choose(rack: str, leader: ReadReplicaCandidate, followers: Iterable[ReadReplicaCandidate]) -> int:
    """The broker to fetch from; NO_PREFERRED_REPLICA: stay with the leader.

    The leader if it is in the reader's rack; otherwise the follower there with the highest log end, then with the
    smallest lag.
    """
    if leader.rack == rack:
        return NO_PREFERRED_REPLICA
    best = max(
        (each for each in followers if each.rack == rack),
        key=lambda each: (each.log_end_offset, -each.lag_ms, each.broker_id),
        default=None,
    )
    return NO_PREFERRED_REPLICA if best is None else best.broker_id
