"""Finds the Cython modules, if they were built and are enabled.

Owns the rule when one may be used; `FENCELINE_PURE_PYTHON=1` disables all of them. A missing one is no error: each has
an equivalent in Python.
"""

from __future__ import annotations

import os
from importlib import import_module
from types import ModuleType


def left_out() -> bool:
    """Whether `FENCELINE_PURE_PYTHON` asks for Python only."""
    return os.environ.get("FENCELINE_PURE_PYTHON", "") not in ("", "0")


def compiled(name: str, abi: int) -> ModuleType | None:
    """The module with that full name, None if it must not be used.

    `abi` changes with every change of its sources: a build of other sources must not be mixed with these.
    """
    if left_out():
        return None
    try:
        module = import_module(name)
    except ImportError:
        return None
    return module if getattr(module, "ABI", None) == abi else None
