"""Challenges of users that do not exist have the form of others, at every node. Rules: security.md A68, A69."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import pytest

from fenceline.security.sasl_server import ChallengeForm, ScramExchange, usual_form
from fenceline.wire.apis import ApiKey
from tests.security.attack_inputs import SASL, framed, request
from tests.security.attacked_server import AttackedServer, with_server

KAFKAS = b"1w4l8z0p2x9qk3v7c5b6n8m0a1"  # 130 bits in base 36, as `kafka-configs` makes salts


@pytest.mark.parametrize(
    ("credentials", "expected"),
    [
        ([], ChallengeForm(24, False, 4096)),
        ([(KAFKAS, 4096)], ChallengeForm(26, True, 4096)),
        ([(KAFKAS, 8192), (KAFKAS[::-1], 8192), (bytes(24), 4096)], ChallengeForm(26, True, 8192)),
        ([(bytes(64), 4096), (b"", 4096), (b"", 4096)], ChallengeForm(64, False, 4096)),
    ],
)
def test_form_of_most_users(credentials: list[tuple[bytes, int]], expected: ChallengeForm) -> None:
    assert usual_form(credentials) == expected
    assert usual_form(reversed(credentials)) == expected


@pytest.mark.parametrize("form", [ChallengeForm(26, True, 8192), ChallengeForm(150, False, 4096)])
def test_challenge_has_the_form_and_is_always_the_same(form: ChallengeForm) -> None:
    def challenge(user: str) -> tuple[bytes, int]:
        exchange = ScramExchange("SCRAM-SHA-512", lambda *_: None, nonce="s", secret=b"x", form=lambda: form)
        found = re.fullmatch(rb"r=cs,s=([^,]+),i=(\d+)", exchange.answer(f"n,,n={user},r=c".encode()))
        assert found is not None
        return base64.b64decode(found[1]), int(found[2])

    salts = {user: challenge(user) for user in ("a", "b", "c")}
    assert salts == {user: challenge(user) for user in salts}
    assert len(set(salts.values())) == 3
    assert {usual_form([each]) for each in salts.values()} == {form}


def challenges(folder: Path, *users: str, **extensions: str) -> list[bytes]:
    """Of a new node, without its nonce."""
    found: list[bytes] = []

    def story(server: AttackedServer) -> None:
        for user in users:
            peer = server.connect(SASL)
            more = "".join(f",{key}={value}" for key, value in extensions.items())
            for content in (
                request(ApiKey.SASL_HANDSHAKE, 1, mechanism="SCRAM-SHA-256"),
                request(ApiKey.SASL_AUTHENTICATE, 0, auth_bytes=f"n,,n={user},r=c{more}".encode()),
            ):
                peer.take()
                assert peer.receive(framed(content))
            found.append(peer.take().partition(b",s=")[2])
            peer.end()

    with_server(folder, story)
    return found


@pytest.mark.parametrize("extensions", [{}, {"tokenauth": "true"}])
def test_every_node_gives_the_same_challenge(extensions: dict[str, str], tmp_path: Path) -> None:
    """Otherwise the users that exist are those whose salt is the same at two nodes, or after a restart."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first = challenges(tmp_path / "a", "nora", "nina", **extensions)
    assert first == challenges(tmp_path / "b", "nora", "nina", **extensions)
    assert first[0] != first[1] != b""
