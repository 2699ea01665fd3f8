"""Delegation tokens: created, renewed, expired, and removed once they have expired.

Owns the checks of these requests, except who may create a token for another principal. The time is the wall clock's,
and comes with the request. Principals are written `User:name`.

Rules: security.md A32 to A36.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from fenceline.controller.requests import (
    CreatedDelegationToken,
    CreateDelegationToken,
    DelegationTokenExpiry,
    ExpireDelegationToken,
    RemoveExpiredTokens,
    RemoveExpiredTokensAnswer,
    RenewDelegationToken,
)
from fenceline.controller.state import MAX_RECORDS, ControllerState, Decision
from fenceline.errors import ErrorCode, PeerError
from fenceline.ids import encode_uuid, random_id
from fenceline.metadata.features import METADATA_VERSION
from fenceline.metadata.security_records import DelegationTokenRecord, RemoveDelegationTokenRecord
from fenceline.rng import Rng
from fenceline.sasl.delegation_tokens import token_hmac

_MV_TOKENS: Final = 14
"""3.6-IV2."""
_MAX_NAME_CHARACTERS: Final = 64 << 10
"""Of a token's principals together: any user may name renewers, and each node keeps them."""
_MAX_TIME_MS: Final = 2**63 - 1


def create_delegation_token(state: ControllerState, request: CreateDelegationToken, rng: Rng) -> Decision:
    """Raises PeerError(61, 35, 42)."""
    _check_enabled(state)
    settings = state.settings
    if sum(map(len, (request.owner, *request.renewers))) > _MAX_NAME_CHARACTERS:
        raise PeerError(ErrorCode.INVALID_REQUEST, "The principals of the token are too long")
    lifetime_ms = settings.token_max_lifetime_ms
    if request.max_lifetime_ms > 0:
        lifetime_ms = min(lifetime_ms, request.max_lifetime_ms)
    max_timestamp = _sum(request.now_ms, lifetime_ms)
    token_id = encode_uuid(random_id(rng))
    made = DelegationTokenRecord(
        request.owner,
        request.requester,
        request.renewers,
        request.now_ms,
        max_timestamp,
        min(max_timestamp, _sum(request.now_ms, settings.token_expiry_ms)),
        token_id,
    )
    return Decision((made,), CreatedDelegationToken(made, token_hmac(settings.token_secret, token_id)))


def renew_delegation_token(state: ControllerState, request: RenewDelegationToken) -> Decision:
    """Raises PeerError(61, 35, 62, 66, 63), in this order."""
    token = _token(state, request.hmac)
    _check_not_expired(token, request.now_ms)
    _check_may_renew(token, request.requester)
    period_ms = state.settings.token_expiry_ms
    if request.period_ms > 0:
        period_ms = min(period_ms, request.period_ms)
    return _with_expiry(token, request.now_ms, period_ms)


def expire_delegation_token(state: ControllerState, request: ExpireDelegationToken) -> Decision:
    """A negative period removes the token. Raises PeerError(61, 35, 62, 63, 66), in this order."""
    token = _token(state, request.hmac)
    _check_may_renew(token, request.requester)
    if request.period_ms < 0:
        return Decision((RemoveDelegationTokenRecord(token.token_id),), DelegationTokenExpiry(request.now_ms))
    _check_not_expired(token, request.now_ms)
    return _with_expiry(token, request.now_ms, request.period_ms)


def remove_expired_tokens(state: ControllerState, request: RemoveExpiredTokens) -> Decision:
    expired = [
        token_id for token_id, token in state.image.delegation_tokens.items() if _is_expired(token, request.now_ms)
    ]
    records = tuple(map(RemoveDelegationTokenRecord, expired[:MAX_RECORDS]))
    return Decision(records, RemoveExpiredTokensAnswer(len(expired) > MAX_RECORDS))


def _check_enabled(state: ControllerState) -> None:
    if not state.settings.token_secret:
        raise PeerError(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED, "delegation.token.secret.key is not set")
    if state.finalized(METADATA_VERSION) < _MV_TOKENS:
        raise PeerError(
            ErrorCode.UNSUPPORTED_VERSION, "The current metadata version does not support delegation tokens"
        )


def _token(state: ControllerState, hmac: bytes) -> DelegationTokenRecord:
    _check_enabled(state)
    token_id = state.tokens.token_id(hmac)
    if token_id is None:
        raise PeerError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND, "There is no delegation token with this hmac")
    return state.image.delegation_tokens[token_id]


def _check_may_renew(token: DelegationTokenRecord, requester: str) -> None:
    if requester != token.owner and requester not in token.renewers:
        raise PeerError(
            ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH, f"{requester} is neither owner nor renewer of the token"
        )


def _is_expired(token: DelegationTokenRecord, now_ms: int) -> bool:
    return min(token.max_timestamp, token.expiration_timestamp) < now_ms


def _check_not_expired(token: DelegationTokenRecord, now_ms: int) -> None:
    if _is_expired(token, now_ms):
        raise PeerError(ErrorCode.DELEGATION_TOKEN_EXPIRED, "The delegation token has expired")


def _with_expiry(token: DelegationTokenRecord, now_ms: int, period_ms: int) -> Decision:
    expiry_ms = min(token.max_timestamp, _sum(now_ms, period_ms))
    return Decision((replace(token, expiration_timestamp=expiry_ms),), DelegationTokenExpiry(expiry_ms))


def _sum(now_ms: int, period_ms: int) -> int:
    return min(now_ms + period_ms, _MAX_TIME_MS)
