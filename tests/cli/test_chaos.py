"""Nodes are killed, frozen and isolated at random while clients change topics: the responses to clients hold.

Afterwards every acknowledged change is present, every node has the same committed records and the same image, no node
has exited by itself, and no node has logged an internal error. A run that fails prints its seed and its events. `make
soak` runs it for ten minutes (FENCELINE_CHAOS_MINUTES sets another duration, FENCELINE_CHAOS_SEED a single seed).
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from fenceline.cli.metadata_files import MetadataFiles
from fenceline.local_cluster.cluster import LocalCluster, NodeEnded
from fenceline.metadata.image import ConfigResourceType, MetadataImage
from fenceline.metadata.snapshot import image_values
from tests.cli.chaos import KEY, Changes, Librdkafka, OwnClient, Topic, Trouble, end_of_agreement
from tests.testing.echo_peer import need_cuts

SNAPSHOT_BYTES = 20_000
"""Some seconds of changes, so that nodes that were away are sent a snapshot."""


def test_a_short_run_of_faults(tmp_path: Path) -> None:
    troubles = 4
    play(tmp_path, seed=_seed(), longest_s=1.0, minutes=None, troubles=troubles)


@pytest.mark.soak
def test_a_long_run_of_faults(tmp_path: Path) -> None:
    minutes = float(os.environ.get("FENCELINE_CHAOS_MINUTES", "10"))
    play(tmp_path, seed=_seed(), longest_s=8.0, minutes=minutes, troubles=None)


def _seed() -> int:
    return int(os.environ.get("FENCELINE_CHAOS_SEED") or random.randrange(2**32))


def play(root: Path, *, seed: int, longest_s: float, minutes: float | None, troubles: int | None) -> None:
    need_cuts()
    rng = random.Random(seed)
    ended: list[NodeEnded] = []
    print(f"seed {seed}")
    overrides = {"metadata.log.max.record.bytes.between.snapshots": str(SNAPSHOT_BYTES)}
    with LocalCluster(3, data_dir=root / "cluster", overrides=overrides, on_end=ended.append) as cluster:
        changes = [
            Changes(OwnClient(cluster.bootstrap), "own", random.Random(rng.random())),
            Changes(Librdkafka(cluster.bootstrap), "librdkafka", random.Random(rng.random())),
        ]
        for each in changes:
            each.start()
        trouble = Trouble(cluster, random.Random(rng.random()), longest_s=longest_s)
        deadline = time.monotonic() + 60 * (minutes or 0)
        try:
            trouble.run(
                until=lambda: (
                    sum(trouble.done.values()) >= troubles if troubles is not None else time.monotonic() > deadline
                )
            )
        finally:
            print("\n".join(trouble.story))
            ledgers = [each.end() for each in changes]
        for ledger in ledgers:
            print(dict(ledger.changes), f"longest {ledger.longest_s:.2f} s")
        print(dict(trouble.done))
        last = end_of_agreement(cluster)
        exit_codes = cluster.stop()
    assert set(exit_codes.values()) == {0}
    assert [each for each in ended if not each.was_wanted] == []
    image = _same_on_every_node(cluster, last)
    for ledger in ledgers:
        _assert_acknowledged(ledger.may_be, image)
        assert ledger.changes["create done"] > 0
    assert list(_complaints(cluster)) == []


def _same_on_every_node(cluster: LocalCluster, last: int) -> MetadataImage:
    """The image at an offset that every node has reached; asserts that all images and all common records are equal."""
    files = [MetadataFiles.at(node.data_dir) for node in cluster.layout.nodes]
    loaded = [each.image_at(last) for each in files]
    assert [each.problems for each in loaded] == [[]] * len(files)
    values = [sorted(image_values(each.image)) for each in loaded]
    assert all(one == other for one, other in pairwise(values))
    begin = max(each.start_offset for each in files)
    entries = [[entry for entry in each.log_entries(begin) if begin <= entry.offset <= last] for each in files]
    assert entries[0]
    assert all(one == other for one, other in pairwise(entries))
    return loaded[0].image


def _assert_acknowledged(may_be: dict[str, set[Topic | None]], image: MetadataImage) -> None:
    for name, possible in may_be.items():
        found = image.topics_by_name.get(name)
        if found is None:
            topic = None
        else:
            value = image.config(ConfigResourceType.TOPIC, name).get(KEY)
            topic = Topic(len(found.partitions), int(value) if value is not None else None)
        assert topic in possible, f"{name} is {topic}, and may only be one of {possible}"


def _complaints(cluster: LocalCluster) -> Iterator[str]:
    """Unexpected output of nodes: log lines of level error, and lines that are no log lines."""
    for node in cluster.layout.nodes:
        for line in node.log_file.read_text().splitlines():
            if line.startswith("{"):
                if json.loads(line)["level"] not in ("info", "warning"):
                    yield f"{node.node_id}: {line}"
            elif not line.startswith("Fenceline is ready"):
                yield f"{node.node_id}: {line}"
