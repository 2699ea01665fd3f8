"""Tokens by client credentials, from an endpoint that answers well and badly. Rules: security.md A70."""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fenceline.errors import ErrorCode, OperatorError, PeerError
from fenceline.oauth.token_endpoint import ClientCredentials, TokenUnavailable, request_token
from fenceline.sasl.oauthbearer import BearerToken, expiry_of
from tests.support.certificates import TestAuthority
from tests.support.token_endpoint import TokenEndpoint


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[TokenEndpoint]:
    with TokenEndpoint(tmp_path) as running:
        yield running


def ask(
    endpoint: TokenEndpoint, secret: str = "secret", trust: ssl.SSLContext | None = None, **more: Any
) -> BearerToken:
    credentials = ClientCredentials(endpoint.url, "anna", secret, **more)
    return request_token(credentials, trust, timeout_s=30, now_s=time.time())


def test_a_token_of_the_endpoint(endpoint: TokenEndpoint) -> None:
    token = ask(endpoint, scope="read write", extensions={"a": "b"})
    assert endpoint.requests == [{"grant_type": "client_credentials", "scope": "read write", "login": "anna:secret"}]
    assert token.expires_s == expiry_of(token.text) == pytest.approx(time.time() + 300, abs=60)
    assert token.extensions == {"a": "b"}
    assert token.text not in repr(token)


@pytest.mark.parametrize(
    ("fields", "lifetime_s"), [({"expires_in": 7}, 7), ({}, 300), ({"expires_in": "x"}, 300), ({"expires_in": -1}, 300)]
)
def test_a_token_that_is_not_a_jwt(endpoint: TokenEndpoint, fields: dict[str, Any], lifetime_s: int) -> None:
    endpoint.answer = lambda: (200, json.dumps({"access_token": "opaque", **fields}).encode(), {})
    assert ask(endpoint).expires_s == pytest.approx(time.time() + lifetime_s, abs=5)


def test_wrong_credentials(endpoint: TokenEndpoint) -> None:
    with pytest.raises(PeerError, match=r"answered 401 \(invalid_client: unknown\)") as error:
        ask(endpoint, "the wrong secret")
    assert error.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED
    assert "the wrong secret" not in str(error.value)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (500, b"oops"),
        (503, b'{"error": "try\\nagain"}'),
        (429, b"[]"),
        (200, b""),
        (200, b"[]"),
        (200, b"{}"),
        (200, b'{"access_token": 7}'),
        (200, b'{"access_token": "a b"}'),
        (200, b" " * ((1 << 20) + 1)),
    ],
)
def test_answers_that_may_be_better_later(endpoint: TokenEndpoint, status: int, body: bytes) -> None:
    endpoint.answer = lambda: (status, body, {})
    with pytest.raises(TokenUnavailable) as error:
        ask(endpoint)
    assert "\n" not in str(error.value)


def test_the_secret_does_not_follow_a_redirect(endpoint: TokenEndpoint, tmp_path: Path) -> None:
    with TokenEndpoint(tmp_path) as another:
        endpoint.answer = lambda: (302, b"", {"Location": another.url})
        with pytest.raises(PeerError, match="302"):
            ask(endpoint)
        assert another.requests == []


def test_endpoint_that_is_not_there() -> None:
    credentials = ClientCredentials("http://127.0.0.1:1/token", "anna", "secret")
    with pytest.raises(TokenUnavailable, match=r"127\.0\.0\.1:1/token cannot be asked"):
        request_token(credentials, None, timeout_s=30, now_s=0)


@pytest.mark.parametrize("url", ["", "file:///etc/passwd", "token.example/token", "https://", "ftp://a/b"])
def test_urls_that_are_not_endpoints(url: str) -> None:
    with pytest.raises(OperatorError, match="URL"):
        ClientCredentials(url, "anna", "secret")


def test_the_certificate_is_verified(tmp_path: Path) -> None:
    authority = TestAuthority(tmp_path)
    with TokenEndpoint(tmp_path, identity=authority.identity("endpoint", "127.0.0.1")) as endpoint:
        with pytest.raises(TokenUnavailable, match="certificate"):
            ask(endpoint)
        assert endpoint.requests == []
        assert ask(endpoint, trust=ssl.create_default_context(cafile=str(authority.ca))).text
