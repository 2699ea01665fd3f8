"""The heap of deadlines against a plain dictionary."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fenceline.groups.timers import PartitionTimers, TimerKey, TimerKind

_ALTERNATIONS = 2000
_KEYS = st.integers(0, 3).map(lambda number: TimerKey(TimerKind.SESSION, "g", str(number)))
_ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("arm"), _KEYS, st.integers(0, 50)),
        st.tuples(st.just("disarm"), _KEYS, st.just(0)),
        st.tuples(st.just("pop"), _KEYS, st.integers(0, 50)),
    ),
    max_size=60,
)


@given(_ACTIONS)
def test_a_timer_fires_once_and_at_its_last_deadline(actions: list[tuple[str, TimerKey, int]]) -> None:
    timers, model = PartitionTimers(0).deadlines, {}
    for action, key, at_ms in actions:
        if action == "arm":
            timers.arm(key, at_ms)
            model[key] = at_ms
        elif action == "disarm":
            timers.disarm(key)
            model.pop(key, None)
        else:
            due = timers.pop_due(at_ms)
            if due is None:
                assert all(deadline > at_ms for deadline in model.values())
            else:
                assert model.pop(due) <= at_ms
        assert len(timers) == len(model)
        assert timers.next_deadline_ms() == min(model.values(), default=None)


def test_moving_a_deadline_does_not_grow_the_heap() -> None:
    timers, key = PartitionTimers(0).deadlines, TimerKey(TimerKind.SESSION, "g", "m")
    for at_ms in range(10_000):
        timers.arm(key, at_ms)
    assert len(timers._heap) == 1
    assert timers.next_deadline_ms() == 9_999


def test_deadlines_that_alternate_leave_no_entries_behind() -> None:
    """A client decides how long it waits: late deadlines that are no longer wanted would stay until then."""
    timers, key = PartitionTimers(0).deadlines, TimerKey(TimerKind.SESSION, "g", "m")
    for at_ms in range(_ALTERNATIONS):
        timers.arm(key, 10**9)
        timers.disarm(key)
        timers.arm(key, at_ms)
        assert timers.pop_due(at_ms) == key
    assert len(timers._heap) < _ALTERNATIONS / 10
    assert timers.next_deadline_ms() is None
