"""The end of the range that two logs share, by their leader epochs."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

import pytest

from fenceline.log.core.agreement import agreed_end
from fenceline.log.core.epoch_cache import EpochCache


class Epochs:
    """The epochs of a log without a log: a record count for each epoch."""

    def __init__(self, start: int, records: Iterable[int]) -> None:
        self.log_start_offset = start
        self._cache = EpochCache()
        self.records = list(records)
        for offset, epoch in enumerate(self.records, start):
            self._cache.assign(epoch, offset)
        self.log_end_offset = start + len(self.records)

    @property
    def latest_epoch(self) -> int:
        return self._cache.latest_epoch

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        return self._cache.end_offset_for(epoch, self.log_end_offset)


@pytest.mark.parametrize("seed", range(300))
def test_logs_match_up_to_the_first_record_that_differs(seed: int) -> None:
    """For histories with the log matching property: after two logs diverge, they have no epoch in common."""
    rng = Random(seed)
    common = sorted(rng.choices(range(4), k=rng.randint(0, 8)))
    tails: list[list[int]] = [[], []]
    for epoch in range(4, 10):
        tails[rng.randint(0, 1)] += [epoch] * rng.randint(0, 3)
    one = Epochs(0, common + tails[0])
    other = Epochs(0, common + tails[1])
    expected = len(common)
    assert agreed_end(one, other) == expected
    start = rng.randint(0, len(common))
    later = Epochs(start, (common + tails[1])[start:])
    if common[start:]:
        assert agreed_end(one, later) == expected


def test_logs_that_share_no_epoch() -> None:
    assert agreed_end(Epochs(0, [4, 4]), Epochs(0, [5, 5, 5])) == 0
    assert agreed_end(Epochs(7, [4, 4]), Epochs(0, [0, 1])) == 7


def test_log_without_epochs_differs_from_no_log() -> None:
    empty = Epochs(3, [])
    assert agreed_end(empty, Epochs(0, [0, 0, 0, 0])) == 3
    assert agreed_end(Epochs(0, [0, 0, 0, 0]), empty) == 3
