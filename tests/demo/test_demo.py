"""The whole demo once, as a command, on the flights of three months."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from fenceline.demo.beside import WHY_NOT, connector_jars
from tests.conftest import need_java

RUN_S = 500


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
