"""The automaton of a regular expression: states that are all tried at once, and how they are put together.

Owns the NFA and its size. Never knows a language: `consumer_regex_parser` says which parts there are, `consumer_regex`
walks over them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

MAX_STATES: Final = 20_000
"""Of the NFA: an expression that needs more is refused."""


class InvalidRegex(Exception):
    """The expression can not be read, or is too large; the message is RE2's description."""


@dataclass(slots=True)
class State:
    """Where one can be. Either it takes a character, or it goes on without one."""

    takes: frozenset[int] | None = None
    goes_to: int = -1
    splits: list[int] = field(default_factory=list)
    condition: str = ""
    """What has to hold to go on: `^`, `$`, `b` or `B` as they are written, `line start` or `line end`."""


@dataclass(frozen=True, slots=True)
class Automaton:
    """An NFA: one way in, one way out."""

    states: list[State]
    start: int
    end: int


@dataclass(slots=True)
class _Piece:
    """A part of the NFA with one way in and one way out."""

    start: int
    end: int


Part: TypeAlias = Callable[[], _Piece]
"""Makes the states of a part of the expression, anew each time: a repeated part is there several times."""


class AutomatonBuilder:
    """Of one expression. Nothing has states before `build`, which raises InvalidRegex where they are too many."""

    def __init__(self) -> None:
        self._states: list[State] = []

    def build(self, whole: Part) -> Automaton:
        piece = whole()
        return Automaton(self._states, piece.start, piece.end)

    def character(self, takes: frozenset[int]) -> Part:
        """One character of these."""

        def build() -> _Piece:
            end = self._new(State())
            return _Piece(self._new(State(takes=takes, goes_to=end)), end)

        return build

    def empty(self, condition: str = "") -> Part:
        """Nothing, where the condition of a `State` holds."""

        def build() -> _Piece:
            end = self._new(State())
            return _Piece(self._new(State(splits=[end], condition=condition)), end)

        return build

    def sequence(self, parts: list[Part]) -> Part:
        """One after the other."""

        def build() -> _Piece:
            if not parts:
                return self.empty()()
            whole = parts[0]()
            for part in parts[1:]:
                after = part()
                self._states[whole.end].splits.append(after.start)
                whole = _Piece(whole.start, after.end)
            return whole

        return build

    def choice(self, parts: list[Part]) -> Part:
        """Any one of them."""

        def build() -> _Piece:
            end = self._new(State())
            start = self._new(State())
            for part in parts:
                piece = part()
                self._states[start].splits.append(piece.start)
                self._states[piece.end].splits.append(end)
            return _Piece(start, end)

        return parts[0] if len(parts) == 1 else build

    def repeat(self, part: Part, least: int, most: int | None) -> Part:
        """As often as `least` to `most`; None is any number."""

        def build() -> _Piece:
            start = self._new(State())
            at = start
            for _ in range(least):
                piece = part()
                self._states[at].splits.append(piece.start)
                at = piece.end
            end = self._new(State())
            if most is None:
                loop = self._new(State())
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

    def _new(self, state: State) -> int:
        if len(self._states) >= MAX_STATES:
            raise InvalidRegex("expression too large")
        self._states.append(state)
        return len(self._states) - 1
