"""SCRAM (RFC 5802, RFC 7677) as Kafka speaks it: its messages, its keys, and both sides of an exchange, without I/O.

Owns the formats and the computations, with `hashlib` and `hmac`. Never looks up a user and never makes a nonce.

Why not the library `scramp`: it refuses the extension with which delegation tokens log in (`tokenauth=true`), salts
shorter than 12 bytes, which Kafka accepts and has in its metadata log, and passwords that change under SASLprep, which
Kafka's clients do not apply (decision 034).

Rules: security.md A24, A25, A26, A69.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

DIGESTS: Final[Mapping[str, str]] = MappingProxyType({"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"})
"""Hash functions by mechanism."""
NUMBERS: Final[Mapping[str, int]] = MappingProxyType({"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2})
"""Mechanisms as requests and metadata records number them."""
FEWEST_ITERATIONS: Final = 4096
MOST_STORED_ITERATIONS: Final = 16_384
"""Of a credential that is set, as in Kafka."""
MOST_ITERATIONS: Final = 10_000_000
"""A broker that asks for more keeps the client busy for seconds."""
TOKEN_EXTENSION: Final = "tokenauth"


class MalformedMessage(Exception):
    """A message that is not SCRAM, or that asks for what is not supported; the text says what."""


@dataclass(frozen=True, slots=True)
class Credential:
    """What a server knows of a user; no password can be computed from it."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        return f"Credential(iterations={self.iterations})"


def digest_size(mechanism: str) -> int:
    """Bytes of a key."""
    return hashlib.new(DIGESTS[mechanism]).digest_size


def salted_password(mechanism: str, password: str, salt: bytes, iterations: int) -> bytes:
    return hashlib.pbkdf2_hmac(DIGESTS[mechanism], password.encode(), salt, iterations)


def credential_of(mechanism: str, salted: bytes, salt: bytes, iterations: int) -> Credential:
    """`salted`: of the password."""
    digest = DIGESTS[mechanism]
    stored = hashlib.new(digest, hmac.digest(salted, b"Client Key", digest)).digest()
    return Credential(salt, stored, hmac.digest(salted, b"Server Key", digest), iterations)


# --- messages ----------------------------------------

_NAME: Final = re.compile(r"(?:[^=,]|=2C|=3D)+")
_NONCE: Final = re.compile(r"[\x21-\x2b\x2d-\x7e]+")
_CLIENT_FIRST: Final = re.compile(
    r"(?P<flag>n),(?:a=(?P<authorization>[^,]*))?,(?P<bare>n=(?P<name>[^,]*),r=(?P<nonce>[^,]*)(?P<extensions>(?:,.*)?))",
    re.DOTALL,
)
_CLIENT_FINAL: Final = re.compile(
    r"(?P<unsigned>c=(?P<binding>[^,]*),r=(?P<nonce>[^,]*)(?:,(?!p=)[^,]*)*),p=(?P<proof>[^,]*)", re.DOTALL
)


@dataclass(frozen=True, slots=True)
class ClientFirst:
    """The client's first message. `extensions`: named values behind the nonce, such as `tokenauth`."""

    user: str
    authorization_id: str
    nonce: str
    extensions: Mapping[str, str]
    header: str
    """What the client must repeat as its channel binding."""
    bare: str
    """The part that is signed."""


def parse_client_first(message: bytes) -> ClientFirst:
    """Raises MalformedMessage."""
    text = _text(message)
    match = _CLIENT_FIRST.fullmatch(text)
    if match is None:
        raise MalformedMessage("the first message has not the form n,,n=user,r=nonce; channel binding is not supported")
    name, nonce = match["name"], match["nonce"]
    if _NAME.fullmatch(name) is None or _NONCE.fullmatch(nonce) is None:
        raise MalformedMessage("the user name or the nonce has characters that are not allowed")
    extensions: dict[str, str] = {}
    for part in match["extensions"].split(",")[1:]:
        key, separator, value = part.partition("=")
        if not separator or not key.isascii() or not key.isalpha() or key in extensions:
            raise MalformedMessage("an extension of the first message is not key=value")
        extensions[key] = value
    return ClientFirst(
        _unescaped(name),
        _unescaped(match["authorization"] or ""),
        nonce,
        MappingProxyType(extensions),
        text[: match.start("bare")],
        match["bare"],
    )


@dataclass(frozen=True, slots=True)
class ClientFinal:
    """The client's last message."""

    binding: bytes
    nonce: str
    proof: bytes
    unsigned: str
    """All of it before the proof."""


