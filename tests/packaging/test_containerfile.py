"""The commands of the Containerfile, run without a container: the paths are mapped into a folder."""

from __future__ import annotations

import fnmatch
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fenceline import __version__
from fenceline.config.node import NodeConfig
from fenceline.local_cluster.ports import free_ports
from tests.conftest import unavailable
from tests.packaging.command_node import INSTALLED_AT, ROOT, STATE, CommandNode, placed
from tests.packaging.containerfile import read_containerfile

BUILD, RUNTIME = read_containerfile(ROOT / "Containerfile")


def without_ours(environment: dict[str, str]) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("FENCELINE_")}
    return {**kept, **environment}


def environment_in(state: Path, installed_at: str = sys.prefix) -> dict[str, str]:
    return {key: placed(value, state, installed_at=installed_at) for key, value in RUNTIME.environment.items()}


def run_lines(state: Path) -> list[str]:
    """RUN of the last stage. Who is not root cannot give a folder away."""
    mapped = [placed(text, state) for text in RUNTIME.all("RUN")]
    if os.geteuid() != 0:
        mapped = [text.replace(" -o 10001 -g 10001", f" -o {os.getuid()} -g {os.getgid()}") for text in mapped]
    return mapped


def test_the_node_starts_is_healthy_and_stops(tmp_path: Path) -> None:
    state = tmp_path / "state"
    for line in run_lines(state):
        subprocess.run(["sh", "-c", line], check=True, timeout=60)
    assert state.stat().st_mode & 0o777 == 0o750
    environment = {**environment_in(state), "FENCELINE_LISTENERS": "PLAINTEXT://127.0.0.1:0"}
    command = [*RUNTIME.command("ENTRYPOINT"), *RUNTIME.command("CMD")]
    command[0] = str(shutil.which(command[0], path=environment["PATH"]))
    with CommandNode(command, environment, tmp_path) as node:
        assert "WARN" not in node.errors.upper()
        checked = without_ours({**environment, "FENCELINE_BOOTSTRAP": node.bootstrap})
        healthcheck = [command[0], *RUNTIME.healthcheck[1:]]
        assert RUNTIME.healthcheck[0] == RUNTIME.command("ENTRYPOINT")[0]
        assert subprocess.run(healthcheck, env=checked, timeout=60).returncode == 0
        node.send_signal(signal.Signals[RUNTIME.one("STOPSIGNAL")])
        assert node.wait() == 0
    assert (state / "data" / "meta.properties").exists()


@pytest.mark.long
def test_a_container_without_a_node_is_not_healthy(tmp_path: Path) -> None:
    environment = without_ours({**environment_in(tmp_path), "FENCELINE_BOOTSTRAP": f"127.0.0.1:{free_ports(1)}"})
    assert subprocess.run(RUNTIME.healthcheck, env=environment, timeout=60).returncode == 1


def test_the_user_is_not_root_and_its_data_is_a_volume() -> None:
    user, _, group = RUNTIME.one("USER").partition(":")
    assert int(user) > 0
    assert int(group) > 0
    assert f"-o {user} -g {group} {STATE}" in RUNTIME.one("RUN")
    assert RUNTIME.one("VOLUME") == STATE
    assert RUNTIME.environment["FENCELINE_LOG_DIRS"].startswith(f"{STATE}/")
    names = [name for name, _ in RUNTIME.instructions]
    assert names.index("RUN") < names.index("USER") < names.index("ENTRYPOINT")


def test_its_variables_are_settings_of_a_node() -> None:
    config = NodeConfig.load(None, {}, dict(RUNTIME.environment))
    assert config.warnings == ()
    assert config.text("log.dirs") == RUNTIME.environment["FENCELINE_LOG_DIRS"]


def test_the_runtime_has_the_python_of_the_build() -> None:
    assert BUILD.base == RUNTIME.base
    assert RUNTIME.all("COPY") == [f"--from={BUILD.name} {INSTALLED_AT} {INSTALLED_AT}"]


def copied() -> list[tuple[str, str]]:
    """Source in the project, and where it is copied to in the build stage."""
    found = []
    for text in BUILD.all("COPY"):
        *sources, target = shlex.split(text)
        found += [(source, target) for source in sources]
    return found


def test_what_is_copied_is_there_and_not_ignored() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    included = {line[1:] for line in lines if line.startswith("!")}
    assert lines[1] == "*"
    for source, _ in copied():
        assert (ROOT / source).exists(), source
        assert source in included
    assert included == {source for source, _ in copied()}
    excluded = [line for line in lines if line and line[0] not in "#!" and line != "*"]
    assert any(fnmatch.fnmatch("src/fenceline/records/_kernel.so", each) for each in excluded)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_build_stage_makes_an_installation_that_works(tmp_path: Path) -> None:
    """All commands of the build stage but the one of the system's package manager, whose compiler must be there."""
    build, installed_at, state = tmp_path / "build", tmp_path / "installed", tmp_path / "state"
    build.mkdir()
    for source, target in copied():
        place = build / target
        if (ROOT / source).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "*.c", "*.so")
            shutil.copytree(ROOT / source, place, ignore=ignored)
        else:
            place = place / Path(source).name if target.endswith("/") else place
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / source, place)
    installs, *commands = BUILD.all("RUN")
    assert installs.startswith("apt-get ")
    if shutil.which("gcc") is None:
        unavailable("there is no gcc")
    environment = without_ours({"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"})
    for line in commands:
        mapped = placed(line, state, installed_at=str(installed_at))
        done = subprocess.run(
            ["sh", "-c", mapped], cwd=build, env=environment, capture_output=True, text=True, timeout=500
        )
        if done.returncode and ("No matching distribution" in done.stdout + done.stderr):
            unavailable("the package index cannot be reached")
        assert done.returncode == 0, done.stdout + done.stderr
    smoke = [str(installed_at / "bin/python"), str(ROOT / "tools/dist/smoke.py"), "--compiled"]
    runs = {**without_ours(environment_in(state, str(installed_at))), "HOME": str(tmp_path)}
    done = subprocess.run(
        [*smoke, "--version", __version__], cwd=tmp_path, env=runs, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stdout + done.stderr
