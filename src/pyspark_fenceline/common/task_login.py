"""How tasks log in at the brokers: as the driver does, or with a delegation token that the driver obtains.

With the property `executor.token.mechanism` (`kafka.executor.token.mechanism` as an option of Spark), the driver logs
in by `sasl.*` as ever, creates a token for its user, and gives tasks the token in place of the `sasl.*` properties:
executors never have the user's password. The mechanism is the SCRAM mechanism by which tasks log in.

Owns the token of each set of properties in this process: it is renewed when half of its time is over, and replaced when
it cannot be renewed any more. Rules: security.md A71.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fenceline.errors import OperatorError, PeerError

if TYPE_CHECKING:
    from fenceline.client.admin.admin import Admin
    from fenceline.client.admin.delegation_tokens import DelegationToken

PROPERTY: Final = "executor.token.mechanism"
_MECHANISMS: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512")
_OF_A_LOGIN: Final = ("sasl.", "oauth")

_tokens: dict[tuple[tuple[str, str], ...], _Kept] = {}
_lock = threading.Lock()


@dataclass(slots=True)
class _Kept:
    token: DelegationToken
    from_ms: int
    """When it was created or last renewed."""
    expiry_ms: int

    def is_fresh(self, now_ms: int) -> bool:
        return now_ms < (self.from_ms + self.expiry_ms) // 2


def of_driver(client: Mapping[str, str]) -> dict[str, str]:
    """The properties of the driver's own clients."""
    return {key: value for key, value in client.items() if key != PROPERTY}


def of_tasks(client: Mapping[str, str]) -> dict[str, str]:
    """The properties of tasks, without a login if they get a token (`token_login`). Raises OperatorError."""
    mechanism = client.get(PROPERTY)
    if mechanism is None:
        return dict(client)
    if mechanism.strip().upper() not in _MECHANISMS:
        raise OperatorError(
            f"Option 'kafka.{PROPERTY}' must be one of {', '.join(_MECHANISMS)}, not '{mechanism}'",
            "Name a mechanism that the brokers' listener has enabled.",
        )
    if not client.get("security.protocol", "").strip().upper().startswith("SASL"):
        raise OperatorError(
            f"Option 'kafka.{PROPERTY}' requires kafka.security.protocol SASL_SSL or SASL_PLAINTEXT",
            "Tokens log in by SASL.",
        )
    return {key: value for key, value in client.items() if key != PROPERTY and not key.lower().startswith(_OF_A_LOGIN)}


def token_login(client: Mapping[str, str]) -> dict[str, str]:
    """The login of tasks to be added to `of_tasks`; empty without the property. Asks the brokers for a token, or for
    more time, if necessary. Raises their errors, OperatorError."""
    if PROPERTY not in client:
        return {}
    of_tasks(client)
    with _lock:
        token = _current(client).token
    return {
        "sasl.mechanism": client[PROPERTY].strip().upper(),
        "sasl.username": token.token_id,
        "sasl.password": token.password,
        "sasl.tokenauth": "true",
    }


def with_token(client: Mapping[str, str]) -> dict[str, str]:
    """The properties of tasks, with their login."""
    return {**of_tasks(client), **token_login(client)}


def _current(client: Mapping[str, str]) -> _Kept:
    from fenceline.client.admin.admin import Admin

    key = tuple(sorted(client.items()))
    kept, now_ms = _tokens.get(key), int(time.time() * 1000)
    if kept is None or not kept.is_fresh(now_ms):
        with Admin(of_driver(client)) as admin:
            kept = _tokens[key] = (None if kept is None else _renewed(admin, kept, now_ms)) or _created(admin, now_ms)
    return kept


def _created(admin: Admin, now_ms: int) -> _Kept:
    token = admin.create_delegation_token()
    return _Kept(token, now_ms, token.expiry_ms)


def _renewed(admin: Admin, kept: _Kept, now_ms: int) -> _Kept | None:
    """None if its last time has come, or it is gone: tasks need another."""
    try:
        expiry_ms = admin.renew_delegation_token(kept.token.hmac)
    except PeerError:
        return None
    return _Kept(kept.token, now_ms, expiry_ms) if expiry_ms < kept.token.max_ms else None
