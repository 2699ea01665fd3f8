"""TLS of a listener, or of a client: what Kafka's `ssl.*` keys say.

Owns the meaning of these keys, and the rules for an exchange of certificates in a running node. Files are read by the
function that the caller passes. `where` names the listener or the client in errors.

Rules: security.md A5, A6, A10, A69, A72.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fenceline.errors import OperatorError
from fenceline.tls.certificates import (
    TlsIdentity,
    identity_from_pem,
    identity_from_pkcs12,
    trusted_from_pem,
    trusted_from_pkcs12,
)

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

STORE_KEYS: Final = (
    "ssl.keystore.type",
    "ssl.keystore.location",
    "ssl.keystore.password",
    "ssl.keystore.key",
    "ssl.keystore.certificate.chain",
    "ssl.key.password",
    "ssl.truststore.type",
    "ssl.truststore.location",
    "ssl.truststore.password",
    "ssl.truststore.certificates",
)
"""What can be exchanged in a running node (A10)."""

_VERSIONS: Final[Mapping[str, ssl.TLSVersion]] = {
    "TLSv1.2": ssl.TLSVersion.TLSv1_2,
    "TLSv1.3": ssl.TLSVersion.TLSv1_3,
}
_CLIENT_AUTH: Final[Mapping[str, ssl.VerifyMode]] = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}
_STORE_TYPES: Final = ("JKS", "PKCS12", "PEM")

Lookup = Callable[[str], str | None]
"""The value of a key; None if it has neither a value nor a default."""


@dataclass(frozen=True, slots=True)
class TlsMaterial:
    """What this side shows, and whom it trusts. `identity` None: nothing; `trusted` None: the system's authorities."""

    identity: TlsIdentity | None
    trusted: tuple[Certificate, ...] | None


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """The keys that are no stores."""

    versions: tuple[ssl.TLSVersion, ...]
    """In ascending order."""
    suites: tuple[str, ...]
    """Cipher suites by their standard names; empty: the library's own."""
    client_auth: ssl.VerifyMode
    checks_hostname: bool
    """Of a server that this node connects to."""


def read_settings(lookup: Lookup, where: str) -> TlsSettings:
    """Raises OperatorError for what the library does not have."""
    names = _items(lookup("ssl.enabled.protocols"))
    unknown = [name for name in names if name not in _VERSIONS]
    if unknown or not names:
        raise OperatorError(
            f"{where}: ssl.enabled.protocols={','.join(names)} is not supported",
            f"Choose from {', '.join(_VERSIONS)}; older protocols are broken.",
        )
    versions = tuple(sorted({_VERSIONS[name] for name in names}))
    chosen = (lookup("ssl.client.auth") or "none").lower()
    identification = lookup("ssl.endpoint.identification.algorithm")
    return TlsSettings(
        versions,
        _items(lookup("ssl.cipher.suites")),
        _CLIENT_AUTH[chosen],
        (identification or "").lower() == "https",
    )


def read_material(lookup: Lookup, where: str, read_file: Callable[[str], bytes]) -> TlsMaterial:
    """Raises OperatorError for stores that are missing, unreadable, incomplete, or that do not fit."""
    source = _Stores(lookup, where, read_file)
    return TlsMaterial(source.identity(), source.trusted())


