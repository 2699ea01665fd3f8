"""The metrics endpoint: who may read it, with and without a token."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from fenceline.config.authorizer import STANDARD
from fenceline.config.node import NodeConfig
from fenceline.errors import OperatorError
from fenceline.node.logs import redirect
from fenceline.node.metric_families import gauges
from fenceline.node.metrics import open_endpoint
from fenceline.node.metrics_access import is_loopback


class Collector:
    def collect(self) -> Iterator[Any]:
        yield from gauges(("secret_figure", "A figure", 7))


@contextmanager
def endpoint(**changes: str) -> Iterator[int]:
    """The port of an open endpoint. Keys have underscores for dots."""
    keys = {"fenceline.metrics.port": "0", **{key.replace("_", "."): value for key, value in changes.items()}}
    opened = open_endpoint(NodeConfig.load(None, keys, {}), [Collector()])
    try:
        yield opened.port
    finally:
        opened.close()


def get(port: int, authorization: str | None = None, *, path: str = "/metrics", method: str = "GET") -> tuple[int, str]:
    headers = {} if authorization is None else {"Authorization": authorization}
    try:
        with urlopen(Request(f"http://127.0.0.1:{port}{path}", headers=headers, method=method), timeout=30) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, f"{error.headers.get('WWW-Authenticate')}: {error.read().decode()}"


def test_without_a_token_everybody_reads() -> None:
    with endpoint() as port:
        for authorization in (None, "Bearer x"):
            status, text = get(port, authorization)
            assert (status, "secret_figure 7.0" in text) == (200, True)


def test_token_is_required(tmp_path: Path) -> None:
    (file := tmp_path / "token").write_text("right\n")
    with endpoint(fenceline_metrics_token_file=str(file)) as port:
        for authorization in ("Bearer right", "bearer right", "Bearer  right "):
            assert "secret_figure 7.0" in get(port, authorization)[1]
        for wrong in (
            None,
            "",
            "Bearer",
            "Bearer ",
            "right",
            "Basic right",
            "Bearer wrong",
            "Bearer righ",
            "Bearer right!",
            "Bearer RIGHT",
            "Bearer r\N{LATIN SMALL LETTER I WITH ACUTE}ght",
            "Bearer " + "x" * 10_000,
        ):
            status, text = get(port, wrong)
            assert (status, "secret_figure" in text, "right" in text) == (401, False, False)
            assert text.startswith("Bearer: ")
        for path, method in (("/", "GET"), ("/metrics", "POST"), ("/metrics?name[]=secret_figure", "GET")):
            assert get(port, path=path, method=method)[0] == 401


def test_token_that_changes(tmp_path: Path) -> None:
    (file := tmp_path / "token").write_text("one")
    with endpoint(fenceline_metrics_token_file=str(file)) as port:
        assert get(port, "Bearer one")[0] == 200
        file.write_text("two")
        assert get(port, "Bearer one")[0] == 401
        assert get(port, "Bearer two")[0] == 200


@pytest.mark.parametrize("content", [None, "", " \n", "two words", "x" * 5_000])
def test_file_without_a_token_lets_nobody_in(tmp_path: Path, content: str | None) -> None:
    (file := tmp_path / "token").write_text("right")
    with endpoint(fenceline_metrics_token_file=str(file)) as port:
        if content is None:
            file.unlink()
        else:
            file.write_text(content)
        for authorization in (None, "Bearer", "Bearer ", "Bearer right", f"Bearer {(content or '').strip()}"):
            assert get(port, authorization)[0] == 401
        file.write_text("right")
        assert get(port, "Bearer right")[0] == 200
    if content is None:
        file.unlink()
    else:
        file.write_text(content)
    with (
        pytest.raises(OperatorError, match=r"fenceline\.metrics\.token\.file"),
        endpoint(fenceline_metrics_token_file=str(file)),
    ):
        pass


@pytest.mark.parametrize(
    ("changes", "is_warned"),
    [
        ({"fenceline_metrics_host": ""}, True),
        ({"fenceline_metrics_host": "0.0.0.0"}, True),
        ({}, False),
        ({"fenceline_metrics_host": "localhost"}, False),
        ({"fenceline_metrics_host": "", "authorizer_class_name": ""}, False),
        ({"fenceline_metrics_host": "", "fenceline_metrics_token_file": "token"}, False),
    ],
)
def test_warning_if_rights_are_checked_elsewhere_only(
    tmp_path: Path, changes: dict[str, str], is_warned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("right")
    monkeypatch.chdir(tmp_path)
    lines: list[str] = []
    before = redirect(lambda level, room, event, fields: lines.append(event))
    try:
        with endpoint(**{"authorizer_class_name": STANDARD, **changes}):
            pass
    finally:
        redirect(before)
    assert ("metrics are readable by everybody" in lines) is is_warned


def test_loopback() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.3.2.1", "::1", "localhost")))
    assert not any(map(is_loopback, ("", "0.0.0.0", "::", "10.0.0.1", "node.example")))
