"""Tokens by client credentials (RFC 6749, section 4.4): the request to an issuer's endpoint over HTTP.

Owns the request and what its answers mean. Blocks: it belongs into a thread. Neither a token nor a secret is logged or
part of an error. Rules: security.md A70.
"""

from __future__ import annotations

import base64
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import IO, Any, Final
from urllib.parse import urlencode, urlsplit

from fenceline.errors import ErrorCode, OperatorError, PeerError
from fenceline.sasl.oauthbearer import BearerToken, expiry_of, is_bearer_token

_MAX_BYTES: Final = 1 << 20
_MAX_REASON_CHARACTERS: Final = 200
_DEFAULT_LIFETIME_S: Final = 300.0
"""Of a token that does not say when it expires."""


class TokenUnavailable(Exception):
    """The endpoint cannot be reached, or failed: another attempt may succeed."""


@dataclass(frozen=True, slots=True)
class ClientCredentials:
    """Who asks which endpoint for tokens."""

    url: str
    client_id: str
    client_secret: str = field(repr=False)
    scope: str | None = None
    extensions: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raises OperatorError."""
        if urlsplit(self.url).scheme not in ("https", "http") or not urlsplit(self.url).hostname:
            raise OperatorError(
                f"sasl.oauthbearer.token.endpoint.url={self.url} is not the URL of a token endpoint",
                "Write https://HOST/PATH.",
            )


def request_token(
    credentials: ClientCredentials, trust: ssl.SSLContext | None, *, timeout_s: float, now_s: float
) -> BearerToken:
    """A token of the endpoint; blocks. `trust`: None verifies with the system's authorities. `now_s`: since the epoch.

    Raises TokenUnavailable, PeerError(SASL_AUTHENTICATION_FAILED) if the endpoint refuses the credentials.
    """
    body = {"grant_type": "client_credentials"}
    if credentials.scope:
        body["scope"] = credentials.scope
    login = base64.b64encode(f"{credentials.client_id}:{credentials.client_secret}".encode()).decode()
    asking = urllib.request.Request(
        credentials.url,
        urlencode(body).encode(),
        {
            "Authorization": f"Basic {login}",
            "Accept": "application/json",
            "Content-Type": "application/x-www-form-urlencoded",
        },
    )
    # Without redirects: the secret is for this address only.
    opener = urllib.request.build_opener(
        _NoRedirects, urllib.request.HTTPSHandler(context=trust or ssl.create_default_context())
    )
    where = f"The token endpoint {credentials.url}"
    try:
        with opener.open(asking, timeout=timeout_s) as response:
            content = response.read(_MAX_BYTES + 1)
    except urllib.error.HTTPError as error:
        reason = f"{where} answered {error.code}{_reason(error)}"
        if 300 <= error.code < 500 and error.code not in (408, 425, 429):
            raise PeerError(ErrorCode.SASL_AUTHENTICATION_FAILED, reason) from None
        raise TokenUnavailable(reason) from None
    except (OSError, ValueError) as error:
        cause = getattr(error, "reason", error)
        raise TokenUnavailable(f"{where} cannot be asked: {cause or type(error).__name__}") from None
    return _read_token(content, where, credentials.extensions, now_s)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *arguments: Any, **named: Any) -> None:
        """The answer is then an error."""


def _reason(error: IO[bytes]) -> str:
    """`error` and `error_description` of RFC 6749, if the answer has them."""
    try:
        found = json.loads(error.read(_MAX_BYTES))
        parts = [found[key] for key in ("error", "error_description") if isinstance(found.get(key), str)]
    except (OSError, ValueError, AttributeError, RecursionError):
        return ""
    text = ": ".join(parts)[:_MAX_REASON_CHARACTERS]
    return f" ({text})" if text.isprintable() and text else ""


def _read_token(content: bytes, where: str, extensions: Mapping[str, str], now_s: float) -> BearerToken:
    """Raises PeerError, TokenUnavailable."""
    try:
        found = json.loads(content) if len(content) <= _MAX_BYTES else None
    except (ValueError, RecursionError):
        found = None
    text = (found.get("access_token") or found.get("id_token")) if isinstance(found, dict) else None
    if not isinstance(found, dict) or not isinstance(text, str) or not is_bearer_token(text):
        raise TokenUnavailable(f"{where} answered without an access_token")
    lifetime_s = found.get("expires_in")
    if not isinstance(lifetime_s, int | float) or isinstance(lifetime_s, bool) or lifetime_s <= 0:
        lifetime_s = _DEFAULT_LIFETIME_S
    expires_s = expiry_of(text)
    return BearerToken(text, now_s + lifetime_s if expires_s is None else expires_s, extensions)
