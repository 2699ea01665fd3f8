"""The corpus and the search: the file, which games are kept, and the corpus of this repository."""

from __future__ import annotations

from pathlib import Path

import pytest

from fenceline.testing.simulation import coverage_table
from fenceline.testing.simulation import search as search_module
from fenceline.testing.simulation.corpus import CorpusEntry, load, save
from fenceline.testing.simulation.coverage import Triple
from fenceline.testing.simulation.operations import Fault, Operation
from fenceline.testing.simulation.options import Options
from fenceline.testing.simulation.search import FAULT_OPTIONS, LIKELY, Search
from fenceline.testing.simulation.stage import SCENARIOS, SeedOutcome, options_of
from fenceline.testing.simulation.workers import Game
from tests.simulation.rules_table import CORPUS, games_of_holes

GAMES = games_of_holes()
SEEDS = 2_000
"""Of each scenario, as the Makefile has it."""
_GAME = Game("operations", 7, {"crash_s": "0.5", "operations": "delete records,reassign"})
_LAG = Triple("replica", "leader", "produce", "lag")
_MET = frozenset(
    {
        Triple("log", "dirty", "delete records", "kill"),
        Triple("log", "rebased", "delete records", "kill"),
        Triple("replica", "leader", "delete records", "kill"),
        _LAG,
    }
)


def test_a_corpus_is_read_as_it_was_written(tmp_path: Path) -> None:
    path, entries = (
        tmp_path / "corpus.txt",
        [CorpusEntry(_GAME, _MET), CorpusEntry(Game("operations", 8, {}), frozenset())],
    )
    save(path, entries)
    assert load(path) == entries
    assert "  delete records, kill: log dirty rebased; replica leader\n" in path.read_text()


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("  produce, kill: log dirty\n", "line 1: this line follows no game"),
        ("operations 1\n  produce, kill: log muddy\n", "line 2: 'log muddy' is not a component with its states"),
        ("operations one\n", "line 1: invalid literal"),
    ],
)
def test_a_damaged_corpus_is_rejected(tmp_path: Path, text: str, wrong: str) -> None:
    path = tmp_path / "corpus.txt"
    path.write_text(text)
    with pytest.raises(ValueError, match=wrong):
        load(path)


def test_a_missing_corpus_is_empty(tmp_path: Path) -> None:
    assert load(tmp_path / "corpus.txt") == []


def test_the_search_keeps_games_with_new_triples(tmp_path: Path) -> None:
    path = tmp_path / "corpus.txt"
    search = Search(path, 5)
    search._add(_GAME, _MET)
    search._add(Game("operations", 9, {}), _MET)
    assert load(path) == [CorpusEntry(_GAME, _MET)]
    assert search.reached == _MET


def test_a_game_that_fails_is_no_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a finding: as an entry it would fail again in every run until it is repaired."""
    failures = [None, "InvariantBroken: rest"]
    monkeypatch.setattr(
        search_module,
        "played",
        lambda games, workers, ahead: (
            SeedOutcome(game.seed, game.scenario, Options(), failure=failures.pop(), triples=dict.fromkeys(_MET, 1))
            for game in games
        ),
    )
    search = Search(tmp_path / "corpus.txt", 5)
    search.run(1, lambda: not failures, lambda outcome: None)
    assert [entry.game.seed for entry in load(tmp_path / "corpus.txt")] == [7]


def test_a_replayed_corpus_keeps_the_games_that_reach_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It also keeps games that have another reason."""
    produce, lag = _MET - {_LAG}, {_LAG}
    met = {1: set(), 2: lag, 3: produce, 4: _MET, 5: set()}
    games = {seed: Game("operations", seed, {}) for seed in met}
    outcomes = [
        SeedOutcome(seed, "operations", Options(), triples=dict.fromkeys(triples, 1)) for seed, triples in met.items()
    ]
    monkeypatch.setattr(search_module, "played", lambda games, workers: (each for each in outcomes))
    path = tmp_path / "corpus.txt"
    save(
        path,
        [CorpusEntry(games[1], frozenset()), *(CorpusEntry(games[seed], frozenset({_LAG})) for seed in (2, 3, 4, 5))],
    )
    Search(path, 5).replay(1, lambda outcome: None)
    assert load(path) == [CorpusEntry(games[1], frozenset()), CorpusEntry(games[4], _MET)]


def test_the_search_is_deterministic() -> None:
    """Also, the scenario of each game has the drawn options."""
    games = [[search._next() for _ in range(30)] for search in (Search(Path("/none"), 5), Search(Path("/none"), 5))]
    assert games[0] == games[1]
    for game in games[0]:
        options_of(game.seed, game.scenario, game.overrides)


def test_each_fault_has_options_that_make_it_frequent() -> None:
    assert set(FAULT_OPTIONS) == set(Fault)


def test_each_likely_state_exists_and_has_known_options() -> None:
    states = {f"{room} {state}" for room, labels in coverage_table.STATES.items() for state in labels}
    assert set(LIKELY) <= states
    for options in (*LIKELY.values(), *FAULT_OPTIONS.values()):
        for name, values in options.items():
            for value in values:
                Options().with_text({name: value})


def test_the_table_lists_missing_triples() -> None:
    everything = coverage_table.wanted()
    missing = {
        Triple("log", "cutting", operation.value, fault.value)
        for operation in Operation
        if operation is not Operation.PRODUCE
        for fault in (Fault.LAG, Fault.PAUSE)
    } | {Triple("log", "dirty", Operation.RETENTION.value, Fault.KILL.value)}
    table = coverage_table.unreached(everything - missing).splitlines()
    assert "  log dirty, kill: retention" in table
    assert "  log cutting, pause, lag: all but produce" in table
    rows = {line[:15].strip(): line.split() for line in table if line.startswith("  ") and ":" not in line}
    assert rows["log dirty"].count("1") == 2
    assert rows["log cutting"].count("24") == 2
    assert rows["sum"][-1] == "49"
    assert "49 not" in table[-1]
    assert "  31 of them: no known reason, search for games" in table
    assert sum(int(line.split()[0]) for line in table if " of them: " in line) == 49
    assert len(coverage_table.unreached(everything).splitlines()) == 1
    assert len(list(coverage_table.every())) == len(Operation) * len(Fault) * sum(
        len(labels) for labels in coverage_table.STATES.values()
    )


def test_unreachable_triples_have_a_reason() -> None:
    for reason in coverage_table.REASONS:
        covered = [triple for triple in coverage_table.every() if reason.covers(triple)]
        assert covered
        assert reason.why.endswith(".")
        assert not coverage_table.wanted().intersection(covered)


def test_the_corpus_of_this_repository_can_be_played() -> None:
    """Each entry is a game with valid options of its scenario, and reaches at least one triple first."""
    reached: set[Triple] = set()
    for entry in load(CORPUS):
        assert entry.game.scenario in SCENARIOS
        options_of(entry.game.seed, entry.game.scenario, entry.game.overrides)
        assert entry.first or entry.game in GAMES
        assert not entry.first & reached
        reached |= entry.first
    assert reached <= coverage_table.wanted()
    for triple in coverage_table.wanted() - reached:
        assert coverage_table.rare_because(triple), f"{triple} is in no game, and has no documented reason"


def test_make_simulate_runs_the_games_that_detect_the_holes() -> None:
    """Games with options that are not drawn are in the corpus; the others are among the first seeds."""
    played = [entry.game for entry in load(CORPUS)]
    assert [game for game in GAMES if game.overrides and game not in played] == []
    assert [game for game in GAMES if not game.overrides and game.seed >= SEEDS] == []
