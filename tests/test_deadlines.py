"""Deadlines of many keys: each is due once, in order, and many that move or end together cost little at a time."""

from __future__ import annotations

import random

from fenceline.deadlines import _MOVED_AT_ONCE, Deadlines


def due(deadlines: Deadlines[int], now_ms: int) -> list[int]:
    """All that is due, however many calls that takes."""
    found: list[int] = []
    while (at_ms := deadlines.next_deadline_ms()) is not None and at_ms <= now_ms:
        key = deadlines.pop_due(now_ms)
        if key is not None:
            found.append(key)
    return found


def test_some_of_what_is_due_at_a_time() -> None:
    deadlines: Deadlines[int] = Deadlines()
    for key in range(5):
        deadlines.arm(key, key)
    found = []
    for key in deadlines.pop_some(3, most=3):
        found.append(key)
        deadlines.disarm(1)
    assert found == [0, 2, 3], "what was disarmed meanwhile is not due"
    assert list(deadlines.pop_some(3, most=3)) == []
    deadlines.arm(5, 4)
    assert list(deadlines.pop_some(10, most=1)) == [4]
    assert deadlines.next_deadline_ms() == 4


def test_each_key_is_due_at_its_last_deadline() -> None:
    rng = random.Random(5)
    deadlines: Deadlines[int] = Deadlines()
    expected: dict[int, int] = {}
    for now_ms in range(2_000):
        for _ in range(3):
            key = rng.randrange(300)
            if rng.random() < 0.1:
                deadlines.disarm(key)
                expected.pop(key, None)
            else:
                expected[key] = now_ms + rng.randrange(1, 400)
                deadlines.arm(key, expected[key])
        assert sorted(due(deadlines, now_ms)) == sorted(key for key, at_ms in expected.items() if at_ms == now_ms)
        expected = {key: at_ms for key, at_ms in expected.items() if at_ms > now_ms}
        assert len(deadlines) == len(expected)


def test_deadlines_that_have_moved_are_moved_a_few_in_a_call() -> None:
    """Each member's session was extended before it was over."""
    deadlines: Deadlines[int] = Deadlines()
    count = 5 * _MOVED_AT_ONCE
    for key in range(count):
        deadlines.arm(key, 10)
        deadlines.arm(key, 100)
    calls = 0
    while deadlines.next_deadline_ms() == 10:
        assert deadlines.pop_due(10) is None, "none is due yet"
        calls += 1
    assert calls >= 2
    assert deadlines.next_deadline_ms() == 100
    assert due(deadlines, 99) == []
    assert due(deadlines, 100) == list(range(count))
    assert deadlines.next_deadline_ms() is None
