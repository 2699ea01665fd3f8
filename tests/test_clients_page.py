"""docs/clients.md: its tables are those of the cards in benchmarks/cards, and no program or case is left out."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from fenceline.testing.client_check.check import CASES, Kind
from fenceline.testing.client_check.explanations import EXPLANATIONS

ROOT = Path(__file__).parent.parent
PROGRAMS = ROOT / "tools" / "clients"
PAGE = (ROOT / "docs" / "clients.md").read_text()


@pytest.fixture(scope="module")
def make_cards() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_cards", PROGRAMS / "make_cards.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up.
    sys.modules[spec.name] = made
    spec.loader.exec_module(made)
    return made


def test_generated_parts_match_the_cards(make_cards: ModuleType) -> None:
    assert make_cards.page_text(PAGE) == PAGE, "run `make cards CARDS_OPTIONS=--docs`"


def test_every_program_is_run(make_cards: ModuleType) -> None:
    named = {path for client in make_cards.CLIENTS for path in client.programs.values()}
    found = {
        str(path.relative_to(PROGRAMS))
        for suffix in ("py", "java", "go")
        for path in PROGRAMS.rglob(f"*.{suffix}")
        if path.name != "make_cards.py"
    }
    assert named == found


def test_every_client_has_a_column_or_a_reason(make_cards: ModuleType) -> None:
    for client in make_cards.CLIENTS:
        for kind in client.programs:
            stored = make_cards.load(client, kind)
            assert stored.missing or stored.card.verdicts[0].case == "baseline"
            assert f"| {client.title} " in PAGE if not stored.missing else f"{client.title} has no card:" in PAGE


@pytest.mark.parametrize("kind", list(CASES))
def test_every_case_is_explained(kind: Kind) -> None:
    assert list(EXPLANATIONS[kind]) == [case.name for case in CASES[kind]]


def test_cards_name_no_folder_of_the_machine_that_made_them(make_cards: ModuleType) -> None:
    for path in make_cards.CARDS.glob("*.json"):
        assert not re.search(r"/(work|home|root|tmp)/", path.read_text()), path.name


def test_a_missing_toolchain_is_reported(make_cards: ModuleType) -> None:
    def missing(*_: object) -> list[str]:
        raise make_cards.Missing("Go is missing")

    client = make_cards.Client("x", "X", {"consumer": "x.py"}, lambda: "1", missing)
    stored = make_cards.make(client, "consumer")
    assert stored.missing == "Go is missing"
    assert not stored.card.verdicts
