"""The security of a local cluster for trying: an authority, certificates, users, and property files for clients.

Owns the folder `security` of a cluster. Starts nothing. Keys and passwords are for this machine only; files with them
can be read by their owner alone.

    D/security/ca.pem               to be trusted by clients
    D/security/node-1.pem           key and certificate of a node
    D/security/client.properties    for Kafka's tools and Java clients: user `admin`
    D/security/librdkafka.properties    the same for confluent-kafka, kcat and Fenceline's client
    D/security/guest.properties, guest.librdkafka.properties    a user without rights, for trying ACLs
    D/security/users.json           passwords
    D/security/tokens.secret        signs delegation tokens

Clients and brokers connect by SASL_SSL with SCRAM-SHA-512, controllers by TLS with certificates of both sides. The
nodes, whose certificates name them as `broker`, and the user `admin` may do everything.
"""

from __future__ import annotations

import json
import os
import secrets
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fenceline.config import authorizer
from fenceline.config.properties import format_properties
from fenceline.local_cluster.ports import HOST
from fenceline.sasl.jaas import SCRAM_MODULE

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate, CertificateBuilder

FOLDER: Final = "security"
LISTENER: Final = "SASL_SSL"
MECHANISM: Final = "SCRAM-SHA-512"
BROKER: Final = "broker"
ADMIN: Final = "admin"
GUEST: Final = "guest"
_USERS: Final = (BROKER, ADMIN, GUEST)
_TOKENS: Final = "tokens.secret"
_VALID: Final = timedelta(days=3650)


@dataclass(frozen=True, slots=True)
class ClusterLogin:
    """How this process asks the nodes."""

    folder: Path

    def context(self) -> ssl.SSLContext:
        """With a node's certificate, which controllers ask for."""
        found = ssl.create_default_context(cafile=str(self.folder / "ca.pem"))
        found.load_cert_chain(str(next(self.folder.glob("node-*.pem"))))
        return found

    def password(self, user: str) -> str:
        return str(json.loads((self.folder / "users.json").read_text())[user])


def create(root: Path, nodes: Iterable[int]) -> ClusterLogin:
    """Create the folder, or complete it with certificates of nodes that have none. Raises OSError."""
    folder = root / FOLDER
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    users = folder / "users.json"
    if not users.exists():
        _write(users, json.dumps({name: secrets.token_urlsafe(18) for name in _USERS}, indent=2) + "\n")
    if not (folder / _TOKENS).exists():
        _write(folder / _TOKENS, secrets.token_urlsafe(32))
    missing = [node for node in nodes if not (folder / f"node-{node}.pem").exists()]
    if missing:
        _issue(folder, missing)
    return ClusterLogin(folder)


def settings(login: ClusterLogin, node: int) -> dict[str, str]:
    """Properties of a node, besides its listeners."""
    password = login.password(BROKER)
    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str((login.folder / f"node-{node}.pem").absolute()),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str((login.folder / "ca.pem").absolute()),
        "listener.name.controller.ssl.client.auth": "required",
        "ssl.principal.mapping.rules": f"RULE:^CN=node-[0-9]+$/{BROKER}/,DEFAULT",
        authorizer.CLASS: authorizer.STANDARD,
        authorizer.SUPER_USERS: f"User:{BROKER};User:{ADMIN}",
        "delegation.token.secret.key": (login.folder / _TOKENS).read_text(),
        "sasl.enabled.mechanisms": MECHANISM,
        "sasl.mechanism.inter.broker.protocol": MECHANISM,
        f"listener.name.{LISTENER.lower()}.{MECHANISM.lower()}.sasl.jaas.config": _jaas(BROKER, password),
    }


def first_users(login: ClusterLogin) -> list[str]:
    """As for `fenceline format --add-scram`."""
    return [f"{MECHANISM}=[name={name},password={login.password(name)}]" for name in _USERS]


def write_client_files(login: ClusterLogin, bootstrap: str) -> None:
    """The property files for clients. Raises OSError."""
    _write_client_files(login, bootstrap, ADMIN, "")
    _write_client_files(login, bootstrap, GUEST, f"{GUEST}.")


def _write_client_files(login: ClusterLogin, bootstrap: str, user: str, prefix: str) -> None:
    ca, password = str((login.folder / "ca.pem").absolute()), login.password(user)
    common = {"bootstrap.servers": bootstrap, "security.protocol": LISTENER, "sasl.mechanism": MECHANISM}
    java = {
        **common,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": ca,
        "sasl.jaas.config": _jaas(user, password),
    }
    own = {**common, "ssl.ca.location": ca, "sasl.username": user, "sasl.password": password}
    _write(login.folder / f"{prefix or 'client.'}properties", format_properties(java))
    _write(login.folder / f"{prefix}librdkafka.properties", "".join(f"{key}={value}\n" for key, value in own.items()))


def _jaas(user: str, password: str) -> str:
    return f'{SCRAM_MODULE} required username="{user}" password="{password}";'


def _write(path: Path, text: str | bytes) -> None:
    """Readable by its owner only, from the first byte on."""
    fresh = path.with_name(path.name + ".new")
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(text.encode() if isinstance(text, str) else text)
    fresh.replace(path)


# --- certificates ----------------------------------------


def _issue(folder: Path, nodes: Iterable[int]) -> None:
    """An authority that forgets its key: for other nodes, all get new certificates."""
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    known = {int(path.stem.removeprefix("node-")) for path in folder.glob("node-*.pem")}
    ca_key = ec.generate_private_key(ec.SECP256R1())
    authority = _signed(_builder("Fenceline local cluster", None, ca_key), None, ca_key)
    for node in sorted({*known, *nodes}):
        key = ec.generate_private_key(ec.SECP256R1())
        own = _signed(_builder(f"node-{node}", authority, key), authority, ca_key)
        text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        _write(folder / f"node-{node}.pem", text + own.public_bytes(Encoding.PEM))
    _write(folder / "ca.pem", authority.public_bytes(Encoding.PEM))


def _builder(name: str, issuer: Certificate | None, key: EllipticCurvePrivateKey) -> CertificateBuilder:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    made = x509.CertificateBuilder().subject_name(subject).public_key(key.public_key())
    made = made.issuer_name(issuer.subject if issuer is not None else subject)
    made = made.serial_number(x509.random_serial_number())
    made = made.not_valid_before(now - timedelta(hours=1)).not_valid_after(now + _VALID)
    made = made.add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
    made = made.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    if issuer is not None:
        hosts: list[x509.GeneralName] = [x509.DNSName("localhost"), x509.IPAddress(ip_address(HOST))]
        made = made.add_extension(x509.SubjectAlternativeName(hosts), critical=False)
    return made


def _signed(builder: CertificateBuilder, issuer: Certificate | None, key: EllipticCurvePrivateKey) -> Certificate:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    if issuer is not None:
        identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.public_key())  # type: ignore[arg-type]
        builder = builder.add_extension(identifier, critical=False)
    else:
        usage = x509.KeyUsage(
            digital_signature=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=True,
            crl_sign=True,
            encipher_only=False,
            decipher_only=False,
        )
        builder = builder.add_extension(usage, critical=True)
    return builder.sign(key, hashes.SHA256())


def properties_of_clients(login: ClusterLogin) -> Mapping[str, Path]:
    """Names and paths of the files for clients."""
    return {name: login.folder / name for name in ("client.properties", "librdkafka.properties")}
