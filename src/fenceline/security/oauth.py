"""SASL OAUTHBEARER (RFC 7628) with signed tokens (JWT), on the server's side, without I/O.

Owns the messages of the mechanism, and which token is valid: signed by a key of the issuer, with an algorithm that uses
such keys, for this audience, at this time. Signatures are checked by the library joserfc. Keys come from outside
(`node/net/key_source.py`). A token is never logged.

Rules: security.md A27 to A30, A69.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from fenceline.security.sasl_server import Authenticated, AuthenticationFailed
from fenceline.wire.principal import Principal

if TYPE_CHECKING:
    from joserfc.jwk import KeySet

ALGORITHMS: Final = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA", "Ed25519"),
)
"""Those with public keys. With `none` or HMAC anybody could make a valid token."""
_MAX_HEADER_BYTES: Final = 8_192
"""Of a token: chains of certificates may stand there."""
_MESSAGE: Final = re.compile(rb"n,(?:a=(?P<authorization>[^,\x01]*))?,\x01(?P<pairs>(?:[^\x01]+\x01)*)\x01")
_BEARER: Final = re.compile(r"bearer +(?P<token>[A-Za-z0-9._~+/=-]+)", re.IGNORECASE)
_EXTENSION: Final = re.compile(r"[A-Za-z]+")
_INVALID: Final = '{"status":"invalid_token"}'
_END: Final = b"\x01"
_WRONG_ID: Final = (
    "Authentication failed: Client requested an authorization id that is different from the token's principal name"
)


class InvalidToken(Exception):
    """Why a token is not accepted. Without the token."""


class UnknownKey(InvalidToken):
    """The token names a key that is not known."""

    def __init__(self, key_id: str) -> None:
        super().__init__("it is signed by an unknown key")
        self.key_id = key_id


@dataclass(frozen=True, slots=True)
class TokenRules:
    """`issuer`, `audiences`: None and empty are not checked, except that a token for an audience needs one here."""

    issuer: str | None
    audiences: frozenset[str]
    user_claim: str = "sub"
    clock_skew_s: int = 30


@dataclass(frozen=True, slots=True)
class CheckedToken:
    user: str
    expires_ms: int


def check_token(token: str, keys: KeySet, rules: TokenRules, now_s: float) -> CheckedToken:
    """Raises InvalidToken."""
    from joserfc import jws, jwt
    from joserfc.errors import InvalidKeyIdError, JoseError

    class Registry(jws.JWSRegistry):
        max_header_length = _MAX_HEADER_BYTES

    try:
        found = jwt.decode(token, keys, registry=Registry(algorithms=list(ALGORITHMS)))
    except InvalidKeyIdError:
        raise UnknownKey(_key_id(token)) from None
    except (JoseError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise InvalidToken(f"it is not signed by a known key: {type(error).__name__}") from None
    claims = found.claims
    expires_s, issued_s = _time(claims, "exp"), _time(claims, "iat")
    if expires_s is None or issued_s is None:
        raise InvalidToken("exp or iat is missing")
    not_before_s = _time(claims, "nbf")
    if now_s >= expires_s + rules.clock_skew_s:
        raise InvalidToken("it has expired")
    if max(issued_s, issued_s if not_before_s is None else not_before_s) > now_s + rules.clock_skew_s:
        raise InvalidToken("it is not valid yet")
    if rules.issuer is not None and claims.get("iss") != rules.issuer:
        raise InvalidToken("it has another issuer")
    audience = claims.get("aud")
    audiences = (
        {audience} if isinstance(audience, str) else set(map(str, audience if isinstance(audience, list) else ()))
    )
    if (rules.audiences or audiences) and not rules.audiences & audiences:
        raise InvalidToken("it is for another audience")
    user = claims.get(rules.user_claim)
    if not isinstance(user, str) or not user.strip():
        raise InvalidToken(f"the claim {rules.user_claim} is missing")
    return CheckedToken(user, int(expires_s * 1000))


def _key_id(token: str) -> str:
    """The `kid` of a token that is not verified."""
    head = token.partition(".")[0]
    try:
        found = json.loads(base64.urlsafe_b64decode(head + "=" * (-len(head) % 4)))
        return str(found.get("kid"))
    except (ValueError, AttributeError, RecursionError):
        return ""


def _time(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**53:
        raise InvalidToken(f"the claim {name} is no time")
    return float(value)


class OauthExchange:
    """See the module. A refusal has two steps: the reason as JSON, and after the client's answer the failure."""

    def __init__(self, check: Callable[[str], CheckedToken]) -> None:
        """`check` raises InvalidToken."""
        self._check = check
        self._refusal = ""
        self.outcome: Authenticated | None = None

    def answer(self, message: bytes) -> bytes:
        if self._refusal:
            raise AuthenticationFailed(_INVALID, reason=self._refusal)
        authorization_id, token = _parsed(message)
        try:
            found = self._check(token)
        except InvalidToken as error:
            self._refusal = f"the token is refused: {error}"
            return _INVALID.encode()
        if authorization_id not in ("", found.user):
            raise AuthenticationFailed(_WRONG_ID)
        self.outcome = Authenticated(Principal(name=found.user), found.expires_ms)
        return b""


def _parsed(message: bytes) -> tuple[str, str]:
    """The authorization id and the token. Raises AuthenticationFailed."""
    match = _MESSAGE.fullmatch(message)
    if match is None:
        raise AuthenticationFailed(reason="the message is not that of OAUTHBEARER")
    pairs: dict[str, str] = {}
    try:
        for part in filter(None, match["pairs"].split(_END)):
            key, separator, value = part.decode().partition("=")
            if not separator or _EXTENSION.fullmatch(key) is None or key in pairs:
                raise AuthenticationFailed(reason="an extension is not key=value")
            pairs[key] = value
        authorization_id = (match["authorization"] or b"").decode()
    except UnicodeDecodeError:
        raise AuthenticationFailed(reason="the message is not UTF-8") from None
    bearer = _BEARER.fullmatch(pairs.get("auth", ""))
    if bearer is None:
        raise AuthenticationFailed(reason="there is no bearer token")
    return authorization_id, bearer["token"]


def read_keys(text: bytes) -> KeySet:
    """Keys of a JWKS document. Raises ValueError."""
    from joserfc.errors import JoseError
    from joserfc.jwk import KeySet

    try:
        document = json.loads(text)
        if not isinstance(document, dict) or not isinstance(document.get("keys"), list):
            raise ValueError("it has no list of keys")
        found = KeySet.import_key_set({"keys": document["keys"]})
    except (JoseError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(str(error)) from None
    if not found:
        raise ValueError("it has no key of a known type")
    return found
