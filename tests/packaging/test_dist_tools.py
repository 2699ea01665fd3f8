"""The parts of `make dist`: which Pythons it finds, what it accepts as a wheel, and how a command fails."""

from __future__ import annotations

import os
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from tools.dist import commands, pythons
from tools.dist.archives import check_source_archive, check_wheel
from tools.dist.commands import StepFailed
from tools.dist.targets import TARGETS, Target

from fenceline.records import _kernel_py
from fenceline.testing.waiting import eventually
from tests.support.processes import is_alive

HERE = next((each for each in TARGETS if each.is_here), None)


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No Python is found but those that a test adds to this folder, which is PATH."""
    for name in ("PYENV_ROOT", "UV_PYTHON_INSTALL_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("PYTHONS", "")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "bin").mkdir()
    return tmp_path


def imitation(version: str, *, headers: str = "/nowhere", **changed: str) -> str:
    """A program that answers as a Python of that version does."""
    major, minor, micro = version.split(".")
    values = {
        "implementation": '"cpython"',
        "version": f"[{major}, {minor}, {micro}]",
        "is_final": "true",
        "is_free_threaded": "false",
        "executable": f'"/opt/{version}/bin/python"',
        "include": f'"{headers}"',
        "config_header": f'"{headers}/pyconfig.h"',
        **changed,
    }
    fields = ", ".join(f'"{name}": {value}' for name, value in values.items())
    return f"#!/bin/sh\necho '{{{fields}}}'\n"


def test_this_python_is_found(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONS", sys.executable)
    (found,) = pythons.find_pythons().values()
    assert found.version == sys.version_info[:3]
    assert found.executable.exists()


def test_one_of_each_release_with_headers_first(nowhere: Path) -> None:
    headers = nowhere / "include"
    written(headers / "Python.h", "")
    written(headers / "pyconfig.h", "")
    written(nowhere / "bin/python3.12", imitation("3.12.9"))
    written(nowhere / "PYENV_ROOT/versions/3.12.1/bin/python3.12", imitation("3.12.1", headers=str(headers)))
    written(nowhere / "UV_PYTHON_INSTALL_DIR/cpython-3.11/bin/python3.11", imitation("3.11.4"))
    found = pythons.find_pythons()
    assert list(found) == ["3.11", "3.12"]
    assert (found["3.12"].name, found["3.12"].headers) == ("3.12.1", headers)
    assert (found["3.11"].name, found["3.11"].headers) == ("3.11.4", None)


@pytest.mark.parametrize(
    "program",
    [
        "#!/bin/sh\nexit 127\n",
        "#!/bin/sh\necho python: command not found\n",
        imitation("3.10.14"),
        imitation("3.13.0", is_free_threaded="true"),
        imitation("3.15.0", is_final="false"),
        imitation("3.11.0", implementation='"pypy"'),
    ],
)
def test_others_are_passed_over(nowhere: Path, program: str) -> None:
    written(nowhere / "bin/python3", program)
    assert pythons.find_pythons() == {}


def test_platforms_have_the_names_of_their_systems() -> None:
    assert [each.module_suffix("3.13") for each in TARGETS] == [
        ".cpython-313-x86_64-linux-gnu.so",
        ".cpython-313-aarch64-linux-gnu.so",
        ".cpython-313-x86_64-linux-musl.so",
        ".cpython-313-aarch64-linux-musl.so",
    ]


def wheel(folder: Path, name: str, *, modules: dict[str, bytes], sources: tuple[str, ...] = ("_kernel",)) -> Path:
    path = folder / name
    with zipfile.ZipFile(path, "w") as content:
        content.writestr("fenceline-1.dist-info/licenses/LICENSE", "")
        for source in sources:
            content.writestr(f"fenceline/{source}.pyx", "")
        for module, code in modules.items():
            content.writestr(f"fenceline/{module}.so", code)
    return path


def module_of_this_machine() -> bytes:
    found = list(Path(_kernel_py.__file__).parent.glob("_kernel.*.so"))
    assert found, "run `make setup`"
    return found[0].read_bytes()


def refusal(path: Path, target: Target | None) -> str:
    with pytest.raises(StepFailed) as caught:
        check_wheel(path, target)
    return str(caught.value)


@pytest.mark.compiled
@pytest.mark.skipif(HERE is None, reason="no wheels are built for this machine")
def test_a_wheel_has_all_modules_of_its_platform(tmp_path: Path) -> None:
    assert HERE is not None
    module = module_of_this_machine()
    name = f"fenceline-1-cp311-cp311-{HERE.tag}.whl"
    check_wheel(wheel(tmp_path, name, modules={"_kernel.x": module}), HERE)
    assert "lacks the compiled fenceline/_kernel" in refusal(wheel(tmp_path, name, modules={}), HERE)
    strange = wheel(tmp_path, "fenceline-1-cp311-cp311-linux_x86_64.whl", modules={"_kernel.x": module})
    assert f"does not run on {HERE.tag}" in refusal(strange, HERE)
    for other in TARGETS:
        path = wheel(tmp_path, f"fenceline-1-cp311-cp311-{other.tag}.whl", modules={"_kernel.x": module})
        if other.machine != HERE.machine:
            assert "is for EM_" in refusal(path, other)
        elif other.libc != HERE.libc:
            assert "needs libc" in refusal(path, other)


def test_a_wheel_for_all_platforms_has_no_module(tmp_path: Path) -> None:
    check_wheel(wheel(tmp_path, "fenceline-1-py3-none-any.whl", modules={}), None)
    with_module = wheel(tmp_path, "fenceline-1-py3-none-any.whl", modules={"_kernel.x": b""})
    assert "is for one platform" in refusal(with_module, None)
    assert "is for one platform" in refusal(wheel(tmp_path, "fenceline-1-cp311-cp311-any.whl", modules={}), None)


def test_a_source_archive_has_all_sources_and_nothing_that_was_made(tmp_path: Path) -> None:
    written(tmp_path / "fenceline-1/LICENSE", "")
    written(tmp_path / "fenceline-1/src/_kernel.pyx", "")
    path = tmp_path / "fenceline-1.tar.gz"
    with tarfile.open(path, "w:gz") as content:
        content.add(tmp_path / "fenceline-1", "fenceline-1")
    check_source_archive(path, {"LICENSE", "src/_kernel.pyx"})
    with pytest.raises(StepFailed, match=r"lacks docs/install\.md: see MANIFEST\.in"):
        check_source_archive(path, {"LICENSE", "docs/install.md"})
    written(tmp_path / "fenceline-1/src/_kernel.c", "")
    with tarfile.open(path, "w:gz") as content:
        content.add(tmp_path / "fenceline-1", "fenceline-1")
    with pytest.raises(StepFailed, match=r"has src/_kernel\.c"):
        check_source_archive(path, {"LICENSE"})


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(commands, "LOGS", tmp_path / "logs")
    return tmp_path / "logs"


@pytest.mark.parametrize(
    ("printed", "reason"),
    [
        ("building\nerror: it has no form\nhint: see there", "error: it has no form"),
        ("error: Failed to fetch: `https://index/simple/`\n  dns error", "the package index cannot be reached"),
        ("", "no output"),
    ],
)
def test_a_failure_has_a_reason_and_a_log(logs: Path, printed: str, reason: str) -> None:
    with pytest.raises(StepFailed) as caught:
        commands.run("a step", ["sh", "-c", f"printf '{printed}'; exit 3"])
    assert str(caught.value) == f"{reason} (see {logs / 'a-step.log'})"
    assert (logs / "a-step.log").read_text() == printed


def test_a_step_sees_none_of_our_settings(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FENCELINE_PURE_PYTHON", "1")
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    printed = commands.run("env", ["env"], environment={"FENCELINE_LOG_DIRS": "here"}).splitlines()
    assert [each for each in printed if each.startswith(("FENCELINE_", "PYTHONPATH"))] == ["FENCELINE_LOG_DIRS=here"]
    assert "UV_PYTHON_DOWNLOADS=never" in printed


def test_nothing_that_a_step_started_lives_longer(logs: Path) -> None:
    with pytest.raises(StepFailed, match="no end after 1 s"):
        commands.run("long", ["sh", "-c", "sleep 600 & echo $!; wait"], timeout_s=1)
    pid = int((logs / "long.log").read_text())
    eventually(lambda: not is_alive(pid), wait_s=10)
    assert pid != os.getpid()
