"""The rules that map the name in a certificate to that of a user.

Owns the syntax of `ssl.principal.mapping.rules`. Rules: security.md A7, A8.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from fenceline.errors import OperatorError


class NameRule(NamedTuple):
    """A rule of `ssl.principal.mapping.rules`. `pattern` None: the whole name is the user's (DEFAULT)."""

    pattern: re.Pattern[str] | None
    replacement: str = ""
    letter_case: str = ""
    """`L` for lower case, `U` for upper case."""


def parse_name_rules(text: str) -> tuple[NameRule, ...]:
    """`DEFAULT` and `RULE:regex/replacement/[L|U]`, separated by commas. Raises OperatorError."""
    found: list[NameRule] = []
    rest = text.strip() or "DEFAULT"
    while True:
        rule, rest = _first_rule(rest)
        found.append(rule)
        rest = rest.lstrip()
        if not rest:
            return tuple(found)
        if rest[0] not in ",\n":
            raise _malformed(rest)
        rest = rest[1:].lstrip()


def _first_rule(text: str) -> tuple[NameRule, str]:
    if text.startswith("DEFAULT"):
        return NameRule(None), text[len("DEFAULT") :]
    match = _RULE.match(text)
    if match is None:
        raise _malformed(text)
    try:
        # Java writes named groups without the P.
        pattern = re.compile(re.sub(r"\(\?<(?![=!])", "(?P<", match["pattern"]))
    except re.error as error:
        raise OperatorError(
            f"ssl.principal.mapping.rules: {match['pattern']!r} is no regular expression: {error}"
        ) from None
    return NameRule(pattern, match["replacement"], match["case"]), text[match.end() :]


_RULE: Final = re.compile(r"RULE:(?P<pattern>(?:\\.|[^\\/])*)/(?P<replacement>(?:\\.|[^\\/])*)/(?P<case>[LU]?)")


def _malformed(text: str) -> OperatorError:
    return OperatorError(
        f"ssl.principal.mapping.rules: {text!r} is no rule",
        "Rules are DEFAULT, or RULE:regex/replacement/ with an optional L or U behind it, separated by commas.",
    )


def user_of_name(name: str, rules: Sequence[NameRule]) -> str | None:
    """The user whom a certificate's distinguished name (RFC 2253) stands for: by the first rule that matches all of it;
    None if there is none (the connection is refused)."""
    for rule in rules:
        if rule.pattern is None:
            return name
        if rule.pattern.fullmatch(name) is None:
            continue
        user = rule.pattern.sub(lambda match, rule=rule: _replaced(match, rule.replacement), name)  # type: ignore[misc]
        return {"L": user.lower(), "U": user.upper()}.get(rule.letter_case, user)
    return None


def _replaced(match: re.Match[str], replacement: str) -> str:
    """`$n` is a group of the match, or literal if there is no such group; a backslash escapes."""
    groups = match.re.groups

    def put(found: re.Match[str]) -> str:
        if found["escaped"] is not None:
            return found["escaped"]
        number = int(found["group"])
        return (match[number] or "") if number <= groups else found[0]

    return _REFERENCE.sub(put, replacement)


_REFERENCE: Final = re.compile(r"\\(?P<escaped>.)|\$(?P<group>[0-9])", re.DOTALL)
