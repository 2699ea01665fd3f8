"""SASL exchanges against the examples of their RFCs."""

from __future__ import annotations

import pytest

from fenceline.client.core.config import ClientConfig
from fenceline.client.core.security import plain, scram, tls_context
from fenceline.errors import OperatorError, PeerError

_NONCE = "rOprNGfwEbeRWgbNEkqO"
_SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"


def test_scram_sha_256_matches_rfc_7677() -> None:
    exchange = scram("SCRAM-SHA-256", "user", "pencil", nonce=_NONCE)
    assert next(exchange) == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    assert exchange.send(_SERVER_FIRST) == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    with pytest.raises(StopIteration):
        exchange.send(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


@pytest.mark.parametrize(
    "answers",
    [
        [b"r=other,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"],
        [_SERVER_FIRST.replace(b"4096", b"1")],
        [_SERVER_FIRST, b"v=AAAA"],
    ],
    ids=["nonce", "iterations", "signature"],
)
def test_broker_without_the_secret_is_rejected(answers: list[bytes]) -> None:
    exchange = scram("SCRAM-SHA-256", "user", "pencil", nonce=_NONCE)
    next(exchange)
    for answer in answers[:-1]:
        exchange.send(answer)
    with pytest.raises(PeerError):
        exchange.send(answers[-1])


def test_plain_is_one_message() -> None:
    assert list(plain("u", "p")) == [b"\0u\0p"]


def test_unusable_tls_files_raise_an_operator_error() -> None:
    settings = {"security.protocol": "SSL", "ssl.ca.location": "/does/not/exist"}
    with pytest.raises(OperatorError, match=r"ssl\.ca\.location"):
        tls_context(ClientConfig.parse("admin", "h:1", settings))
