"""Ranges that were loaded, and what the event loop may send of their segments."""

from __future__ import annotations

import sys

import pytest

from fenceline.log.core import recent_loads
from fenceline.log.core.recent_loads import LOADING_S, LOADS_KEPT, SEGMENTS_KEPT, SYSTEM_AHEAD_BYTES, RecentLoads

MIB = 1 << 20


@pytest.fixture
def loads() -> RecentLoads[str]:
    return RecentLoads()


def _load(loads: RecentLoads[str], start: int, end: int, segment: str = "a") -> None:
    loads.begun(segment, start)
    loads.loaded(segment, start, end)


def test_a_segment_without_loads_is_sent_at_once(loads: RecentLoads[str]) -> None:
    assert not loads.may_be_read_ahead("a", 0, MIB)
    assert not loads.may_be_under_way("a")
    assert not loads.was_loaded("a", 0, MIB)


def test_what_follows_a_load_is_loaded_as_well(loads: RecentLoads[str]) -> None:
    _load(loads, MIB, 2 * MIB)
    assert loads.was_loaded("a", MIB, 2 * MIB)
    assert not loads.may_be_read_ahead("a", MIB, 2 * MIB), "a thread has passed it"
    assert loads.may_be_read_ahead("a", MIB, 2 * MIB + 1)
    assert loads.may_be_read_ahead("a", 2 * MIB + SYSTEM_AHEAD_BYTES - 1, 100 * MIB)
    assert not loads.may_be_read_ahead("a", 2 * MIB + SYSTEM_AHEAD_BYTES, 100 * MIB)
    assert not loads.may_be_read_ahead("a", 0, 2 * MIB)
    assert not loads.may_be_read_ahead("b", 2 * MIB, 3 * MIB)


def test_a_load_that_has_begun_is_waited_for_by_a_thread(loads: RecentLoads[str]) -> None:
    loads.begun("a", MIB)
    assert loads.may_be_read_ahead("a", MIB, MIB + 1)
    assert not loads.was_loaded("a", MIB, MIB + 1)
    assert loads.may_be_under_way("a")


def test_a_reader_continues_its_load_and_leaves_those_of_others(loads: RecentLoads[str]) -> None:
    _load(loads, 0, 8 * MIB)
    _load(loads, 40 * MIB, 41 * MIB)
    assert loads.was_loaded("a", 0, 8 * MIB)
    assert not loads.may_be_read_ahead("a", 40 * MIB, 41 * MIB), "the other reader's load does not matter here"
    loads.begun("a", 8 * MIB)
    assert not loads.was_loaded("a", 0, MIB), "it has been sent"
    assert loads.was_loaded("a", 40 * MIB, 41 * MIB)


def test_a_load_ahead_may_end_after_the_next_load_has_begun(loads: RecentLoads[str]) -> None:
    _load(loads, 0, MIB)
    loads.begun("a", MIB)
    loads.loaded("a", 0, 5 * MIB)
    assert loads.was_loaded("a", MIB, 5 * MIB)
    loads.loaded("a", MIB, 2 * MIB)
    assert loads.was_loaded("a", MIB, 2 * MIB)


def test_where_nothing_is_left_to_read_ahead_the_loop_sends(loads: RecentLoads[str]) -> None:
    _load(loads, 0, MIB)
    loads.cached("a", 10 * MIB, 20 * MIB)
    assert not loads.may_be_read_ahead("a", 10 * MIB, 20 * MIB)
    assert loads.may_be_read_ahead("a", 10 * MIB, 20 * MIB + 1)
    assert loads.may_be_read_ahead("a", 9 * MIB, 11 * MIB)
    loads.begun("a", 12 * MIB)
    assert loads.may_be_read_ahead("a", 13 * MIB, 14 * MIB), "something was missing there after all"
    loads.cached("a", 20 * MIB, sys.maxsize)
    assert not loads.may_be_read_ahead("a", 21 * MIB, 500 * MIB)
    loads.cached("b", 0, MIB)
    assert loads.segments() == ["a"]


def test_a_reader_may_pause(loads: RecentLoads[str], monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 1_000.0
    monkeypatch.setattr(recent_loads.time, "monotonic", lambda: now_s)
    _load(loads, 0, MIB)
    now_s += LOADING_S
    assert not loads.may_be_under_way("a")
    assert loads.may_be_read_ahead("a", MIB, 2 * MIB), "what the system has marked stays marked"


def test_what_is_kept_is_bounded(loads: RecentLoads[str]) -> None:
    for number in range(2 * SEGMENTS_KEPT):
        loads.begun(str(number), 0)
    assert len(loads.segments()) == SEGMENTS_KEPT
    starts = [number * MIB for number in range(2 * LOADS_KEPT)]
    for start in starts:
        _load(loads, start, start + 1)
    assert [start for start in starts if loads.was_loaded("a", start, start + 1)] == starts[-LOADS_KEPT:]


def test_nothing_is_kept_of_a_segment_that_was_closed_while_a_thread_loaded_it(loads: RecentLoads[str]) -> None:
    loads.begun("a", 0)
    loads.forget("a")
    loads.loaded("a", 0, MIB)
    loads.cached("a", 0, MIB)
    assert loads.segments() == []
