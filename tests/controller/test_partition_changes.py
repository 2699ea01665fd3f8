"""The effect of one change on one partition, cell by cell: the cases of Kafka's PartitionChangeBuilderTest.

Rules: controller.md C9, C27, C28, C31-C34; since_4_0.md K21-K23, K27; recovery.md V10-V14. Differences of Kafka 4.0 and
later to its earlier tests (more than one last known leader) are in `since_4_0.md K21`.
"""

from __future__ import annotations

from typing import Any, Final
from uuid import UUID

import pytest

from fenceline.controller.elections import Election, change_partition
from fenceline.metadata.image import LeaderRecoveryState, PartitionImage
from fenceline.metadata.records import PartitionChangeRecord

TOPIC: Final = UUID(int=9)
RECOVERING: Final = LeaderRecoveryState.RECOVERING
PREFERRED, UNCLEAN = {"election": Election.PREFERRED}, {"election": Election.UNCLEAN}

FOO: Final = PartitionImage((2, 1, 3), (2, 1, 3), 1, 100, 200)
"""3 is not alive."""
BAR: Final = PartitionImage((1, 2, 3, 4), (1, 2, 3), 1, 100, 200, removing=(1,), adding=(4,))
"""Moves from 1 to 4; 3 is not alive."""
BAZ: Final = PartitionImage((2, 1, 3), (1, 3), 3, 100, 200)
OFFLINE: Final = PartitionImage((2, 1, 3), (3,), -1, 100, 200)
"""Only 1 is alive."""
GOING: Final = PartitionImage((2, 3, 0, 1), (0, 1), 0, removing=(0, 1), adding=(2, 3))
ONE: Final = PartitionImage((2,), (2,), 2)

_ALIVE: Final = {FOO: {1, 2, 4}, BAR: {1, 2, 4}, BAZ: {1, 2, 3}, OFFLINE: {1}, GOING: set[int](), ONE: set[int]()}


def _record(partition: PartitionImage, alive: set[int], **asked: Any) -> PartitionChangeRecord | None:
    given: dict[str, Any] = {"min_isr": 2, "elr_enabled": False, **asked}
    return change_partition(partition, TOPIC, 0, may_lead=lambda broker: broker in alive, **given)


def _expected(changed: dict[str, Any] | None) -> PartitionChangeRecord | None:
    return None if changed is None else PartitionChangeRecord(0, TOPIC, **changed)


@pytest.mark.parametrize(
    ("partition", "asked", "changed"),
    [
        # leaders: testElectLeader, testNoChange, testUncleanLeaderElection
        (FOO, PREFERRED, {"leader": 2}),
        (FOO, UNCLEAN, None),
        (FOO, {"target_isr": (1, 3)}, {"isr": (1, 3)}),
        (FOO, {"target_isr": (1, 3), **UNCLEAN}, {"isr": (1, 3)}),
        (FOO, {"target_isr": (3,)}, {"isr": (3,), "leader": -1}),
        (FOO, {"target_isr": (3,), **UNCLEAN}, {"isr": (2,), "leader": 2, "leader_recovery_state": RECOVERING}),
        (
            FOO,
            {"target_isr": (4,), "target_replicas": (2, 1, 3, 4), **UNCLEAN},
            {"isr": (4,), "leader": 4, "replicas": (2, 1, 3, 4)},
        ),
        (FOO, {"target_isr": (2, 3)}, {"isr": (2, 3), "leader": 2}),
        (BAR, UNCLEAN, None),
        (BAZ, PREFERRED, None),
        (BAZ, UNCLEAN, None),
        (OFFLINE, {}, None),
        (OFFLINE, PREFERRED, None),
        (OFFLINE, UNCLEAN, {"isr": (1,), "leader": 1, "leader_recovery_state": RECOVERING}),
        (OFFLINE, {"target_isr": (2,), **UNCLEAN}, {"isr": (1,), "leader": 1, "leader_recovery_state": RECOVERING}),
        # new leader epochs: testNoLeaderEpochBumpOn..., testLeaderEpochBumpOn...
        (FOO, {"target_isr": (2, 1)}, {"isr": (2, 1)}),
        (FOO, {"target_isr": (2, 1), "shrinking_starts_an_epoch": True}, {"isr": (2, 1), "leader": 1}),
        (FOO, {"target_isr": (2, 1, 3, 4), "shrinking_starts_an_epoch": True}, {"isr": (2, 1, 3, 4)}),
        (ONE, {"target_isr": (), "shrinking_starts_an_epoch": True}, {"leader": -1}),
        (FOO, {"target_replicas": (2, 1, 3, 4)}, {"replicas": (2, 1, 3, 4)}),
        (FOO, {"target_replicas": (2, 1, 4)}, {"replicas": (2, 1, 4), "leader": 1}),
        # reassignments: testReassignmentRearrangesReplicas, testIsrEnlargement..., testRevert..., testAdding...,
        # testRemoving..., testStoppedLeaderIsDemoted...; PartitionReassignmentReplicasTest
        (FOO, {"target_replicas": (3, 2, 1)}, {"replicas": (3, 2, 1)}),
        (
            FOO,
            {"target_replicas": (1, 2, 3, 4), "target_adding": (4,)},
            {"replicas": (1, 2, 3, 4), "adding_replicas": (4,)},
        ),
        (
            FOO,
            {"target_replicas": (1, 2, 3), "target_removing": (3,)},
            {"replicas": (1, 2), "isr": (2, 1), "leader": 1},
        ),
        (
            BAR,
            {"target_isr": (1, 2, 3, 4)},
            {"replicas": (2, 3, 4), "isr": (2, 3, 4), "leader": 2, "adding_replicas": (), "removing_replicas": ()},
        ),
        (BAR, {"target_isr": (1, 2)}, {"isr": (1, 2)}),
        (
            BAR,
            {
                "target_replicas": (1, 2, 3),
                "target_isr": (1, 2, 3),
                "target_adding": (),
                "target_removing": (),
            },
            {"replicas": (1, 2, 3), "leader": 1, "adding_replicas": (), "removing_replicas": ()},
        ),
        (
            GOING,
            {"target_isr": (0, 1, 2, 3)},
            {"replicas": (2, 3), "isr": (2, 3), "leader": -1, "adding_replicas": (), "removing_replicas": ()},
        ),
        (GOING, {"target_isr": (0, 1, 2)}, {"isr": (0, 1, 2), "leader": -1}),
    ],
)
def test_without_eligible_replicas(
    partition: PartitionImage, asked: dict[str, Any], changed: dict[str, Any] | None
) -> None:
    """C9, C27, C28, C32-C34; V10-V13."""
    assert _record(partition, _ALIVE[partition], **asked) == _expected(changed)


