"""The demo checks its requirements before it starts anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from fenceline.demo.run import run_demo
from fenceline.errors import OperatorError


def java_of_version(directory: Path, version: str) -> Path:
    """A directory like JAVA_HOME."""
    program = directory / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2015-01-01' >&2\n")
    program.chmod(0o755)
    return directory


def refusal(tmp_path: Path) -> OperatorError:
    with pytest.raises(OperatorError) as refused:
        run_demo(tmp_path / "demo", tmp_path / "report.html")
    assert not (tmp_path / "demo").exists()
    return refused.value


def test_without_java_the_error_names_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    error = refusal(tmp_path)
    assert error.message == "Spark needs Java 17 or newer: no java is on PATH"
    assert "apt-get install" in error.advice


def test_an_old_java_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = java_of_version(tmp_path / "jdk8", "1.8.0_392")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(home / "bin"))
    assert refusal(tmp_path).message == f"Spark needs Java 17 or newer: {home}/bin/java is 1.8.0_392"


def test_java_home_precedes_path_as_in_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    newer = java_of_version(tmp_path / "jdk21", "21.0.1")
    monkeypatch.setenv("PATH", str(newer / "bin"))
    monkeypatch.setenv("JAVA_HOME", str(java_of_version(tmp_path / "jdk11", "11.0.2")))
    error = refusal(tmp_path)
    assert "jdk11/bin/java is 11.0.2" in error.message
    assert "unset it" in error.advice


def test_a_java_home_without_java_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    assert "has no bin/java" in refusal(tmp_path).message


def test_a_directory_with_other_files_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java_of_version(tmp_path / "jdk17", "17.0.9")))
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "thesis.txt").write_text("mine")
    with pytest.raises(OperatorError, match="not created by the demo"):
        run_demo(tmp_path / "demo", tmp_path / "report.html")
    assert (tmp_path / "demo" / "thesis.txt").exists()
