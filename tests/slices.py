"""The part of the long tests that one commit runs: pytest plugin of `tests/conftest.py`, and the command that chooses.

Long tests are those marked `kafka` or `long`; `make test` leaves them out, `make test-all` runs all of them. Owns how
they are divided into `COUNT` slices: by modules, so that tests that share a node or build on each other stay together,
and of about equal length, by the seconds in `tests/seconds.json`.

`python -m tests.slices` prints the slice of the checked-out commit: `K/N`. Consecutive commits have consecutive slices.
`python -m tests.slices --seeds A B` prints the slice of these seeds, `--slowest` the 20 slowest tests of the last runs,
and `--update` writes `tests/seconds.json` from the last runs.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

import pytest

ROOT: Final = Path(__file__).parents[1]
COUNT: Final = 8
LONG: Final = frozenset({"kafka", "long"})
SECONDS: Final = ROOT / "tests" / "seconds.json"
"""How long the long tests of each module took, together."""
REPORTS: Final = ROOT / ".cache" / "test-reports"
"""JUnit reports of the last runs (`--junitxml`)."""
_SHOWN: Final = 20


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slice", metavar="K/N", help="run one of N parts of the tests that are marked kafka or long")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """After markers have been added and before pytest selects by them."""
    if not (chosen := config.getoption("--slice")):
        return
    number, count = (int(part) for part in chosen.split("/"))
    long = [item for item in items if any(item.get_closest_marker(name) for name in LONG)]
    of_module = divide({_module(item.nodeid) for item in long}, json.loads(SECONDS.read_text()), count)
    kept = [item for item in long if of_module[_module(item.nodeid)] == number]
    if dropped := set(items) - set(kept):
        config.hook.pytest_deselected(items=list(dropped))
    items[:] = kept


def divide(modules: Iterable[str], seconds: Mapping[str, float], count: int) -> dict[str, int]:
    """The slice of each module. Known ones in slices of equal length, the longest first; others by their names."""
    lengths = [0.0] * count
    found: dict[str, int] = {}
    for module in sorted(modules, key=lambda each: (-seconds.get(each, 0.0), each)):
        if module in seconds:
            found[module] = lengths.index(min(lengths))
            lengths[found[module]] += seconds[module]
        else:
            found[module] = int(sha256(module.encode()).hexdigest(), 16) % count
    return found


def slice_of_commit(count: int = COUNT) -> int:
    """By the number of commits; a shallow clone does not know it, so there the commit's id decides."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()

    try:
        is_shallow = git("rev-parse", "--is-shallow-repository") == "true"
        number = int(git("rev-parse", "HEAD"), 16) if is_shallow else int(git("rev-list", "--count", "HEAD"))
    except (OSError, subprocess.CalledProcessError):
        return 0
    return number % count


def reported(folder: Path = REPORTS) -> Iterator[tuple[str, str, float]]:
    """Module, name and seconds of each test of the last runs."""
    for path in sorted(folder.glob("*.xml")):
        for case in ElementTree.parse(path).iter("testcase"):
            classname = case.get("classname", "")
            parts = classname.split(".")
            while parts and not (ROOT / Path(*parts)).with_suffix(".py").exists():
                parts.pop()
            module = "/".join(parts) + ".py" if parts else classname
            yield module, case.get("name", ""), float(case.get("time", "0"))


def slowest(tests: Iterable[tuple[str, str, float]]) -> str:
    rows = sorted(tests, key=lambda each: -each[2])[:_SHOWN]
    return "\n".join(
        [f"The {len(rows)} slowest tests:", *(f"{seconds:8.1f} s  {module}::{name}" for module, name, seconds in rows)]
    )


def _module(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def _update() -> None:
    """Only modules of the reports change; modules that no longer exist are dropped."""
    found: dict[str, float] = defaultdict(float)
    for module, _, seconds in reported():
        found[module] += seconds
    kept = {name: seconds for name, seconds in json.loads(SECONDS.read_text()).items() if (ROOT / name).exists()}
    whole = {**kept, **{name: round(seconds, 1) for name, seconds in found.items() if name in kept or seconds >= 1}}
    SECONDS.write_text(json.dumps(dict(sorted(whole.items())), indent=1) + "\n")


def main(arguments: list[str]) -> None:
    match arguments:
        case []:
            print(f"{slice_of_commit()}/{COUNT}")
        case ["--seeds", first, end]:
            low, size = int(first), int(end) - int(first)
            number = slice_of_commit()
            print(f"{low + size * number // COUNT}..{low + size * (number + 1) // COUNT}")
        case ["--slowest"]:
            print(slowest(reported()))
        case ["--update"]:
            _update()
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
