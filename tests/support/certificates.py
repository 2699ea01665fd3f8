"""A certificate authority for tests, and the files that servers and clients need of it."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import trustme
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key


class TestAuthority:
    """Writes to `folder`: `ca.pem`, and for each identity one file with its key and chain."""

    __test__ = False

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._authority = trustme.CA()
        self.ca = folder / "ca.pem"
        self._authority.cert_pem.write_to_path(str(self.ca))

    def broker_settings(self) -> dict[str, str]:
        """Properties of a node on 127.0.0.1 that shows a certificate of this authority, and trusts those of it."""
        return {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.identity("broker", "127.0.0.1")),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.ca),
        }

    def identity(self, name: str, *hosts: str, file: str = "", until: datetime | None = None) -> Path:
        """A PEM file with a key and the chain of a certificate for these hosts, with the common name `name`. `until`:
        when it expires."""
        issued = self._authority.issue_cert(
            *(hosts or (f"{name}.test",)), common_name=name, organization_unit_name="tests", not_after=until
        )
        path = self._folder / f"{file or name}.pem"
        # Apache Kafka reads keys in the form of PKCS#8 only (security.md A6).
        key = load_pem_private_key(issued.private_key_pem.bytes(), None)
        encoded = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        path.write_bytes(encoded + b"".join(each.bytes() for each in issued.cert_chain_pems))
        return path
