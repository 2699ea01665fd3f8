"""Which Python Spark starts. No Spark session."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from fenceline.errors import OperatorError
from pyspark_fenceline import use_this_python
from pyspark_fenceline.common import spark_python

_NAMES = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A `python3` of the PATH that is not this one; no variable is set."""
    other = tmp_path / "python3"
    other.symlink_to(sys.executable)
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in _NAMES:
        # Set first, so that the value that the test leaves is undone.
        monkeypatch.setenv(name, "")
    return other


def test_spark_starts_this_python() -> None:
    use_this_python()
    assert [os.environ[name] for name in _NAMES] == [sys.executable] * 2


def test_a_session_with_another_python_is_too_late(monkeypatch: pytest.MonkeyPatch, elsewhere: Path) -> None:
    monkeypatch.setattr(spark_python, "_has_session", lambda: True)
    with pytest.raises(OperatorError, match=f"starts {elsewhere}") as error:
        use_this_python()
    assert "before the session" in error.value.advice
    assert not os.environ["PYSPARK_PYTHON"]


@pytest.mark.parametrize("name", _NAMES)
def test_a_session_with_this_python_is_fine(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(spark_python, "_has_session", lambda: True)
    monkeypatch.setenv(name, sys.executable)
    use_this_python()
