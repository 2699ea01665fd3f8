"""Which disk call starts background work of a node: the files of retention, compaction and metadata snapshots."""

from __future__ import annotations

import pytest

from fenceline.testing.simulation.background_work import (
    begun_by_creating,
    begun_by_opening,
    begun_by_renaming,
    topic_at,
)
from fenceline.testing.simulation.operations import Operation

_SEGMENT = "/data2/t-0-1/00000000000000000000.log"
_SNAPSHOT = "/data/__cluster_metadata-0/00000000000000000007-0000000002.checkpoint"


@pytest.mark.parametrize(
    ("path", "operation"),
    [
        (f"{_SEGMENT}.cleaned", Operation.COMPACTION),
        (f"{_SNAPSHOT}.part", Operation.METADATA_SNAPSHOT),
        (_SEGMENT, None),
        ("/data/t-0-1/00000000000000000000.index.cleaned", None),
    ],
)
def test_work_starts_when_its_file_is_created(path: str, operation: Operation | None) -> None:
    assert begun_by_creating(path) is operation


@pytest.mark.parametrize(
    ("target", "operation"),
    [
        (f"{_SEGMENT}.deleted", Operation.RETENTION),
        ("/data/t-0-1/00000000000000000000.index.deleted", None),
        (f"{_SEGMENT}.swap", None),
        ("/data/__cluster_metadata-0/00000000000000000000.log.deleted", None),
    ],
)
def test_work_starts_when_its_file_is_renamed(target: str, operation: Operation | None) -> None:
    assert begun_by_renaming(target) is operation


def test_work_starts_when_its_file_is_opened() -> None:
    assert begun_by_opening(_SNAPSHOT) is Operation.METADATA_SNAPSHOT
    assert begun_by_opening("/data/bootstrap.checkpoint") is None
    assert begun_by_opening(_SEGMENT) is None


def test_the_topic_is_taken_from_the_path_of_a_file() -> None:
    assert topic_at(_SEGMENT) == "t-0"
    assert topic_at(_SNAPSHOT) is None
