"""`make dist` itself, for this Python and machine: archives are built, installed and tried. Needs the package index."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tools.dist.targets import TARGETS

from fenceline import __version__
from tests.conftest import unavailable
from tests.packaging.command_node import ROOT

RELEASE = f"{sys.version_info.major}.{sys.version_info.minor}"


@pytest.mark.long
@pytest.mark.timeout(900)
def test_archives_are_built_and_work(tmp_path: Path) -> None:
    here = next((each for each in TARGETS if each.is_here), None)
    if here is None:
        unavailable("no wheels are built for this machine")
    options = f"--only {RELEASE} --target '{here.name}' --no-demo"
    done = subprocess.run(
        ["make", "--no-print-directory", "dist", f"DIST_OPTIONS={options}"],
        cwd=ROOT,
        env={**os.environ, "DIST_CACHE": str(tmp_path / "cache"), "DIST_FOLDER": str(tmp_path / "dist")},
        capture_output=True,
        text=True,
    )
    printed = done.stdout + done.stderr
    if "index cannot be reached" in printed:
        unavailable("the package index cannot be reached")
    assert done.returncode == 0, printed
    assert "FAILED" not in printed
    names = sorted(path.name for path in (tmp_path / "dist").iterdir())
    assert f"fenceline-{__version__}.tar.gz" in names
    assert f"fenceline-{__version__}-py3-none-any.whl" in names
    compiled = [name for name in names if here.tag in name]
    if f"wheels {RELEASE}" not in printed:  # this Python has no C headers: the summary says so
        assert len(compiled) == 1
        assert f"wheel in Python {RELEASE}" in printed
