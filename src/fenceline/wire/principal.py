"""Who a client is, as a broker tells the controller in an envelope (KIP-590): Kafka's DefaultPrincipalData, version 0.

Owns the encoded form: the version as int16, then the fields, flexible. Never decides what a principal may do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fenceline.wire.errors import MalformedRequest
from fenceline.wire.message import codec, kafka


@dataclass(frozen=True, slots=True)
class Principal:
    """`type` is User for everybody that Kafka's own code makes."""

    type: str = kafka("string", versions="0+", default="User")
    name: str = kafka("string", versions="0+", default="ANONYMOUS")
    token_authenticated: bool = kafka("bool", versions="0+", default=False)


ANONYMOUS: Final = Principal()
"""A client that is not authenticated."""

_CODEC: Final = codec(Principal, versions=(0, 0), flexible="0+")
_VERSION_SIZE: Final = 2


def encode_principal(principal: Principal) -> bytes:
    """Behind its version."""
    return bytes(_VERSION_SIZE) + _CODEC.encode(0, principal)


def decode_principal(content: bytes | None) -> Principal:
    """Raises MalformedRequest for anything that Kafka's own serializer would not have written."""
    if content is None or len(content) < _VERSION_SIZE:
        raise MalformedRequest("there is no principal")
    version = int.from_bytes(content[:_VERSION_SIZE], "big", signed=True)
    principal: Principal = _CODEC.decode(version, content, _VERSION_SIZE)[0]
    return principal
