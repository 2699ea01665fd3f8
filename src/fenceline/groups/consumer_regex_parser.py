"""Regular expressions in RE2's language, read into an automaton. Owns the language; who matches is `consumer_regex`.

What RE2 has and this has: literals, `.`, classes (also `[:alpha:]`, `\\d \\s \\w` and their opposites), groups with and
without names, `|`, `* + ? {n,m}` greedy or not, `^ $ \\A \\z \\b \\B`, flags `i m s U`, `\\Q...\\E`, escapes. Unicode
classes (`\\pL`) are refused: a topic's name is ASCII. References and look-around are in neither.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, TypeAlias

MAX_REPEAT: Final = 1000
MAX_STATES: Final = 20_000
"""Of the NFA: an expression that needs more is refused."""
MAX_NESTING: Final = 100
"""Of groups in groups."""
_MAX_CODE: Final = 0x10FFFF


class InvalidRegex(Exception):
    """The expression can not be read; the message is RE2's description."""


_ASCII: Final = frozenset(range(128))
WORD: Final = frozenset(map(ord, string.ascii_letters + string.digits + "_"))
_PERL: Final = {
    "d": frozenset(map(ord, string.digits)),
    "s": frozenset(map(ord, "\t\n\f\r ")),
    "w": WORD,
}
_POSIX: Final = {
    "alnum": frozenset(map(ord, string.ascii_letters + string.digits)),
    "alpha": frozenset(map(ord, string.ascii_letters)),
    "ascii": _ASCII,
    "blank": frozenset(map(ord, "\t ")),
    "cntrl": frozenset([*range(32), 127]),
    "digit": _PERL["d"],
    "graph": frozenset(range(33, 127)),
    "lower": frozenset(map(ord, string.ascii_lowercase)),
    "print": frozenset(range(32, 127)),
    "punct": frozenset(map(ord, string.punctuation)),
    "space": frozenset(map(ord, "\t\n\v\f\r ")),
    "upper": frozenset(map(ord, string.ascii_uppercase)),
    "word": WORD,
    "xdigit": frozenset(map(ord, string.hexdigits)),
}
_ESCAPES: Final = {"a": 7, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11}


# --- the NFA ----------------------------------------


@dataclass(slots=True)
class State:
    """Where one can be. Either it takes a character, or it goes on without one."""

    takes: frozenset[int] | None = None
    goes_to: int = -1
    splits: list[int] = field(default_factory=list)
    condition: str = ""
    """`^`, `$`, `b` or `B`: what has to hold to go on."""


@dataclass(slots=True)
class _Piece:
    """A part of the NFA with one way in and one way out."""

    start: int
    end: int


_Build: TypeAlias = Callable[[], _Piece]


