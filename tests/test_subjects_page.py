"""tests/README.md lists every test module, and nothing that is not there."""

from __future__ import annotations

from tests.subjects import TESTS, modules_of, subjects


def test_every_pattern_has_tests() -> None:
    assert [each for patterns in subjects().values() for each in patterns if not any(modules_of(each))] == []


def test_every_test_module_is_listed() -> None:
    listed = {path for patterns in subjects().values() for each in patterns for path in modules_of(each)}
    assert sorted(str(path.relative_to(TESTS)) for path in set(TESTS.rglob("test_*.py")) - listed) == []
