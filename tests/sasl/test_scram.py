"""SCRAM against the example of RFC 7677, and both sides against each other. Rules: security.md A24, A26, A69."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fenceline.sasl.scram import (
    ClientExchange,
    Credential,
    MalformedMessage,
    ServerFirst,
    credential_of,
    parse_client_final,
    parse_client_first,
    salted_password,
)

CLIENT_NONCE, SERVER_NONCE = "rOprNGfwEbeRWgbNEkqO", "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
FIRST = f"n,,n=user,r={CLIENT_NONCE}".encode()
FINAL = f"c=biws,r={CLIENT_NONCE}{SERVER_NONCE},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=".encode()
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def credential(password: str = "pencil", mechanism: str = "SCRAM-SHA-256", salt: bytes = SALT) -> Credential:
    return credential_of(mechanism, salted_password(mechanism, password, salt, 4096), salt, 4096)


def challenge(first: bytes = FIRST, known: Credential | None = None) -> ServerFirst:
    return ServerFirst.of("SCRAM-SHA-256", parse_client_first(first), SERVER_NONCE, known or credential())


def test_server_matches_rfc_7677() -> None:
    made = challenge()
    assert made.message == f"r={CLIENT_NONCE}{SERVER_NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    assert made.verify(parse_client_final(FINAL)) == SERVER_FINAL


@pytest.mark.parametrize(
    "wrong", [credential("pencil "), credential(salt=SALT[:4])], ids=["another password", "another salt"]
)
def test_wrong_proof(wrong: Credential) -> None:
    assert challenge(known=wrong).verify(parse_client_final(FINAL)) is None


@pytest.mark.parametrize("proof", ["", "AAAA", base64.b64encode(bytes(33)).decode()])
def test_proof_of_another_size_is_wrong(proof: str) -> None:
    final = FINAL[: FINAL.index(b",p=")] + f",p={proof}".encode()
    assert challenge().verify(parse_client_final(final)) is None


@pytest.mark.parametrize(
    ("final", "what"),
    [
        (FINAL.replace(b"c=biws", b"c=eSws"), "channel binding"),
        (FINAL.replace(b"k0,p", b"k1,p"), "nonce"),
        (FINAL.replace(b"r=rOprNGfwEbeRWgbNEkqO", b"r=rOprNGfwEbeRWgbNEkqOrOprNGfwEbeRWgbNEkqO"), "repeats its nonce"),
    ],
)
def test_answer_to_another_challenge_is_refused(final: bytes, what: str) -> None:
    """Kafka does not look at the channel binding (A24)."""
    with pytest.raises(MalformedMessage, match=what):
        challenge().verify(parse_client_final(final))


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"y,,n=user,r=abc",
        b"p=tls-unique,,n=user,r=abc",
        b"n,,m=x,n=user,r=abc",
        b"n,,n=user",
        b"n,,n=,r=abc",
        b"n,,n=us=er,r=abc",
        b"n,,n=user,r=",
        b"n,,n=user,r=a b",
        b"n,,n=user,r=abc,",
        b"n,,n=user,r=abc,x=1,x=2",
        b"n,,n=user,r=abc,1=2",
        b"n,,n=\xff,r=abc",
    ],
)
def test_malformed_first_message(message: bytes) -> None:
    with pytest.raises(MalformedMessage):
        parse_client_first(message)


@pytest.mark.parametrize(
    "message", [b"", b"c=biws,r=abc", b"c=!,r=abc,p=AAAA", b"c=biws,r=abc,p=A", b"r=abc,c=biws,p=AAAA", b"\xff"]
)
def test_malformed_final_message(message: bytes) -> None:
    with pytest.raises(MalformedMessage):
        parse_client_final(message)


def test_extensions_and_authorization_id() -> None:
    found = parse_client_first(b"n,a=x=2Cy,n=a=3Db,r=abc,tokenauth=true,k=v=w")
    assert (found.user, found.authorization_id, found.nonce) == ("a=b", "x,y", "abc")
    assert dict(found.extensions) == {"tokenauth": "true", "k": "v=w"}
    assert found.header == "n,a=x=2Cy,"


@given(
    user=st.text(min_size=1, max_size=20),
    password=st.text(max_size=20),
    salt=st.binary(max_size=30),
    mechanism=st.sampled_from(["SCRAM-SHA-256", "SCRAM-SHA-512"]),
)
def test_both_sides_agree(user: str, password: str, salt: bytes, mechanism: str) -> None:
    client = ClientExchange(mechanism, user, password, "clientnonce", {"tokenauth": "true"})
    first = parse_client_first(client.first())
    assert first.user == user
    made = ServerFirst.of(mechanism, first, "servernonce", credential(password, mechanism, salt))
    final = made.verify(parse_client_final(client.answer(made.message.encode())))
    assert final is not None
    client.check(final)
    with pytest.raises(MalformedMessage, match="could not prove"):
        client.check(final[:-4] + b"AAA=")


@pytest.mark.parametrize("rounds", ["0", "1", "4095", "10000001", "9" * 40, "x", "-1", ""])
def test_client_refuses_to_compute_too_little_or_too_much(rounds: str) -> None:
    client = ClientExchange("SCRAM-SHA-256", "user", "pencil", "abc", {})
    with pytest.raises(MalformedMessage):
        client.answer(f"r=abcdef,s=W22ZaJ0SNY7soEsUEjb6gQ==,i={rounds}".encode())


def test_secrets_are_not_printed() -> None:
    assert "stored" not in repr(credential())
