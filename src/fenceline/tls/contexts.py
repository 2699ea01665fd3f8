"""Contexts of the `ssl` library, from what a node's keys say.

Owns the library's options, and the names that it has for cipher suites. Rules: security.md A5, A72.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager

from fenceline.errors import OperatorError
from fenceline.tls.certificates import pem_of
from fenceline.tls.settings import TlsMaterial, TlsSettings


def server_context(settings: TlsSettings, material: TlsMaterial, where: str) -> ssl.SSLContext:
    """For accepted connections. Raises OperatorError without a key store, or for unknown cipher suites."""
    if material.identity is None:
        raise OperatorError(
            f"{where}: TLS needs a certificate",
            "Set ssl.keystore.location, or ssl.keystore.key and ssl.keystore.certificate.chain.",
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    _configure(context, settings, material, where)
    context.verify_mode = settings.client_auth
    return context


def client_context(settings: TlsSettings, material: TlsMaterial, where: str) -> ssl.SSLContext:
    """For connections to a listener. Raises OperatorError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = settings.checks_hostname
    _configure(context, settings, material, where)
    return context


def _configure(context: ssl.SSLContext, settings: TlsSettings, material: TlsMaterial, where: str) -> None:
    context.minimum_version, context.maximum_version = settings.versions[0], settings.versions[-1]
    if settings.suites:
        context.set_ciphers(_own_names(settings.suites, where))
    try:
        _load(context, material)
    except ssl.SSLError as error:
        raise OperatorError(
            f"{where}: the TLS library refuses the certificates: {error.reason or error}",
            "Use keys and signatures that are secure enough for it.",
        ) from None


def _load(context: ssl.SSLContext, material: TlsMaterial) -> None:
    if material.trusted is None:
        context.load_default_certs()
    else:
        context.load_verify_locations(cadata=pem_of(material.trusted).decode())
    if material.identity is not None:
        with _in_memory(material.identity.chain_pem + material.identity.key_pem) as path:
            context.load_cert_chain(path)


@contextmanager
def _in_memory(content: bytes) -> Iterator[str]:
    """A path to the content, for a library that reads only files: it never reaches a disk."""
    fd = os.memfd_create("identity", os.MFD_CLOEXEC)
    try:
        os.write(fd, content)
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)


def _own_names(suites: tuple[str, ...], where: str) -> str:
    """OpenSSL's names of the suites for TLS 1.2; those of TLS 1.3 are always enabled with it."""
    everything = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    everything.set_ciphers("ALL")
    known = {each["name"] for each in everything.get_ciphers()}
    found = []
    for suite in suites:
        own = suite if suite in known else _openssl_name(suite)
        if own not in known:
            raise OperatorError(
                f"{where}: the cipher suite {suite} in ssl.cipher.suites is not available",
                "Remove it; without the key, all secure suites of the TLS library are enabled.",
            )
        if not own.startswith("TLS_"):
            found.append(own)
    return ":".join(found) if found else "DEFAULT"


def _openssl_name(suite: str) -> str:
    """`TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384` is ECDHE-RSA-AES256-GCM-SHA384 there."""
    exchange, _, cipher = suite.removeprefix("TLS_").partition("_WITH_")
    cipher = (
        cipher.replace("AES_128", "AES128")
        .replace("AES_256", "AES256")
        .replace("CHACHA20_POLY1305_SHA256", "CHACHA20-POLY1305")
    )
    cipher = cipher.replace("_CBC_SHA", "_SHA")
    prefix = "" if exchange == "RSA" else f"{exchange.replace('_', '-')}-"
    return prefix + cipher.replace("_", "-")
