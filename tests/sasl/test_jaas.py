"""The text of sasl.jaas.config. Rules: security.md A22."""

from __future__ import annotations

import pytest

from fenceline.errors import OperatorError
from fenceline.sasl.jaas import parse_jaas


def test_options_words_quotes_and_comments() -> None:
    text = """
        // who we are
        org.example.Login REQUIRED /* of
        course */ username=admin password="a \\"b\\" ; = c\\\\" user_x="";
    """
    found = parse_jaas(text, "key")
    assert found.name == "org.example.Login"
    assert dict(found.options) == {"username": "admin", "password": 'a "b" ; = c\\', "user_x": ""}
    assert "admin" not in repr(found)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "org.example.Login required",
        "org.example.Login perhaps;",
        "org.example.Login;",
        "org.example.Login required a;",
        "org.example.Login required a=;",
        'org.example.Login required a="b;',
        "org.example.Login required a==b;",
        "org.example.Login required; org.example.Other required;",
    ],
)
def test_malformed_text_is_refused_without_its_secrets(text: str) -> None:
    with pytest.raises(OperatorError, match=r"^the key is no login module") as error:
        parse_jaas(text.replace("required", 'required password="hunter2"'), "the key")
    assert "hunter2" not in str(error.value)
