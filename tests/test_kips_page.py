"""The page of the four KIPs: each row has a verdict, and the code and the tests that it names exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "kips.md"
KIPS = ("KIP-320", "KIP-207", "KIP-704", "KIP-630")
VERDICTS = re.compile(r"(whole|different on purpose|not applicable)(?:[:;,] (\S.*))?")
_NAME = re.compile(r"`([\w/]+\.py):(:?)([\w.]+)`")


class Row(NamedTuple):
    kip: str
    requirement: str
    verdict: str
    code: str
    test: str


def _rows() -> list[Row]:
    """Of the tables whose header says so."""
    rows: list[Row] = []
    kip, is_table = "", False
    for line in PAGE.read_text().splitlines():
        if line.startswith("## "):
            kip = line.removeprefix("## ").partition(":")[0]
        cells = [cell.strip() for cell in line.strip("|").split(" | ")] if line.startswith("| ") else []
        if not cells:
            is_table = is_table and line.startswith("|")
        elif cells[:4] == ["Requirement", "Verdict", "Code", "Test"]:
            is_table = True
        elif is_table:
            padded = [*cells, "", ""][:4] if len(cells) >= 2 else cells
            rows.append(Row(kip, *(cell.strip("| ") for cell in padded)))
    return rows


ROWS = _rows()


@cache
def _names(path: Path) -> frozenset[str]:
    """Functions, classes and constants of a module, members of classes after their class."""
    found: set[str] = set()

    def walk(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            match node:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    found.add(prefix + name)
                case ast.ClassDef(name=name, body=inside):
                    found.add(prefix + name)
                    walk(inside, f"{prefix}{name}.")
                case ast.Assign(targets=targets):
                    found.update(prefix + each.id for each in targets if isinstance(each, ast.Name))
                case ast.AnnAssign(target=ast.Name(id=name)):
                    found.add(prefix + name)
                case _:
                    pass

    walk(ast.parse(path.read_text()).body, "")
    return frozenset(found)


def _missing(cell: str, root: Path, colons: str) -> list[str]:
    """Names in the cell that do not exist or are malformed."""
    wrong = []
    for named in cell.split(", ") if cell else ():
        match = _NAME.fullmatch(named)
        path = None if match is None or f":{match[2]}" != colons else root / match[1]
        if match is None or path is None or not path.is_file() or match[3] not in _names(path):
            wrong.append(named)
    return wrong


def test_each_kip_has_its_rows() -> None:
    assert tuple(dict.fromkeys(row.kip for row in ROWS)) == KIPS
    assert len(ROWS) > 80
    assert all(len(row) == 5 for row in ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.kip} {row.requirement[:60]}")
def test_each_row_has_a_verdict_and_existing_code_and_tests(row: Row) -> None:
    verdict = VERDICTS.fullmatch(row.verdict)
    assert verdict is not None, row.verdict
    if verdict[1] != "whole":
        assert verdict[2], "a verdict other than whole needs a reason"
    if verdict[1] != "not applicable":
        assert row.code, "no code is named"
        assert row.test, "no test is named"
    assert _missing(row.code, ROOT / "src" / "fenceline", ":") == []
    assert _missing(row.test, ROOT / "tests", "::") == []


def test_links_resolve() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", PAGE.read_text())
    assert links
    assert [link for link in links if not (PAGE.parent / link).exists()] == []


def test_every_kip_test_file_is_named() -> None:
    """A test in no row proves a detail, but each file of `tests/kip` must have a named test."""
    named = {match[1] for row in ROWS for match in _NAME.finditer(row.test)}
    files = {f"kip/{path.name}" for path in (ROOT / "tests" / "kip").glob("test_*.py")}
    assert files <= named
