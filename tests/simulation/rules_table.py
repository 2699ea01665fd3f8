"""The tables of broken rules in docs/simulation.md, printed or regenerated.

Owns the search for seeds: `python -m tests.simulation.rules_table RULE...`. With names (or prefixes), or `all`, it
searches for the first seed that detects each of these, and writes seed, check and date into the modules of the rules,
both tables into the documentation, and the games of the holes into the corpus. A seed that also fails without the
breach proves nothing.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pytest

from fenceline.testing.simulation.checks import InvariantBroken
from fenceline.testing.simulation.corpus import CorpusEntry, load, save
from fenceline.testing.simulation.stage import SeedOutcome, play
from fenceline.testing.simulation.workers import Game
from tests.simulation.broken_silence_rules import NO_SEED, RULES

from . import kafka_history

SEEDS: Final = 1000
_HERE: Final = Path(__file__).parent
_MODULES: Final = tuple(
    _HERE / f"broken_{part}_rules.py" for part in ("data", "election", "history", "holes", "transaction", "silence")
)
DOCUMENT: Final = _HERE.parents[1] / "docs" / "simulation.md"
CORPUS: Final = _HERE / "corpus.txt"
_HEAD: Final = "| Breach | Seed | Noticed by | Last reproduced |\n|---|---|---|---|\n"
NO_VERDICT: Final = ("AttributeError", "TypeError", "NameError", "KeyError", "Failed")
"""The patch itself is broken, not the rule; or the test exceeded its time limit."""
_NO_PROGRESS: Final = ("rest", "a node ends")
_CHECKS: Final = (
    (r"^InvariantBroken: \d+ ([A-Z_]+)", r"\1"),
    (r"in sync are .* replicas", "replicas"),
    (r"its high watermark", "high watermark"),
    (r"\(([A-Za-z0-9, -]+|log matching)\)$", r"\1"),
    (r"not idle|no progress", "rest"),
    (r"gave up without", "a node ends"),
    (r"leads epoch \d+ with a log", "leaders"),
    (r"acknowledged|is not RECOVERING", "acknowledgements"),
    (r"was not detected|was truncated to", "readers"),
    (r"the committed batch is|ends at \d+, but the committed", "logs"),
)


def check_of(failure: str) -> str:
    """The check that detected it, as the documentation names it."""
    first_line = failure.split("\n", 1)[0]
    for pattern, name in _CHECKS:
        found = re.search(pattern, first_line)
        if found is not None:
            return found.expand(name)
    return first_line.split(":", 1)[0]


def played(name: str, seed: int) -> SeedOutcome:
    """The outcome of a seed with the rule broken."""
    with pytest.MonkeyPatch.context() as patch:
        RULES[name].breach(patch)
        return play(seed, RULES[name].scenario, overrides=RULES[name].options)


def first_that_detects(name: str, seeds: Iterable[int]) -> tuple[int, str]:
    """The seed and its failure; NO_SEED if none detected it. A violated invariant is more specific than a cluster that
    makes no progress, which counts only if that is the bug."""
    counts_rest = RULES[name].check in _NO_PROGRESS
    for seed in seeds:
        outcome = played(name, seed)
        assert outcome.kind not in NO_VERDICT, outcome.report()
        if outcome.failure is None or not (counts_rest or outcome.kind == InvariantBroken.__name__):
            continue
        if play(seed, RULES[name].scenario, overrides=RULES[name].options).failure is None:
            return seed, outcome.failure
    return NO_SEED, ""


def table() -> str:
    """All rows, in the order of the modules."""
    rows = (
        f"| {name.replace('_', ' ')} | {rule.seed if rule.seed != NO_SEED else 'none'} | {rule.check} | {rule.seen} |"
        for name, rule in RULES.items()
    )
    return _HEAD + "\n".join(rows) + "\n"


def _write(name: str, seed: int, check: str, seen: str) -> None:
    others = r"(?:(?!@breaks)[\s\S])*"
    pattern = re.compile(rf'(@breaks\(\s*)[^,]+(,\s+)"[^"]*"(,\s+)"[^"]*"({others}\)\ndef _{name}\()')
    number = "NO_SEED" if seed == NO_SEED else seed
    for module in _MODULES:
        text = module.read_text()
        module.write_text(pattern.sub(rf'\g<1>{number}\g<2>"{check}"\g<3>"{seen}"\g<4>', text))
    RULES[name] = RULES[name]._replace(seed=seed, check=check, seen=seen)


def _write_tables() -> None:
    for rows in (table(), kafka_history.table()):
        text = DOCUMENT.read_text()
        start = text.index(rows.split("\n", 1)[0])
        end = text.index("\n\n", start) + 1
        DOCUMENT.write_text(text[:start] + rows + text[end:])


def games_of_holes() -> list[Game]:
    """Those that detect the holes, which the corpus keeps if their options are not drawn."""
    rules = [rule for name, rule in RULES.items() if re.match(r"b\d_", name) and rule.seed != NO_SEED]
    return [Game(rule.scenario, rule.seed, rule.options) for rule in rules]


def _write_corpus() -> None:
    """Entries without triples of their own are the games of the holes, and come first."""
    games = [game for game in games_of_holes() if game.overrides]
    found = [entry for entry in load(CORPUS) if entry.first]
    save(CORPUS, [*(CorpusEntry(game, frozenset()) for game in games), *found])


def main(wanted: list[str]) -> None:
    """The command; see the module."""
    names = [name for name in RULES if wanted == ["all"] or name.startswith(tuple(wanted) or ("-",))]
    for name in names:
        known = RULES[name].seed
        seeds = [known] if known != NO_SEED else []
        seed, failure = first_that_detects(name, [*seeds, *(each for each in range(SEEDS) if each != known)])
        today = datetime.now(UTC).date().isoformat()
        _write(name, seed, check_of(failure) if failure else "", today if failure else "")
        print(f"{name}: {seed} {failure[:200]}", flush=True)
        _write_tables()
        _write_corpus()
    if not names:
        print(table())


if __name__ == "__main__":
    main(sys.argv[1:])