def parse_client_final(message: bytes) -> ClientFinal:
    """Raises MalformedMessage."""
    match = _CLIENT_FINAL.fullmatch(_text(message))
    if match is None:
        raise MalformedMessage("the last message has not the form c=binding,r=nonce,p=proof")
    return ClientFinal(_decoded(match["binding"]), match["nonce"], _decoded(match["proof"]), match["unsigned"])


def escaped(name: str) -> str:
    return name.replace("=", "=3D").replace(",", "=2C")


def _unescaped(name: str) -> str:
    return name.replace("=2C", ",").replace("=3D", "=")


def _text(message: bytes) -> str:
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise MalformedMessage("a message is not UTF-8") from None


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise MalformedMessage("a value is not base64") from None


# --- the server's side ----------------------------------------


@dataclass(frozen=True, slots=True)
class ServerFirst:
    """The server's challenge, and what it needs to check the answer."""

    mechanism: str
    client: ClientFirst
    nonce: str
    credential: Credential
    message: str

    @classmethod
    def of(cls, mechanism: str, client: ClientFirst, server_nonce: str, credential: Credential) -> ServerFirst:
        nonce = client.nonce + server_nonce
        salt = base64.b64encode(credential.salt).decode()
        return cls(mechanism, client, nonce, credential, f"r={nonce},s={salt},i={credential.iterations}")

    def verify(self, final: ClientFinal) -> bytes | None:
        """The server's last message, or None if the client does not know the password. Takes the same time for each
        wrong proof. Raises MalformedMessage."""
        if final.nonce == self.client.nonce + self.nonce:
            raise MalformedMessage("the client repeats its nonce, as librdkafka before 2.6.1 does: update it")
        if final.nonce != self.nonce:
            raise MalformedMessage("the last message has another nonce")
        if final.binding != self.client.header.encode():
            raise MalformedMessage("the channel binding differs from the first message")
        digest, stored = DIGESTS[self.mechanism], self.credential.stored_key
        signed = f"{self.client.bare},{self.message},{final.unsigned}".encode()
        signature = hmac.digest(stored, signed, digest)
        if len(final.proof) != len(signature):
            return None
        client_key = bytes(a ^ b for a, b in zip(signature, final.proof, strict=True))
        if not hmac.compare_digest(hashlib.new(digest, client_key).digest(), stored):
            return None
        return b"v=" + base64.b64encode(hmac.digest(self.credential.server_key, signed, digest))


# --- the client's side ----------------------------------------


class ClientExchange:
    """One login of a client: `first`, then `answer` to the challenge, then `check` of the server's last message."""

    def __init__(self, mechanism: str, user: str, password: str, nonce: str, extensions: Mapping[str, str]) -> None:
        self._mechanism = mechanism
        self._password = password
        self._nonce = nonce
        self._bare = f"n={escaped(user)},r={nonce}" + "".join(f",{key}={value}" for key, value in extensions.items())
        self._expected = b""

    def first(self) -> bytes:
        return f"n,,{self._bare}".encode()

    def answer(self, challenge: bytes) -> bytes:
        """Raises MalformedMessage, also if the broker asks for too few or too many iterations."""
        text = _text(challenge)
        fields = dict(part.split("=", 1) for part in text.split(",") if "=" in part)
        nonce, rounds = fields.get("r", ""), fields.get("i", "")
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce) or "s" not in fields:
            raise MalformedMessage("the broker's SCRAM challenge is malformed")
        if not rounds.isascii() or not rounds.isdecimal() or len(rounds) > len(str(MOST_ITERATIONS)):
            raise MalformedMessage("the broker's SCRAM challenge is malformed")
        if not FEWEST_ITERATIONS <= int(rounds) <= MOST_ITERATIONS:
            raise MalformedMessage(f"the broker requests {rounds} SCRAM iterations")
        digest = DIGESTS[self._mechanism]
        salted = salted_password(self._mechanism, self._password, _decoded(fields["s"]), int(rounds))
        client_key = hmac.digest(salted, b"Client Key", digest)
        unsigned = f"c=biws,r={nonce}"
        signed = f"{self._bare},{text},{unsigned}".encode()
        signature = hmac.digest(hashlib.new(digest, client_key).digest(), signed, digest)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        server = hmac.digest(hmac.digest(salted, b"Server Key", digest), signed, digest)
        self._expected = b"v=" + base64.b64encode(server)
        return f"{unsigned},p={base64.b64encode(proof).decode()}".encode()

    def check(self, final: bytes) -> None:
        """Raises MalformedMessage if the broker does not know the password."""
        if not hmac.compare_digest(final, self._expected):
            raise MalformedMessage("the broker could not prove that it knows the password")
