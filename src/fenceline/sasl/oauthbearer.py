"""The client's side of SASL OAUTHBEARER (RFC 7628), without I/O: its messages, and the token.

A token is never logged or part of an error. Where tokens come from is `fenceline.oauth`. Rules: security.md A27, A70.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Final

from fenceline.errors import OperatorError

_END: Final = b"\x01"
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*")
_EXTENSION: Final = re.compile(r"[A-Za-z]+")


def is_bearer_token(text: str) -> bool:
    """Whether it has only characters of RFC 6750."""
    return _TOKEN.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class BearerToken:
    """`expires_s`: since the epoch. `extensions`: named values that go with the token."""

    text: str = field(repr=False)
    expires_s: float
    extensions: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raises OperatorError for text that cannot be sent."""
        if not is_bearer_token(self.text):
            raise OperatorError(
                "The OAuth token has characters that a bearer token cannot have", "Return it unchanged."
            )
        for key, value in self.extensions.items():
            if key == "auth" or _EXTENSION.fullmatch(key) is None or not value.isprintable():
                raise OperatorError(
                    f"{key!r} is not a valid SASL extension", "Keys consist of letters, and are not auth."
                )


def oauth_exchange(token: BearerToken) -> Generator[bytes, bytes, None]:
    """Yields messages and receives the answers. A refused token is answered with its reason and then with an error."""
    pairs = {"auth": f"Bearer {token.text}", **token.extensions}
    first = b"n,," + _END + b"".join(f"{key}={value}".encode() + _END for key, value in pairs.items()) + _END
    if (yield first):
        yield _END


def expiry_of(token: str) -> float | None:
    """The claim `exp` of a token that is a JWT, in seconds since the epoch; not verified."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        expires_s = claims["exp"]
    except (ValueError, binascii.Error, KeyError, TypeError, RecursionError):
        return None
    return float(expires_s) if isinstance(expires_s, int | float) and not isinstance(expires_s, bool) else None
