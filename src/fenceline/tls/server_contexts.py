"""Contexts of TLS for accepted connections, from what a node's keys say.

Owns the options of the TLS library on the server's side. The library is OpenSSL as `cryptography` brings it, by
pyOpenSSL: three times as fast with the same ciphers as the one of the `ssl` module, which is the operating system's
(decision 037), and its suites of TLS 1.3 can be chosen.

Rules: security.md A5, A10, A12, A72.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed448, ed25519, rsa
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from OpenSSL import SSL
from OpenSSL.crypto import X509

from fenceline.errors import OperatorError
from fenceline.tls.suites import is_of_tls_1_3, openssl_name

if TYPE_CHECKING:
    from fenceline.tls.settings import TlsMaterial, TlsSettings

_ENABLE_PARTIAL_WRITE: Final = 1
"""SSL_MODE_ENABLE_PARTIAL_WRITE, which pyOpenSSL sets and does not name: each call would encrypt one record only."""
_SESSION_ID: Final = b"fenceline"
_CIPHER_SERVER_PREFERENCE: Final = 1 << 22
_VERIFICATION: Final = {
    7: "its signature does not fit",
    9: "it is not valid yet",
    10: "it has expired",
    18: "it is signed by itself",
    19: "an authority in its chain is not trusted",
    20: "its authority is not trusted",
    21: "its chain is incomplete",
    22: "its chain is too long",
    24: "an authority in its chain is no authority",
    26: "it is not for this purpose",
    66: "its key is too weak",
    67: "the key of an authority is too weak",
    68: "its signature algorithm is too weak",
}
"""By the numbers of OpenSSL's verification, which do not change."""


def server_context(settings: TlsSettings, material: TlsMaterial, where: str) -> SSL.Context:
    """Raises OperatorError without a key store, for one that the library refuses, or for unknown cipher suites."""
    if material.identity is None:
        raise OperatorError(
            f"{where}: TLS needs a certificate",
            "Set ssl.keystore.location, or ssl.keystore.key and ssl.keystore.certificate.chain.",
        )
    context = SSL.Context(SSL.TLS_SERVER_METHOD)
    context.set_options(SSL.OP_NO_RENEGOTIATION | SSL.OP_NO_COMPRESSION | _CIPHER_SERVER_PREFERENCE)
    context.set_mode(SSL.MODE_RELEASE_BUFFERS)
    context.clear_mode(_ENABLE_PARTIAL_WRITE)
    context.set_session_cache_mode(SSL.SESS_CACHE_OFF)
    context.set_session_id(_SESSION_ID)
    versions = [int(each) for each in settings.versions]
    if settings.suites:
        versions = _choose(context, settings.suites, versions, where)
    context.set_min_proto_version(versions[0])
    context.set_max_proto_version(versions[-1])
    try:
        _load(context, material)
    except SSL.Error as error:
        raise OperatorError(
            f"{where}: the TLS library refuses the certificates: {reason_of(error)}",
            "Use keys and signatures that are secure enough for it.",
        ) from None
    context.set_verify(_VERIFY[settings.client_auth.name], _note_reason)
    return context


_VERIFY: Final = {
    "CERT_NONE": SSL.VERIFY_NONE,
    "CERT_OPTIONAL": SSL.VERIFY_PEER,
    "CERT_REQUIRED": SSL.VERIFY_PEER | SSL.VERIFY_FAIL_IF_NO_PEER_CERT,
}


def _note_reason(connection: SSL.Connection, certificate: X509, error: int, depth: int, passed: int) -> bool:
    if not passed:
        connection.set_app_data(_VERIFICATION.get(error, f"verification error {error} of OpenSSL"))
    return bool(passed)


def reason_of(error: SSL.Error, connection: SSL.Connection | None = None) -> str:
    """The library's reason; of a refused certificate also why, if it was shown on this connection."""
    reasons = [str(entry[-1]) for entry in error.args[0]] if error.args and isinstance(error.args[0], list) else []
    refused = connection.get_app_data() if connection is not None else None
    return ": ".join(filter(None, (reasons[0] if reasons else "the TLS library failed", refused)))


def _load(context: SSL.Context, material: TlsMaterial) -> None:
    if material.trusted is None:
        context.set_default_verify_paths()
    else:
        store = context.get_cert_store()
        assert store is not None, "every context has one"
        for certificate in material.trusted:
            store.add_cert(X509.from_cryptography(certificate))
    assert material.identity is not None, "it is checked"
    key = load_pem_private_key(material.identity.key_pem, None)
    assert isinstance(
        key,
        rsa.RSAPrivateKey
        | ec.EllipticCurvePrivateKey
        | ed25519.Ed25519PrivateKey
        | ed448.Ed448PrivateKey
        | dsa.DSAPrivateKey,
    ), "keys for signatures are read"
    own, *others = material.identity.chain
    context.use_certificate(own)
    for certificate in others:
        context.add_extra_chain_cert(certificate)
    context.use_privatekey(key)
    context.check_privatekey()


def _choose(context: SSL.Context, suites: tuple[str, ...], versions: list[int], where: str) -> list[int]:
    """Suites that are not named are off; returns the versions that have some."""
    newer = [each for each in suites if is_of_tls_1_3(each)]
    older = [openssl_name(each) for each in suites if not is_of_tls_1_3(each)]
    for name in newer + older:
        if not _is_available(name):
            raise OperatorError(
                f"{where}: the cipher suite {name} in ssl.cipher.suites is not available",
                "Remove it; without the key, all secure suites of the TLS library are enabled.",
            )
    if newer:
        context.set_tls13_ciphersuites(":".join(newer).encode())
    if older:
        context.set_cipher_list(":".join(older).encode())
    served = [each for each in versions if (newer if each == SSL.TLS1_3_VERSION else older)]
    if not served:
        raise OperatorError(
            f"{where}: no suite in ssl.cipher.suites is of a version in ssl.enabled.protocols",
            "TLS 1.3 has suites of its own, such as TLS_AES_256_GCM_SHA384.",
        )
    return served


def _is_available(name: str) -> bool:
    scratch = SSL.Context(SSL.TLS_SERVER_METHOD)
    try:
        if is_of_tls_1_3(name):
            scratch.set_tls13_ciphersuites(name.encode())
        else:
            scratch.set_cipher_list(name.encode())
    except SSL.Error:
        return False
    return name in SSL.Connection(scratch, None).get_cipher_list()
