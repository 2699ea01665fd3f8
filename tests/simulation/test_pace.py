"""Bursts and pauses: `fenceline.testing.simulation.pace`."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from fenceline.testing.simulation.pace import LoadCycle


def _turns(tide: LoadCycle, until_s: float) -> list[tuple[float, bool]]:
    """The times at which pauses start or end, in steps of a hundredth of a second."""
    found: list[tuple[float, bool]] = []
    for step in range(int(until_s * 100)):
        now_s = step / 100
        rests = tide.quiet_s(now_s) > 0
        if not found or found[-1][1] != rests:
            found.append((now_s, rests))
    return found


def test_load_and_pauses_alternate() -> None:
    turns = _turns(LoadCycle(Random(1), 1.0, 3.0), 400)
    lasted = [(rests, end - begin) for (begin, rests), (end, _) in pairwise(turns)]
    assert not turns[0][1], "it starts with load"
    assert all(0.39 <= each <= 1.61 for rests, each in lasted if not rests)
    assert all(1.19 <= each <= 4.81 for rests, each in lasted if rests)
    assert sum(each for rests, each in lasted if rests) == pytest.approx(300, rel=0.1)


def test_a_pausing_client_knows_when_load_starts_again() -> None:
    tide = LoadCycle(Random(2), 0.5, 2.0)
    now_s = next(step / 10 for step in range(100) if tide.quiet_s(step / 10) > 0)
    assert tide.quiet_s(now_s + tide.quiet_s(now_s)) == 0.0


def test_an_interval_is_four_times_as_long_in_a_pause() -> None:
    tide, twin = LoadCycle(Random(3), 1.0, 3.0), LoadCycle(Random(3), 1.0, 3.0)
    assert tide.lasting_s(0.0, 0.1) == 0.1, "under load"
    load_ends_s = next(step / 1000 for step in range(10_000) if twin.quiet_s(step / 1000) > 0)
    assert tide.lasting_s(load_ends_s, 0.1) == pytest.approx(0.4), "in a pause"
    begun_s = load_ends_s - 0.1
    assert tide.lasting_s(begun_s, 0.2) == pytest.approx(0.1 + 0.4, abs=0.01), "across both"


def test_a_long_time_is_the_sum_of_its_turns() -> None:
    tide = LoadCycle(Random(4), 1.0, 3.0)
    whole_s = tide.lasting_s(0.0, 100.0)
    half_s = tide.lasting_s(0.0, 50.0)
    assert half_s + tide.lasting_s(half_s, 50.0) == pytest.approx(whole_s)
    assert whole_s == pytest.approx(100 * 4 / 1.75, rel=0.1)
