"""The configuration of the authorizer. Rules: security.md A40, A41."""

from __future__ import annotations

from pathlib import Path

import pytest

from fenceline.config.authorizer import AUDIT_FILE, CLASS, STANDARD, SUPER_USERS, WITHOUT_RULES, read_authorizer
from fenceline.errors import OperatorError


def test_no_class_is_no_authorizer() -> None:
    assert read_authorizer({SUPER_USERS: "User:a"}.get) is None


def test_super_users_are_separated_by_semicolons() -> None:
    settings = {CLASS: STANDARD, SUPER_USERS: " User:CN=a,OU=b ;User:c;; ", WITHOUT_RULES: "TRUE", AUDIT_FILE: "/x"}
    found = read_authorizer(settings.get)
    assert found is not None
    assert found.super_users == ("User:CN=a,OU=b", "User:c")
    assert found.allows_without_rules
    assert found.audit_path == Path("/x")
    assert found.warnings == ()


@pytest.mark.parametrize("users", ["admin", "User:", ":admin", "User:a;b"])
def test_misspelt_super_users_are_refused(users: str) -> None:
    with pytest.raises(OperatorError, match="not of the form User:name"):
        read_authorizer({CLASS: STANDARD, SUPER_USERS: users}.get)


@pytest.mark.parametrize(
    ("users", "warning"), [("user:a", "matches nobody"), ("User:a,User:b", "one name with commas")]
)
def test_entries_that_match_nobody_are_reported(users: str, warning: str) -> None:
    found = read_authorizer({CLASS: STANDARD, SUPER_USERS: users}.get)
    assert found is not None
    assert warning in found.warnings[0]
