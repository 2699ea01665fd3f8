"""How this node logs in at other nodes, on connections that it opens: with the user and password, or the client
credentials, of the listener's login module.

Owns these exchanges and the OAuth token. A login that fails is a lost connection: whoever needs it tries again.

Rules: security.md A3, A24, A27.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from fenceline.errors import ErrorCode, OperatorError, PeerError
from fenceline.node.net.listening import WITH_SASL
from fenceline.node.net.peer_connection import PeerConnection, PeerConnectionLost
from fenceline.node.net.sasl import OAUTHBEARER, PLAIN, SUPPORTED, login_module, unsupported
from fenceline.oauth.kept_token import KeptToken
from fenceline.oauth.token_endpoint import ClientCredentials, TokenUnavailable, request_token
from fenceline.sasl.oauthbearer import BearerToken, oauth_exchange
from fenceline.sasl.scram import ClientExchange, MalformedMessage
from fenceline.wire.apis import ApiKey

if TYPE_CHECKING:
    from fenceline.config.node import NodeConfig
    from fenceline.sasl.jaas import LoginModule

_TIMEOUT_S: Final = 10.0


def login_for(
    config: NodeConfig, listener: str, mechanism_key: str
) -> Callable[[PeerConnection], Awaitable[None]] | None:
    """Logs a new connection in at another node's listener of this name; None without SASL. `mechanism_key`:
    `sasl.mechanism.inter.broker.protocol` or `sasl.mechanism.controller.protocol`. Raises OperatorError."""
    if config.security_protocol(listener) not in WITH_SASL:
        return None
    mechanism = config.text(mechanism_key) or ""
    if mechanism not in SUPPORTED:
        raise unsupported(listener, mechanism, mechanism_key)
    module = login_module(config, listener, mechanism)
    if mechanism == OAUTHBEARER:
        credentials = _client_credentials(config, listener, module)
        return partial(_log_in_by_token, credentials.client_id, KeptToken(partial(_request, credentials)))
    user, password = ("", "") if module is None else (module.options.get("username"), module.options.get("password"))
    if not user or not password:
        raise OperatorError(
            f"Listener {listener}: this node has no user for other nodes",
            f"Set username and password in listener.name.{listener.lower()}.{mechanism.lower()}.sasl.jaas.config.",
        )
    return partial(_log_in, mechanism, user, password)


async def _log_in(mechanism: str, user: str, password: str, connection: PeerConnection) -> None:
    """Raises ConnectionError."""
    send = await _begun(mechanism, user, connection)
    if mechanism == PLAIN:
        await send(f"\0{user}\0{password}".encode())
        return
    exchange = ClientExchange(mechanism, user, password, secrets.token_urlsafe(24), {})
    try:
        exchange.check(await send(exchange.answer(await send(exchange.first()))))
    except MalformedMessage as error:
        raise PeerConnectionLost(f"{connection.peer}: {error}") from None


async def _begun(mechanism: str, user: str, connection: PeerConnection) -> Callable[[bytes], Awaitable[bytes]]:
    """Sends a message of the exchange, which has begun, and returns the answer. Raises ConnectionError."""
    answer = await connection.call(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": mechanism}, _TIMEOUT_S)
    if answer.error_code:
        names = ", ".join(map(str, answer.mechanisms))
        raise PeerConnectionLost(f"{connection.peer} does not offer {mechanism}; it has {names}")

    async def send(message: bytes) -> bytes:
        answer = await connection.call(ApiKey.SASL_AUTHENTICATE, 2, {"auth_bytes": message}, _TIMEOUT_S)
        if answer.error_code:
            code = ErrorCode(answer.error_code).name
            raise PeerConnectionLost(f"{connection.peer} refused the login of {user}: {code}: {answer.error_message}")
        return bytes(answer.auth_bytes)

    return send


def _client_credentials(config: NodeConfig, listener: str, module: LoginModule | None) -> ClientCredentials:
    """Raises OperatorError."""
    lookup, options = config.for_listener(listener), {} if module is None else module.options
    url = lookup("sasl.oauthbearer.token.endpoint.url")
    client_id, client_secret = options.get("clientId"), options.get("clientSecret")
    if not url or not client_id or not client_secret:
        raise OperatorError(
            f"Listener {listener}: this node has no tokens for other nodes",
            "Set sasl.oauthbearer.token.endpoint.url, and clientId and clientSecret in"
            f" listener.name.{listener.lower()}.oauthbearer.sasl.jaas.config.",
        )
    return ClientCredentials(url, client_id, client_secret, options.get("scope"))


def _request(credentials: ClientCredentials) -> BearerToken:
    """Blocks."""
    return request_token(credentials, None, timeout_s=_TIMEOUT_S, now_s=time.time())


async def _log_in_by_token(user: str, token: KeptToken, connection: PeerConnection) -> None:
    """Raises ConnectionError."""
    try:
        exchange = oauth_exchange(await token.fresh())
    except (TokenUnavailable, PeerError, OperatorError) as error:
        raise PeerConnectionLost(str(error)) from None
    send = await _begun(OAUTHBEARER, user, connection)
    message = next(exchange)
    try:
        while True:
            message = exchange.send(await send(message))
    except StopIteration:
        return
    except PeerConnectionLost:
        token.forget()
        raise
