"""The replica from which a consumer should read, as Kafka's RackAwareReplicaSelector chooses it."""

from __future__ import annotations

import pytest

from fenceline.replica.read_replica import NO_PREFERRED_REPLICA, Candidate, choose

LEADER = Candidate(1, "a", 100, 0)


@pytest.mark.parametrize(
    ("rack", "followers", "chosen"),
    [
        ("a", [Candidate(2, "a", 100, 0)], NO_PREFERRED_REPLICA),
        ("b", [], NO_PREFERRED_REPLICA),
        ("b", [Candidate(2, "c", 100, 0), Candidate(3, None, 100, 0)], NO_PREFERRED_REPLICA),
        ("b", [Candidate(2, "b", 90, 5), Candidate(3, "c", 100, 0)], 2),
        ("b", [Candidate(2, "b", 90, 0), Candidate(3, "b", 91, 9_000)], 3),
        ("b", [Candidate(2, "b", 90, 5), Candidate(3, "b", 90, 7)], 2),
        ("b", [Candidate(2, "b", 90, 5), Candidate(3, "b", 90, 5)], 3),
    ],
)
def test_choice(rack: str, followers: list[Candidate], chosen: int) -> None:
    assert choose(rack, LEADER, followers) == chosen
