"""Delegation tokens: the calls of Admin (KIP-48). They need a connection that proves who asks, and not by a token.

Rules: security.md A33 to A35.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from fenceline.client.admin.admin_requests import AdminRequests
from fenceline.client.core.errors import raise_if
from fenceline.errors import OperatorError
from fenceline.wire.apis import ApiKey

_USER: Final = "User"
_DEFAULT: Final = -1


@dataclass(frozen=True, slots=True)
class DelegationToken:
    """Principals are written `User:name`; times are milliseconds since the epoch. `requester` is empty if the broker
    is too old to return it."""

    token_id: str
    """The user name of a login (`sasl.username`, with `sasl.tokenauth=true`)."""
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issue_ms: int
    expiry_ms: int
    max_ms: int
    hmac: bytes = field(repr=False)

    @property
    def password(self) -> str:
        """The password of a login: the hmac in base64, as Kafka's tools print it."""
        return base64.b64encode(self.hmac).decode()


class DelegationTokensAdmin(AdminRequests):
    """Part of `AsyncAdmin`."""

    async def create_delegation_token(
        self,
        *,
        renewers: Iterable[str] = (),
        owner: str | None = None,
        max_lifetime_ms: int | None = None,
        timeout_ms: float | None = None,
    ) -> DelegationToken:
        """A token for this client's user, or for `owner` (needs the right CreateTokens). `max_lifetime_ms` None: as
        the cluster is configured.

        Raises PeerError: DELEGATION_TOKEN_AUTH_DISABLED, DELEGATION_TOKEN_REQUEST_NOT_ALLOWED,
        DELEGATION_TOKEN_AUTHORIZATION_FAILED.
        """
        renewing = tuple(map(_principal, renewers))
        owner_type, owner_name = (None, None) if owner is None else _principal(owner)
        fields = {
            "owner_principal_type": owner_type,
            "owner_principal_name": owner_name,
            "renewers": [_as_fields(each) for each in renewing],
            "max_lifetime": _DEFAULT if max_lifetime_ms is None else max_lifetime_ms,
        }
        key = ApiKey.CREATE_DELEGATION_TOKEN
        made = await self._ask_for_tokens(key, fields, timeout_ms, min_version=0 if owner is None else 3)
        raise_if(made, "creating a delegation token")
        return _token(made, tuple(map(":".join, renewing)))

    async def renew_delegation_token(
        self, hmac: bytes | str, *, period_ms: int | None = None, timeout_ms: float | None = None
    ) -> int:
        """The new time of expiry, `period_ms` from now (None: as the cluster is configured), or the token's last one if
        that is earlier. `hmac` may be in base64.

        Raises PeerError: DELEGATION_TOKEN_NOT_FOUND, DELEGATION_TOKEN_EXPIRED, DELEGATION_TOKEN_OWNER_MISMATCH.
        """
        fields = {"hmac": _hmac(hmac), "renew_period": _DEFAULT if period_ms is None else period_ms}
        answer = await self._ask_for_tokens(ApiKey.RENEW_DELEGATION_TOKEN, fields, timeout_ms)
        raise_if(answer, "renewing a delegation token")
        return _ms(answer.expiry_timestamp)

    async def expire_delegation_token(
        self, hmac: bytes | str, *, period_ms: int = -1, timeout_ms: float | None = None
    ) -> int:
        """The token expires in `period_ms`; if negative, it is removed at once. The time of expiry. Raises PeerError as
        `renew_delegation_token`."""
        fields = {"hmac": _hmac(hmac), "expiry_time_period": period_ms}
        answer = await self._ask_for_tokens(ApiKey.EXPIRE_DELEGATION_TOKEN, fields, timeout_ms)
        raise_if(answer, "expiring a delegation token")
        return _ms(answer.expiry_timestamp)

    async def describe_delegation_tokens(
        self, owners: Iterable[str] | None = None, *, timeout_ms: float | None = None
    ) -> list[DelegationToken]:
        """The tokens of these principals, by id; None: all that this client's user may see. Those that it must not see
        are left out."""
        named = None if owners is None else [_as_fields(_principal(each)) for each in owners]
        deadline = self._deadline(timeout_ms)
        answer = await self._ask(None, ApiKey.DESCRIBE_DELEGATION_TOKEN, {"owners": named}, deadline)
        raise_if(answer, "describing delegation tokens")
        found = [
            _token(each, tuple(f"{one.principal_type}:{one.principal_name}" for one in each.renewers))
            for each in answer.tokens
        ]
        return sorted(found, key=lambda token: token.token_id)

    async def _ask_for_tokens(
        self, key: ApiKey, fields: dict[str, Any], timeout_ms: float | None, *, min_version: int = 0
    ) -> Any:
        deadline = self._deadline(timeout_ms)
        return await self._ask_controller(key, fields, deadline, lambda answer: (answer,), min_version=min_version)


def _principal(text: str) -> tuple[str, str]:
    """Type and name of `User:name` or of a name. Raises OperatorError."""
    kind, separator, name = text.partition(":")
    if not separator:
        kind, name = _USER, text
    if not kind or not name:
        raise OperatorError(f"{text!r} is not a principal", "Write User:NAME, or the name alone.")
    return kind, name


def _as_fields(principal: tuple[str, str]) -> dict[str, str]:
    return {"principal_type": principal[0], "principal_name": principal[1]}


def _hmac(given: bytes | str) -> bytes:
    """Raises OperatorError."""
    if isinstance(given, bytes):
        return given
    try:
        return base64.b64decode(given, validate=True)
    except (binascii.Error, ValueError):
        raise OperatorError("The hmac of a delegation token is not base64", "Pass it as it was printed.") from None


def _token(found: Any, renewers: tuple[str, ...]) -> DelegationToken:
    requester = getattr(found, "token_requester_principal_name", "")
    return DelegationToken(
        str(found.token_id),
        f"{found.principal_type}:{found.principal_name}",
        f"{found.token_requester_principal_type}:{requester}" if requester else "",
        renewers,
        _ms(found.issue_timestamp),
        _ms(found.expiry_timestamp),
        _ms(found.max_timestamp),
        bytes(found.hmac),
    )


def _ms(time: Any) -> int:
    """Some answers have the number, others a time."""
    return time if isinstance(time, int) else -1 if time is None else round(time.timestamp() * 1000)
