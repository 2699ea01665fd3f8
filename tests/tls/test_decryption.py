"""Decrypting many records at a time. Rules: security.md A12."""

from __future__ import annotations

import pytest
from OpenSSL import SSL

from fenceline.tls import decryption
from fenceline.tls.decryption import decrypt_into
from tests.tls.exchange import Exchange, client, context


@pytest.fixture(autouse=True, params=[pytest.param("compiled", marks=pytest.mark.compiled), "python"])
def loop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "python":
        monkeypatch.setattr(decryption, "_native", None)
    elif decryption._native is None:
        pytest.skip("the compiled loop is missing")


def test_many_small_records_are_decrypted_at_once() -> None:
    exchange = Exchange(context(), client())
    contents = [b"%d" % number * (1 + number % 9) for number in range(300)]
    exchange.send_from_the_client(*contents)
    target = bytearray(1 << 16)
    count, ended = decrypt_into(exchange.server, memoryview(target))
    assert bytes(target[:count]) == b"".join(contents)
    assert ended is None
    target.extend(b"x")  # no view of it is left


def test_a_full_target_leaves_the_rest_for_the_next_call() -> None:
    exchange = Exchange(context(), client())
    exchange.send_from_the_client(b"0123456789", b"abcdef")
    target = memoryview(bytearray(16))
    assert decrypt_into(exchange.server, target[:12]) == (12, None)
    count, ended = decrypt_into(exchange.server, target[12:])
    assert (bytes(target), count) == (b"0123456789abcdef", 4)
    assert ended is None
    assert decrypt_into(exchange.server, target)[0] == 0


def test_what_comes_before_the_peers_close_is_returned_with_it() -> None:
    exchange = Exchange(context(), client())
    exchange.send_from_the_client(b"last words")
    exchange.close_the_client()
    target = memoryview(bytearray(64))
    count, ended = decrypt_into(exchange.server, target)
    assert bytes(target[:count]) == b"last words"
    assert isinstance(ended, SSL.ZeroReturnError)


def test_what_comes_before_a_damaged_record_is_returned_with_the_error() -> None:
    exchange = Exchange(context(), client())
    exchange.send_from_the_client(b"good")
    exchange.server.bio_write(b"\x17\x03\x03\x00\x20" + bytes(32))
    target = memoryview(bytearray(64))
    count, ended = decrypt_into(exchange.server, target)
    assert bytes(target[:count]) == b"good"
    assert type(ended) is SSL.Error
    assert decrypt_into(exchange.server, target)[0] == 0, "it stays broken"
