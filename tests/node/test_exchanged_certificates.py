"""A node whose certificates are exchanged by its configs, with the commands of `fenceline`; its next starts.

Rules: security.md A7, A8, A10.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from typer.testing import CliRunner

from fenceline.cli.app import app
from fenceline.client import Admin
from fenceline.errors import FencelineError
from fenceline.testing.node import EmbeddedNode
from fenceline.testing.waiting import eventually
from tests.support.certificates import TestAuthority

KEY: Final = "listener.name.ssl."


class Served:
    """A node with mutual TLS, and a client whose certificate fits its rules."""

    def __init__(self, folder: Path) -> None:
        (folder / "data").mkdir()
        self.authority = TestAuthority(folder)
        self.first = self.authority.identity("node", "127.0.0.1")
        self.second = self.authority.identity("node", "127.0.0.1", file="second")
        self.settings = self.settings_of("anna")
        self.file = folder / "client.properties"
        self.file.write_text("".join(f"{key}={value}\n" for key, value in self.settings.items()))
        self.node = EmbeddedNode(
            data_dir=folder / "data",
            security_protocol="SSL",
            overrides={
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": str(self.first),
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": str(self.authority.ca),
                "ssl.client.auth": "required",
                "ssl.principal.mapping.rules": "RULE:^.*CN=(node|anna).*$/$1/",
            },
        )

    def settings_of(self, name: str) -> dict[str, str]:
        identity = str(self.authority.identity(name))
        return {
            "security.protocol": "SSL",
            "ssl.ca.location": str(self.authority.ca),
            "ssl.certificate.location": identity,
            "ssl.key.location": identity,
        }

    def run(self, *arguments: str, code: int = 0) -> str:
        """`fenceline configs`, as the client."""
        asked = ["--command-config", str(self.file), "configs", *arguments, "-b", self.node.bootstrap]
        result = CliRunner().invoke(app, asked)
        assert result.exit_code == code, result.output
        return result.output

    def shows(self, identity: Path) -> bool:
        """Whether new connections get this certificate."""
        found = ssl.get_server_certificate(("127.0.0.1", self.node.port), timeout=30)
        return found.strip() in identity.read_text().replace("\r\n", "\n")

    def restart(self) -> None:
        self.node.stop()
        self.node.start()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    found = Served(tmp_path)
    with found.node:
        yield found


def test_certificate_is_exchanged_and_used_by_the_next_start(served: Served) -> None:
    assert served.shows(served.first)
    served.run("set", "broker", "1", f"{KEY}ssl.keystore.location={served.second}")
    eventually(lambda: served.shows(served.second), "new connections get the new certificate")
    assert f"{KEY}ssl.keystore.location" in served.run("describe", "broker", "1", "--json")
    served.restart()
    assert served.shows(served.second)
    served.run("set", "broker", "1", f"{KEY}ssl.keystore.location=")
    eventually(lambda: served.shows(served.first), "without the config, the node's file")


def test_start_with_a_file_that_is_gone_keeps_the_certificate_of_the_node(served: Served) -> None:
    served.run("set", "broker", "1", f"{KEY}ssl.keystore.location={served.second}")
    served.second.unlink()
    served.restart()
    assert served.shows(served.first)
    # A thread of this process reads the line.
    eventually(lambda: "certificates not exchanged" in served.node.errors, "the line is there", wait_s=60)
    assert str(served.second) in served.node.errors


def test_refused_change_says_what_to_do(served: Served) -> None:
    other = served.authority.identity("other", "127.0.0.1")
    printed = served.run("set", "broker", "1", f"{KEY}ssl.keystore.location={other}", code=1)
    assert "ssl.allow.dn.changes" in " ".join(printed.split())
    assert served.shows(served.first)


def test_keys_are_never_shown(served: Served) -> None:
    key, chain = served.second.read_text().split("-----BEGIN CERTIFICATE", 1)
    secret = key.splitlines()[1]
    with Admin({"bootstrap.servers": served.node.bootstrap, **served.settings}) as admin:
        admin.alter_configs(
            {
                ("broker", "1"): {
                    f"{KEY}ssl.keystore.location": "",
                    f"{KEY}ssl.keystore.key": key,
                    f"{KEY}ssl.keystore.certificate.chain": f"-----BEGIN CERTIFICATE{chain}",
                }
            }
        )
        eventually(lambda: served.shows(served.second), "the certificate of the request")
        described = repr(admin.describe_configs([("broker", "1")]))
    assert f"{KEY}ssl.keystore.key" in described
    printed = described + served.run("describe", "broker", "1", "--all")
    printed += served.run("set", "broker", "1", "listener.name.other.ssl.key.password=hush", "--json")
    served.node.stop()
    for arguments in (("dump",), ("shell",), ("at-offset", "100000")):
        more = ("tree", "/") if arguments == ("shell",) else ()
        result = CliRunner().invoke(app, ["metadata", *arguments, str(served.node.log_dir), *more])
        printed += result.output
        assert result.exit_code == 0 or arguments[0] == "at-offset", result.output
    assert printed.count(f"{KEY}ssl.keystore.key") >= 3
    for hidden in (secret, "hush"):
        assert hidden not in printed
        assert hidden not in served.node.errors


def test_certificate_that_no_rule_matches_is_not_served(served: Served) -> None:
    with (
        pytest.raises(FencelineError),
        Admin(
            {"bootstrap.servers": served.node.bootstrap, **served.settings_of("otto"), "request.timeout.ms": "2000"}
        ) as admin,
    ):
        admin.describe_cluster(timeout_ms=3000)
    with Admin({"bootstrap.servers": served.node.bootstrap, **served.settings}) as admin:
        assert admin.describe_cluster().cluster_id
