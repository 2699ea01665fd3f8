"""The whole demo once, as a command, on the flights of three months; and once stopped on its way."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fenceline.demo.beside import WHY_NOT, connector_jars
from fenceline.testing.waiting import eventually
from tests.conftest import need_java

RUN_S = 500
MARK = "FENCELINE_TEST_MARK"
COMMAND = """
import runpy, signal
# Who starts the tests in the background has them ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)
runpy.run_module("fenceline", run_name="__main__")
"""


@pytest.mark.spark
@pytest.mark.timeout(RUN_S + 100)
def test_what_is_lost_is_told_taken_out_and_sent_again(tmp_path: Path) -> None:
    need_java()
    directory, report = tmp_path / "demo", tmp_path / "report.html"
    command = [
        sys.executable,
        "-m",
        "fenceline",
        "demo",
        "--months",
        "3",
        "--dir",
        str(directory),
        "--report",
        str(report),
    ]
    run = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S, check=False)
    said = " ".join(run.stdout.split())
    assert run.returncode == 0, run.stdout + run.stderr
    assert "WRONG" not in said
    for moment in (
        "from the other brokers",
        "is elected uncleanly",
        "has written a receipt",
        "the consumer reports that flights-",
        "the stream goes back in flights-",
        "stale rows",
        "lost records are sent again",
    ):
        assert moment in said, moment
    page = report.read_text()
    assert "The tables equal the log." in page
    assert "the consumer reported 1 of 1" in " ".join(page.split())
    lost = re.search(r"node \d takes ([\d,]+) records with acks=1", said)
    assert lost is not None
    assert f"{lost[1]} stale" in page, "the table before the repair"
    if not connector_jars():
        assert WHY_NOT in said
        return
    beside = re.search(r"connector read the same topic and (.*?): ([\d,]+) of its rows are not in the log", said)
    assert beside is not None
    assert beside[2] == lost[1], "nothing takes its stale rows out"


@pytest.mark.spark
@pytest.mark.timeout(RUN_S + 100)
def test_ctrl_c_in_the_middle_ends_everything_without_a_word_too_many(tmp_path: Path) -> None:
    need_java()
    directory, report, scratch = tmp_path / "demo", tmp_path / "report.html", tmp_path / "tmp"
    scratch.mkdir()
    mark = f"{MARK}={tmp_path}"
    words: list[str] = []
    with subprocess.Popen(
        [sys.executable, "-c", COMMAND, "demo", "--months", "3", "--dir", str(directory), "--report", str(report)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, MARK: str(tmp_path), "TMPDIR": str(scratch)},
        start_new_session=True,
    ) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            words.append(line)
            # Python has worked for Spark by then.
            if "goes on from its checkpoint" in line:
                assert len(with_mark(mark)) > len(("the demo", "Java", "a controller", *range(3))), words
                os.killpg(demo.pid, signal.SIGINT)
                break
        said, complained = demo.communicate(timeout=RUN_S)
    assert demo.returncode == 130, "".join(words) + said + complained
    assert said.split()[-5:] == ["Stopped;", "nothing", "is", "left", "running."]
    assert complained == ""
    try:
        eventually(lambda: not with_mark(mark), "all processes have ended")
    except TimeoutError:
        pytest.fail(f"still there: {[command_line(pid) for pid in with_mark(mark)]}")
    assert not directory.exists()
    assert not report.exists()
    assert list(scratch.iterdir()) == []


def with_mark(mark: str) -> list[int]:
    """Processes that have it in their environment, as it is inherited."""
    found: list[int] = []
    for environment in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark.encode() in environment.read_bytes().split(b"\0"):
                found.append(int(environment.parent.name))
        except OSError:
            # It has ended, or is another user's.
            continue
    return found


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return f"{pid}, which has ended meanwhile"
