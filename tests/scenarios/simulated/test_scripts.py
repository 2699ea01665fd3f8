"""Scripts of simulated clusters, each a text file: commands and their observations (`simulation.script`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from fenceline.testing.simulation.script import ScriptError, play_script

SCRIPTS = sorted(Path(__file__).parent.glob("*.txt"))
LONG = {"quorum_lost_for_an_hour"}
"""Of more than ten seconds."""


def _script_of(golden: str) -> str:
    """The script in a golden file: its lines that start with `> ` or `#`; the others are observations."""
    lines = golden.splitlines()
    return "\n".join(line.removeprefix("> ") for line in lines if line.startswith(("> ", "#")))


@pytest.mark.parametrize(
    "path",
    [pytest.param(each, marks=[pytest.mark.soak] if each.stem in LONG else [], id=each.stem) for each in SCRIPTS],
)
def test_script_matches_its_golden_file(path: Path) -> None:
    golden = path.read_text()
    assert play_script(_script_of(golden)) == golden


@pytest.mark.parametrize("line", ["settle", "cluster controllers\ndance leader", "cluster controllers\nkill leader"])
def test_an_invalid_line_is_rejected(line: str) -> None:
    with pytest.raises(ScriptError):
        play_script(line)