class _Parser:
    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0
        self._names: set[str] = set()
        self._depth = 0
        self.states: list[State] = []

    def parse(self) -> _Piece:
        build = self._alternatives("")
        if self._at < len(self._pattern):
            # RE2 says of a closing parenthesis too many what it says of one too few.
            raise InvalidRegex("unexpected )")
        return build()

    # --- building ----------------------------------------

    def _new(self, state: State) -> int:
        if len(self.states) >= MAX_STATES:
            raise InvalidRegex("expression too large")
        self.states.append(state)
        return len(self.states) - 1

    def _character(self, takes: frozenset[int] | None) -> _Build:
        def build() -> _Piece:
            end = self._new(State())
            return _Piece(self._new(State(takes=_ASCII if takes is None else takes, goes_to=end)), end)

        return build

    def _empty(self, condition: str = "") -> _Build:
        def build() -> _Piece:
            end = self._new(State())
            return _Piece(self._new(State(splits=[end], condition=condition)), end)

        return build

    def _sequence(self, parts: list[_Build]) -> _Build:
        def build() -> _Piece:
            if not parts:
                return self._empty()()
            whole = parts[0]()
            for part in parts[1:]:
                after = part()
                self.states[whole.end].splits.append(after.start)
                whole = _Piece(whole.start, after.end)
            return whole

        return build

    def _choice(self, parts: list[_Build]) -> _Build:
        def build() -> _Piece:
            end = self._new(State())
            start = self._new(State())
            for part in parts:
                piece = part()
                self.states[start].splits.append(piece.start)
                self.states[piece.end].splits.append(end)
            return _Piece(start, end)

        return parts[0] if len(parts) == 1 else build

    def _repeat(self, part: _Build, least: int, most: int | None) -> _Build:
        def build() -> _Piece:
            start = self._new(State())
            at = start
            for _ in range(least):
                piece = part()
                self.states[at].splits.append(piece.start)
                at = piece.end
            end = self._new(State())
            if most is None:
                loop = self._new(State())
                self.states[at].splits.append(loop)
                piece = part()
                self.states[loop].splits += [piece.start, end]
                self.states[piece.end].splits.append(loop)
            else:
                for _ in range(most - least):
                    piece = part()
                    self.states[at].splits += [piece.start, end]
                    at = piece.end
                self.states[at].splits.append(end)
            return _Piece(start, end)

        return build

    # --- reading ----------------------------------------

    def _peek(self) -> str:
        return self._pattern[self._at : self._at + 1]

    def _alternatives(self, flags: str) -> _Build:
        parts: list[_Build] = []
        flags_here = [flags]
        while True:
            parts.append(self._sequence(list(self._terms(flags_here))))
            if self._peek() != "|":
                return self._choice(parts)
            self._at += 1

    def _terms(self, flags: list[str]) -> Iterator[_Build]:
        """The parts of one alternative. `flags[0]` is what holds from here on, also for the next alternatives."""
        while (char := self._peek()) and char not in "|)":
            if char in "*+?":
                raise InvalidRegex("missing argument to repetition operator")
            self._at += 1
            if char == "(":
                term = self._group(flags)
                if term is None:
                    continue
            elif self._pattern.startswith("\\Q", self._at - 1):
                yield from self._quoted(flags[0])
                continue
            else:
                term = self._atom(char, flags[0])
            yield self._repeated(term)

    def _repeated(self, term: _Build) -> _Build:
        is_repeated = False
        while True:
            bounds = self._bounds()
            if bounds is None:
                return term
            if is_repeated:
                raise InvalidRegex("invalid nested repetition operator")
            least, most = bounds
            term = self._repeat(term, least, most)
            is_repeated = True
            if self._peek() == "?":
                self._at += 1

    def _bounds(self) -> tuple[int, int | None] | None:
        char = self._peek()
        simple = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(char)
        if simple is not None:
            self._at += 1
            return simple
        if char != "{":
            return None
        close = self._pattern.find("}", self._at)
        least_text, comma, most_text = self._pattern[self._at + 1 : max(close, 0)].partition(",")
        if close < 0 or not _is_number(least_text) or (most_text and not _is_number(most_text)):
            return None  # a brace that counts nothing stands for itself
        least = int(least_text)
        most = least if not comma else int(most_text) if most_text else None
        if least > MAX_REPEAT or (most is not None and (most > MAX_REPEAT or most < least)):
            raise InvalidRegex("invalid repeat count")
        self._at = close + 1
        return least, most

    def _group(self, flags: list[str]) -> _Build | None:
        """Behind an opening parenthesis. None where it only sets flags."""
        inner = flags[0]
        if self._peek() == "?":
            if self._pattern.startswith(("?P<", "?<"), self._at) and not self._pattern.startswith(
                ("?<=", "?<!"), self._at
            ):
                self._name()
            else:
                read = self._flags(inner)
                if self._peek() == ")":
                    self._at += 1
                    flags[0] = read
                    return None
                self._at += 1
                inner = read
        self._depth += 1
        if self._depth > MAX_NESTING:
            raise InvalidRegex("expression nests too deeply")
        build = self._alternatives(inner)
        self._depth -= 1
        if self._peek() != ")":
            raise InvalidRegex("missing closing )")
        self._at += 1
        return build

    def _name(self) -> None:
        begin = self._pattern.index("<", self._at) + 1
        end = self._pattern.find(">", begin)
        name = self._pattern[begin:end] if end >= 0 else ""
        if not name or not all(char.isalnum() or char == "_" for char in name):
            raise InvalidRegex("invalid named capture")
        if name in self._names:
            raise InvalidRegex("duplicate capture group name")
        self._names.add(name)
        self._at = end + 1

    def _flags(self, flags: str) -> str:
        """Of `(?flags)` or `(?flags:`; leaves the position at the closing mark."""
        at = self._at + 1
        is_on, saw = True, False
        for position in range(at, len(self._pattern)):
            char = self._pattern[position]
            if char in "imsU":
                saw = True
                flags = (flags.replace(char, "") + char) if is_on else flags.replace(char, "")
            elif char == "-" and is_on:
                is_on, saw = False, False
            elif char in ":)" and (is_on or saw):
                self._at = position
                return flags
            else:
                break
        raise InvalidRegex("missing closing )" if self._pattern[at:] == "" else "invalid or unsupported Perl syntax")

    def _quoted(self, flags: str) -> Iterator[_Build]:
        begin = self._at + 1
        end = self._pattern.find("\\E", begin)
        text = self._pattern[begin:] if end < 0 else self._pattern[begin:end]
        self._at = len(self._pattern) if end < 0 else end + 2
        parts = [self._character(_folded(frozenset([ord(char)]), flags)) for char in text]
        yield from parts[:-1]
        if parts:
            yield self._repeated(parts[-1])

    def _atom(self, char: str, flags: str) -> _Build:
        match char:
            case ".":
                return self._character(_ASCII if "s" in flags else _ASCII - {10})
            case "^":
                return self._empty("^" if "m" not in flags else "line start")
            case "$":
                return self._empty("$" if "m" not in flags else "line end")
            case "[":
                return self._character(self._class(flags))
            case "\\":
                return self._escape(flags)
            case _:
                return self._character(_folded(frozenset([ord(char)]), flags))

    def _escape(self, flags: str) -> _Build:
        char = self._peek()
        if not char:
            raise InvalidRegex("trailing backslash at end of expression")
        conditions = {"A": "^", "z": "$", "b": "b", "B": "B"}
        if char in conditions:
            self._at += 1
            return self._empty(conditions[char])
        return self._character(_folded(self._escaped_set(), flags))

    def _escaped_set(self) -> frozenset[int]:
        """Behind a backslash: one character, or a class."""
        char = self._peek()
        if not char:
            raise InvalidRegex("trailing backslash at end of expression")
        if char.lower() in _PERL:
            self._at += 1
            known = _PERL[char.lower()]
            return known if char.islower() else _ASCII - known
        if char in "pP":
            raise InvalidRegex("invalid character class range")
        return frozenset([self._escaped_char()])

    def _escaped_char(self) -> int:
        char = self._peek()
        if not char:
            raise InvalidRegex("trailing backslash at end of expression")
        self._at += 1
        if char in _ESCAPES:
            return _ESCAPES[char]
        if char == "x":
            return self._hex()
        if char == "0" or (char in "1234567" and self._peek() != "" and self._peek() in "01234567"):
            digits = char
            while len(digits) < 3 and self._peek() and self._peek() in "01234567":
                digits += self._peek()
                self._at += 1
            return int(digits, 8)
        if char.isascii() and not char.isalnum():
            return ord(char)
        raise InvalidRegex("invalid escape sequence")

    def _hex(self) -> int:
        if self._peek() == "{":
            close = self._pattern.find("}", self._at)
            digits, after = self._pattern[self._at + 1 : max(close, 0)], close + 1
        else:
            digits, after = self._pattern[self._at : self._at + 2], self._at + 2
            if len(digits) < 2:
                raise InvalidRegex("invalid escape sequence")
        if not digits or any(digit not in string.hexdigits for digit in digits) or int(digits, 16) > _MAX_CODE:
            raise InvalidRegex("invalid escape sequence")
        self._at = after
        return int(digits, 16)

    def _class(self, flags: str) -> frozenset[int]:
        """Behind an opening bracket."""
        taken: set[int] = set()
        is_negated = self._peek() == "^"
        self._at += is_negated
        is_first = True
        while self._peek() != "]" or is_first:
            if not self._peek():
                raise InvalidRegex("missing closing ]")
            if self._pattern.startswith("[:", self._at):
                end = self._pattern.find(":]", self._at)
                if end >= 0:
                    taken |= self._posix(self._pattern[self._at + 2 : end])
                    self._at = end + 2
                    is_first = False
                    continue
            is_first = False
            begin = self._at
            low = self._class_member()
            if not isinstance(low, int):
                taken |= low
            elif self._peek() == "-" and self._pattern[self._at + 1 : self._at + 2] not in ("]", ""):
                self._at += 1
                high = self._class_member()
                if not isinstance(high, int) or high < low:
                    raise InvalidRegex("invalid character class range")
                taken.update(range(low, min(high, 127) + 1))
            else:
                taken.add(low)
            assert self._at > begin, "it goes on"
        self._at += 1
        folded = _folded(frozenset(taken), flags)
        return _ASCII - folded if is_negated else folded

    def _class_member(self) -> int | frozenset[int]:
        char = self._peek()
        if not char:
            raise InvalidRegex("missing closing ]")
        self._at += 1
        if char != "\\":
            return ord(char)
        if self._peek().lower() in _PERL and self._peek():
            return self._escaped_set()
        if self._peek() and self._peek() in "pP":
            raise InvalidRegex("invalid character class range")
        return self._escaped_char()

    @staticmethod
    def _posix(name: str) -> frozenset[int]:
        known = _POSIX.get(name.removeprefix("^"))
        if known is None:
            raise InvalidRegex("invalid character class range")
        return _ASCII - known if name.startswith("^") else known


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and (text == "0" or not text.startswith("0"))


def _folded(taken: frozenset[int], flags: str) -> frozenset[int]:
    if "i" not in flags:
        return taken
    both = {ord(case) for code in taken if code < 128 for case in (chr(code).lower(), chr(code).upper())}
    return frozenset(both) | taken


@dataclass(frozen=True, slots=True)
class Automaton:
    """An NFA: one way in, one way out."""

    states: list[State]
    start: int
    end: int


def parse(pattern: str) -> Automaton:
    """Raises InvalidRegex."""
    parser = _Parser(pattern)
    whole = parser.parse()
    return Automaton(parser.states, whole.start, whole.end)
