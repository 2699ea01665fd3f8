"""Java's properties format: parser and writer.

Owns the text form only. `key=value`, `key: value` or `key value`; `#` and `!` start comments; a backslash at the end of
a line joins it with the next; `\\t \\n \\f \\r \\uXXXX` are escapes, any other escaped character stands for itself.

A file is UTF-8; if it is not, it is read as Latin-1, like Java does. The writer escapes all non-ASCII characters, so
that both encodings agree.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from fenceline.errors import OperatorError

_BLANKS: Final = " \t\f"
_NAMED_ESCAPES: Final = {"t": "\t", "n": "\n", "f": "\f", "r": "\r"}
_ESCAPE: Final = re.compile(r"\\(u(?P<hex>.{0,4})|(?P<one>.)|$)", re.DOTALL)


class PropertiesSyntaxError(ValueError):
    """The text is not valid; the message names the line."""


def parse_properties(text: str) -> dict[str, str]:
    """All properties, in order; a repeated key has its last value. Raises PropertiesSyntaxError."""
    return dict(_properties(text))


def read_properties(path: Path) -> dict[str, str]:
    """A file's properties. Raises OperatorError if it cannot be read."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise OperatorError(
            f"Configuration file {path} cannot be read: {error.strerror or error}",
            "Check the path and its permissions.",
        ) from error
    if b"\0" in content:
        raise OperatorError(
            f"Configuration file {path} is not a text file", "Specify a server.properties file as for Kafka."
        )
    try:
        text = content.decode()
    except UnicodeDecodeError:
        text = content.decode("latin-1")
    try:
        return parse_properties(text)
    except PropertiesSyntaxError as error:
        raise OperatorError(f"Configuration file {path}: {error}", "Write a literal backslash as \\\\.") from error


def format_properties(properties: Mapping[str, str], comment: str = "") -> str:
    """Properties as text that `parse_properties` reads, one per line, keys as given."""
    head = "".join(f"# {line}\n" for line in comment.splitlines())
    return head + "".join(f"{_escape(k, is_key=True)}={_escape(v, is_key=False)}\n" for k, v in properties.items())


def _properties(text: str) -> Iterator[tuple[str, str]]:
    for number, line in _logical_lines(text):
        end = _end_of_key(line)
        value_start = _skip_blanks(line, end)
        if value_start < len(line) and line[value_start] in "=:":
            value_start = _skip_blanks(line, value_start + 1)
        yield _unescape(line[:end], number), _unescape(line[value_start:], number)


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines without comments and blank lines, continuation lines joined, with the number of the first."""
    pending, first = "", 0
    joining = False
    for number, line in enumerate(re.split(r"\r\n|\r|\n", text), 1):
        stripped = line.lstrip(_BLANKS)
        if not joining:
            if not stripped or stripped[0] in "#!":
                continue
            pending, first = "", number
        trailing = len(stripped) - len(stripped.rstrip("\\"))
        joining = trailing % 2 == 1
        pending += stripped[:-1] if joining else stripped
        if not joining:
            yield first, pending
    if joining and pending:
        yield first, pending


def _end_of_key(line: str) -> int:
    position = 0
    while position < len(line):
        if line[position] == "\\":
            position += 2
            continue
        if line[position] in "=:" or line[position] in _BLANKS:
            return position
        position += 1
    return len(line)


def _skip_blanks(line: str, position: int) -> int:
    while position < len(line) and line[position] in _BLANKS:
        position += 1
    return position


def _unescape(text: str, line_number: int) -> str:
    def replace(found: re.Match[str]) -> str:
        if (digits := found["hex"]) is not None:
            if re.fullmatch("[0-9a-fA-F]{4}", digits) is None:
                raise PropertiesSyntaxError(f"line {line_number} has \\u without four hexadecimal digits")
            return chr(int(digits, 16))
        one = found["one"] or ""
        return _NAMED_ESCAPES.get(one, one)

    if "\\" not in text:
        return text
    plain = _ESCAPE.sub(replace, text)
    # Two escapes of a surrogate pair are one character.
    return plain.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _escape(text: str, *, is_key: bool) -> str:
    out: list[str] = []
    for position, character in enumerate(text):
        if character in "\\\t\n\f\r":
            out.append({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}[character])
        elif (character == " " and (is_key or position == 0)) or (is_key and character in "=:#!"):
            out.append("\\" + character)
        elif " " <= character <= "~":
            out.append(character)
        else:
            units = character.encode("utf-16-be", "surrogatepass")
            out += [f"\\u{units[i]:02X}{units[i + 1]:02X}" for i in range(0, len(units), 2)]
    return "".join(out)
