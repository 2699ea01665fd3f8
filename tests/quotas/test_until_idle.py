"""Which clients are remembered, and for how long."""

from __future__ import annotations

from fenceline.quotas.until_idle import UntilIdle


class Busy:
    def __init__(self, until_ms: int) -> None:
        self.until_ms = until_ms
        self.asked = 0

    def is_idle(self, now_ms: int) -> bool:
        self.asked += 1
        return now_ms >= self.until_ms


def test_a_value_is_made_once() -> None:
    known: UntilIdle[str, Busy] = UntilIdle()
    first = known.of("a", lambda: Busy(0), 0)
    assert known.of("a", lambda: Busy(0), 10) is first
    assert known.of("b", lambda: Busy(0), 10) is not first
    assert len(known) == 2


def test_idle_values_go() -> None:
    known: UntilIdle[int, Busy] = UntilIdle()
    for number in range(50_000):
        known.of(number, lambda end=number + 1_500: Busy(end), number)  # type: ignore[misc]
        assert len(known) <= 2 * 1_500 + 1
    assert set(range(50_000 - 1_500, 50_000)) <= set(known)


def test_looking_for_idle_values_costs_little() -> None:
    known: UntilIdle[int, Busy] = UntilIdle()
    values = [Busy(10**9) for _ in range(60_000)]
    for number, value in enumerate(values):
        known.of(number, lambda value=value: value, 0)  # type: ignore[misc]
    assert len(known) == 60_000
    assert sum(value.asked for value in values) < 2 * 60_000


def test_those_that_came_first_go_if_there_are_too_many() -> None:
    known: UntilIdle[int, Busy] = UntilIdle(100)
    for number in range(1_000):
        known.of(number, lambda: Busy(10**9), 0)
        assert len(known) <= 100
        assert number in set(known)
    assert min(known) >= 900
