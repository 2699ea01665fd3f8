"""The named character classes of RE2, as sets of codes.

Owns which characters each name stands for. ASCII only, as topic names are; `regex.parser` owns the syntax.
"""

from __future__ import annotations

import string
from typing import Final

ASCII: Final = frozenset(range(128))
WORD: Final = frozenset(map(ord, string.ascii_letters + string.digits + "_"))
PERL: Final = {
    "d": frozenset(map(ord, string.digits)),
    "s": frozenset(map(ord, "\t\n\f\r ")),
    "w": WORD,
}
POSIX: Final = {
    "alnum": frozenset(map(ord, string.ascii_letters + string.digits)),
    "alpha": frozenset(map(ord, string.ascii_letters)),
    "ascii": ASCII,
    "blank": frozenset(map(ord, "\t ")),
    "cntrl": frozenset([*range(32), 127]),
    "digit": PERL["d"],
    "graph": frozenset(range(33, 127)),
    "lower": frozenset(map(ord, string.ascii_lowercase)),
    "print": frozenset(range(32, 127)),
    "punct": frozenset(map(ord, string.punctuation)),
    "space": frozenset(map(ord, "\t\n\v\f\r ")),
    "upper": frozenset(map(ord, string.ascii_uppercase)),
    "word": WORD,
    "xdigit": frozenset(map(ord, string.hexdigits)),
}
ESCAPES: Final = {"a": 7, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11}


def folded(characters: frozenset[int], flags: str) -> frozenset[int]:
    """In both cases, if the flag `i` is set."""
    if "i" not in flags:
        return characters
    both = {ord(case) for code in characters if code < 128 for case in (chr(code).lower(), chr(code).upper())}
    return frozenset(both) | characters
