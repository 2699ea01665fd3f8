"""The replica from which a consumer should read, as Kafka's RackAwareReplicaSelector chooses it."""

from __future__ import annotations

import pytest

from fenceline.replica.read_replica import NO_PREFERRED_REPLICA, ReadReplicaCandidate, choose

LEADER = ReadReplicaCandidate(1, "a", 100, 0)


@pytest.mark.parametrize(
    ("rack", "followers", "chosen"),
    [
        ("a", [ReadReplicaCandidate(2, "a", 100, 0)], NO_PREFERRED_REPLICA),
        ("b", [], NO_PREFERRED_REPLICA),
        ("b", [ReadReplicaCandidate(2, "c", 100, 0), ReadReplicaCandidate(3, None, 100, 0)], NO_PREFERRED_REPLICA),
        ("b", [ReadReplicaCandidate(2, "b", 90, 5), ReadReplicaCandidate(3, "c", 100, 0)], 2),
        ("b", [ReadReplicaCandidate(2, "b", 90, 0), ReadReplicaCandidate(3, "b", 91, 9_000)], 3),
        ("b", [ReadReplicaCandidate(2, "b", 90, 5), ReadReplicaCandidate(3, "b", 90, 7)], 2),
        ("b", [ReadReplicaCandidate(2, "b", 90, 5), ReadReplicaCandidate(3, "b", 90, 5)], 3),
    ],
)
def test_choice(rack: str, followers: list[ReadReplicaCandidate], chosen: int) -> None:
    assert choose(rack, LEADER, followers) == chosen
