"""Replicated partitions under load while nodes are killed, frozen, cut off, restarted, run out of disk and of time.

Clients of four makes write and read; every answer and every record that came is judged by `history_checks`. Afterwards
the replicas hold the same bytes, no node has ended by itself, no client was told of a truncation, and no log speaks of
an internal error. A run prints its seed and what happened when it fails. `make soak` does this for thirty minutes
(FENCELINE_CHAOS_MINUTES for another time, FENCELINE_CHAOS_SEED for one seed, FENCELINE_CHAOS_KINDS for some troubles).
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fenceline.testing.history import History
from fenceline.testing.history_checks import check, summary
from fenceline.testing.local_cluster import LocalCluster, NodeEnded
from tests.cli.chaos import KINDS
from tests.support.process_faults import ProcessFaults
from tests.support.replicated_chaos import (
    PARTITIONS,
    TOPIC,
    ReplicaTrouble,
    create,
    finish,
    is_of_a_full_disk,
    look_at_files,
)
from tests.support.replicated_load import (
    AiokafkaSender,
    KafkaPythonReader,
    KafkaPythonSender,
    LibrdkafkaReader,
    LibrdkafkaSender,
    OwnReader,
    OwnSender,
    quiet_clients,
)
from tests.testing.echo_peer import need_cuts

OVERRIDES = {
    "replica.lag.time.max.ms": "3000",
    "offsets.topic.num.partitions": "1",
    "log.segment.bytes": str(4 << 20),
}


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with quiet_clients():
        yield


@pytest.mark.timeout(300)
def test_some_troubles_in_normal_tests(tmp_path: Path) -> None:
    play(tmp_path, seed=_seed(), longest_s=2.0, minutes=None, troubles=6)


@pytest.mark.soak
def test_half_an_hour_of_trouble(tmp_path: Path) -> None:
    minutes = float(os.environ.get("FENCELINE_CHAOS_MINUTES", "30"))
    play(tmp_path, seed=_seed(), longest_s=8.0, minutes=minutes, troubles=None)


def _seed() -> int:
    return int(os.environ.get("FENCELINE_CHAOS_SEED") or random.randrange(2**32))


def play(root: Path, *, seed: int, longest_s: float, minutes: float | None, troubles: int | None) -> None:
    need_cuts()
    rng = random.Random(seed)
    print(f"seed {seed}")
    ended: list[NodeEnded] = []
    faults = ProcessFaults(root / "faults")
    kinds = os.environ.get("FENCELINE_CHAOS_KINDS", "").split(",")
    history = History()
    cluster = LocalCluster(
        3, data_dir=root / "cluster", overrides=OVERRIDES, environment=faults.environment, on_end=ended.append
    )
    with cluster:
        create(cluster.bootstrap)
        where = (cluster.bootstrap, history, TOPIC, PARTITIONS)
        senders = [
            LibrdkafkaSender(*where, 800),
            OwnSender(*where, 600),
            KafkaPythonSender(*where, 300),
            AiokafkaSender(*where, 300),
        ]
        readers = [LibrdkafkaReader(*where), OwnReader(*where), KafkaPythonReader(*where)]
        for each in (*senders, *readers):
            each.start()
        trouble = ReplicaTrouble(
            cluster,
            random.Random(rng.random()),
            longest_s=longest_s,
            faults=faults,
            kinds=kinds if kinds != [""] else (*KINDS, "full", "clock"),
        )
        deadline = time.monotonic() + 60 * (minutes or 0)
        try:
            trouble.run(
                until=lambda: (
                    sum(trouble.done.values()) >= troubles if troubles is not None else time.monotonic() > deadline
                )
            )
            verdict = finish(cluster, senders, readers)
        finally:
            print("\n".join(trouble.story))
            for sender in senders:
                print(f"{sender.name}: {sender.settled} of {sender.sent}, longest gap {sender.longest_gap_s:.1f} s")
        print(dict(trouble.done))
        exit_codes = cluster.stop()
    look_at_files(cluster, history, verdict)
    print(*(f"{count:6} {line}" for line, count in verdict.lines.most_common()), sep="\n")
    assert summary(check(history)) == ""
    assert set(exit_codes.values()) == {0}
    unwanted = [each for each in ended if not each.was_wanted]
    assert [each for each in unwanted if not any(map(is_of_a_full_disk, each.last_lines))] == []
    assert verdict.given_up == []
    assert verdict.troubles == []
    assert verdict.differing == []
    assert verdict.complaints == []
    assert all(sender.settled > 0 for sender in senders)
