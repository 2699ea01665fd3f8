"""The text of `sasl.jaas.config`: one login module with its options.

Owns its syntax, and which modules have a counterpart here. Never logs a value. Rules: security.md A22.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from fenceline.errors import OperatorError

_PACKAGE: Final = "org.apache.kafka.common.security."
PLAIN_MODULE: Final = _PACKAGE + "plain.PlainLoginModule"
SCRAM_MODULE: Final = _PACKAGE + "scram.ScramLoginModule"
OAUTH_MODULE: Final = _PACKAGE + "oauthbearer.OAuthBearerLoginModule"
_FLAGS: Final = frozenset({"required", "requisite", "sufficient", "optional"})
_TOKEN: Final = re.compile(
    r"""(?P<space>\s+|//[^\n]*|/\*.*?\*/)|"(?P<quoted>(?:\\.|[^"\\])*)"|(?P<mark>[=;])|(?P<word>[^\s=;"]+)""", re.DOTALL
)


@dataclass(frozen=True, slots=True)
class LoginModule:
    """The class of a login module, and its options."""

    name: str
    options: Mapping[str, str] = field(repr=False)


def parse_jaas(text: str, where: str) -> LoginModule:
    """`Class flag key=value ... ;`, exactly once. `where` names the key in errors. Raises OperatorError."""
    tokens = _tokens(text, where)
    if len(tokens) < 3 or tokens[-1] != (";", True):
        raise _malformed(where, "it must end in a semicolon")
    name, flag, *rest = tokens[:-1]
    if name[1] or flag[1] or flag[0].lower() not in _FLAGS:
        raise _malformed(where, "a class name and `required` come first")
    options: dict[str, str] = {}
    while rest:
        if len(rest) < 3 or rest[0][1] or rest[1] != ("=", True) or rest[2][1]:
            raise _malformed(where, "options are key=value; a value with other characters is quoted")
        options[rest[0][0]] = rest[2][0]
        del rest[:3]
    return LoginModule(name[0], options)


def _tokens(text: str, where: str) -> list[tuple[str, bool]]:
    """Words and values, and whether each is a mark."""
    found: list[tuple[str, bool]] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise _malformed(where, "a quotation mark or a comment is not closed")
        position = match.end()
        if match["quoted"] is not None:
            found.append((re.sub(r"\\(.)", r"\1", match["quoted"], flags=re.DOTALL), False))
        elif match["mark"] is not None:
            found.append((match["mark"], True))
        elif match["word"] is not None:
            found.append((match["word"], False))
    return found


def _malformed(where: str, what: str) -> OperatorError:
    return OperatorError(
        f"{where} is no login module: {what}",
        f'Example: {PLAIN_MODULE} required username="admin" password="..." user_admin="...";',
    )
