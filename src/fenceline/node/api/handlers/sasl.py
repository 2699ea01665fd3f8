"""SaslHandshake and SaslAuthenticate of a connection that needs no authentication.

With SASL these requests do not reach a handler (`fenceline.security.authentication`). Rules: security.md A18.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from fenceline.errors import ErrorCode
from fenceline.node.context import Api, RequestContext
from fenceline.security.authentication import AUTHENTICATE_VERSIONS, HANDSHAKE_VERSIONS, TOO_LATE
from fenceline.wire.apis import ApiKey


def sasl_handshake(context: RequestContext, request: Any) -> dict[str, Any]:
    return {"error_code": ErrorCode.ILLEGAL_SASL_STATE, "mechanisms": []}


def sasl_authenticate(context: RequestContext, request: Any) -> dict[str, Any]:
    return {
        "error_code": ErrorCode.ILLEGAL_SASL_STATE,
        "error_message": TOO_LATE,
        "auth_bytes": b"",
        "session_lifetime": timedelta(0),
    }


def apis() -> tuple[Api, ...]:
    return (
        Api(ApiKey.SASL_HANDSHAKE, *HANDSHAKE_VERSIONS, sasl_handshake),
        Api(ApiKey.SASL_AUTHENTICATE, *AUTHENTICATE_VERSIONS, sasl_authenticate),
    )
