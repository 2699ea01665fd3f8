"""OAUTHBEARER: messages and tokens. Rules: security.md A27 to A30, A69."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet, RSAKey

from fenceline.errors import OperatorError
from fenceline.node.net.key_source import KeySource
from fenceline.security.oauth import (
    CheckedToken,
    InvalidToken,
    OauthExchange,
    TokenRules,
    UnknownKey,
    check_token,
    read_keys,
)
from fenceline.security.sasl_server import AuthenticationFailed

NOW_S = 1_000_000
KEY = ECKey.generate_key("P-256", {"kid": "first"})
RULES = TokenRules("https://issuer", frozenset({"kafka"}))
CLAIMS = {"iss": "https://issuer", "aud": "kafka", "sub": "anna", "iat": NOW_S - 10, "exp": NOW_S + 300}


def token(key: Any = KEY, algorithm: str = "ES256", header: dict[str, Any] | None = None, **claims: Any) -> str:
    found = {**CLAIMS, **claims}
    payload = {name: value for name, value in found.items() if value is not None}
    return jwt.encode({"alg": algorithm, "kid": "first", **(header or {})}, payload, key, [algorithm])


def public(*keys: Any) -> KeySet:
    return read_keys(json.dumps(KeySet(list(keys or [KEY])).as_dict(private=False)).encode())


def test_valid_token() -> None:
    assert check_token(token(), public(), RULES, NOW_S) == CheckedToken("anna", (NOW_S + 300) * 1000)
    several = token(aud=["other", "kafka"], nbf=NOW_S + 20, iat=NOW_S + 29)
    assert check_token(several, public(), RULES, NOW_S).user == "anna"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"exp": NOW_S - 30}, "has expired"),
        ({"exp": None}, "exp or iat is missing"),
        ({"iat": None}, "exp or iat is missing"),
        ({"exp": "tomorrow"}, "no time"),
        ({"exp": True}, "no time"),
        ({"exp": 1e300}, "no time"),
        ({"iat": NOW_S + 31}, "not valid yet"),
        ({"nbf": NOW_S + 31}, "not valid yet"),
        ({"iss": "https://other"}, "another issuer"),
        ({"iss": None}, "another issuer"),
        ({"aud": "other"}, "another audience"),
        ({"aud": None}, "another audience"),
        ({"aud": []}, "another audience"),
        ({"sub": None}, "claim sub is missing"),
        ({"sub": " "}, "claim sub is missing"),
        ({"sub": 7}, "claim sub is missing"),
    ],
)
def test_claims_that_are_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidToken, match=reason):
        check_token(token(**changes), public(), RULES, NOW_S)


def test_expiry_allows_for_the_clock_skew() -> None:
    assert check_token(token(exp=NOW_S - 29), public(), RULES, NOW_S).user == "anna"


def test_token_for_an_audience_needs_one_here() -> None:
    rules = TokenRules(None, frozenset())
    with pytest.raises(InvalidToken, match="another audience"):
        check_token(token(), public(), rules, NOW_S)
    assert check_token(token(aud=None, iss="any"), public(), rules, NOW_S).user == "anna"


def unsigned(claims: dict[str, Any]) -> str:
    return f"{encoded({'alg': 'none', 'kid': 'first'})}.{encoded(claims)}."


def signed_with_the_public_key() -> str:
    """HMAC with the bytes of the public key, which everybody knows."""
    signed = ".".join([encoded({"alg": "HS256", "kid": "first"}), encoded(CLAIMS)])
    signature = hmac.digest(KEY.as_pem(private=False), signed.encode(), "sha256")
    return f"{signed}.{base64.urlsafe_b64encode(signature).decode().rstrip('=')}"


def encoded(part: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")


@pytest.mark.parametrize(
    "make",
    [
        lambda: unsigned(CLAIMS),
        signed_with_the_public_key,
        lambda: token(ECKey.generate_key("P-256", {"kid": "first"})),
        lambda: token()[:-4] + "AAAA",
        lambda: token() + "=",
        lambda: ".".join([*token().split(".")[:2], ""]),
        lambda: "",
        lambda: "a.b.c",
        lambda: "....",
        lambda: "A" * 60_000,
        lambda: token(header={"typ": "x" * 9_000}),
        lambda: token(RSAKey.generate_key(2048, {"kid": "first"}), "RS256"),
    ],
    ids=[
        *("none", "HMAC", "another key", "changed signature", "padding", "no signature", "empty"),
        *("no JSON", "dots", "long", "huge header", "key of another type"),
    ],
)
def test_signatures_that_are_refused(make: Callable[[], str]) -> None:
    given = make()
    with pytest.raises(InvalidToken) as error:
        check_token(given, public(), RULES, NOW_S)
    assert not given or given not in str(error.value)


def test_unknown_key_is_named() -> None:
    with pytest.raises(UnknownKey) as error:
        check_token(token(header={"kid": "second"}), public(), RULES, NOW_S)
    assert error.value.key_id == "second"


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"{}", b'{"keys": 1}', b'{"keys": []}', b'{"keys": [{"kty": "?"}]}', b"\xff"]
)
def test_malformed_keys(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_keys(text)


# --- the exchange ----------------------------------------


def exchange() -> OauthExchange:
    return OauthExchange(lambda text: check_token(text, public(), RULES, NOW_S))


def message(text: str, authorization: str = "", extra: str = "") -> bytes:
    return f"n,{authorization},\x01auth=Bearer {text}\x01{extra}\x01".encode()


@pytest.mark.parametrize(
    ("authorization", "extra"), [("", ""), ("a=anna", ""), ("", "traceId=12\x01logicalCluster=a=b\x01")]
)
def test_login(authorization: str, extra: str) -> None:
    server = exchange()
    assert server.answer(message(token(), authorization, extra)) == b""
    assert server.outcome is not None
    assert (str(server.outcome.principal), server.outcome.expires_ms) == ("User:anna", (NOW_S + 300) * 1000)


def test_refusal_in_two_steps() -> None:
    server = exchange()
    assert server.answer(message(token(sub=None))) == b'{"status":"invalid_token"}'
    assert server.outcome is None
    with pytest.raises(AuthenticationFailed, match="claim sub is missing") as error:
        server.answer(b"\x01")
    assert error.value.message == '{"status":"invalid_token"}'


@pytest.mark.parametrize(
    "given",
    [
        b"",
        b"\x01",
        b"n,,\x01\x01",
        b"n,,\x01auth=Basic abc\x01\x01",
        b"n,,\x01auth=Bearer a b\x01\x01",
        b"n,,\x01auth=Bearer a\x01",
        b"n,,\x01auth=Bearer a\x01auth=Bearer a\x01\x01",
        b"n,,\x01auth=Bearer a\x011=2\x01\x01",
        b"y,,\x01auth=Bearer a\x01\x01",
        b"n,a=\xff,\x01auth=Bearer a\x01\x01",
        message("valid", "a=otto").replace(b"valid", token().encode()),
    ],
)
def test_malformed_messages(given: bytes) -> None:
    with pytest.raises(AuthenticationFailed):
        exchange().answer(given)


# --- where the keys come from ----------------------------------------


@pytest.mark.parametrize("url", ["file:///nowhere", "ftp://host/keys", "keys.json", "http://127.0.0.1:1/keys", ""])
def test_keys_that_cannot_be_read(url: str) -> None:
    with pytest.raises(OperatorError, match="cannot be read"):
        KeySource(url, refresh_ms=1_000, now_ms=lambda: 0)


def test_keys_are_read_again(tmp_path: Path) -> None:
    file, now_ms = tmp_path / "keys.json", 0
    second = ECKey.generate_key("P-256", {"kid": "second"})

    def write(*keys: Any) -> None:
        file.write_text(json.dumps(KeySet(list(keys)).as_dict(private=False)))

    async def story() -> None:
        nonlocal now_ms
        write(KEY)
        source = KeySource(file.as_uri(), refresh_ms=3_600_000, now_ms=lambda: now_ms)

        async def ids() -> list[str]:
            while source._fetching is not None:
                await source._fetching
            return [str(key.kid) for key in source.keys]

        write(KEY, second)
        source.look()
        assert await ids() == ["first"], "it is not time"
        source.unknown("second")
        assert await ids() == ["first", "second"]
        write(second)
        source.unknown("second")
        assert await ids() == ["first", "second"], "once a minute for each"
        now_ms += 60_000
        source.unknown("second")
        assert await ids() == ["second"]
        file.write_text("damaged")
        now_ms += 3_600_000
        source.look()
        assert await ids() == ["second"], "the old keys stay valid"
        for number in range(100):
            source.unknown(str(number))
            await ids()
        assert len(source._asked_ms) == 16
        source.unknown("x" * 1_001)
        assert source._fetching is None

    asyncio.run(asyncio.wait_for(story(), 30))
