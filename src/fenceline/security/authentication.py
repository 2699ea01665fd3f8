"""The SASL conversation on one connection, without I/O: which requests are allowed when, and what they are answered.

| state        | ApiVersions | SaslHandshake        | SaslAuthenticate, or a raw token | any other request |
|--------------|-------------|----------------------|----------------------------------|-------------------|
| begin        | answered    | begins an exchange   | closes                           | closes            |
| versions     | closes      | begins an exchange   | closes                           | closes            |
| exchange     | closes      | closes               | the mechanism's next message     | closes            |
| done         | served      | 34, or begins again  | 34                               | served            |
| again        | closes      | closes               | the mechanism's next message     | closes            |

A session ends when its credential does, or after `connections.max.reauth.ms`: then the connection closes unless its
next request begins to authenticate again, which keeps the mechanism and the principal. Whoever knows that a credential
was removed asks `is_withdrawn`, and closes the connection.

Owns these states. Never sends, waits or looks up a credential. Rules: security.md A14 to A21.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from fenceline.errors import ErrorCode
from fenceline.security.sasl_server import AuthenticationFailed, SaslExchange
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import read_request, write_response
from fenceline.wire.frame import RequestHeader
from fenceline.wire.principal import Principal

HANDSHAKE_VERSIONS: Final = (0, 1)
AUTHENTICATE_VERSIONS: Final = (0, 2)
TOO_LATE: Final = "SaslAuthenticate request received after successful authentication"
_RETRY_AFTER_MS: Final = 1_000
"""A connection authenticates again at most once in this time."""


class _State(Enum):
    BEGIN = auto()
    VERSIONS = auto()
    EXCHANGE = auto()
    DONE = auto()
    AGAIN = auto()


@dataclass(frozen=True, slots=True)
class SaslStep:
    """What happens with a request: the body of the answer (None: none), and then."""

    body: bytes | None = None
    closes: bool = False
    failure: str | None = None
    """Why the peer is not authenticated, for the log. The answer, or the end of the connection, is delayed."""
    is_raw: bool = False
    """The answer has no header."""
    authenticated: bool = False


class SaslConversation:
    """See the module."""

    def __init__(
        self,
        mechanisms: Sequence[str],
        begin: Callable[[str], SaslExchange],
        *,
        max_session_ms: int,
    ) -> None:
        """`begin`: an exchange of one of the mechanisms. `max_session_ms`: 0 is no limit."""
        self._mechanisms = tuple(mechanisms)
        self._begin = begin
        self._max_session_ms = max_session_ms
        self._state = _State.BEGIN
        self._mechanism = ""
        self._exchange: SaslExchange | None = None
        self._is_raw = False
        self._is_refused = False
        """The handshake named another mechanism than the first login: its next message closes the connection."""
        self.principal: Principal | None = None
        """Of the authenticated peer."""
        self._ends_ms: int | None = None
        """When the session ends, in milliseconds of the monotonic clock."""
        self._is_valid: Callable[[int], bool] | None = None
        """Of the credential, if it can be withdrawn."""
        self._again_from_ms = 0

    @property
    def is_done(self) -> bool:
        """Whether requests are served."""
        return self._state is _State.DONE

    @property
    def expects_raw_token(self) -> bool:
        """Whether the next frame is a message of the mechanism, without a header (a handshake of version 0)."""
        return self._is_raw and self._state in (_State.EXCHANGE, _State.AGAIN)

    @property
    def may_end(self) -> bool:
        """Whether the session has an end."""
        return self._ends_ms is not None

    def is_withdrawn(self, wall_ms: int) -> bool:
        """Whether the credential of the last login has been removed."""
        return self._is_valid is not None and not self._is_valid(wall_ms)

    def is_over(self, now_ms: int, wall_ms: int, key: int) -> bool:
        """Whether the session has ended before a request with this API key."""
        if self._ends_ms is None or not self.is_done or key == ApiKey.SASL_HANDSHAKE:
            return False
        return now_ms >= self._ends_ms or self.is_withdrawn(wall_ms)

    def request(self, header: RequestHeader, body: memoryview, now_ms: int, wall_ms: int) -> SaslStep | None:
        """A request that is not served, or None for ApiVersions, which is answered as usual.

        `now_ms` is of the monotonic clock. Raises MalformedRequest."""
        key, version = header.api_key, header.api_version
        if self._state in (_State.EXCHANGE, _State.AGAIN):
            if key != ApiKey.SASL_AUTHENTICATE or not _is_in(version, AUTHENTICATE_VERSIONS):
                return SaslStep(closes=True, failure=f"API {key} version {version} in the middle of an authentication")
            message = bytes(read_request(ApiKey.SASL_AUTHENTICATE, version, bytes(body)).auth_bytes)
            return self._token(message, version, now_ms, wall_ms)
        if key == ApiKey.SASL_HANDSHAKE and _is_in(version, HANDSHAKE_VERSIONS):
            asked = read_request(ApiKey.SASL_HANDSHAKE, version, bytes(body))
            return self._handshake(str(asked.mechanism), version, now_ms)
        if self._state is _State.DONE:
            if key == ApiKey.SASL_AUTHENTICATE and _is_in(version, AUTHENTICATE_VERSIONS):
                return SaslStep(_authenticate_body(version, ErrorCode.ILLEGAL_SASL_STATE, TOO_LATE, b"", 0))
            return None
        if key == ApiKey.API_VERSIONS and self._state is _State.BEGIN:
            return None
        return SaslStep(closes=True, failure=f"API {key} before the authentication")

    def versions_answered(self) -> None:
        """ApiVersions was answered without an error."""
        if self._state is _State.BEGIN:
            self._state = _State.VERSIONS

    def raw_token(self, message: bytes, now_ms: int, wall_ms: int) -> SaslStep:
        """A frame while `expects_raw_token`."""
        return self._token(message, None, now_ms, wall_ms)

    # --- steps ----------------------------------------

    def _handshake(self, mechanism: str, version: int, now_ms: int) -> SaslStep:
        is_again = self._state is _State.DONE
        if is_again and (self._ends_ms is None or now_ms < self._again_from_ms):
            return SaslStep(_handshake_body(version, ErrorCode.ILLEGAL_SASL_STATE, ()))
        if mechanism not in self._mechanisms:
            body = _handshake_body(version, ErrorCode.UNSUPPORTED_SASL_MECHANISM, self._mechanisms)
            return SaslStep(body, closes=True, failure=f"mechanism {mechanism[:100]!r} is not enabled")
        self._is_refused = is_again and mechanism != self._mechanism
        self._mechanism = self._mechanism if is_again else mechanism
        self._exchange = self._begin(mechanism)
        self._is_raw = version == 0
        self._state = _State.AGAIN if is_again else _State.EXCHANGE
        return SaslStep(_handshake_body(version, ErrorCode.NONE, self._mechanisms))

    def _token(self, message: bytes, version: int | None, now_ms: int, wall_ms: int) -> SaslStep:
        """`version`: of SaslAuthenticate; None for a raw token."""
        exchange = self._exchange
        assert exchange is not None, "a handshake began it"
        if self._is_refused:
            return SaslStep(closes=True, failure="another mechanism than that of the first authentication")
        try:
            answer = exchange.answer(message)
            if exchange.outcome is None:
                return _answered(version, answer, 0)
            outcome = exchange.outcome
            if self.principal not in (None, outcome.principal):
                raise AuthenticationFailed(
                    "Cannot change principals during re-authentication from "
                    f"{_java_name(self.principal)}: {_java_name(outcome.principal)}"
                )
            lifetime_ms = self._lifetime_ms(outcome.expires_ms, wall_ms)
            if lifetime_ms is not None and lifetime_ms <= 0:
                raise AuthenticationFailed(reason="the credential has expired")
            if outcome.is_valid is not None and not outcome.is_valid(wall_ms):
                raise AuthenticationFailed(reason="the credential was removed during the login")
        except AuthenticationFailed as error:
            return self._failed(error, version)
        self.principal = outcome.principal
        self._ends_ms = None if lifetime_ms is None else now_ms + lifetime_ms
        self._is_valid = outcome.is_valid
        self._again_from_ms = now_ms + _RETRY_AFTER_MS
        self._state, self._exchange = _State.DONE, None
        return _answered(version, answer, lifetime_ms or 0, authenticated=True)

    def _lifetime_ms(self, expires_ms: int | None, wall_ms: int) -> int | None:
        limits = [] if expires_ms is None else [expires_ms - wall_ms]
        if self._max_session_ms > 0:
            limits.append(self._max_session_ms)
        return min(limits, default=None)

    def _failed(self, error: AuthenticationFailed, version: int | None) -> SaslStep:
        if version is None:
            return SaslStep(closes=True, failure=str(error))
        what = "re-authentication" if self._state is _State.AGAIN else "authentication"
        text = error.message or (
            f"Authentication failed during {what} due to invalid credentials with SASL mechanism {self._mechanism}"
        )
        body = _authenticate_body(version, ErrorCode.SASL_AUTHENTICATION_FAILED, text, b"", 0)
        return SaslStep(body, closes=True, failure=str(error))


def _answered(version: int | None, answer: bytes, lifetime_ms: int, *, authenticated: bool = False) -> SaslStep:
    if version is None:
        return SaslStep(answer, is_raw=True, authenticated=authenticated)
    body = _authenticate_body(version, ErrorCode.NONE, "", answer, lifetime_ms)
    return SaslStep(body, authenticated=authenticated)


def _authenticate_body(version: int, code: ErrorCode, text: str, answer: bytes, lifetime_ms: int) -> bytes:
    fields = {
        "error_code": code,
        "error_message": text,
        "auth_bytes": answer,
        "session_lifetime": lifetime_ms,
    }
    return write_response(ApiKey.SASL_AUTHENTICATE, version, fields)


def _handshake_body(version: int, code: ErrorCode, mechanisms: Sequence[str]) -> bytes:
    return write_response(ApiKey.SASL_HANDSHAKE, version, {"error_code": code, "mechanisms": list(mechanisms)})


def _is_in(version: int, versions: tuple[int, int]) -> bool:
    return versions[0] <= version <= versions[1]


def _java_name(principal: Principal | None) -> str:
    return "" if principal is None else f"{principal.type}.{principal.name}"
