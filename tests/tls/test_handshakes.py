"""Handshakes of a node with itself, and the rules for an exchange. Rules: security.md A9, A10."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest
import trustme

from fenceline.errors import OperatorError
from fenceline.tls.handshakes import check_handshakes, check_own_handshake
from fenceline.tls.settings import TlsMaterial, TlsSettings, check_exchange, read_material, read_settings

DEFAULTS = {"ssl.enabled.protocols": "TLSv1.2,TLSv1.3", "ssl.client.auth": "required"}
ONE, OTHER = trustme.CA(), trustme.CA()


def material(
    identity: trustme.CA | None, *trusted: trustme.CA, name: str = "node", host: str = "a.test", valid: bool = True
) -> TlsMaterial:
    """With a certificate of `identity`."""
    settings: dict[str, str] = {"ssl.keystore.type": "PEM", "ssl.truststore.type": "PEM"}
    if identity is not None:
        expires = datetime.now(UTC) + timedelta(days=1 if valid else -1)
        issued = identity.issue_cert(host, common_name=name, organization_unit_name="tests", not_after=expires)
        settings["ssl.keystore.key"] = issued.private_key_pem.bytes().decode()
        settings["ssl.keystore.certificate.chain"] = b"".join(each.bytes() for each in issued.cert_chain_pems).decode()
    if trusted:
        settings["ssl.truststore.certificates"] = b"".join(each.cert_pem.bytes() for each in trusted).decode()
    return read_material(settings.get, "here", lambda location: Path(location).read_bytes())


def settings(**changes: str) -> TlsSettings:
    return read_settings({**DEFAULTS, **{key.replace("_", "."): value for key, value in changes.items()}}.get, "here")


@pytest.mark.parametrize("versions", ["TLSv1.2", "TLSv1.3", "TLSv1.2,TLSv1.3"])
@pytest.mark.parametrize("client_auth", ["none", "requested", "required"])
def test_nodes_of_one_authority_connect(versions: str, client_auth: str) -> None:
    """Their host names do not matter."""
    used = settings(ssl_enabled_protocols=versions, ssl_client_auth=client_auth)
    old, new = material(ONE, ONE), material(ONE, ONE, host="b.test")
    check_own_handshake(used, old, "here")
    check_handshakes(used, old, new, "here")


@pytest.mark.parametrize("versions", ["TLSv1.2", "TLSv1.3"])
@pytest.mark.parametrize(
    ("old", "new", "failure"),
    [
        ((ONE, ONE), (OTHER, OTHER), "with the new certificates cannot connect to one with the old"),
        ((ONE, ONE), (OTHER, ONE, OTHER), "with the new certificates cannot connect to one with the old"),
        ((ONE, ONE, OTHER), (OTHER, OTHER), "with the new certificates cannot connect to one with the old"),
        ((ONE, ONE), (ONE, OTHER), "with the new certificates cannot connect to one with the old"),
    ],
)
def test_unknown_authority_is_refused(
    old: tuple[trustme.CA, ...], new: tuple[trustme.CA, ...], failure: str, versions: str
) -> None:
    used = settings(ssl_enabled_protocols=versions)
    with pytest.raises(OperatorError, match=failure) as error:
        check_handshakes(used, material(*old), material(*new), "here")
    assert "before the first certificate" in error.value.advice


def test_authority_that_only_the_new_certificates_need_is_refused_without_client_certificates() -> None:
    used = settings(ssl_client_auth="none")
    with pytest.raises(OperatorError, match="with the old certificates cannot connect to one with the new"):
        check_handshakes(used, material(ONE, ONE), material(OTHER, ONE, OTHER), "here")


def test_authorities_are_exchanged_in_steps() -> None:
    """The trust stores first, then the certificates, then the trust stores again."""
    steps = [(ONE, ONE), (ONE, ONE, OTHER), (OTHER, ONE, OTHER), (OTHER, OTHER)]
    for old, new in pairwise(steps):
        check_handshakes(settings(), material(*old), material(*new), "here")


def test_node_that_does_not_trust_itself_is_refused() -> None:
    with pytest.raises(OperatorError, match="cannot connect to each other"):
        check_own_handshake(settings(), material(ONE, OTHER), "here")


def test_expired_certificate_is_refused() -> None:
    with pytest.raises(OperatorError, match="expired"):
        check_handshakes(settings(), material(ONE, ONE), material(ONE, ONE, valid=False), "here")


def allows(old: TlsMaterial, new: TlsMaterial, *, name: bool = False, alternatives: bool = False) -> None:
    check_exchange(old, new, allows_other_name=name, allows_other_alternatives=alternatives)


def test_store_is_neither_added_nor_removed() -> None:
    both, without_key, without_trust = material(ONE, ONE), material(None, ONE), material(ONE)
    allows(both, both)
    for old, new, reason in (
        (both, without_key, "key store cannot be removed from"),
        (without_key, both, "key store cannot be added to"),
        (both, without_trust, "trust store cannot be removed from"),
        (without_trust, both, "trust store cannot be added to"),
    ):
        with pytest.raises(OperatorError, match=reason):
            allows(old, new, name=True, alternatives=True)


def test_other_name_and_lost_alternative_name_need_permission() -> None:
    old, renamed, moved = material(ONE, ONE), material(ONE, ONE, name="b"), material(ONE, ONE, host="b.test")
    with pytest.raises(OperatorError, match=r"is of .*CN=b"):
        allows(old, renamed, alternatives=True)
    allows(old, renamed, name=True)
    with pytest.raises(OperatorError, match=r"lacks the alternative names a\.test"):
        allows(old, moved, name=True)
    allows(old, moved, alternatives=True)
