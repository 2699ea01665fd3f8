"""Notifications of systemd: what is sent to which socket, and that nothing is done without one."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from fenceline.node.service_manager import READY, STOPPING, notify


@pytest.fixture
def manager() -> socket.socket:
    found = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    found.settimeout(10)
    return found


def test_each_state_is_a_datagram(manager: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with manager:
        manager.bind(str(tmp_path / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        notify(READY)
        notify(STOPPING)
        assert [manager.recv(100), manager.recv(100)] == [b"READY=1", b"STOPPING=1"]


def test_a_socket_without_a_file(manager: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"fenceline-{tmp_path.name}-{id(manager)}"
    with manager:
        manager.bind(f"\0{name}")
        monkeypatch.setenv("NOTIFY_SOCKET", f"@{name}")
        notify(READY)
        assert manager.recv(100) == b"READY=1"


@pytest.mark.parametrize("address", ["", "/nowhere/notify", "vsock:2:1234"])
def test_a_manager_that_cannot_be_told_is_no_failure(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    notify(READY)
