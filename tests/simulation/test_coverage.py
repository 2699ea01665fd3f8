"""What a run counts as reached: the windows, the parts, and that counting does not change a run."""

from __future__ import annotations

from math import inf

import pytest

from fenceline.testing.simulation.coverage import CHECK_INTERVAL_S, COMPONENTS, WINDOW_S, Coverage, CoveredState, Triple
from fenceline.testing.simulation.coverage_states import STATES
from fenceline.testing.simulation.operations import Operation
from fenceline.testing.simulation.stage import play


class _Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def _coverage(clock: _Clock) -> Coverage:
    coverage = Coverage(clock)
    coverage.sample = lambda node_id, topic: [CoveredState("log", f"{node_id}-{topic}")]
    return coverage


def test_an_operation_coincides_with_active_faults() -> None:
    clock = _Clock()
    coverage = _coverage(clock)
    coverage.fault("slow disk", 2, lasts_s=3.0)
    clock.now_s = 3.0 + WINDOW_S
    coverage.operation("produce", "t0")
    clock.now_s += 0.01
    coverage.operation("produce", "t0")
    assert coverage.counts == {Triple("log", "2-t0", "produce", "slow disk"): 1}


def test_a_fault_coincides_with_operations_in_progress() -> None:
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


def test_one_sample_serves_all_operations_on_the_same_logs() -> None:
    clock = _Clock()
    coverage = _coverage(clock)
    coverage.operation("reassign", "t0")
    coverage.operation("delete records", "t1")
    coverage.operation("unregister broker")
    clock.now_s = WINDOW_S / 2
    sample, coverage.sample = coverage.sample, lambda node_id, topic: ()
    coverage.fault("lag")
    coverage.sample = sample
    coverage.operation("produce", "t0")
    coverage.operation("produce", "t0")
    assert coverage.counts == {
        Triple("log", "None-t0", operation, "lag"): 1 for operation in ("produce", "reassign", "unregister broker")
    }


def test_a_change_coincides_with_faults_of_its_node_and_operations_on_its_topic() -> None:
    clock = _Clock()
    coverage = _coverage(clock)
    sample, coverage.sample = coverage.sample, lambda node_id, topic: ()
    for topic in ("t0", "t1", None):
        coverage.operation(f"of {topic}", topic)
    for node_id in (1, 2, None):
        coverage.fault(f"at {node_id}", node_id)
    coverage.sample = sample
    coverage.changed(1, "t0")
    assert {(each.operation, each.fault) for each in coverage.counts} == {
        (f"of {topic}", f"at {node_id}") for topic in ("t0", None) for node_id in (1, None)
    }
    assert {each.state for each in coverage.counts} == {"1-t0"}


def test_an_operation_is_in_progress_until_its_effect_has_ended() -> None:
    clock, looks = _Clock(), []
    coverage = _coverage(clock)

    def has_ended(name: str, topic: str | None) -> bool:
        looks.append((name, topic, clock.now_s))
        return clock.now_s > 2.0

    coverage.has_ended = has_ended
    coverage.operation("reassign", "t0")
    clock.now_s = WINDOW_S / 2
    coverage.fault("lag")
    assert not looks
    clock.now_s = 1.5
    coverage.fault("kill", 1)
    clock.now_s = 1.5 + CHECK_INTERVAL_S / 2
    coverage.fault("pause", 1)
    assert looks == [("reassign", "t0", 1.5)]
    clock.now_s = 2.1
    coverage.fault("stop", 1)
    assert {each.fault for each in coverage.counts} == {"lag", "kill", "pause"}
    assert {each.operation for each in coverage.counts} == {"reassign"}


