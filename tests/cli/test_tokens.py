"""`fenceline tokens` and `--command-config` with a node that has SASL. Rules: security.md A26, A33 to A35."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typer.testing import CliRunner

from fenceline.cli.app import app
from fenceline.client import Admin
from fenceline.errors import ErrorCode, PeerError
from fenceline.testing.apache_kafka import free_port
from fenceline.testing.node import EmbeddedNode
from tests.support.password_node import password_client, password_node

pytestmark = pytest.mark.timeout(120)


class Place(NamedTuple):
    node: EmbeddedNode
    folder: Path

    def settings(self, user: str, password: str = "secret", **more: str) -> dict[str, str]:
        return {**password_client(self.node.bootstrap, user, password), **more}

    def file(self, user: str) -> str:
        path = self.folder / f"{user}.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in self.settings(user).items()))
        return str(path)

    def run(self, user: str, *arguments: str, code: int = 0) -> str:
        result = CliRunner().invoke(
            app, ["tokens", *arguments, "-b", self.node.bootstrap, "--command-config", self.file(user)]
        )
        assert result.exit_code == code, result.output
        return result.output

    def run_json(self, user: str, *arguments: str) -> Any:
        return json.loads(self.run(user, *arguments, "--json"))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    overrides = password_node("SCRAM-SHA-512", anna="secret", otto="secret")
    with EmbeddedNode(security_protocol="SASL_PLAINTEXT", overrides=overrides) as node:
        yield Place(node, tmp_path_factory.mktemp("clients"))


def test_the_life_of_a_token(place: Place) -> None:
    made = place.run_json("anna", "create", "--renewer", "User:otto", "--renewer", "eve", "--max-lifetime", "86400")
    assert (made["owner"], made["renewers"]) == ("User:anna", ["User:otto", "User:eve"])
    token_id, hmac = made["token_id"], made["hmac"]
    listed = place.run("otto", "list")
    assert token_id in listed.replace("\n", "")
    assert hmac not in listed
    [row] = place.run_json("anna", "list", "--owner", "otto")
    assert row["token_id"] == token_id
    assert "hmac" not in row
    login = place.settings(token_id, hmac) | {"sasl.mechanism": "SCRAM-SHA-512", "sasl.tokenauth": "true"}
    with Admin(login) as admin:
        assert admin.describe_cluster().brokers
        with pytest.raises(PeerError) as error:
            admin.create_delegation_token()
        assert error.value.code is ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    assert "expires" in place.run("otto", "renew", token_id, "--period", "60")
    assert "expires" in place.run("otto", "expire", token_id, "--period", "3600")
    assert "is removed" in place.run("anna", "expire", token_id)
    assert "that you may see" in place.run("anna", "renew", token_id, code=1)
    with Admin(login) as admin:
        with pytest.raises(PeerError) as error:
            admin.describe_cluster()
        assert error.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED


def test_a_token_is_printed(place: Place) -> None:
    printed = place.run("anna", "create", "--owner", "User:otto")
    assert [line.split()[0] for line in printed.splitlines()] == ["id", "hmac", "owner", "expires"]
    assert "User:otto" in printed


@pytest.mark.parametrize("arguments", [["create", "--renewer", ":x"], ["create", "--owner", "User:"]])
def test_wrong_principals(place: Place, arguments: list[str]) -> None:
    assert "is not a principal" in place.run("anna", *arguments, code=1)


def test_other_commands_log_in_as_well(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file has the brokers' address too; an option comes first."""
    where = ["-b", place.node.bootstrap]
    runner = CliRunner()
    before = ["--command-config", place.file("anna")]
    assert runner.invoke(app, [*before, "topics", "create", "hello"]).exit_code == 0
    assert runner.invoke(app, [*before, "produce", "hello"], input="a\nb\n").exit_code == 0
    elsewhere = runner.invoke(app, [*before, "topics", "list", "-b", f"127.0.0.1:{free_port()}"])
    assert (elsewhere.exit_code, "No broker answered" in elsewhere.output) == (1, True)
    monkeypatch.setenv("FENCELINE_COMMAND_CONFIG", place.file("anna"))
    consumed = runner.invoke(app, ["consume", "hello", "--count", "2", *where])
    assert (consumed.exit_code, "a" in consumed.output) == (0, True), consumed.output
    monkeypatch.setenv("FENCELINE_COMMAND_CONFIG", "/nowhere")
    failed = runner.invoke(app, ["topics", "list", *where])
    assert (failed.exit_code, "cannot be read" in failed.output) == (1, True), failed.output
