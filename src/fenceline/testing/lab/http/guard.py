"""Requests from a web page of another origin are refused: a client of the laboratory can start processes.

Owns which values of the headers Host, Origin and Sec-Fetch-Site are accepted. A page of another site can reach a
service on localhost through its visitor's browser, and with DNS rebinding also read its answers; then Host has the
name of that site. Looks at no body.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, MutableMapping
from ipaddress import ip_address
from typing import Any, Final
from urllib.parse import urlsplit

from fenceline.testing.lab.http.answers import ErrorView, answer

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_OTHER_SITES: Final = ("cross-site", "same-site")


class OriginGuard:
    """ASGI middleware. `allow_remote`: the names and addresses of this machine are accepted, too."""

    def __init__(self, app: App, *, allow_remote: bool = False) -> None:
        self._app = app
        self._allow_remote = allow_remote
        self._names = {"localhost"}
        if allow_remote:
            self._names |= {socket.gethostname().lower(), socket.getfqdn().lower()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            problem = self._problem(scope)
            if problem:
                advice = "Call it from a program on this machine, by 127.0.0.1 or localhost."
                response = answer(403, ErrorView(error="forbidden", message=problem, advice=advice))
                await response(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _problem(self, scope: Scope) -> str:
        headers: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.decode("latin-1"), []).append(value.decode("latin-1"))
        hosts = headers.get("host", [])
        if len(hosts) != 1 or not self._is_ours(hosts[0]):
            return f"The Host header {', '.join(hosts)!r} is not an address of this laboratory"
        for origin in headers.get("origin", []):
            if origin.lower() != f"{scope.get('scheme', 'http')}://{hosts[0]}".lower():
                return f"A web page of {origin!r} must not use this laboratory"
        if any(site in _OTHER_SITES for site in headers.get("sec-fetch-site", [])):
            return "A web page of another site must not use this laboratory"
        return ""

    def _is_ours(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        if name in self._names:
            return True
        try:
            address = ip_address(name)
        except ValueError:
            return False
        return self._allow_remote or address.is_loopback
