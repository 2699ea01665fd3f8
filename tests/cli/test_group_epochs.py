"""Epochs of offsets that `fenceline groups reset` commits: each is the epoch of the previous record."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fenceline.cli.group_epochs import with_epochs
from fenceline.client.core.offsets import CommittedOffset, EpochEnd, OffsetAndEpoch
from fenceline.errors import ErrorCode, PeerError
from fenceline.ids import TopicPartition

WHERE = TopicPartition("t", 0)


class _Admin:
    """A log whose epochs start at the offsets in `epochs` and which ends at `end`; it answers as Kafka does (E13)."""

    def __init__(self, epochs: dict[int, int], start: int, end: int) -> None:
        self.epochs, self.start, self.end = epochs, start, end
        self.asked = 0

    def metadata(self, topics: set[str]) -> Any:
        return SimpleNamespace(topics={topic: SimpleNamespace(partitions={0: None}) for topic in topics})

    def list_offsets(self, wanted: dict[TopicPartition, str]) -> dict[TopicPartition, OffsetAndEpoch]:
        latest = OffsetAndEpoch(self.end, max(self.epochs, default=-1))
        return {where: latest if spec == "latest" else OffsetAndEpoch(self.start, -1) for where, spec in wanted.items()}

    def offsets_for_leader_epoch(self, wanted: dict[TopicPartition, int]) -> dict[TopicPartition, EpochEnd]:
        self.asked += 1
        return {where: self._end_of(epoch) for where, epoch in wanted.items()}

    def _end_of(self, asked: int) -> EpochEnd:
        if not self.epochs or asked > max(self.epochs):
            return EpochEnd(-1, -1)
        above = [each for each in self.epochs if each > asked]
        below = [each for each in self.epochs if each <= asked]
        end = self.epochs[min(above)] if above else self.end
        return EpochEnd(max(below, default=asked), end)


def _epoch(admin: _Admin, offset: int) -> int:
    fake: Any = admin
    found = with_epochs(fake, {WHERE: offset})
    assert found.keys() == {WHERE}
    assert found[WHERE] == CommittedOffset(offset, found[WHERE].leader_epoch)
    return found[WHERE].leader_epoch


@pytest.mark.parametrize("epochs", [{0: 0}, {0: 0, 1: 30}, {2: 10, 3: 30, 4: 30, 9: 31, 12: 100}, {7: 10}])
def test_an_offset_has_the_epoch_of_the_previous_record(epochs: dict[int, int]) -> None:
    for start in (10, 20):
        admin = _Admin({epoch: max(begins, start) for epoch, begins in epochs.items()}, start, 100)
        assert _epoch(admin, start) == -1, "the previous record is not in the log"
        for offset in range(start + 1, 101):
            expected = max(epoch for epoch, begins in epochs.items() if begins < offset)
            assert _epoch(admin, offset) == expected, offset


def test_a_log_without_epochs_gives_no_epoch() -> None:
    admin = _Admin({}, 0, 100)
    assert _epoch(admin, 50) == -1
    assert admin.asked == 0


def test_brokers_without_the_request_give_no_epoch() -> None:
    class Old(_Admin):
        def offsets_for_leader_epoch(self, wanted: dict[TopicPartition, int]) -> dict[TopicPartition, EpochEnd]:
            raise PeerError(ErrorCode.UNSUPPORTED_VERSION)

    assert _epoch(Old({0: 0, 3: 40}, 0, 100), 50) == -1


def test_the_search_in_a_long_epoch_history_is_bounded() -> None:
    admin = _Admin({epoch: epoch for epoch in range(100)}, 0, 100)
    assert _epoch(admin, 99) == 98
    assert _epoch(admin, 3) == -1
    assert admin.asked < 100
