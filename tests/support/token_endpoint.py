"""An issuer of OAuth tokens for tests: its endpoint, over HTTP or TLS, and the file of its keys."""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs

from joserfc import jwt
from joserfc.jwk import ECKey, KeySet


class TokenEndpoint:
    """Use as a context manager. `requests`: the forms that were sent. `answer`: replaces the next answers, as status,
    body and headers."""

    def __init__(self, folder: Path, *, identity: Path | None = None, lifetime_s: float = 300) -> None:
        """`identity`: PEM file of key and certificate; with it the endpoint has TLS."""
        self.keys = folder / "keys.json"
        self._key_id = ""
        self.rotate()
        self.lifetime_s = lifetime_s
        self.requests: list[dict[str, str]] = []
        self.answer: Callable[[], tuple[int, bytes, dict[str, str]]] | None = None
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        if identity is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(identity)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = f"http{'s' if identity else ''}://127.0.0.1:{self._server.server_port}/token"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> TokenEndpoint:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def rotate(self) -> None:
        """Sign with another key from now on, and publish that one only."""
        self._key_id += "key"
        self._key = ECKey.generate_key("P-256", {"kid": self._key_id})
        self.keys.write_text(json.dumps(KeySet([self._key]).as_dict(private=False)))

    def token(self, **claims: Any) -> str:
        now_s = time.time()
        found = {
            "iss": "issuer",
            "aud": "kafka",
            "sub": "anna",
            "iat": now_s - 1,
            "exp": now_s + self.lifetime_s,
            **claims,
        }
        return jwt.encode({"alg": "ES256", "kid": self._key_id}, found, self._key, ["ES256"])

    def settings(self) -> dict[str, str]:
        """Properties of a node that accepts its tokens."""
        return {
            "sasl.oauthbearer.jwks.endpoint.url": self.keys.as_uri(),
            "sasl.oauthbearer.expected.issuer": "issuer",
            "sasl.oauthbearer.expected.audience": "kafka",
            "sasl.oauthbearer.clock.skew.seconds": "0",
        }

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                login = base64.b64decode(self.headers["Authorization"].removeprefix("Basic ")).decode()
                endpoint.requests.append({key: value[0] for key, value in form.items()} | {"login": login})
                status, body, headers = endpoint._respond(login)
                self.send_response(status)
                for name, value in {
                    "Content-Type": "application/json",
                    "Content-Length": str(len(body)),
                    **headers,
                }.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *arguments: Any) -> None:
                """Nothing is printed."""

        return Handler

    def _respond(self, login: str) -> tuple[int, bytes, dict[str, str]]:
        if self.answer is not None:
            return self.answer()
        user, _, password = login.partition(":")
        if password != "secret":
            return 401, b'{"error": "invalid_client", "error_description": "unknown"}', {}
        body = {"access_token": self.token(sub=user), "expires_in": self.lifetime_s, "token_type": "Bearer"}
        return 200, json.dumps(body).encode(), {}
