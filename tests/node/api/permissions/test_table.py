"""The table of permissions. Rules: security.md A53 to A55."""

from __future__ import annotations

from fenceline.node.api.permissions.table import CONTROLLER_PERMISSIONS, PERMISSIONS
from tests.node.api.permissions.rights_page import PAGE, render


def test_rows_are_in_the_order_of_the_keys() -> None:
    assert list(PERMISSIONS) == sorted(PERMISSIONS)
    assert list(CONTROLLER_PERMISSIONS) == sorted(CONTROLLER_PERMISSIONS)


def test_the_page_is_that_of_the_table() -> None:
    assert PAGE.read_text() == render(), "write it with: python -m tests.node.api.permissions.rights_page"
