"""Names, keys and stores of certificates. Rules: security.md A6, A7, A10.

The expected names were printed by Java 17 (X500Principal.getName) for certificates made in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)
from cryptography.x509.oid import NameOID as Name

from fenceline.errors import OperatorError
from fenceline.tls.certificates import (
    distinguished_name,
    identity_from_pem,
    identity_from_pkcs12,
    pem_of,
    trusted_from_pem,
    trusted_from_pkcs12,
)

KEY = ec.generate_private_key(ec.SECP256R1())
OTHER_KEY = ec.generate_private_key(ec.SECP256R1())


def certificate(
    subject: Sequence[x509.NameAttribute | x509.RelativeDistinguishedName],
    issuer: x509.Certificate | None = None,
    key: ec.EllipticCurvePrivateKey = KEY,
) -> x509.Certificate:
    name = x509.Name(subject)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(issuer.subject if issuer is not None else name)
    now = datetime.now(UTC)
    builder = builder.not_valid_before(now).not_valid_after(now + timedelta(days=1)).serial_number(1)
    return builder.public_key(key.public_key()).sign(KEY, hashes.SHA256())


def named(common_name: str, issuer: x509.Certificate | None = None) -> x509.Certificate:
    return certificate([x509.NameAttribute(Name.COMMON_NAME, common_name)], issuer)


def key_pem(key: ec.EllipticCurvePrivateKey = KEY, password: bytes | None = None) -> bytes:
    protection = NoEncryption() if password is None else BestAvailableEncryption(password)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, protection)


@pytest.mark.parametrize(
    ("subject", "expected"),
    [
        (
            [
                x509.NameAttribute(Name.COUNTRY_NAME, "DE"),
                x509.NameAttribute(Name.ORGANIZATION_NAME, "Acme, Inc."),
                x509.NameAttribute(Name.ORGANIZATIONAL_UNIT_NAME, "a+b"),
                x509.NameAttribute(Name.COMMON_NAME, 'svc "x" <y>;z\\'),
            ],
            'CN=svc \\"x\\" \\<y\\>\\;z\\\\,OU=a\\+b,O=Acme\\, Inc.,C=DE',
        ),
        (
            [
                x509.NameAttribute(Name.EMAIL_ADDRESS, "a@b.c"),
                x509.NameAttribute(Name.SERIAL_NUMBER, "77"),
                x509.NameAttribute(Name.COMMON_NAME, " lead # trail "),
            ],
            "CN=\\ lead \\# trail\\ ,2.5.4.5=#13023737,1.2.840.113549.1.9.1=#16056140622e63",
        ),
        (
            [
                x509.NameAttribute(Name.DOMAIN_COMPONENT, "org"),
                x509.NameAttribute(Name.USER_ID, "me"),
                x509.NameAttribute(Name.STREET_ADDRESS, "s"),
                x509.NameAttribute(Name.LOCALITY_NAME, "l"),
                x509.NameAttribute(Name.STATE_OR_PROVINCE_NAME, "st"),
                x509.NameAttribute(Name.TITLE, "t"),
            ],
            "2.5.4.12=#0c0174,ST=st,L=l,STREET=s,UID=me,DC=org",
        ),
        (
            [
                x509.RelativeDistinguishedName(
                    [
                        x509.NameAttribute(Name.COMMON_NAME, "b"),
                        x509.NameAttribute(Name.ORGANIZATIONAL_UNIT_NAME, "a"),
                    ]
                ),
                x509.RelativeDistinguishedName([x509.NameAttribute(Name.COMMON_NAME, "#x")]),
            ],
            "CN=\\#x,CN=b+OU=a",
        ),
        ([x509.NameAttribute(Name.COMMON_NAME, "Müller=ß\u4e2d  two  spaces")], "CN=Müller\\=ß\u4e2d  two  spaces"),
        ([], ""),
        ([x509.NameAttribute(Name.ORGANIZATION_NAME, "o" * 60)] * 5, ",".join(["O=" + "o" * 60] * 5)),
    ],
    ids=["escapes", "unknown attributes", "keywords", "several in one part", "other letters", "empty", "long"],
)
def test_names_are_written_as_java_does(subject: Sequence[x509.NameAttribute], expected: str) -> None:
    assert distinguished_name(certificate(subject)) == expected


def test_pem_with_key_and_chain_in_any_order() -> None:
    authority = named("ca")
    own = named("node", authority)
    for text in (key_pem() + pem_of([own, authority]), pem_of([own, authority]) + key_pem()):
        found = identity_from_pem(text, text, None, "here")
        assert (found.name, len(found.chain), found.chain_pem) == ("CN=node", 2, pem_of([own, authority]))


def test_encrypted_key() -> None:
    text = pem_of([named("node")])
    assert identity_from_pem(text, key_pem(password=b"pw"), "pw", "here").key_pem == key_pem()
    for password in (None, "wrong"):
        with pytest.raises(OperatorError, match="the private key cannot be read"):
            identity_from_pem(text, key_pem(password=b"pw"), password, "here")


def test_key_that_does_not_fit() -> None:
    with pytest.raises(OperatorError, match="does not fit the certificate of CN=node"):
        identity_from_pem(pem_of([named("node")]), key_pem(OTHER_KEY), None, "here")


@pytest.mark.parametrize("text", [b"", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", b"\xff" * 50])
def test_no_certificate(text: bytes) -> None:
    with pytest.raises(OperatorError, match="no certificate in PEM form"):
        identity_from_pem(text, key_pem(), None, "here")
    with pytest.raises(OperatorError, match="no certificate in PEM form"):
        trusted_from_pem(text, "here")


def test_pkcs12_store_with_a_chain_in_disorder() -> None:
    root = named("root")
    middle = named("middle", root)
    own, stranger = named("node", middle), named("stranger")
    store = pkcs12.serialize_key_and_certificates(
        b"alias", KEY, own, [root, stranger, middle], BestAvailableEncryption(b"pw")
    )
    found = identity_from_pkcs12(store, "pw", "here")
    assert found.chain_pem == pem_of([own, middle, root])
    assert len(trusted_from_pkcs12(store, "pw", "here")) == 4
    with pytest.raises(OperatorError, match="cannot be read"):
        identity_from_pkcs12(store, "wrong", "here")


def test_stores_of_another_kind() -> None:
    trust_only = pkcs12.serialize_key_and_certificates(None, None, None, [named("ca")], NoEncryption())
    with pytest.raises(OperatorError, match="no private key"):
        identity_from_pkcs12(trust_only, None, "here")
    for read in (identity_from_pkcs12, trusted_from_pkcs12):
        with pytest.raises(OperatorError, match=r"(?s)JKS.*keytool"):
            read(b"\xfe\xed\xfe\xed\x00\x00\x00\x02", "pw", "here")
        with pytest.raises(OperatorError, match="cannot be read"):
            read(b"nothing", "pw", "here")
