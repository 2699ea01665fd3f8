"""The order service of the examples: its mistake is found, its mended version survives, and both replay exactly."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from fenceline.client.producer.accumulator import Batch, PartitionQueue
from fenceline.client.producer.sender import Sender
from fenceline.testing.applications.forks import outcomes
from fenceline.testing.applications.one_seed import StoryJob
from fenceline.testing.applications.running import run_seeds
from tests.testing.applications.stories import EXAMPLE, story_of_orders, story_of_the_mistake

SEEDS = (3, 6, 9)


def test_the_mistake_is_found_within_200_seeds() -> None:
    with pytest.raises(AssertionError, match="acknowledged, but never processed") as found:
        run_seeds(story_of_the_mistake(), range(200))
    report = str(found.value)
    assert "simulated_mistake.py::orders_commits_first --seed" in report
    assert "fault" in report, "the story names the fault"


def test_the_mended_service_loses_no_order() -> None:
    assert len(run_seeds(story_of_orders(), range(16), workers=2)) == 16


def test_a_seed_has_the_same_hash_in_a_copy_of_the_process_and_alone() -> None:
    story = story_of_orders()
    jobs = [StoryJob(seed) for seed in SEEDS]
    copied = [each.digest for each in outcomes(story, jobs, forks=True)]
    alone = [each.digest for each in outcomes(story, reversed(jobs), forks=False)]
    assert copied == alone[::-1]
    assert len(set(copied)) == len(SEEDS)


def test_the_hash_does_not_depend_on_hashes_of_strings() -> None:
    story, hashes = story_of_orders(), set()
    for hash_seed in ("1", "2"):
        command = [sys.executable, "-m", "fenceline.testing.applications", f"{EXAMPLE}/simulated.py", "--seed", "6"]
        found = subprocess.run(
            command, env={**os.environ, "PYTHONHASHSEED": hash_seed}, capture_output=True, text=True, check=True
        )
        hashes.add(found.stdout.rsplit("hash ", 1)[1].split(",")[0])
    assert hashes == {next(outcomes(story, [StoryJob(6)])).digest}


def test_a_mistake_of_the_client_library_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A producer that reports a failed request as acknowledged."""

    def succeed(self: Sender, queue: PartitionQueue, batch: Batch, error: Exception, **_: bool) -> None:
        self._succeed(queue, batch, 0, 0)

    monkeypatch.setattr(Sender, "_handle_failure", succeed)
    with pytest.raises(AssertionError, match="acknowledged, but never processed"):
        run_seeds(story_of_orders(), range(100), shrink=False)
