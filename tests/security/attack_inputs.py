"""What peers send that do not want to log in: bytes, damaged requests, damaged logins, damaged TLS records.

Each function plays one connection with a server and returns how many inputs it was. Everything is chosen by `rng`.
"""

from __future__ import annotations

import re
import ssl
import struct
from collections.abc import Callable, Iterator
from functools import cache
from random import Random
from typing import Final

from fenceline.sasl.scram import DIGESTS
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import write_request
from fenceline.wire.frame import encode_request_header
from tests.security.attacked_server import KEY, KNOWN, MECHANISMS, UNKNOWN, WRONG, AttackedServer, Peer

SASL, TLS = "SASL_PLAINTEXT", "SSL"
FAILURE_DELAY_S: Final = 0.2
TIMEOUT_S: Final = 10.0
NUMBERS: Final = (-(2**31), -1, 0, 1, 7, 8, 127, 128, 65_535, 65_536, 65_537, 2**31 - 1)
VARINTS: Final = (
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\x7f",
    b"\x80\x80\x80\x80\x80\x80",
    b"\x80",
    b"\x7f",
    b"\0",
)
PIECES: Final = (*VARINTS, b"\x7f\xff\xff\xff", b",", b"=", b"\0", b"\x01", b"=2C", b"a=", b"[[[[[[[[", b"\xc3\x28")
_CHALLENGE = re.compile(rb"r=[^,]*,s=[^,]*,i=(\d+)")


