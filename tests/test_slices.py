"""The division of the long tests into slices."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from tests.slices import COUNT, ROOT, SECONDS, divide, reported, slowest


def test_known_modules_are_divided_into_slices_of_equal_length() -> None:
    seconds = {f"tests/test_{number}.py": float(number) for number in range(1, 41)}
    found = divide(seconds, seconds, 4)
    lengths = Counter[int]()
    for module, slice_number in found.items():
        lengths[slice_number] += round(seconds[module])
    assert set(found) == set(seconds)
    assert max(lengths.values()) - min(lengths.values()) <= 2


def test_a_new_module_leaves_the_others_where_they_are() -> None:
    seconds = {"tests/a.py": 10.0, "tests/b.py": 9.0, "tests/c.py": 3.0}
    before = divide(seconds, seconds, 2)
    after = divide([*seconds, "tests/new.py"], seconds, 2)
    assert {name: after[name] for name in seconds} == before
    assert after["tests/new.py"] in (0, 1)


def test_recorded_seconds_are_of_existing_modules() -> None:
    recorded = json.loads(SECONDS.read_text())
    assert [name for name in recorded if not (ROOT / name).exists()] == []
    lengths = Counter[int]()
    for module, slice_number in divide(recorded, recorded, COUNT).items():
        lengths[slice_number] += round(recorded[module])
    assert len(lengths) == COUNT


def test_reports_name_modules_and_the_slowest_tests_first(tmp_path: Path) -> None:
    (tmp_path / "run.xml").write_text(
        '<testsuites><testsuite><testcase classname="tests.test_slices" name="one" time="1.5"/>'
        '<testcase classname="tests.test_slices.Class" name="two" time="2.5"/></testsuite></testsuites>'
    )
    found = list(reported(tmp_path))
    assert {module for module, _, _ in found} == {"tests/test_slices.py"}
    assert slowest(found).splitlines()[1].split() == ["2.5", "s", "tests/test_slices.py::two"]
