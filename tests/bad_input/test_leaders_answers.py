"""Invalid answers of a leader: the affected partition waits and retries, the others of the same response continue."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from fenceline.errors import ErrorCode
from fenceline.node.replication import leader_duties, leader_link, link_work
from fenceline.replica.follower import FollowerPhase
from fenceline.testing.sim_disk import SimDisk
from fenceline.wire.fetch import FetchedPartition, FetchPartition
from tests.bad_input.leaders import EPOCH, TOPIC, Follower, Leader, batch, play_story, response_for

Line = tuple[str, dict[str, Any]]


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[Line]:
    written: list[Line] = []

    def write(event: str, **more: Any) -> None:
        written.append((event, more))

    for module in (leader_duties, leader_link, link_work):
        monkeypatch.setattr(module, "log", SimpleNamespace(error=write, info=write, exception=write))
    return written


def _damaged(content: bytes) -> bytes:
    return content[:-1] + bytes([content[-1] ^ 1])


GARBAGE: dict[str, Callable[[int], bytes]] = {
    "a checksum that does not fit": lambda offset: _damaged(batch(offset)),
    "a second batch that is damaged": lambda offset: batch(offset) + _damaged(batch(offset + 1)),
    "an offset before the end of this log": lambda offset: batch(offset - 1),
    "offsets that go back": lambda offset: batch(offset) + batch(offset),
    "a batch that is cut short": lambda offset: batch(offset)[:-5],
    "a header that is cut short": lambda offset: batch(offset)[:30],
    "an epoch that this leader does not lead yet": lambda offset: batch(offset, epoch=EPOCH + 1),
    "an epoch that goes back": lambda offset: batch(offset) + batch(offset + 1, epoch=EPOCH - 1),
    "no batch at all": lambda offset: b"HTTP/1.1 400 Bad Request\r\n" * 4,
}


@pytest.mark.parametrize("garbage", GARBAGE)
def test_invalid_answer_affects_one_partition_only(garbage: str, lines: list[Line]) -> None:
    leader = Leader({0: 4, 1: 20})
    refused: list[int] = []

    def wrong(asked: FetchPartition) -> FetchedPartition | None:
        if asked.index == 0 and asked.fetch_offset == 2 and len(refused) < 5:
            refused.append(asked.fetch_offset)
            return response_for(asked, high_watermark=4, records=GARBAGE[garbage](2))
        return None

    leader.wrong = wrong

    async def story(follower: Follower) -> None:
        follower.follow()
        await follower.until(lambda: len(refused) == 3)
        assert follower.end(0) == 2
        await follower.until(lambda: follower.end(1) == 20)
        await follower.until(lambda: follower.end(0) == 4)
        assert follower.host.cuts == []
        assert follower.host.failures == []
        for index, end in leader.ends.items():
            path = f"/data/{TOPIC}-{index}/{0:020d}.log"
            assert follower.disk.peek(path) == b"".join(batch(offset) for offset in range(end))
        assert follower.replicas[0].log.epochs.entries == ((EPOCH, 0),)

    play_story(leader, story)
    told_of = [more for event, more in lines if event == "records from the leader rejected"]
    assert [more["times"] for more in told_of] == [1, 2, 4]
    assert {(more["partition"], more["leader"], more["offset"]) for more in told_of} == {("rain-0", 2, 2)}
    assert {event for event, _ in lines} == {"records from the leader rejected"}


def test_divergence_that_truncates_nothing_is_retried(lines: list[Line]) -> None:
    """This log has nothing past the offset that the leader names: it would be truncated for ever, to no effect."""
    leader = Leader({0: 4, 1: 20})
    said: list[int] = []

    def wrong(asked: FetchPartition) -> FetchedPartition | None:
        if asked.index == 0 and asked.fetch_offset == 4 and len(said) < 3:
            said.append(asked.last_fetched_epoch)
            return response_for(asked, high_watermark=4, diverging_epoch=(EPOCH, 99))
        return None

    leader.wrong = wrong

    async def story(follower: Follower) -> None:
        follower.follow()
        await follower.until(lambda: len(said) == 3)
        await follower.until(lambda: follower.end(1) == 20)
        leader.ends[0] = 6
        await follower.until(lambda: follower.end(0) == 6)
        assert [(cut.truncates_fully, cut.offset) for cut in follower.host.cuts] == [(False, 4)] * 3

    play_story(leader, story)
    assert [more["times"] for _, more in lines] == [1, 2]
    assert all("diverg" in more["reason"] for _, more in lines)


def test_top_level_error_of_a_fetch_response(lines: list[Line]) -> None:
    """An evicted session is reopened at once; a repeated error makes the fetch back off, and is logged once."""
    leader = Leader({0: 4})
    leader.error = ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    leader.wrong = lambda asked: response_for(asked, error_code=leader.error) if leader.error else None

    async def story(follower: Follower) -> None:
        follower.follow()
        await follower.until(lambda: len(leader.asked) >= 5)
        assert follower.end(0) == 0
        leader.error = 0
        await follower.until(lambda: follower.end(0) == 4)

    play_story(leader, story)
    ((event, more),) = lines
    assert event == "leader unreachable"
    assert "rejects fetches with error 70" in more["reason"]


@pytest.mark.parametrize(
    "answer",
    [
        [],
        [{"partition_index": 7, "error_code": 0, "timestamp": -1, "offset": 2, "leader_epoch": 5}],
        [{"partition_index": 0, "error_code": 0, "timestamp": -1, "offset": -1, "leader_epoch": -1}],
        [{"partition_index": 0, "error_code": ErrorCode.OFFSET_NOT_AVAILABLE, "timestamp": -1, "offset": 2}],
    ],
)
def test_invalid_list_offsets_answer_truncates_nothing(answer: list[dict[str, Any]], lines: list[Line]) -> None:
    """After an offset out of range (E28): an invalid answer must not truncate anything."""
    leader = Leader({0: 4, 1: 20})
    questions: list[int] = []
    right = leader.offsets

    def wrong(asked: FetchPartition) -> FetchedPartition | None:
        return (
            response_for(asked, error_code=ErrorCode.OFFSET_OUT_OF_RANGE)
            if asked.index == 0 and asked.fetch_offset == 4
            else None
        )

    def offsets(topic: str, index: int, timestamp: int) -> list[dict[str, Any]]:
        questions.append(timestamp)
        return answer if len(questions) <= 3 else right(topic, index, timestamp)

    async def story(follower: Follower) -> None:
        follower.follow()
        await follower.until(lambda: follower.end(0) == 4)
        leader.offsets = offsets
        leader.wrong = wrong
        leader.ends[0] = 3
        await follower.until(lambda: len(questions) == 3)
        assert follower.host.cuts == []
        assert follower.end(0) == 4
        await follower.until(lambda: follower.end(0) == 3)
        await follower.until(lambda: follower.end(1) == 20)
        assert [cut.offset for cut in follower.host.cuts] == [3]

    play_story(leader, story)
    assert lines == []


class HalfWrites(SimDisk):
    """Writes some bytes to partition 0, then fails as configured."""

    number = 0

    def write(self, fd: int, content: Any, /) -> int:
        path = self._paths[fd]
        if self.number and path.endswith(f"{TOPIC}-0/{0:020d}.log"):
            if self.peek(path, -7) != b"partial":
                super().write(fd, b"partial")
                return 7
            raise OSError(self.number, os.strerror(self.number), path)
        return super().write(fd, content)


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_disk_failure_during_a_follower_append(number: int, lines: list[Line]) -> None:
    """The log ends at a complete batch; the torn one is fetched again, and the other partition continues."""
    leader = Leader({0: 2, 1: 2})
    disk = HalfWrites()

    async def story(follower: Follower) -> None:
        follower.follow()
        await follower.until(lambda: follower.end(0) == follower.end(1) == 2)
        disk.number = number
        leader.ends |= {0: 6, 1: 20}
        await follower.until(lambda: len(follower.host.failures) >= 3)
        await follower.until(lambda: follower.end(1) == 20)
        assert follower.end(0) == 2
        assert disk.peek(f"/data/{TOPIC}-0/{0:020d}.log") == batch(0) + batch(1)
        assert {(where.partition, error.errno) for where, error in follower.host.failures} == {(0, number)}
        assert follower.phase_of(0) in (FollowerPhase.WAITING, FollowerPhase.FETCHING)
        disk.number = 0
        await follower.until(lambda: follower.end(0) == 6)
        assert disk.peek(f"/data/{TOPIC}-0/{0:020d}.log") == b"".join(batch(offset) for offset in range(6))

    play_story(leader, story, disk)
    assert lines == []