def damaged(rng: Random, frame: bytes) -> bytes:
    """With up to five changes."""
    found = bytearray(frame)
    for _ in range(rng.randrange(1, 6)):
        at = rng.randrange(len(found) + 1)
        match rng.randrange(6):
            case 0 if at < len(found):
                found[at] = rng.randrange(256)
            case 1:
                del found[at:]
            case 2:
                found[at:at] = rng.randbytes(rng.randrange(1, 9))
            case 3 if at < len(found):
                found[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
            case 4:
                found[at : at + 4] = struct.pack(">i", rng.choice(NUMBERS))
            case _:
                found[at:at] = rng.choice(PIECES)
    return bytes(found)


def framed(content: bytes) -> bytes:
    return struct.pack(">i", len(content)) + content


def request(key: ApiKey, version: int, **fields: object) -> bytes:
    return encode_request_header(key, version, 7, "me") + write_request(key, version, fields)


def _versions(rng: Random) -> bytes:
    return request(ApiKey.API_VERSIONS, rng.randrange(5), client_software_name="a", client_software_version="1")


def odd_header(rng: Random) -> bytes:
    """Of any API and version, with a client id and tagged fields that are not what they claim."""
    key = rng.choice((*ApiKey, rng.randrange(-(2**15), 2**15)))
    start = struct.pack(">hhi", key, rng.choice((0, 1, 2, 3, 4, 9, 12, 17, -1, 32_767)), rng.choice(NUMBERS))
    client_id = rng.choice((b"\xff\xff", b"\0\0", b"\0\x02me", b"\x7f\xff", b"\0\x05me", b"\x80\0", b"\0\x02\xc3\x28"))
    tags = b"".join(rng.choice(PIECES) for _ in range(rng.randrange(4)))
    return start + client_id + rng.choice((b"", b"\0", tags)) + rng.randbytes(rng.randrange(20))


# --- plays ----------------------------------------


def raw_bytes(rng: Random, server: AttackedServer) -> int:
    """Bytes, and frames that announce what is not there."""
    peer = server.connect(rng.choice((SASL, SASL, TLS)))

    def inputs() -> Iterator[bytes]:
        for _ in range(rng.randrange(1, 5)):
            content = rng.randbytes(rng.choice((1, 3, 4, 8, 40, 400)))
            yield struct.pack(">i", rng.choice((*NUMBERS, len(content)))) + content if rng.random() < 0.6 else content

    return _sent(rng, server, peer, inputs())


def damaged_frames(rng: Random, server: AttackedServer) -> int:
    """Requests of the login, and others, most of them damaged; the size fits."""
    peer = server.connect(SASL)

    def inputs() -> Iterator[bytes]:
        for _ in range(rng.randrange(1, 6)):
            frame = rng.choice(_FRAMES)(rng)
            content = framed(damaged(rng, frame) if rng.random() < 0.6 else frame)
            yield damaged(rng, content) if rng.random() < 0.1 else content

    return _sent(rng, server, peer, inputs())


_FRAMES: Final[tuple[Callable[[Random], bytes], ...]] = (
    lambda rng: _versions(rng),
    lambda rng: odd_header(rng),
    lambda rng: odd_header(rng),
    lambda rng: request(ApiKey.SASL_HANDSHAKE, rng.randrange(2), mechanism=rng.choice(MECHANISMS)),
    lambda rng: request(
        ApiKey.SASL_AUTHENTICATE, rng.randrange(3), auth_bytes=_first(rng.choice(MECHANISMS), KNOWN, rng)
    ),
    lambda rng: request(ApiKey.METADATA, 12, topics=[]),
    lambda rng: request(ApiKey.PRODUCE, 9, topic_data=[]),
)


def equal_logins(rng: Random, server: AttackedServer) -> int:
    """A login with a wrong password, perhaps damaged, and the same of a user that does not exist: both are answered
    alike."""
    seed = rng.randrange(2**32)
    known, count = _login(Random(seed), server, KNOWN)
    unknown, other = _login(Random(seed), server, UNKNOWN)
    assert known == unknown, f"login {seed}: {known} for a user that exists, {unknown} for another"
    return count + other


def _login(rng: Random, server: AttackedServer, user: str) -> tuple[list[bytes | str], int]:
    """What the server did, without what is random in it, and the number of messages."""
    peer = server.connect(SASL)
    mechanism = rng.choice(MECHANISMS)
    is_raw, version = rng.random() < 0.2, rng.randrange(3)
    is_damaged = rng.random() < 0.7
    seen: list[bytes | str] = []

    def ask(content: bytes) -> bytes:
        peer.receive(framed(content))
        before = peer.is_closed
        server.loop.pass_s(FAILURE_DELAY_S)
        answer = peer.take()
        seen.append(_CHALLENGE.sub(rb"challenge \1", answer))
        seen.append("closed" if before else "closed late" if peer.is_closed else "open")
        return answer

    def token(message: bytes) -> bytes:
        if is_damaged and rng.random() < 0.6:
            message = damaged(rng, message)
        return message if is_raw else request(ApiKey.SASL_AUTHENTICATE, version, auth_bytes=message)

    if rng.random() < 0.3:
        ask(_versions(rng))
    ask(request(ApiKey.SASL_HANDSHAKE, 0 if is_raw else 1, mechanism=mechanism))
    count = 2
    answer = ask(token(_first(mechanism, user, rng)))
    while not peer.is_closed and count < 6:
        count += 1
        answer = ask(token(_next(rng, mechanism, answer)))
    peer.end()
    return seen, count


def _first(mechanism: str, user: str, rng: Random | None = None) -> bytes:
    authorization = rng.choice(("", "", user, "else")) if rng is not None else ""
    if mechanism == "PLAIN":
        return f"{authorization}\0{user}\0{WRONG}".encode()
    if mechanism in DIGESTS:
        extension = rng.choice(("", "", ",tokenauth=true", ",m=x")) if rng is not None else ""
        named = f"a={authorization}" if authorization else ""
        return f"n,{named},n={user},r=client{extension}".encode()
    return b"n,,\x01auth=Bearer " + (rng.choice(_tokens()) if rng is not None else b"a.b.c") + b"\x01\x01"


@cache
def _tokens() -> tuple[bytes, ...]:
    """None is valid: signed by nobody, by a key that is not known, or for nobody."""
    from joserfc import jwt
    from joserfc.jwk import ECKey

    claims = {"sub": KNOWN, "iat": 1_700_000_000, "exp": 2_000_000_000, "aud": "other"}
    foreign, nested = ECKey.generate_key("P-256", {"kid": "other"}), b"W1tb" * 1_500
    return (
        b"a.b.c",
        b"eyJhbGciOiJub25lIn0.eyJzdWIiOiJhbm5hIn0.",
        nested + b".e30.YQ",
        jwt.encode({"alg": "ES256", "kid": "other"}, claims, foreign).encode(),
        jwt.encode({"alg": "ES256", "kid": "first"}, claims, KEY).encode(),
    )


def _next(rng: Random, mechanism: str, answer: bytes) -> bytes:
    found = re.search(rb"r=([^,]*),s=", answer)
    if mechanism in DIGESTS and found is not None:
        return b"c=biws,r=" + found[1] + b",p=" + b"A" * rng.choice((43, 86)) + b"="
    return rng.choice((b"\x01", b"", b"n,,", b"more"))


def damaged_records(rng: Random, server: AttackedServer) -> int:
    """Records of TLS before the handshake is complete, or after it."""
    peer = server.connect(TLS)
    play = rng.choice((_hello, _hello, _split_hello, _fragments, _alerts, _headers, _plaintext, _late))
    return _sent(rng, server, peer, play(rng, server, peer))


Records = Iterator[bytes]


@cache
def _hellos() -> tuple[bytes, ...]:
    found = []
    for oldest, newest in ((ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2), (ssl.TLSVersion.TLSv1_2, None)):
        for name in (None, "127.0.0.1", "a.name.of.a.node"):
            context = ssl.create_default_context()
            context.check_hostname = False
            context.minimum_version = oldest
            if newest is not None:
                context.maximum_version = newest
            outgoing = ssl.MemoryBIO()
            client = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name)
            try:
                client.do_handshake()
            except ssl.SSLWantReadError:
                found.append(outgoing.read())
    return tuple(found)


