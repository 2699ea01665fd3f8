"""TLS contexts and SASL exchanges of a connection, without I/O.

Owns the translation of `ssl.*` and `sasl.*` properties. A SASL exchange is a generator of messages, so that it can be
tested with the RFC's example.
"""

from __future__ import annotations

import ssl
from collections.abc import Generator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from fenceline.client.core.config import ClientConfig
from fenceline.errors import ErrorCode, OperatorError, PeerError
from fenceline.sasl.scram import ClientExchange, MalformedMessage
from fenceline.tls.client_contexts import client_context
from fenceline.tls.settings import read_material, read_settings


def tls_context(config: ClientConfig) -> ssl.SSLContext | None:
    """The TLS context for `security.protocol`, None without TLS. Raises OperatorError for unusable files."""
    if config["security.protocol"] not in ("SSL", "SASL_SSL"):
        return None
    if any(config[key] for key in _STORES):
        return _context_of_stores(config)
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


_STORES: Final = (
    "ssl.truststore.location",
    "ssl.truststore.certificates",
    "ssl.keystore.location",
    "ssl.keystore.key",
)
"""Keys of Java's clients, in place of librdkafka's."""


def _context_of_stores(config: ClientConfig) -> ssl.SSLContext:
    for key in ("ssl.ca.location", "ssl.certificate.location"):
        if config[key]:
            raise OperatorError(f"{key} and Java's keys for stores are both set", "Set one of the two forms.")

    def lookup(key: str) -> str | None:
        value = config.values.get(key)
        return None if value is None else str(value)

    where = "The client"
    material = read_material(lookup, where, lambda location: Path(location).read_bytes())
    return client_context(read_settings(lookup, where), material, where)


Exchange = Generator[bytes, bytes, None]
"""Yields the messages to send, receives the broker's responses, and ends when the broker is authenticated."""


def plain(username: str, password: str) -> Exchange:
    yield f"\0{username}\0{password}".encode()


def scram(
    mechanism: str, username: str, password: str, *, nonce: str, extensions: Mapping[str, str] = MappingProxyType({})
) -> Exchange:
    """SCRAM without channel binding. Raises PeerError(SASL_AUTHENTICATION_FAILED) if the broker does not know the
    password.
    """
    exchange = ClientExchange(mechanism, username, password, nonce, extensions)
    try:
        challenge = yield exchange.first()
        exchange.check((yield exchange.answer(challenge)))
    except MalformedMessage as error:
        raise PeerError(ErrorCode.SASL_AUTHENTICATION_FAILED, str(error)) from None