def _led(isr: tuple[int, ...], leader: int = 1, **more: Any) -> PartitionImage:
    return PartitionImage((1, 2, 3, 4), isr, leader, 100, 200, **more)


@pytest.mark.parametrize(
    ("partition", "alive", "asked", "changed"),
    [
        (
            _led((1, 2, 3, 4)),
            {1, 2, 4},
            {"target_isr": (1, 2)},
            {"isr": (1, 2), "eligible_leader_replicas": (3, 4)},
        ),
        (
            _led((1, 2), elr=(3,)),
            {1, 2, 4},
            {"target_isr": (1, 2, 3)},
            {"isr": (1, 2, 3), "eligible_leader_replicas": ()},
        ),
        (_led((1,), elr=(3,)), {1, 2, 4}, {"target_isr": (1, 4)}, {"isr": (1, 4)}),
        (
            _led((1,), elr=(2, 3)),
            {1, 2, 4},
            {"unclean_shutdown": 3},
            {"eligible_leader_replicas": (2,)},
        ),
        (
            _led((1, 2, 3, 4)),
            set(),
            {"target_isr": ()},
            {"isr": (), "leader": -1, "eligible_leader_replicas": (1, 2, 3, 4), "last_known_elr": (1,)},
        ),
        (
            _led((1,), elr=(3,)),
            {3},
            {"target_isr": ()},
            {"isr": (3,), "leader": 3, "eligible_leader_replicas": (1,)},
        ),
        (
            _led((1,)),
            set(),
            {"target_isr": (), "unclean_shutdown": 1},
            {"isr": (), "leader": -1, "last_known_elr": (1,)},
        ),
        (_led((), -1, last_known_elr=(1,)), {2, 3, 4}, {}, None),
        (
            _led((), -1, last_known_elr=(1,)),
            {1, 2},
            {},
            {"isr": (1,), "leader": 1, "leader_recovery_state": RECOVERING, "last_known_elr": ()},
        ),
        (
            _led((), -1, elr=(2, 3), last_known_elr=(1,)),
            {1, 3},
            UNCLEAN,
            {"isr": (3,), "leader": 3, "eligible_leader_replicas": (2,), "last_known_elr": ()},
        ),
    ],
    ids=[
        "shrinks below the minimum",
        "grows to the minimum",
        "adds one that was not eligible",
        "one crashed",
        "no replica is left",
        "an eligible one leads",
        "the last one crashed",
        "the last leader is not back",
        "the last leader is back",
        "the eligible come before the last leader",
    ],
)
@pytest.mark.parametrize("election", [Election.PREFERRED, Election.ONLINE])
def test_with_eligible_replicas(
    partition: PartitionImage,
    alive: set[int],
    asked: dict[str, Any],
    changed: dict[str, Any] | None,
    election: Election,
) -> None:
    """testEligibleLeaderReplicas_*: C31, K21-K23; at least 3 shall be in sync."""
    given = {"election": election, **asked}
    assert _record(partition, alive, min_isr=3, elr_enabled=True, **given) == _expected(changed)


def test_directories_stay_with_their_replicas() -> None:
    """testKeepsDirectoriesAfterReassignment; C20: a new replica has none yet."""
    first, second, third, fresh = (UUID(int=number) for number in (71, 72, 73, 0))
    partition = PartitionImage((2, 1, 3), (2, 1, 3), 1, 100, 200, directories=(first, second, third))
    record = _record(partition, {1, 2, 3, 4}, target_replicas=(3, 1, 4), directory_of=lambda broker: fresh)
    assert record is not None
    assert (record.replicas, record.directories, record.leader) == ((3, 1, 4), (third, second, fresh), 1)


def test_recovering_survives_every_election_of_its_leader() -> None:
    """testChangeInLeadershipDoesNotChangeRecoveryState, testUncleanSetsLeaderRecoveringState: V8, V11, V14."""
    led = PartitionImage((1, 2, 3), (1,), 1, 100, 200, leader_recovery_state=RECOVERING)
    gone = _record(led, set(), target_isr=())
    assert gone == _expected({"leader": -1})
    lost = led._replace(leader=-1)
    assert _record(lost, {1, 2, 3}) == _expected({"leader": 1})
    assert _record(lost, {2}) is None
    assert _record(lost, {2}, **UNCLEAN) == _expected({"isr": (2,), "leader": 2})
