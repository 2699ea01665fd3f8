"""The tests that docs/testing.md shows are run as they stand there, and its table names every situation and fault."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from fenceline.testing.lab.faults import ClusterFaults
from fenceline.testing.lab.situations import Situations

pytest_plugins = ["pytester"]

PAGE = (Path(__file__).parents[2] / "docs" / "testing.md").read_text()
_NO_FAULTS = {"undo_all", "active", "begin", "links", "end", "forget_all", "was_hit", "decide", "restored"}


def test_the_tests_of_the_page_pass(pytester: pytest.Pytester) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    tests = [block for block in blocks if "def test_" in block]
    assert len(tests) >= 3
    pytester.makeini("[pytest]\n")
    pytester.makepyfile("\n\n".join(tests))
    pytester.runpytest_subprocess("-q", "-p", "no:cacheprovider", timeout=100).assert_outcomes(passed=len(tests))


def test_every_situation_and_fault_is_on_the_page() -> None:
    named = set(re.findall(r"`(\w+)[(`]", PAGE))
    situations = {name for name, _ in inspect.getmembers(Situations, callable) if not name.startswith("_")}
    faults = {name for name, _ in inspect.getmembers(ClusterFaults, callable) if not name.startswith("_")} - _NO_FAULTS
    assert sorted((situations | faults) - named) == []
