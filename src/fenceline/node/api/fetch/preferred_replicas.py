"""Sends consumers to a replica in their own rack (KIP-392): collects the candidates from this broker's state.

Decides nothing: `fenceline.replica.read_replica` does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fenceline.replica.progress import UNKNOWN_OFFSET
from fenceline.replica.read_replica import NO_PREFERRED_REPLICA, ReadReplicaCandidate, choose

if TYPE_CHECKING:
    from fenceline.metadata.image import MetadataImage
    from fenceline.node.clock import Clock
    from fenceline.node.replication.replica import Replica


class PreferredReplicas:
    """The replica selection of one broker."""

    def __init__(self, node_id: int, rack: str | None, images: Callable[[], MetadataImage], clock: Clock) -> None:
        self._node_id = node_id
        self._rack = rack
        self._images = images
        self._clock = clock

    def of(self, replica: Replica, fetch_offset: int, rack: str, listener: str) -> int:
        """The broker that a consumer should fetch from; NO_PREFERRED_REPLICA: this one.

        Candidates are in sync, have the offset as far as the leader knows, and are reachable on the reader's listener.
        """
        leader = replica.leader
        if leader is None or len(leader.isr) < 2:
            return NO_PREFERRED_REPLICA
        brokers = self._images().brokers
        now_ms = self._clock.monotonic_ms()
        followers = []
        for broker_id, progress in leader.followers.items():
            broker = brokers.get(broker_id)
            if (
                broker_id in leader.isr
                and broker is not None
                and not broker.fenced
                and broker.endpoint(listener) is not None
                and progress.log_end_offset >= fetch_offset
                and UNKNOWN_OFFSET < progress.log_start_offset <= fetch_offset
            ):
                lag_ms = now_ms - (progress.last_caught_up_ms or 0)
                followers.append(ReadReplicaCandidate(broker_id, broker.rack, progress.log_end_offset, lag_ms))
        own = ReadReplicaCandidate(self._node_id, self._rack, replica.log.log_end_offset, 0)
        return choose(rack, own, followers)
