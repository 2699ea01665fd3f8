from __future__ import annotations

import pickle
import subprocess
import sys

import pyspark
import pytest

import pyspark_fenceline
import pyspark_fenceline_delta
import pyspark_fenceline_segments
from fenceline.errors import OperatorError
from pyspark_fenceline.common.compatibility import is_supported


@pytest.mark.parametrize(
    ("version", "works"),
    [("4.2.0", True), ("4.3.0", True), ("5.0.0.dev1", True), ("4.1.1", False), ("3.5.0", False), ("odd", False)],
)
def test_versions(version: str, works: bool) -> None:
    assert is_supported(version) is works


def test_spark_finds_all_sources_by_name() -> None:
    assert pyspark_fenceline.DefaultSource.name() == "fenceline"
    assert pyspark_fenceline_delta.DefaultSource.name() == "fenceline_delta"
    assert pyspark_fenceline_segments.DefaultSource.name() == "fenceline_segments"
    assert pickle.loads(pickle.dumps(pyspark_fenceline.DefaultSource)) is pyspark_fenceline.DefaultSource


@pytest.mark.parametrize("module", [pyspark_fenceline, pyspark_fenceline_delta, pyspark_fenceline_segments])
def test_an_old_spark_version_is_rejected_on_use_only(monkeypatch: pytest.MonkeyPatch, module: object) -> None:
    monkeypatch.setattr(pyspark, "__version__", "4.0.1")
    source = module.DefaultSource  # type: ignore[attr-defined]
    assert source.name().startswith("fenceline")
    with pytest.raises(OperatorError, match=r"needs PySpark 4\.2 or newer, this is 4\.0\.1"):
        source({})


def test_looking_the_sources_up_imports_neither_arrow_nor_the_client() -> None:
    # Spark does this in every session.
    program = """
import sys, pyspark.sql.datasource
before = set(sys.modules)
import pyspark_fenceline, pyspark_fenceline_delta, pyspark_fenceline_segments
pyspark_fenceline.DefaultSource, pyspark_fenceline_delta.DefaultSource, pyspark_fenceline_segments.DefaultSource
heavy = ("pyarrow", "deltalake", "kio")
print([m for m in set(sys.modules) - before if m.split(".")[0] in heavy or m.startswith("fenceline.client")])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
