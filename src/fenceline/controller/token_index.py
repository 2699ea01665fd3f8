"""The delegation tokens of the image by hmac, as requests name them.

Owns the index, derived from token ids and the secret; `ControllerState` keeps it up to date. Rules: security.md A32.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fenceline.metadata.security_records import DelegationTokenRecord
from fenceline.sasl.delegation_tokens import token_hmac


class TokenIndex:
    """See the module."""

    def __init__(self, secret: bytes, tokens: Mapping[str, DelegationTokenRecord]) -> None:
        self._secret = secret
        self._ids = {token_hmac(secret, token_id): token_id for token_id in tokens}

    def update(self, changed: Iterable[str], tokens: Mapping[str, DelegationTokenRecord]) -> None:
        """`changed`: ids of tokens that were created, changed or removed; `tokens`: all there are afterwards."""
        for token_id in changed:
            hmac = token_hmac(self._secret, token_id)
            if token_id in tokens:
                self._ids[hmac] = token_id
            else:
                self._ids.pop(hmac, None)

    def token_id(self, hmac: bytes) -> str | None:
        return self._ids.get(hmac)
