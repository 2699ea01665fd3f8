"""After a crash, the configured number of threads per directory checks the logs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import pytest

from fenceline.ids import TopicPartition
from fenceline.node.storage.log_recovery import _check


@pytest.mark.parametrize("threads", [1, 3])
def test_each_directory_has_its_threads_and_each_log_uses_one(threads: int) -> None:
    directories = 2
    held = [[TopicPartition(f"t{directory}", index) for index in range(50)] for directory in range(directories)]
    checked: list[TopicPartition] = []
    meeting = threading.Barrier(threads * directories, timeout=20)

    def recover(found: Iterable[TopicPartition]) -> None:
        meeting.wait()  # all of them run, or none continues
        checked.extend(found)

    async def whole() -> None:
        with ThreadPoolExecutor(1) as disk_threads:
            await _check(held, recover, threads, disk_threads)

    asyncio.run(whole())
    assert sorted(checked) == sorted(held[0] + held[1])
