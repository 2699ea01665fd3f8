"""One class name for one thing in the whole tree: a reader who searches for a name finds its one definition."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Final

SOURCES: Final = Path(__file__).parent.parent / "src"


def definitions(sources: Path) -> dict[str, list[str]]:
    """By name: the modules with a public top-level class of that name."""
    found: dict[str, list[str]] = {}
    for path in sorted(sources.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(str(path.relative_to(sources)))
    return found


def repeated(sources: Path) -> dict[str, list[str]]:
    return {name: paths for name, paths in definitions(sources).items() if len(paths) > 1}


def test_each_public_class_has_a_name_of_its_own() -> None:
    found = repeated(SOURCES)
    assert not found, f"rename all but one of each, by what it is (CONTRIBUTING.md, Rules): {found}"


def test_a_repeated_name_is_found(tmp_path: Path) -> None:
    for room in ("log", "node"):
        (tmp_path / room).mkdir()
        (tmp_path / room / "state.py").write_text("class State: ...\nclass _Private: ...\n")
    assert repeated(tmp_path) == {"State": ["log/state.py", "node/state.py"]}
