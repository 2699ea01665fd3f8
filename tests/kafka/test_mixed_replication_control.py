"""Partitions of both kinds of brokers, while controllers of both kinds are killed: no acknowledged record is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from fenceline.testing.mixed_cluster import COMBINED
from tests.scheduling import CLUSTERS
from tests.support.mixed_replication import CODECS, MOVED, Story
from tests.support.partition_files import epochs, log_bytes, values

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.timeout(900),
    pytest.mark.together(CLUSTERS),
]


def test_replicas_are_equal_under_any_controller(tmp_path: Path) -> None:
    """AlterPartition goes from brokers of each kind to controllers of each kind, and from one to the next."""
    kinds = (COMBINED, COMBINED, f"kafka:{COMBINED}")
    lived = Story(tmp_path, kinds, ours=2, theirs=3).live_by_control()
    assert lived.controlled == {"kafka", "fenceline"}
    assert not lived.doubled
    for index in range(len(CODECS)):
        assert len({log_bytes(each, MOVED, index) for each in lived.directories.values()}) == 1
        assert len({tuple(epochs(each, MOVED, index)) for each in lived.directories.values()}) == 1
        found = values(lived.directories[lived.ours], MOVED, index)
        acknowledged = lived.acknowledged[index]
        assert {offset: found.get(offset) for offset in acknowledged} == acknowledged
        assert len(set(found.values())) == len(found) == len(acknowledged) + 1
