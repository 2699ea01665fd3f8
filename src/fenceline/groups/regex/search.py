"""Regular expressions in subscriptions (KIP-1043), matched in time linear in the name.

Owns the matcher. The coordinator matches a client's expression against every topic, on its event loop: a backtracking
engine, as Python's `re`, could take minutes for a short expression. This one tracks all states at once (a lazily built
DFA over an NFA), so a topic needs one step per character. An expression must match the complete name; captures are
ignored.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from fenceline.groups.regex.characters import WORD
from fenceline.groups.regex.parser import parse

MAX_CACHED_STATES: Final = 20_000
"""NFA states in all DFA states together: the cache is cleared above this."""
MAX_EXPRESSIONS: Final = 16
"""Number of cached expressions; others are parsed again when needed."""


class TopicRegex:
    """One expression, ready to match names."""

    __slots__ = ("_cached_count", "_end", "_next", "_start", "_states")

    def __init__(self, pattern: str) -> None:
        read = parse(pattern)
        self._states, self._start, self._end = read.states, read.start, read.end
        self._next: dict[tuple[frozenset[int], str, str], frozenset[int]] = {}
        self._cached_count = 0

    def matches(self, name: str) -> bool:
        """Whether the complete name matches."""
        current = frozenset([self._start])
        before = ""
        for char in name:
            current = self._step(current, before, char)
            if not current:
                return False
            before = char
        return self._end in self._closure(current, before, "")

    def _step(self, current: frozenset[int], before: str, char: str) -> frozenset[int]:
        key = (current, before, char)
        known = self._next.get(key)
        if known is None:
            code = ord(char)
            known = frozenset(
                self._states[index].next_state
                for index in self._closure(current, before, char)
                if (characters := self._states[index].characters) is not None and code in characters
            )
            if self._cached_count >= MAX_CACHED_STATES:
                self._next.clear()
                self._cached_count = 0
            self._next[key] = known
            self._cached_count += 1 + len(known)
        return known

    def _closure(self, current: frozenset[int], before: str, after: str) -> set[int]:
        """All states reachable without consuming a character, between these two ("" for the name's ends)."""
        seen = set(current)
        todo = list(current)
        while todo:
            state = self._states[todo.pop()]
            if state.condition and not _holds(state.condition, before, after):
                continue
            for index in state.splits:
                if index not in seen:
                    seen.add(index)
                    todo.append(index)
        return seen


def _holds(condition: str, before: str, after: str) -> bool:
    match condition:
        case "^":
            return not before
        case "$":
            return not after
        case "line start":
            return not before or before == "\n"
        case "line end":
            return not after or after == "\n"
        case _:
            at_boundary = _is_word(before) != _is_word(after)
            return at_boundary if condition == "b" else not at_boundary


def _is_word(char: str) -> bool:
    return bool(char) and ord(char) in WORD


@lru_cache(maxsize=MAX_EXPRESSIONS)
def topic_regex(pattern: str) -> TopicRegex:
    """The expression, ready to match. Raises InvalidRegex."""
    return TopicRegex(pattern)
