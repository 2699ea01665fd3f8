"""A full disk is reported once, for leaders and followers, with advice."""

from __future__ import annotations

import errno
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from fenceline.ids import TopicPartition
from fenceline.log.core.errors import StorageError
from fenceline.node.data_plane import rejected_by_follower
from fenceline.node.replication.open_replicas import OpenReplicas
from fenceline.node.replication.replication import Replication
from fenceline.node.storage import storage_trouble
from fenceline.node.storage.storage_trouble import StorageTrouble

T0 = TopicPartition("t", 0)


class Desk:
    """What was logged, on a clock that the test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ms = 0
        self.lines: list[tuple[str, dict[str, Any]]] = []
        taking = SimpleNamespace(
            error=lambda event, **more: self.lines.append((event, more)),
            warning=lambda event, **more: self.lines.append((event, more)),
        )
        monkeypatch.setattr(storage_trouble, "log", taking)
        clock: Any = SimpleNamespace(monotonic_ms=lambda: self.now_ms)
        self.trouble = StorageTrouble(clock)


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Desk:
    return Desk(monkeypatch)


def full() -> StorageError:
    return StorageError.of("appending", OSError(errno.ENOSPC, "full"))


def test_reported_once_and_then_every_minute_with_the_count(desk: Desk) -> None:
    for second in range(61):
        desk.now_ms = 1000 * second
        desk.trouble.rejected(T0, 5, full())
    assert [(event, more["refused"]) for event, more in desk.lines] == [
        ("records rejected", 1),
        ("records rejected", 61),
    ]
    desk.trouble.log_recovered(lambda _: 6)
    assert desk.lines[-1] == ("records accepted again", {"partition": "t-0", "refused": 61})


def test_a_follower_that_fetches_into_a_full_disk_reports_it_once(desk: Desk) -> None:
    """Each fetch fails, once per second and partition."""
    passed_on: list[StorageError] = []
    in_service = OpenReplicas()
    in_service.storage_failed.listen(lambda _, error: passed_on.append(error))
    replication: Any = SimpleNamespace(_rejected=partial(rejected_by_follower, desk.trouble), _in_service=in_service)
    replica: Any = SimpleNamespace(topic_partition=T0, log=SimpleNamespace(log_end_offset=5, offline=None))
    for _ in range(30):
        Replication.storage_failed(replication, replica, full())
    ((event, more),) = desk.lines
    assert event == "records rejected"
    assert "out of the ISR" in more["advice"]
    assert "Producers" not in more["advice"]
    assert passed_on == []
    broken = StorageError.of("appending", OSError(errno.EIO, "broken"))
    Replication.storage_failed(replication, replica, broken)
    assert passed_on == [broken]
