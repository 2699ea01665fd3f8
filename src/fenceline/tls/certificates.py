"""Reads certificates, private keys and the stores that hold them: PEM and PKCS12.

Owns what can be read from their bytes: names as Java writes them, expiry, whether a key fits its certificate. Never
opens a file and never prints a key. `cryptography` is imported when the first of them is read: a node without TLS does
not need it.

Rules: security.md A6, A7, A10, A72.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

from fenceline.errors import OperatorError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
    from cryptography.x509 import Certificate

_JKS_MAGIC: Final = b"\xfe\xed\xfe\xed"
_RFC_2253_KEYWORDS: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
_ESCAPED: Final = frozenset(',+"\\<>;=#')


@dataclass(frozen=True, slots=True)
class TlsIdentity:
    """A private key and the chain of its certificate, which comes first."""

    chain: tuple[Certificate, ...]
    key_pem: bytes
    """Unencrypted PKCS#8: never to be written to a disk or a log."""

    @property
    def chain_pem(self) -> bytes:
        return pem_of(self.chain)

    @property
    def name(self) -> str:
        return distinguished_name(self.chain[0])

    @property
    def alternative_names(self) -> frozenset[str]:
        from cryptography import x509

        try:
            names = self.chain[0].extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except x509.ExtensionNotFound:
            return frozenset()
        return frozenset(str(each.value) for each in names)

    @property
    def expires(self) -> datetime:
        """The first expiry in the chain, in UTC."""
        return min(each.not_valid_after_utc for each in self.chain)


def pem_of(certificates: Sequence[Certificate]) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return b"".join(each.public_bytes(Encoding.PEM) for each in certificates)


def distinguished_name(certificate: Certificate) -> str:
    """The subject in the form of RFC 2253 as Java's X500Principal.getName() writes it: the last part first, unknown
    attributes by number with their DER value."""
    encoded_parts = _elements(next(_elements(certificate.subject.public_bytes())))
    parts = []
    for part, encoded in zip(certificate.subject.rdns, encoded_parts, strict=True):
        values = [list(_elements(pair, with_header=True))[1] for pair in _elements(encoded)]
        parts.append(
            "+".join(
                _attribute(each.oid.dotted_string, str(each.value), der) for each, der in zip(part, values, strict=True)
            )
        )
    return ",".join(reversed(parts))


def _elements(der: bytes, *, with_header: bool = False) -> Iterator[bytes]:
    """The contents of the DER elements that follow each other; `cryptography` has checked their encoding."""
    position = 0
    while position < len(der):
        begin, size = position, der[position + 1]
        position += 2
        if size & 0x80:
            count = size & 0x7F
            size = int.from_bytes(der[position : position + count], "big")
            position += count
        yield der[begin if with_header else position : position + size]
        position += size


def _attribute(oid: str, value: str, der: bytes) -> str:
    keyword = _RFC_2253_KEYWORDS.get(oid)
    if keyword is None:
        return f"{oid}=#{der.hex()}"
    escaped = "".join(f"\\{char}" if char in _ESCAPED else char for char in value)
    if escaped.startswith(" "):
        escaped = "\\" + escaped
    if escaped.endswith(" ") and len(escaped) > 1 and not escaped.endswith("\\ "):
        escaped = escaped[:-1] + "\\ "
    return f"{keyword}={escaped}"


# --- stores ----------------------------------------


def identity_from_pem(chain: bytes, key: bytes, password: str | None, where: str) -> TlsIdentity:
    """`where` names the source in errors. Raises OperatorError."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        found = tuple(x509.load_pem_x509_certificates(chain))
    except ValueError as error:
        raise OperatorError(f"{where}: no certificate in PEM form ({error})", _PEM_ADVICE) from None
    try:
        private = load_pem_private_key(key, _secret(password))
    except (TypeError, ValueError) as error:
        raise OperatorError(f"{where}: the private key cannot be read: {error}", _KEY_ADVICE) from None
    return _checked(found, private, where)


def identity_from_pkcs12(store: bytes, password: str | None, where: str) -> TlsIdentity:
    """Raises OperatorError."""
    from cryptography.hazmat.primitives.serialization import pkcs12

    refuse_jks(store, where)
    try:
        key, certificate, others = pkcs12.load_key_and_certificates(store, _secret(password))
    except ValueError as error:
        raise OperatorError(f"{where}: the PKCS12 store cannot be read: {error}", _STORE_ADVICE) from None
    if key is None or certificate is None:
        raise OperatorError(f"{where}: the store has no private key with a certificate", _STORE_ADVICE)
    return _checked(_chain(certificate, others), key, where)


def trusted_from_pem(text: bytes, where: str) -> tuple[Certificate, ...]:
    """Raises OperatorError."""
    from cryptography import x509

    try:
        return tuple(x509.load_pem_x509_certificates(text))
    except ValueError as error:
        raise OperatorError(f"{where}: no certificate in PEM form ({error})", _PEM_ADVICE) from None


def trusted_from_pkcs12(store: bytes, password: str | None, where: str) -> tuple[Certificate, ...]:
    """Every certificate of the store. Raises OperatorError."""
    from cryptography.hazmat.primitives.serialization import pkcs12

    refuse_jks(store, where)
    try:
        found = pkcs12.load_pkcs12(store, _secret(password))
    except ValueError as error:
        raise OperatorError(f"{where}: the PKCS12 store cannot be read: {error}", _STORE_ADVICE) from None
    entries = [each for each in (found.cert, *found.additional_certs) if each is not None]
    if not entries:
        raise OperatorError(f"{where}: the trust store is empty", _STORE_ADVICE)
    return tuple(each.certificate for each in entries)


def refuse_jks(store: bytes, where: str) -> None:
    """Raises OperatorError for a store in Java's own format."""
    if store.startswith(_JKS_MAGIC):
        raise OperatorError(
            f"{where}: stores in Java's own format (JKS) cannot be read",
            "Convert it: keytool -importkeystore -srckeystore STORE -destkeystore STORE.p12 -deststoretype PKCS12",
        )


_PEM_ADVICE: Final = "It must contain BEGIN CERTIFICATE and END CERTIFICATE lines."
_KEY_ADVICE: Final = "It must be a key in PEM form (PKCS#8); the password of an encrypted one is ssl.key.password."
_STORE_ADVICE: Final = "Check the file and the password of the store."


def _secret(password: str | None) -> bytes | None:
    return password.encode() if password else None


def _checked(chain: tuple[Certificate, ...], key: PrivateKeyTypes, where: str) -> TlsIdentity:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

    form = Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    if key.public_key().public_bytes(*form) != chain[0].public_key().public_bytes(*form):
        raise OperatorError(
            f"{where}: the private key does not fit the certificate of {distinguished_name(chain[0])}",
            "The node's own certificate must come first, with the key that it was made for.",
        )
    return TlsIdentity(chain, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def _chain(first: Certificate, others: Sequence[Certificate]) -> tuple[Certificate, ...]:
    """A store has the other certificates in any order, and possibly some that do not belong to the chain."""
    chain, left = [first], list(others)
    while (issuer := next((each for each in left if each.subject == chain[-1].issuer), None)) is not None:
        left.remove(issuer)
        chain.append(issuer)
    return tuple(chain)
