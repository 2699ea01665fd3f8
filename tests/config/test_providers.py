"""Config providers: which values are found, and which paths and names are allowed. Rules: security.md A65, A68."""

from __future__ import annotations

from pathlib import Path

import pytest

from fenceline.client.core.config import ClientConfig
from fenceline.config.node import NodeConfig
from fenceline.config.providers import resolve
from fenceline.errors import OperatorError

PACKAGE = "org.apache.kafka.common.config.provider."
FILE = {"config.providers": "file", "config.providers.file.class": f"{PACKAGE}FileConfigProvider"}
DIRECTORY = {"config.providers": "dir", "config.providers.dir.class": f"{PACKAGE}DirectoryConfigProvider"}
ENV = {"config.providers": "env", "config.providers.env.class": f"{PACKAGE}EnvVarConfigProvider"}
ELSEWHERE = "config.providers.{}.param.allowed.paths"
ALL = {**FILE, **DIRECTORY, **ENV, "config.providers": "file, dir,env"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "users.properties").write_text("anna=the secret\notto=${file:x:y}\nempty=\n")
    (tmp_path / "key.pem").write_text("line 1\nline 2\n")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "link").symlink_to(tmp_path / "key.pem")
    return tmp_path


def resolved(providers: dict[str, str], value: str, **environ: str) -> str:
    return resolve({**providers, "a": value}, environ)["a"]


def test_values_that_are_found(folder: Path) -> None:
    file = f"{folder}/users.properties"
    assert resolved(FILE, f"${{file:{file}:anna}}") == "the secret"
    assert resolved(FILE, f"<${{file:{file}:anna}}|${{file:{file}:empty}}>") == "<the secret|>"
    assert resolved(FILE, f"${{file:{file}:otto}}") == "${file:x:y}", "what is found is not replaced again"
    assert resolved(DIRECTORY, f"${{dir:{folder}:key.pem}}") == "line 1\nline 2\n"
    assert resolved(ENV, "${env:NAME}-${env:OTHER}", NAME="x", OTHER="") == "x-"
    assert resolved(ALL, f"${{env:NAME}} ${{file:{file}:anna}}", NAME="x") == "x the secret"


@pytest.mark.parametrize("value", ["${env:NAME}", "${file:/x:y}", "$env:NAME", "${NAME}", "${}", "${other:a:b}"])
def test_without_the_provider_nothing_is_replaced(value: str) -> None:
    assert resolved({}, value, NAME="x") == value
    if "env" not in value or "{" not in value:
        assert resolved(ENV, value, NAME="x") == value


@pytest.mark.parametrize(
    ("providers", "value", "reason"),
    [
        (FILE, "${file:@/users.properties:eve}", "no such key"),
        (FILE, "${file:@/nowhere:eve}", "cannot be read"),
        (FILE, "${file:eve}", "names no path"),
        (DIRECTORY, "${dir:@:nowhere}", "cannot be read"),
        (DIRECTORY, "${dir:@:../x}", "not the name of a file"),
        (DIRECTORY, "${dir:@:..}", "not the name of a file"),
        (DIRECTORY, "${dir:@:elsewhere}", "cannot be read"),
        (ENV, "${env:NOWHERE}", "no such variable"),
        (ENV, "${env:/path:NAME}", "has no path"),
        ({**ENV, "config.providers.env.param.allowlist.pattern": "A.*"}, "${env:NAME}", "does not match"),
        ({**ENV, "config.providers.env.param.allowlist.pattern": "("}, "x", "is no pattern"),
        (
            {**FILE, "config.providers.file.param.allowed.paths": "@/elsewhere"},
            "${file:@/users.properties:a}",
            "is not in",
        ),
        (
            {**FILE, "config.providers.file.param.allowed.paths": "@/elsewhere"},
            "${file:@/elsewhere/../users.properties:a}",
            "is not in",
        ),
        (
            {**DIRECTORY, "config.providers.dir.param.allowed.paths": "@/elsewhere"},
            "${dir:@/elsewhere:link}",
            "is not in",
        ),
        ({**FILE, "config.providers.file.param.allowed.paths": "/nowhere"}, "x", "not an absolute path that exists"),
        ({**FILE, "config.providers.file.param.allowed.paths": "tmp"}, "x", "not an absolute path that exists"),
        ({"config.providers": "x"}, "x", "JVM plug-ins"),
        ({"config.providers": "x", "config.providers.x.class": "org.example.Mine"}, "x", "JVM plug-ins"),
    ],
)
def test_errors_name_the_variable_and_no_value(
    folder: Path, providers: dict[str, str], value: str, reason: str
) -> None:
    """Kafka goes on with the text of the variable (A65)."""
    filled = {key: each.replace("@", str(folder)) for key, each in providers.items()}
    with pytest.raises(OperatorError, match=reason) as error:
        resolved(filled, value.replace("@", str(folder)), NAME="the secret")
    assert "the secret" not in str(error.value)


def test_allowed_paths_and_names(folder: Path) -> None:
    allowed = {**FILE, "config.providers.file.param.allowed.paths": f"{folder}/elsewhere,{folder}/users.properties"}
    assert resolved(allowed, f"${{file:{folder}/users.properties:anna}}") == "the secret"
    assert resolved({**ENV, "config.providers.env.param.allowlist.pattern": "N.*E"}, "${env:NAME}", NAME="x") == "x"


def test_properties_of_a_node(folder: Path) -> None:
    file = folder / "server.properties"
    lines = {**ALL, "delegation.token.secret.key": f"${{file:{folder}/users.properties:anna}}", "rack": "${env:RACK}"}
    file.write_text("".join(f"{key}={value}\n" for key, value in lines.items()) + "broker.rack=${env:RACK}\n")
    config = NodeConfig.load(file, {"node.id": "${env:ID}"}, {"HOME": "/h", "RACK": "r1", "ID": "7"})
    assert (config.token_secret, config.rack, config.node_id) == (b"the secret", "r1", 7)
    assert not any("config.providers" in warning for warning in config.warnings)


def test_properties_of_a_client(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FENCELINE_TEST_USER", "anna")
    settings = {
        **ALL,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.jaas.config": (
            "org.apache.kafka.common.security.plain.PlainLoginModule required"
            f' username="${{env:FENCELINE_TEST_USER}}" password="${{file:{folder}/users.properties:anna}}";'
        ),
    }
    config = ClientConfig.parse("admin", "h:1", settings)
    assert (config["sasl.username"], config["sasl.password"]) == ("anna", "the secret")


def test_arguments_of_a_client_with_underscores(folder: Path) -> None:
    found = ClientConfig.parse(
        "admin",
        {**FILE, "bootstrap.servers": "h:1"},
        {"client_id": f"${{file:{folder}/users.properties:anna}}", "linger_ms": 5},
    )
    assert found["client.id"] == "the secret"
