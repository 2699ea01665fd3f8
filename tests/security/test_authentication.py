"""The SASL conversation of a connection, as a table and over time. Rules: security.md A14 to A21."""

from __future__ import annotations

from typing import Any

import pytest

from fenceline.errors import ErrorCode
from fenceline.security.authentication import SaslConversation, SaslStep
from fenceline.security.sasl_server import Authenticated, PlainExchange, SaslExchange
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import read_response, write_request
from fenceline.wire.frame import RequestHeader

RIGHT, WRONG = b"\0anna\0secret", b"\0anna\0wrong"


class Expiring(PlainExchange):
    """Logs in with a credential that expires."""

    expires_ms = 5_000

    def answer(self, message: bytes) -> bytes:
        answer = super().answer(message)
        assert self.outcome is not None
        self.outcome = Authenticated(self.outcome.principal, self.expires_ms, self.is_valid)
        return answer

    def is_valid(self, now_ms: int) -> bool:
        """It is withdrawn at this time."""
        return now_ms < 3_000


class Peer:
    def __init__(self, *, max_session_ms: int = 0, mechanisms: tuple[str, ...] = ("PLAIN", "EXPIRING")) -> None:
        self.conversation = SaslConversation(mechanisms, self._begin, max_session_ms=max_session_ms)
        self.now_ms = 1_000

    def _begin(self, mechanism: str) -> SaslExchange:
        passwords = {"anna": "secret", "otto": "secret"}
        return PlainExchange(passwords) if mechanism == "PLAIN" else Expiring(passwords)

    def ask(self, key: ApiKey, version: int, **fields: Any) -> SaslStep | None:
        body = memoryview(write_request(key, version, fields)) if fields else memoryview(b"")
        return self.conversation.request(RequestHeader(key, version, 7, "me", 0), body, self.now_ms, self.now_ms)

    def handshake(self, mechanism: str = "PLAIN", version: int = 1) -> SaslStep:
        step = self.ask(ApiKey.SASL_HANDSHAKE, version, mechanism=mechanism)
        assert step is not None
        return step

    def authenticate(self, message: bytes = RIGHT, version: int = 2) -> SaslStep:
        step = self.ask(ApiKey.SASL_AUTHENTICATE, version, auth_bytes=message)
        assert step is not None
        return step

    def logged_in(self, mechanism: str = "PLAIN") -> Peer:
        self.handshake(mechanism)
        assert self.authenticate().authenticated
        return self


def code(step: SaslStep, key: ApiKey = ApiKey.SASL_HANDSHAKE, version: int = 1) -> ErrorCode:
    assert step.body is not None
    return ErrorCode(read_response(key, version, step.body).error_code)


def answer(step: SaslStep, version: int = 2) -> Any:
    assert step.body is not None
    return read_response(ApiKey.SASL_AUTHENTICATE, version, step.body)


def test_login_with_versions_first() -> None:
    peer = Peer()
    assert peer.ask(ApiKey.API_VERSIONS, 3) is None
    peer.conversation.versions_answered()
    assert not peer.conversation.is_done
    shaken = read_response(ApiKey.SASL_HANDSHAKE, 1, peer.handshake().body or b"")
    assert (shaken.error_code, list(shaken.mechanisms)) == (0, ["PLAIN", "EXPIRING"])
    step = peer.authenticate()
    assert step.authenticated
    found = answer(step)
    assert (found.error_code, found.error_message, found.auth_bytes) == (0, "", b"")
    assert peer.conversation.is_done
    assert str(peer.conversation.principal) == "User:anna"
    assert peer.ask(ApiKey.METADATA, 12) is None, "served"


def test_second_list_of_versions_closes() -> None:
    peer = Peer()
    assert peer.ask(ApiKey.API_VERSIONS, 3) is None
    assert peer.ask(ApiKey.API_VERSIONS, 3) is None, "the first one had an error"
    peer.conversation.versions_answered()
    step = peer.ask(ApiKey.API_VERSIONS, 3)
    assert step == SaslStep(closes=True, failure=f"API {int(ApiKey.API_VERSIONS)} before the authentication")


@pytest.mark.parametrize("key", [ApiKey.METADATA, ApiKey.PRODUCE, ApiKey.SASL_AUTHENTICATE])
def test_other_requests_close_without_an_answer(key: ApiKey) -> None:
    step = Peer().ask(key, 0)
    assert step is not None
    assert (step.closes, step.body) == (True, None)


@pytest.mark.parametrize("mechanism", ["plain", "GSSAPI", "", "x" * 10_000])
def test_mechanism_that_is_off(mechanism: str) -> None:
    step = Peer().handshake(mechanism)
    assert step.closes
    assert code(step) is ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert step.failure is not None
    assert len(step.failure) < 200


@pytest.mark.parametrize("version", [0, 1, 2])
def test_wrong_password(version: int) -> None:
    peer = Peer()
    peer.handshake()
    step = peer.authenticate(WRONG, version)
    found = answer(step, version)
    assert step.closes
    assert (found.error_code, found.error_message) == (58, "Authentication failed: Invalid username or password")
    assert peer.conversation.principal is None
    assert not peer.conversation.is_done


def test_failure_without_its_own_text_names_the_mechanism() -> None:
    peer = Peer()
    peer.handshake()
    text = "Authentication failed during authentication due to invalid credentials with SASL mechanism PLAIN"
    assert answer(peer.authenticate(b"\0\0\xff")).error_message == text


