"""The complete demo as a command, on the flights of three months; and once interrupted."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fenceline.demo.connector_comparison import NO_JARS, connector_jars
from fenceline.testing.waiting import eventually
from tests.conftest import need_java

pytestmark = pytest.mark.long

RUN_S = 500
MARK = "FENCELINE_TEST_MARK"
COMMAND = """
import runpy, signal
# Tests that run in the background inherit an ignored SIGINT.
signal.signal(signal.SIGINT, signal.default_int_handler)
runpy.run_module("fenceline", run_name="__main__")
"""


@pytest.mark.spark
@pytest.mark.timeout(RUN_S + 100)
def test_lost_records_are_reported_deleted_and_sent_again(tmp_path: Path) -> None:
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
    output = " ".join(run.stdout.split())
    assert run.returncode == 0, run.stdout + run.stderr
    assert "WRONG" not in output
    for phrase in (
        "from the other brokers",
        "Unclean election: node ",
        "writes a loss receipt",
        "The consumer reports that flights-",
        "The stream rewinds flights-",
        "stale rows",
        "lost records are sent again",
    ):
        assert phrase in output, phrase
    page = report.read_text()
    assert "The tables match the log." in page
    assert "the consumer reported 1 of 1" in " ".join(page.split())
    lost = re.search(r"Node \d accepts ([\d,]+) records with acks=1", output)
    assert lost is not None
    assert f"{lost[1]} stale" in page, "the table before the repair"
    if not connector_jars():
        assert NO_JARS in output
        return
    beside = re.search(r"connector read the same topic and (.*?): ([\d,]+) of its rows are not in the log", output)
    assert beside is not None
    assert beside[2] == lost[1], "its stale rows are never deleted"


@pytest.mark.spark
@pytest.mark.timeout(RUN_S + 100)
def test_ctrl_c_stops_everything_without_further_output(tmp_path: Path) -> None:
    need_java()
    directory, report, scratch = tmp_path / "demo", tmp_path / "report.html", tmp_path / "tmp"
    scratch.mkdir()
    mark = f"{MARK}={tmp_path}"
    lines: list[str] = []
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
            lines.append(line)
            # Spark has started its Python workers by then.
            if "restarted from its checkpoint" in line:
                assert len(with_mark(mark)) > len(("the demo", "Java", "a controller", *range(3))), lines
                os.killpg(demo.pid, signal.SIGINT)
                break
        output, errors = demo.communicate(timeout=RUN_S)
    assert demo.returncode == 130, "".join(lines) + output + errors
    assert output.split()[-6:] == ["Stopped.", "No", "process", "is", "left", "running."]
    assert errors == ""
    try:
        eventually(lambda: not with_mark(mark), "all processes have ended")
    except TimeoutError:
        pytest.fail(f"still there: {[command_line(pid) for pid in with_mark(mark)]}")
    assert not directory.exists()
    assert not report.exists()
    assert list(scratch.iterdir()) == []


def with_mark(mark: str) -> list[int]:
    """Processes whose environment contains the mark, which children inherit."""
    found: list[int] = []
    for environment in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark.encode() in environment.read_bytes().split(b"\0"):
                found.append(int(environment.parent.name))
        except OSError:
            # The process has ended, or belongs to another user.
            continue
    return found


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return f"{pid}, which has ended"
