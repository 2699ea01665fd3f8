"""Which Python Spark starts.

Owns `use_this_python`. Spark starts `python3` of the PATH unless a variable names another one, whichever Python runs
the script: outside an activated environment it then finds no format `fenceline`. Never sets a variable unasked: on a
cluster the driver's path may not exist on the executors.
"""

from __future__ import annotations

import os
import shutil
import sys
from typing import Final

from fenceline.errors import OperatorError

_VARIABLES: Final = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")


def use_this_python() -> None:
    """Let Spark start the Python that runs this, in which Fenceline is installed. Call it before the session is
    created.

    Raises OperatorError if a session that starts another Python exists already."""
    other = _other_python()
    if other is not None and _has_session():
        raise OperatorError(
            f"The Spark session starts {other}, and this is {sys.executable}",
            "Call use_this_python() before the session is created.",
        )
    for name in _VARIABLES:
        os.environ[name] = sys.executable


def _other_python() -> str | None:
    """What Spark starts, unless it is the Python of this environment."""
    named = next((found for name in reversed(_VARIABLES) if (found := os.environ.get(name))), "python3")
    found = shutil.which(named) or named
    # The executables of virtual environments are links to the same file.
    is_here = os.path.realpath(os.path.dirname(found)) == os.path.realpath(os.path.dirname(sys.executable))
    return None if is_here else found


def _has_session() -> bool:
    context = sys.modules.get("pyspark.core.context")
    return context is not None and context.SparkContext._active_spark_context is not None
