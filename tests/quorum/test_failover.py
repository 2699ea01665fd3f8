"""How long a cluster has no leader when one dies, with Kafka's own timeouts, on virtual time."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

from tests.quorum.options import Options
from tests.quorum.pure_cluster import Cluster


def failover_ms(seed: int) -> int:
    """Three voters, messages take 1 to 5 ms, flushes up to 3: from the leader's death to the first record that another
    leader commits.
    """
    options = replace(
        Options.of(seed),
        voters=3,
        observers=0,
        dynamic=True,
        crash_in_duties=0.0,
        flush_ms=3,
        election_timeout_ms=1000,
    )
    cluster = Cluster(options)
    cluster.stop_faults()
    assert cluster.run_until(15_000, lambda: cluster.leader() is not None)
    cluster.run_until(cluster.now_ms + 1000)
    old = cluster.leader()
    assert old is not None
    died_ms = cluster.now_ms
    cluster.crash(old)
    assert cluster.run_until(died_ms + 15_000, lambda: cluster.leader() not in (None, old))
    return cluster.now_ms - died_ms


def test_a_dead_leader_is_replaced_without_timeouts() -> None:
    """Neither the fetch timeout (2 s) nor an election timeout (1 to 2 s) is waited for."""
    times = sorted(failover_ms(seed) for seed in range(60))
    assert median(times) < 150, times
    assert times[-1] < 600, times
