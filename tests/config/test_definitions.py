from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fenceline.config.definitions import ConfigKey, ConfigType, InvalidConfig, ListRules, parse_type, render
from fenceline.errors import ErrorCode


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (ConfigType.LONG, " +7 ", 7),
        (ConfigType.INT, "-2147483648", -(2**31)),
        (ConfigType.BOOLEAN, "TRUE", True),
        (ConfigType.DOUBLE, "0.5f", 0.5),
        (ConfigType.DOUBLE, "1e-1", 0.1),
        (ConfigType.LIST, "a , b,c", ("a", "b", "c")),
        (ConfigType.LIST, " ", ()),
        (ConfigType.STRING, " x ", "x"),
    ],
)
def test_text_is_parsed_as_in_kafka(kind: ConfigType, text: str, value: object) -> None:
    assert parse_type("k", kind, text) == value


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        (ConfigType.LONG, "1_000", "Not a number of type LONG"),
        (ConfigType.LONG, "0x10", "Not a number of type LONG"),
        (ConfigType.LONG, "", "Not a number of type LONG"),
        (ConfigType.INT, "2147483648", "Not a number of type INT"),
        (ConfigType.SHORT, "32768", "Not a number of type SHORT"),
        (ConfigType.DOUBLE, "x", "Not a number of type DOUBLE"),
        (ConfigType.BOOLEAN, "yes", "Expected value to be either true or false"),
    ],
)
def test_invalid_values_are_rejected_with_kafkas_messages(kind: ConfigType, text: str, reason: str) -> None:
    with pytest.raises(InvalidConfig) as refused:
        parse_type("k", kind, text)
    assert refused.value.message == f"Invalid value {text} for configuration k: {reason}"
    assert refused.value.code is ErrorCode.INVALID_CONFIG


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.5, "0.5"),
        (0.0001, "1.0E-4"),
        (1.5e9, "1.5E9"),
        (12345678.0, "1.2345678E7"),
        (1.7976931348623157e308, "1.7976931348623157E308"),
        (True, "true"),
        (("a", "b"), "a,b"),
        (None, None),
    ],
)
def test_values_are_printed_as_by_the_jvm(value: float | bool | tuple[str, ...] | None, text: str | None) -> None:
    assert render(value) == text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_doubles_survive_a_round_trip(value: float) -> None:
    assert parse_type("k", ConfigType.DOUBLE, render(value)) == value


def test_lists_with_rules_drop_duplicates() -> None:
    key = ConfigKey("k", ConfigType.LIST, "", "", validator=ListRules(("a", "b")))
    assert key.parse("a,a, b") == ("a", "b")
    with pytest.raises(InvalidConfig, match="values must not be empty"):
        key.parse("a,,b")
    with pytest.raises(InvalidConfig, match="String must be one of: a, b"):
        key.parse("c")
