"""Known vulnerabilities of the locked dependencies: `uv audit` over the lock files of requirements.

uv audits lock files of its own form only, so this writes one with the same versions, in a temporary folder. Without the
database of vulnerabilities (no network) nothing is checked, which is said and is no failure; with `AUDIT_STRICT=1` it
is one. Arguments go to uv: `--ignore ID` for a vulnerability that does not concern Fenceline.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOCKS = ("requirements.lock", "requirements-spark43.lock", "tools/dist/requirements.lock")
_PIN = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;\\]+)", re.MULTILINE)
_FOUND, _FAILED = 1, 2
_UNREACHABLE = re.compile(r"request failed|error sending request|failed to fetch|HTTP status", re.IGNORECASE)


def pinned() -> list[tuple[str, str]]:
    """Name and version of each package; a package may have several versions."""
    found = {(name.lower(), version) for lock in LOCKS for name, version in _PIN.findall((ROOT / lock).read_text())}
    return sorted(found)


def write_project(folder: Path, packages: list[tuple[str, str]]) -> None:
    """A project that depends on these packages, locked."""
    source = '{ registry = "index" }'  # a folder, so that no registry is asked about each package
    entries = [
        f'\n[[package]]\nname = "{name}"\nversion = "{version}"\nsource = {source}\n' for name, version in packages
    ]
    wanted = [f'    {{ name = "{name}", version = "{version}", source = {source} }},\n' for name, version in packages]
    (folder / "index").mkdir()
    (folder / "pyproject.toml").write_text(
        '[project]\nname = "audited"\nversion = "0"\nrequires-python = ">=3.11"\ndependencies = [\n'
        + "".join(f'    "{name}",\n' for name in sorted({name for name, _ in packages}))
        + "]\n"
    )
    (folder / "uv.lock").write_text(
        'version = 1\nrevision = 3\nrequires-python = ">=3.11"\n'
        + "".join(entries)
        + '\n[[package]]\nname = "audited"\nversion = "0"\nsource = { virtual = "." }\ndependencies = [\n'
        + "".join(wanted)
        + "]\n"
    )


def main(arguments: list[str]) -> int:
    packages = pinned()
    with tempfile.TemporaryDirectory(prefix="audit-") as folder:
        write_project(Path(folder), packages)
        uv = Path(sys.executable).with_name("uv")
        command = [str(uv), "audit", "--frozen", "--preview-features", "audit-command", *arguments]
        ended = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if ended.returncode == _FAILED and _UNREACHABLE.search(ended.stderr):
        print(f"The database of vulnerabilities cannot be reached: {len(packages)} packages were not checked")
        return _FAILED if os.environ.get("AUDIT_STRICT") else 0
    sys.stdout.write(ended.stdout + ended.stderr)
    return ended.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
