"""How often unreachable peers are retried, and how soon a peer that returns is contacted."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from uuid import UUID

from fenceline.quorum.duties import Peer, Send
from fenceline.quorum.messages import RequestMessage, VoteRequest
from fenceline.quorum.outbox import QuorumOutbox
from tests.quorum.machine import Machine

PEER, OTHER = Peer(2, "n2", 2), Peer(3, "n3", 3)
ASKED = VoteRequest("c", 1, 1, 0, 0, UUID(int=1), 2, UUID(int=2), pre_vote=True)


def _miss(outbox: QuorumOutbox, now_ms: int, *, after_ms: int = 0) -> int:
    """When the peer may be sent to again, after a request now that fails later."""
    duty = outbox.send(now_ms, PEER, ASKED)
    assert isinstance(duty, Send)
    sent = outbox.complete(duty.request_id)
    assert sent is not None
    now_ms += after_ms
    outbox.request_failed(now_ms, sent)
    again_ms = outbox.next_deadline_ms(now_ms)
    assert again_ms is not None
    assert not outbox.may_send(again_ms - 1, PEER, VoteRequest)
    assert outbox.may_send(again_ms, PEER, VoteRequest)
    assert outbox.may_send(now_ms, OTHER, VoteRequest)
    return again_ms


def test_backoff_grows_while_a_peer_does_not_respond() -> None:
    outbox = QuorumOutbox(2000, 20, Random(1))
    now_ms, rests = 0, []
    for _ in range(20):
        again_ms = _miss(outbox, now_ms)
        rests.append(again_ms - now_ms)
        now_ms = again_ms
    assert rests[:5] == [20] * 5
    assert sum(rests[:8]) < 500, "a peer that restarts within a moment is found at once"
    assert all(500 <= rest <= 1000 for rest in rests[12:])
    assert len(set(rests[12:])) > 1
    outbox.peer_reachable(PEER)
    assert outbox.may_send(now_ms, PEER, VoteRequest)
    assert not outbox.has_failures
    assert _miss(outbox, now_ms) == now_ms + 20


def test_a_long_timeout_counts_as_backoff() -> None:
    outbox = QuorumOutbox(2000, 20, Random(1))
    now_ms = 0
    for _ in range(20):
        assert _miss(outbox, now_ms, after_ms=2000) == now_ms + 2020
        now_ms += 2020


def _refused_requests(
    machine: Machine, until_ms: int, done: Callable[[], bool] = lambda: False
) -> list[tuple[int, int, RequestMessage]]:
    """The requests of a node that all peers refuse: (time, peer, message). Until then, or until `done` after a
    refusal.
    """
    asked = []
    duties = machine.do(machine.quorum.tick(machine.now_ms))
    while machine.now_ms < until_ms:
        sent = [duty for duty in duties if isinstance(duty, Send)]
        duties = []
        for duty in sent:
            asked.append((machine.now_ms, duty.destination.node_id, duty.message))
            duties += machine.do(machine.quorum.no_response(machine.now_ms, duty.request_id, True))
        if done():
            break
        if not sent:
            deadline_ms = machine.quorum.next_deadline_ms
            assert deadline_ms is not None
            machine.now_ms = max(machine.now_ms + 1, deadline_ms)
            duties = machine.do(machine.quorum.tick(machine.now_ms))
    return asked


def test_an_isolated_voter_sends_a_few_requests_per_second() -> None:
    machine = Machine()
    _refused_requests(machine, 10_000)
    assert len(_refused_requests(machine, 70_000)) < 60 * 10


def test_a_request_of_a_peer_ends_its_backoff() -> None:
    machine = Machine()
    _refused_requests(machine, 30_000)
    outbox = machine.quorum._core.outbox
    peers = [Peer(voter.voter_id, each.host, each.port) for voter in machine.quorum.voters for each in voter.endpoints]
    _refused_requests(machine, 90_000, lambda: any(outbox.is_backing_off(machine.now_ms, peer) for peer in peers))
    resting = [peer for peer in peers if outbox.is_backing_off(machine.now_ms, peer)]
    assert resting
    peer = resting[0]
    end = machine.log.end
    vote = VoteRequest("c", machine.quorum.epoch, peer.node_id, end.epoch, end.offset, UUID(int=9), 1, pre_vote=True)
    machine.do(machine.quorum.request(machine.now_ms, "token", vote))
    assert not outbox.is_backing_off(machine.now_ms, peer)
    assert all(outbox.is_backing_off(machine.now_ms, each) for each in resting[1:])
