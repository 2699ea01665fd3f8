"""The command that runs the stories of a file, and `run_seeds` for tests."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fenceline.testing.applications.__main__ import main
from fenceline.testing.applications.running import run_seeds
from fenceline.testing.applications.story import simulated
from fenceline.testing.applications.story_world import StoryWorld

FILE = """
import asyncio
from fenceline.testing.applications import simulated

@simulated(faults=())
async def calm(world):
    await asyncio.sleep(1)

@simulated(faults=())
async def broken(world):
    world.note("about to fail")
    assert world.rng.random() < 0.5, "unlucky"
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "stories_of_a_test.py"
    path.write_text(FILE)
    return str(path)


def test_stories_pass(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"{file}::calm", "--seeds", "0..3", "--workers", "2"]) == 0
    assert "calm: 3 seeds, 0 failed" in capsys.readouterr().out


def test_a_failure_is_told_with_its_command(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([file, "--seeds", "0..8"]) == 1
    told = capsys.readouterr().out
    assert "AssertionError: unlucky" in told
    assert "about to fail" in told
    command = next(line for line in told.splitlines() if line.startswith("again: "))
    arguments = command.removeprefix("again: python -m fenceline.testing.applications ").split()
    assert main([file + "::broken", *arguments[1:]]) == 1


def test_all_failures_are_listed(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"{file}::broken", "--seeds", "0..20", "--all", "--progress", "10"]) == 1
    told = capsys.readouterr().out
    assert told.count("failed: AssertionError: unlucky") > 1
    assert "20 seeds" in told


def test_a_trace_has_every_event(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"{file}::calm", "--seed", "1", "--trace"]) == 0
    traced = capsys.readouterr().out
    assert "world seed 1" in traced
    assert " net " in traced
    assert main([f"{file}::calm", "--seed", "1"]) == 0
    hashes = {each.rsplit("hash ", 1)[1].split(",")[0] for each in (traced, capsys.readouterr().out)}
    assert len(hashes) == 1, "the same run"


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (["missing.py"], "There is no file missing.py"),
        (["{file}::other"], "has no story other"),
        (["{file}", "--seeds", "many"], "--seeds many is not a range"),
        (["{file}", "--seed", "1", "--faults", "first"], "--faults first is no list of numbers"),
    ],
)
def test_wrong_arguments(arguments: list[str], advice: str, file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([each.format(file=file) for each in arguments]) == 2
    assert advice in capsys.readouterr().err


def told(tmp_path: Path, story: str, seeds: int) -> list[str | None]:
    """The failure of each seed, from a process of its own: one with threads, such as a worker of pytest-xdist, does not
    fork, and a seed that ends its process would end the tests."""
    script = tmp_path / "told.py"
    script.write_text(
        f"""
import json, os
from fenceline.testing.applications.forks import outcomes
from fenceline.testing.applications.one_seed import StoryJob
from fenceline.testing.applications.story import simulated
from fenceline.testing.applications.story_world import StoryWorld
told = []
{story}
found = list(outcomes(simulated(faults=())(story), map(StoryJob, range({seeds})), 2))
assert [each.job.seed for each in found] == list(range({seeds}))
print(json.dumps([str(each.failure) if each.failure else None for each in found]))
"""
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=100, check=True)
    failures: list[str | None] = json.loads(done.stdout)
    return failures


def test_an_application_that_keeps_something_in_globals_is_reported(tmp_path: Path) -> None:
    """A seed that fails only because of an earlier one cannot be replayed by its number."""
    story = """
async def story(world: StoryWorld) -> None:
    told.append(1)
    assert len(told) < 3, "too many"
"""
    failed = [each for each in told(tmp_path, story, 8) if each]
    assert failed
    assert all("keeps something in globals" in each for each in failed)


def test_a_process_that_dies_fails_its_seed_only(tmp_path: Path) -> None:
    story = """
async def story(world: StoryWorld) -> None:
    if world.rng.random() < 0.3:
        os._exit(7)
"""
    failures = told(tmp_path, story, 12)
    assert 0 < len([each for each in failures if each]) < 12
    assert {each for each in failures if each} == {"its process ended with status 7"}


def test_run_seeds_raises_the_story() -> None:
    async def story(world: StoryWorld) -> None:
        raise AssertionError("the moon is full")

    with pytest.raises(AssertionError, match="seed 0 of the story story failed: AssertionError: the moon is full"):
        run_seeds(simulated(faults=())(story), range(2))