@pytest.mark.parametrize(
    ("operation", "seed", "options"),
    [
        (Operation.RETENTION, 4, {"retention": "1", "segment_bytes": "500", "tidy_ms": "50", "log_dirs": "1"}),
        (Operation.COMPACTION, 2, {"compaction": "1", "segment_bytes": "500", "tidy_ms": "50", "log_dirs": "1"}),
        (Operation.METADATA_SNAPSHOT, 4, {"snapshot_bytes": "300", "snapshot_interval_ms": "200"}),
    ],
)
def test_background_work_is_an_operation(operation: Operation, seed: int, options: dict[str, str]) -> None:
    """It belongs to its topic, metadata work to the whole cluster; and counting it changes no seed."""
    options |= {"crash_s": "0.7", "safety_s": "4"}
    outcome = play(seed, "operations", overrides=options)
    assert outcome.failure is None
    met = {each for each in outcome.triples if each.operation == operation}
    assert {"log", "quorum"} <= {each.component for each in met}


def test_counting_changes_nothing_of_a_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"crash_s": "0.7", "safety_s": "3"}
    counted = play(4, "operations", overrides=options)
    monkeypatch.setattr(Coverage, "operation", lambda *_: None)
    monkeypatch.setattr(Coverage, "fault", lambda *_: None)
    monkeypatch.setattr(Coverage, "changed", lambda *_: None)
    plain = play(4, "operations", overrides=options)
    assert counted.triples
    assert not plain.triples
    assert counted.digest == plain.digest


def test_nothing_is_counted_before_there_are_nodes_and_after_the_end() -> None:
    coverage = Coverage(_Clock())
    coverage.operation("produce")
    coverage.fault("kill", 1)
    coverage.changed(1, "t0")
    assert not coverage.counts


def test_a_triple_is_written_and_read() -> None:
    triple = Triple("log", "dirty", "delete records", "power loss")
    assert Triple.parse(str(triple)) == triple


def test_each_component_has_its_states() -> None:
    assert tuple(STATES) == COMPONENTS


def test_a_fault_that_ends_a_process_lasts_until_it_is_started() -> None:
    clock = _Clock()
    coverage = _coverage(clock)
    coverage.fault("kill", 1, inf)
    clock.now_s = 60.0
    coverage.operation("produce", "t0")
    coverage.starts(2)
    coverage.starts(1)
    clock.now_s += WINDOW_S / 2
    coverage.operation("fetch", "t0")
    clock.now_s += WINDOW_S
    coverage.operation("list offsets", "t0")
    assert sorted(map(str, coverage.counts)) == ["log 1-t0, fetch, kill", "log 1-t0, produce, kill"]


def test_a_fault_can_be_extended() -> None:
    clock = _Clock()
    coverage = _coverage(clock)
    coverage.fault("stranded", 1)
    coverage.lasts("stranded", 1, 2.0)
    coverage.lasts("stranded", 2, 2.0)
    clock.now_s = 2.0 + WINDOW_S
    coverage.operation("produce", "t0")
    assert sorted(map(str, coverage.counts)) == ["log 1-t0, produce, stranded"]


def test_a_change_of_a_node_coincides_with_each_operation_on_its_logs() -> None:
    coverage = _coverage(_Clock())
    sample, coverage.sample = coverage.sample, lambda node_id, topic: ()
    for topic in ("t0", "t1", None):
        coverage.operation(f"of {topic}", topic)
    coverage.fault("lag")
    coverage.sample = sample
    coverage.changed(1)
    assert {(each.state, each.operation) for each in coverage.counts} == {
        ("1-t0", "of t0"),
        ("1-t1", "of t1"),
        ("1-None", "of None"),
    }


def test_operations_that_a_fault_would_coincide_with_are_listed() -> None:
    """Only operations on logs that are in this state now; the query counts nothing."""
    clock = _Clock()
    coverage = _coverage(clock)
    coverage.operation("reassign", "t0")
    coverage.operation("delete records", "t1")
    assert coverage.meeting(CoveredState("log", "1-t1"), 1) == {"delete records"}
    assert coverage.meeting(CoveredState("log", "2-t1"), 1) == set()
    clock.now_s = 2 * WINDOW_S
    assert coverage.meeting(CoveredState("log", "1-t1"), 1) == set()
    assert not coverage.counts
