r"""Parses regular expressions in RE2's syntax into an automaton.

Owns the syntax. Never matches a name (`regex.search` does), and never creates a state (`regex.automaton`).

Supported as in RE2: literals, `.`, classes (also `[:alpha:]`, `\d \s \w` and their negations), groups with and without
names, `|`, `* + ? {n,m}` greedy or not, `^ $ \A \z \b \B`, flags `i m s U`, `\Q...\E`, escapes. Unicode classes (`\pL`)
are rejected: topic names are ASCII. Neither supports backreferences and look-around.
"""

from __future__ import annotations

import string
from collections.abc import Iterator
from typing import Final

from fenceline.groups.regex.automaton import Automaton, AutomatonBuilder, InvalidRegex, Part
from fenceline.groups.regex.characters import ASCII, ESCAPES, PERL, POSIX, folded

MAX_REPEAT: Final = 1000
MAX_NESTING: Final = 100
"""Of nested groups."""
_MAX_CODE: Final = 0x10FFFF


class _Parser:
    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0
        self._names: set[str] = set()
        self._depth = 0
        self._builder = AutomatonBuilder()

    def parse(self) -> Automaton:
        expression = self._alternatives("")
        if self._at < len(self._pattern):
            # RE2 reports a surplus closing parenthesis like a missing one.
            raise InvalidRegex("unexpected )")
        return self._builder.build(expression)

    def _peek(self) -> str:
        return self._pattern[self._at : self._at + 1]

    def _alternatives(self, flags: str) -> Part:
        parts: list[Part] = []
        flags_here = [flags]
        while True:
            parts.append(self._builder.sequence(list(self._terms(flags_here))))
            if self._peek() != "|":
                return self._builder.choice(parts)
            self._at += 1

    def _terms(self, flags: list[str]) -> Iterator[Part]:
        """The parts of one alternative. `flags[0]` holds the current flags, also for the next alternatives."""
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

    def _repeated(self, term: Part) -> Part:
        is_repeated = False
        while True:
            bounds = self._bounds()
            if bounds is None:
                return term
            if is_repeated:
                raise InvalidRegex("invalid nested repetition operator")
            least, most = bounds
            term = self._builder.repeat(term, least, most)
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
            return None  # a brace without a count is a literal
        least = int(least_text)
        most = least if not comma else int(most_text) if most_text else None
        if least > MAX_REPEAT or (most is not None and (most > MAX_REPEAT or most < least)):
            raise InvalidRegex("invalid repeat count")
        self._at = close + 1
        return least, most

    def _group(self, flags: list[str]) -> Part | None:
        """After an opening parenthesis. None if it only sets flags."""
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
        """Of `(?flags)` or `(?flags:`; leaves the position at the closing character."""
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

    def _quoted(self, flags: str) -> Iterator[Part]:
        begin = self._at + 1
        end = self._pattern.find("\\E", begin)
        text = self._pattern[begin:] if end < 0 else self._pattern[begin:end]
        self._at = len(self._pattern) if end < 0 else end + 2
        parts = [self._builder.character(folded(frozenset([ord(char)]), flags)) for char in text]
        yield from parts[:-1]
        if parts:
            yield self._repeated(parts[-1])

    def _atom(self, char: str, flags: str) -> Part:
        match char:
            case ".":
                return self._builder.character(ASCII if "s" in flags else ASCII - {10})
            case "^":
                return self._builder.empty("^" if "m" not in flags else "line start")
            case "$":
                return self._builder.empty("$" if "m" not in flags else "line end")
            case "[":
                return self._builder.character(self._class(flags))
            case "\\":
                return self._escape(flags)
            case _:
                return self._builder.character(folded(frozenset([ord(char)]), flags))

    def _escape(self, flags: str) -> Part:
        char = self._peek()
        if not char:
            raise InvalidRegex("trailing backslash at end of expression")
        conditions = {"A": "^", "z": "$", "b": "b", "B": "B"}
        if char in conditions:
            self._at += 1
            return self._builder.empty(conditions[char])
        return self._builder.character(folded(self._escaped_set(), flags))

    def _escaped_set(self) -> frozenset[int]:
        """After a backslash: one character, or a class."""
        char = self._peek()
        if not char:
            raise InvalidRegex("trailing backslash at end of expression")
        if char.lower() in PERL:
            self._at += 1
            known = PERL[char.lower()]
            return known if char.islower() else ASCII - known
        if char in "pP":
            raise InvalidRegex("invalid character class range")
        return frozenset([self._escaped_char()])

    def _escaped_char(self) -> int:
        char = self._peek()
        if not char:
            raise InvalidRegex("trailing backslash at end of expression")
        self._at += 1
        if char in ESCAPES:
            return ESCAPES[char]
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
        """After an opening bracket."""
        characters: set[int] = set()
        is_negated = self._peek() == "^"
        self._at += is_negated
        is_first = True
        while self._peek() != "]" or is_first:
            if not self._peek():
                raise InvalidRegex("missing closing ]")
            if self._pattern.startswith("[:", self._at):
                end = self._pattern.find(":]", self._at)
                if end >= 0:
                    characters |= self._posix(self._pattern[self._at + 2 : end])
                    self._at = end + 2
                    is_first = False
                    continue
            is_first = False
            begin = self._at
            low = self._class_member()
            if not isinstance(low, int):
                characters |= low
            elif self._peek() == "-" and self._pattern[self._at + 1 : self._at + 2] not in ("]", ""):
                self._at += 1
                high = self._class_member()
                if not isinstance(high, int) or high < low:
                    raise InvalidRegex("invalid character class range")
                characters.update(range(low, min(high, 127) + 1))
            else:
                characters.add(low)
            assert self._at > begin, "the class is not closed"
        self._at += 1
        both = folded(frozenset(characters), flags)
        return ASCII - both if is_negated else both

    def _class_member(self) -> int | frozenset[int]:
        char = self._peek()
        if not char:
            raise InvalidRegex("missing closing ]")
        self._at += 1
        if char != "\\":
            return ord(char)
        if self._peek().lower() in PERL and self._peek():
            return self._escaped_set()
        if self._peek() and self._peek() in "pP":
            raise InvalidRegex("invalid character class range")
        return self._escaped_char()

    @staticmethod
    def _posix(name: str) -> frozenset[int]:
        known = POSIX.get(name.removeprefix("^"))
        if known is None:
            raise InvalidRegex("invalid character class range")
        return ASCII - known if name.startswith("^") else known


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and (text == "0" or not text.startswith("0"))


def parse(pattern: str) -> Automaton:
    """Raises InvalidRegex."""
    return _Parser(pattern).parse()
