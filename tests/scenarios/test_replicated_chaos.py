"""Replicated partitions under load while nodes are killed, frozen, isolated, restarted, run out of disk and of time.

Four client libraries write and read, three of them also as members of a group, which leave and rejoin. Every response
and every received record is checked by `history_checks`, every commit of the group by its ledger. Afterwards the
replicas contain the same bytes, no node has exited by itself, no client reported a truncation, and no node has logged
an internal error. A run that fails prints its seed and its events. `make soak` runs it for thirty minutes, with a line
each minute (FENCELINE_CHAOS_MINUTES sets another duration, FENCELINE_CHAOS_SEED a single seed, FENCELINE_CHAOS_KINDS a
subset of the faults).
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from fenceline.local_cluster.cluster import LocalCluster, NodeEnded
from fenceline.testing.history import History
from fenceline.testing.history_checks import check, summary
from tests.cli.chaos import KINDS
from tests.support.process_faults import ProcessFaults
from tests.support.replicated_chaos import (
    GROUPS,
    PARTITIONS,
    TOPIC,
    ReplicaTrouble,
    batches_of,
    create,
    ends,
    finish,
    is_of_a_full_disk,
    look_at_files,
)
from tests.support.replicated_groups import GroupLedger, KafkaPythonMember, LibrdkafkaMember, OwnMember
from tests.support.replicated_progress import Progress
from tests.support.replicated_readers import KafkaPythonReader, LibrdkafkaReader, OwnReader
from tests.support.replicated_senders import AiokafkaSender, KafkaPythonSender, LibrdkafkaSender, OwnSender
from tests.testing.echo_peer import need_cuts

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("quiet_clients")]

OVERRIDES = {
    **GROUPS,
    "replica.lag.time.max.ms": "3000",
    "log.segment.bytes": str(4 << 20),
}


@pytest.mark.timeout(300)
def test_a_short_run_of_faults(tmp_path: Path) -> None:
    play(None, tmp_path, seed=_seed(), longest_s=2.0, minutes=None, troubles=6)


@pytest.mark.soak
def test_a_long_run_of_faults(pytestconfig: pytest.Config, tmp_path: Path) -> None:
    minutes = float(os.environ.get("FENCELINE_CHAOS_MINUTES", "30"))
    play(pytestconfig, tmp_path, seed=_seed(), longest_s=8.0, minutes=minutes, troubles=None)


def _seed() -> int:
    return int(os.environ.get("FENCELINE_CHAOS_SEED") or random.randrange(2**32))


def play(
    config: pytest.Config | None,
    root: Path,
    *,
    seed: int,
    longest_s: float,
    minutes: float | None,
    troubles: int | None,
) -> None:
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
        ledger = GroupLedger(TOPIC, PARTITIONS)
        members = [
            LibrdkafkaMember(cluster.bootstrap, history, ledger, stays_s=47),
            OwnMember(cluster.bootstrap, history, ledger, stays_s=61),
            KafkaPythonMember(cluster.bootstrap, history, ledger, stays_s=83),
        ]
        for each in (*senders, *readers, *members):
            each.start()
        trouble = ReplicaTrouble(
            cluster,
            random.Random(rng.random()),
            longest_s=longest_s,
            faults=faults,
            kinds=kinds if kinds != [""] else (*KINDS, "full", "clock"),
        )
        progress = Progress(config, senders, readers, members, trouble.done)
        deadline = time.monotonic() + 60 * (minutes or 0)

        def is_over() -> bool:
            progress.look()
            if troubles is not None:
                return sum(trouble.done.values()) >= troubles
            return time.monotonic() > deadline

        try:
            trouble.run(until=is_over)
            verdict = finish(cluster, senders, readers)
            reached = ends(cluster.bootstrap)
            ledger.await_all(reached)
            for member in members:
                member.finish()
        finally:
            print("\n".join(trouble.story))
            for sender in senders:
                print(sender)
        sums = f"{progress.sums()}; group: {dict(ledger.counts)}"
        exit_codes = cluster.stop()
    look_at_files(cluster, history, verdict)
    print(*(f"{count:6} {line}" for line, count in verdict.lines.most_common()), sep="\n")
    anomalies = list(check(history))
    print(*batches_of(cluster, anomalies), *verdict.complaints, *verdict.given_up, sep="\n")
    found = summary(anomalies)
    progress.say(f"seed {seed}: {found or 'no anomaly'}; {sums}")
    assert found == ""
    assert ledger.complaints(reached) == []
    assert set(exit_codes.values()) == {0}
    unwanted = [each for each in ended if not each.was_wanted]
    assert [each for each in unwanted if not any(map(is_of_a_full_disk, each.last_lines))] == []
    assert verdict.given_up == []
    assert verdict.troubles == []
    assert verdict.truncations == 0
    assert verdict.differing == []
    assert verdict.complaints == []
    assert all(sender.settled > 0 for sender in senders)
