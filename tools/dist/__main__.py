"""`make dist`: builds what this machine can, tries it in clean environments, and prints what was not built and why.

Exit codes: 0, also if a wheel could not be built for want of a Python; 1 if something that was tried has failed.
`--only 3.12 --target musl`: a part, for work on this tool.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tools.dist import build, installed
from tools.dist.commands import DIST, StepFailed
from tools.dist.pythons import WANTED, Python, find_pythons
from tools.dist.targets import TARGETS, Target


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the summary. `outcome` is "built", "passed", "not built", "skipped" or "FAILED"."""

    what: str
    outcome: str
    detail: str


class Summary:
    """What was done, in order."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def add(self, what: str, outcome: str, detail: str = "") -> None:
        self.rows.append(Row(what, outcome, detail))
        print(f"  {what}: {outcome}{f' ({detail})' if detail else ''}", flush=True)

    def step(self, what: str, work: Callable[[], str | None], done: str = "passed") -> bool:
        """Do it; its text is the detail. False if it failed."""
        started = time.monotonic()
        try:
            detail = work() or ""
        except StepFailed as error:
            self.add(what, "FAILED", str(error))
            return False
        if detail.startswith("skipped: "):
            self.add(what, "skipped", detail.removeprefix("skipped: "))
        else:
            self.add(what, done, ", ".join(filter(None, (detail, f"{time.monotonic() - started:.0f} s"))))
        return True

    @property
    def has_failed(self) -> bool:
        return any(row.outcome == "FAILED" for row in self.rows)

    def table(self) -> str:
        width = max(len(row.what) for row in self.rows)
        return "\n".join(f"{row.what:<{width}}  {row.outcome:<9}  {row.detail}".rstrip() for row in self.rows)


def main() -> int:
    options = argparse.ArgumentParser(prog="make dist")
    options.add_argument("--only", action="append", metavar="3.12", help="only this Python; may be repeated")
    options.add_argument("--target", default="", metavar="TEXT", help="only platforms with this text in their name")
    options.add_argument("--no-checks", action="store_true", help="build, and install nothing")
    options.add_argument("--no-demo", action="store_true", help="do not install Spark, and do not run the demo")
    given = options.parse_args()
    pythons = {name: each for name, each in find_pythons().items() if given.only is None or name in given.only}
    print("Pythons found: " + (", ".join(f"{each.name} ({each.executable})" for each in pythons.values()) or "none"))
    summary = Summary()
    releases = given.only or sorted({*WANTED, *pythons}, key=lambda text: [int(part) for part in text.split(".")])
    archives = _build(summary, pythons, releases, [target for target in TARGETS if given.target in target.name])
    if archives is None:
        return 1
    if not given.no_checks:
        _try(summary, list(pythons.values()), archives, with_demo=not given.no_demo)
    print(f"\n{summary.table()}\n\nThe archives are in {DIST}.")
    return int(summary.has_failed)


@dataclass(frozen=True, slots=True)
class Archives:
    """`compiled` has, by release of Python, the wheel for this machine."""

    source: Path
    pure: Path
    compiled: dict[str, Path]
    version: str

    def best(self, python: Python) -> Path:
        """What pip would install."""
        return self.compiled.get(python.release, self.pure)


def _build(
    summary: Summary, pythons: dict[str, Python], releases: list[str], targets: list[Target]
) -> Archives | None:
    print("Building:")
    built: dict[str, Path] = {}

    def step(what: str, make: Callable[[], Path]) -> bool:
        def work() -> str:
            built[what] = made = make()
            return f"{made.name}, {made.stat().st_size / 1e6:.1f} MB"

        return summary.step(what, work, "built")

    if not step("source archive", build.build_source_archive):
        return None
    source = built["source archive"]
    if not step("wheel any platform", partial(build.build_pure_wheel, source)):
        return None
    compiled: dict[str, Path] = {}
    for release in releases:
        python = pythons.get(release)
        if python is None:
            summary.add(f"wheels {release}", "not built", "this Python was not found: on PATH, of pyenv or uv, in PYTHONS")
            continue
        if python.headers is None:
            summary.add(f"wheels {release}", "not built", f"the C headers of Python {python.name} are not installed")
            continue
        for target in targets:
            what = f"wheel {release} {target.name}"
            if step(what, partial(build.build_wheel, source, python, target)) and target.is_here:
                compiled[release] = built[what]
    summary.step("descriptions", build.check_descriptions)
    summary.step("dependencies", partial(build.uncompiled_dependencies, built["wheel any platform"], releases, targets))
    return Archives(source, built["wheel any platform"], compiled, build.version_of(source))


def _try(summary: Summary, pythons: list[Python], archives: Archives, *, with_demo: bool) -> None:
    print("Trying:")
    if not pythons:
        summary.add("installations", "skipped", "no Python found")
        return
    for python in pythons:
        summary.step(f"wheel in Python {python.release}", partial(_try_base, python, archives.best(python), archives))
    newest = pythons[-1]
    if archives.best(newest) != archives.pure:
        what = f"wheel any platform in Python {newest.release}"
        summary.step(what, partial(_try_base, newest, archives.pure, archives))
    summary.step(f"source archive in Python {newest.release}", partial(_try_source, newest, archives))
    for extra in ("client", "testing", "arrow"):
        summary.step(f"fenceline[{extra}]", partial(_try_extra, newest, archives, extra))
    if with_demo:
        summary.step(f"fenceline[spark] and demo in Python {newest.release}", partial(_try_spark, newest, archives))
    summary.step("testing examples", partial(installed.check_examples, newest, archives.best(newest)))


def _try_base(python: Python, archive: Path, archives: Archives) -> str:
    compiled = archive != archives.pure
    with installed.installed(f"{python.release} {'compiled' if compiled else 'any'}", python, archive) as installation:
        installed.check_size(installation)
        installed.check_works(installation, archives.version, compiled=compiled)
        return f"{installation.size_mb:.0f} MB on disk"


def _try_source(python: Python, archives: Archives) -> str:
    """Built by the machine's own compiler; without one, the modules are in Python only."""
    compiled = python.headers is not None and shutil.which("cc") is not None
    with installed.installed("source", python, archives.source) as installation:
        installed.check_works(installation, archives.version, compiled=compiled)
        return "with compiled modules" if compiled else "no C compiler or no headers: without compiled modules"


def _try_extra(python: Python, archives: Archives, extra: str) -> str:
    archive, with_arrow = archives.best(python), extra == "arrow"
    with installed.installed(extra, python, archive, extra) as installation:
        if extra == "client":
            installed.check_size(installation)
        installed.check_works(installation, archives.version, compiled=archive != archives.pure, arrow=with_arrow)
        return f"{installation.size_mb:.0f} MB on disk"


def _try_spark(python: Python, archives: Archives) -> str:
    archive = archives.best(python)
    with installed.installed("spark", python, archive, "spark") as installation:
        installed.check_works(installation, archives.version, compiled=archive != archives.pure, arrow=True)
        if not installed.java_is_there():
            return "skipped: the demo, which needs Java 17 or newer; a node and the client with Arrow work"
        installed.check_demo(installation)
        return f"{installation.size_mb:.0f} MB on disk"


if __name__ == "__main__":
    sys.exit(main())
