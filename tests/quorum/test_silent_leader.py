"""Followers of a leader that does not answer: when they doubt it, and what keeps a wrong doubt harmless
(`quorum.following`).

A leader is prompt if its connection has announced that it answers each fetch in time (`wire.extensions`).
"""

from __future__ import annotations

from typing import Any

import pytest

from fenceline.errors import ErrorCode
from fenceline.quorum.election_state import ElectionState
from fenceline.quorum.messages import QuorumFetchRequest, QuorumFetchResponse, VoteRequest, VoteResponse
from fenceline.quorum.roles import Candidate, Follower, Prospective, Unattached
from tests.quorum.machine import Machine
from tests.quorum.memory_log import voter

SILENCE_MS = 300
WAIT_MS = 500
AGAIN_MS = 30


def _follower(*, prompt: bool = True, **options: Any) -> Machine:
    """Node 1, whose leader 2 has answered its first fetch; the next one is in flight."""
    machine = Machine(election=ElectionState(3, leader_id=2), silence_timeout_ms=SILENCE_MS, **options)
    machine.fetched(high_watermark=0, is_prompt=prompt)
    assert machine.sent(QuorumFetchRequest).keys() == {2}
    return machine


def test_silent_leader_is_doubted_long_before_the_fetch_timeout() -> None:
    """Not before its answer is overdue, and only if it is still missing a moment later."""
    machine = _follower()
    machine.pass_time(WAIT_MS + SILENCE_MS - 1)
    machine.pass_time(1)
    assert machine.quorum.role == Follower(3, 2), "its answer may be in the socket"
    machine.pass_time(AGAIN_MS)
    assert machine.quorum.role == Prospective(3, 2)
    assert machine.sent(VoteRequest).keys() == {2, 3}


@pytest.mark.parametrize("options", [{"prompt": False}, {"silence_timeout_ms": None}])
def test_only_prompt_leaders_are_doubted_early(options: dict[str, Any]) -> None:
    """A Kafka node leads, or the setting is off: nothing but the fetch timeout counts (raft.md Q28)."""
    prompt = options.pop("prompt", True)
    machine = Machine(election=ElectionState(3, leader_id=2), **({"silence_timeout_ms": SILENCE_MS} | options))
    machine.fetched(high_watermark=0, is_prompt=prompt)
    for _ in range(19):
        machine.pass_time(100)
        assert machine.quorum.role == Follower(3, 2)
    machine.pass_time(100)
    assert machine.quorum.role == Prospective(3, 2)


def test_leader_that_has_never_answered_is_not_doubted_early() -> None:
    machine = Machine(election=ElectionState(3, leader_id=2), silence_timeout_ms=SILENCE_MS)
    for _ in range(19):
        machine.pass_time(100)
        assert machine.quorum.role == Follower(3, 2)


def test_paused_follower_does_not_doubt_its_leader() -> None:
    """Its timer is late, so it was this process that did not run: the answer gets its time again."""
    machine = _follower(fetch_timeout_ms=60_000, request_timeout_ms=60_000)
    machine.pass_time(5_000)
    machine.pass_time(AGAIN_MS)
    assert machine.quorum.role == Follower(3, 2)
    machine.pass_time(SILENCE_MS - AGAIN_MS - 1)
    assert machine.quorum.role == Follower(3, 2)
    machine.pass_time(1)
    machine.pass_time(AGAIN_MS)
    assert machine.quorum.role == Prospective(3, 2), "now it has waited itself"


def test_each_answer_counts_anew() -> None:
    machine = _follower()
    for _ in range(10):
        in_flight = machine.request_id(2, QuorumFetchRequest)
        machine.pass_time(WAIT_MS + SILENCE_MS)
        machine.pass_time(AGAIN_MS - 1)
        answer = QuorumFetchResponse(leader_id=2, leader_epoch=3, high_watermark=0, is_prompt=True)
        machine.reply(in_flight, answer)
        assert machine.quorum.role == Follower(3, 2)


def test_other_followers_that_are_in_touch_reject_the_pre_vote() -> None:
    """Q60, K8: one follower that misses the leader changes nothing; it follows the leader again when both others
    reject, and no epoch is used up."""
    machine = _follower()
    machine.pass_time(WAIT_MS + SILENCE_MS)
    machine.pass_time(AGAIN_MS)
    asked = {node: machine.request_id(node, VoteRequest) for node in (2, 3)}
    for node in (2, 3):
        machine.reply(asked[node], VoteResponse(leader_epoch=3, leader_id=2, vote_granted=False))
    assert machine.quorum.role == Follower(3, 2)
    assert machine.quorum.epoch == 3


def test_follower_that_misses_the_leader_too_grants_the_pre_vote() -> None:
    machine = _follower()
    machine.pass_time(WAIT_MS + SILENCE_MS)
    ask = VoteRequest("c", 3, 3, 0, 0, voter(3).voter_directory_id, 1, voter(1).voter_directory_id, pre_vote=True)
    assert not machine.ask(ask).vote_granted, "not yet"
    machine.pass_time(AGAIN_MS)
    assert machine.ask(ask).vote_granted


def test_majority_that_misses_the_leader_elects_another() -> None:
    machine = _follower()
    machine.pass_time(WAIT_MS + SILENCE_MS)
    machine.pass_time(AGAIN_MS)
    machine.reply(machine.request_id(3, VoteRequest), VoteResponse(leader_epoch=3, leader_id=2, vote_granted=True))
    assert isinstance(machine.quorum.role, Candidate)
    assert machine.quorum.epoch == 4


def test_observer_of_a_silent_leader_asks_another_node() -> None:
    """Q1, K11: it does not wait for its fetch timeout, and requests no votes."""
    machine = Machine(me=4, election=ElectionState(3, leader_id=2), silence_timeout_ms=SILENCE_MS)
    machine.fetched(high_watermark=0, is_prompt=True)
    machine.pass_time(WAIT_MS + SILENCE_MS)
    machine.pass_time(AGAIN_MS)
    assert isinstance(machine.quorum.role, Follower)
    assert machine.sent(VoteRequest) == {}
    (asked,) = machine.sent(QuorumFetchRequest)
    assert asked != 2


def test_observer_that_searches_the_leader_does_not_wait_for_a_silent_node() -> None:
    """Nor does it ask the silent leader again at once, when a new epoch has no leader yet: both would cost seconds."""
    machine = Machine(me=4, election=ElectionState(3, leader_id=2), silence_timeout_ms=SILENCE_MS)
    machine.fetched(high_watermark=0, is_prompt=True)
    machine.pass_time(WAIT_MS + SILENCE_MS)
    machine.pass_time(AGAIN_MS)
    (first,) = machine.sent(QuorumFetchRequest)
    answer = QuorumFetchResponse(partition_error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER, leader_epoch=4)
    machine.reply(machine.request_id(first, QuorumFetchRequest), answer)
    assert machine.quorum.role == Unattached(4)
    asked = {first}
    for _ in range(2):
        machine.pass_time(100)
        (other,) = machine.sent(QuorumFetchRequest) or (None,)
        if other is None:
            continue
        asked.add(other)
        machine.pass_time(WAIT_MS + SILENCE_MS)
        machine.pass_time(AGAIN_MS)
        asked.update(machine.sent(QuorumFetchRequest))
    assert 2 not in asked
    assert len(asked) == 2, "when one does not answer, the next is asked"
