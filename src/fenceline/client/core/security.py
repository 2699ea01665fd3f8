"""TLS contexts and SASL exchanges of a connection, without I/O.

Owns the translation of `ssl.*` and `sasl.*` properties. Implements PLAIN (RFC 4616) and SCRAM-SHA-256/512 (RFC 5802,
7677) with `hashlib` and `hmac`; a SASL exchange is a generator of messages, so that it can be tested with the RFC's
example.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import ssl
from collections.abc import Generator

from fenceline.client.core.config import ClientConfig
from fenceline.errors import ErrorCode, OperatorError, PeerError


def tls_context(config: ClientConfig) -> ssl.SSLContext | None:
    """The TLS context for `security.protocol`, None without TLS. Raises OperatorError for unusable files."""
    if config["security.protocol"] not in ("SSL", "SASL_SSL"):
        return None
    try:
        context = ssl.create_default_context(cafile=config["ssl.ca.location"])
        if config["ssl.endpoint.identification.algorithm"] != "https":
            context.check_hostname = False
        if config["ssl.certificate.location"]:
            context.load_cert_chain(
                config["ssl.certificate.location"], config["ssl.key.location"], config["ssl.key.password"]
            )
    except (OSError, ssl.SSLError) as error:
        raise OperatorError(
            f"The TLS files cannot be used: {error}",
            "Check ssl.ca.location, ssl.certificate.location and ssl.key.location (PEM files).",
        ) from None
    return context


Exchange = Generator[bytes, bytes, None]
"""Yields the messages to send, receives the broker's responses, and ends when the broker is authenticated."""


def sasl_exchange(mechanism: str, username: str, password: str) -> Exchange:
    """The client side of `mechanism`."""
    if mechanism == "PLAIN":
        return _plain(username, password)
    return scram(mechanism, username, password, nonce=secrets.token_urlsafe(24))


def _plain(username: str, password: str) -> Exchange:
    yield f"\0{username}\0{password}".encode()


def scram(mechanism: str, username: str, password: str, *, nonce: str) -> Exchange:
    """SCRAM without channel binding. Raises PeerError(SASL_AUTHENTICATION_FAILED) if the broker does not know the
    password.
    """
    digest = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}[mechanism]
    escaped = username.replace("=", "=3D").replace(",", "=2C")
    first_bare = f"n={escaped},r={nonce}"
    server_first = (yield f"n,,{first_bare}".encode()).decode()
    fields = dict(part.split("=", 1) for part in server_first.split(",") if "=" in part)
    if not fields.get("r", "").startswith(nonce) or "s" not in fields or "i" not in fields:
        raise PeerError(ErrorCode.SASL_AUTHENTICATION_FAILED, "the broker's SCRAM challenge is malformed")
    rounds = int(fields["i"])
    if rounds < 4096:
        raise PeerError(ErrorCode.SASL_AUTHENTICATION_FAILED, f"the broker requests only {rounds} SCRAM iterations")
    salted = hashlib.pbkdf2_hmac(digest, password.encode(), base64.b64decode(fields["s"]), rounds)
    client_key = hmac.digest(salted, b"Client Key", digest)
    final_bare = f"c=biws,r={fields['r']}"
    signed = f"{first_bare},{server_first},{final_bare}".encode()
    signature = hmac.digest(hashlib.new(digest, client_key).digest(), signed, digest)
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    server_final = (yield f"{final_bare},p={base64.b64encode(proof).decode()}".encode()).decode()
    expected = hmac.digest(hmac.digest(salted, b"Server Key", digest), signed, digest)
    if not hmac.compare_digest(server_final, f"v={base64.b64encode(expected).decode()}"):
        raise PeerError(ErrorCode.SASL_AUTHENTICATION_FAILED, "the broker could not prove that it knows the password")
