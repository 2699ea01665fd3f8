"""The scan of one segment file: independent of the window size, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fenceline.log.verify import segment as verify_segment
from fenceline.log.verify.segment import Flaw, SegmentWalk
from fenceline.records.batch import assign_in_place
from fenceline.testing.sim_disk import SimDisk
from tests.log.helpers import batch, watch_reads
from tests.log.verify_helpers import put

PATH = "/rain.log"


def segment(sizes: list[int]) -> bytearray:
    """One batch of one record for each value size, starting at offset 0."""
    content = bytearray()
    for offset, size in enumerate(sizes):
        made = bytearray(batch(size=size))
        assign_in_place(made, 0, offset, offset // 3)
        content += made
    return content


def walked(disk: SimDisk, **options: Any) -> list[tuple[int, int, list[str]]]:
    """(offset, position, problems) of every batch and every damaged place."""
    found = disk.stat(PATH)
    assert found is not None
    steps: list[tuple[int, int, list[str]]] = []
    for step in SegmentWalk(disk, PATH, end=found.size_bytes, **options):
        if isinstance(step, Flaw):
            offset = step.header.base_offset if step.header is not None else -1
            steps.append((offset, step.position, [problem.message for problem in step.problems]))
        else:
            pairs = zip(step.column("base_offset"), step.column("position"), strict=True)
            steps += [(offset, position, []) for offset, position in pairs]
    return steps


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    sizes=st.lists(st.integers(0, 300), min_size=1, max_size=12),
    damage=st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(1, 255)), max_size=3),
    cut=st.integers(0, 100),
    window=st.integers(61, 700),
)
def test_result_does_not_depend_on_the_window_size(
    sizes: list[int], damage: list[tuple[int, int]], cut: int, window: int
) -> None:
    content = segment(sizes)
    for place, mask in damage:
        content[place % len(content)] ^= mask
    disk = SimDisk()
    put(disk, PATH, bytes(content[: len(content) - cut]))
    assert walked(disk, window_bytes=window) == walked(disk)


@pytest.mark.parametrize("offset", [-(1 << 63), -1, (1 << 63) - 2, (1 << 63) - 1])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_impossible_offset_is_reported_and_the_scan_continues(offset: int, place: int) -> None:
    content = segment([10, 10, 10, 10])
    start = place * len(content) // 4
    content[start : start + 8] = offset.to_bytes(8, "big", signed=True)
    disk = SimDisk()
    put(disk, PATH, bytes(content))
    found = walked(disk)
    assert [position for _, position, _ in found] == [number * len(content) // 4 for number in range(4)]
    assert any(problems for _, _, problems in found)


def test_more_batches_than_one_call_describes() -> None:
    disk = SimDisk()
    put(disk, PATH, bytes(segment([0] * (2 * verify_segment.ROWS + 5))))
    assert [offset for offset, _, _ in walked(disk)] == list(range(2 * verify_segment.ROWS + 5))


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Callable[[SimDisk], list[int]]:
    """The sizes of all reads of a disk from now on, with small limits."""
    monkeypatch.setattr(verify_segment, "WINDOW_BYTES", 200)
    monkeypatch.setattr(verify_segment, "MAX_UNVERIFIED_BYTES", 1_000)
    monkeypatch.setattr(verify_segment, "LARGEST_WINDOW_BYTES", 5_000)
    return lambda disk: watch_reads(disk, monkeypatch)


@pytest.mark.parametrize("large", [3_000, 9_000])
def test_batch_larger_than_the_window_is_checked_completely(reads: Callable[[SimDisk], list[int]], large: int) -> None:
    disk = SimDisk()
    put(disk, PATH, bytes(segment([10, large, 10])))
    seen = reads(disk)
    found = walked(disk, window_bytes=200)
    assert [(offset, problems) for offset, _, problems in found] == [(0, []), (1, []), (2, [])]
    assert (max(seen) > 200) is (large < 5_000), "above the limit it is read in pieces"


def test_no_memory_is_allocated_for_a_false_batch_length(reads: Callable[[SimDisk], list[int]]) -> None:
    content = segment([10, 10, 3_000, 10])
    first = int.from_bytes(content[8:12], "big") + 12
    third = int.from_bytes(content[2 * first + 8 : 2 * first + 12], "big") + 12
    content[first + 10] ^= 0x08  # length of the second batch: 2,048 more
    disk = SimDisk()
    put(disk, PATH, bytes(content))
    seen = reads(disk)
    found = walked(disk, window_bytes=200)
    assert [offset for offset, _, _ in found] == [0, -1, 2, 3]
    assert "the checksum or the length" in found[1][2][0]
    assert sorted(seen)[-2:] == [200, third], "only the third, which is intact"
