"""Targets of `fenceline groups reset` and marks of `describe`, without a cluster."""

from __future__ import annotations

import time
from typing import Any

import pytest

from fenceline.cli.group_marks import Mark, marks_of
from fenceline.cli.group_reset import Target, new_offsets, target_of
from fenceline.cli.groups import _described_if_there, _summed
from fenceline.client.core.offsets import CommittedOffset, OffsetAndEpoch
from fenceline.errors import ErrorCode, OperatorError, PeerError
from fenceline.groups.messages import CommittedRewind
from fenceline.ids import TopicPartition

ONE, TWO = TopicPartition("t", 0), TopicPartition("t", 1)
NOTHING: dict[str, Any] = {
    "earliest": False,
    "latest": False,
    "current": False,
    "offset": None,
    "when": None,
    "shift": None,
    "duration": None,
}


@pytest.mark.parametrize(
    ("text", "since_ms"),
    [
        ("2026-11-22T04:30:00.000", 1_795_321_800_000),
        ("2026-11-22T04:30:00", 1_795_321_800_000),
        ("2026-11-22T05:30:00+01:00", 1_795_321_800_000),
        ("1795321800000", 1_795_321_800_000),
        ("1969-12-31T23:59:59.999", 0),
        ("9223372036854775807", 2**63 - 1),
    ],
)
def test_timestamps_are_parsed(text: str, since_ms: int) -> None:
    assert target_of(**NOTHING | {"when": text}) == Target(since_ms=since_ms)


@pytest.mark.parametrize(
    ("text", "back_ms"),
    [("P1D", 86_400_000), ("PT1H30M", 5_400_000), ("P2DT3H4M5.5S", 183_845_500), ("PT0S", 0), ("pt2h", 7_200_000)],
)
def test_durations_are_parsed(text: str, back_ms: int) -> None:
    before = int(time.time() * 1000)
    target = target_of(**NOTHING | {"duration": text})
    assert target.since_ms is not None
    assert before - back_ms <= target.since_ms <= int(time.time() * 1000) - back_ms


def test_a_duration_longer_than_unix_time_gives_timestamp_0() -> None:
    assert target_of(**NOTHING | {"duration": "P40000D"}) == Target(since_ms=0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "No target offset"),
        ({"earliest": True, "offset": 5}, "--to-earliest and --to-offset"),
        ({"when": "tomorrow"}, "is not a time"),
        ({"when": "9223372036854775808"}, "is not a time"),
        ({"when": "\u00b2"}, "is not a time"),
        ({"duration": "P9999999999D"}, "is not a duration"),
        ({"duration": "2h"}, "is not a duration"),
        ({"duration": "P"}, "is not a duration"),
    ],
)
def test_invalid_targets_are_rejected(given: dict[str, Any], message: str) -> None:
    with pytest.raises(OperatorError, match=message):
        target_of(**NOTHING | given)


class _Admin:
    """Logs from 10 to 100; in the first partition only, offset 40 has the timestamp 5,000."""

    def list_offsets(self, wanted: dict[TopicPartition, Any]) -> dict[TopicPartition, OffsetAndEpoch]:
        def at(where: TopicPartition, spec: Any) -> int:
            if isinstance(spec, str):
                return {"earliest": 10, "latest": 100}[spec]
            return 40 if where == ONE and spec <= 5_000 else -1

        return {where: OffsetAndEpoch(at(where, spec)) for where, spec in wanted.items()}


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (Target(earliest=True), (10, 10)),
        (Target(latest=True), (100, 100)),
        (Target(current=True), (50, 100)),
        (Target(offset=70), (70, 70)),
        (Target(offset=7), (10, 10)),
        (Target(offset=700), (100, 100)),
        (Target(since_ms=5_000), (40, 100)),
        (Target(since_ms=5_001), (100, 100)),
    ],
)
def test_new_offsets_are_within_the_log(target: Target, expected: tuple[int, int]) -> None:
    admin: Any = _Admin()
    assert new_offsets(admin, target, [ONE, TWO], {ONE: CommittedOffset(50)}) == dict(
        zip((ONE, TWO), expected, strict=True)
    )


def test_a_shift_needs_a_committed_offset() -> None:
    admin: Any = _Admin()
    committed = {ONE: CommittedOffset(50), TWO: CommittedOffset(99)}
    assert new_offsets(admin, Target(shift=-5), [ONE, TWO], committed) == {ONE: 45, TWO: 94}
    assert new_offsets(admin, Target(shift=5), [ONE, TWO], committed) == {ONE: 55, TWO: 100}
    with pytest.raises(OperatorError, match="no offset of t-1"):
        new_offsets(admin, Target(shift=5), [ONE, TWO], {ONE: CommittedOffset(50)})


@pytest.mark.parametrize(
    ("offset", "epoch_end", "is_rewound", "expected"),
    [
        (50, -1, False, []),
        (50, 60, False, []),
        (50, 50, False, []),
        (50, 40, False, [Mark.TRUNCATED]),
        (110, 40, True, [Mark.TRUNCATED, Mark.REWOUND]),
        (110, -1, False, [Mark.BEYOND]),
        (100, 100, True, [Mark.REWOUND]),
        (5, -1, False, [Mark.EXPIRED]),
        (5, 3, True, [Mark.TRUNCATED, Mark.EXPIRED, Mark.REWOUND]),
    ],
)
def test_committed_offsets_are_marked(offset: int, epoch_end: int, is_rewound: bool, expected: list[Mark]) -> None:
    rewind = CommittedRewind(1, 2, 3, 4, 5) if is_rewound else None
    found = marks_of(CommittedOffset(offset, 3), log_start=10, log_end=100, epoch_end=epoch_end, rewind=rewind)
    assert found == expected


def test_a_group_that_cannot_be_described_is_listed() -> None:
    """It was deleted meanwhile, or it is a share group."""

    class Absent:
        code = ErrorCode.GROUP_ID_NOT_FOUND

        def describe_groups(self, groups: list[str]) -> None:
            raise PeerError(self.code)

    admin: Any = Absent()
    assert _described_if_there(admin, "gone", {}) is None
    assert _summed(None) == {"members": None, "lag": None, "mark": None}
    admin.code = ErrorCode.GROUP_AUTHORIZATION_FAILED
    with pytest.raises(PeerError):
        _described_if_there(admin, "secret", {})


def test_the_summary_of_a_group_adds_lags_and_joins_marks() -> None:
    rows = [{"lag": 3, "mark": None}, {"lag": None, "mark": "truncated, rewound"}, {"lag": 4, "mark": "rewound"}]
    assert _summed({"members": [1, 2], "offsets": rows}) == {"members": 2, "lag": 7, "mark": "rewound, truncated"}
    assert _summed({"members": [], "offsets": []}) == {"members": 0, "lag": None, "mark": None}
