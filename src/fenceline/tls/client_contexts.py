"""Contexts of TLS for connections that this side opens, from what a client's or a node's keys say.

Owns the options of the `ssl` module, on which asyncio's own TLS is built. Rules: security.md A5, A72.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager

from fenceline.errors import OperatorError
from fenceline.tls.certificates import pem_of
from fenceline.tls.settings import TlsMaterial, TlsSettings
from fenceline.tls.suites import openssl_name


def client_context(settings: TlsSettings, material: TlsMaterial, where: str) -> ssl.SSLContext:
    """For connections to a listener. Raises OperatorError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = settings.checks_hostname
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
    return context


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
    everything = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    everything.set_ciphers("ALL")
    known = {each["name"] for each in everything.get_ciphers()}
    found = []
    for suite in suites:
        own = openssl_name(suite)
        if own not in known:
            raise OperatorError(
                f"{where}: the cipher suite {suite} in ssl.cipher.suites is not available",
                "Remove it; without the key, all secure suites of the TLS library are enabled.",
            )
        if not own.startswith("TLS_"):
            found.append(own)
    return ":".join(found) if found else "DEFAULT"
