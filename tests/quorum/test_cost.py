"""The cost of a request at the leader of the metadata quorum, which thousands of brokers fetch from as observers.

Cost is counted, not timed. Ten times as many observers with waiting fetches must not cost a request one line more for
each of them.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fenceline.errors import ErrorCode
from fenceline.quorum.duties import QuorumAnswer
from fenceline.quorum.messages import QuorumFetchResponse
from tests.counting import lines_of
from tests.quorum.machine import Machine

FEW, MANY = 20, 200
SLACK = 15
FIRST = 100
"""The id of the first observer."""
SMALLEST_WAIT_MS = 500


def _leader(observers: int, *, dynamic: bool) -> Machine:
    """A leader from which all voters and observers fetch, and wait."""
    machine = Machine(dynamic=dynamic)
    machine.to_leader()
    for node_id in (2, 3, *range(FIRST, FIRST + observers)):
        _fetch(machine, node_id, max_wait_ms=SMALLEST_WAIT_MS + observers)
    return machine


def _fetch(machine: Machine, node_id: int, **changed: object) -> None:
    fetch = machine.fetch(node_id, high_watermark=None, **changed)
    machine.do(machine.quorum.request(machine.now_ms, f"token {node_id}", fetch))
    assert machine.quorum.next_deadline_ms is not None


def _new_observer(machine: Machine) -> None:
    _fetch(machine, FIRST - 1)


def _observer(machine: Machine) -> None:
    _fetch(machine, FIRST)


def _voter(machine: Machine) -> None:
    _fetch(machine, 2)


def _timer(machine: Machine) -> None:
    machine.pass_time(1)
    assert machine.quorum.next_deadline_ms is not None


def _timeout(machine: Machine) -> None:
    """Of one fetch."""
    _fetch(machine, 3, max_wait_ms=1)
    machine.pass_time(1)
    assert [duty.token for duty in machine.found(QuorumAnswer)] == ["token 3"]


@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.parametrize("work", [_new_observer, _observer, _voter, _timer, _timeout])
def test_a_request_does_not_look_at_the_other_observers(work: Callable[[Machine], None], dynamic: bool) -> None:
    few, many = (_leader(observers, dynamic=dynamic) for observers in (FEW, MANY))
    assert lines_of(lambda: work(many)) <= lines_of(lambda: work(few)) + SLACK


def test_observers_are_looked_at_when_one_may_be_forgotten() -> None:
    """And those that are in contact stay."""
    machine = _leader(MANY, dynamic=True)
    forgotten_ms = 300_000
    for _ in range(forgotten_ms // 1000):
        machine.now_ms += 1000
        for node_id in (2, 3, FIRST):
            _fetch(machine, node_id)
        machine.pass_time(0)
    assert len(machine.quorum.describe().observers) == MANY
    machine.now_ms += 1
    _fetch(machine, 2)
    machine.pass_time(0)
    assert [each.replica_id for each in machine.quorum.describe().observers] == [FIRST]
    assert lines_of(lambda: _timer(machine)) < MANY


def test_each_waiting_fetch_ends_at_its_own_time() -> None:
    machine = _leader(0, dynamic=True)
    for node_id, wait_ms in ((100, 300), (101, 100), (-1, 200)):
        _fetch(machine, node_id, max_wait_ms=wait_ms)
    ended: list[tuple[int, str]] = []
    for _ in range(3):
        machine.pass_time(100)
        for duty in machine.found(QuorumAnswer):
            assert isinstance(duty.message, QuorumFetchResponse)
            assert duty.message.partition_error_code is ErrorCode.NONE
            ended.append((machine.now_ms, str(duty.token)))
    begin_ms = ended[0][0] - 100
    assert [(at_ms - begin_ms, token) for at_ms, token in ended] == [
        (100, "token 101"),
        (200, "token -1"),
        (300, "token 100"),
    ]
