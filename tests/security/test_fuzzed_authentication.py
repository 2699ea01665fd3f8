"""Random and damaged messages before authentication: nothing but an answer, a closed connection or MalformedRequest.

`make soak` plays a million of them. Rules: security.md A14 to A17, A68, A69.
"""

from __future__ import annotations

import os
import tracemalloc
from random import Random

import pytest

from fenceline.sasl.scram import ClientExchange, credential_of, salted_password
from fenceline.security.authentication import SaslConversation
from fenceline.security.oauth import InvalidToken, OauthExchange
from fenceline.security.sasl_server import KnownCredential, PlainExchange, SaslExchange, ScramExchange
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import write_request
from fenceline.wire.errors import MalformedRequest
from fenceline.wire.frame import encode_request_header, parse_request_header
from fenceline.wire.principal import Principal

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "OAUTHBEARER")
KNOWN = KnownCredential(
    credential_of("SCRAM-SHA-256", salted_password("SCRAM-SHA-256", "secret", b"salt" * 4, 4096), b"salt" * 4, 4096),
    Principal(name="anna"),
)


def begin(mechanism: str) -> SaslExchange:
    def refuse(_: str) -> None:
        raise InvalidToken("no")

    match mechanism:
        case "PLAIN":
            return PlainExchange({"anna": "secret"})
        case "OAUTHBEARER":
            return OauthExchange(refuse)  # type: ignore[arg-type]
    find = {"anna": KNOWN}.get
    return ScramExchange(mechanism, lambda name, _: find(name), nonce="server", secret=b"node")


def messages(rng: Random) -> list[bytes]:
    """Of one peer: valid requests, most of which are damaged."""
    mechanism = rng.choice(MECHANISMS)
    first = {
        "PLAIN": b"\0anna\0guess",
        "SCRAM-SHA-256": ClientExchange("SCRAM-SHA-256", "anna", "guess", "client", {}).first(),
        "OAUTHBEARER": b"n,,\x01auth=Bearer a.b.c\x01\x01",
    }[mechanism]
    last = b"c=biws,r=clientserver,p=" + b"A" * 43 + b"="
    requests = [
        (ApiKey.API_VERSIONS, 3, {"client_software_name": "a", "client_software_version": "1"}),
        (ApiKey.SASL_HANDSHAKE, rng.randrange(2), {"mechanism": mechanism}),
        (ApiKey.SASL_AUTHENTICATE, rng.randrange(3), {"auth_bytes": first}),
        (ApiKey.SASL_AUTHENTICATE, 2, {"auth_bytes": last}),
        (ApiKey.METADATA, 12, {"topics": []}),
    ]
    frames = [
        encode_request_header(key, version, 7, "me") + write_request(key, version, fields)
        for key, version, fields in requests
    ]
    return [damaged(rng, frame) if rng.random() < 0.6 else frame for frame in [*frames, first, last]]


def damaged(rng: Random, frame: bytes) -> bytes:
    found = bytearray(frame)
    for _ in range(rng.randrange(1, 6)):
        at = rng.randrange(len(found) + 1)
        match rng.randrange(5):
            case 0 if at < len(found):
                found[at] = rng.randrange(256)
            case 1:
                del found[at:]
            case 2:
                found[at:at] = rng.randbytes(rng.randrange(1, 9))
            case 3 if at < len(found):
                found[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
            case _:
                found[at:at] = rng.choice((b"\xff\xff\xff\xff\x0f", b"\x7f\xff\xff\xff", b",", b"=", b"\0", b"\x01"))
    return bytes(found)


def play(rng: Random) -> int:
    """One connection; the number of its messages."""
    conversation = SaslConversation(MECHANISMS, begin, max_session_ms=rng.choice((0, 1_000)))
    now_ms = 0
    for count, frame in enumerate(messages(rng), 1):
        now_ms += rng.choice((0, 2_000))
        try:
            if conversation.expects_raw_token:
                step = conversation.raw_token(frame, now_ms, now_ms)
            else:
                header = parse_request_header(frame)
                step = conversation.request(header, memoryview(frame)[header.body_position :], now_ms, now_ms)
        except MalformedRequest:
            return count
        assert not conversation.is_done, "nobody knows the password"
        if step is None:
            conversation.versions_answered()
        elif step.closes:
            return count
    return count


@pytest.mark.parametrize("inputs", [20_000, pytest.param(1_000_000, marks=pytest.mark.soak)])
def test_damaged_messages(inputs: int) -> None:
    seed = int(os.environ.get("FENCELINE_CHAOS_SEED") or 7)
    rng, played = Random(seed), 0
    tracemalloc.start()
    try:
        while played < inputs:
            state = rng.getstate()
            try:
                played += play(rng)
            except Exception as error:
                raise AssertionError(f"seed {seed} after {played} messages, state {hash(state)}") from error
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 32 << 20, "no input makes the node allocate what it announces"
