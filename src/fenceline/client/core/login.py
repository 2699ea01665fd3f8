"""How the connections of one client authenticate (SASL).

Owns the translation of `sasl.*` properties to exchanges, and the OAuth token that the connections share. What concerns
OAuth is imported by clients that use it.

Rules: security.md A24, A26, A27, A70.
"""

from __future__ import annotations

import secrets
import ssl
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from fenceline.client.core.config import ClientConfig
from fenceline.client.core.errors import ConnectionLost
from fenceline.client.core.security import Exchange, plain, scram
from fenceline.errors import OperatorError
from fenceline.sasl.scram import TOKEN_EXTENSION

if TYPE_CHECKING:
    from fenceline.oauth.kept_token import KeptToken
    from fenceline.sasl.oauthbearer import BearerToken


class ClientLogin:
    """See the module. Belongs to one event loop."""

    def __init__(self, config: ClientConfig) -> None:
        self.mechanism = str(config["sasl.mechanism"])
        self._config = config
        self._token: KeptToken | None = None
        """Of OAUTHBEARER."""
        if self.mechanism == "OAUTHBEARER":
            from fenceline.oauth.kept_token import KeptToken

            self._token = KeptToken(partial(_request, config))

    async def exchange(self) -> Exchange:
        """A new exchange. Raises PeerError, ConnectionLost, OperatorError: there is no token."""
        config = self._config
        if self._token is not None:
            from fenceline.oauth.token_endpoint import TokenUnavailable
            from fenceline.sasl.oauthbearer import oauth_exchange

            try:
                return oauth_exchange(await self._token.fresh())
            except TokenUnavailable as error:
                raise ConnectionLost(str(error)) from None
        username, password = config["sasl.username"], config["sasl.password"]
        if self.mechanism == "PLAIN":
            return plain(username, password)
        extensions = {TOKEN_EXTENSION: "true"} if config["sasl.tokenauth"] else {}
        return scram(self.mechanism, username, password, nonce=secrets.token_urlsafe(24), extensions=extensions)

    def refused(self) -> None:
        """A broker has refused the login: the next one gets a new token."""
        if self._token is not None:
            self._token.forget()

    def close(self) -> None:
        """No connection waits for a token any more."""
        if self._token is not None:
            self._token.close()


def _request(config: ClientConfig) -> BearerToken:
    """Blocks."""
    from fenceline.oauth.token_endpoint import ClientCredentials, request_token

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
    from fenceline.sasl.oauthbearer import BearerToken

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
