"""How the connections of one client authenticate (SASL), and the OAuth token that they share.

Owns the token: it is requested when the first connection needs it, and again after 80 % of its life, or after a broker
has refused it. Requests run in a thread; concurrent connections share one.

Rules: security.md A24, A26, A27, A70.
"""

from __future__ import annotations

import asyncio
import secrets
import ssl
import time
from typing import Any

from fenceline.client.core.config import ClientConfig
from fenceline.client.core.errors import ConnectionLost
from fenceline.client.core.security import Exchange, plain, scram
from fenceline.errors import OperatorError
from fenceline.sasl.oauthbearer import (
    FRESH_FRACTION,
    BearerToken,
    ClientCredentials,
    TokenUnavailable,
    oauth_exchange,
    request_token,
)
from fenceline.sasl.scram import TOKEN_EXTENSION


class ClientLogin:
    """See the module. Belongs to one event loop."""

    def __init__(self, config: ClientConfig) -> None:
        self.mechanism = str(config["sasl.mechanism"])
        self._config = config
        self._token: BearerToken | None = None
        self._stale_s = 0.0
        """From when on the token is replaced, since the epoch."""
        self._requesting: asyncio.Task[BearerToken] | None = None

    async def exchange(self) -> Exchange:
        """A new exchange. Raises PeerError, ConnectionLost, OperatorError: there is no token."""
        config = self._config
        if self.mechanism == "OAUTHBEARER":
            return oauth_exchange(await self._fresh_token())
        username, password = config["sasl.username"], config["sasl.password"]
        if self.mechanism == "PLAIN":
            return plain(username, password)
        extensions = {TOKEN_EXTENSION: "true"} if config["sasl.tokenauth"] else {}
        return scram(self.mechanism, username, password, nonce=secrets.token_urlsafe(24), extensions=extensions)

    def close(self) -> None:
        """No connection waits for a token any more."""
        if self._requesting is not None:
            self._requesting.cancel()

    def refused(self) -> None:
        """A broker has refused the login: the next one gets a new token."""
        self._token = None

    async def _fresh_token(self) -> BearerToken:
        if self._token is not None and time.time() < self._stale_s:
            return self._token
        if self._requesting is None or self._requesting.done():
            self._requesting = asyncio.ensure_future(self._request())
            self._requesting.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(self._requesting)

    async def _request(self) -> BearerToken:
        config, began_s = self._config, time.time()
        try:
            found: BearerToken = await asyncio.get_running_loop().run_in_executor(None, _blocking_request, config)
        except TokenUnavailable as error:
            raise ConnectionLost(str(error)) from None
        if found.expires_s <= began_s:
            raise OperatorError("The OAuth token has expired already", "Check the clocks and the issuer of the token.")
        self._token, self._stale_s = found, began_s + FRESH_FRACTION * (found.expires_s - began_s)
        return found


def _blocking_request(config: ClientConfig) -> BearerToken:
    if config["oauth.cb"] is not None:
        return _from_callback(config)
    credentials = ClientCredentials(
        config["sasl.oauthbearer.token.endpoint.url"],
        config["sasl.oauthbearer.client.id"],
        config["sasl.oauthbearer.client.secret"],
        config["sasl.oauthbearer.scope"],
        config["sasl.oauthbearer.extensions"],
    )
    try:
        trust = ssl.create_default_context(cafile=config["https.ca.location"])
    except (OSError, ssl.SSLError) as error:
        raise OperatorError(f"https.ca.location cannot be used: {error}", "Name a file of PEM certificates.") from None
    timeout_s = config["socket.connection.setup.timeout.ms"] / 1000
    return request_token(credentials, trust, timeout_s=timeout_s, now_s=time.time())


def _from_callback(config: ClientConfig) -> BearerToken:
    """As for confluent-kafka: `oauth_cb(sasl.oauthbearer.config)` returns the token, its expiry in seconds since the
    epoch, and optionally a principal, which brokers do not need, and extensions."""
    returned: Any = config["oauth.cb"](config["sasl.oauthbearer.config"])
    try:
        text, expires_s, *rest = returned
        extensions = dict(rest[1]) if len(rest) > 1 and rest[1] else {}
        return BearerToken(str(text), float(expires_s), extensions)
    except (TypeError, ValueError):
        raise OperatorError(
            "oauth_cb did not return a token and its expiry",
            "Return (token, seconds since the epoch), and optionally a principal and a dict of extensions.",
        ) from None
