"""Installs the archives into clean environments and tries them.

Owns the size limits of installations. Every environment is new, in `.cache/dist`, and is removed after its check.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools.dist.build import uv
from tools.dist.commands import CACHE, ROOT, StepFailed, run
from tools.dist.pythons import Python

LIMIT_MB: Final = 120.0
DEMO_MONTHS: Final = 3
"""The demo's first minute: three months of flights, with the loss and its repair."""
_SMOKE: Final = Path(__file__).with_name("smoke.py")
_PAGE: Final = ROOT / "docs" / "testing.md"
_PYTHON_BLOCK: Final = re.compile(r"```python\n(.*?)```", re.DOTALL)
_ORDERS: Final = ROOT / "examples" / "orders"
_LAB_TEST: Final = Path(__file__).with_name("lab_test.py")


@dataclass(frozen=True, slots=True)
class Installation:
    """A clean environment with Fenceline in it."""

    name: str
    python: Path
    size_mb: float


@contextmanager
def installed(name: str, python: Python, archive: Path, extra: str = "", more: tuple[str, ...] = ()) -> Iterator[Installation]:
    """A new environment with the archive and what it depends on, compiled to bytecode as pip does. Raises StepFailed."""
    folder = CACHE / "environments" / name.replace(" ", "-")
    shutil.rmtree(folder, ignore_errors=True)
    run(f"environment {name}", [uv(), "venv", "--quiet", "--python", python.executable, folder])
    try:
        executable = folder / "bin" / "python"
        wanted = f"fenceline[{extra}] @ {archive.as_uri()}" if extra else str(archive)
        options: list[str | Path] = ["--compile-bytecode", "--refresh-package", "fenceline", "--python", executable]
        run(f"install {name}", [uv(), "pip", "install", *options, wanted, *more])
        yield Installation(name, executable, _size_mb(folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def check_size(installation: Installation) -> None:
    """Raises StepFailed if the installation is larger than promised."""
    if installation.size_mb > LIMIT_MB:
        raise StepFailed(f"{installation.size_mb:.0f} MB on disk, more than {LIMIT_MB:.0f} MB")


def check_works(installation: Installation, version: str, *, compiled: bool, arrow: bool = False) -> None:
    """A node, its client and the commands work (`smoke.py`). Raises StepFailed."""
    options = [*(["--compiled"] if compiled else []), *(["--arrow"] if arrow else [])]
    with tempfile.TemporaryDirectory(prefix="fenceline-dist-") as folder:
        run(f"smoke {installation.name}", [installation.python, "-I", _SMOKE, "--version", version, *options],
            cwd=Path(folder), timeout_s=300)  # fmt: skip


def check_demo(installation: Installation) -> None:
    """The demo's first minute, with all of its checks. Raises StepFailed."""
    with tempfile.TemporaryDirectory(prefix="fenceline-dist-") as folder:
        command = installation.python.with_name("fenceline")
        run(f"demo {installation.name}", [command, "demo", "--months", str(DEMO_MONTHS)],
            cwd=Path(folder), timeout_s=600)  # fmt: skip


def check_examples(python: Python, wheel: Path) -> str:
    """The tests of docs/testing.md, the simulated order service and the laboratory by HTTP, from the wheel with the
    extras `testing` and `lab`. Raises StepFailed."""
    with installed(f"testing {python.release}", python, wheel, "testing,lab", ("confluent-kafka",)) as installation:
        with tempfile.TemporaryDirectory(prefix="fenceline-dist-") as name:
            folder = Path(name)
            tests = [block for block in _PYTHON_BLOCK.findall(_PAGE.read_text()) if "def test_" in block]
            (folder / "test_page.py").write_text("\n\n".join(tests))
            (folder / "pytest.ini").write_text("[pytest]\n")
            shutil.copy(_LAB_TEST, folder / "test_lab.py")
            pytest: list[str | Path] = [installation.python, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
            text = run(f"examples {python.release}", pytest, cwd=folder, timeout_s=300)
            orders = shutil.copytree(_ORDERS, folder / "orders")
            simulate: list[str | Path] = [installation.python, "-m", "fenceline.testing.applications"]
            run("orders", [*simulate, orders / "simulated.py", "--seeds", "0..100", "--workers", "2"], cwd=folder)
            try:
                run("orders, mistaken", [*simulate, orders / "simulated_mistake.py", "--seeds", "0..200"], cwd=folder)
            except StepFailed as found:
                if "again: " not in found.output:
                    raise
            else:
                raise StepFailed("no seed has found the mistake of examples/orders")
    return text.strip().splitlines()[-1].strip("= ")


def _size_mb(environment: Path) -> float:
    """What the installed packages take on disk, in 10^6 bytes."""
    packages = next(environment.glob("lib/python3*/site-packages"))
    return sum(path.lstat().st_blocks * 512 for path in packages.rglob("*")) / 1e6


def java_is_there() -> bool:
    try:
        run("java", ["java", "-version"])
    except StepFailed:
        return False
    return True
