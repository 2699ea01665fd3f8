"""Reports about a quorum without a leader: after a delay, once a minute, and when it recovers."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from fenceline.ids import encode_uuid
from fenceline.node.logs import redirect
from fenceline.node.quorum.watch import QuorumWatch
from fenceline.quorum.control_records import Voter, VoterEndpoint, leader_change
from fenceline.quorum.messages import ReplicaKey
from fenceline.quorum.roles import Follower, Role, Unattached
from fenceline.quorum.voter_set import VoterSet

HOUR_MS = 3_600_000
Line = tuple[str, str, dict[str, Any]]


class FakeQuorum:
    """A quorum as the watch sees it; this node is node 1 with directory 101."""

    def __init__(self, *voters: tuple[int, int], kraft_version: int = 1) -> None:
        self.role: Role = Unattached(3)
        self.epoch, self.leader_id, self.is_leader = 3, -1, False
        self.kraft_version = kraft_version
        self.take(*voters)

    def take(self, *voters: tuple[int, int]) -> None:
        """(id, directory) of each."""
        endpoints = (VoterEndpoint("CONTROLLER", "localhost", 1),)
        self.voter_set = VoterSet([Voter(i, UUID(int=d), endpoints) for i, d in voters], self.kraft_version)
        self.voters = self.voter_set.voters
        self.is_voter = self.voter_set.has(ReplicaKey(1, UUID(int=101)))

    def follow(self, leader_id: int) -> None:
        self.role, self.leader_id = Follower(self.epoch, leader_id), leader_id

    def lose(self) -> None:
        self.role, self.leader_id = Unattached(self.epoch), -1


class Scene:
    """A watch on a manual clock, run once a second."""

    def __init__(self, quorum: FakeQuorum, *, is_controller: bool = True, joins: bool = False) -> None:
        self.quorum = quorum
        self.now_ms = 0
        self.view = SimpleNamespace(leader_change=None)
        clock = SimpleNamespace(monotonic_ms=lambda: self.now_ms)
        self.watch = QuorumWatch(
            quorum,  # type: ignore[arg-type]
            self.view,  # type: ignore[arg-type]
            clock,
            node_id=1,
            directory_id=UUID(int=101),
            is_controller=is_controller,
            joins=joins,
        )

    def passes(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now_ms += 1000
            self.watch.check()


@pytest.fixture
def lines() -> Iterator[list[Line]]:
    reported: list[Line] = []
    before = redirect(lambda level, room, event, fields: reported.append((level, event, fields)))
    yield reported
    redirect(before)


def test_lost_quorum_is_reported_every_minute_and_when_it_returns(lines: list[Line]) -> None:
    scene = Scene(FakeQuorum((1, 101), (2, 102), (3, 103)))
    scene.quorum.follow(2)
    scene.passes(100)
    assert lines == []
    scene.quorum.lose()
    scene.watch.request_failed("two:9093", "no process listens on two:9093")
    scene.watch.request_failed("three:9093", "three:9093 did not answer")
    scene.passes(5)
    assert lines == []
    scene.passes(2)
    (level, event, fields), *more = lines
    assert (level, event, more) == ("warning", "the quorum has no leader", [])
    assert fields["voters"] == [1, 2, 3]
    assert fields["unreached"] == "no process listens on two:9093; three:9093 did not answer"
    assert "majority of the voters" in fields["advice"]
    scene.passes(3600)
    assert 55 <= len(lines) <= 62
    scene.watch.reachable("two:9093")
    scene.watch.reachable("three:9093")
    scene.quorum.follow(3)
    del lines[:]
    scene.passes(10)
    ((_, event, fields),) = lines
    assert event == "the quorum has a leader again"
    assert fields["leader"] == 3
    assert fields["without_s"] >= 3600


def test_election_is_not_reported(lines: list[Line]) -> None:
    scene = Scene(FakeQuorum((1, 101), (2, 102), (3, 103)))
    for _ in range(50):
        scene.quorum.lose()
        scene.passes(4)
        scene.quorum.follow(2)
        scene.passes(1)
    assert lines == []


def test_broker_without_controller_reports_tried_addresses(lines: list[Line]) -> None:
    scene = Scene(FakeQuorum(), is_controller=False)
    scene.watch.request_failed("one:9092", "one:9092 is a broker listener, not a controller listener")
    scene.passes(10)
    ((_, event, fields),) = lines
    assert event == "the quorum has no leader"
    assert "one:9092 is a broker listener" in fields["unreached"]
    assert "controller.quorum.bootstrap.servers" in fields["advice"]


def test_list_of_unreachable_addresses_is_bounded(lines: list[Line]) -> None:
    scene = Scene(FakeQuorum())
    for number in range(10_000):
        scene.watch.request_failed(f"host:{number}", "nobody listens")
    scene.passes(10)
    assert len(lines[0][2]["unreached"]) < 1000


def test_controller_that_is_no_voter_is_reported_once(lines: list[Line]) -> None:
    """Never added, or removed while it was down."""
    scene = Scene(FakeQuorum((2, 102), (3, 103), (4, 104)))
    scene.quorum.follow(2)
    scene.passes(3600)
    ((level, event, fields),) = lines
    assert (level, event) == ("warning", "this controller is not a voter")
    assert (fields["node"], fields["voters"]) == (1, [2, 3, 4])
    assert "fenceline quorum add" in fields["advice"]
    scene.quorum.take((1, 101), (2, 102), (3, 103))
    scene.passes(10)
    scene.quorum.take((2, 102), (3, 103))
    scene.passes(10)
    assert [event for _, event, _ in lines] == ["this controller is not a voter"] * 2


def test_broker_that_is_no_voter_is_not_reported(lines: list[Line]) -> None:
    scene = Scene(FakeQuorum((2, 102), (3, 103)), is_controller=False)
    scene.quorum.follow(2)
    scene.passes(100)
    assert lines == []


def test_replaced_disk_is_reported_with_both_directory_ids(lines: list[Line]) -> None:
    scene = Scene(FakeQuorum((1, 999), (2, 102), (3, 103)))
    scene.quorum.follow(2)
    scene.passes(100)
    ((_, event, fields),) = lines
    assert event == "this controller is not a voter"
    assert fields["directory"] == encode_uuid(UUID(int=101))
    assert fields["registered"] == encode_uuid(UUID(int=999))
    assert f"fenceline quorum remove 1 --directory-id {encode_uuid(UUID(int=999))}" in fields["advice"]


def test_quorum_without_leader_hints_at_mismatched_directory_id(lines: list[Line]) -> None:
    scene = Scene(FakeQuorum((1, 999), (2, 102), (3, 103)))
    scene.passes(10)
    ((_, event, fields),) = lines
    assert event == "the quorum has no leader"
    assert "Voter 1 is registered with another directory id" in fields["advice"]


def test_auto_joining_controller_is_reported_after_a_delay(lines: list[Line]) -> None:
    scene = Scene(FakeQuorum((2, 102), (3, 103)), joins=True)
    scene.quorum.follow(2)
    scene.passes(20)
    assert lines == []
    scene.passes(20)
    assert [event for _, event, _ in lines] == ["this controller is not a voter"]


@pytest.mark.parametrize(
    ("kraft_version", "theirs", "reported"), [(0, (1, 2), True), (0, (3, 1, 2), False), (1, (1, 2), False)]
)
def test_differing_static_voters_are_reported(
    lines: list[Line], kraft_version: int, theirs: tuple[int, ...], reported: bool
) -> None:
    """Each leader writes its voters to the log; with dynamic voters the log itself has the set."""
    scene = Scene(FakeQuorum((1, 101), (2, 102), (3, 103), kraft_version=kraft_version))
    scene.quorum.follow(2)
    scene.view.leader_change = leader_change(2, theirs, theirs)
    scene.passes(100)
    assert [event for _, event, _ in lines] == ["voters differ between nodes"] * reported
    if reported:
        fields = lines[0][2]
        assert (fields["here"], fields["leader"], fields["there"]) == ([1, 2, 3], 2, [1, 2])
        assert "controller.quorum.voters" in fields["advice"]
