"""The systemd unit: its command, run as systemd would, with the paths mapped into a folder."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from fenceline.local_cluster.ports import free_ports
from tests.packaging.command_node import ROOT, CommandNode, placed

FOLDER = ROOT / "packaging" / "systemd"
UNIT = FOLDER / "fenceline.service"
PROPERTIES = FOLDER / "server.properties"
CONFIGURATION = "/etc/fenceline"
ANALYZE = shutil.which("systemd-analyze")


def unit() -> dict[str, str]:
    """The settings of the unit; one that occurs twice has only the last value."""
    lines = [line for line in UNIT.read_text().splitlines() if line and line[0] not in "#["]
    return dict(line.split("=", 1) for line in lines)


def test_systemd_gets_the_state_of_the_node_it_starts(tmp_path: Path) -> None:
    first = free_ports(2)
    properties = placed(PROPERTIES.read_text(), tmp_path / "state")
    properties = properties.replace("//:9092", f"//127.0.0.1:{first}").replace("9093", str(first + 1))
    (tmp_path / "server.properties").write_text(properties)
    settings = unit()
    command = shlex.split(placed(settings["ExecStart"], tmp_path / "state").replace(CONFIGURATION, str(tmp_path)))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(60)
        with CommandNode(command, {"NOTIFY_SOCKET": str(tmp_path / "notify")}, tmp_path) as node:
            assert manager.recv(100) == b"READY=1"
            assert "WARN" not in node.errors.upper()
            checked = [str(Path(sys.executable).with_name("fenceline")), "brokers", "--bootstrap", node.bootstrap]
            assert subprocess.run(checked, timeout=60, stdout=subprocess.DEVNULL).returncode == 0
            node.send_signal(signal.Signals[settings["KillSignal"]])
            assert manager.recv(100) == b"STOPPING=1"
            assert node.wait() == 0
    assert (tmp_path / "state" / "data" / "meta.properties").exists()


def test_the_data_is_where_the_unit_lets_the_node_write() -> None:
    settings = unit()
    state = f"/var/lib/{settings['StateDirectory']}/"
    assert settings["ProtectSystem"] == "strict"
    assert any(line.startswith(f"log.dirs={state}") for line in PROPERTIES.read_text().splitlines())
    assert f"u {settings['User']} " in (FOLDER / "fenceline.sysusers").read_text()


def analyze(*arguments: str) -> tuple[int, str]:
    assert ANALYZE is not None
    done = subprocess.run([ANALYZE, *arguments], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def unit_here(tmp_path: Path) -> Path:
    """The unit with an executable that exists."""
    copy = tmp_path / UNIT.name
    copy.write_text(placed(UNIT.read_text(), tmp_path / "state"))
    return copy


@pytest.mark.skipif(ANALYZE is None, reason="there is no systemd-analyze")
def test_systemd_accepts_the_unit(unit_here: Path) -> None:
    code, printed = analyze("verify", "--man=no", str(unit_here))
    assert (code, [line for line in printed.splitlines() if UNIT.name in line]) == (0, [])


@pytest.mark.skipif(ANALYZE is None, reason="there is no systemd-analyze")
def test_the_unit_is_well_confined(unit_here: Path) -> None:
    """systemd rates from 0 to 10, and 2 is "OK"."""
    version = int(analyze("--version")[1].split()[1])
    if version < 250:
        pytest.skip(f"systemd-analyze {version} can only rate a unit that is installed")
    code, printed = analyze("security", "--offline=true", "--threshold=20", "--no-pager", str(unit_here))
    assert code == 0, printed.splitlines()[-1]


@pytest.mark.skipif(shutil.which("systemd-sysusers") is None, reason="there is no systemd-sysusers")
@pytest.mark.skipif(os.geteuid() != 0, reason="systemd-sysusers needs root, also for a folder")
def test_the_user_is_created(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    configuration = tmp_path / "etc" / "sysusers.d" / "fenceline.conf"
    configuration.parent.mkdir()
    shutil.copy2(FOLDER / "fenceline.sysusers", configuration)
    subprocess.run(["systemd-sysusers", f"--root={tmp_path}"], check=True, capture_output=True, timeout=60)
    assert "fenceline:x:" in (tmp_path / "etc" / "passwd").read_text()
