"""The corpus: seeds and options that reach triples first, in a text file of the repository.

Owns the file format. An entry is one line for the game and one for each pair of an operation and a fault, with the
component states that no earlier entry reaches:

    operations 17 | crash_s=0.5 | operations=delete records
      delete records, kill: log dirty rebased; replica leader

An entry without such lines is kept for another reason, for example a game that detects a broken rule. Lines that begin
with `#` are comments. The triples of an entry were reached when it was found: after a change of the code it may run
differently, and `search` finds new ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fenceline.testing.simulation.coverage import Triple
from fenceline.testing.simulation.coverage_table import grouped, ungrouped
from fenceline.testing.simulation.workers import Game

_HEAD: Final = (
    "# Seeds and options of simulated clusters, and the triples that each reaches first"
    " (`fenceline.testing.simulation.corpus`).\n"
    "# Written by `python -m fenceline.testing.simulation operations --search`.\n"
)


@dataclass(frozen=True, slots=True)
class CorpusEntry:
    """A game, and the triples that it reaches and no earlier entry does."""

    game: Game
    first: frozenset[Triple]


def load(path: Path) -> list[CorpusEntry]:
    """Empty if the file does not exist. Raises ValueError, which names the line."""
    if not path.exists():
        return []
    entries: list[CorpusEntry] = []
    game: Game | None = None
    first: set[Triple] = set()
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            if not line or line.startswith("#"):
                continue
            if not line.startswith(" "):
                if game is not None:
                    entries.append(CorpusEntry(game, frozenset(first)))
                game, first = _game(line), set()
                continue
            if game is None:
                raise ValueError("this line follows no game")
            pair, _, text = line.strip().partition(": ")
            operation, _, fault = pair.partition(", ")
            first.update(ungrouped(operation, fault, text))
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from error
    if game is not None:
        entries.append(CorpusEntry(game, frozenset(first)))
    return entries


def _game(line: str) -> Game:
    head, *options = line.split(" | ")
    scenario, seed = head.split(" ")
    return Game(scenario, int(seed), dict(option.split("=", 1) for option in options))


def save(path: Path, entries: Iterable[CorpusEntry]) -> None:
    """Replaces the file."""
    lines = [_HEAD]
    for entry in entries:
        game = entry.game
        options = [f"{name}={value}" for name, value in game.overrides.items()]
        lines.append(" | ".join([f"{game.scenario} {game.seed}", *options]) + "\n")
        lines += [f"  {operation}, {fault}: {text}\n" for (operation, fault), text in grouped(entry.first).items()]
    path.write_text("".join(lines))
