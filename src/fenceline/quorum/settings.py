"""The quorum's settings: Kafka's names and defaults (raft.md "Constants", since_4_0.md K13)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from fenceline.quorum.control_records import Voter


class Address(NamedTuple):
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class QuorumSettings:
    """Times in ms, sizes in bytes. `static_voters` are those of `controller.quorum.voters` (Q39)."""

    cluster_id: str = ""
    static_voters: tuple[Voter, ...] = ()
    bootstrap_servers: tuple[Address, ...] = ()
    election_timeout_ms: int = 1000
    fetch_timeout_ms: int = 2000
    election_backoff_max_ms: int = 1000
    request_timeout_ms: int = 2000
    retry_backoff_ms: int = 20
    fetch_max_wait_ms: int = 500
    silence_timeout_ms: int | None = None
    """By how much a leader's answer may be overdue before a follower doubts it; None: until the fetch timeout."""
    fetch_max_bytes: int = 1 << 20
    fetch_snapshot_max_bytes: int = 1 << 20
    served_max_bytes: int = 8 << 20
    """Limit of a Fetch response, whatever the request allows (G28)."""
    snapshot_response_max_bytes: int = 10 << 20
    """Limit of a FetchSnapshot response, whatever the request allows (KIP-630, G28):
    `replica.fetch.response.max.bytes`."""
    auto_join: bool = False
    flushes: bool = True
    """Whether this node flushes fetched records: every controller does; a pure broker need not (Q28)."""
    listener: str = ""
    """Name of the voter endpoint that peers connect to; empty: the first one."""
    max_parked_fetches: int = 4096
    max_observers: int = 4000
    observer_forgotten_ms: int = 300_000

    @property
    def check_quorum_ms(self) -> int:
        """Q34."""
        return self.fetch_timeout_ms * 3 // 2

    @property
    def begin_quorum_ms(self) -> int:
        """Q21, K11."""
        return self.fetch_timeout_ms // 2
