"""The Pythons of this machine that Fenceline can be built for and installed into.

Looks on PATH, in pyenv's and in uv's folders, and at the paths in the variable PYTHONS. Owns the choice of one
interpreter for each version. Never downloads one.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

OLDEST: Final = (3, 11)
WANTED: Final = ("3.11", "3.12", "3.13", "3.14")
_NAME: Final = re.compile(r"python3(\.\d+)?")
_QUESTION: Final = """
import json, os, sys, sysconfig
print(json.dumps({
    "implementation": sys.implementation.name,
    "version": sys.version_info[:3],
    "is_final": sys.version_info.releaselevel == "final",
    "is_free_threaded": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
    "executable": os.path.realpath(getattr(sys, "_base_executable", "") or sys.executable),
    "include": sysconfig.get_path("include"),
    "config_header": sysconfig.get_config_h_filename(),
}))
"""


@dataclass(frozen=True, slots=True)
class Python:
    """One interpreter; `headers` and `config_header` are None if the C headers are not installed."""

    executable: Path
    version: tuple[int, int, int]
    headers: Path | None
    config_header: Path | None

    @property
    def release(self) -> str:
        return f"{self.version[0]}.{self.version[1]}"

    @property
    def name(self) -> str:
        return ".".join(map(str, self.version))


def find_pythons() -> dict[str, Python]:
    """By release ("3.12"): the interpreter with headers and the highest version."""
    found: dict[str, Python] = {}
    seen: set[Path] = set()
    for candidate in _candidates():
        real = candidate.resolve()
        if real in seen:
            continue
        seen.add(real)
        python = _ask(candidate)
        if python is None:
            continue
        known = found.get(python.release)
        if known is None or _rank(python) > _rank(known):
            found[python.release] = python
    return dict(sorted(found.items(), key=lambda entry: entry[1].version))


def _rank(python: Python) -> tuple[bool, tuple[int, int, int]]:
    return python.headers is not None, python.version


def _candidates() -> Iterator[Path]:
    yield from (Path(text) for text in os.environ.get("PYTHONS", "").split())
    home = Path.home()
    roots = [
        Path(os.environ.get("PYENV_ROOT", home / ".pyenv")) / "versions",
        Path(os.environ.get("UV_PYTHON_INSTALL_DIR", home / ".local/share/uv/python")),
    ]
    for root in roots:
        yield from sorted(root.glob("*/bin/python3.[0-9]*"))
    for folder in os.get_exec_path():
        if Path(folder).is_dir():
            yield from sorted(each for each in Path(folder).iterdir() if _NAME.fullmatch(each.name))


def _ask(executable: Path) -> Python | None:
    """What the interpreter says of itself; None if it does not run, or is not a release of CPython that we support."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    try:
        done = subprocess.run(
            [executable, "-I", "-c", _QUESTION], capture_output=True, text=True, timeout=60, env=environment
        )
        known = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    version = tuple(known["version"])
    is_usable = known["implementation"] == "cpython" and known["is_final"] and not known["is_free_threaded"]
    if not is_usable or version < OLDEST:
        return None
    headers = Path(known["include"])
    config_header = _config_header(headers, Path(known["config_header"]))
    if not (headers / "Python.h").exists() or config_header is None:
        return Python(Path(known["executable"]), version, None, None)
    return Python(Path(known["executable"]), version, headers, config_header)


def _config_header(headers: Path, named: Path) -> Path | None:
    """The pyconfig.h with the definitions. Debian's own in `headers` only includes the one of an architecture."""
    beside = headers.parent / f"{os.uname().machine}-linux-gnu" / headers.name / "pyconfig.h"
    return next((path for path in (beside, named, headers / "pyconfig.h") if path.exists()), None)