def test_raw_tokens_after_a_handshake_of_version_0() -> None:
    peer = Peer()
    assert code(peer.handshake(version=0), version=0) is ErrorCode.NONE
    assert peer.conversation.expects_raw_token
    step = peer.conversation.raw_token(RIGHT, 0, 0)
    assert (step.body, step.is_raw, step.authenticated) == (b"", True, True)
    assert not peer.conversation.expects_raw_token
    peer = Peer()
    peer.handshake(version=0)
    step = peer.conversation.raw_token(WRONG, 0, 0)
    assert (step.body, step.closes) == (None, True)


@pytest.mark.parametrize(
    ("key", "version"),
    [(ApiKey.METADATA, 1), (ApiKey.API_VERSIONS, 3), (ApiKey.SASL_HANDSHAKE, 1), (ApiKey.SASL_AUTHENTICATE, 9)],
)
def test_other_requests_in_the_middle_close(key: ApiKey, version: int) -> None:
    peer = Peer()
    peer.handshake()
    step = peer.ask(key, version)
    assert step is not None
    assert step.closes


def test_without_a_session_nobody_authenticates_again() -> None:
    peer = Peer().logged_in()
    peer.now_ms += 10**9
    assert not peer.conversation.is_over(peer.now_ms, 0, ApiKey.METADATA)
    step = peer.handshake()
    assert (code(step), step.closes) == (ErrorCode.ILLEGAL_SASL_STATE, False)
    found = answer(peer.authenticate())
    assert (found.error_code, found.error_message) == (
        34,
        "SaslAuthenticate request received after successful authentication",
    )


def lifetime_ms(step: SaslStep) -> float:
    return float(answer(step).session_lifetime.total_seconds() * 1000)


@pytest.mark.parametrize(
    ("mechanism", "max_session_ms", "expected"),
    [
        ("PLAIN", 0, 0),
        ("PLAIN", 3_000, 3_000),
        ("EXPIRING", 0, 4_000),
        ("EXPIRING", 3_000, 3_000),
        ("EXPIRING", 9_000, 4_000),
    ],
)
def test_length_of_a_session(mechanism: str, max_session_ms: int, expected: int) -> None:
    peer = Peer(max_session_ms=max_session_ms)
    peer.handshake(mechanism)
    assert lifetime_ms(peer.authenticate()) == expected
    if expected:
        assert not peer.conversation.is_over(peer.now_ms + expected - 1, 0, ApiKey.METADATA)
        assert peer.conversation.is_over(peer.now_ms + expected, 0, ApiKey.METADATA)
        assert not peer.conversation.is_over(peer.now_ms + expected, 0, ApiKey.SASL_HANDSHAKE)


def test_expired_credential_does_not_log_in() -> None:
    """Kafka lets it in with a session of 0, which its clients take for unlimited (A20, A36)."""
    peer = Peer()
    peer.now_ms = Expiring.expires_ms
    peer.handshake("EXPIRING")
    step = peer.authenticate()
    assert step.closes
    assert answer(step).error_code == 58


def test_a_withdrawn_credential_ends_the_session() -> None:
    """Before its time (A69)."""
    peer = Peer().logged_in("EXPIRING")
    assert not peer.conversation.is_over(peer.now_ms, 2_999, ApiKey.METADATA)
    assert peer.conversation.is_over(peer.now_ms, 3_000, ApiKey.METADATA)
    peer.now_ms += 1_000
    assert not peer.conversation.is_over(peer.now_ms, 3_000, ApiKey.SASL_HANDSHAKE)
    peer.handshake("EXPIRING")
    assert not peer.conversation.is_over(peer.now_ms, 3_000, ApiKey.SASL_AUTHENTICATE), "it is authenticating"


def test_authenticating_again_extends_the_session() -> None:
    peer = Peer(max_session_ms=3_000).logged_in()
    assert code(peer.handshake()) is ErrorCode.ILLEGAL_SASL_STATE, "at most once a second"
    peer.now_ms += 2_000
    assert code(peer.handshake()) is ErrorCode.NONE
    assert not peer.conversation.is_done
    assert peer.authenticate().authenticated
    assert not peer.conversation.is_over(peer.now_ms + 2_999, 0, ApiKey.METADATA)


def test_principal_cannot_change() -> None:
    peer = Peer(max_session_ms=3_000).logged_in()
    peer.now_ms += 2_000
    peer.handshake()
    step = peer.authenticate(b"\0otto\0secret")
    text = "Cannot change principals during re-authentication from User.anna: User.otto"
    assert step.closes
    assert (answer(step).error_code, answer(step).error_message) == (58, text)


def test_mechanism_cannot_change() -> None:
    peer = Peer(max_session_ms=3_000).logged_in()
    peer.now_ms += 2_000
    assert code(peer.handshake("EXPIRING")) is ErrorCode.NONE
    step = peer.authenticate()
    assert (step.closes, step.body) == (True, None)


def test_wrong_password_of_a_second_authentication() -> None:
    peer = Peer(max_session_ms=3_000).logged_in()
    peer.now_ms += 2_000
    peer.handshake()
    assert answer(peer.authenticate(b"\0\0\xff")).error_message.startswith("Authentication failed during re-authent")
