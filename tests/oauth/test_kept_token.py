"""When a token is requested again. Rules: security.md A70."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace

import pytest

from fenceline.errors import OperatorError
from fenceline.oauth import kept_token
from fenceline.oauth.kept_token import KeptToken
from fenceline.oauth.token_endpoint import TokenUnavailable
from fenceline.sasl.oauthbearer import BearerToken


class Issuer:
    """Tokens are numbered, and live for 100 s on this clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, lifetime_s: float = 100) -> None:
        self.now_s = time.time()
        self.count = 0
        self.lifetime_s = lifetime_s
        self.error: Exception | None = None
        monkeypatch.setattr(kept_token, "time", SimpleNamespace(time=lambda: self.now_s))

    def request(self) -> BearerToken:
        self.count += 1
        if self.error is not None:
            raise self.error
        return BearerToken(f"token-{self.count}", self.now_s + self.lifetime_s)


def test_a_token_is_used_for_most_of_its_life(monkeypatch: pytest.MonkeyPatch) -> None:
    issuer = Issuer(monkeypatch)

    async def play() -> None:
        kept = KeptToken(issuer.request)
        first, second = await asyncio.gather(kept.fresh(), kept.fresh())
        assert (first.text, second.text) == ("token-1", "token-1"), "concurrent logins share a request"
        issuer.now_s += 79.9
        assert (await kept.fresh()).text == "token-1"
        issuer.now_s += 0.2
        assert (await kept.fresh()).text == "token-2"
        kept.forget()
        assert (await kept.fresh()).text == "token-3"

    asyncio.run(play())


def test_failures_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    issuer = Issuer(monkeypatch)

    async def play() -> None:
        kept = KeptToken(issuer.request)
        issuer.error = TokenUnavailable("no answer")
        for _ in range(2):
            with pytest.raises(TokenUnavailable):
                await kept.fresh()
        issuer.error = None
        assert (await kept.fresh()).text == "token-3"

    asyncio.run(play())


def test_an_expired_token_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    issuer = Issuer(monkeypatch, lifetime_s=0)

    async def play() -> None:
        with pytest.raises(OperatorError, match="expired"):
            await KeptToken(issuer.request).fresh()

    asyncio.run(play())
