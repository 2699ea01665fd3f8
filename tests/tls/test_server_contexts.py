"""Contexts of accepted connections: versions, suites, resumed sessions, reasons. Rules: security.md A5, A12, A72."""

from __future__ import annotations

import ssl

import pytest
import trustme

from fenceline.errors import OperatorError
from fenceline.tls.handshakes import HandshakeFailed, shake_hands
from fenceline.tls.suites import openssl_name
from tests.tls.exchange import Exchange, client, context

OTHER = trustme.CA().issue_cert("b.test", common_name="stranger")


@pytest.mark.parametrize(
    ("suite", "version"),
    [
        ("TLS_AES_128_GCM_SHA256", ssl.TLSVersion.TLSv1_3),
        ("TLS_CHACHA20_POLY1305_SHA256", ssl.TLSVersion.TLSv1_3),
        ("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", ssl.TLSVersion.TLSv1_2),
        ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", ssl.TLSVersion.TLSv1_2),
        ("ECDHE-ECDSA-AES256-GCM-SHA384", ssl.TLSVersion.TLSv1_2),
    ],
)
def test_only_the_named_suite_is_on(suite: str, version: ssl.TLSVersion) -> None:
    served = context(ssl_cipher_suites=suite)
    shake_hands(served, client())
    shake_hands(served, client(version=version))
    [other] = {ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3} - {version}
    with pytest.raises(HandshakeFailed):
        shake_hands(served, client(version=other))
    chosen = Exchange(served, client()).client.cipher()
    assert chosen is not None
    assert chosen[0] == openssl_name(suite)


@pytest.mark.parametrize("suite", ["TLS_RSA_WITH_RC4_128_MD5", "TLS_NO_SUCH_SUITE", "ALL", "DEFAULT:!AES", "HIGH"])
def test_unknown_suites_are_refused(suite: str) -> None:
    with pytest.raises(OperatorError, match="is not available"):
        context(ssl_cipher_suites=suite)


def test_a_version_without_a_suite_is_refused() -> None:
    with pytest.raises(OperatorError, match="is of a version"):
        context(ssl_cipher_suites="TLS_AES_128_GCM_SHA256", ssl_enabled_protocols="TLSv1.2")


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_sessions_are_resumed_with_client_certificates(version: str) -> None:
    served, asking = context(ssl_enabled_protocols=version), client()
    first = Exchange(served, asking)
    assert first.read_by_the_client(b"x") == b"x", "the tickets of TLS 1.3 come before it"
    assert first.client.session is not None
    second = Exchange(served, asking, first.client.session)
    assert second.client.session_reused
    assert second.server.get_peer_certificate(as_cryptography=True) is not None
    assert second.read_by_the_client(b"y") == b"y"


def test_an_answer_is_encrypted_in_one_call() -> None:
    """Otherwise each call would encrypt one record only."""
    content = bytes(200_000)
    assert Exchange(context(), client()).server.send(content) == len(content)


@pytest.mark.parametrize(
    ("identity", "reason"),
    [(None, "did not return a certificate"), (OTHER, "certificate verify failed: its authority is not trusted")],
)
def test_the_reason_of_a_refused_client(identity: trustme.LeafCert | None, reason: str) -> None:
    with pytest.raises(HandshakeFailed, match=reason):
        shake_hands(context(ssl_enabled_protocols="TLSv1.3"), client(identity))


def test_there_is_no_certificate_without_one() -> None:
    exchange = Exchange(context(ssl_client_auth="requested"), client(None))
    assert exchange.server.get_peer_certificate(as_cryptography=True) is None
    assert exchange.read_by_the_client(b"x") == b"x"
