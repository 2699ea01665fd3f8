"""The automaton of a regular expression: states that are tracked in parallel, and how they are combined.

Owns the NFA and its size. Never knows a language: `regex.parser` defines the parts, `regex.search` runs it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

MAX_STATES: Final = 20_000
"""Of the NFA: a larger expression is rejected."""


class InvalidRegex(Exception):
    """The expression cannot be parsed, or is too large; the message is RE2's description."""


@dataclass(slots=True)
class AutomatonState:
    """A state of the NFA. It consumes a character, or continues without one."""

    characters: frozenset[int] | None = None
    next_state: int = -1
    splits: list[int] = field(default_factory=list)
    condition: str = ""
    """Condition to continue: `^`, `$`, `b` or `B` as in the syntax, `line start` or `line end`."""


@dataclass(frozen=True, slots=True)
class Automaton:
    """An NFA with one entry and one exit."""

    states: list[AutomatonState]
    start: int
    end: int


@dataclass(slots=True)
class _Piece:
    """A part of the NFA with one entry and one exit."""

    start: int
    end: int


Part: TypeAlias = Callable[[], _Piece]
"""Creates the states of a part of the expression on each call: a repeated part has several copies."""


class AutomatonBuilder:
    """Of one expression. No states exist before `build`, which raises InvalidRegex if there are too many."""

    def __init__(self) -> None:
        self._states: list[AutomatonState] = []

    def build(self, expression: Part) -> Automaton:
        piece = expression()
        return Automaton(self._states, piece.start, piece.end)

    def character(self, characters: frozenset[int]) -> Part:
        """One character of these."""

        def build() -> _Piece:
            end = self._new(AutomatonState())
            return _Piece(self._new(AutomatonState(characters=characters, next_state=end)), end)

        return build

    def empty(self, condition: str = "") -> Part:
        """The empty string, if the condition of a `AutomatonState` holds."""

        def build() -> _Piece:
            end = self._new(AutomatonState())
            return _Piece(self._new(AutomatonState(splits=[end], condition=condition)), end)

        return build

    def sequence(self, parts: list[Part]) -> Part:
        """The parts in sequence."""

        def build() -> _Piece:
            if not parts:
                return self.empty()()
            joined = parts[0]()
            for part in parts[1:]:
                after = part()
                self._states[joined.end].splits.append(after.start)
                joined = _Piece(joined.start, after.end)
            return joined

        return build

    def choice(self, parts: list[Part]) -> Part:
        """Any one of the parts."""

        def build() -> _Piece:
            end = self._new(AutomatonState())
            start = self._new(AutomatonState())
            for part in parts:
                piece = part()
                self._states[start].splits.append(piece.start)
                self._states[piece.end].splits.append(end)
            return _Piece(start, end)

        return parts[0] if len(parts) == 1 else build

    def repeat(self, part: Part, least: int, most: int | None) -> Part:
        """`least` to `most` repetitions; None for no limit."""

        def build() -> _Piece:
            start = self._new(AutomatonState())
            at = start
            for _ in range(least):
                piece = part()
                self._states[at].splits.append(piece.start)
                at = piece.end
            end = self._new(AutomatonState())
            if most is None:
                loop = self._new(AutomatonState())
                self._states[at].splits.append(loop)
                piece = part()
                self._states[loop].splits += [piece.start, end]
                self._states[piece.end].splits.append(loop)
            else:
                for _ in range(most - least):
                    piece = part()
                    self._states[at].splits += [piece.start, end]
                    at = piece.end
                self._states[at].splits.append(end)
            return _Piece(start, end)

        return build

    def _new(self, state: AutomatonState) -> int:
        if len(self._states) >= MAX_STATES:
            raise InvalidRegex("expression too large")
        self._states.append(state)
        return len(self._states) - 1
