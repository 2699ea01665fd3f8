"""The table of `fenceline topics describe`."""

from __future__ import annotations

import json
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from fenceline.cli.app import app
from fenceline.cli.output import readable_errors
from fenceline.cli.topic_view import json_row, state_of, summary, table_row
from fenceline.client.admin.replicas import ReplicaStates
from fenceline.client.core.metadata import PartitionMetadata
from fenceline.errors import ErrorCode, PeerError
from fenceline.local_cluster.cluster import LocalCluster
from fenceline.testing.waiting import eventually

ALL = (1, 2, 3)


def states(
    *,
    leader: int = 1,
    isr: tuple[int, ...] = ALL,
    ends: dict[int, int] | None = None,
    high_watermark: int | None = 10,
    is_recovering: bool = False,
) -> ReplicaStates:
    found = {1: 10, 2: 10, 3: 10} if ends is None else ends
    return ReplicaStates(PartitionMetadata(leader, 7, ALL, isr), found, high_watermark, is_recovering)


@pytest.mark.parametrize(
    ("found", "state"),
    [
        (states(), "in sync"),
        (states(isr=(1, 2)), "under-replicated"),
        (states(isr=(1,)), "too few in sync"),
        (states(isr=(1,), is_recovering=True, high_watermark=None), "recovering"),
        (states(leader=-1, isr=(1,), high_watermark=None), "no leader"),
        (states(ends={2: 10, 3: 10}, high_watermark=None), "leader silent"),
        (states(isr=(1, 2), ends={2: 10}, high_watermark=None), "leader silent"),
        (states(ends={1: 10, 2: 10}), "replica silent"),
        (states(isr=(1, 2), ends={1: 10, 2: 10}), "under-replicated"),
    ],
)
def test_the_worst_state_is_shown(found: ReplicaStates, state: str) -> None:
    assert state_of(found, 2) == state
    assert json_row(0, found, 2)["state"] == state
    assert str(table_row(0, found, 2)["state"]) == state


def test_fewer_replicas_than_min_insync_replicas_suffice() -> None:
    assert state_of(states(), 5) == "in sync"


def test_lagging_replicas_are_shown_with_their_lag() -> None:
    found = states(isr=(1, 2), ends={1: 120, 2: 120, 3: 100}, high_watermark=120)
    assert found.lag == {2: 0, 3: 20}
    assert str(table_row(0, found, 2)["behind"]) == "3: 20"


def test_the_lag_of_a_replica_that_did_not_answer_is_unknown() -> None:
    assert states(ends={1: 10, 2: 10}).lag == {2: 0, 3: None}
    assert str(table_row(0, states(ends={1: 10, 2: 10}), 2)["behind"]) == "3: ?"
    assert states(ends={2: 10, 3: 10}).lag == {2: None, 3: None}


def test_without_a_leader_the_end_offset_of_each_replica_is_shown() -> None:
    """It shows how many records an unclean election would keep."""
    found = states(leader=-1, isr=(), ends={2: 5, 3: 8}, high_watermark=None)
    assert str(table_row(0, found, 2)["behind"]) == "1: ?, 2 ends at 5, 3 ends at 8"


def test_a_follower_ahead_of_the_leader_has_no_lag() -> None:
    """It has not truncated its log yet, or the leader answered first."""
    assert states(ends={1: 10, 2: 15, 3: 10}).lag == {2: 0, 3: 0}


def test_the_title_counts_unhealthy_partitions() -> None:
    assert summary([states(), states()], 2) == ""
    found = [states(), states(isr=(1,)), states(isr=(2,)), states(leader=-1)]
    assert summary(found, 2) == ": of 4 partitions 2 too few in sync, 1 no leader"


def test_a_killed_broker_shows_as_under_replicated() -> None:
    overrides = {"broker.session.timeout.ms": "2000", "replica.lag.time.max.ms": "2000"}

    def run(cluster: LocalCluster, *arguments: str) -> str:
        result = CliRunner().invoke(app, list(arguments), env={"FENCELINE_BOOTSTRAP": cluster.bootstrap})
        assert result.exit_code == 0, result.output
        return result.output

    def rows(cluster: LocalCluster) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(run(cluster, "topics", "describe", "t", "--json"))
        return found

    with LocalCluster(3, overrides=overrides) as cluster:
        settings = ("--partitions", "3", "--replication-factor", "3", "--config", "min.insync.replicas=2")
        run(cluster, "topics", "create", "t", *settings)

        def whole() -> list[dict[str, Any]] | None:
            found = rows(cluster)
            return found if {row["state"] for row in found} == {"in sync"} else None

        found = eventually(whole, "all are in sync and answer")
        assert [row["high_watermark"] for row in found] == [0, 0, 0]
        assert all(row["log_end_offsets"] == {"1": 0, "2": 0, "3": 0} for row in found)
        cluster.kill(3)

        # Sessions are short: on a busy machine a live broker may be fenced for a moment, between any two commands.
        def is_missed() -> bool:
            return all(row["state"] == "under-replicated" and row["lag"].get("3", 0) is None for row in rows(cluster))

        def is_shown() -> bool:
            shown = run(cluster, "topics", "describe", "t")
            return "of 3 partitions 3 under-replicated" in shown and "3: ?" in shown

        eventually(is_missed, "the broker's replicas are missed")
        eventually(is_shown, "the table says so")


def test_a_timeout_without_a_leader_suggests_topics_describe(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit), readable_errors():
        raise PeerError(ErrorCode.REQUEST_TIMED_OUT, "timed out; the last error was: rain-0: LEADER_NOT_AVAILABLE")
    reported = capsys.readouterr().err
    assert "fenceline topics describe" in reported
    assert "quorum" not in reported
