from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fenceline.errors import ErrorCode
from fenceline.ids import TopicPartition
from fenceline.wire.apis import ApiKey
from tests.node.api.handlers.fakes import FakeBroker, ask, image_of, partition, topic_image


class OneDirectory(list[Any]):
    offline: tuple[str, ...] = ()
    cordoned: frozenset[str] = frozenset()

    def __init__(self, directory: Any) -> None:
        super().__init__([directory])

    def holder(self, topic_partition: TopicPartition) -> Any:
        return self[0]


def describe(path: Path, version: int = 5, **fields: Any) -> Any:
    topics = [topic_image("t", partition(), partition(), partition((2,))), topic_image("u")]
    directory = SimpleNamespace(path=str(path), partition_size_bytes=lambda tp: 10 + tp.partition)

    async def run() -> Any:
        with ThreadPoolExecutor(1) as threads:
            ports = {
                "directories": OneDirectory(directory),
                "replicas": SimpleNamespace(offline={TopicPartition("u", 0): "broken"}, vacated=None),
                "moves": (),
                "threads": threads,
            }
            broker = FakeBroker(image_of(topics), ports=ports)
            return await ask(broker, ApiKey.DESCRIBE_LOG_DIRS, version, **fields)

    return asyncio.run(run()).results[0]


def test_local_partitions_are_described_with_sizes(tmp_path: Path) -> None:
    reported = describe(tmp_path, topics=None)
    assert [(t.name, [(p.partition_index, p.partition_size) for p in t.partitions]) for t in reported.topics] == [
        ("t", [(0, 10), (1, 11)])
    ]
    assert reported.total_bytes > reported.usable_bytes > 0
    assert reported.is_cordoned is False


def test_only_requested_partitions_are_described(tmp_path: Path) -> None:
    reported = describe(tmp_path, topics=[{"topic": "t", "partitions": [1, 2, 9]}, {"topic": "x", "partitions": [0]}])
    assert [[p.partition_index for p in t.partitions] for t in reported.topics] == [[1]]


@pytest.mark.parametrize("version", range(1, 6))
def test_missing_directory_is_described(tmp_path: Path, version: int) -> None:
    reported = describe(tmp_path / "gone", version, topics=None)
    assert (reported.error_code, reported.topics) == (ErrorCode.KAFKA_STORAGE_ERROR, ())
