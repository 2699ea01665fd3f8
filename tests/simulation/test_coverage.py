"""What a story counts as met: the windows, the parts, and that counting changes nothing of a story."""

from __future__ import annotations

from fenceline.testing.simulation.coverage import ROOMS, WINDOW_S, Coverage, State, Triple
from fenceline.testing.simulation.coverage_states import STATES


class _Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def _coverage(clock: _Clock) -> Coverage:
    coverage = Coverage(clock)
    coverage.sample = lambda node_id, topic: [State("log", f"{node_id}-{topic}")]
    return coverage


def test_an_operation_meets_the_faults_that_are_active() -> None:
    clock = _Clock()
    coverage = _coverage(clock)
    coverage.fault("slow disk", 2, lasts_s=3.0)
    clock.now_s = 3.0 + WINDOW_S
    coverage.operation("produce", "t0")
    clock.now_s += 0.01
    coverage.operation("produce", "t0")
    assert coverage.counts == {Triple("log", "2-t0", "produce", "slow disk"): 1}


def test_a_fault_meets_the_operations_in_progress() -> None:
    clock = _Clock()
    coverage = _coverage(clock)
    coverage.operation("produce", "t0")
    coverage.operation("reassign", "t1")
    clock.now_s = WINDOW_S / 2
    coverage.operation("produce", "t0")
    clock.now_s = WINDOW_S + 0.1
    coverage.fault("kill", 1)
    coverage.fault("partition")
    assert sorted(map(str, coverage.counts)) == ["log 1-t0, produce, kill", "log None-t0, produce, partition"]


def test_a_change_meets_what_is_active_on_its_node_and_in_progress_on_its_topic() -> None:
    clock = _Clock()
    coverage = _coverage(clock)
    for topic in ("t0", "t1", None):
        coverage.operation(f"of {topic}", topic)
    for node_id in (1, 2, None):
        coverage.fault(f"at {node_id}", node_id)
    coverage.counts.clear()
    coverage.changed(1, "t0")
    assert {(each.operation, each.fault) for each in coverage.counts} == {
        (f"of {topic}", f"at {node_id}") for topic in ("t0", None) for node_id in (1, None)
    }
    assert {each.state for each in coverage.counts} == {"1-t0"}


def test_nothing_is_counted_before_there_are_nodes_and_after_the_end() -> None:
    coverage = Coverage(_Clock())
    coverage.operation("produce")
    coverage.fault("kill", 1)
    coverage.changed(1, "t0")
    assert not coverage.counts


def test_a_triple_is_written_and_read() -> None:
    triple = Triple("log", "dirty", "delete records", "power loss")
    assert Triple.parse(str(triple)) == triple


def test_each_room_has_its_states() -> None:
    assert tuple(STATES) == ROOMS
