"""Deadlines of many keys: each is due once, in order, and many that move or end together cost little at a time."""

from __future__ import annotations

import random

from fenceline.deadlines import _MOVED_AT_ONCE, Deadlines, DeadlinesByPartition, PartitionDeadlines


def due(deadlines: Deadlines[int], now_ms: int) -> list[int]:
    """All that is due, however many calls that takes."""
    found: list[int] = []
    while (at_ms := deadlines.next_deadline_ms()) is not None and at_ms <= now_ms:
        key = deadlines.pop_due(now_ms)
        if key is not None:
            found.append(key)
    return found


def due_of_partitions(deadlines: DeadlinesByPartition[int], now_ms: int) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    while (at_ms := deadlines.next_deadline_ms()) is not None and at_ms <= now_ms:
        found.extend(deadlines.pop_some(now_ms, most=2))
    return found


def test_some_of_what_is_due_in_all_partitions_at_a_time() -> None:
    deadlines: DeadlinesByPartition[int] = DeadlinesByPartition()
    parts = [PartitionDeadlines[int](number) for number in range(2)]
    for key in range(4):
        parts[key % 2].arm(key, key)
    assert deadlines.next_deadline_ms() is None, "none is attached"
    for number, each in enumerate(parts):
        deadlines.attach(number, each)
    found = []
    for part, key in deadlines.pop_some(2, most=2):
        found.append((part, key))
        parts[1].disarm(1)
    assert found == [(0, 0)], "what was disarmed meanwhile is not due"
    assert list(deadlines.pop_some(2, most=2)) == [(0, 2)]
    assert deadlines.next_deadline_ms() == 3
    deadlines.detach(1)
    parts[1].arm(9, 3)
    assert due_of_partitions(deadlines, 1_000) == [], "a partition that is gone has nothing that is due"
    assert deadlines.next_deadline_ms() is None


def test_each_key_of_a_partition_is_due_at_its_last_deadline() -> None:
    """Partitions come and go, with deadlines that were armed before they came."""
    rng = random.Random(7)
    deadlines: DeadlinesByPartition[int] = DeadlinesByPartition()
    parts: dict[int, PartitionDeadlines[int]] = {}
    expected: dict[tuple[int, int], int] = {}
    for now_ms in range(3_000):
        part = rng.randrange(5)
        if part in parts and rng.random() < 0.02:
            deadlines.detach(part)
            parts.pop(part).arm(1, now_ms)
            expected = {each: at_ms for each, at_ms in expected.items() if each[0] != part}
        elif part not in parts:
            parts[part] = PartitionDeadlines(part)
            for key in range(rng.randrange(3)):
                expected[part, key] = now_ms + rng.randrange(1, 50)
                parts[part].arm(key, expected[part, key])
            deadlines.attach(part, parts[part])
        else:
            key = rng.randrange(20)
            if rng.random() < 0.1:
                parts[part].disarm(key)
                expected.pop((part, key), None)
            else:
                expected[part, key] = now_ms + rng.randrange(1, 100)
                parts[part].arm(key, expected[part, key])
        at_ms = deadlines.next_deadline_ms()
        first_ms = min(expected.values(), default=None)
        assert first_ms is None or (at_ms is not None and at_ms <= first_ms)
        found = due_of_partitions(deadlines, now_ms)
        assert sorted(found) == sorted(each for each, at_ms in expected.items() if at_ms == now_ms)
        expected = {each: at_ms for each, at_ms in expected.items() if at_ms > now_ms}


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
