"""The table of `fenceline quorum describe`: texts and bars for every state of a replica."""

from __future__ import annotations

import pytest

from fenceline.cli import quorum_view
from fenceline.client.admin.quorum import ControllerAddress, QuorumDescription, ReplicaStatus

NOW_MS = 1_000_000


def replica(node: int, *, end: int = 100, fetched: int | None = NOW_MS - 100, caught_up: int = NOW_MS) -> ReplicaStatus:
    endpoints = (ControllerAddress("CONTROLLER", "host", 9093),)
    return ReplicaStatus(node, None, end, 100 - end, fetched, caught_up, endpoints)


def quorum(*voters: ReplicaStatus, observers: tuple[ReplicaStatus, ...] = ()) -> QuorumDescription:
    return QuorumDescription(1, 5, 100, voters, observers)


LEADER = replica(1, fetched=None)
SILENT = replica(9, fetched=NOW_MS - 2001)


@pytest.mark.parametrize(
    ("status", "state"),
    [
        (LEADER, "leader"),
        (replica(2), "in sync"),
        (replica(2, end=90), "behind"),
        (SILENT, "silent"),
        (replica(2, fetched=None), "never seen"),
        (replica(2, fetched=-1), "never seen"),
    ],
)
def test_each_state_of_a_replica_is_named(status: ReplicaStatus, state: str) -> None:
    assert quorum_view.state_of(status, 1, NOW_MS) == state


@pytest.mark.parametrize(
    ("voters", "said"),
    [
        ((LEADER,), "1 of 1 voter follows; a majority is 1: no voter may fail."),
        ((LEADER, replica(2), replica(3)), "3 of 3 voters follow; 1 of them may fail."),
        ((LEADER, replica(2, end=0), SILENT), "2 of 3 voters follow; a majority is 2: no voter may fail."),
        ((LEADER, SILENT, SILENT), "1 of 3 voters follows; a majority is 2: no metadata can be changed until more"),
    ],
)
def test_the_headline_shows_how_many_voters_may_fail(voters: tuple[ReplicaStatus, ...], said: str) -> None:
    line = quorum_view.headline(quorum(*voters))
    assert line.startswith("Leader 1, epoch 5, high watermark 100. ")
    assert said in line


def test_rows_of_voters_and_observers() -> None:
    found = quorum(LEADER, replica(2, end=40, caught_up=NOW_MS - 4200), observers=(replica(7),))
    shown = [{key: str(value) for key, value in row.items()} for row in quorum_view.rows(found, ascii_only=False)]
    assert [(row["node"], row["role"], row["state"]) for row in shown] == [
        ("★ 1", "voter", "leader"),
        ("  2", "voter", "behind, caught up 4.2 s ago"),
        ("  7", "observer", "in sync"),
    ]
    assert shown[1]["lag"] == "60 ███"
    assert shown[1]["last fetch"] == "0.1 s ago"
    assert shown[0]["address"] == "['host:9093']"


def test_an_ascii_terminal_gets_only_ascii() -> None:
    for row in quorum_view.rows(quorum(LEADER, replica(2, end=0)), ascii_only=True):
        assert "".join(str(value) for value in row.values()).isascii()


def test_bars_are_logarithmic_and_bounded() -> None:
    lengths = [len(quorum_view.bar(lag, "#")) for lag in (0, 1, 9, 99, 999, 9_999, 99_999, 10**9)]
    assert lengths == [0, 1, 2, 3, 5, 6, 8, 8]


@pytest.mark.parametrize(
    ("distance_ms", "said"),
    [(0, "0.0 s ago"), (-50, "0.0 s ago"), (59_000, "59.0 s ago"), (120_000, "2 min ago"), (7_200_000, "2 h ago")],
)
def test_times_are_relative(distance_ms: int, said: str) -> None:
    assert quorum_view.ago(10**9 - distance_ms, 10**9) == said


def test_unknown_times_are_shown_as_never() -> None:
    assert [quorum_view.ago(each, NOW_MS) for each in (None, 0, -1)] == ["never"] * 3


def test_times_are_relative_to_the_leaders_clock() -> None:
    assert quorum_view.leaders_time_ms(quorum(LEADER)) == NOW_MS