class _Stores:
    def __init__(self, lookup: Lookup, where: str, read_file: Callable[[str], bytes]) -> None:
        self._lookup = lookup
        self._where = where
        self._read_file = read_file

    def identity(self) -> TlsIdentity | None:
        lookup, where = self._lookup, self._where
        location, kind = lookup("ssl.keystore.location"), self._kind("ssl.keystore.type")
        key, chain = lookup("ssl.keystore.key"), lookup("ssl.keystore.certificate.chain")
        if location and (key or chain):
            raise OperatorError(
                f"{where}: ssl.keystore.location and ssl.keystore.key are both set", "Set one of the two forms."
            )
        if key or chain:
            if not key or not chain:
                missing = "ssl.keystore.certificate.chain" if key else "ssl.keystore.key"
                raise OperatorError(f"{where}: {missing} is missing", "A key and its certificate chain go together.")
            self._need_pem(kind, "ssl.keystore.type")
            return identity_from_pem(
                chain.encode(), key.encode(), lookup("ssl.key.password"), f"{where}: ssl.keystore.key"
            )
        if not location:
            return None
        stored, at = self._read("ssl.keystore.location", location), f"{where}: {location}"
        if kind == "PEM":
            if lookup("ssl.keystore.password"):
                raise OperatorError(
                    f"{where}: a PEM file has no store password",
                    "Remove ssl.keystore.password; the password of an encrypted key is ssl.key.password.",
                )
            return identity_from_pem(stored, stored, lookup("ssl.key.password"), at)
        password = lookup("ssl.keystore.password")
        if password is None:
            raise OperatorError(f"{where}: ssl.keystore.password is missing", "A PKCS12 key store has a password.")
        return identity_from_pkcs12(stored, password, at)

    def trusted(self) -> tuple[Certificate, ...] | None:
        lookup, where = self._lookup, self._where
        location, kind = lookup("ssl.truststore.location"), self._kind("ssl.truststore.type")
        inline = lookup("ssl.truststore.certificates")
        if inline:
            if location:
                raise OperatorError(
                    f"{where}: ssl.truststore.location and ssl.truststore.certificates are both set",
                    "Set one of the two forms.",
                )
            self._need_pem(kind, "ssl.truststore.type")
            return trusted_from_pem(inline.encode(), f"{where}: ssl.truststore.certificates")
        if not location:
            return None
        stored, at = self._read("ssl.truststore.location", location), f"{where}: {location}"
        if kind == "PEM":
            return trusted_from_pem(stored, at)
        return trusted_from_pkcs12(stored, lookup("ssl.truststore.password"), at)

    def _kind(self, key: str) -> str:
        kind = (self._lookup(key) or "").upper()
        if kind not in _STORE_TYPES:
            raise OperatorError(f"{self._where}: {key}={kind} is not supported", "Choose PEM or PKCS12.")
        return kind

    def _need_pem(self, kind: str, key: str) -> None:
        if kind != "PEM":
            raise OperatorError(
                f"{self._where}: {key} is {kind}, but the certificates are given as text", f"Set {key}=PEM."
            )

    def _read(self, key: str, location: str) -> bytes:
        try:
            return self._read_file(location)
        except OSError as error:
            raise OperatorError(
                f"{self._where}: {key}={location} cannot be read: {error.strerror or error}",
                "Check the path, and that the node's user may read the file.",
            ) from None


def _items(text: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


# --- exchange of certificates ----------------------------------------


def check_exchange(
    old: TlsMaterial, new: TlsMaterial, *, allows_other_name: bool, allows_other_alternatives: bool
) -> None:
    """Whether new connections of a running listener may use `new` (A10). Raises OperatorError."""
    for what, before, after in (("key", old.identity, new.identity), ("trust", old.trusted, new.trusted)):
        if (before is None) != (after is None):
            change = "added to" if before is None else "removed from"
            raise OperatorError(
                f"A {what} store cannot be {change} a running listener", "Set it in the node's file, and restart it."
            )
    if old.identity is None or new.identity is None:
        return
    if old.identity.name != new.identity.name and not allows_other_name:
        raise OperatorError(
            f"The new certificate is of {new.identity.name}, the old one of {old.identity.name}",
            "Use one of the same name, or start the node with ssl.allow.dn.changes=true.",
        )
    missing = old.identity.alternative_names - new.identity.alternative_names
    if missing and not allows_other_alternatives:
        raise OperatorError(
            f"The new certificate lacks the alternative names {', '.join(sorted(missing))}",
            "Use one that has them, or start the node with ssl.allow.san.changes=true.",
        )
