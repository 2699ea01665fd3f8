"""Regular expressions of subscriptions: those that RE2 accepts, rejects and matches, in bounded time."""

from __future__ import annotations

import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fenceline.groups.regex.automaton import MAX_STATES, InvalidRegex
from fenceline.groups.regex.search import MAX_CACHED_STATES, TopicRegex


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("orders", ["orders"], ["order", "orders2", "my-orders"]),
        ("orders-.*", ["orders-", "orders-eu"], ["orders"]),
        ("a|b|cd", ["a", "b", "cd"], ["c", "ab"]),
        ("(a|b)+c?", ["a", "abab", "abc"], ["c", ""]),
        ("[a-c_]{2,3}", ["ab", "c_a"], ["a", "abca"]),
        ("[^0-9]+", ["abc"], ["a1"]),
        (r"t\d+", ["t0", "t42"], ["t", "tx"]),
        (r"[[:alpha:]]\w*", ["a1", "B_2"], ["1a"]),
        (r"a\.b", ["a.b"], ["axb"]),
        ("(?i)Logs", ["logs", "LOGS"], ["log"]),
        ("(?i:A)b", ["ab", "Ab"], ["aB"]),
        ("(?P<name>x)y", ["xy"], ["x"]),
        ("^abc$", ["abc"], ["abcd"]),
        (r"\Qa.b*\E", ["a.b*"], ["aXb"]),
        ("x{2}", ["xx"], ["x", "xxx"]),
        ("x{,2}", ["x{,2}"], ["x", "xx"]),
        ("", [""], ["a"]),
        ("a*?b+?", ["ab", "b", "aabb"], ["a"]),
        (r"\bfoo\b.*", ["foo", "foo-bar"], ["foobar"]),
        (r"[\d.-]+", ["1.2-3"], ["1a"]),
        ("[]a]+", ["]a"], ["b"]),
        (r"\x41\x{42}", ["AB"], ["ab"]),
    ],
)
def test_matches(pattern: str, matching: list[str], others: list[str]) -> None:
    regex = TopicRegex(pattern)
    assert [name for name in matching if not regex.matches(name)] == []
    assert [name for name in others if regex.matches(name)] == []


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("(", "missing closing )"),
        ("a)", "unexpected )"),
        ("[a", "missing closing ]"),
        ("*a", "missing argument to repetition operator"),
        ("a**", "invalid nested repetition operator"),
        ("a{1001}", "invalid repeat count"),
        ("a{3,2}", "invalid repeat count"),
        ("[b-a]", "invalid character class range"),
        ("a\\", "trailing backslash at end of expression"),
        (r"\y", "invalid escape sequence"),
        (r"(a)\1", "invalid escape sequence"),
        ("(?=a)", "invalid or unsupported Perl syntax"),
        ("(?<!a)b", "invalid or unsupported Perl syntax"),
        ("(?P<a>x)(?P<a>y)", "duplicate capture group name"),
        ("(?P<a", "invalid named capture"),
        (r"\pL", "invalid character class range"),
    ],
)
def test_rejected_expressions(pattern: str, why: str) -> None:
    with pytest.raises(InvalidRegex, match=re.escape(why)):
        TopicRegex(pattern)


def test_exponential_expression_is_matched_quickly() -> None:
    """Python's own engine needs 2^200 steps for this one."""
    assert not TopicRegex("(a+)+b").matches("a" * 200)
    assert not TopicRegex("(a|a)*(a|aa)*c").matches("a" * 249)


def test_expression_above_the_size_limit_is_rejected() -> None:
    with pytest.raises(InvalidRegex):
        TopicRegex("((a{100}){100}){100}")
    with pytest.raises(InvalidRegex):
        TopicRegex("(" * 5_000 + ")" * 5_000)
    assert MAX_STATES < 100_000


def test_match_cache_is_bounded() -> None:
    regex = TopicRegex("(.{0,500}-?){2}")
    for number in range(40):
        regex.matches(f"topic-{number}" * 5)
        assert sum(map(len, regex._next.values())) <= MAX_CACHED_STATES + 2 * len(regex._states)


_atoms = st.sampled_from(["a", "b", "[ab]", "[^a]", ".", "(?:ab)", "c", r"\d", "-"])


@st.composite
def _patterns(draw: st.DrawFn) -> str:
    parts = draw(st.lists(st.tuples(_atoms, st.sampled_from(["", "*", "+", "?", "{2}", "{1,3}"])), max_size=5))
    pattern = "".join(atom + repeat for atom, repeat in parts)
    return f"(?:{pattern})|{draw(_atoms)}" if draw(st.booleans()) else pattern


@given(_patterns(), st.text(alphabet="abc-1" + string.ascii_lowercase[:3], max_size=8))
def test_matching_agrees_with_python_on_the_common_syntax(pattern: str, name: str) -> None:
    assert TopicRegex(pattern).matches(name) == (re.fullmatch(pattern, name) is not None)
