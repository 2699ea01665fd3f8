"""The same seed is the same run: everywhere, every time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from fenceline.local_cluster import reaper
from fenceline.node.controller.driver import ControllerDriver
from fenceline.node.logs import Logger
from fenceline.testing.simulation import controller_of_one
from fenceline.testing.simulation.__main__ import main
from fenceline.testing.simulation.options import Options
from fenceline.testing.simulation.stage import SCENARIOS, options_of, play
from fenceline.testing.simulation.trace import Trace
from fenceline.testing.simulation.workers import outcomes

SEED = 15

pytestmark = pytest.mark.timeout(600)
"""Only to detect hanging: each scenario runs several times, in its own processes, on a machine that may be busy."""


def test_log_lines_of_other_threads_are_not_in_the_trace() -> None:
    """An earlier test may have left a running thread in this process."""
    reported, ended = [], threading.Event()

    def log_on() -> None:
        log = Logger("somebody else")
        while not ended.wait(0.001):
            log.debug("still at work")
            reported.append("still at work")

    digest = play(SEED, "quorum").digest
    thread = threading.Thread(target=log_on)
    thread.start()
    try:
        played = [play(SEED, "quorum").digest]
        while not reported:
            played.append(play(SEED, "quorum").digest)
    finally:
        ended.set()
        thread.join()
    assert set(played) == {digest}


def test_the_process_id_is_not_in_the_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes write it into the lock of a directory, and sizes of files decide where a torn write ends."""
    digests = set()
    for process_id in (7, 12_345, 1_234_567):
        monkeypatch.setattr(os, "getpid", lambda chosen=process_id: chosen)
        digests.add(play(6, "brokers").digest)
    assert len(digests) == 1


def _digests_in_a_new_process(hash_seed: str) -> list[str]:
    """Digests of the complete trace of each scenario, from a process where sets and maps have another order."""
    code = "from fenceline.testing.simulation.stage import SCENARIOS, play\n"
    code += f"for scenario in sorted(SCENARIOS): print(play({SEED}, scenario).digest)"
    return _lines_of_a_new_process(code, hash_seed)


def _lines_of_a_new_process(code: str, hash_seed: str) -> list[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()


@pytest.mark.long
def test_the_same_seed_in_two_processes() -> None:
    here = [play(SEED, scenario) for scenario in sorted(SCENARIOS)]
    for outcome in here:
        assert outcome.failure is None, outcome.report()
        assert outcome.events > 500
    digests = [outcome.digest for outcome in here]
    assert len(set(digests)) == len(SCENARIOS)
    assert _digests_in_a_new_process("1") == digests
    assert _digests_in_a_new_process("4711") == digests
    assert [play(SEED, scenario).digest for scenario in sorted(SCENARIOS)] == digests


@pytest.mark.long
def test_two_topics_in_two_processes() -> None:
    """Topics are looked up by hashes of their names, which differ between processes."""
    for seed, scenario in ((7, "brokers"), (6, "operations")):
        assert options_of(seed, scenario).topics == 2
        lines: list[str] = []
        play(seed, scenario, sink=lines.append)
        code = f"from fenceline.testing.simulation.stage import play\nplay({seed}, {scenario!r}, sink=print)"
        for hash_seed in ("1", "3"):
            reported = _lines_of_a_new_process(code, hash_seed)
            differ = next(
                ((n, one, other) for n, (one, other) in enumerate(zip(lines, reported, strict=False)) if one != other),
                None,
            )
            assert differ is None, f"line {differ[0]}: {differ[1]!r} here, {differ[2]!r} in a new process"
            assert len(lines) == len(reported)


@pytest.mark.parametrize("scenario", sorted(SCENARIOS))
@pytest.mark.long
def test_a_seed_has_the_same_trace_again(scenario: str) -> None:
    digest = play(SEED, scenario).digest
    assert play(SEED, scenario).digest == digest
    assert play(SEED + 1, scenario).digest != digest


def test_a_trace_is_its_lines() -> None:
    lines: list[str] = []
    one, other = Trace(sink=lines.append), Trace(keep=1)
    for trace in (one, other):
        trace.add(0.5, "n1", "starts")
        trace.add(1.25, "n1", "loses power")
    assert lines == ["0.500000 n1 starts", "1.250000 n1 loses power"]
    assert one.digest == other.digest
    assert other.last_lines == lines[1:]
    other.add(2, "n1", "starts")
    assert one.digest != other.digest


def test_options_are_drawn_printed_and_overridden() -> None:
    drawn = {str(options_of(seed, "controller")) for seed in range(50)}
    assert len(drawn) == 50
    options = options_of(3, "controller", {"crash_s": "2.5", "shuffle": "no", "clients": "7"})
    assert (options.crash_s, options.shuffle, options.clients) == (2.5, False, 7)
    printed = dict(each.split("=") for each in str(options).split())
    assert Options().with_text(printed) == options, "the printed options reproduce the drawn ones"
    with pytest.raises(ValueError, match="unknown option 'crash'"):
        options_of(3, "controller", {"crash": "1"})


def test_a_failure_is_reported_with_its_seed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without any progress the liveness phase fails."""

    async def refuse(driver: ControllerDriver, frame: bytes) -> bytes:
        return b'{"code": -3}'

    monkeypatch.setattr(controller_of_one, "serve_client", refuse)
    assert main(["--seed", "5", "--option", "safety_s=1", "--option", "liveness_s=3"]) == 1
    shown = capsys.readouterr().out
    assert "seed 5 of scenario controller failed: SimulationError: no progress within 3.0 s" in shown
    assert "safety_s=1.0" in shown
    assert "n1 starts, life 1" in shown or "n1 write" in shown, "the last events"
    assert "python -m fenceline.testing.simulation controller --seed 5" in shown


@pytest.mark.long
def test_many_seeds_from_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    short = {"safety_s": "0.1", "clients": "1", "nodes": "1", "observers": "0"}
    arguments = ["--seeds", "10..14", "--workers", "2", "--option", "safety_s=1", "--option", "clients=1"]
    assert main([*arguments, "--progress", "2"]) == 0
    shown = capsys.readouterr().out
    assert "\n4 seeds, 0 failed; " in shown
    assert [line.partition(",")[0] for line in shown.splitlines()[:2]] == ["2 seeds", "4 seeds"]
    assert [outcome.seed for outcome in outcomes(range(5, 75), "quorum", short, 2)] == list(range(5, 75))


@pytest.mark.parametrize("ends", [signal.SIGINT, signal.SIGKILL])
def test_workers_end_with_their_parent(ends: signal.Signals) -> None:
    """Ctrl-C, or a kill, while seeds run."""
    command = [sys.executable, "-m", "fenceline.testing.simulation", "--seeds", "0..1000000", "--progress", "1"]
    with subprocess.Popen([*command, "--workers", "2"], stdout=subprocess.PIPE, text=True) as process:
        reaper.watch_process(process.pid)
        assert process.stdout is not None
        assert process.stdout.readline().startswith("1 seeds, 0 failed"), "the workers run"
        started = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(ends)
        shown, _ = process.communicate(timeout=60)
        reaper.forget_process(process.pid)
    assert process.returncode == (130 if ends == signal.SIGINT else -signal.SIGKILL)
    assert ("seeds, 0 failed; " in shown) == (ends == signal.SIGINT)
    assert len(started) >= 2
    assert psutil.wait_procs(started, timeout=60)[1] == []
