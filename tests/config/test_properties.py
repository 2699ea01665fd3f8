from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fenceline.config.properties import PropertiesSyntaxError, format_properties, parse_properties, read_properties
from fenceline.errors import OperatorError

_texts = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\x00"), max_size=20)


@pytest.mark.parametrize(
    ("text", "properties"),
    [
        ("a=1\nb: 2\nc 3\n", {"a": "1", "b": "2", "c": "3"}),
        ("# x\n! y\n\n  \t# z\n a = 1 ", {"a": "1 "}),
        ("a=1,\\\n   2", {"a": "1,2"}),
        ("a=1\\\\\nb=2", {"a": "1\\", "b": "2"}),
        ("a\\ b\\=c=d", {"a b=c": "d"}),
        ("a=\\u00e4\\t\\q", {"a": "ä\tq"}),
        ("a", {"a": ""}),
        ("a=1\r\na=2", {"a": "2"}),
        ("a==b", {"a": "=b"}),
        ("a=\\uD83D\\uDE00", {"a": "😀"}),
    ],
)
def test_java_properties(text: str, properties: dict[str, str]) -> None:
    assert parse_properties(text) == properties


@given(st.dictionaries(_texts.filter(bool), _texts))
def test_written_properties_are_read_back(properties: dict[str, str]) -> None:
    written = format_properties(properties, comment="first\nsecond")
    assert written.isascii()
    assert parse_properties(written) == properties


@given(st.text())
def test_any_text_is_parsed_or_rejected(text: str) -> None:
    try:
        parse_properties(text)
    except PropertiesSyntaxError:
        assert "\\u" in text


def test_a_bad_escape_names_its_line(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("a=1\nb=\\u12\n")
    with pytest.raises(OperatorError, match="line 2"):
        read_properties(path)


def test_a_missing_file_is_an_operator_error(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="cannot be read"):
        read_properties(tmp_path / "none")


def test_latin1_is_read_too(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_bytes(b"a=\xe4\n")
    assert read_properties(path) == {"a": "ä"}
