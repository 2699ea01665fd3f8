"""Finds the Cython modules, where they were built and are wanted.

Owns the rule when one may be used; `FENCELINE_PURE_PYTHON=1` leaves all of them out. A missing one is no error: each
has something in Python that does the same.
"""

from __future__ import annotations

import os
from importlib import import_module
from types import ModuleType


def left_out() -> bool:
    """Whether `FENCELINE_PURE_PYTHON` asks for Python only."""
    return os.environ.get("FENCELINE_PURE_PYTHON", "") not in ("", "0")


def compiled(name: str, abi: int) -> ModuleType | None:
    """The module of that full name, None where it is not to be used.

    `abi` changes with every change of its sources: a build left over from others must not be mixed with these.
    """
    if left_out():
        return None
    try:
        module = import_module(name)
    except ImportError:
        return None
    return module if getattr(module, "ABI", None) == abi else None