def _hello(rng: Random, server: AttackedServer, peer: Peer) -> Records:
    hello = rng.choice(_hellos())
    yield damaged(rng, hello)
    yield damaged(rng, hello) if rng.random() < 0.5 else rng.randbytes(30)


def _split_hello(rng: Random, server: AttackedServer, peer: Peer) -> Records:
    """At one byte."""
    hello = rng.choice(_hellos())
    at = rng.randrange(len(hello) + 1)
    yield hello[:at]
    yield hello[at:] if rng.random() < 0.5 else damaged(rng, hello[at:])


def _fragments(rng: Random, server: AttackedServer, peer: Peer) -> Records:
    """One message in many records, of which some may be empty."""
    hello = rng.choice(_hellos())
    left, sizes = hello[5:], rng.choice(((1,), (1, 0), (7, 50), (0,), (200, 300)))
    for number in range(60):
        size = sizes[number % len(sizes)]
        piece, left = left[:size], left[size:]
        yield hello[:3] + struct.pack(">H", len(piece)) + piece
        if not left:
            return


def _alerts(rng: Random, server: AttackedServer, peer: Peer) -> Records:
    for _ in range(rng.randrange(1, 8)):
        yield b"\x15\x03\x03\0\x02" + bytes((rng.choice((1, 1, 2, 9)), rng.choice((0, 10, 40, 90, 255))))
    yield rng.choice(_hellos())


def _headers(rng: Random, server: AttackedServer, peer: Peer) -> Records:
    """Records of any type, version and length."""
    for _ in range(rng.randrange(1, 6)):
        length = rng.choice((0, 1, 2, 255, 16_384, 16_385, 18_432, 65_535))
        kind, version = rng.choice((20, 21, 22, 23, 24, 0, 128)), rng.choice((0x0300, 0x0301, 0x0303, 0x0304, 2))
        yield struct.pack(">BHH", kind, version, length) + rng.randbytes(rng.choice((0, 1, min(length, 300))))


def _plaintext(rng: Random, server: AttackedServer, peer: Peer) -> Records:
    yield framed(rng.choice((_versions, odd_header))(rng))
    yield b"GET / HTTP/1.1\r\n\r\n"


def _late(rng: Random, server: AttackedServer, peer: Peer) -> Records:
    """After the handshake, which may have been damaged."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = server.trust.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    damages = rng.random() < 0.5
    for _ in range(3):
        try:
            client.do_handshake()
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError:
            return
        sent = outgoing.read()
        if damages and rng.random() < 0.4:
            sent = damaged(rng, sent)
        if sent:
            yield sent
        incoming.write(peer.take())
    try:
        client.write(framed(_versions(rng)))
    except ssl.SSLError:
        return
    whole = outgoing.read()
    yield damaged(rng, whole) if rng.random() < 0.5 else whole
    yield rng.choice((b"", rng.randbytes(40), whole, b"\x15\x03\x03\0\x02\x01\0"))


def _sent(rng: Random, server: AttackedServer, peer: Peer, inputs: Iterator[bytes]) -> int:
    """Send them, some in two pieces, until the server takes no more; the number that was sent."""
    count = 0
    for content in inputs:
        count += 1
        at = rng.randrange(len(content) + 1) if rng.random() < 0.3 else 0
        if not (peer.receive(content[:at]) and peer.receive(content[at:])):
            break
    _end(rng, server, peer)
    return max(count, 1)


def _end(rng: Random, server: AttackedServer, peer: Peer) -> None:
    """The peer leaves at once, after an answer, or never: then the server ends the connection."""
    match rng.randrange(3):
        case 0:
            server.loop.pass_s(FAILURE_DELAY_S)
        case 1:
            was_served = server.metrics.authentications
            server.loop.pass_s(2 * TIMEOUT_S)
            assert server.metrics.authentications == was_served == 0, "nobody knows a password"
            assert peer.is_closed or peer.is_served, "a peer that is not authenticated has a time limit"
    peer.end()


PLAYS: Final[tuple[Callable[[Random, AttackedServer], int], ...]] = (
    raw_bytes,
    damaged_frames,
    damaged_frames,
    equal_logins,
    equal_logins,
    damaged_records,
    damaged_records,
)
