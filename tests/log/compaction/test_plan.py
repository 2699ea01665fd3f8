"""Which segments are compacted, and when: `judge` is a pure function of the facts."""

from __future__ import annotations

from dataclasses import replace

from fenceline.log.compaction.plan import Due, LogFacts, NotDue, SegmentFacts, SegmentGroup, dirtiest, groups, judge
from fenceline.log.core.config import LogConfig

CONFIG = LogConfig(cleanup_policy=frozenset({"compact"}))
NOW_MS = 1_000_000


def facts(*sizes: int, checkpoint: int | None = None, limit: int = 10_000, first_ms: int = -1) -> LogFacts:
    """Segments of 100 offsets each; the last one is active."""
    segments = [
        SegmentFacts(100 * number, size, first_ms, first_ms + 50 if first_ms >= 0 else -1)
        for number, size in enumerate(sizes)
    ]
    return LogFacts(segments, 0, 100 * len(sizes), limit, checkpoint)


def test_the_active_segment_is_never_compacted() -> None:
    assert judge(facts(500), CONFIG, NOW_MS) == NotDue(None)
    assert judge(facts(500, 10), CONFIG, NOW_MS) == Due(0, 100, 500, 1.0)


def test_dirty_ratio_is_relative_to_all_bytes_that_would_be_rewritten() -> None:
    log = facts(600, 300, 100, 9_999, checkpoint=100)
    assert judge(log, CONFIG, NOW_MS) == NotDue(None, 0.4)
    found = judge(log, replace(CONFIG, min_cleanable_dirty_ratio=0.39), NOW_MS)
    assert found == Due(100, 300, 400, 0.4)


def test_uncommitted_or_unflushed_segments_are_judged_again_later() -> None:
    assert judge(facts(500, 500, 10, limit=150), CONFIG, NOW_MS) == Due(0, 100, 500, 1.0)
    assert judge(facts(500, 500, 10, limit=99), CONFIG, NOW_MS) == NotDue(NOW_MS)
    assert judge(facts(500, 500, 10, limit=150, checkpoint=100), CONFIG, NOW_MS) == NotDue(NOW_MS)


def test_min_compaction_lag_delays_recent_records() -> None:
    config = replace(CONFIG, min_compaction_lag_ms=1_000)
    young = facts(500, 10, first_ms=NOW_MS - 500)
    assert judge(young, config, NOW_MS) == NotDue(NOW_MS - 450 + 1_000)
    assert isinstance(judge(young, config, NOW_MS + 600), Due)


def test_max_compaction_lag_overrides_the_ratio() -> None:
    config = replace(CONFIG, max_compaction_lag_ms=1_000)
    log = facts(10_000, 10, 10, checkpoint=100, first_ms=NOW_MS - 500)
    assert judge(log, config, NOW_MS) == NotDue(NOW_MS + 501, 10 / 10_010)
    found = judge(log, config, NOW_MS + 700)
    assert found == Due(100, 200, 10, 10 / 10_010, 200)


def test_impossible_checkpoint_is_ignored() -> None:
    for checkpoint in (None, 5_000):
        found = judge(facts(500, 10, checkpoint=checkpoint), CONFIG, NOW_MS)
        assert isinstance(found, Due)
        assert found.first_dirty == 0
    moved = facts(100, 500, 10, checkpoint=50)._replace(log_start_offset=120)
    found = judge(moved, CONFIG, NOW_MS)
    assert isinstance(found, Due)
    assert found.first_dirty == 120


def test_the_dirtiest_log_comes_first() -> None:
    dues = [Due(0, 1, 1, ratio) for ratio in (0.6, 0.9, 0.7, 0.9)]
    assert dirtiest(dues) == [1, 3, 2, 0]


def test_segments_are_merged_up_to_the_size_limits() -> None:
    rows = [(100 * number, size, 10) for number, size in enumerate((50, 40, 60, 10, 10, 10))]
    assert groups(rows, end=600, segment_bytes=100, index_bytes=1_000, most=64) == [
        SegmentGroup(0, 2),
        SegmentGroup(2, 6),
    ]
    assert groups(rows, end=600, segment_bytes=100, index_bytes=20, most=64) == [
        SegmentGroup(0, 2),
        SegmentGroup(2, 4),
        SegmentGroup(4, 6),
    ]
    assert groups(rows, end=600, segment_bytes=1_000, index_bytes=1_000, most=4) == [
        SegmentGroup(0, 4),
        SegmentGroup(4, 6),
    ]
    far = [(0, 1, 1), (1 << 31, 1, 1)]
    assert groups(far, end=1 << 32, segment_bytes=100, index_bytes=100, most=64) == [
        SegmentGroup(0, 1),
        SegmentGroup(1, 2),
    ]
    assert groups([], end=0, segment_bytes=1, index_bytes=1, most=1) == []
