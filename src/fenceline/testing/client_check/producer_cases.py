"""The cases for programs that produce: what a producer can meet while it has records in flight.

Owns the list. A case may leave faults; they end before the program must have recovered.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from fenceline.testing.client_check.stage import Case, CaseOutcome, CaseStage
from fenceline.testing.client_check.verdicts import processed
from fenceline.testing.lab.faults import ActiveFault

_FAULT_S: Final = 1.5
_TIMES: Final = 5


def _nothing(stage: CaseStage) -> None:
    pass


def _moved(stage: CaseStage) -> None:
    stage.cluster.situations.leader_moved(stage.topic)


def _moving(stage: CaseStage) -> None:
    stage.cluster.situations.moving_leader(stage.topic, pause_s=0.05)
    time.sleep(_FAULT_S)


def _killed(stage: CaseStage) -> None:
    stage.cluster.faults.kill(stage.cluster.leader(stage.topic))
    time.sleep(_FAULT_S)


def _frozen(stage: CaseStage) -> None:
    stage.cluster.faults.pause(stage.cluster.leader(stage.topic))
    time.sleep(2 * _FAULT_S)


def _isolated(stage: CaseStage) -> None:
    stage.cluster.situations.isolated_leader(stage.topic)
    time.sleep(_FAULT_S)


def _unclean(stage: CaseStage) -> None:
    stage.cluster.situations.unclean_election(stage.topic, produce=lambda: time.sleep(0.5))


def _recreated(stage: CaseStage) -> CaseOutcome:
    before = stage.in_log()
    stage.cluster.situations.topic_recreated(stage.topic)
    # Between the two, more may have been written to the old topic: all that was acknowledged by now.
    return CaseOutcome(frozenset(before) | frozenset(processed(stage.program.lines)))


def _full_disk(stage: CaseStage) -> None:
    stage.cluster.situations.full_disk(stage.topic)
    time.sleep(_FAULT_S)


def _cut(stage: CaseStage) -> None:
    stage.cluster.faults.cut(stage.cluster.leader(stage.topic), clients=True)
    time.sleep(_FAULT_S)


def _half_open(stage: CaseStage) -> None:
    stage.cluster.faults.half_open(stage.cluster.leader(stage.topic))
    time.sleep(0.2)


def _reset(stage: CaseStage) -> None:
    for _ in range(_TIMES):
        stage.cluster.faults.reset(stage.cluster.leader(stage.topic))
        time.sleep(0.1)


def _slow(stage: CaseStage) -> None:
    stage.cluster.faults.delay(stage.cluster.leader(stage.topic), 0.1, jitter_s=0.1, peer="clients")
    time.sleep(_FAULT_S)


def _throttled(stage: CaseStage) -> None:
    stage.cluster.faults.throttle("Produce", 300, topic=stage.topic, times=3)
    time.sleep(_FAULT_S)


def _errors(error: str) -> Callable[[CaseStage], CaseOutcome | None]:
    return _requests(
        lambda stage: stage.cluster.faults.fail_requests("Produce", error, topic=stage.topic, times=_TIMES)
    )


def _requests(begin: Callable[[CaseStage], ActiveFault]) -> Callable[[CaseStage], CaseOutcome | None]:
    """Faults of some Produce requests, until all of them have happened."""

    def make(stage: CaseStage) -> None:
        fault = begin(stage)
        ends_s = time.monotonic() + 2 * _FAULT_S
        while fault.hits < _TIMES and time.monotonic() < ends_s:
            time.sleep(0.02)

    return make


BASELINE: Final = Case("baseline", "nothing happens", _nothing)
PRODUCER_CASES: Final = (
    Case("leader-moved", "the leader moves", _moved),
    Case("leader-moving", "the leader moves all the time", _moving),
    Case("leader-killed", "the leader is killed", _killed),
    Case("leader-frozen", "the leader is frozen", _frozen),
    Case("leader-isolated", "the leader is cut off from the other nodes", _isolated),
    Case("unclean-election", "acknowledged records are lost by an unclean election", _unclean),
    Case("topic-recreated", "the topic is deleted and made anew", _recreated),
    Case("full-disk", "the leader's disk is full", _full_disk),
    Case(
        "lost-answers",
        "answers to Produce are lost",
        _requests(lambda stage: stage.cluster.faults.lose_answers("Produce", topic=stage.topic, times=_TIMES)),
    ),
    Case(
        "lost-requests",
        "Produce requests are lost",
        _requests(lambda stage: stage.cluster.faults.lose_requests("Produce", topic=stage.topic, times=_TIMES)),
    ),
    Case("not-leader", "NOT_LEADER_OR_FOLLOWER, five times", _errors("NOT_LEADER_OR_FOLLOWER")),
    Case("not-enough-replicas", "NOT_ENOUGH_REPLICAS, five times", _errors("NOT_ENOUGH_REPLICAS")),
    Case("timed-out", "REQUEST_TIMED_OUT, five times", _errors("REQUEST_TIMED_OUT")),
    Case("storage-error", "KAFKA_STORAGE_ERROR, five times", _errors("KAFKA_STORAGE_ERROR")),
    Case("cut", "clients are cut off from the leader", _cut),
    Case("half-open", "connections are half open", _half_open),
    Case("reset", "connections are reset", _reset),
    Case("slow-network", "the network is slow", _slow),
    Case("throttled", "Produce is throttled", _throttled),
)
