"""Installs the archives into clean environments and tries them.

Owns the size limits of installations. Every environment is new, in `.cache/dist`, and is removed after its check.
"""

from __future__ import annotations

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
_EXAMPLES: Final = ROOT / "examples" / "testing"


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
    """The testing examples, from the wheel with the extra `testing`; says what was run. Raises StepFailed."""
    if not _EXAMPLES.is_dir():
        return "skipped: there is no examples/testing"
    needs = _EXAMPLES / "requirements.txt"
    more = ("-r", str(needs)) if needs.exists() else ()
    with installed(f"testing {python.release}", python, wheel, "testing", more) as installation:
        with tempfile.TemporaryDirectory(prefix="fenceline-dist-") as folder:
            copy = shutil.copytree(_EXAMPLES, Path(folder) / "testing")
            text = run(f"examples {python.release}", [installation.python, "-m", "pytest", "-q", copy], cwd=copy)
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
