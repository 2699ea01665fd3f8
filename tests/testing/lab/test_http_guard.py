"""Web pages of other origins do not reach the laboratory, also not by DNS rebinding."""

from __future__ import annotations

import socket

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from fenceline.testing.lab.http.guard import OriginGuard

HERE = "127.0.0.1:8090"


def status(headers: dict[str, str], *, allow_remote: bool = False) -> int:
    app = FastAPI()

    @app.get("/")
    def page() -> str:
        return "here"

    app.add_middleware(OriginGuard, allow_remote=allow_remote)
    return TestClient(app, base_url=f"http://{HERE}").get("/", headers=headers).status_code


@pytest.mark.parametrize("host", [HERE, "localhost:1", "localhost", "[::1]:8090", "127.8.9.1"])
def test_loopback_names_are_accepted(host: str) -> None:
    assert status({"Host": host}) == 200


@pytest.mark.parametrize(
    "host", ["rebound.example:8090", "localhost.example", "10.0.0.1:8090", "", "127.0.0.1.example", "[::1", "0.0.0.0"]
)
def test_other_names_are_refused(host: str) -> None:
    assert status({"Host": host}) == 403


@pytest.mark.parametrize(
    "origin", ["http://rebound.example", "null", "http://127.0.0.1:9999", "https://127.0.0.1:8090"]
)
def test_other_origins_are_refused(origin: str) -> None:
    assert status({"Origin": origin}) == 403


def test_the_own_page_is_accepted() -> None:
    assert status({"Origin": f"http://{HERE}", "Sec-Fetch-Site": "same-origin"}) == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_pages_of_other_sites_are_refused(site: str) -> None:
    assert status({"Sec-Fetch-Site": site}) == 403


def test_remote_addresses_only_if_that_was_asked_for() -> None:
    assert status({"Host": "10.0.0.1:8090"}, allow_remote=True) == 200
    assert status({"Host": socket.gethostname()}, allow_remote=True) == 200
    assert status({"Host": "rebound.example"}, allow_remote=True) == 403
    assert status({"Host": HERE, "Origin": "http://rebound.example"}, allow_remote=True) == 403
