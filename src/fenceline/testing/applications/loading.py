"""Finds the stories of a Python file, as `python FILE` would load it: its folder is the first of `sys.path`.

Owns the form FILE::STORY.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from fenceline.errors import OperatorError
from fenceline.testing.applications.story import Story


def stories_of(text: str) -> list[Story]:
    """The stories of FILE, or the one of FILE::STORY. Raises OperatorError."""
    name, _, wanted = text.partition("::")
    path = Path(name)
    if not path.is_file():
        raise OperatorError(f"There is no file {name}", "Pass the path of a Python file with stories.")
    found = [each for each in vars(_load(path)).values() if isinstance(each, Story)]
    if wanted:
        found = [each for each in found if each.name == wanted]
    if not found:
        raise OperatorError(
            f"{name} has no story{f' {wanted}' if wanted else ''}",
            "Decorate its coroutine function with @simulated(...).",
        )
    return found


def _load(path: Path) -> object:
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    module_name = path.stem
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise OperatorError(f"{path} cannot be loaded", "Pass the path of a Python file with stories.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    spec.loader.exec_module(module)
    return module
