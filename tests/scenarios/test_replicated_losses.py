"""Unclean elections under load: receipts cover every missing record, and their evidence contains the lost ones.

A replica that lacks acknowledged records is repeatedly elected leader, under acks=all with `min.insync.replicas=1`.
Afterwards every acknowledged record is in the log, or in the evidence of a receipt; and no reader has crossed a
truncation undetected. `make soak` runs it for five minutes (FENCELINE_CHAOS_MINUTES sets another duration,
FENCELINE_CHAOS_SEED a single seed).
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from pathlib import Path

import pytest

from fenceline.local_cluster.cluster import LocalCluster
from fenceline.losses.receipt import LossClass
from fenceline.testing.history import History
from fenceline.testing.history_checks import check, summary
from tests.support import unclean_rounds
from tests.support.replicated_chaos import SOON_MISSED, finish, look_at_files
from tests.support.replicated_progress import Progress
from tests.support.replicated_readers import KafkaPythonReader, OwnReader
from tests.support.replicated_senders import KafkaPythonSender, LibrdkafkaSender, OwnSender
from tests.support.unclean_rounds import PAIRS, TOPIC, Rounds, all_receipts, loss_of

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("quiet_clients")]


@pytest.mark.timeout(300)
def test_receipts_cover_the_losses_of_an_unclean_election(tmp_path: Path) -> None:
    play(None, tmp_path, rounds=1, minutes=0)


@pytest.mark.soak
def test_receipts_cover_the_losses_of_minutes_of_unclean_elections(pytestconfig: pytest.Config, tmp_path: Path) -> None:
    play(pytestconfig, tmp_path, rounds=0, minutes=float(os.environ.get("FENCELINE_CHAOS_MINUTES", "5")))


def play(config: pytest.Config | None, root: Path, *, rounds: int, minutes: float) -> None:
    seed = int(os.environ.get("FENCELINE_CHAOS_SEED") or random.randrange(2**32))
    print(f"seed {seed}")
    history = History()
    with LocalCluster(3, data_dir=root / "cluster", overrides=SOON_MISSED) as cluster:
        unclean_rounds.create(cluster.bootstrap)
        where = (cluster.bootstrap, history, TOPIC, len(PAIRS))
        # An idempotent producer fails once its acknowledged records are gone from the log.
        senders = [
            LibrdkafkaSender(*where, 300, is_idempotent=False),
            OwnSender(*where, 200, is_idempotent=False),
            KafkaPythonSender(*where, 100, is_idempotent=False),
        ]
        readers = [OwnReader(*where), KafkaPythonReader(*where)]
        for each in (*senders, *readers):
            each.start()
        unclean = Rounds(cluster, senders, random.Random(seed))
        progress = Progress(config, senders, readers, [], unclean.done)
        deadline = time.monotonic() + 60 * minutes
        try:
            while unclean.done.total() < rounds or time.monotonic() < deadline:
                unclean.one()
                progress.look()
            verdict = finish(cluster, senders, readers, topic=TOPIC, partitions=len(PAIRS))
        finally:
            print("\n".join(unclean.story))
        receipts = all_receipts(cluster)
        cluster.stop()
    look_at_files(cluster, history, verdict, topic=TOPIC, partitions=len(PAIRS))
    found = summary(check(history, [loss_of(each) for each in receipts]))
    lost = _acknowledged_and_gone(history)
    classes = Counter(each.loss_class.value for each in receipts)
    progress.say(
        f"seed {seed}: {found or 'no anomaly'}; {progress.sums()}; {len(receipts)} receipts {dict(classes)}, "
        f"{lost} acknowledged records lost with a receipt, {verdict.truncations} truncations reported to readers"
    )
    assert found == ""
    assert lost > 0, "no record was lost, so nothing was tested"
    assert verdict.truncations > 0
    assert classes[LossClass.COMMITTED] + classes[LossClass.MAYBE_ACKNOWLEDGED] > 0
    assert verdict.given_up == []
    assert verdict.troubles == []
    assert verdict.differing == []
    assert verdict.complaints == []


def _acknowledged_and_gone(history: History) -> int:
    gone = 0
    for producer in history.producers:
        for partition, sends in producer.sends.items():
            there = {value for contents in history.logs[partition].values() for value in contents.values}
            gone += sum(value not in there for value in sends.acknowledged_values)
    return gone
