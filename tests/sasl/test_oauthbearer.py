"""The client's side of OAUTHBEARER. Rules: security.md A27."""

from __future__ import annotations

import pytest

from fenceline.errors import OperatorError
from fenceline.sasl.oauthbearer import BearerToken, expiry_of, oauth_exchange


def test_messages() -> None:
    exchange = oauth_exchange(BearerToken("abc.def.ghi", 1, {"traceId": "1", "logicalCluster": "x"}))
    assert next(exchange) == b"n,,\x01auth=Bearer abc.def.ghi\x01traceId=1\x01logicalCluster=x\x01\x01"
    with pytest.raises(StopIteration):
        exchange.send(b"")


def test_a_refusal_is_acknowledged() -> None:
    exchange = oauth_exchange(BearerToken("abc", 1))
    next(exchange)
    assert exchange.send(b'{"status":"invalid_token"}') == b"\x01"


@pytest.mark.parametrize("text", ["", "ey x", "a\x01auth=Bearer b", "a\n", "ä"])
def test_text_that_is_no_token(text: str) -> None:
    with pytest.raises(OperatorError) as error:
        BearerToken(text, 1)
    assert text == "" or text not in str(error.value)


@pytest.mark.parametrize(("key", "value"), [("auth", "x"), ("a1", "x"), ("", "x"), ("a", "x\x01b=y")])
def test_extensions_that_cannot_be_sent(key: str, value: str) -> None:
    with pytest.raises(OperatorError, match="extension"):
        BearerToken("abc", 1, {key: value})


@pytest.mark.parametrize("token", ["a.b", "a.!.c", "a.e30.c", "a.W10.c", "a.eyJleHAiOiJ4In0.c"])
def test_tokens_without_an_expiry(token: str) -> None:
    assert expiry_of(token) is None
