"""The principal of a client, as a broker sends it in an envelope (KIP-590): Kafka's DefaultPrincipalData, version 0.

Owns the encoded form: the version as int16, then the fields, flexible. Never decides what a principal may do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fenceline.wire.errors import MalformedRequest
from fenceline.wire.message import codec, kafka


@dataclass(frozen=True, slots=True)
class Principal:
    """`type` is User for all principals created by Kafka itself."""

    type: str = kafka("string", versions="0+", default="User")
    name: str = kafka("string", versions="0+", default="ANONYMOUS")
    token_authenticated: bool = kafka("bool", versions="0+", default=False)

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"


ANONYMOUS: Final = Principal()
"""An unauthenticated client."""

_CODEC: Final = codec(Principal, versions=(0, 0), flexible="0+")
_VERSION_SIZE: Final = 2


def encode_principal(principal: Principal) -> bytes:
    """Encoded with the version as prefix."""
    return bytes(_VERSION_SIZE) + _CODEC.encode(0, principal)


def decode_principal(content: bytes | None) -> Principal:
    """Raises MalformedRequest for bytes that Kafka's serializer would not write."""
    if content is None or len(content) < _VERSION_SIZE:
        raise MalformedRequest("the principal is missing")
    version = int.from_bytes(content[:_VERSION_SIZE], "big", signed=True)
    principal: Principal = _CODEC.decode(version, content, _VERSION_SIZE)[0]
    return principal
