"""The server's side of SASL mechanisms, without I/O: PLAIN and SCRAM.

Owns what a mechanism answers and when a peer is authenticated. Credentials come from outside, in the form in which they
are stored. Never tells whether a user exists: an unknown one gets a challenge in the form of most users', and fails
when a wrong password does.

Rules: security.md A23 to A26, A69.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple, Protocol

from fenceline.sasl.scram import (
    FEWEST_ITERATIONS,
    TOKEN_EXTENSION,
    ClientFirst,
    Credential,
    MalformedMessage,
    ServerFirst,
    digest_size,
    parse_client_final,
    parse_client_first,
)
from fenceline.wire.principal import Principal

_SALT_BYTES: Final = 24
_DIGITS: Final = b"0123456789abcdefghijklmnopqrstuvwxyz"
_TEXT: Final = frozenset(_DIGITS)
_WRONG_ID: Final = "Authentication failed: Client requested an authorization id that is different from username"


class AuthenticationFailed(Exception):
    """`message` is for the peer; None: the usual one of Kafka, which names the mechanism only."""

    def __init__(self, message: str | None = None, *, reason: str = "") -> None:
        super().__init__(reason or message or "invalid credentials")
        self.message = message


class Authenticated(NamedTuple):
    principal: Principal
    expires_ms: int | None = None
    """When the credential expires, in milliseconds since the epoch."""
    is_valid: Callable[[int], bool] | None = None
    """Whether the credential is still valid, at a time since the epoch; None: it cannot be withdrawn."""


class SaslExchange(Protocol):
    """One login. `outcome` is None until the peer is authenticated."""

    outcome: Authenticated | None

    def answer(self, message: bytes) -> bytes:
        """Raises AuthenticationFailed."""
        ...


class PlainExchange:
    """RFC 4616."""

    def __init__(self, passwords: Mapping[str, str]) -> None:
        self._passwords = passwords
        self.outcome: Authenticated | None = None

    def answer(self, message: bytes) -> bytes:
        try:
            parts = message.decode().split("\0")
        except UnicodeDecodeError:
            raise AuthenticationFailed(reason="the message is not UTF-8") from None
        if len(parts) != 3:
            raise AuthenticationFailed(f"Invalid SASL/PLAIN response: expected 3 tokens, got {len(parts)}")
        authorization_id, user, password = parts
        if not user:
            raise AuthenticationFailed("Authentication failed: username not specified")
        if not password:
            raise AuthenticationFailed("Authentication failed: password not specified")
        known = self._passwords.get(user)
        # Both are hashed, so that the comparison takes as long for an unknown user and for every length.
        is_right = hmac.compare_digest(_hash(password), _hash("" if known is None else known))
        if not is_right or known is None:
            raise AuthenticationFailed("Authentication failed: Invalid username or password")
        if authorization_id not in ("", user):
            raise AuthenticationFailed(_WRONG_ID)
        self.outcome = Authenticated(Principal(name=user))
        return b""


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


class KnownCredential(NamedTuple):
    """A credential, whom it authenticates, and for how long."""

    credential: Credential
    principal: Principal
    expires_ms: int | None = None
    is_valid: Callable[[int], bool] | None = None


class ChallengeForm(NamedTuple):
    """What can be seen of a credential in a challenge, besides the salt itself."""

    salt_bytes: int = _SALT_BYTES
    is_text: bool = False
    """The salt consists of digits and small letters, as Kafka's tools make them."""
    iterations: int = FEWEST_ITERATIONS


def usual_form(credentials: Iterable[tuple[bytes, int]]) -> ChallengeForm:
    """That of most of these salts and iterations."""
    counts = Counter(
        ChallengeForm(len(salt), _TEXT.issuperset(salt), iterations) for salt, iterations in credentials if salt
    )
    return max(counts, key=lambda form: (counts[form], form), default=ChallengeForm())


class ScramExchange:
    """RFC 5802. Users and delegation tokens."""

    def __init__(
        self,
        mechanism: str,
        find: Callable[[str, bool], KnownCredential | None],
        *,
        nonce: str,
        secret: bytes,
        form: Callable[[], ChallengeForm] = ChallengeForm,
    ) -> None:
        """`find`: by the name of a user, or by the id of a token if the second argument is true. `secret`: of the
        nodes, from which the salts of unknown users are made, so that they are always the same. `form`: of the
        challenges of most users."""
        self._mechanism = mechanism
        self._find = find
        self._nonce = nonce
        self._secret = secret
        self._form = form
        self._challenge: ServerFirst | None = None
        self._known: KnownCredential | None = None
        self.outcome: Authenticated | None = None

    def answer(self, message: bytes) -> bytes:
        try:
            if self._challenge is None:
                return self._first(parse_client_first(message))
            final = self._challenge.verify(parse_client_final(message))
        except MalformedMessage as error:
            raise AuthenticationFailed(reason=str(error)) from None
        if final is None or self._known is None:
            raise AuthenticationFailed()
        self.outcome = Authenticated(self._known.principal, self._known.expires_ms, self._known.is_valid)
        return final

    def _first(self, client: ClientFirst) -> bytes:
        if client.authorization_id not in ("", client.user):
            raise AuthenticationFailed(_WRONG_ID)
        is_token = client.extensions.get(TOKEN_EXTENSION, "").lower() == "true"
        self._known = self._find(client.user, is_token)
        credential = self._known.credential if self._known is not None else self._unknown(client.user, is_token)
        self._challenge = ServerFirst.of(self._mechanism, client, self._nonce, credential)
        return self._challenge.message.encode()

    def _unknown(self, user: str, is_token: bool) -> Credential:
        made = _digest(self._secret, self._mechanism, user)[: digest_size(self._mechanism)]
        # No proof fits a stored key that is not the hash of a known value.
        if is_token:
            return Credential(token_salt(self._secret, self._mechanism, user), made, made, FEWEST_ITERATIONS)
        form = self._form()
        return Credential(_made_salt(self._secret, self._mechanism, user, form), made, made, form.iterations)


def token_salt(secret: bytes, mechanism: str, token_id: str) -> bytes:
    """Of a delegation token, whose credential is not stored: always the same, whether or not there is such a token."""
    return base64.b64encode(_digest(secret, mechanism, token_id))[:_SALT_BYTES]


def _made_salt(secret: bytes, mechanism: str, user: str, form: ChallengeForm) -> bytes:
    """Of a name that has no credential: always the same, in the form of others."""
    made = b""
    while len(made) < form.salt_bytes:
        made += _digest(secret, f"salt {len(made)} {mechanism}", user)
    made = made[: form.salt_bytes]
    return bytes(_DIGITS[each % len(_DIGITS)] for each in made) if form.is_text else made


def _digest(secret: bytes, mechanism: str, user: str) -> bytes:
    return hmac.digest(secret, f"{mechanism} {user}".encode(), "sha512")
