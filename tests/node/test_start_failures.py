"""Operator errors at start: exit code 1, one message with the problem and the remedy, never a traceback."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from fenceline.testing.node import EmbeddedNode, NodeFailed

LISTEN = ("--listen", "127.0.0.1:0")


def refused(*arguments: str, environment: dict[str, str] | None = None) -> str:
    """The output of a failed `fenceline start`: two lines, the reason and the advice."""
    command = [sys.executable, "-m", "fenceline", "start", "--log-level", "warning", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, env={**os.environ, **(environment or {})}, check=False
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert not done.stdout
    assert "Traceback" not in done.stderr
    lines = done.stderr.splitlines()
    assert lines[0].startswith("fenceline: "), done.stderr
    assert len(lines) <= 2, done.stderr
    return done.stderr


@pytest.fixture
def formatted(tmp_path: Path) -> EmbeddedNode:
    """A stopped node with a data directory."""
    node = EmbeddedNode(data_dir=tmp_path / "node")
    with node:
        assert node.stop() == 0
    return node


def restart_refused(node: EmbeddedNode) -> str:
    with pytest.raises(NodeFailed) as caught:
        node.start()
    message = str(caught.value)
    assert "the node ended with exit code 1" in message
    assert "Traceback" not in message
    return message


def test_data_directory_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert ": it is a file" in refused("--data-dir", str(tmp_path / "file"), *LISTEN)
    assert ": Not a directory" in refused("--data-dir", str(tmp_path / "file" / "below"), *LISTEN)


@pytest.mark.skipif(not os.path.isdir("/sys"), reason="needs a place where nobody may write")
def test_data_directory_is_not_writable() -> None:
    assert "this user may write to it" in refused("--data-dir", "/sys/fenceline", *LISTEN)


def test_data_directory_of_another_program(tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").touch()
    assert "is not formatted but contains 'holiday.jpg'" in refused("--data-dir", str(tmp_path), *LISTEN)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("node.id=1", "node.id=7", "belongs to node 7, this is node 1"),
        ("version=1", "version=9", "has version 9; this release supports version 1"),
        ("version=1", "version=one", "is damaged"),
        ("cluster.id=", "cluster=", "is damaged"),
        ("directory.id=", "directory.id=%", "is not a valid id"),
        ("directory.id=", "directory=", "has no directory.id"),
    ],
)
def test_meta_properties(formatted: EmbeddedNode, before: str, after: str, message: str) -> None:
    meta = formatted.log_dir / "meta.properties"
    good = meta.read_text()
    meta.write_text(good.replace(before, after))
    assert message in restart_refused(formatted)
    meta.write_text(good)
    with formatted:
        assert formatted.errors == ""


def test_meta_properties_is_missing(formatted: EmbeddedNode) -> None:
    (formatted.log_dir / "meta.properties").unlink()
    assert "restore its meta.properties" in restart_refused(formatted)


def test_the_metadata_directory_of_another_cluster(tmp_path: Path) -> None:
    """Two directories of one node must belong to one cluster; here the second was taken from another."""
    logs, metadata = tmp_path / "logs", tmp_path / "metadata"
    options = ("--data-dir", str(logs), "--override", f"metadata.log.dir={metadata}")
    node = EmbeddedNode(data_dir=tmp_path, overrides={"metadata.log.dir": str(metadata)})
    node.start()
    node.stop()
    (tmp_path / "data").rename(logs)
    meta = metadata / "meta.properties"
    lines = [
        "cluster.id=AAAAAAAAQACAAAAAAAAAAA" if line.startswith("cluster.id") else line
        for line in meta.read_text().splitlines()
    ]
    meta.write_text("\n".join(lines) + "\n")
    assert "belongs to cluster AAAAAAAAQACAAAAAAAAAAA, this node to cluster" in refused(*options, *LISTEN)


def test_two_nodes_on_one_directory(tmp_path: Path) -> None:
    with EmbeddedNode(data_dir=tmp_path) as node:
        message = refused("--data-dir", str(node.log_dir), *LISTEN)
        assert f"is in use by node 1, process {node.pid}" in message
    with EmbeddedNode(data_dir=tmp_path):
        """The lock ends with the process that held it, even after a crash."""


def test_two_nodes_on_one_metadata_directory(tmp_path: Path) -> None:
    shared = tmp_path / "metadata"
    with EmbeddedNode(data_dir=tmp_path / "one", overrides={"metadata.log.dir": str(shared)}) as node:
        other = tmp_path / "other"
        other.mkdir()
        (other / "meta.properties").write_text((node.log_dir / "meta.properties").read_text())
        options = ("--data-dir", str(other), "--override", f"metadata.log.dir={shared}")
        assert f"{shared} is in use by node 1, process {node.pid}" in refused(*options, *LISTEN)


def test_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        message = refused("--data-dir", str(tmp_path / "data"), "--listen", f"127.0.0.1:{port}")
        assert f"cannot bind to 127.0.0.1:{port}: Address already in use" in message
    # The failed start changed nothing.
    with EmbeddedNode(data_dir=tmp_path) as node:
        assert node.errors == ""


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("203.0.113.7:9092", "Cannot assign requested address"),
        ("no-such-host.invalid:9092", "The host name cannot be resolved"),
        ("127.0.0.1", "is not an address"),
        ("127.0.0.1:99999", "is not an address"),
    ],
)
def test_addresses(tmp_path: Path, address: str, message: str) -> None:
    assert message in refused("--data-dir", str(tmp_path / "data"), "--listen", address)


def test_configuration_files(tmp_path: Path) -> None:
    assert "No such file or directory" in refused("--config", str(tmp_path / "missing"))
    assert "Is a directory" in refused("--config", str(tmp_path))
    binary = tmp_path / "binary"
    binary.write_bytes(b"\x7fELF\0\0\0\1")
    assert "is not a text file" in refused("--config", str(binary))
    garbled = tmp_path / "garbled"
    garbled.write_text("node.id=\\u00zz\n")
    assert f"Configuration file {garbled}" in refused("--config", str(garbled))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("log.retention.ms=soon", "Not a number"),
        ("process.roles=broker", "requires the addresses of the controllers"),
        ("controller.quorum.voters=1@a:9093,2@b:9093", "has no listener for them"),
        ("authorizer.class.name=org.example.A", "org.apache.kafka.metadata.authorizer.StandardAuthorizer"),
        ("super.users=admin", "not of the form User:name"),
        ("log.dirs=/tmp/a,/tmp/a", "must name at least one directory, without duplicates"),
        ("listeners=SSL://:9093", "TLS needs a certificate"),
        ("node.id=-3", "node.id"),
        ("without-a-value", "has no value"),
    ],
)
def test_invalid_values_are_rejected(tmp_path: Path, override: str, message: str) -> None:
    options = ("--data-dir", str(tmp_path / "data")) if "log.dirs" not in override else ()
    assert message in refused(*options, "--override", override)


def test_an_unknown_property_warns_with_the_closest_name(tmp_path: Path) -> None:
    with EmbeddedNode(data_dir=tmp_path, overrides={"log.retention.hour": "1"}) as node:
        assert "Unknown configuration key log.retention.hour (--override)" in node.errors
        assert "did you mean log.retention.hours?" in node.errors
