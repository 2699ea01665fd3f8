"""Delegation tokens (KIP-48): what their passwords are.

Owns the derivation. A token's hmac is computed from its id and `delegation.token.secret.key`, never stored; the
password of its SCRAM login is the hmac in base64. Rules: security.md A26, A32.
"""

from __future__ import annotations

import base64
import hmac


def token_hmac(secret: bytes, token_id: str) -> bytes:
    """64 bytes. `secret`: `delegation.token.secret.key` in UTF-8."""
    return hmac.digest(secret, token_id.encode(), "sha512")


def token_password(token_hmac: bytes) -> str:
    """With which a client logs in by SCRAM, as the user whose name is the token's id."""
    return base64.b64encode(token_hmac).decode()
